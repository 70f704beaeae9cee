//! The candidates, each as a guest's SDK would use it: one region, one thread, no lock.
//!
//! A candidate is what a guest has in a static. It is placed in memory first and told its region afterwards, and it
//! does not move in between: some keep pointers to themselves in the region.
#![allow(unsafe_code)] // Allocators deal in raw memory.

use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::{NonNull, null_mut};

use rlsf::Tlsf;
use talc::base::Talc as TalcBase;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

use crate::PAGE_BYTES;

/// An allocator over one region.
///
/// # Safety
/// Blocks lie in the region, do not overlap, keep their layout's alignment and belong to the caller until he frees
/// them, as with [`std::alloc::GlobalAlloc`].
pub unsafe trait Heap: Sized {
    /// As benchmarks and tables call it.
    const NAME: &'static str;

    /// The allocator before it knows of any memory.
    fn empty() -> Self;

    /// Gives it its region, once.
    ///
    /// # Safety
    /// The region is zeroed, page-aligned and for this heap alone while the heap lives, and the heap does not move.
    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize);

    /// A block, or null.
    ///
    /// # Safety
    /// `layout` is not empty.
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8;

    /// Takes a block back.
    ///
    /// # Safety
    /// The block is of this heap and `layout` is the one it has.
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout);

    /// Says that the guest has started: what comes now are requests. Most heaps do nothing about it.
    fn seal(&mut self) {}

    /// Changes a block's size, moving it if need be. After null the block is as it was.
    ///
    /// # Safety
    /// As for [`Heap::dealloc`]; `bytes` is not 0 and, rounded up to the alignment, does not exceed `isize::MAX`.
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { move_block(self, block, layout, bytes) }
    }
}

/// Calls a function that is generic over [`Heap`] for each candidate in turn.
#[macro_export]
macro_rules! for_each_heap {
    ($function:ident($($argument:expr),*)) => {{
        use $crate::heap;
        $function::<heap::Talc>($($argument),*);
        $function::<heap::SealedTalc>($($argument),*);
        $function::<heap::Dlmalloc>($($argument),*);
        $function::<heap::Rlsf>($($argument),*);
        $function::<heap::LinkedList>($($argument),*);
        $function::<heap::Buddy>($($argument),*);
        $function::<heap::Galloc>($($argument),*);
    }};
}

fn or_null(block: Option<NonNull<u8>>) -> *mut u8 {
    block.map_or(null_mut(), NonNull::as_ptr)
}

/// `talc`, claiming the whole region at once.
pub struct Talc {
    talc: TalcBase<Manual, DefaultBinning>,
    end: Option<NonNull<u8>>,
}

// SAFETY: talc's contract.
unsafe impl Heap for Talc {
    const NAME: &'static str = "talc";

    fn empty() -> Self {
        Self { talc: TalcBase::new(Manual), end: None }
    }

    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize) {
        // SAFETY: the region is ours alone.
        self.end = unsafe { self.talc.claim(region.as_ptr(), bytes) };
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        or_null(unsafe { self.talc.allocate(layout) })
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's block and its layout.
        unsafe { self.talc.deallocate(block, layout) };
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's block and its layout; `bytes` is not 0.
        if unsafe { self.talc.try_realloc_in_place(block, layout, bytes) } {
            return block;
        }
        // SAFETY: passed on.
        unsafe { move_block(self, block, layout, bytes) }
    }
}

impl Talc {
    /// Gives up the free end of the region and says where the heap now ends.
    fn cut(&mut self) -> NonNull<u8> {
        let end = self.end.expect("a heap is cut after it was given its region");
        // SAFETY: `end` is what talc last returned as this heap's end.
        self.end = unsafe { self.talc.truncate(end, null_mut()) };
        self.end.expect("talc keeps its lists in the heap, so something is left")
    }
}

/// Allocates, copies and frees: what is left to do where a block cannot change its size in place.
///
/// # Safety
/// As for [`Heap::realloc`].
unsafe fn move_block<H: Heap>(heap: &mut H, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the size.
    let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
    // SAFETY: `bytes` is not 0.
    let moved = unsafe { heap.alloc(new) };
    if !moved.is_null() {
        // SAFETY: both blocks are live and at least as long as the shorter of the two.
        unsafe { moved.copy_from_nonoverlapping(block, layout.size().min(bytes)) };
        // SAFETY: the caller's block and its layout.
        unsafe { heap.dealloc(block, layout) };
    }
    moved
}

