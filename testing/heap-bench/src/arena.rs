//! A region of memory that knows which of its pages were touched.
//!
//! It is mapped as Coracle maps a sandbox: privately over a file that holds the snapshot. A page that was written
//! since the snapshot is then a private copy, and `/proc/self/pagemap` tells it from a page of the file (bit 61).
//! That counts writes that change nothing too, as a restore has to; comparing contents would miss them.
//!
//! Invariant: the whole mapping stays readable and writable while the arena lives. It leaves the meaning of the bytes
//! to others.
#![allow(unsafe_code)] // mmap, and pointers into what it gave.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Bytes before the heap, for what a guest has in a static: the allocator itself. As long as the kernel's window for
/// mapping neighbours of a page that was read, so that reading here maps nothing of the heap.
const STATE_BYTES: usize = 64 << 10;

const PRESENT: u64 = 1 << 63;
const OF_THE_FILE: u64 = 1 << 61;

/// How many pages of an arena were touched since its last snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Written pages of the allocator's static.
    pub state_written: usize,
    /// Written pages of the heap.
    pub heap_written: usize,
    /// Pages of the heap that were read or written. Reading a snapshot's page may map its neighbours, so this is exact
    /// only where the snapshot holds no page of the heap.
    pub heap_touched: usize,
}

impl Pages {
    /// Every written page, which is what a restore undoes.
    pub fn written(self) -> usize {
        self.state_written + self.heap_written
    }
}

/// One zeroed region, with a little space before it for the allocator's own state.
pub struct Arena {
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    start: NonNull<u8>, // Of the state; the heap follows.
    bytes: usize,       // Of state and heap.
    image: OwnedFd,
    pagemap: File,
}

impl Arena {
    /// Maps a region of `heap_bytes`, aligned to its size as a buddy allocator likes best.
    ///
    /// # Errors
    /// Where the kernel refuses the mapping or does not tell about pages.
    ///
    /// # Panics
    /// If `heap_bytes` is not a whole number of pages.
    pub fn new(heap_bytes: usize) -> io::Result<Self> {
        assert!(heap_bytes.is_multiple_of(PAGE_BYTES), "{heap_bytes} bytes are no whole number of pages");
        let align = heap_bytes.next_power_of_two();
        let bytes = STATE_BYTES + heap_bytes;
        let reserved_bytes = align + STATE_BYTES + bytes;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                reserved_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let reserved = NonNull::new(reserved.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let heap = (reserved.as_ptr().addr() + STATE_BYTES).next_multiple_of(align);
        // SAFETY: at most `align` bytes were added to a start `STATE_BYTES` in, and the reservation has room for both.
        let start = unsafe { reserved.add(heap - STATE_BYTES - reserved.as_ptr().addr()) };

        let image = memfd_create("heap-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&image, bytes as u64)?;
        let arena = Self { reserved, reserved_bytes, start, bytes, image, pagemap: File::open("/proc/self/pagemap")? };
        arena.map()?;
        Ok(arena)
    }

    /// Where the allocator's own state goes; room for 64 KiB.
    pub fn state(&self) -> NonNull<u8> {
        self.start
    }

    /// The first byte of the heap.
    pub fn heap(&self) -> NonNull<u8> {
        // SAFETY: the mapping has `STATE_BYTES` and then the heap.
        unsafe { self.start.add(STATE_BYTES) }
    }

    /// Bytes of the heap.
    pub fn heap_bytes(&self) -> usize {
        self.bytes - STATE_BYTES
    }

    /// Makes what the arena holds now its snapshot. The contents stay; the counts start again.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn snapshot(&self) -> io::Result<()> {
        let image = File::from(self.image.try_clone()?);
        for (page, entry) in self.entries()?.into_iter().enumerate().filter(|(_, entry)| is_written(*entry)) {
            debug_assert!(entry & PRESENT != 0);
            let offset = page * PAGE_BYTES;
            let mut copy = [0; PAGE_BYTES];
            // SAFETY: `entries` has one entry for each page of the mapping.
            let from = unsafe { self.start.add(offset) };
            // SAFETY: a page of the mapping, and a buffer of the same size elsewhere.
            unsafe { from.as_ptr().copy_to_nonoverlapping(copy.as_mut_ptr(), PAGE_BYTES) };
            image.write_all_at(&copy, offset as u64)?;
        }
        self.map()
    }

    /// Goes back to the snapshot.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn restore(&mut self) -> io::Result<()> {
        self.map()
    }

