//! brk, mmap, munmap, mremap, mprotect, madvise: anonymous memory only.
//!
//! Differences from Linux, all in favour of isolation: no page is ever writable and executable at once (`EACCES`);
//! there are no files to map (`ENODEV`); committed memory is accounted strictly, so that a mapping which succeeded is
//! there when it is touched. Shared anonymous mappings are private ones: there is nobody to share with.

use coracle_abi::{PAGE_BYTES, PageBytes, map as layout};
use coracle_vm::{Fill, Promise, Rights, Space, SpaceError, Span};

use super::{Answer, DONE, Errno, Failure, Outcome};

const PROT_READ: u64 = 1;
const PROT_WRITE: u64 = 2;
const PROT_EXEC: u64 = 4;
const PROT_GROWSDOWN: u64 = 0x0100_0000;
const PROT_GROWSUP: u64 = 0x0200_0000;

const MAP_TYPE: u64 = 0xf;
const MAP_SHARED_VALIDATE: u64 = 3;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_NORESERVE: u64 = 0x4000;
const MAP_POPULATE: u64 = 0x8000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_FIXED: u64 = 2;

const MADV_DONTNEED: u64 = 4;
const MADV_FREE: u64 = 8;
const MADV_REMOVE: u64 = 9;
const MADV_DONTNEED_LOCKED: u64 = 24;

/// Mappings of up to this size get their pages at once: filling in the page table costs less than one page fault.
const AT_ONCE_PAGES: u64 = 64;

/// The program break.
#[derive(Clone, Debug)]
pub(super) struct Heap {
    start: u64,
    limit: u64,
    end: u64,
}

impl Heap {
    pub(super) fn new(start: u64, limit: u64) -> Self {
        Self { start, limit, end: start }
    }

    /// Start, limit, end.
    pub(super) fn parts(&self) -> [u64; 3] {
        [self.start, self.limit, self.end]
    }

    /// From what [`Heap::parts`] said.
    pub(super) fn from_parts([start, limit, end]: [u64; 3]) -> Self {
        Self { start, limit, end }
    }

    /// `brk`: answers the break that holds afterwards, which is the old one when the wish cannot be granted.
    pub(super) fn set_break(&mut self, space: &mut Space, wish: u64) -> Answer {
        if (self.start..=self.limit).contains(&wish) {
            match self.resize(space, wish) {
                Ok(()) => self.end = wish,
                Err(SpaceError::Backend(error)) => return Err(Failure::Host(SpaceError::Backend(error))),
                Err(_) => {}
            }
        }
        Ok(Outcome::Return(self.end as i64))
    }

    fn resize(&self, space: &mut Space, wish: u64) -> Result<(), SpaceError> {
        let (old, new) = (page_up(self.end), page_up(wish));
        if let Some(fresh) = Span::new(old, new.saturating_sub(old)) {
            if space.is_mapped(fresh) {
                return Err(SpaceError::NoMemory);
            }
            space.map(fresh, Rights::RW, fill_for(fresh, false), Promise::Committed)
        } else if let Some(rest) = Span::new(new, old.saturating_sub(new)) {
            space.unmap(rest)
        } else {
            Ok(())
        }
    }
}

pub(super) fn map(space: &mut Space, address: u64, bytes: u64, protection: u64, flags: u64, fd: u64) -> Answer {
    let rights = rights_of(protection)?;
    if flags & MAP_ANONYMOUS == 0 {
        // No descriptor names anything that could be mapped.
        return Err(if fd as i32 >= 0 { Errno::ENODEV } else { Errno::EBADF }.into());
    }
    if bytes == 0 || !(1..=MAP_SHARED_VALIDATE).contains(&(flags & MAP_TYPE)) {
        return Err(Errno::EINVAL.into());
    }
    let span = if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0 {
        let span = span_of(address, bytes)?;
        if flags & MAP_FIXED_NOREPLACE != 0 && space.is_mapped(span) {
            return Err(Errno::EEXIST.into());
        }
        span
    } else {
        let hint = Span::new(address, bytes).filter(|hint| !space.is_mapped(*hint));
        hint.or_else(|| space.find_gap(bytes, layout::MMAP_END)).ok_or(Errno::ENOMEM)?
    };
    let promise = if flags & MAP_NORESERVE != 0 { Promise::Uncommitted } else { Promise::Committed };
    let fill = fill_for(span, flags & MAP_POPULATE != 0);
    space.map(span, rights, fill, promise).map_err(change_failed)?;
    Ok(Outcome::Return(span.start() as i64))
}

pub(super) fn unmap(space: &mut Space, address: u64, bytes: u64) -> Answer {
    if bytes == 0 || !address.is_multiple_of(PAGE_BYTES) {
        return Err(Errno::EINVAL.into());
    }
    let span = Span::new(address, bytes).ok_or(Errno::EINVAL)?;
    space.unmap(span).map_err(change_failed)?;
    DONE
}

