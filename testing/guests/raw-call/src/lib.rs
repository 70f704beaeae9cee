//! System calls as the processor makes them, so that nothing of the C library's is in the way.
#![no_std]

use core::arch::asm;

/// Makes a system call with all six arguments, whatever they are; answers what the kernel does.
///
/// # Safety
/// The kernel may read, write, map and unmap what the arguments say: nothing that this program relies on.
pub unsafe fn system_call(number: u64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the caller vouches for what the kernel does; the instruction itself changes the named registers only.
    unsafe {
        asm!(
            "syscall",
            inout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            out("rcx") _, out("r11") _,
        )
    };
    result
}
