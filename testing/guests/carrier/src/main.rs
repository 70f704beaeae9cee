//! Does everything arrive, of any size, in any number? It makes bytes, measures and passes on what it gets.
#![no_main]

use coracle_guest::{Bytes, HostError, function, host};

coracle_guest::main!();

/// Does nothing.
#[function]
fn empty() {}

/// So many bytes.
#[function]
fn make_bytes(count: u32) -> Bytes {
    vec![7; count as usize].into()
}

/// How many bytes these are, read in place.
#[function]
fn measure(bytes: &[u8], text: &str) -> u64 {
    (bytes.len() + text.len()) as u64
}

/// Keeps the first third.
#[function]
fn third(bytes: &[u8]) -> Bytes {
    bytes[..bytes.len() / 3].to_vec().into()
}

#[host(notify)]
fn count(n: u32);

/// Tells the host numbers up to this one, and waits for none of them.
#[function]
fn tell(numbers: u32) -> u32 {
    (0..numbers).for_each(count);
    numbers
}

#[host]
fn host_bytes(count: u32) -> Result<Bytes, HostError>;

/// How many bytes the host gives when it is asked for so many, with these arguments in place meanwhile.
#[function]
fn fetch(count: u32, beside: &[u8]) -> Result<u64, HostError> {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let before = sum(beside);
    let bytes = host_bytes(count)?;
    assert_eq!(sum(beside), before, "the arguments changed");
    Ok(bytes.len() as u64)
}

#[host]
fn host_take(bytes: &[u8]) -> Result<u64, HostError>;

/// How many bytes the host got of so many.
#[function]
fn give(count: u32) -> Result<u64, HostError> {
    host_take(&vec![7; count as usize])
}

/// Logs so many records.
#[function]
fn chatter(records: u32) -> u32 {
    (0..records).for_each(|number| log::info!("record {number}"));
    records
}

/// Fails for odd numbers; else gives the number back.
#[function]
fn even(number: u64) -> Result<u64, String> {
    if number % 2 == 0 { Ok(number) } else { Err(format!("{number} is odd")) }
}

/// Panics at this number; else gives the number back.
#[function]
fn panic_at(number: u32, at: u32) -> u32 {
    assert!(number != at, "this is {at}");
    number
}
