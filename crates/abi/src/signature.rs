//! Function signatures as text, and their hashes.
//!
//! Arguments and results travel as [`postcard`](https://postcard.jamesmunns.com/wire-format), which does not
//! describe itself. So both sides turn the types that they were compiled with into the same text, and compare its
//! hash before a call. The text says what is on the wire and no more: a host's `Point` and a guest's `Pt` with the
//! same fields are the same type. Rendering is `const`, so that a guest has its signatures in its image ([`crate::note`])
//! and neither side spends an instruction on them at run time.
//!
//! # Grammar
//!
//! ```text
//! signature = function types                          a function; at most MAX_SIGNATURE_BYTES
//! function  = 1 to MAX_NAME_BYTES of: ASCII letters   its name
//!             and digits, _ - . : /, not ASCII
//! types     = "(" [ list ] ") -> " type               its arguments, its result
//! list      = type { "," type }
//! type      = "bool" | "char" | "string"
//!           | "i8" | "i16" | "i32" | "i64" | "i128" | "isize"
//!           | "u8" | "u16" | "u32" | "u64" | "u128" | "usize"
//!           | "f32" | "f64"
//!           | "bytes"                                 a byte string, and a sequence of u8: the same on the wire
//!           | "()"                                    unit, unit struct, tuple or array of nothing
//!           | "option<" type ">"                      an optional value
//!           | "[" type "]"                            a sequence of any length
//!           | "(" type ",)"                           a tuple of one element
//!           | "(" type "," list ")"                   a tuple or tuple struct; an array [T; 3] is (T,T,T)
//!           | "map<" type "," type ">"                a map: keys, values
//!           | "{" [ fields ] "}"                      a struct
//!           | "enum{" [ variant { "," variant } ] "}" an enum
//!           | "schema"                                a description of a type, as postcard-schema sends it
//! fields    = name ":" type { "," name ":" type }
//! variant   = name                                    a unit variant
//!           | name "(" [ list ] ")"                   a newtype variant, if it is one type; else a tuple variant
//!           | name "{" [ fields ] "}"                 a struct variant
//! name      = 1 or more of: ASCII letters and digits, a field's or variant's name, without r#
//!             _ -, not ASCII
//!           | '"' { character | escape } '"'          a name with other characters in it
//! escape    = '\"' | '\\' | "\x" two hexadecimal digits
//! ```
//!
//! There is no white space but around the arrow. A newtype struct is the type inside it, as on the wire. Types nest
//! at most [`MAX_DEPTH`] deep. A type that contains itself has no text, and no `postcard-schema` either: the compiler
//! reports a cycle.
//!
//! Arguments are one type on the wire. A tuple gives its elements, anything else is a single argument. On the wire a
//! tuple of one element is that element, and unit is nothing at all; so these pairs have the same signature, and
//! either side may see it either way: two arguments and one argument that is a pair; one argument and a tuple of it;
//! none and unit.
//!
//! # Hashes
//!
//! FNV-1a, 64 bits ([RFC 9923](https://www.rfc-editor.org/info/rfc9923)): short, public, `const`. It finds mistakes;
//! it does not withstand an attacker, and need not: a guest that lies about its types sends bytes that the host
//! decodes as untrusted, as it does with all others.

use core::fmt;
use postcard_schema::schema::{DataModelType, DataModelVariant, NamedType, NamedValue, NamedVariant};

/// Longest name of a function.
pub const MAX_NAME_BYTES: usize = 255;

/// Longest signature.
pub const MAX_SIGNATURE_BYTES: usize = 16 << 10;

/// Most functions of one image, exported and required together.
pub const MAX_FUNCTIONS: usize = 4096;

/// Most types inside each other: `[bool]` is a type at depth 0 with one at depth 1 in it.
pub const MAX_DEPTH: usize = 32;

/// FNV-1a of any text: of a whole signature it is the function's key, of the part after the name its types' hash.
///
/// ```
/// # use coracle_abi::signature::hash;
/// assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8); // From the RFC.
/// ```
pub const fn hash(text: &str) -> u64 {
    let mut out = Text::new(&mut [], 0);
    out.push(text);
    out.hash
}

