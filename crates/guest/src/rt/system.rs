//! What the runtime asks of the host's Linux side: random bytes, the error stream, the end.
#![allow(unsafe_code)] // System calls are made by an instruction.

use core::arch::asm;

const WRITE: usize = 1;
const EXIT_GROUP: usize = 231;
const GETRANDOM: usize = 318;

const STANDARD_ERROR: usize = 2;
const EINTR: isize = -4;

/// Makes a system call with three arguments. Negative results are error numbers.
///
/// # Safety
/// The call does nothing to this program's memory that the arguments do not give it leave to.
unsafe fn system_call(number: usize, arguments: [usize; 3]) -> isize {
    let [a, b, c] = arguments;
    let result;
    // SAFETY: the registers are those of the ABI (RCX and R11 do not survive), and what the call does is the caller's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Fills `out` with random bytes of the host. `None` if it has none.
pub(crate) fn random(out: &mut [u8]) -> Option<()> {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: writes at most the bytes of `rest`.
        match unsafe { system_call(GETRANDOM, [rest.as_mut_ptr().expose_provenance(), rest.len(), 0]) } {
            EINTR => {}
            count if count > 0 => done += count as usize,
            _ => return None,
        }
    }
    Some(())
}

/// Writes to the standard error stream, as far as that goes.
pub(crate) fn complain(text: &str) {
    let bytes = text.as_bytes();
    // SAFETY: only reads the text.
    let _ = unsafe { system_call(WRITE, [STANDARD_ERROR, bytes.as_ptr().expose_provenance(), bytes.len()]) };
}

/// Ends the program.
pub(crate) fn exit(code: i32) -> ! {
    loop {
        // SAFETY: nothing of the program is left.
        let _ = unsafe { system_call(EXIT_GROUP, [code as usize, 0, 0]) };
    }
}

/// Ends the program as one that cannot go on.
pub(crate) fn abort() -> ! {
    // SAFETY: an instruction that no processor executes: it traps.
    unsafe { asm!("ud2", options(noreturn, nostack)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_fill_everything() {
        let mut bytes = [0; 4096];
        random(&mut bytes).expect("Linux has random bytes");
        assert!(bytes.as_chunks::<16>().0.iter().all(|chunk| *chunk != [0; 16]));
        assert_eq!(random(&mut []), Some(()));
    }
}
