//! Reads through a null pointer.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    let null = std::hint::black_box(std::ptr::null::<u64>());
    // SAFETY: none: this is the crash.
    let value = unsafe { null.read_volatile() };
    std::hint::black_box(value);
}
