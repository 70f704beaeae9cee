//! Writes to an I/O port that is not the doorbell.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    // SAFETY: no memory is touched; the instruction is the crash.
    unsafe { std::arch::asm!("out 0x80, al", in("al") 0_u8) };
}
