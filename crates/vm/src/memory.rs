//! Guest RAM: one range of host memory, reserved whole and given by the kernel when touched.
//!
//! Invariant: no Rust reference into the range ever exists. Bytes go in and out by copies, each checked against
//! the range's length. What the bytes mean, and which of them a guest may reach, is for [`crate::space`].
#![allow(unsafe_code)] // One of the crate's four unsafe files: the mapping itself and the copies.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use coracle_abi::{PAGE_BYTES, PageBytes};
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::base::Base;
use crate::content::Content;
use crate::pages::PageSet;
use crate::paging::Frame;

/// The host range that backs a VM's physical memory. Offset 0 is guest-physical address 0.
#[derive(Debug)]
pub struct GuestMemory {
    host: NonNull<u8>,
    bytes: usize, // Invariant: `host` is a mapping of this many bytes that only this value owns.
    shared: u64,  // Up to here it is a private mapping of a file; a page that is given back there is the file's again.
    hot: PageSet,
    touched: PageSet,
    contents: Vec<Option<(Frame, Arc<Content>)>>, // What lies behind the end.
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that made it.
unsafe impl Send for GuestMemory {}

/// A copy would leave guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

impl GuestMemory {
    /// Reserves `size` bytes of zeros. Costs the same for every size: pages exist from their first use on.
    ///
    /// # Errors
    /// The kernel's, when the address space or its overcommit limit is used up; and for a size of 0.
    pub fn reserve(size: PageBytes) -> io::Result<Self> {
        let bytes = usize::try_from(size.get()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: with a null address the kernel chooses a range that nothing uses; nothing is replaced.
        let host =
            unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let host = NonNull::new(host.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Self {
            shared: 0,
            host,
            bytes,
            hot: PageSet::below(size.pages()),
            touched: PageSet::below(size.pages()),
            contents: Vec::new(),
        };
        memory.advise_once();
        Ok(memory)
    }

    /// Puts the pages of `base` in place of the first pages of memory in which nothing was written yet. Those that stay
    /// unwritten are shared with all others who have the base.
    ///
    /// # Errors
    /// The kernel's, and when the base is larger than the memory.
    pub fn map_base(&mut self, base: &Base) -> io::Result<()> {
        if base.bytes() == 0 {
            return Ok(());
        }
        let (address, bytes) = self.pages(0..base.bytes())?;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: what is replaced is the start of our own mapping (`pages`), into which no reference exists; it stays a
        // mapping of as many bytes, readable and writable. The file is sealed, or whoever gave it to `Base::from_file` vouches that it
        // never gets shorter than them.
        unsafe { mm::mmap(address.as_ptr().cast(), bytes, rights, flags, base, 0) }?;
        self.shared = base.bytes();
        let _ = self.advise(0..base.bytes(), Advice::LinuxDontDump);
        Ok(())
    }

    /// Makes it as it was when it was reserved: zeros that take no memory, none of them noted. The hypervisor forgets its
    /// mappings.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clear(&mut self) -> io::Result<()> {
        let (rights, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED);
        // SAFETY: what is replaced is our own mapping, whole, into which no reference exists; it stays a mapping of as many
        // bytes, readable and writable.
        unsafe { mm::mmap_anonymous(self.host.as_ptr().cast(), self.bytes, rights, flags) }?;
        self.advise_once();
        self.shared = 0;
        self.hot.clear();
        self.touched.clear();
        self.contents.clear();
        Ok(())
    }

    /// What holds for the whole range from the start on.
    fn advise_once(&self) {
        // A huge page would be zeroed whole at the first touch of any part. Not all kernels have them.
        let _ = self.advise(0..self.bytes(), Advice::LinuxNoHugepage);
        // A core dump of the host must not hold its guests' memory.
        let _ = self.advise(0..self.bytes(), Advice::LinuxDontDump);
    }

    /// Bytes reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Where the range starts in the host's address space, for the hypervisor.
    pub fn host_address(&self) -> u64 {
        self.host.as_ptr() as u64
    }

    /// Copies guest memory from `at` on to `out`, or content that lies behind it.
    ///
    /// # Errors
    /// When the range does not lie in guest memory or in one content; nothing is copied then. And when a content's file cannot be read.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), OutOfRange> {
        if at >= self.bytes() && !out.is_empty() {
            return self.read_content(at, out);
        }
        let from = self.pointer(at, out.len())?;
        // SAFETY: `pointer` showed that `out.len()` bytes from here lie in the mapping, which is readable; `out` is
        // elsewhere, since guest memory is never lent out. No vCPU runs: running needs `&mut` of this memory's owner.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *out).cast(), out.len()) };
        Ok(())
    }

