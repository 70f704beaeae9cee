//! What does a guest see of content that the host lends by name?
#![no_main]

use coracle_guest::{function, mapping};

coracle_guest::main!();

/// A sum of all bytes; nothing without the mapping.
#[function]
fn sum(name: &str) -> Option<u64> {
    Some(mapping(name)?.read(|bytes| bytes.iter().map(|byte| u64::from(*byte)).sum()))
}

#[function]
fn bytes(name: &str, from: u64, count: u64) -> Option<Vec<u8>> {
    mapping(name)?.read(|bytes| bytes.get(from as usize..)?.get(..count as usize).map(<[u8]>::to_vec))
}

/// Whether it could.
#[function]
fn fill(name: &str, from: u64, count: u64, byte: u8) -> bool {
    let write = |bytes: &mut [u8]| bytes[from as usize..][..count as usize].fill(byte);
    mapping(name).and_then(|mut mapping| mapping.write(write)).is_some()
}

#[function]
fn address(name: &str) -> u64 {
    mapping(name).map_or(0, |mapping| mapping.as_ptr() as u64)
}

/// Reads where a mapping was, or never was.
#[function]
fn peek(address: u64) -> u8 {
    // SAFETY: none: the test wants to know what becomes of it.
    unsafe { (address as *const u8).read_volatile() }
}

#[function]
fn poke(address: u64, byte: u8) {
    // SAFETY: none: the test wants to know what becomes of it.
    unsafe { (address as *mut u8).write_volatile(byte) }
}

/// Has the host take the bytes in place: by a system call with a pointer into the mapping.
#[function]
fn print(name: &str) -> bool {
    use std::io::Write;
    mapping(name).is_some_and(|mapping| mapping.read(|bytes| std::io::stdout().write_all(bytes).is_ok()))
}

/// Writes inside of a read of the same bytes.
#[function]
fn read_and_write(name: &str) {
    let (one, mut other) = (mapping(name), mapping(name));
    if let (Some(one), Some(other)) = (&one, &mut other) {
        one.read(|_| other.write(|bytes| bytes[0] = 1));
    }
}
