//! Functions of some kinds, without `std`.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use coracle_guest::{HostError, function, host};

coracle_guest::main!();

/// Gives the text back.
#[function]
fn echo(text: &str) -> String {
    text.to_owned()
}

/// Adds, modulo 2^32.
#[function]
fn add(a: i32, b: i32) -> i32 {
    a.wrapping_add(b)
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

/// What the host's `greet` says.
#[function]
fn call_host(name: &str) -> Result<String, HostError> {
    greet(name)
}

/// Allocates, writes to each page, frees, and says how many pages that were.
#[function]
fn allocate(bytes: u64) -> u64 {
    let mut block = Vec::<u8>::with_capacity(bytes as usize);
    let pages = block.spare_capacity_mut().chunks_mut(4096).map(|page| page[0].write(1)).count();
    pages as u64
}