    /// Pages that the guest wrote, as far as they were noted. It can write them again without being noticed.
    pub fn hot(&self) -> &PageSet {
        &self.hot
    }

    /// Pages that were changed from here, by [`GuestMemory::write`] or [`GuestMemory::discard`], since the last
    /// [`GuestMemory::forget_touched`].
    pub fn touched(&self) -> &PageSet {
        &self.touched
    }

    /// Whether the page is hot or touched.
    pub fn is_changed(&self, page: Frame) -> bool {
        self.hot.contains(page) || self.touched.contains(page)
    }

    /// The pages that are hot or touched, each once.
    pub fn changed(&self) -> impl Iterator<Item = Frame> {
        let touched = self.touched.as_slice().iter().filter(|page| !self.hot.contains(Frame(**page)));
        self.hot.as_slice().iter().chain(touched).map(|page| Frame(*page))
    }

    /// From here on the guest's next write to any page is noticed: the hypervisor has write-protected them.
    pub(crate) fn forget_hot(&mut self) {
        self.hot.clear();
    }

    /// From here on the content of all pages is known again: the guest's next write to a page that is not hot is noticed.
    pub fn forget_touched(&mut self) {
        self.touched.clear();
    }

    /// Notes that the guest wrote this page.
    #[inline]
    pub fn note_written(&mut self, page: Frame) {
        self.hot.insert(page);
    }

    /// Puts a page back to a known content, without noting it: zeros if there is none.
    ///
    /// # Errors
    /// When the page does not lie in guest memory.
    pub fn restore(&mut self, page: Frame, content: Option<&[u8; PAGE_BYTES as usize]>) -> Result<(), OutOfRange> {
        let to = self.pointer(page.address(), PAGE_BYTES as usize)?;
        match content {
            // SAFETY: a page from here on lies in the mapping (`pointer`), which is writable; `content` is elsewhere.
            Some(content) => unsafe { to.copy_from_nonoverlapping(NonNull::from(content).cast(), content.len()) },
            // SAFETY: as above, and any bytes are allowed there.
            None => unsafe { to.write_bytes(0, PAGE_BYTES as usize) },
        }
        Ok(())
    }

    /// Like [`GuestMemory::restore`], but only if the page has another content. Whether it had.
    ///
    /// # Errors
    /// When the page does not lie in guest memory.
    pub fn restore_changed(
        &mut self,
        page: Frame,
        content: Option<&[u8; PAGE_BYTES as usize]>,
    ) -> Result<bool, OutOfRange> {
        let mut now = [0; PAGE_BYTES as usize];
        self.read(page.address(), &mut now)?;
        let changed = now != *content.unwrap_or(&[0; PAGE_BYTES as usize]);
        if changed {
            self.restore(page, content)?;
        }
        Ok(changed)
    }

    /// Has a content, or none, behind guest memory from a frame on.
    pub(crate) fn set_contents(&mut self, index: usize, content: Option<(Frame, Arc<Content>)>) {
        if self.contents.len() <= index {
            self.contents.resize_with(index + 1, || None);
        }
        self.contents[index] = content;
    }

    /// The content in which a guest-physical address lies, and where in it.
    fn content_at(&self, at: u64) -> Option<(&Content, u64)> {
        self.contents.iter().flatten().find_map(|(first, content)| {
            let offset = at.checked_sub(first.address())?;
            (offset < content.size().get()).then_some((&**content, offset))
        })
    }

