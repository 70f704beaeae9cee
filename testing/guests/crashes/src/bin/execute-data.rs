//! Jumps into a variable.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    let code = std::hint::black_box([0xc3_u8; 16]); // ret
    // SAFETY: none: this is the crash.
    let function: extern "C" fn() = unsafe { std::mem::transmute(code.as_ptr()) };
    function();
}