/// What a frame carries to say which function is meant: the hash of the whole signature.
///
/// # Panics
/// If the types nest deeper than [`MAX_DEPTH`], or their text is longer than [`MAX_SIGNATURE_BYTES`]. In a constant
/// that is an error at compile time, which is how this is meant to be used. The same holds for all functions here
/// that take types.
pub const fn key_from(name: &str, args: &NamedType, result: &NamedType) -> u64 {
    let mut out = Text::new(&mut [], 0);
    out.push(name);
    out.types(args, result);
    out.hash
}

/// The hash of a signature without its name, so that a host compares a pair of types with what an image says under
/// any name: in `const { types_hash(A::SCHEMA, R::SCHEMA) }` it costs a call nothing.
///
/// ```
/// # use coracle_abi::signature::{hash, types_hash};
/// # use postcard_schema::Schema;
/// assert_eq!(types_hash(<(u8, &str)>::SCHEMA, <()>::SCHEMA), hash("(u8,string) -> ()"));
/// ```
pub const fn types_hash(args: &NamedType, result: &NamedType) -> u64 {
    let mut out = Text::new(&mut [], 0);
    out.types(args, result);
    out.hash
}

/// How long the signature's text is.
pub const fn signature_bytes(name: &str, args: &NamedType, result: &NamedType) -> usize {
    let mut out = Text::new(&mut [], 0);
    out.push(name);
    out.types(args, result);
    assert!(out.bytes <= MAX_SIGNATURE_BYTES, "the function's signature is longer than 16 KiB");
    out.bytes
}

/// Writes the signature's text to the start of `out` and returns its length. What does not fit is left out.
pub const fn fill_signature(name: &str, args: &NamedType, result: &NamedType, out: &mut [u8]) -> usize {
    let mut out = Text::new(out, 0);
    out.push(name);
    out.types(args, result);
    out.bytes
}

/// Writes a signature without its name, for messages to people.
///
/// # Errors
/// Those of `out`.
pub fn write_types(args: &NamedType, result: &NamedType, out: &mut impl fmt::Write) -> fmt::Result {
    // The walk is `const` and so cannot write to a trait. It is done once for each window of its text instead, which
    // is good enough for messages.
    let mut window = [0; 512];
    let mut done = 0;
    loop {
        let mut text = Text::new(&mut window, done);
        text.types(args, result);
        let left = text.bytes - done;
        if left == 0 {
            return Ok(());
        }
        // A character may be cut in two at the window's end: the next window starts with it.
        let here = &window[..left.min(512)];
        let valid = here.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        if valid.is_empty() {
            return Err(fmt::Error); // The walk writes whole strings, so this does not happen.
        }
        out.write_str(valid)?;
        done += valid.len();
    }
}

/// Whether this can be a function's name.
pub const fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_NAME_BYTES {
        return false;
    }
    let mut at = 0;
    while at < bytes.len() {
        if !is_bare_byte(bytes[at]) && !matches!(bytes[at], b'.' | b':' | b'/') {
            return false;
        }
        at += 1;
    }
    true
}

/// Whether a field's, variant's or parameter's name stands without quotes.
pub const fn is_bare(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !is_bare_byte(bytes[at]) {
            return false;
        }
        at += 1;
    }
    !bytes.is_empty()
}

/// Whether this byte can be in a name without quotes.
const fn is_bare_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' || !byte.is_ascii()
}

/// Text that is counted and hashed while it is made, and kept as far as it falls into a window: one walk over a type
/// does for all of the functions above.
struct Text<'w> {
    window: &'w mut [u8],
    /// Where in the text the window starts.
    start: usize,
    bytes: usize,
    hash: u64,
}

impl<'w> Text<'w> {
    const fn new(window: &'w mut [u8], start: usize) -> Self {
        Self { window, start, bytes: 0, hash: 0xcbf2_9ce4_8422_2325 }
    }

    const fn byte(&mut self, byte: u8) {
        if self.bytes >= self.start && self.bytes - self.start < self.window.len() {
            self.window[self.bytes - self.start] = byte;
        }
        self.bytes += 1;
        self.hash = (self.hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
    }

    const fn push(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            self.byte(bytes[at]);
            at += 1;
        }
    }

