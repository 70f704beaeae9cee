//! What the dynamic side makes of values, against what `postcard` and `serde_json` make of the same Rust types.

use super::*;
use coracle_abi::note::FunctionNote;
use coracle_abi::signature::write_types;
use postcard_schema::Schema;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The type as it would arrive in a note.
fn type_of<T: Schema>() -> Type {
    let mut text = String::new();
    write_types(<()>::SCHEMA, T::SCHEMA, &mut text).unwrap();
    let text = text.strip_prefix("() -> ").unwrap();
    let ty = Type::parse(text).unwrap();
    assert_eq!(ty.to_string().replace(' ', ""), text);
    ty
}

/// A value is the same bytes and the same JSON on both paths.
#[track_caller]
fn check<T: Schema + Serialize>(value: &T) {
    let ty = type_of::<T>();
    let bytes = postcard::to_stdvec(value).unwrap();
    let json = serde_json::to_value(value).unwrap();
    assert_eq!(ty.decode_json(&bytes).unwrap(), json);
    assert_eq!(ty.encode_json(&json).unwrap(), bytes);
}

#[derive(Clone, Debug, Serialize, Deserialize, Schema)]
struct Unit;
#[derive(Clone, Debug, Serialize, Deserialize, Schema)]
struct Meters(f32);
#[derive(Clone, Debug, Serialize, Deserialize, Schema)]
struct Pair(u8, Meters);
#[derive(Clone, Debug, Serialize, Deserialize, Schema)]
struct Numbers {
    small: (i8, u8, i16, u16),
    large: (i32, u32, i64, u64),
    huge: (u64, f64),
    flag: bool,
    #[serde(rename = "kebab:case\n")]
    r#type: Meters,
}
#[derive(Clone, Debug, Serialize, Deserialize, Schema)]
enum Shape {
    Nothing,
    Empty(),
    Of(Unit),
    Text(String),
    Segment(Pair, char),
    Box { low: Option<i32>, high: Vec<u8> },
    Bare {},
}
#[derive(Clone, Debug, Serialize, Deserialize, Schema)]
struct All {
    numbers: Numbers,
    shapes: Vec<Shape>,
    by_name: BTreeMap<String, Option<Pair>>,
    by_number: BTreeMap<i16, [u16; 3]>,
    by_flag: BTreeMap<bool, Vec<()>>,
    by_letter: BTreeMap<char, (u8,)>,
    outcome: Result<u8, String>,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let finite = || any::<f32>().prop_filter("JSON has no number for it", |it| it.is_finite());
    prop_oneof![
        Just(Shape::Nothing),
        Just(Shape::Empty()),
        Just(Shape::Of(Unit)),
        any::<String>().prop_map(Shape::Text),
        (any::<u8>(), finite(), any::<char>()).prop_map(|(a, b, c)| Shape::Segment(Pair(a, Meters(b)), c)),
        any::<(Option<i32>, Vec<u8>)>().prop_map(|(low, high)| Shape::Box { low, high }),
        Just(Shape::Bare {}),
    ]
}

