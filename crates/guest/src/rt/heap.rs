//! The program's global allocator: `talc` over the heap that the boot page gives.
//!
//! The region is claimed at the first allocation, so a program that does not allocate touches none of it. When the
//! program has started, [`seal`] leaves what it keeps to one `talc` and starts another for the rest: calls then do not
//! dirty the holes between old blocks (docs/decisions/0002-guest-heap.md).
//!
//! There is no lock: a guest has one thread, which nothing interrupts, and `talc` calls nobody back. Where there is no
//! boot page there may be threads; then this passes everything on (`fallback_*.rs`) and does not look at its own state.
#![allow(unsafe_code)] // An allocator deals in raw memory.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull, null_mut};

use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

use super::boot::Boot;
use super::fallback::FALLBACK;

/// Where among the queues the size of the last allocation lies that was refused.
const REFUSED: usize = coracle_abi::queue::REFUSED as usize;

#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap = Heap::new();

/// The sandbox's heap as a global allocator.
struct Heap(UnsafeCell<Halves>);

// SAFETY: the state is used by `Heap::enter` only, in a program that has a boot page: such a program has one thread.
unsafe impl Sync for Heap {}

/// One part of the region.
struct Part {
    talc: Talc<Manual, DefaultBinning>,
    end: Option<NonNull<u8>>, // Where it ends; `None` before it has any memory.
}

/// The allocator's state.
struct Halves {
    started: Part,
    serving: Part,   // Has no memory until `seal`.
    boundary: usize, // Blocks below are of `started`: all, until `seal`.
    limit: usize,    // The region's end; 0 until it is claimed.
}

/// Leaves the blocks that are there to themselves. Does nothing if there are none, or when called again.
pub(crate) fn seal() {
    if Boot::get().is_some() {
        // SAFETY: there is a boot page.
        unsafe { HEAP.enter(Halves::seal) };
    }
}

impl Heap {
    const fn new() -> Self {
        Self(UnsafeCell::new(Halves {
            started: Part { talc: Talc::new(Manual), end: None },
            serving: Part { talc: Talc::new(Manual), end: None },
            boundary: usize::MAX,
            limit: 0,
        }))
    }

    /// # Safety
    /// There is a boot page, and `act` does not enter again.
    #[inline]
    unsafe fn enter<T>(&self, act: impl FnOnce(&mut Halves) -> T) -> T {
        // SAFETY: one thread, as there is a boot page, and `act` does not enter again: the only reference.
        act(unsafe { &mut *self.0.get() })
    }
}

/// Whether a block is of the sandbox's heap, rather than of the fallback.
#[inline]
fn is_ours(boot: Boot, block: *mut u8) -> bool {
    let heap = boot.info().heap;
    (block.addr() as u64).wrapping_sub(heap.address) < heap.bytes
}

