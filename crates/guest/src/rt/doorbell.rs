//! Ringing the doorbell.
#![allow(unsafe_code)] // Calls code that the host put there.

use core::arch::naked_asm;

use super::boot::Boot;

/// Hands over to the host, which answers in shared memory. Returns when it has.
#[inline]
pub(crate) fn ring(boot: Boot) {
    // SAFETY: the address is that of code that the host put there, which returns as a C function does, and leaves the
    // floating-point control words as at the program's start, as Rust wants them. It may change any memory, so the
    // compiler remembers nothing that was read from shared memory: it does not look into `call_bare`.
    unsafe { call_bare(boot.info().doorbell) }
}

/// Calls `doorbell` with nothing in the registers that a C function keeps: what the caller has in them goes to the stack.
/// So the registers at the doorbell are the same after every call that was served, and a host that puts the guest back
/// to an earlier state need not write any.
#[unsafe(naked)]
unsafe extern "C" fn call_bare(doorbell: u64) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "xor ebx, ebx",
        "xor ebp, ebp",
        "xor r12d, r12d",
        "xor r13d, r13d",
        "xor r14d, r14d",
        "xor r15d, r15d",
        "call rdi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}
