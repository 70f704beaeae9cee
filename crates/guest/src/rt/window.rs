//! Memory that somebody else writes too, seen from here.
//!
//! A [`Window`] copies in and out, within its bounds, and never makes a reference to what it shows by itself. So any
//! number of windows may show the same bytes, and the host may write them whenever the guest hands over.
#![allow(unsafe_code)] // Copies by address; the bounds are checked here and nowhere else.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use coracle_virtq::memory::{Memory, OutOfBounds};

/// A range of memory that is readable and writable for `'m`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'m> {
    start: NonNull<u8>,
    bytes: usize, // Invariant: that many from `start` on are valid for reads and writes during 'm.
    memory: PhantomData<&'m Cell<u8>>,
}

impl<'m> Window<'m> {
    /// A window that shows nothing.
    pub(crate) const EMPTY: Self = Self { start: NonNull::dangling(), bytes: 0, memory: PhantomData };

    /// A window that shows all of `memory`.
    pub(crate) fn new(memory: &'m mut [u8]) -> Self {
        let (bytes, start) = (memory.len(), NonNull::from(memory).cast::<u8>());
        start.as_ptr().expose_provenance(); // Messages name what they show by address.
        Self { bytes, start, memory: PhantomData }
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

    /// Fills `out` from `offset` on.
    #[inline]
    fn fill(self, offset: usize, out: &mut [u8]) -> Option<()> {
        if out.len() > self.bytes.checked_sub(offset)? {
            return None;
        }
        // SAFETY: at most one past the end of the range.
        let from = unsafe { self.start.add(offset) };
        // SAFETY: as many bytes from there on are readable (just checked); `out` is elsewhere, as it is a reference.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len()) };
        Some(())
    }

    /// Where it starts.
    #[inline]
    pub(crate) fn address(self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Where an address lies in it, if it does.
    #[inline]
    pub(crate) fn offset(self, address: u64) -> Option<usize> {
        let offset = address.wrapping_sub(self.address());
        (offset < self.bytes as u64).then_some(offset as usize)
    }

    /// At most so many bytes of its start.
    pub(crate) fn head(self, bytes: usize) -> Self {
        Self { bytes: self.bytes.min(bytes), ..self }
    }
}

/// Offsets are the addresses. The host runs only when the doorbell is called, which the compiler does not look into:
/// that orders everything.
impl Memory for Window<'_> {
    fn check(&self, address: u64, bytes: u64) -> Result<(), OutOfBounds> {
        let end = address.checked_add(bytes).filter(|end| *end <= self.bytes as u64);
        end.map(|_| ()).ok_or(OutOfBounds { address, bytes })
    }

    #[inline]
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let bytes = out.len() as u64;
        self.fill(address as usize, out).ok_or(OutOfBounds { address, bytes })
    }

    #[inline]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.put(address as usize, bytes).ok_or(OutOfBounds { address, bytes: bytes.len() as u64 })
    }

    #[inline]
    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        self.get(address as usize).map(u16::from_le_bytes).ok_or(OutOfBounds { address, bytes: 2 })
    }

    #[inline]
    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        self.write(address, &value.to_le_bytes())
    }

    fn fence(&self) {}
}

/// A message of the host's, in place.
///
/// # Safety
/// The host left so many bytes there, and nobody writes them while the reference is used.
#[inline]
pub(crate) unsafe fn bytes_at<'m>(address: u64, bytes: u32) -> &'m [u8] {
    let Some(start) = NonNull::new(ptr::with_exposed_provenance_mut(address as usize)) else { return &[] };
    let bytes = NonNull::slice_from_raw_parts(start, bytes as usize);
    // SAFETY: the caller's promise.
    unsafe { bytes.as_ref() }
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
        let mut out = [0; 5];
        assert_eq!(window.read(2, &mut out), Ok(()));
        assert_eq!(&out, b"\0abc\0");
        assert_eq!(window.offset(window.tail(3).address()), Some(3));
        assert_eq!(window.head(4).len(), 4);
        // SAFETY: it is there, and nobody writes.
        assert_eq!(unsafe { bytes_at(window.tail(3).address(), 3) }, b"abc");
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
        assert!(window.read(3, &mut [0; 2]).is_err() && window.load_u16_acquire(3).is_err());
        assert_eq!(window.offset(window.address() + 4), None);
        assert_eq!(window.head(9).len(), 4);
        assert_eq!(memory, [7; 8]);
    }
}
