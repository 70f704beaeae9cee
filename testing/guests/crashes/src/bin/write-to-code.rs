//! Writes to its own code.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    let code = std::hint::black_box(go as *const () as *mut u8);
    // SAFETY: none: this is the crash.
    unsafe { code.write_volatile(0xc3) };
}
