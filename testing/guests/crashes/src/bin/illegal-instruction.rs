//! Executes what is no instruction.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    // SAFETY: no memory is touched; the instruction is the crash.
    unsafe { std::arch::asm!("ud2") };
}
