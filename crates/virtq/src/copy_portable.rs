//! The copy between shared memory and the rest, where nothing better than `memcpy` is known.
#![allow(unsafe_code)]

/// Copies `bytes` bytes, as `copy_nonoverlapping` does.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { from.copy_to_nonoverlapping(to, bytes) };
}