    /// Pages touched since the snapshot, or since the arena was made.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn pages(&self) -> io::Result<Pages> {
        let entries = self.entries()?;
        let (state, heap) = entries.split_at(STATE_BYTES / PAGE_BYTES);
        let written = |entries: &[u64]| entries.iter().filter(|entry| is_written(**entry)).count();
        Ok(Pages {
            state_written: written(state),
            heap_written: written(heap),
            heap_touched: heap.iter().filter(|entry| **entry & PRESENT != 0).count(),
        })
    }

    /// Lays the image over the whole arena, whatever was there.
    fn map(&self) -> io::Result<()> {
        let start = self.start.as_ptr().cast();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range lies in our own reservation. Only raw pointers lead into it, and what they see is the
        // image: the same bytes after `snapshot`, and after `restore`, which borrows mutably, nobody looks.
        unsafe { mmap(start, self.bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &self.image, 0) }?;
        // One fault is to bring one page. A kernel without huge pages refuses, and has none to bring.
        // SAFETY: the range was just mapped, and the advice changes no content.
        let _ = unsafe { madvise(start, self.bytes, Advice::LinuxNoHugepage) };
        Ok(())
    }

    fn entries(&self) -> io::Result<Vec<u64>> {
        let mut raw = vec![0; self.bytes / PAGE_BYTES * size_of::<u64>()];
        let first = self.start.as_ptr().addr() / PAGE_BYTES * size_of::<u64>();
        self.pagemap.read_exact_at(&mut raw, first as u64)?;
        let (entries, _) = raw.as_chunks();
        Ok(entries.iter().map(|entry| u64::from_ne_bytes(*entry)).collect())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the reservation is ours and holds the mapping; handles borrow the arena, so none is left.
        let unmapped = unsafe { munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Swapped pages were written too, but lose the bit that says present; measure on a machine that does not swap.
fn is_written(entry: u64) -> bool {
    entry & PRESENT != 0 && entry & OF_THE_FILE == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poke(arena: &Arena, page: usize, value: u8) {
        // SAFETY: the tests name pages inside the heap.
        let byte = unsafe { arena.heap().add(page * PAGE_BYTES) };
        // SAFETY: as above; the mapping is writable.
        unsafe { byte.write_volatile(value) };
    }

    fn peek(arena: &Arena, page: usize) -> u8 {
        // SAFETY: the tests name pages inside the heap.
        let byte = unsafe { arena.heap().add(page * PAGE_BYTES) };
        // SAFETY: as above; the mapping is readable.
        unsafe { byte.read_volatile() }
    }

    #[test]
    fn reads_are_touches_and_writes_are_both() {
        let arena = Arena::new(64 * PAGE_BYTES).unwrap();
        assert_eq!(peek(&arena, 40), 0);
        poke(&arena, 3, 1);
        assert_eq!(arena.pages().unwrap(), Pages { state_written: 0, heap_written: 1, heap_touched: 2 });
    }

    #[test]
    fn a_write_of_the_same_value_counts() {
        let arena = Arena::new(64 * PAGE_BYTES).unwrap();
        poke(&arena, 3, 7);
        arena.snapshot().unwrap();
        assert_eq!(arena.pages().unwrap().written(), 0);
        poke(&arena, 3, 7);
        assert_eq!(arena.pages().unwrap().written(), 1);
    }

    #[test]
    fn a_restore_brings_the_snapshot_back() {
        let mut arena = Arena::new(64 * PAGE_BYTES).unwrap();
        poke(&arena, 3, 7);
        arena.snapshot().unwrap();
        poke(&arena, 3, 8);
        poke(&arena, 5, 9);
        arena.restore().unwrap();
        assert_eq!((peek(&arena, 3), peek(&arena, 5)), (7, 0));
        assert_eq!(arena.pages().unwrap().written(), 0);
    }
}