// SAFETY: blocks are talc's, of disjoint parts of a region that the host gave for this, or the fallback's. Each goes
// back to where it is from, told by its address. Nothing here unwinds.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(boot) = Boot::get().filter(|boot| boot.info().heap.bytes != 0) else {
            // SAFETY: passed on.
            return unsafe { FALLBACK.alloc(layout) };
        };
        // SAFETY: the layout is not empty.
        let alloc = |halves: &mut Halves| unsafe { halves.alloc(boot, layout) };
        // SAFETY: there is a boot page.
        let block = unsafe { self.enter(alloc) };
        if block.is_null() { refused(boot, layout.size()) } else { block }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if Boot::get().is_some_and(|boot| is_ours(boot, block)) {
            // SAFETY: the caller's block, which is of this heap, and its layout.
            let dealloc = |halves: &mut Halves| unsafe { halves.part_of(block).talc.deallocate(block, layout) };
            // SAFETY: there is a boot page.
            unsafe { self.enter(dealloc) };
        } else {
            // SAFETY: passed on; the block is the fallback's.
            unsafe { FALLBACK.dealloc(block, layout) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !Boot::get().is_some_and(|boot| is_ours(boot, block)) {
            // SAFETY: passed on; the block is the fallback's, and stays so.
            return unsafe { FALLBACK.realloc(block, layout, bytes) };
        }
        let in_place = |halves: &mut Halves| {
            // SAFETY: the caller's block, which is of this heap, and its layout; `bytes` is not 0.
            unsafe { halves.part_of(block).talc.try_realloc_in_place(block, layout, bytes) }
        };
        // SAFETY: there is a boot page.
        if unsafe { self.enter(in_place) } {
            return block;
        }
        // SAFETY: the caller vouches for the size.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: `bytes` is not 0.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: two live blocks, each at least as long as the shorter of the two.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes)) };
            // SAFETY: the caller's block and its layout.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

impl Halves {
    /// A block, or null.
    ///
    /// # Safety
    /// The layout is not empty.
    #[inline]
    unsafe fn alloc(&mut self, boot: Boot, layout: Layout) -> *mut u8 {
        if self.limit == 0 {
            self.claim(boot);
        }
        if self.serving.end.is_some() {
            // SAFETY: the layout is not empty.
            if let Some(block) = unsafe { self.serving.talc.allocate(layout) } {
                return block.as_ptr();
            }
        }
        // SAFETY: the layout is not empty.
        unsafe { self.started.talc.allocate(layout) }.map_or(null_mut(), NonNull::as_ptr)
    }

    /// Takes the region.
    #[cold]
    fn claim(&mut self, boot: Boot) {
        let heap = boot.info().heap;
        self.limit = (heap.address + heap.bytes) as usize;
        let start = ptr::with_exposed_provenance_mut(heap.address as usize);
        // SAFETY: the host gave the region to this program's allocator, and this is called once.
        self.started.end = unsafe { self.started.talc.claim(start, heap.bytes as usize) };
    }

    /// The part that a block of this heap is of.
    #[inline]
    fn part_of(&mut self, block: *mut u8) -> &mut Part {
        if block.addr() < self.boundary { &mut self.started } else { &mut self.serving }
    }

    fn seal(&mut self) {
        let Some(end) = self.started.end else { return };
        if self.boundary != usize::MAX {
            return;
        }
        // SAFETY: `end` is what talc said is the end of what it has.
        self.started.end = unsafe { self.started.talc.truncate(end, null_mut()) };
        let Some(boundary) = self.started.end else { return };
        self.boundary = boundary.addr().get();
        // SAFETY: the first part gave this up, and it is still this program's.
        self.serving.end = unsafe { self.serving.talc.claim(boundary.as_ptr(), self.limit - self.boundary) };
    }
}

/// Tells the host, which sees what the program makes of it. Returns null.
#[cold]
fn refused(boot: Boot, bytes: usize) -> *mut u8 {
    boot.queues().put(REFUSED, &(bytes as u64).to_le_bytes());
    null_mut()
}

/// Whether an allocation was refused since [`forget_refusal`].
pub(crate) fn was_refused(boot: Boot) -> bool {
    boot.queues().get::<8>(REFUSED).is_some_and(|bytes| bytes != [0; 8])
}

/// Forgets an allocation that was refused: the program has got over it.
pub(crate) fn forget_refusal(boot: Boot) {
    if was_refused(boot) {
        boot.queues().put(REFUSED, &[0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// State over a region of our own.
    fn claimed(region: &mut [u64]) -> Halves {
        let mut halves = Heap::new().0.into_inner();
        let bytes = size_of_val(region);
        halves.limit = region.as_ptr().addr() + bytes;
        // SAFETY: ours alone, and it outlives the state.
        halves.started.end = unsafe { halves.started.talc.claim(region.as_mut_ptr().cast(), bytes) };
        halves
    }

    fn alloc(halves: &mut Halves, bytes: usize) -> *mut u8 {
        let layout = Layout::from_size_align(bytes, 8).unwrap();
        if halves.serving.end.is_some() {
            // SAFETY: not empty.
            if let Some(block) = unsafe { halves.serving.talc.allocate(layout) } {
                return block.as_ptr();
            }
        }
        // SAFETY: not empty.
        unsafe { halves.started.talc.allocate(layout) }.map_or(null_mut(), NonNull::as_ptr)
    }

    #[test]
    fn blocks_after_the_start_lie_behind_those_before() {
        let mut region = vec![0u64; 8192];
        let mut halves = claimed(&mut region);
        let kept: Vec<_> = (0..10).map(|_| alloc(&mut halves, 100)).collect();
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: such a block of this heap.
        unsafe { halves.part_of(kept[3]).talc.deallocate(kept[3], layout) };
        halves.seal();
        let boundary = halves.boundary;
        halves.seal();
        assert_eq!(halves.boundary, boundary);
        assert!(kept.iter().all(|block| block.addr() < boundary));
        let later = alloc(&mut halves, 100);
        assert!(later.addr() >= boundary && !later.is_null());
        // When the second part is full, the first one's holes serve.
        while alloc(&mut halves, 100).addr() >= boundary {}
        assert!(alloc(&mut halves, 100).is_null());
    }

    #[test]
    fn an_unused_heap_is_not_sealed() {
        let mut halves = Heap::new().0.into_inner();
        halves.seal();
        assert_eq!(halves.boundary, usize::MAX);
    }
}
