//! Pages that are in a file until somebody asks for them.
//!
//! What was read once stays: a page that was handed out is the same one for ever, whatever becomes of the file. What could
//! not be read is tried again the next time.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::digest::Digest;
use crate::interned::{Page, intern};
use crate::runs::Runs;
use crate::{Error, PAGE_BYTES, PageBytes};

/// Where the pages of an image, or of one layer, can be read.
pub(crate) trait Source: Send + Sync {
    /// Reads one page: its number, and its rank among those of the image or layer. It has a byte that is not zero, or that is
    /// an error.
    fn read(&self, number: u32, rank: u32, out: &mut PageBytes) -> Result<(), Error>;
}

type Cell = OnceLock<Arc<Page>>;

const GROUP: usize = 64; // Cells that are made at once: a page here and there costs a KiB, not a table of all.

/// A base image: which pages it has, and the file with them.
pub(crate) struct Image {
    numbers: Runs,
    source: Arc<dyn Source>,
    groups: Box<[OnceLock<Box<[Cell; GROUP]>>]>,
}

impl Image {
    pub(crate) fn new(numbers: Runs, source: Arc<dyn Source>) -> Self {
        let groups = (numbers.pages() as usize).div_ceil(GROUP);
        Self { numbers, source, groups: std::iter::repeat_with(OnceLock::new).take(groups).collect() }
    }

    pub(crate) fn numbers(&self) -> &Runs {
        &self.numbers
    }

    pub(crate) fn has(&self, number: u32) -> bool {
        self.numbers.rank(number).is_some()
    }

    fn cell(&self, rank: u32) -> &Cell {
        let group = self.groups[rank as usize / GROUP].get_or_init(|| Box::new([const { OnceLock::new() }; GROUP]));
        &group[rank as usize % GROUP]
    }

    /// A page, `None` if it is zero.
    pub(crate) fn page(&self, number: u32) -> Result<Option<&Arc<Page>>, Error> {
        let Some(rank) = self.numbers.rank(number) else { return Ok(None) };
        fill(self.cell(rank), |out| self.source.read(number, rank, out)).map(Some)
    }

    /// A page that was asked for before.
    pub(crate) fn known(&self, number: u32) -> Option<&Arc<Page>> {
        let rank = self.numbers.rank(number)?;
        self.groups[rank as usize / GROUP].get()?[rank as usize % GROUP].get()
    }

    /// A copy of a page that it has, without keeping it.
    pub(crate) fn copy(&self, number: u32, out: &mut PageBytes) -> Result<(), Error> {
        let Some(rank) = self.numbers.rank(number) else {
            out.fill(0);
            return Ok(());
        };
        if let Some(page) = self.known(number) {
            *out = *page.bytes();
            return Ok(());
        }
        self.source.read(number, rank, out)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("pages", &self.numbers.pages()).finish_non_exhaustive()
    }
}

/// One page of a layer.
pub(crate) struct LazyPage {
    number: u32,
    rank: u32,
    digest: Option<Digest>, // Only if the source compares what it reads with it.
    source: Arc<dyn Source>,
    cell: Cell,
}

impl LazyPage {
    pub(crate) fn new(number: u32, rank: u32, digest: Option<Digest>, source: Arc<dyn Source>) -> Self {
        Self { number, rank, digest, source, cell: Cell::new() }
    }

    pub(crate) fn page(&self) -> Result<&Arc<Page>, Error> {
        fill(&self.cell, |out| self.source.read(self.number, self.rank, out))
    }

    pub(crate) fn known(&self) -> Option<&Arc<Page>> {
        self.cell.get()
    }

    pub(crate) fn copy(&self, out: &mut PageBytes) -> Result<(), Error> {
        match self.known() {
            Some(page) => *out = *page.bytes(),
            None => self.source.read(self.number, self.rank, out)?,
        }
        Ok(())
    }

    /// Whether both surely hold the same, read or not.
    pub(crate) fn same(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.digest.is_some() && self.digest == other.digest)
    }
}

fn fill(cell: &Cell, read: impl FnOnce(&mut PageBytes) -> Result<(), Error>) -> Result<&Arc<Page>, Error> {
    if let Some(page) = cell.get() {
        return Ok(page);
    }
    let mut bytes = [0; PAGE_BYTES];
    read(&mut bytes)?;
    // If another thread was faster, it has the same page, or the file changed: then the first one counts.
    Ok(cell.get_or_init(|| intern(&bytes)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Pages filled with their rank and one. The first read fails.
    struct Counted(Arc<AtomicU32>);

    impl Source for Counted {
        fn read(&self, _: u32, rank: u32, out: &mut PageBytes) -> Result<(), Error> {
            if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
                return Err(Error::damaged("file", "on purpose"));
            }
            out.fill(rank as u8 + 1);
            Ok(())
        }
    }

    #[test]
    fn a_page_is_read_until_it_succeeds_and_then_never_again() {
        let reads = Arc::new(AtomicU32::new(0));
        let image = Image::new(Runs::from_numbers([5, 6, 70_000]), Arc::new(Counted(Arc::clone(&reads))));
        assert!(image.page(6).is_err());
        assert!(image.known(6).is_none());
        for _ in 0..3 {
            assert_eq!(image.page(6).unwrap().unwrap().bytes()[0], 2);
            assert_eq!(image.page(70_000).unwrap().unwrap().bytes()[0], 3);
            assert!(image.page(7).unwrap().is_none());
        }
        assert_eq!(reads.load(Ordering::Relaxed), 3);
        assert!(image.known(6).is_some() && image.known(5).is_none());
    }
}
