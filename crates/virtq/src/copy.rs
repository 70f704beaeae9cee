//! The copy between shared memory and the rest, for x86-64: 64 bytes at a time by vector loads and stores.
//!
//! The `memcpy` at hand is `rep movs` for large copies (glibc: from 4 KiB, musl: always). On the AMD EPYC that this
//! was measured on it takes up to 15 times as long if, within a page, the target lies 1 to 31 bytes after the source:
//! 256 KiB in 87 instead of 6 us. A slot starts with a page and a large `Vec` 16 bytes after one, so that copying out
//! would meet it each time. This loop has no such case, and is as fast as `memcpy` elsewhere from 64 KiB up; for
//! 8 KiB in the first-level cache it takes 180 instead of 110 to 160 ns.
#![allow(unsafe_code)]

use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};

const LANE: usize = size_of::<__m128i>();
const LINE: usize = 4 * LANE;

/// Copies `bytes` bytes, as `copy_nonoverlapping` does.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    let mut done = 0;
    while bytes - done >= LINE {
        // All loads come before all stores: then the compiler does not make it a call of `memcpy` again.
        // SAFETY: the lanes end at most at `bytes`, for which `from` is readable.
        let lanes = [0, 1, 2, 3].map(|lane| unsafe { load(from, done + lane * LANE) });
        for (lane, value) in lanes.into_iter().enumerate() {
            // SAFETY: likewise writable.
            unsafe { store(to, done + lane * LANE, value) };
        }
        done += LINE;
    }
    // SAFETY: `done` is at most `bytes`.
    let from = unsafe { from.add(done) };
    // SAFETY: likewise.
    let to = unsafe { to.add(done) };
    // SAFETY: the ranges are valid and disjoint, so the rest of them is.
    unsafe { from.copy_to_nonoverlapping(to, bytes - done) };
}

/// # Safety
/// `from` must be readable up to a lane after `at`.
#[inline]
unsafe fn load(from: *const u8, at: usize) -> __m128i {
    // SAFETY: the caller's promise.
    let from = unsafe { from.add(at) };
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm_loadu_si128(from.cast()) }
}

/// # Safety
/// `to` must be writable up to a lane after `at`.
#[inline]
unsafe fn store(to: *mut u8, at: usize, value: __m128i) {
    // SAFETY: the caller's promise.
    let to = unsafe { to.add(at) };
    // SAFETY: the caller's promise; the store needs no alignment.
    unsafe { _mm_storeu_si128(to.cast(), value) };
}
