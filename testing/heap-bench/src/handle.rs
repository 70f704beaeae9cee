//! A heap placed in an arena, and handles to it that collections can use.
//!
//! Invariant: a heap never moves, since it lives in its arena's first bytes; and it is entered by one thread, since
//! neither it nor its handles can be sent to another.
#![allow(unsafe_code)] // A handle is a pointer to a heap that all its copies share.

use std::alloc::Layout;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use crate::arena::Pages;
use crate::{Arena, Heap};

/// A heap and its arena.
pub struct Placed<H> {
    arena: Arena,
    heap: PhantomData<*mut H>,
}

impl<H: Heap> Placed<H> {
    /// Makes an arena of `heap_bytes` and gives it to a new heap. Pages that this touches are counted.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn new(heap_bytes: usize) -> io::Result<Self> {
        const { assert!(size_of::<H>() <= 32 << 10, "the arena's place for the heap is small") };
        let placed = Self { arena: Arena::new(heap_bytes)?, heap: PhantomData };
        let heap = placed.handle().heap;
        // SAFETY: the place is writable, aligned to a page, and large enough.
        unsafe { heap.write(H::empty()) };
        placed.arena.snapshot()?; // A guest's image brings its statics.
        // SAFETY: just written; nobody else has it yet.
        let heap = unsafe { &mut *heap.as_ptr() };
        // SAFETY: the arena's heap part is zeroed, and used through `heap` only, which stays where it is.
        unsafe { heap.init(placed.arena.heap(), heap_bytes) };
        Ok(placed)
    }

    /// A handle to the heap.
    pub fn handle(&self) -> Handle<'_, H> {
        Handle { heap: self.arena.state().cast(), arena: PhantomData }
    }

    /// The addresses of the region that the heap was given.
    pub fn region(&self) -> Range<usize> {
        let start = self.arena.heap().as_ptr().addr();
        start..start + self.arena.heap_bytes()
    }

    /// See [`Arena::snapshot`].
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn snapshot(&self) -> io::Result<()> {
        self.arena.snapshot()
    }

    /// See [`Arena::restore`]. Blocks that were live at the snapshot and then forgotten are live again.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn restore(&mut self) -> io::Result<()> {
        self.arena.restore()
    }

    /// See [`Arena::pages`].
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn pages(&self) -> io::Result<Pages> {
        self.arena.pages()
    }

    /// Looks at the heap itself.
    pub fn inspect<T>(&mut self, look: impl FnOnce(&H) -> T) -> T {
        // SAFETY: initialised by `new`; borrowed mutably, so no handle is about.
        look(unsafe { self.handle().heap.as_ref() })
    }
}

/// A way to a heap, as cheap to copy as a pointer.
pub struct Handle<'a, H> {
    heap: NonNull<H>,
    arena: PhantomData<&'a Placed<H>>,
}

impl<H> Clone for Handle<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for Handle<'_, H> {}

impl<'a, H: Heap> Handle<'a, H> {
    /// A block of that layout, or `None` if the heap has no room.
    #[inline]
    pub fn block(self, layout: Layout) -> Option<Block<'a, H>> {
        let start = self.allocate(layout).ok()?.cast();
        Some(Block { start, layout, handle: self })
    }

    /// See [`Heap::seal`].
    pub fn seal(self) {
        self.enter(H::seal);
    }

    #[inline]
    fn enter<T>(&self, act: impl FnOnce(&mut H) -> T) -> T {
        // SAFETY: initialised by `Placed::new`, which the handle borrows. One thread, and a heap calls nobody back, so
        // there is no other reference while this one lives.
        act(unsafe { &mut *self.heap.as_ptr() })
    }

    #[inline]
    fn resize(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        debug_assert_eq!(old.align(), new.align()); // `Vec` keeps it, and nothing else here resizes.
        if old.size() == 0 || new.size() == 0 {
            let moved = self.allocate(new)?;
            // SAFETY: the caller's block and its layout. Nothing is to be copied: one of the two is empty.
            unsafe { self.deallocate(block, old) };
            return Ok(moved);
        }
        // SAFETY: the caller's block and its layout, and a size that is a layout's and not 0.
        let resized = self.enter(|heap| unsafe { heap.realloc(block.as_ptr(), old, new.size()) });
        let resized = NonNull::new(resized).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(resized, new.size()))
    }
}