prop_compose! {
    fn numbers()(small in any::<(i8, u8, i16, u16)>(), large in any::<(i32, u32, i64, u64)>(), wide in any::<u64>(),
        float in -1e300..1e300, flag: bool, narrow in -1e30_f32..1e30) -> Numbers {
        Numbers { small, large, huge: (wide, float), flag, r#type: Meters(narrow) }
    }
}

prop_compose! {
    fn everything()(numbers in numbers(), shapes in vec(shapes(), 0..5),
        by_name in btree_map(any::<String>(), any::<Option<u8>>(), 0..3), by_number in btree_map(any::<i16>(), any::<[u16; 3]>(), 0..3),
        by_flag in btree_map(any::<bool>(), vec(Just(()), 0..200), 0..3), by_letter in btree_map(any::<char>(), any::<(u8,)>(), 0..3),
        outcome in prop_oneof![any::<u8>().prop_map(Ok), any::<String>().prop_map(Err)]) -> All {
        let by_name = by_name.into_iter().map(|(name, it)| (name, it.map(|it| Pair(it, Meters(0.5))))).collect();
        All { numbers, shapes, by_name, by_number, by_flag, by_letter, outcome }
    }
}

proptest! {
    #[test]
    fn any_value_is_what_postcard_and_serde_json_make_of_it(value in everything()) {
        let json = serde_json::to_value(&value).unwrap();
        let ty = type_of::<All>();
        // Maps are sorted by key in the one and by the key's text in the other, so that bytes are compared as values.
        let ours: All = postcard::from_bytes(&ty.encode_json(&json).unwrap()).unwrap();
        prop_assert_eq!(serde_json::to_value(&ours).unwrap(), json.clone());
        prop_assert_eq!(ty.decode_json(&postcard::to_stdvec(&value).unwrap()).unwrap(), json);
        for shape in &value.shapes {
            check(shape);
        }
        check(&value.numbers);
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(bytes in vec(any::<u8>(), 0..64)) {
        let ty = type_of::<All>();
        if let Ok(json) = ty.decode_within(1 << 16, &bytes) {
            prop_assert_eq!(ty.decode_json(&ty.encode_json(&json).unwrap()).unwrap(), json);
        }
        for text in ["[()]", "[[()]]", "map<(),option<()>>", "map<u128,[enum{A,B(i128),C{a:bytes}}]>", "[char]"] {
            let ty = Type::parse(text).unwrap();
            let _ = ty.decode_within(1 << 16, &bytes);
        }
    }

    #[test]
    fn any_text_is_a_type_or_an_error(text in "(option<|map<|enum\\{|[\\[({})\\],:>\"]|\\\\|i32|bool|a|x0a|é){0,40}") {
        if let Ok(ty) = Type::parse(&text) {
            prop_assert_eq!(Type::parse(&ty.to_string().replace(", ", ",").replace(": ", ":")).unwrap(), ty);
        }
    }
}

#[test]
fn extremes_of_integers() {
    check(&(i8::MIN, i8::MAX, i16::MIN, i16::MAX, i32::MIN, i32::MAX));
    check(&(i64::MIN, i64::MAX, u8::MAX, u16::MAX, u32::MAX, u64::MAX));
}

/// A value is these bytes and this JSON.
#[track_caller]
fn pair(ty: &str, json: Value, bytes: &[u8]) {
    let ty = Type::parse(ty).unwrap();
    assert_eq!(ty.encode_json(&json).unwrap(), bytes);
    assert_eq!(ty.decode_json(bytes).unwrap(), json);
}

#[test]
fn numbers_beyond_json_are_digits() {
    for number in [u128::MAX, u128::from(u64::MAX) + 1] {
        pair("u128", json!(number.to_string()), &postcard::to_stdvec(&number).unwrap());
    }
    for number in [i128::MIN, i128::MAX, i128::from(i64::MIN) - 1] {
        pair("i128", json!(number.to_string()), &postcard::to_stdvec(&number).unwrap());
    }
    pair("i128", json!(u64::MAX), &postcard::to_stdvec(&i128::from(u64::MAX)).unwrap());
    pair("u128", json!(7), &[7]);
    pair("usize", json!(300), &[0xac, 0x02]);
    pair("isize", json!(-1), &[1]);
    assert_eq!(Type::I64.encode_json(&json!("-3")).unwrap(), [5]);
}

#[test]
fn floats_beyond_json_are_words() {
    pair("f64", json!("inf"), &f64::INFINITY.to_le_bytes());
    pair("f32", json!("-inf"), &f32::NEG_INFINITY.to_le_bytes());
    pair("f32", json!("NaN"), &f32::NAN.to_le_bytes());
    assert_eq!(Type::F32.decode_json(&(-f32::NAN).to_le_bytes()).unwrap(), json!("NaN"));
    assert_eq!(Type::F64.encode_json(&json!(3)).unwrap(), 3.0_f64.to_le_bytes());
}

#[test]
fn what_is_read_beside_what_is_written() {
    let encode = |ty: &str, json: Value| Type::parse(ty).unwrap().encode_json(&json).unwrap();
    assert_eq!(encode("bytes", json!("hi")), [2, b'h', b'i']);
    assert!(encode("()", json!([])).is_empty());
    assert_eq!(encode("{a:option<u8>,b:u8}", json!({"b": 1})), [0, 1]);
    assert_eq!(encode("enum{A,B}", json!({"B": null})), [1]);
}

#[test]
fn maps_without_names_for_keys_are_arrays() {
    pair("map<(i8,i8),bool>", json!([[[1, -1], true]]), &[1, 1, 255, 1]);
    pair("map<u128,bool>", json!({"340282366920938463463374607431768211455": true}), &{
        let mut bytes = vec![1];
        bytes.extend(postcard::to_stdvec(&u128::MAX).unwrap());
        bytes.push(1);
        bytes
    });
}

#[track_caller]
fn not_encoded(ty: &str, json: Value, message: &str) {
    assert_eq!(Type::parse(ty).unwrap().encode_json(&json).unwrap_err().to_string(), message);
}

#[test]
fn a_wrong_value_is_named() {
    not_encoded(
        "{points:[{x:i32}]}",
        json!({"points": [{"x": 1}, {"x": "1"}]}),
        "$.points[1].x: expected i32, found a string",
    );
    not_encoded("i8", json!(300), "$: expected i8, found 300");
    not_encoded("u32", json!(-1), "$: expected u32, found -1");
    not_encoded("u32", json!(1.5), "$: expected u32, found 1.5");
    not_encoded("u64", json!("x"), "$: expected u64, found a string");
    not_encoded(
        "f32",
        json!(u64::MAX as f64 * 1e30),
        &format!("$: expected f32, found {}", json!(u64::MAX as f64 * 1e30)),
    );
    not_encoded("bool", json!(null), "$: expected bool, found null");
    not_encoded("char", json!("ab"), "$: expected one character, found another number of them");
    not_encoded("bytes", json!([1, 256]), "$[1]: expected u8, found 256");
    not_encoded("(u8,u8)", json!([1]), "$: expected an array of 2 elements, found one of 1");
    not_encoded("{a:u8}", json!({}), "$: the field \"a\" is missing");
    not_encoded("{a:u8}", json!({"a": 1, "b": 2}), "$: there is no field \"b\"");
    not_encoded("enum{A}", json!("B"), "$: there is no variant \"B\"");
    not_encoded("enum{A}", json!({"A": 1}), "$.A: expected null, found 1");
    not_encoded("map<u8,bool>", json!({"a b": true}), "$[\"a b\"]: expected u8, found a string");
    not_encoded("map<(),bool>", json!([[null]]), "$[0]: expected [key, value], found an array");
    not_encoded("schema", json!(null), "$: a description of a type has no JSON form");
}

#[track_caller]
fn not_decoded(ty: &str, bytes: &[u8], message: &str) {
    assert_eq!(Type::parse(ty).unwrap().decode_json(bytes).unwrap_err().to_string(), message);
}

#[test]
fn wrong_bytes_are_named() {
    not_decoded("[{x:u16}]", &[2, 0, 0x80], "$[1].x: the bytes end within it");
    not_decoded("u16", &[0xff, 0xff, 0x04], "$: an integer has more than 16 bits");
    not_decoded("u16", &[0x80, 0x80, 0x80, 0], "$: an integer has more than 16 bits");
    not_decoded("u128", &[0xff; 20], "$: an integer has more than 128 bits");
    not_decoded("bool", &[2], "$: expected 0 or 1, found 2");
    not_decoded("char", &[2, b'a', b'b'], "$: expected one character");
    not_decoded("string", &[1, 0xff], "$: it is not UTF-8");
    not_decoded("enum{A}", &[1], "$: there is no variant number 1");
    not_decoded("()", &[0], "$: 1 bytes are left over after it");
    not_decoded("bytes", &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], "$: the bytes end within it");
    assert_eq!(Type::U16.decode_json(&[0x81, 0]).unwrap(), json!(1)); // As postcard does.
}

#[test]
fn elements_without_bytes_end_soon() {
    let claim = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    for text in ["[()]", "[{}]", "[((),())]", "map<(),()>"] {
        let error = Type::parse(text).unwrap().decode_json(&claim).unwrap_err();
        assert!(error.to_string().contains("too much memory"), "{error}");
    }
}

#[test]
fn long_names_count() {
    let ty = Type::parse(&format!("[{{{}:()}}]", "x".repeat(16000))).unwrap();
    assert!(ty.decode_json(&postcard::to_stdvec(&20_000_u32).unwrap()).is_err());
    assert!(ty.decode_json(&postcard::to_stdvec(&200_u32).unwrap()).is_ok());
}

#[test]
fn texts_that_are_no_types() {
    let deep = |levels: usize| format!("{}u8{}", "[".repeat(levels), "]".repeat(levels));
    assert!(Type::parse(&deep(32)).is_ok());
    for text in [
        "",
        " ",
        "int",
        "i32 ",
        "i3",
        "(",
        "(u8)",
        "(u8",
        "(,)",
        "(u8,)x",
        "(u8,u8,)",
        "[u8",
        "[]",
        "option<u8",
        "option",
        "map<u8>",
        "{a}",
        "{a:}",
        "{:u8}",
        "{a:u8,}",
        "{a:u8,a:u8}",
        "enum{A,A}",
        "enum{A,}",
        "enum{A(}",
        "enum{",
        "{\"a:u8}",
        "{\"\\q\":u8}",
        "{\"\\x80\":u8}",
        "{\"\\x0\":u8}",
        "{\"\n\":u8}",
    ] {
        assert!(Type::parse(text).is_err(), "{text}");
    }
    assert!(Type::parse(&deep(33)).is_err());
    assert!(Type::parse(&"(".repeat(20_000)).is_err());
    let error = Type::parse("(u8,x)").unwrap_err();
    assert_eq!(error.to_string(), "no type is written like this at byte 4");
}

fn signature(note: &str) -> Result<Signature, ParseError> {
    Signature::from_note(&FunctionNote::parse(note.as_bytes()).unwrap())
}

#[test]
fn signatures_read_as_people_write_them() {
    let text = |note| signature(note).unwrap().to_string();
    assert_eq!(text("greet(string) -> string\0name"), "greet(name: string) -> string");
    assert_eq!(text("f(i32,{a:u8,b:u8}) -> ()\0a,b"), "f(a: i32, b: {a: u8, b: u8}) -> ()");
    assert_eq!(text("f(i32,u8) -> ()\0pair"), "f(pair: (i32, u8)) -> ()");
    assert_eq!(text("f() -> ()\0nothing"), "f(nothing: ()) -> ()");
    assert_eq!(text("f() -> enum{A,B(u8),C(u8,u8),D{a:u8}}\0"), "f() -> enum{A, B(u8), C(u8, u8), D{a: u8}}");
    assert_eq!(text("f(i32,u8) -> map<u8,(u8,)>\0"), "f(i32, u8) -> map<u8, (u8,)>");
    assert!(signature("f(i32,u8) -> ()\0a,b,c").is_err());
    assert!(signature("f(i32,u8,) -> ()\0").is_err());
    assert!(signature("f(i32> -> ()\0").is_err());
}

#[test]
fn arguments_follow_each_other() {
    let encode = |note, arguments: &[Value]| signature(note).unwrap().encode_arguments(arguments);
    assert_eq!(encode("f(u8,string) -> ()\0a,b", &[json!(1), json!("x")]).unwrap(), [1, 1, b'x']);
    assert_eq!(encode("f(u8,string) -> ()\0pair", &[json!([1, "x"])]).unwrap(), [1, 1, b'x']);
    let error = |note, arguments: &[Value]| encode(note, arguments).unwrap_err().to_string();
    assert_eq!(error("f(u8) -> ()\0", &[]), "$: expected 1 arguments, found 0");
    assert_eq!(error("f(u8) -> ()\0count", &[json!("x")]), "$.count: expected u8, found a string");
    assert_eq!(error("f(u8) -> ()\0", &[json!("x")]), "$[0]: expected u8, found a string");
}