    fn read_content(&self, at: u64, out: &mut [u8]) -> Result<(), OutOfRange> {
        let (content, offset) = self.content_at(at).ok_or(OutOfRange)?;
        if out.len() as u64 > content.size().get() - offset {
            return Err(OutOfRange);
        }
        content.read(offset, out).map_err(|_| OutOfRange)
    }

    /// A page of content.
    pub(crate) fn content_page(&self, frame: Frame) -> io::Result<[u8; PAGE_BYTES as usize]> {
        let (content, offset) = self.content_at(frame.address()).ok_or(io::ErrorKind::InvalidInput)?;
        content.page(offset / PAGE_BYTES)
    }

    /// Notes all pages of a range of bytes.
    fn note_range(&mut self, at: u64, bytes: u64) {
        if bytes != 0 {
            for page in at / PAGE_BYTES..=(at + bytes - 1) / PAGE_BYTES {
                self.touched.insert(Frame(page as u32));
            }
        }
    }

    /// Copies `bytes` to guest memory at `at`.
    ///
    /// # Errors
    /// When the range does not lie in guest memory; nothing is copied then.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        let to = self.pointer(at, bytes.len())?;
        // SAFETY: as in `read`, and the mapping is writable.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.note_range(at, bytes.len() as u64);
        Ok(())
    }

    /// The little-endian word at `at`.
    ///
    /// # Errors
    /// When it does not lie in guest memory.
    pub fn read_u64(&self, at: u64) -> Result<u64, OutOfRange> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Stores `value` at `at`, little-endian.
    ///
    /// # Errors
    /// When it does not lie in guest memory; nothing is stored then.
    pub fn write_u64(&mut self, at: u64, value: u64) -> Result<(), OutOfRange> {
        self.write(at, &value.to_le_bytes())
    }

    /// Makes these pages resident and writable in one go, so that nothing faults on them one by one.
    /// Without effect on a kernel older than 5.14.
    pub fn populate(&mut self, range: Range<u64>) {
        let _ = self.advise(range, Advice::LinuxPopulateWrite);
    }

    /// Gives these pages back: they are zero at the next touch, and the hypervisor forgets its mappings of them.
    ///
    /// # Errors
    /// When the range does not lie in guest memory, and the kernel's.
    pub fn discard(&mut self, range: Range<u64>) -> io::Result<()> {
        let own = range.start.max(self.shared.min(range.end))..range.end;
        self.advise(own.clone(), Advice::LinuxDontNeed)?;
        for page in range.start / PAGE_BYTES..own.start / PAGE_BYTES {
            self.restore(Frame(page as u32), None).map_err(|OutOfRange| io::ErrorKind::InvalidInput)?;
        }
        self.invalidate(range.start..own.start)?;
        self.note_range(range.start, range.end - range.start);
        Ok(())
    }

    /// Makes the hypervisor forget its mappings of these pages and flush what the vCPU cached of them; the content
    /// stays. This is what makes *shrunken* rights take effect: nested hypervisors do not notice the host's own
    /// stores to guest page tables, but every one notices that the host's mapping changed.
    ///
    /// # Errors
    /// When the range does not lie in guest memory, and the kernel's.
    pub fn invalidate(&mut self, range: Range<u64>) -> io::Result<()> {
        if range.start >= self.bytes() {
            let (content, offset) = self.content_at(range.start).ok_or(io::ErrorKind::InvalidInput)?;
            return content.invalidate(offset / PAGE_BYTES, (range.end - range.start) / PAGE_BYTES);
        }
        let (address, bytes) = self.pages(range)?;
        for rights in [MprotectFlags::empty(), MprotectFlags::READ | MprotectFlags::WRITE] {
            // SAFETY: the pages lie in the mapping (`pages`), no reference into it exists, and the second pass
            // restores the rights that `read` and `write` rely on. Both need `self`, which is held exclusively.
            unsafe { mm::mprotect(address.as_ptr().cast(), bytes, rights) }?;
        }
        Ok(())
    }

