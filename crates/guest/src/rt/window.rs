//! Memory that somebody else writes too, seen from here.
//!
//! A [`Window`] copies in and out, within its bounds, and never makes a reference to what it shows by itself. So any
//! number of windows may show the same bytes, and the host may write them whenever the guest hands over.
#![allow(unsafe_code)] // Copies by address; the bounds are checked here and nowhere else.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::{self, NonNull};

/// A range of memory that is readable and writable for `'m`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'m> {
    start: NonNull<u8>,
    bytes: usize, // Invariant: that many from `start` on are valid for reads and writes during 'm.
    memory: PhantomData<&'m Cell<u8>>,
}

impl<'m> Window<'m> {
    /// A window that shows all of `memory`.
    pub(crate) fn new(memory: &'m mut [u8]) -> Self {
        Self { bytes: memory.len(), start: NonNull::from(memory).cast(), memory: PhantomData }
    }

    /// A window at an address that the host gave.
    ///
    /// # Safety
    /// The range is mapped, readable and writable during `'m`, and the compiler knows of nothing there: it is no
    /// object of this program.
    pub(crate) unsafe fn at(address: u64, bytes: u64) -> Self {
        let start = NonNull::new(ptr::with_exposed_provenance_mut(address as usize));
        match start {
            Some(start) => Self { start, bytes: bytes as usize, memory: PhantomData },
            None => Self { start: NonNull::dangling(), bytes: 0, memory: PhantomData },
        }
    }

    /// Bytes that it shows.
    pub(crate) fn len(self) -> usize {
        self.bytes
    }

    /// The part from `offset` on; nothing if that is past the end.
    pub(crate) fn tail(self, offset: usize) -> Self {
        let offset = offset.min(self.bytes);
        // SAFETY: at most one past the end of the range.
        let start = unsafe { self.start.add(offset) };
        Self { start, bytes: self.bytes - offset, memory: PhantomData }
    }

    /// Copies `bytes` to `offset`, all or nothing.
    #[inline]
    pub(crate) fn put(self, offset: usize, bytes: &[u8]) -> Option<()> {
        if bytes.len() > self.bytes.checked_sub(offset)? {
            return None;
        }
        // SAFETY: at most one past the end of the range.
        let to = unsafe { self.start.add(offset) };
        // SAFETY: `bytes` is readable, as many bytes from `to` on are writable (just checked), and they are disjoint:
        // there is no reference to what a window shows but for those of `bytes`, whose callers keep it from changing.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Some(())
    }

    /// Copies `N` bytes from `offset` on.
    #[inline]
    pub(crate) fn get<const N: usize>(self, offset: usize) -> Option<[u8; N]> {
        if N > self.bytes.checked_sub(offset)? {
            return None;
        }
        // SAFETY: at most one past the end of the range.
        let from = unsafe { self.start.add(offset) };
        // SAFETY: `N` bytes from there on are readable (just checked), and an array of bytes needs no alignment.
        Some(unsafe { from.cast::<[u8; N]>().read() })
    }

    /// The bytes of a range in place, or `None` if it is not all inside.
    ///
    /// # Safety
    /// Nobody writes them while the reference is used: neither the host nor this program.
    pub(crate) unsafe fn bytes(self, range: Range<usize>) -> Option<&'m [u8]> {
        if range.start > range.end || range.end > self.bytes {
            return None;
        }
        // SAFETY: at most one past the end of the range.
        let from = unsafe { self.start.add(range.start) };
        let bytes = NonNull::slice_from_raw_parts(from, range.end - range.start);
        // SAFETY: inside the window (just checked), so valid for reads during 'm; the caller keeps it from changing.
        Some(unsafe { bytes.as_ref() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_can_be_got() {
        let mut memory = [0; 8];
        let window = Window::new(&mut memory);
        assert_eq!(window.put(3, b"abc"), Some(()));
        assert_eq!(window.get(3), Some(*b"abc"));
        assert_eq!(window.tail(4).get(0), Some(*b"bc"));
        // SAFETY: nobody writes.
        assert_eq!(unsafe { window.bytes(2..7) }, Some(&b"\0abc\0"[..]));
    }

    #[test]
    fn nothing_outside_is_touched() {
        let mut memory = [7; 8];
        let window = Window::new(&mut memory[2..6]);
        for (offset, bytes) in [(0, &b"abcde"[..]), (4, b"a"), (5, b""), (usize::MAX, b"ab")] {
            assert_eq!(window.put(offset, bytes), None);
        }
        assert_eq!(window.put(4, b""), Some(()));
        assert_eq!(window.get::<5>(0), None);
        assert_eq!(window.get::<1>(usize::MAX), None);
        assert_eq!(window.tail(9).len(), 0);
        // SAFETY: nobody writes.
        assert_eq!(unsafe { window.bytes(3..5) }, None);
        assert_eq!(memory, [7; 8]);
    }
}
