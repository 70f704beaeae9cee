//! Memory where there is no sandbox and no operating system that this program would know to ask: none.
#![allow(unsafe_code)] // The trait is.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

/// Refuses.
pub(super) static FALLBACK: Refuse = Refuse;

pub(super) struct Refuse;

// SAFETY: there are no blocks.
unsafe impl GlobalAlloc for Refuse {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
