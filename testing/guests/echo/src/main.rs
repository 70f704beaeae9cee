//! Functions of all kinds, with `std`: what the tests of calls call.
#![no_main]

use std::collections::BTreeMap;

use coracle_guest::{HostError, Schema, function, host};
use serde::{Deserialize, Serialize};

coracle_guest::main!();

/// Gives the text back.
#[function]
fn echo(text: &str) -> String {
    text.to_owned()
}

/// Gives the bytes back.
#[function]
fn echo_bytes(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

/// Adds, modulo 2^32.
#[function]
fn add(a: i32, b: i32) -> i32 {
    a.wrapping_add(b)
}

#[derive(Serialize, Deserialize, Schema)]
#[postcard(crate = coracle_guest::postcard_schema)]
enum Colour {
    Red,
    Rgb(u8, u8, u8),
    Named { name: String },
}

#[derive(Serialize, Deserialize, Schema)]
#[postcard(crate = coracle_guest::postcard_schema)]
struct Point {
    x: i64,
    y: f64,
    label: Option<String>,
    colour: Colour,
    tags: Vec<String>,
    weights: BTreeMap<String, u32>,
}

/// Gives a structure back.
#[function]
fn point(point: Point) -> Point {
    point
}

/// Fails, with this text.
#[function]
fn fail(message: String) -> Result<String, String> {
    Err(message)
}

/// Panics, with this text.
#[function]
fn panic_with(message: String) {
    panic!("{message}");
}

#[host]
fn greet(name: &str) -> Result<String, HostError>;

#[host]
fn host_add(a: i32, b: i32) -> i32;

/// What the host's `greet` says.
#[function]
fn call_host(name: &str) -> Result<String, HostError> {
    let before = name.to_owned();
    let greeting = greet(name)?;
    // The argument is still where the host left it: the reply lies behind it.
    assert_eq!(name, before);
    Ok(greeting)
}

/// What the host's `host_add` says; a panic if that is an error.
#[function]
fn add_on_host(a: i32, b: i32) -> i32 {
    host_add(a, b)
}

/// Logs a text at a level, 1 error to 5 trace.
#[function]
fn log_something(level: u8, text: &str) {
    let level = match level {
        1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        4 => log::Level::Debug,
        _ => log::Level::Trace,
    };
    log::log!(level, "{text}");
}

/// The initial data, which is text.
#[function]
fn init_text() -> Result<String, std::str::Utf8Error> {
    std::str::from_utf8(coracle_guest::init_data()).map(str::to_owned)
}

/// Allocates, writes to each page, frees, and says how many pages that were.
#[function]
fn allocate(bytes: u64) -> u64 {
    let mut block = Vec::<u8>::with_capacity(bytes as usize);
    let pages = block.spare_capacity_mut().chunks_mut(4096).map(|page| page[0].write(1)).count();
    pages as u64
}

/// Random bytes of the host.
#[function]
fn random_bytes(count: u32) -> Vec<u8> {
    let mut bytes = vec![0; count as usize];
    coracle_guest::fill_random(&mut bytes);
    bytes
}

/// Ends the program in the middle of the call.
#[function]
fn exit_with(code: i32) {
    std::process::exit(code);
}

/// The program's arguments and its environment.
#[function]
fn args_and_env() -> (Vec<String>, Vec<(String, String)>) {
    (coracle_guest::args().map(str::to_owned).collect(), std::env::vars().collect())
}

/// The sandbox's generation.
#[function]
fn generation() -> u64 {
    coracle_guest::generation()
}
