//! [`Memory`] over a mapping of this process. With the copy itself, the only unsafe code of the crate.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec;
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::copy::copy;
use crate::memory::{Memory, OutOfBounds};

/// Shared memory that is mapped here: addresses `base..base + bytes` lie at `start`.
///
/// It is neither `Send` nor `Sync`: plain copies are not atomic, and only the order that a queue keeps makes them
/// safe beside another thread. Whoever moves one to a thread takes that promise over.
#[derive(Clone, Copy, Debug)]
pub struct PointerMemory<'m> {
    start: NonNull<u8>, // Invariant: valid for reads and writes of `bytes` bytes for 'm, aligned to 16 with `base`.
    base: u64,          // Invariant: base + bytes does not overflow.
    bytes: usize,
    mapping: PhantomData<&'m [u8]>,
}

impl<'m> PointerMemory<'m> {
    /// Calls the `bytes` bytes at `start` addresses `base` and up.
    ///
    /// # Panics
    /// If `base` or `start` is not a multiple of 16, or `base + bytes` exceeds `u64`.
    ///
    /// # Safety
    /// For `'m`, `start` must be valid for reads and writes of `bytes` bytes, and no Rust reference may exist to any
    /// of them that a write through this value would contradict. Where another thread or a running virtual CPU
    /// writes there too, it must keep the order of the queue, or the mapping must be one for which torn reads are
    /// harmless on this platform.
    pub unsafe fn new(base: u64, start: NonNull<u8>, bytes: usize) -> Self {
        assert!(base.is_multiple_of(16) && start.addr().get().is_multiple_of(16), "not aligned to 16 bytes");
        assert!(base.checked_add(bytes as u64).is_some(), "the addresses overflow");
        Self { start, base, bytes, mapping: PhantomData }
    }

    /// Where a range lies, for a side that reads it in place. What to do with the pointer is for the caller to prove.
    ///
    /// # Errors
    /// When the range is out of bounds.
    #[inline]
    pub fn place(&self, address: u64, bytes: u64) -> Result<NonNull<[u8]>, OutOfBounds> {
        let start = self.locate(address, bytes)?;
        // `locate` showed that `bytes` is at most `self.bytes`, a usize.
        Ok(NonNull::slice_from_raw_parts(start, bytes as usize))
    }

    #[inline]
    fn locate(&self, address: u64, bytes: u64) -> Result<NonNull<u8>, OutOfBounds> {
        let offset = address.wrapping_sub(self.base);
        // An address below `base` wraps to an offset beyond any mapping: base + bytes does not overflow.
        if bytes > self.bytes as u64 || offset > self.bytes as u64 - bytes {
            return Err(OutOfBounds { address, bytes });
        }
        // SAFETY: `offset` is at most `self.bytes`, so the result is inside or one past the mapping (invariant).
        Ok(unsafe { self.start.add(offset as usize) })
    }

    #[inline]
    fn word(&self, address: u64) -> Result<&AtomicU16, OutOfBounds> {
        let place = self.locate(address, 2)?.cast::<u16>();
        if !place.is_aligned() {
            return Err(OutOfBounds { address, bytes: 2 });
        }
        // SAFETY: two bytes are valid for reads and writes for 'm (invariant, `locate`) and aligned (checked).
        // Both sides access the words of a queue that they poll only by atomics of this size while they may change.
        Ok(unsafe { AtomicU16::from_ptr(place.as_ptr()) })
    }
}

impl Memory for PointerMemory<'_> {
    fn check(&self, address: u64, bytes: u64) -> Result<(), OutOfBounds> {
        if bytes == 0 { Ok(()) } else { self.locate(address, bytes).map(|_| ()) }
    }

    #[inline]
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.locate(address, out.len() as u64)?;
        // SAFETY: `from` is readable for `out.len()` bytes (`locate`), `out` writable for as many; they are
        // disjoint, because no reference to the mapping exists that a write contradicts (`new`), and `out` is one.
        unsafe { copy(from.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    #[inline]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.locate(address, bytes.len() as u64)?;
        // SAFETY: `to` is writable for `bytes.len()` bytes (`locate`), `bytes` readable for as many; they are
        // disjoint, because no shared reference to the mapping exists where it is written (`new`).
        unsafe { copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    #[inline]
    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        Ok(u16::from_le(self.word(address)?.load(Ordering::Acquire)))
    }

    #[inline]
    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        self.word(address)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }
}

/// A page, the unit of guest memory.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Zeroed memory of this process, for both sides on one thread: tests, examples, benchmarks.
pub struct Owned {
    pages: Box<[UnsafeCell<Page>]>,
    base: u64,
}

impl Owned {
    /// Allocates `bytes` bytes, rounded up to whole pages, for the addresses from `base`.
    ///
    /// # Panics
    /// If `base` is not a multiple of 16 or the addresses overflow.
    pub fn new(base: u64, bytes: usize) -> Self {
        let pages = vec![Page([0; 4096]); bytes.div_ceil(4096)].into_iter().map(UnsafeCell::new).collect();
        let owned = Self { pages, base };
        let _ = owned.view();
        owned
    }

    /// A view for one side. `Owned` is not `Sync`, so all views are on one thread.
    pub fn view(&self) -> PointerMemory<'_> {
        let start = NonNull::from(&*self.pages).cast();
        // SAFETY: the pages live as long as `self` is borrowed, are aligned to more than 16, and lie in cells, so that writes
        // contradict no reference; nothing else in this module makes a reference to their contents. Views cannot
        // leave the thread.
        unsafe { PointerMemory::new(self.base, start, self.pages.len() * 4096) }
    }
}
