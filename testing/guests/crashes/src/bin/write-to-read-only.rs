//! Writes to a constant.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    static CONSTANT: u64 = 1;
    let constant = std::hint::black_box(&raw const CONSTANT).cast_mut();
    // SAFETY: none: this is the crash.
    unsafe { constant.write_volatile(2) };
}
