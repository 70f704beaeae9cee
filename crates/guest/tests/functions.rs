//! What the macros make of functions, end to end: an entry that calls them, and a note in the file.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use coracle_guest::__private::{FUNCTIONS, Output, abi::signature};
use coracle_guest::{HostError, Schema, function, host};
use serde::{Deserialize, Serialize};

/// `name(args) -> result`, with the types that a host writes.
fn key<A: Schema, R: Schema>(name: &str) -> u64 {
    signature::key_from(name, A::SCHEMA, R::SCHEMA)
}

/// Calls a registered function as the serve loop does. The error is its text.
#[track_caller]
fn call<A: Serialize + Schema, R: for<'a> Deserialize<'a> + Schema>(name: &str, args: A) -> Result<R, String> {
    let key = key::<A, R>(name);
    let function = FUNCTIONS.iter().find(|function| function.key == key).expect("it is registered");
    let arguments = postcard::to_allocvec(&args).unwrap();
    let mut buffer = [0; 256];
    let mut output = Output::new(&mut buffer);
    let kind = function.call(&arguments, &mut output);
    let payload = output.len();
    let payload = &buffer[..payload];
    match kind {
        coracle_guest::__private::abi::message::Kind::Reply => Ok(postcard::from_bytes(payload).unwrap()),
        _ => Err(String::from_utf8(payload.to_vec()).unwrap()),
    }
}

#[derive(Serialize, Deserialize, Schema, Debug, PartialEq)]
struct Point {
    x: i32,
    y: Option<i32>,
}

#[function]
fn mirror(point: &Point) -> Point {
    Point { x: point.y.unwrap_or(0), y: Some(point.x) }
}

#[function]
fn join(words: &[String], by: &str) -> String {
    words.join(by)
}

#[function(name = "math.divide")]
fn divide(a: i64, b: i64) -> Result<i64, &'static str> {
    a.checked_div(b).ok_or("division by zero")
}

#[function]
fn nothing() {}

#[host]
fn greet(name: &str) -> Result<String, HostError>;

#[function]
fn greeting() -> Result<String, HostError> {
    greet("you")
}

#[test]
fn functions_are_called_by_their_signature() {
    assert_eq!(call("mirror", Point { x: 1, y: Some(2) }), Ok(Point { x: 2, y: Some(1) }));
    assert_eq!(call("join", (vec!["a", "b"], "-")), Ok("a-b".to_owned()));
    assert_eq!(call("math.divide", (7_i64, 2_i64)), Ok(3_i64));
    assert_eq!(call("nothing", ()), Ok(()));
}

#[test]
fn an_error_is_its_text() {
    assert_eq!(call::<_, i64>("math.divide", (7_i64, 0_i64)), Err("division by zero".to_owned()));
}

#[test]
fn outside_of_a_sandbox_there_is_no_host() {
    let error = call::<_, String>("greeting", ()).unwrap_err();
    assert!(error.contains("there is no host"), "{error}");
    assert!(coracle_guest::init_data().is_empty());
    assert_eq!(coracle_guest::generation(), 0);
    assert_eq!(coracle_guest::args().count(), 0);
}
