//! Ringing the doorbell.
#![allow(unsafe_code)] // Calls code that the host put there.

use core::arch::asm;

use super::boot::Boot;

/// Hands over to the host, which answers in shared memory. Returns when it has.
#[inline]
pub(crate) fn ring(boot: Boot) {
    let doorbell = boot.info().doorbell;
    // SAFETY: the host put code there that returns as a C function does, and changes no more registers than one may; it
    // leaves the floating-point control words as at the program's start, as Rust wants them. The block may use the stack,
    // so the compiler keeps nothing below the stack pointer; and it may change memory, so nothing that was read from
    // shared memory is remembered.
    unsafe { asm!("call {}", in(reg) doorbell, clobber_abi("C")) }
}
