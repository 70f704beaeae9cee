//! What the host lends to guests: a file, or bytes, mapped once for the process and read by any number of sandboxes.
//!
//! Invariants: nobody writes to it by way of us; the host never touches the mapping itself, only the hypervisor does, so that a file which
//! gets shorter meanwhile is a guest's fault and no signal here. The host's own reads are system calls.
#![allow(unsafe_code)] // One of the crate's few unsafe files: a mapping for the hypervisor.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

use coracle_abi::{PAGE_BYTES, PageBytes};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::space::PageContent;

/// A file or bytes, for guests to map.
#[derive(Debug)]
pub struct Content {
    file: File,
    bytes: u64,
    size: PageBytes,
    seen: Seen,
    host: NonNull<u8>, // Invariant: a read-only mapping of `size` that only this value owns.
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that made it.
unsafe impl Send for Content {}
// SAFETY: nothing writes to the mapping, and what is done to it (advice) is a system call.
unsafe impl Sync for Content {}

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Seen {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl Content {
    /// A regular file, as it is now. It must not be changed as long as this is alive: see [`Content::is_unchanged`].
    ///
    /// # Errors
    /// The kernel's; for anything but a regular file, and for an empty one.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A FIFO without a writer would wait for one.
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Self::new(file)
    }

    /// A copy of these bytes, which nobody can change any more.
    ///
    /// # Errors
    /// The kernel's; for no bytes at all.
    pub fn copy_of(bytes: &[u8]) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("coracle-content", flags)?);
        file.write_all_at(bytes, 0)?;
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Self::new(file)
    }

    fn new(file: File) -> io::Result<Self> {
        let seen = Seen::of(&file.metadata()?);
        if seen.bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is nothing in it"));
        }
        let size = PageBytes::round_up(seen.bytes).ok_or(io::ErrorKind::FileTooLarge)?;
        let mapped = usize::try_from(size.get()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: with a null address the kernel chooses a range that nothing uses; nothing is replaced.
        let host = unsafe { mm::mmap(std::ptr::null_mut(), mapped, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }?;
        let host = NonNull::new(host.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, bytes: seen.bytes, size, seen, host })
    }

    /// Its length in bytes, at least 1.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pages that hold it. The rest of the last one reads as zeros.
    pub fn size(&self) -> PageBytes {
        self.size
    }

    /// Whether the file is still what it was, as far as its length and its time of modification tell.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_unchanged(&self) -> io::Result<bool> {
        Ok(Seen::of(&self.file.metadata()?) == self.seen)
    }

    /// Copies bytes from `at` on to `out`; zeros behind the end.
    ///
    /// # Errors
    /// The kernel's, and [`io::ErrorKind::UnexpectedEof`] for a file that got shorter.
    pub fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let within = self.bytes.saturating_sub(at).min(out.len() as u64) as usize;
        let (data, rest) = out.split_at_mut(within);
        self.file.read_exact_at(data, at)?;
        rest.fill(0);
        Ok(())
    }

    /// One of its pages.
    ///
    /// # Errors
    /// As [`Content::read`].
    pub(crate) fn page(&self, number: u64) -> io::Result<PageContent> {
        let mut page = [0; PAGE_BYTES as usize];
        self.read(number * PAGE_BYTES, &mut page)?;
        Ok(page)
    }

    /// Where it is mapped, for the hypervisor.
    pub(crate) fn host_address(&self) -> u64 {
        self.host.as_ptr() as u64
    }

    /// Makes hypervisors forget their mappings of these pages, and flush what processors cached of them. Other sandboxes that have it
    /// find them again at their next touch.
    ///
    /// # Errors
    /// The kernel's, and for pages that it has not.
    pub(crate) fn invalidate(&self, first: u64, pages: u64) -> io::Result<()> {
        if first.checked_add(pages).is_none_or(|end| end > self.size.pages()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the first page lies in the mapping (checked above).
        let address = unsafe { self.host.add((first * PAGE_BYTES) as usize) };
        // SAFETY: the pages lie in the mapping (checked above), no reference into it exists, and since nothing was written to it, its
        // pages come back from the file as they were.
        unsafe { mm::madvise(address.as_ptr().cast(), (pages * PAGE_BYTES) as usize, Advice::LinuxDontNeed) }?;
        Ok(())
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and whole, and nothing points into it any more: address spaces that have it
        // keep it alive.
        let _ = unsafe { mm::munmap(self.host.as_ptr().cast(), self.size.get() as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_with_zeros_behind_them() {
        let content = Content::copy_of(&[7; 5000]).unwrap();
        assert_eq!((content.bytes(), content.size().pages()), (5000, 2));
        let mut out = [1; 8];
        content.read(4996, &mut out).unwrap();
        assert_eq!(out, [7, 7, 7, 7, 0, 0, 0, 0]);
        content.invalidate(0, 2).unwrap();
        assert_eq!(content.page(0).unwrap(), [7; 4096]);
        assert!(content.is_unchanged().unwrap());
        assert!(content.invalidate(1, 2).is_err() && content.invalidate(u64::MAX, 2).is_err());
    }

    #[test]
    fn what_is_no_file_with_content_is_refused() {
        assert_eq!(Content::copy_of(&[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        for path in ["/", "/dev/null", "/dev/zero"] {
            assert_eq!(Content::open(Path::new(path)).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        assert_eq!(Content::open(Path::new("/nonexistent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
