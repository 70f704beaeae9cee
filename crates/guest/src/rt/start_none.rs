//! From the program's entry point to the runtime, without a C library.
#![allow(unsafe_code)] // An entry point takes the operating system's word for what it is given.

use core::ffi::c_char;

use super::boot::Boot;
use super::{InitResult, run};

// The entry point. It relocates the program and calls the `coracle_main` that `main!` made.
#[cfg(not(test))]
core::arch::global_asm!(include_str!("start.s"));

/// What follows the entry point: what [`main!`](crate::main) expands to.
///
/// # Safety
/// `stack` is the initial stack pointer, and nobody changed what it points to.
pub unsafe fn start<I: InitResult>(stack: *const usize, init: impl FnOnce() -> I) -> ! {
    // SAFETY: the number of arguments is there, and the arguments follow.
    let arguments = unsafe { stack.add(1) }.cast::<*const c_char>();
    // SAFETY: as above.
    let boot = unsafe { Boot::find(arguments) };
    run(boot, init)
}

// `core` and `alloc` are built so that they could unwind, and name these two. Without the standard library a panic does
// not unwind, so nobody calls them.

#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    super::system::abort()
}
