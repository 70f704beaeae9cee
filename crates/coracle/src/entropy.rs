//! Random bytes for guests: the host kernel's.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `out` with fresh random bytes.
///
/// # Errors
/// The kernel's; `out` must not be used then. A kernel that has booted never fails.
pub(crate) fn fill(out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        match getrandom(&mut out[done..], GetRandomFlags::empty()) {
            Ok(bytes) => done += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