    fn advise(&self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        let (address, bytes) = self.pages(range)?;
        // SAFETY: the pages lie in the mapping (`pages`). The advice used in this file at most zeroes them, and no
        // reference into them exists.
        unsafe { mm::madvise(address.as_ptr().cast(), bytes, advice) }?;
        Ok(())
    }

    /// Checks a range of whole pages.
    fn pages(&self, range: Range<u64>) -> io::Result<(NonNull<u8>, usize)> {
        let bytes = range.end.checked_sub(range.start).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        if !range.start.is_multiple_of(PAGE_BYTES) || !range.end.is_multiple_of(PAGE_BYTES) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let address = self.pointer(range.start, bytes).map_err(|OutOfRange| io::ErrorKind::InvalidInput)?;
        Ok((address, bytes))
    }

    /// A pointer to `bytes` bytes from `at` on, all of them inside the mapping.
    fn pointer(&self, at: u64, bytes: usize) -> Result<NonNull<u8>, OutOfRange> {
        let at = usize::try_from(at).map_err(|_| OutOfRange)?;
        let end = at.checked_add(bytes).ok_or(OutOfRange)?;
        if end > self.bytes {
            return Err(OutOfRange);
        }
        // SAFETY: `at` is at most the mapping's length, so that the result is inside it or one past its end.
        Ok(unsafe { self.host.add(at) })
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and whole, and nothing points into it any more. A VM that still
        // had it as a slot would only find it unmapped; none runs, since its owner is being dropped.
        let _ = unsafe { mm::munmap(self.host.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(pages: u64) -> GuestMemory {
        GuestMemory::reserve(PageBytes::from_pages(pages).unwrap()).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let mut memory = memory(2);
        memory.write(4090, b"across pages").unwrap();
        let mut out = [0; 12];
        memory.read(4090, &mut out).unwrap();
        assert_eq!(&out, b"across pages");
        memory.write_u64(8184, 0x0102_0304_0506_0708).unwrap();
        assert_eq!(memory.read_u64(8184), Ok(0x0102_0304_0506_0708));
    }

    #[test]
    fn nothing_outside_is_reached() {
        let mut memory = memory(1);
        for (at, bytes) in [(4096, 1), (4095, 2), (0, 4097), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            assert_eq!(memory.read(at, &mut vec![0; bytes]), Err(OutOfRange), "{at:#x}+{bytes}");
            assert_eq!(memory.write(at, &vec![0; bytes]), Err(OutOfRange), "{at:#x}+{bytes}");
        }
        assert_eq!(memory.read(4096, &mut []), Ok(()));
    }

    #[test]
    fn discarded_pages_are_zero_and_invalidated_ones_are_not() {
        let mut memory = memory(2);
        memory.write(0, &[7; 8192]).unwrap();
        memory.discard(0..4096).unwrap();
        memory.invalidate(4096..8192).unwrap();
        assert_eq!(memory.read_u64(0), Ok(0));
        assert_eq!(memory.read_u64(4096), Ok(0x0707_0707_0707_0707));
    }

    #[test]
    fn only_whole_pages_inside_are_discarded() {
        let mut memory = memory(1);
        for range in [0..1, 1..4096, 0..8192, 4096..8192] {
            assert!(memory.discard(range.clone()).is_err(), "{range:?}");
        }
    }

    #[test]
    fn cleared_memory_is_like_new() {
        let base = Base::new(&[0], |_| Ok(Some(&[5; PAGE_BYTES as usize]))).unwrap();
        let mut memory = memory(2);
        memory.map_base(&base).unwrap();
        memory.write(4096, &[7]).unwrap();
        memory.note_written(Frame(0));
        memory.clear().unwrap();
        assert_eq!((memory.read_u64(0), memory.read_u64(4096)), (Ok(0), Ok(0)));
        assert_eq!(memory.changed().count(), 0);
        memory.discard(0..4096).unwrap(); // Not the base's page any more.
        assert_eq!(memory.read_u64(0), Ok(0));
    }

    #[test]
    fn reserving_nothing_is_an_error() {
        assert!(GuestMemory::reserve(PageBytes::ZERO).is_err());
    }
}