/// Two `talc`s: one for what the guest allocates as it starts, and from then on one for the rest.
///
/// A starting guest leaves holes between the blocks that it keeps. A request that fills them dirties all those pages;
/// one that starts from an empty heap dirties few. The first heap's holes serve when the second is full.
pub struct SealedTalc {
    started: Talc,
    serving: Talc,   // Has nothing to give until `seal`.
    boundary: usize, // Blocks below are of `started`. All are until `seal`.
    limit: *mut u8,
}

// SAFETY: each block goes back to the heap that it is from: they have a part of the region each.
unsafe impl Heap for SealedTalc {
    const NAME: &'static str = "talc_sealed";

    fn empty() -> Self {
        Self { started: Talc::empty(), serving: Talc::empty(), boundary: usize::MAX, limit: null_mut() }
    }

    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize) {
        self.limit = region.as_ptr().wrapping_add(bytes);
        // SAFETY: passed on.
        unsafe { self.started.init(region, bytes) };
    }

    fn seal(&mut self) {
        if self.boundary != usize::MAX {
            return;
        }
        let boundary = self.started.cut();
        self.boundary = boundary.as_ptr().addr();
        // SAFETY: `started` gave this part up. It need not be zero for talc.
        unsafe { self.serving.init(boundary, self.limit.addr() - self.boundary) };
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        if self.boundary != usize::MAX {
            // SAFETY: passed on.
            let block = unsafe { self.serving.alloc(layout) };
            if !block.is_null() {
                return block;
            }
        }
        // SAFETY: passed on.
        unsafe { self.started.alloc(layout) }
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        let heap = if block.addr() < self.boundary { &mut self.started } else { &mut self.serving };
        // SAFETY: passed on.
        unsafe { heap.dealloc(block, layout) };
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let heap = if block.addr() < self.boundary { &mut self.started } else { &mut self.serving };
        // SAFETY: the caller's block and its layout; `bytes` is not 0.
        if unsafe { heap.talc.try_realloc_in_place(block, layout, bytes) } {
            return block;
        }
        // SAFETY: passed on.
        unsafe { move_block(self, block, layout, bytes) }
    }
}

/// `dlmalloc`, the allocator of Rust's wasm targets, given the whole region at its first request. Fed page by page it
/// would touch one page less, but could not grow a vector to half of the region: it asks for all of a block's new size.
pub struct Dlmalloc(dlmalloc::Dlmalloc<Whole>);

/// The region until dlmalloc has it.
struct Whole(Cell<Option<(NonNull<u8>, usize)>>);

// SAFETY: nothing here is shared, and the region is no thread's in particular.
unsafe impl Send for Whole {}

// SAFETY: hands out the region once and does not take it back.
unsafe impl dlmalloc::Allocator for Whole {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        match self.0.get() {
            Some((region, all)) if bytes <= all => {
                self.0.set(None);
                (region.as_ptr(), all, 0)
            }
            _ => (null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE_BYTES
    }
}

// SAFETY: dlmalloc's contract.
unsafe impl Heap for Dlmalloc {
    const NAME: &'static str = "dlmalloc";

