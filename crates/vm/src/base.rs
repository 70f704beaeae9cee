//! A snapshot's pages as a file in memory, which any number of sandboxes map privately: a page that none of them writes
//! exists once.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use coracle_abi::PAGE_BYTES;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::paging::Frame;
use crate::space::PageContent;

/// The file. One that was made here is sealed: nobody can change it any more, so that its mappings stay what they are.
#[derive(Debug)]
pub struct Base {
    file: File,
    bytes: u64,
}

impl Base {
    /// Writes the pages in `pages`, ascending, whose content `content` gives; all others are holes, which read as zeros.
    ///
    /// # Errors
    /// The kernel's, and those of `content`.
    pub fn new<'c>(
        pages: &[u32],
        mut content: impl FnMut(Frame) -> io::Result<Option<&'c PageContent>>,
    ) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("coracle-base", flags)?);
        let bytes = pages.last().map_or(0, |last| Frame(*last).address() + PAGE_BYTES);
        file.set_len(bytes)?;
        for page in pages.iter().map(|page| Frame(*page)) {
            if let Some(content) = content(page)? {
                file.write_all_at(content, page.address())?;
            }
        }
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self { file, bytes })
    }

    /// A file that has the pages of a snapshot already, each at its place. `bytes` is a whole number of pages.
    ///
    /// Nothing keeps others from changing it: then sandboxes that map it see the change in pages that they did not write, and where it gets
    /// shorter the process is killed by a signal. So nobody may who is not trusted as the host process itself is.
    ///
    /// # Errors
    /// For a file that is shorter, and the kernel's.
    pub fn from_file(file: File, bytes: u64) -> io::Result<Self> {
        if !bytes.is_multiple_of(PAGE_BYTES) || file.metadata()?.len() < bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has not the pages that it should have"));
        }
        Ok(Self { file, bytes })
    }

    /// Its size: a whole number of pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl AsFd for Base {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_pages_and_holes_and_is_sealed() {
        let content = [7; PAGE_BYTES as usize];
        let base = Base::new(&[1, 3], |_| Ok(Some(&content))).unwrap();
        assert_eq!(base.bytes(), 4 * PAGE_BYTES);
        let mut byte = [1];
        for (page, want) in [(0, 0), (1, 7), (2, 0), (3, 7)] {
            base.file.read_exact_at(&mut byte, page * PAGE_BYTES).unwrap();
            assert_eq!(byte, [want], "page {page}");
        }
        assert!(base.file.write_all_at(&[1], 0).is_err());
        assert!(base.file.set_len(0).is_err());
    }

    #[test]
    fn of_no_pages_it_is_empty() {
        assert_eq!(Base::new(&[], |_| Ok(None)).unwrap().bytes(), 0);
    }
}