    const fn types(&mut self, args: &NamedType, result: &NamedType) {
        self.push("(");
        match inside_newtypes(args) {
            DataModelType::Unit | DataModelType::UnitStruct => {}
            DataModelType::Tuple(items) | DataModelType::TupleStruct(items) => self.list(items, 0),
            _ => self.ty(args, 0),
        }
        self.push(") -> ");
        self.ty(result, 0);
    }

    const fn ty(&mut self, ty: &NamedType, depth: usize) {
        assert!(depth <= MAX_DEPTH, "a type in this signature nests deeper than 32 types");
        // Types share parts, so a short program can describe a text without end.
        assert!(self.bytes <= MAX_SIGNATURE_BYTES, "the types' text is longer than 16 KiB");
        let inner = depth + 1;
        match inside_newtypes(ty) {
            DataModelType::Bool => self.push("bool"),
            DataModelType::I8 => self.push("i8"),
            DataModelType::I16 => self.push("i16"),
            DataModelType::I32 => self.push("i32"),
            DataModelType::I64 => self.push("i64"),
            DataModelType::I128 => self.push("i128"),
            DataModelType::Isize => self.push("isize"),
            DataModelType::U8 => self.push("u8"),
            DataModelType::U16 => self.push("u16"),
            DataModelType::U32 => self.push("u32"),
            DataModelType::U64 => self.push("u64"),
            DataModelType::U128 => self.push("u128"),
            DataModelType::Usize => self.push("usize"),
            DataModelType::F32 => self.push("f32"),
            DataModelType::F64 => self.push("f64"),
            DataModelType::Char => self.push("char"),
            DataModelType::String => self.push("string"),
            DataModelType::ByteArray => self.push("bytes"),
            DataModelType::Schema => self.push("schema"),
            DataModelType::Unit | DataModelType::UnitStruct => self.push("()"),
            DataModelType::Option(some) => {
                self.push("option<");
                self.ty(some, inner);
                self.push(">");
            }
            DataModelType::Seq(item) if matches!(inside_newtypes(item), DataModelType::U8) => self.push("bytes"),
            DataModelType::Seq(item) => {
                self.push("[");
                self.ty(item, inner);
                self.push("]");
            }
            DataModelType::Tuple(items) | DataModelType::TupleStruct(items) => {
                self.push("(");
                self.list(items, inner);
                self.push(if items.len() == 1 { ",)" } else { ")" });
            }
            DataModelType::Map { key, val } => {
                self.push("map<");
                self.ty(key, inner);
                self.push(",");
                self.ty(val, inner);
                self.push(">");
            }
            DataModelType::Struct(fields) => self.fields(fields, inner),
            DataModelType::Enum(variants) => self.variants(variants, inner),
            DataModelType::NewtypeStruct(_) => unreachable!(),
        }
    }

    const fn list(&mut self, items: &[&NamedType], depth: usize) {
        let mut at = 0;
        while at < items.len() {
            if at > 0 {
                self.push(",");
            }
            self.ty(items[at], depth);
            at += 1;
        }
    }

    const fn fields(&mut self, fields: &[&NamedValue], depth: usize) {
        self.push("{");
        let mut at = 0;
        while at < fields.len() {
            if at > 0 {
                self.push(",");
            }
            self.name(fields[at].name);
            self.push(":");
            self.ty(fields[at].ty, depth);
            at += 1;
        }
        self.push("}");
    }

    const fn variants(&mut self, variants: &[&NamedVariant], depth: usize) {
        self.push("enum{");
        let mut at = 0;
        while at < variants.len() {
            if at > 0 {
                self.push(",");
            }
            self.name(variants[at].name);
            match variants[at].ty {
                DataModelVariant::UnitVariant => {}
                DataModelVariant::NewtypeVariant(value) => {
                    self.push("(");
                    self.ty(value, depth);
                    self.push(")");
                }
                // With one element it reads as the newtype variant, which it is on the wire and, in the only place
                // where it occurs, the schema of `Result`, for serde too.
                DataModelVariant::TupleVariant(items) => {
                    self.push("(");
                    self.list(items, depth);
                    self.push(")");
                }
                DataModelVariant::StructVariant(fields) => self.fields(fields, depth),
            }
            at += 1;
        }
        self.push("}");
    }

