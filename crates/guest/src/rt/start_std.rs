//! From the C library's `main` to the runtime, past the standard library's own start.
//!
//! That one makes some twenty system calls (signals, the stack's guard, standard streams) for things which a sandbox
//! has anyway or does not have at all.
#![allow(unsafe_code)] // An entry point takes the operating system's word for what it is given.

use core::ffi::c_char;

use super::boot::Boot;
use super::{InitResult, run};

/// The program's `main`, but for its arguments: what [`main!`](crate::main) expands to.
///
/// # Safety
/// `arguments` is what the C library gave to `main`, which nobody changed.
pub unsafe fn start<I: InitResult>(arguments: *const *const c_char, init: impl FnOnce() -> I) -> ! {
    // SAFETY: a C library passes the arguments on in place, on the initial stack.
    let boot = unsafe { Boot::find(arguments) };
    run(boot, init)
}

// A program without the standard library is linked with this entry point (`start.s`). If it is built together with
// others that have it, so that the library is there after all, it starts like them.
#[cfg(not(test))]
core::arch::global_asm!(
    ".section .text.coracle_start, \"ax\", @progbits",
    ".globl coracle_start",
    ".weak _start",
    "coracle_start: jmp _start",
    ".text",
);