pub(super) fn protect(space: &mut Space, address: u64, bytes: u64, protection: u64) -> Answer {
    let rights = rights_of(protection)?;
    if bytes == 0 {
        return DONE;
    }
    space.protect(span_of(address, bytes)?, rights).map_err(change_failed)?;
    DONE
}

pub(super) fn advise(space: &mut Space, address: u64, bytes: u64, advice: u64) -> Answer {
    if !address.is_multiple_of(PAGE_BYTES) {
        return Err(Errno::EINVAL.into());
    }
    match advice {
        MADV_DONTNEED | MADV_FREE | MADV_DONTNEED_LOCKED if bytes != 0 => {
            space.forget(span_of(address, bytes)?).map_err(change_failed)?;
            DONE
        }
        MADV_REMOVE => Err(Errno::EINVAL.into()), // For files.
        0..=25 => DONE,                           // Hints.
        _ => Err(Errno::EINVAL.into()),
    }
}

pub(super) fn remap(space: &mut Space, address: u64, old: u64, new: u64, flags: u64, to: u64) -> Answer {
    let is_fixed = flags & MREMAP_FIXED != 0;
    if flags & !(MREMAP_MAYMOVE | MREMAP_FIXED) != 0 || is_fixed && flags & MREMAP_MAYMOVE == 0 || new == 0 {
        return Err(Errno::EINVAL.into());
    }
    let from = span_of(address, old)?;
    let area = space.area_at(address).ok_or(Errno::EFAULT)?;
    if from.end() > area.span.end() {
        return Err(Errno::EFAULT.into());
    }
    let new = PageBytes::round_up(new).ok_or(Errno::ENOMEM)?.get();
    let grown = new.saturating_sub(from.bytes());
    if !is_fixed {
        if let Some(rest) = Span::new(address.saturating_add(new), from.bytes().saturating_sub(new)) {
            space.unmap(rest).map_err(change_failed)?;
        }
        let tail = Span::new(from.end(), grown);
        if grown == 0 || tail.is_some_and(|tail| !space.is_mapped(tail)) {
            if let Some(tail) = tail {
                space.map(tail, area.rights, fill_for(tail, false), area.promise).map_err(change_failed)?;
            }
            return Ok(Outcome::Return(address as i64));
        }
        if flags & MREMAP_MAYMOVE == 0 {
            return Err(Errno::ENOMEM.into());
        }
    }
    let target = if is_fixed {
        Some(span_of(to, new)?).filter(|target| target.intersection(from).is_none()).ok_or(Errno::EINVAL)?
    } else {
        space.find_gap(new, layout::MMAP_END).ok_or(Errno::ENOMEM)?
    };
    let kept = Span::new(address, from.bytes().min(new)).ok_or(Errno::EINVAL)?;
    space.unmap(target).map_err(change_failed)?;
    if let Some(tail) = Span::new(target.start() + kept.bytes(), grown) {
        space.map(tail, area.rights, fill_for(tail, false), area.promise).map_err(change_failed)?;
    }
    if let Err(error) = space.relocate(kept, target.start()) {
        space.unmap(target).map_err(change_failed)?;
        return Err(change_failed(error));
    }
    if let Some(rest) = Span::new(kept.end(), from.bytes() - kept.bytes()) {
        space.unmap(rest).map_err(change_failed)?;
    }
    Ok(Outcome::Return(target.start() as i64))
}

fn fill_for(span: Span, populate: bool) -> Fill {
    if populate || span.pages() <= AT_ONCE_PAGES { Fill::Now } else { Fill::Up }
}

/// The pages of a guest's range, or the error that Linux answers for a bad one.
fn span_of(address: u64, bytes: u64) -> Result<Span, Errno> {
    if bytes == 0 || !address.is_multiple_of(PAGE_BYTES) {
        return Err(Errno::EINVAL);
    }
    Span::new(address, bytes).ok_or(Errno::ENOMEM)
}

fn rights_of(protection: u64) -> Result<Rights, Errno> {
    if protection & !(PROT_READ | PROT_WRITE | PROT_EXEC | PROT_GROWSDOWN | PROT_GROWSUP) != 0 {
        return Err(Errno::EINVAL);
    }
    let (write, execute) = (protection & PROT_WRITE != 0, protection & PROT_EXEC != 0);
    let rights = Rights { read: protection & PROT_READ != 0 || write || execute, write, execute };
    if rights.is_legal() { Ok(rights) } else { Err(Errno::EACCES) }
}

fn change_failed(error: SpaceError) -> Failure {
    match error {
        SpaceError::Backend(_) => Failure::Host(error),
        SpaceError::Sealed => Errno::EPERM.into(),
        SpaceError::WriteAndExecute => Errno::EACCES.into(),
        _ => Errno::ENOMEM.into(),
    }
}

/// Rounds up to a page. Breaks lie far below the end of the address space.
fn page_up(address: u64) -> u64 {
    PageBytes::round_up(address).map_or(u64::MAX, PageBytes::get)
}
