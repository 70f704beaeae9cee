//! Content that the host lends: pages in the guest's address space that lie in no memory of its own.
//!
//! They have frames behind the end of guest memory, where the hypervisor has them read-only. Whoever may write to one gets a copy at
//! the first write: a page of guest memory in its place. So content never changes, costs a guest no memory until it writes, and what was
//! written is a page like any other for snapshots.

use std::io;
use std::sync::Arc;

use coracle_abi::PAGE_BYTES;

use super::{Area, FIRST_BATCH, Fault, Promise, Space, SpaceError};
use crate::content::Content;
use crate::error::Error;
use crate::paging::{Entry, Frame, Level};
use crate::rights::Rights;
use crate::span::Span;

/// Contents that a guest may have at once.
pub const CONTENTS_MAX: usize = 64;

/// Frames between guest memory and the first content, and between contents: so that nothing reaches from one to the other.
const GAP: u64 = 512;

/// A content that the hypervisor has.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    pub(crate) first: Frame,
    pub(crate) content: Arc<Content>,
}

impl Lent {
    fn end(&self) -> u64 {
        u64::from(self.first.0) + self.content.size().pages()
    }

    fn same(&self, other: &Self) -> bool {
        self.first == other.first && Arc::ptr_eq(&self.content, &other.content)
    }
}

impl Space {
    /// Maps `content` at `span`, which has as many pages and in which nothing is mapped: read-only, or with private copies of the pages
    /// that the guest writes. Like a sealed area, the guest cannot unmap it.
    ///
    /// # Errors
    /// [`SpaceError::Overlap`] when something is there; at a limit; and the hypervisor's. Nothing is changed then.
    pub fn map_content(&mut self, span: Span, content: &Arc<Content>, copy_on_write: bool) -> Result<(), SpaceError> {
        if self.is_mapped(span) || span.pages() != content.size().pages() {
            return Err(SpaceError::Overlap);
        }
        self.check_area_count(span, 1)?;
        let first = self.place_for(content.size().pages())?;
        self.lend(Lent { first, content: Arc::clone(content) })?;
        self.version = None;
        let rights = if copy_on_write { Rights::RW } else { Rights::R };
        let area = Area {
            end: span.end(),
            rights,
            downwards: false,
            promise: Promise::Uncommitted,
            sealed: true,
            batch: FIRST_BATCH,
            lent: Some(first),
        };
        self.insert(span.start(), area)
    }

    /// Takes content back that was mapped at `start`, with the copies of its pages: the guest's next access faults.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] when no content starts there; nothing is changed then. And the hypervisor's.
    pub fn unmap_content(&mut self, start: u64) -> Result<(), SpaceError> {
        let area = self.areas.get(&start).copied().ok_or(SpaceError::NotMapped)?;
        let first = area.lent.ok_or(SpaceError::NotMapped)?;
        self.version = None;
        let span = Span::new(start, area.end - start).ok_or(SpaceError::NotMapped)?;
        self.remove(span)?;
        let index = self.lent.iter().position(|lent| lent.as_ref().is_some_and(|lent| lent.first == first));
        index.map_or(Ok(()), |index| self.take_back(index)).map_err(Into::into)
    }

    /// Whether the page lies in content, not in guest memory.
    pub(super) fn is_lent(&self, frame: Frame) -> bool {
        frame.address() >= self.memory.bytes()
    }

    /// Gives the guest a page of its own in place of one of content that it may write.
    pub(super) fn copy_on_write(&mut self, page: u64, lent: Frame, rights: Rights) -> Result<Fault, SpaceError> {
        if self.spare() == 0 {
            return Ok(Fault::OutOfMemory);
        }
        let bytes = self.memory.content_page(lent).map_err(SpaceError::Content)?;
        self.version = None;
        let frame = self.allocate()?;
        self.loose += 1;
        self.memory.write(frame.address(), &bytes)?;
        self.set_entry(page, Entry::new(frame, rights, Level::User))?;
        // It may have been read where it was, and would be again.
        self.memory.invalidate(lent.address()..lent.address() + PAGE_BYTES)?;
        Ok(Fault::Resolved)
    }

    /// Where a content of so many pages has room behind guest memory.
    fn place_for(&self, pages: u64) -> Result<Frame, SpaceError> {
        let mut taken: Vec<(u64, u64)> =
            self.lent.iter().flatten().map(|lent| (u64::from(lent.first.0), lent.end())).collect();
        taken.sort_unstable();
        let mut at = (self.memory.bytes() / PAGE_BYTES).next_multiple_of(GAP) + GAP;
        for (first, end) in taken {
            if at + pages + GAP <= first {
                break;
            }
            at = end.next_multiple_of(GAP) + GAP;
        }
        let last = at.checked_add(pages).filter(|end| *end <= u64::from(u32::MAX));
        last.map(|_| Frame(at as u32)).ok_or(SpaceError::NoMemory)
    }

    /// Has the hypervisor map it.
    fn lend(&mut self, lent: Lent) -> Result<(), SpaceError> {
        let index = match self.lent.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.lent.len() < CONTENTS_MAX => {
                self.lent.push(None);
                self.lent.len() - 1
            }
            None => return Err(SpaceError::TooManyAreas),
        };
        self.vm.lend(index as u32, lent.first.address(), &lent.content)?;
        self.memory.set_contents(index, Some((lent.first, Arc::clone(&lent.content))));
        self.lent[index] = Some(lent);
        Ok(())
    }

    fn take_back(&mut self, index: usize) -> Result<(), Error> {
        if let Some(lent) = &self.lent[index] {
            // Kept if the hypervisor fails: it may still have it then.
            self.vm.take_back(index as u32, lent.first.address())?;
            self.memory.set_contents(index, None);
            self.lent[index] = None;
        }
        Ok(())
    }

    /// Takes all contents back, whatever is mapped where.
    pub(super) fn take_all_back(&mut self) -> Result<(), Error> {
        (0..self.lent.len()).try_for_each(|index| self.take_back(index))
    }

    /// Has exactly these contents from here on. Page tables are those that go with them, and no cache has others.
    ///
    /// # Errors
    /// For a file that was changed since it was opened, and the hypervisor's.
    pub(super) fn exchange_contents(&mut self, wanted: &[Lent]) -> Result<(), SpaceError> {
        for index in 0..self.lent.len() {
            let keeps = self.lent[index].as_ref().is_some_and(|has| wanted.iter().any(|lent| lent.same(has)));
            if !keeps {
                self.take_back(index)?;
            }
        }
        for lent in wanted {
            if !self.lent.iter().flatten().any(|has| has.same(lent)) {
                if !lent.content.is_unchanged().map_err(SpaceError::Content)? {
                    let message = "a file that the snapshot maps was changed since";
                    return Err(SpaceError::Content(io::Error::new(io::ErrorKind::InvalidData, message)));
                }
                self.lend(lent.clone())?;
            }
        }
        Ok(())
    }
}