// SAFETY: blocks are the heap's, which outlives the handle and does not move; copies of a handle lead to one heap.
unsafe impl<H: Heap> Allocator for Handle<'_, H> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = if layout.size() == 0 {
            NonNull::without_provenance(layout.align().try_into().map_err(|_| AllocError)?)
        } else {
            // SAFETY: the layout is not empty.
            NonNull::new(self.enter(|heap| unsafe { heap.alloc(layout) })).ok_or(AllocError)?
        };
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: the caller's block and its layout.
            self.enter(|heap| unsafe { heap.dealloc(block.as_ptr(), layout) });
        }
    }

    #[inline]
    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.resize(block, old, new)
    }

    #[inline]
    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.resize(block, old, new)
    }
}

/// Bytes in a heap.
pub type Bytes<'a, H> = allocator_api2::vec::Vec<u8, Handle<'a, H>>;

/// Appends as the standard library's `Vec` does, in one copy. The stable stand-in goes byte by byte, which would hide
/// what the heap costs.
pub fn append<H: Heap>(vec: &mut Bytes<'_, H>, bytes: &[u8]) {
    vec.reserve(bytes.len());
    let length = vec.len();
    // SAFETY: the capacity reaches beyond the length.
    let end = unsafe { vec.as_mut_ptr().add(length) };
    // SAFETY: reserved above, and a slice that someone borrows is not the free end of a vector that we borrow mutably.
    unsafe { end.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    // SAFETY: just written.
    unsafe { vec.set_len(length + bytes.len()) };
}

/// A block of raw memory that goes back to its heap when dropped.
pub struct Block<'a, H: Heap> {
    start: NonNull<u8>,
    layout: Layout,
    handle: Handle<'a, H>,
}

impl<H: Heap> Block<'_, H> {
    /// The address of the first byte.
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Size and alignment, as asked for.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Changes the size, and the address if need be. `false`, and nothing changed, if the heap has no room.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let Ok(new) = Layout::from_size_align(bytes, self.layout.align()) else { return false };
        let Ok(start) = self.handle.resize(self.start, self.layout, new) else { return false };
        (self.start, self.layout) = (start.cast(), new);
        true
    }

    /// Writes a pattern that depends on `seed` into the byte at each of these offsets.
    ///
    /// # Panics
    /// If an offset is outside the block.
    pub fn stamp(&mut self, seed: u64, offsets: impl Iterator<Item = usize>) {
        for offset in offsets {
            let byte = self.byte(offset);
            // SAFETY: inside the block, which is ours to write.
            unsafe { byte.write(pattern(seed, offset)) };
        }
    }

    /// The first of these offsets at which the pattern is not what [`Block::stamp`] wrote there.
    ///
    /// # Panics
    /// If an offset is outside the block.
    pub fn spoilt_at(&self, seed: u64, mut offsets: impl Iterator<Item = usize>) -> Option<usize> {
        // SAFETY: inside the block, and initialised: the arena's pages are zero where nobody wrote.
        offsets.find(|offset| unsafe { self.byte(*offset).read() } != pattern(seed, *offset))
    }

    fn byte(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.layout.size());
        // SAFETY: inside the block.
        unsafe { self.start.add(offset) }
    }
}

impl<H: Heap> Drop for Block<'_, H> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: our block and the layout that it has; it is not used again.
        unsafe { self.handle.deallocate(self.start, self.layout) };
    }
}

fn pattern(seed: u64, offset: usize) -> u8 {
    let mixed = (seed ^ offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 | 1 // Never 0, so that cleared memory shows.
}