    /// A field's or variant's name, quoted if it must be.
    const fn name(&mut self, name: &str) {
        let bytes = name.as_bytes();
        // `type` as a field is `r#type` to the derive and `type` to everybody else.
        let mut at = if bytes.len() > 2 && bytes[0] == b'r' && bytes[1] == b'#' { 2 } else { 0 };
        let quoted = at == 0 && !is_bare(name);
        if quoted {
            self.push("\"");
        }
        while at < bytes.len() {
            match bytes[at] {
                byte @ (b'"' | b'\\') => {
                    self.byte(b'\\');
                    self.byte(byte);
                }
                byte if byte.is_ascii_control() => {
                    let digits = b"0123456789abcdef";
                    self.push("\\x");
                    self.byte(digits[(byte >> 4) as usize]);
                    self.byte(digits[(byte & 15) as usize]);
                }
                byte => self.byte(byte),
            }
            at += 1;
        }
        if quoted {
            self.push("\"");
        }
    }
}

/// The type without the newtypes around it, of which the wire shows nothing.
const fn inside_newtypes(ty: &NamedType) -> &'static DataModelType {
    let mut inside = ty.ty;
    while let DataModelType::NewtypeStruct(next) = inside {
        inside = next.ty;
    }
    inside
}

// Changing any of these, or a byte of any text, breaks guests that already exist. Read docs/abi.md before touching one.
const _: () = {
    assert!(MAX_NAME_BYTES == 255);
    assert!(MAX_SIGNATURE_BYTES == 16384);
    assert!(MAX_FUNCTIONS == 4096);
    assert!(MAX_DEPTH == 32);
    assert!(hash("add(i32,i32) -> i32") == 0x1fb4_88f3_2aa3_2810);
};

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::{
        collections::BTreeMap,
        string::{String, ToString},
        vec::Vec,
    };
    use postcard_schema::Schema;

    /// The text of `A -> R` must be this, by each of the ways to make it.
    #[track_caller]
    fn check<A: Schema + ?Sized, R: Schema + ?Sized>(want: &str) {
        let mut types = String::new();
        write_types(A::SCHEMA, R::SCHEMA, &mut types).unwrap();
        assert_eq!(types, want);
        assert_eq!(types_hash(A::SCHEMA, R::SCHEMA), hash(want));
        assert_eq!(key_from("f", A::SCHEMA, R::SCHEMA), hash(&("f".to_string() + want)));
        let bytes = signature_bytes("f", A::SCHEMA, R::SCHEMA);
        let mut text = alloc::vec![0; bytes];
        assert_eq!(fill_signature("f", A::SCHEMA, R::SCHEMA, &mut text), bytes);
        assert_eq!(core::str::from_utf8(&text).unwrap(), "f".to_string() + want);
    }

    /// As above, for a type as a result.
    #[track_caller]
    fn check_type<T: Schema + ?Sized>(want: &str) {
        check::<(), T>(&("() -> ".to_string() + want));
    }

    #[derive(Schema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Point {
        x: i32,
        y: Option<f64>,
    }
    #[derive(Schema)]
    struct Unit;
    #[derive(Schema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Meters(f32);
    #[derive(Schema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Byte(u8);
    #[derive(Schema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Pair(u8, Meters);
    /// What `#[serde(rename = …)]` and raw identifiers give.
    struct Named;
    impl Schema for Named {
        const SCHEMA: &'static NamedType = &NamedType {
            name: "Named",
            ty: &DataModelType::Struct(&[
                &NamedValue { name: "r#type", ty: u8::SCHEMA },
                &NamedValue { name: "kebab-case", ty: u8::SCHEMA },
                &NamedValue { name: "a:\"\\\n\0", ty: u8::SCHEMA },
                &NamedValue { name: "größe", ty: u8::SCHEMA },
                &NamedValue { name: "", ty: u8::SCHEMA },
            ]),
        };
    }
    #[derive(Schema)]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Shape {
        Nothing,
        Empty(),
        Of(Unit),
        Circle(Point),
        Segment(Point, Meters),
        Box { low: u8, high: u8 },
        Bare {},
    }

    #[test]
    fn scalars_read_as_in_rust() {
        check::<(bool, i8, i16, i32, i64, i128), f64>("(bool,i8,i16,i32,i64,i128) -> f64");
        check::<(u8, u16, u32, u64, u128), f32>("(u8,u16,u32,u64,u128) -> f32");
        check::<(f64, char), str>("(f64,char) -> string");
    }

    #[test]
    fn arguments_are_a_list_whatever_type_holds_them() {
        check::<(), ()>("() -> ()");
        check::<Unit, Unit>("() -> ()");
        check::<u8, ()>("(u8) -> ()");
        check::<(u8,), ()>("(u8) -> ()");
        check::<Meters, ()>("(f32) -> ()");
        check::<(u8, f32), ()>("(u8,f32) -> ()");
        check::<Pair, ()>("(u8,f32) -> ()");
        check::<((u8, f32),), ()>("((u8,f32)) -> ()");
        check::<((),), ()>("(()) -> ()");
    }

    #[test]
    fn tuples_keep_their_parentheses_elsewhere() {
        check_type::<(u8,)>("(u8,)");
        check_type::<Pair>("(u8,f32)");
        check_type::<[u16; 3]>("(u16,u16,u16)");
        check_type::<[u16; 0]>("()");
    }

    #[test]
    fn containers_name_what_is_in_them() {
        check_type::<Option<Vec<Option<bool>>>>("option<[option<bool>]>");
        check_type::<BTreeMap<String, Vec<i8>>>("map<string,[i8]>");
    }

    #[test]
    fn sequences_of_bytes_are_bytes() {
        check_type::<Vec<u8>>("bytes");
        check_type::<[u8]>("bytes");
        check_type::<Vec<Byte>>("bytes");
        check_type::<[u8; 2]>("(u8,u8)"); // No length on the wire.
    }

    #[test]
    fn structs_show_their_fields_and_not_their_names() {
        check_type::<Point>("{x:i32,y:option<f64>}");
        check_type::<Named>(r#"{type:u8,kebab-case:u8,"a:\"\\\x0a\x00":u8,größe:u8,"":u8}"#);
    }

    #[test]
    fn enums_show_their_variants() {
        check_type::<Shape>(concat!(
            "enum{Nothing,Empty(),Of(()),Circle({x:i32,y:option<f64>}),",
            "Segment({x:i32,y:option<f64>},f32),Box{low:u8,high:u8},Bare{}}"
        ));
        check_type::<Result<u8, String>>("enum{Ok(u8),Err(string)}");
    }

    #[test]
    fn a_long_text_is_whole_across_windows() {
        #[derive(Schema)]
        #[expect(dead_code, reason = "only its schema is used")]
        struct Wide {
            ääääääääää: [u8; 250],
            ö: [i8; 250],
        }
        let want = alloc::format!("{{ääääääääää:({}u8),ö:({}i8)}}", "u8,".repeat(249), "i8,".repeat(249));
        check_type::<Wide>(&want);
        check_type::<(u8, Wide)>(&alloc::format!("(u8,{want})"));
    }

    type Four<T> = Option<Option<Option<Option<T>>>>;
    type Sixteen<T> = Four<Four<Four<Four<T>>>>;

    #[test]
    fn the_deepest_type_has_a_text_at_compile_time() {
        const HASH: u64 = types_hash(<()>::SCHEMA, <Sixteen<Sixteen<u8>>>::SCHEMA);
        assert_eq!(HASH, hash(&alloc::format!("() -> {}u8{}", "option<".repeat(32), ">".repeat(32))));
    }

    #[test]
    #[should_panic(expected = "nests deeper than 32")]
    fn a_deeper_type_has_none() {
        types_hash(<()>::SCHEMA, <Option<Sixteen<Sixteen<u8>>>>::SCHEMA);
    }

    #[test]
    #[should_panic(expected = "longer than 16 KiB")]
    fn types_that_double_end_soon() {
        type Double<T> = ((T, T), (T, T));
        types_hash(<()>::SCHEMA, <Double<Double<Double<Double<Double<Double<Double<u8>>>>>>>>::SCHEMA);
    }

    #[test]
    fn the_longest_text_is_short_enough_for_the_compiler() {
        const HASH: u64 = types_hash(<()>::SCHEMA, <[u8; 5000]>::SCHEMA);
        assert_ne!(HASH, 0);
    }

    #[test]
    fn names_of_functions() {
        for good in ["add", "a", "fs.read", "math::add", "v1/add-two", "größe", &"x".repeat(255)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "a b", "a(", "a,b", "a\0", "a\"", &"x".repeat(256)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
