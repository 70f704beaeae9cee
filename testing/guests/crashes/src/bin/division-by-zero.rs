//! Divides by zero.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    // SAFETY: no memory is touched; the division is the crash.
    unsafe { std::arch::asm!("div {zero:r}", zero = in(reg) 0_u64, inout("rax") 1_u64 => _, inout("rdx") 0_u64 => _) };
}