    fn empty() -> Self {
        Self(dlmalloc::Dlmalloc::new_with_allocator(Whole(Cell::new(None))))
    }

    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize) {
        self.0 = dlmalloc::Dlmalloc::new_with_allocator(Whole(Cell::new(Some((region, bytes)))));
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and alignment of a layout is good.
        unsafe { self.0.malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's block and its layout.
        unsafe { self.0.free(block, layout.size(), layout.align()) };
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's block and its layout.
        unsafe { self.0.realloc(block, layout.size(), layout.align(), bytes) }
    }
}

/// `rlsf`, two-level segregated fit. 30 levels of 32 bytes and up: blocks to 32 GiB.
pub struct Rlsf(Tlsf<'static, u32, u16, 30, 16>);

// SAFETY: rlsf's contract.
unsafe impl Heap for Rlsf {
    const NAME: &'static str = "rlsf";

    fn empty() -> Self {
        Self(Tlsf::new())
    }

    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize) {
        // SAFETY: the region is ours alone.
        let taken = unsafe { self.0.insert_free_block_ptr(NonNull::slice_from_raw_parts(region, bytes)) };
        debug_assert!(taken.is_some());
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        or_null(self.0.allocate(layout))
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: blocks are never null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller's block and its alignment.
        unsafe { self.0.deallocate(block, layout.align()) };
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller vouches for the size.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: blocks are never null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller's block, and the alignment stays.
        or_null(unsafe { self.0.reallocate(block, new) })
    }
}

/// `linked_list_allocator`: first fit in one list of holes.
pub struct LinkedList(linked_list_allocator::Heap);

// SAFETY: linked_list_allocator's contract.
unsafe impl Heap for LinkedList {
    const NAME: &'static str = "linked_list";

    fn empty() -> Self {
        Self(linked_list_allocator::Heap::empty())
    }

    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize) {
        // SAFETY: the region is ours alone, and this is called once.
        unsafe { self.0.init(region.as_ptr(), bytes) };
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        or_null(self.0.allocate_first_fit(layout).ok())
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: blocks are never null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller's block and its layout.
        unsafe { self.0.deallocate(block, layout) };
    }
}

/// `buddy_system_allocator`, with blocks to 16 GiB.
pub struct Buddy(buddy_system_allocator::Heap<35>);

// SAFETY: buddy_system_allocator's contract.
unsafe impl Heap for Buddy {
    const NAME: &'static str = "buddy";

    fn empty() -> Self {
        Self(buddy_system_allocator::Heap::empty())
    }

    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize) {
        // SAFETY: the region is ours alone.
        unsafe { self.0.init(region.as_ptr().expose_provenance(), bytes) };
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        or_null(self.0.alloc(layout).ok())
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: blocks are never null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller's block and its layout.
        unsafe { self.0.dealloc(block, layout) };
    }
}

/// `good_memory_allocator`, with its default bins.
pub struct Galloc(good_memory_allocator::Allocator);

// SAFETY: good_memory_allocator's contract.
unsafe impl Heap for Galloc {
    const NAME: &'static str = "galloc";

    fn empty() -> Self {
        Self(good_memory_allocator::Allocator::empty())
    }

    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize) {
        // SAFETY: the region is ours alone, and a heap stays where it is.
        unsafe { self.0.init(region.as_ptr().expose_provenance(), bytes) };
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&mut self, block: *mut u8, _: Layout) {
        // SAFETY: the caller's block.
        unsafe { self.0.dealloc(block) };
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's block and its layout.
        unsafe { self.0.realloc(block, layout, bytes) }
    }
}

/// A heap that counts what it is asked for; no candidate.
pub struct Counted<H> {
    heap: H,
    /// Calls of alloc, and of realloc.
    pub calls: (usize, usize),
    /// Bytes that are live now, and the most that ever were.
    pub live_bytes: (usize, usize),
}

impl<H> Counted<H> {
    fn resized(&mut self, from: usize, to: usize) {
        self.live_bytes.0 = self.live_bytes.0 - from + to;
        self.live_bytes.1 = self.live_bytes.1.max(self.live_bytes.0);
    }
}

// SAFETY: passes everything on to a heap.
unsafe impl<H: Heap> Heap for Counted<H> {
    const NAME: &'static str = H::NAME;

    fn empty() -> Self {
        Self { heap: H::empty(), calls: (0, 0), live_bytes: (0, 0) }
    }

    unsafe fn init(&mut self, region: NonNull<u8>, bytes: usize) {
        // SAFETY: passed on.
        unsafe { self.heap.init(region, bytes) };
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        self.calls.0 += 1;
        self.resized(0, layout.size());
        // SAFETY: passed on.
        unsafe { self.heap.alloc(layout) }
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        self.resized(layout.size(), 0);
        // SAFETY: passed on.
        unsafe { self.heap.dealloc(block, layout) };
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        self.calls.1 += 1;
        self.resized(layout.size(), bytes);
        // SAFETY: passed on.
        unsafe { self.heap.realloc(block, layout, bytes) }
    }
}
