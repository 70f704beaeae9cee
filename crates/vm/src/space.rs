//! The guest's address space: which pages it has, with which rights, in which frames.
//!
//! Invariants:
//! - every leaf entry in the page tables that owns a frame lies in an area or in the control pages, and no two own the
//!   same frame;
//! - a page is never writable and executable at once;
//! - rights that were taken away are gone when the call returns, also for what the vCPU had cached;
//! - pages that a guest committed never fail to appear for want of memory.
//!
//! Frames are given when a page is first touched (or at once where that is cheap), host memory when a frame is first
//! used, and hypervisor memory when the frames need it: nothing here costs what the limit allows, only what is used.

use std::collections::BTreeMap;
use std::fmt;

use coracle_abi::{PAGE_BYTES, PageBytes, VirtualAddress, map};

use crate::backend::{ControlPage, Vm};
use crate::error::Error;
use crate::frames::{Frames, runs};
use crate::memory::{GuestMemory, OutOfRange};
use crate::paging::{self, Entry, Frame, Level};
use crate::rights::Rights;
use crate::span::Span;

/// Areas a guest may have, as Linux's `vm.max_map_count`.
pub const AREAS_MAX: usize = 65_530;

/// Guest-physical memory that a new VM gets; doubled as often as the guest needs more.
const FIRST_COVER: u64 = 2 << 20;

/// Pages given at once when a lazy area is touched for the first time; doubled at each further touch.
const FIRST_BATCH: u64 = 16;
const LAST_BATCH: u64 = 512;

/// When an area gets its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// All at once.
    Now,
    /// When touched, from the touched page upwards.
    Up,
    /// When touched, from the touched page downwards: stacks.
    Down,
}

/// Where a new area stands in the accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Its pages are set aside: touching them cannot fail.
    Committed,
    /// Touching a page may find no memory left. For reservations far above the limit.
    Uncommitted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    end: u64,
    rights: Rights,
    fill: Fill,
    promise: Promise,
    sealed: bool,
    batch: u64,
}

impl Area {
    /// Whether two neighbours can be one area.
    fn joins(&self, other: &Self) -> bool {
        (self.rights, self.fill, self.promise, self.sealed) == (other.rights, other.fill, other.promise, other.sealed)
    }
}

/// Why the address space could not be changed, or a copy not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum SpaceError {
    /// The limit of guest memory is reached.
    NoMemory,
    /// The guest has [`AREAS_MAX`] areas.
    TooManyAreas,
    /// A page in the range is not mapped.
    NotMapped,
    /// The host made this area, and the guest may not change it.
    Sealed,
    /// Writable and executable at once.
    WriteAndExecute,
    /// The hypervisor refused. The address space is in an unknown state.
    Backend(Error),
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMemory => "the sandbox's memory limit is reached",
            Self::TooManyAreas => "the guest has too many separate mappings",
            Self::NotMapped => "a page in the range is not mapped",
            Self::Sealed => "the host made this mapping; the guest may not change it",
            Self::WriteAndExecute => "pages may be writable or executable, not both",
            Self::Backend(_) => "the hypervisor refused to change the guest's memory",
        })
    }
}

impl std::error::Error for SpaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Backend(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for SpaceError {
    fn from(error: Error) -> Self {
        Self::Backend(error)
    }
}

impl From<OutOfRange> for SpaceError {
    fn from(error: OutOfRange) -> Self {
        Self::Backend(error.into())
    }
}

impl From<std::io::Error> for SpaceError {
    fn from(error: std::io::Error) -> Self {
        Self::Backend(Error::refused("changing a mapping of guest memory", error))
    }
}

/// How a guest used an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

impl Access {
    /// From a page fault's error code (Intel SDM volume 3, 4.7).
    pub const fn from_error_code(code: u64) -> Self {
        if code & 1 << 4 != 0 {
            Self::Execute
        } else if code & 1 << 1 != 0 {
            Self::Write
        } else {
            Self::Read
        }
    }

    /// The rights that it takes.
    pub const fn rights(self) -> Rights {
        match self {
            Self::Read => Rights::R,
            Self::Write => Rights::RW,
            Self::Execute => Rights::RX,
        }
    }
}

/// What became of a page fault.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page is there now, or was already: try again.
    Resolved,
    /// The guest may not do that.
    Denied,
    /// It may, but there is no memory left.
    OutOfMemory,
}

/// What a guest has, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaInfo {
    /// Where.
    pub span: Span,
    /// With which rights.
    pub rights: Rights,
}

/// A guest's address space and the memory behind it.
pub struct Space {
    memory: GuestMemory,
    vm: Box<dyn Vm>,
    frames: Frames,
    root: Frame,
    tables: u64,    // Frames used for page tables and control pages.
    committed: u64, // Pages promised to committed areas.
    areas: BTreeMap<u64, Area>,
    covered: u64, // Invariant: `vm` covers guest-physical memory up to here.
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("areas", &self.areas).finish_non_exhaustive()
    }
}

impl Space {
    /// The root page table.
    pub const ROOT: Frame = Frame(0);

    /// The frame of the page at [`map::EXCEPTION_STACK`].
    pub const EXCEPTION_STACK: Frame = Frame(1);

    /// An address space over `memory` with nothing but the backend's control pages.
    ///
    /// # Errors
    /// When the memory does not suffice for them, and the hypervisor's.
    pub fn new(memory: GuestMemory, vm: Box<dyn Vm>, control: &[ControlPage]) -> Result<Self, SpaceError> {
        let limit = u32::try_from(memory.bytes() / PAGE_BYTES).unwrap_or(u32::MAX);
        let frames = Frames::new(limit);
        let areas = BTreeMap::new();
        let mut space = Self { memory, vm, frames, root: Self::ROOT, tables: 2, committed: 0, areas, covered: 0 };
        let (root, exception_stack) = (space.allocate()?, space.allocate()?);
        debug_assert_eq!((root, exception_stack), (Self::ROOT, Self::EXCEPTION_STACK));
        for page in control {
            space.map_control(page)?;
        }
        Ok(space)
    }

    /// Puts a host-made page at one of the addresses that the ABI reserves.
    ///
    /// # Errors
    /// At the memory limit, and the hypervisor's.
    pub fn map_control(&mut self, page: &ControlPage) -> Result<(), SpaceError> {
        let frame = if page.address == map::EXCEPTION_STACK {
            Self::EXCEPTION_STACK
        } else {
            self.tables += 1;
            self.allocate()?
        };
        self.memory.write(frame.address(), &page.content)?;
        self.set_entry(page.address, Entry::new(frame, page.rights, page.level))
    }

    /// Rewrites the content of a control page, without a change of rights.
    ///
    /// # Errors
    /// When nothing is mapped there.
    pub fn write_control(&mut self, address: u64, content: &[u8]) -> Result<(), SpaceError> {
        let at = paging::find_entry(&self.memory, self.root, VirtualAddress(address))?.ok_or(SpaceError::NotMapped)?;
        let frame = Entry(self.memory.read_u64(at)?).frame().ok_or(SpaceError::NotMapped)?;
        Ok(self.memory.write(frame.address(), content)?)
    }

    /// Maps zeros at `span`, in place of what was there.
    ///
    /// # Errors
    /// At a limit, or for a sealed area in the way; nothing is changed then, except that `span` may be left unmapped
    /// when page tables used up the last memory. After [`SpaceError::Backend`] the state is unknown.
    pub fn map(&mut self, span: Span, rights: Rights, fill: Fill, promise: Promise) -> Result<(), SpaceError> {
        self.map_area(span, rights, fill, promise, false)
    }

    /// Like [`Space::map`], for the host's own areas: the guest can never unmap, replace or re-protect them.
    ///
    /// # Errors
    /// As [`Space::map`].
    pub fn map_sealed(&mut self, span: Span, rights: Rights, fill: Fill) -> Result<(), SpaceError> {
        self.map_area(span, rights, fill, Promise::Committed, true)
    }

    fn map_area(
        &mut self,
        span: Span,
        rights: Rights,
        fill: Fill,
        promise: Promise,
        sealed: bool,
    ) -> Result<(), SpaceError> {
        if !rights.is_legal() {
            return Err(SpaceError::WriteAndExecute);
        }
        self.check_unsealed(span)?;
        self.check_area_count()?;
        let promise = if rights.is_none() { Promise::Uncommitted } else { promise };
        if promise == Promise::Committed {
            self.check_room(span.pages())?;
        }
        self.remove(span)?;
        if promise == Promise::Committed {
            self.committed += span.pages();
        }
        let area = Area { end: span.end(), rights, fill, promise, sealed, batch: FIRST_BATCH };
        self.areas.insert(span.start(), area);
        if fill == Fill::Now
            && let Err(error) = self.fill(span, rights)
        {
            self.remove(span)?;
            return Err(error);
        }
        self.join_around(span);
        Ok(())
    }

    /// Removes all pages of `span`, mapped or not.
    ///
    /// # Errors
    /// As [`Space::map`].
    pub fn unmap(&mut self, span: Span) -> Result<(), SpaceError> {
        self.check_unsealed(span)?;
        self.check_area_count()?;
        self.remove(span)
    }

    /// Changes the rights of all pages of `span`; they keep their content.
    ///
    /// # Errors
    /// When a page is not mapped, and as [`Space::map`]; nothing is changed then.
    pub fn protect(&mut self, span: Span, rights: Rights) -> Result<(), SpaceError> {
        if !rights.is_legal() {
            return Err(SpaceError::WriteAndExecute);
        }
        self.check_unsealed(span)?;
        self.check_area_count()?;
        let mut fresh = 0; // Pages that are promised only now.
        let mut reached = span.start();
        for (part, area) in self.overlapping(span) {
            if part.start() != reached {
                return Err(SpaceError::NotMapped);
            }
            reached = part.end();
            if area.rights.is_none() && area.promise == Promise::Uncommitted && !rights.is_none() {
                fresh += part.pages();
            }
        }
        if reached != span.end() {
            return Err(SpaceError::NotMapped);
        }
        self.check_room(fresh)?;
        self.committed += fresh;
        self.split_at(span.start());
        self.split_at(span.end());
        for area in self.areas.range_mut(span.start()..span.end()).map(|(_, area)| area) {
            if area.rights.is_none() && !rights.is_none() {
                area.promise = Promise::Committed;
            }
            area.rights = rights;
        }
        let mut shrunk = Vec::new();
        self.for_each_entry(span, |_, entry| {
            let frame = entry.frame()?;
            if !entry.user_rights().within(rights) {
                shrunk.push(frame);
            }
            Some(Entry::new(frame, rights, Level::User))
        })?;
        for run in runs(&mut shrunk) {
            self.memory.invalidate(run)?;
        }
        self.join_around(span);
        Ok(())
    }

    /// Moves the pages of `from` to `to` (of the same size, not overlapping, unmapped before), content and all.
    /// `from` is unmapped afterwards.
    ///
    /// # Errors
    /// When `from` is not one area, or as [`Space::map`]; nothing is changed then.
    pub fn relocate(&mut self, from: Span, to: u64) -> Result<(), SpaceError> {
        let to = Span::new(to, from.bytes()).ok_or(SpaceError::NotMapped)?;
        self.check_unsealed(from)?;
        self.check_unsealed(to)?;
        self.check_area_count()?;
        let area = match self.overlapping(from).next() {
            Some((part, area)) if part == from => area,
            _ => return Err(SpaceError::NotMapped),
        };
        let mut pages = Vec::new();
        self.for_each_entry(from, |place, entry| {
            pages.extend(entry.frame().map(|frame| (place, frame)));
            None
        })?;
        let places = pages.iter().map(|(place, _)| place - from.start() + to.start());
        // The new tables first: when there is no memory for them, every page is still where it was.
        for place in places.clone() {
            self.make_entry(place)?;
        }
        self.remove(to)?;
        for (place, (_, frame)) in places.zip(&pages) {
            self.set_entry(place, Entry::new(*frame, area.rights, Level::User))?;
        }
        self.for_each_entry(from, |_, _| Some(Entry::EMPTY))?;
        let mut moved: Vec<Frame> = pages.iter().map(|(_, frame)| *frame).collect();
        for run in runs(&mut moved) {
            self.memory.invalidate(run)?;
        }
        self.split_at(from.start());
        self.split_at(from.end());
        self.areas.remove(&from.start());
        self.areas.insert(to.start(), Area { end: to.end(), ..area });
        self.join_around(to);
        Ok(())
    }

    /// Forgets the content of the pages of `span` that are mapped: they read as zeros.
    ///
    /// # Errors
    /// When a page is not mapped, or sealed; and the hypervisor's.
    pub fn forget(&mut self, span: Span) -> Result<(), SpaceError> {
        self.check_unsealed(span)?;
        if self.overlapping(span).map(|(part, _)| part.bytes()).sum::<u64>() != span.bytes() {
            return Err(SpaceError::NotMapped);
        }
        self.release(span)
    }

    /// The highest free place for `bytes` bytes below `below`, or `None`.
    pub fn find_gap(&self, bytes: u64, below: u64) -> Option<Span> {
        let size = PageBytes::round_up(bytes)?.get();
        let mut top = below;
        for (start, area) in self.areas.range(..below).rev() {
            if area.end <= top && top - area.end >= size {
                break;
            }
            top = top.min(*start);
        }
        Span::new(top.checked_sub(size)?, size)
    }

    /// Whether any page of `span` is mapped.
    pub fn is_mapped(&self, span: Span) -> bool {
        self.overlapping(span).next().is_some()
    }

    /// The area that holds `address`.
    pub fn area_at(&self, address: u64) -> Option<AreaInfo> {
        let (start, area) = self.areas.range(..=address).next_back()?;
        let span = Span::new(*start, area.end - start)?;
        span.contains(address).then_some(AreaInfo { span, rights: area.rights })
    }

    /// All areas, by address.
    pub fn areas(&self) -> impl Iterator<Item = AreaInfo> {
        self.areas.iter().filter_map(|(start, area)| {
            Some(AreaInfo { span: Span::new(*start, area.end - start)?, rights: area.rights })
        })
    }

    /// Answers a page fault at `address`.
    ///
    /// # Errors
    /// The hypervisor's.
    pub fn fault(&mut self, address: u64, access: Access) -> Result<Fault, SpaceError> {
        let page = VirtualAddress(address).page_start().0;
        let Some((start, area)) = self.areas.range(..=page).next_back().map(|(start, area)| (*start, *area)) else {
            return Ok(Fault::Denied);
        };
        if page >= area.end || !access.rights().within(area.rights) {
            return Ok(Fault::Denied);
        }
        if self.entry(page)?.frame().is_some() {
            return Ok(Fault::Resolved); // The vCPU had cached older, smaller rights; the fault flushed them.
        }
        let reach = area.batch * PAGE_BYTES;
        let (from, to) = match area.fill {
            Fill::Down => ((page + PAGE_BYTES).saturating_sub(reach).max(start), page + PAGE_BYTES),
            Fill::Now | Fill::Up => (page, area.end.min(page.saturating_add(reach))),
        };
        if let Some(area) = self.areas.get_mut(&start) {
            area.batch = (area.batch * 2).min(LAST_BATCH);
        }
        let spans = [Span::new(from, to - from), Span::new(page, PAGE_BYTES)];
        for span in spans.into_iter().flatten() {
            match self.fill(span, area.rights) {
                Ok(()) => return Ok(Fault::Resolved),
                Err(SpaceError::NoMemory) => {} // Then the touched page alone.
                Err(error) => return Err(error),
            }
        }
        Ok(Fault::OutOfMemory)
    }

    /// Copies from the guest as the guest itself could: every byte must be readable to it.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] when a byte is not; `out` is in an unspecified state then.
    pub fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), SpaceError> {
        let mut done = 0;
        self.for_each_piece(address, out.len(), Access::Read, |memory, at, bytes| {
            let result = memory.read(at, &mut out[done..done + bytes]);
            done += bytes;
            result
        })
    }

    /// Copies to the guest as the guest itself could: every byte must be writable to it.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] when a byte is not; the bytes before it are written then.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), SpaceError> {
        let mut done = 0;
        self.for_each_piece(address, bytes.len(), Access::Write, |memory, at, piece| {
            let result = memory.write(at, &bytes[done..done + piece]);
            done += piece;
            result
        })
    }

    /// Copies to mapped pages of the guest whatever their rights: for images and host-made areas.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] when a page is not mapped.
    pub fn load(&mut self, address: u64, bytes: &[u8]) -> Result<(), SpaceError> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address.checked_add(done as u64).ok_or(SpaceError::NotMapped)?;
            let piece = (PAGE_BYTES - at % PAGE_BYTES).min((bytes.len() - done) as u64) as usize;
            let frame = self.entry(VirtualAddress(at).page_start().0)?.frame().ok_or(SpaceError::NotMapped)?;
            self.memory.write(frame.address() + at % PAGE_BYTES, &bytes[done..done + piece])?;
            done += piece;
        }
        Ok(())
    }

    /// Where the pages of `span` lie in guest-physical memory, if they all have frames and these follow each other.
    pub fn contiguous(&self, span: Span) -> Option<u64> {
        let first = self.entry(span.start()).ok()?.frame()?;
        (0..span.pages())
            .all(|page| {
                let entry = self.entry(span.start() + page * PAGE_BYTES).unwrap_or(Entry::EMPTY);
                entry.frame().is_some_and(|frame| u64::from(frame.0) == u64::from(first.0) + page)
            })
            .then(|| first.address())
    }

    /// The memory behind the address space.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The memory behind the address space, to change it.
    pub fn memory_mut(&mut self) -> &mut GuestMemory {
        &mut self.memory
    }

    /// The virtual machine.
    pub fn vm_mut(&mut self) -> &mut dyn Vm {
        &mut *self.vm
    }

    /// The virtual machine.
    pub fn vm(&self) -> &dyn Vm {
        &*self.vm
    }

    /// Frames in use: pages, page tables, control pages.
    pub fn frames_in_use(&self) -> u64 {
        self.frames.in_use()
    }

    /// Pages that a committed mapping could still have.
    pub fn free_pages(&self) -> u64 {
        let room = self.frames.limit().saturating_sub(self.tables + self.committed);
        room.saturating_sub(6 + room / 512) // Page tables for them.
    }

    fn check_room(&self, pages: u64) -> Result<(), SpaceError> {
        if pages == 0 || pages <= self.free_pages() { Ok(()) } else { Err(SpaceError::NoMemory) }
    }

    fn check_area_count(&self) -> Result<(), SpaceError> {
        // One operation adds at most two areas.
        if self.areas.len() + 2 <= AREAS_MAX { Ok(()) } else { Err(SpaceError::TooManyAreas) }
    }

    fn check_unsealed(&self, span: Span) -> Result<(), SpaceError> {
        if self.overlapping(span).any(|(_, area)| area.sealed) { Err(SpaceError::Sealed) } else { Ok(()) }
    }

    /// The parts of areas that lie in `span`, by address.
    fn overlapping(&self, span: Span) -> impl Iterator<Item = (Span, Area)> {
        let before = self.areas.range(..span.start()).next_back().filter(|(_, area)| area.end > span.start());
        before
            .into_iter()
            .chain(self.areas.range(span.start()..span.end()))
            .filter_map(move |(start, area)| Some((span.clip(*start, area.end)?, *area)))
    }

    /// Makes `address` a border between areas.
    fn split_at(&mut self, address: u64) {
        let Some(area) = self.areas.range_mut(..address).next_back().map(|(_, area)| area) else { return };
        if area.end > address {
            let rest = *area;
            area.end = address;
            self.areas.insert(address, rest);
        }
    }

    /// Joins equal neighbours at the borders of `span`, so that the number of areas follows what the guest has, not
    /// how it got there.
    fn join_around(&mut self, span: Span) {
        for border in [span.end(), span.start()] {
            let Some(right) = self.areas.get(&border).copied() else { continue };
            let Some(left) = self.areas.range_mut(..border).next_back().map(|(_, area)| area) else { continue };
            if left.end == border && left.joins(&right) {
                left.end = right.end;
                left.batch = left.batch.max(right.batch);
                self.areas.remove(&border);
            }
        }
    }

    fn remove(&mut self, span: Span) -> Result<(), SpaceError> {
        if !self.is_mapped(span) {
            return Ok(());
        }
        self.release(span)?;
        self.split_at(span.start());
        self.split_at(span.end());
        let starts: Vec<u64> = self.areas.range(span.start()..span.end()).map(|(start, _)| *start).collect();
        for start in starts {
            if let Some(area) = self.areas.remove(&start)
                && area.promise == Promise::Committed
            {
                self.committed -= (area.end - start) / PAGE_BYTES;
            }
        }
        Ok(())
    }

    /// Takes the frames of `span` back; the areas stay.
    fn release(&mut self, span: Span) -> Result<(), SpaceError> {
        let mut freed = Vec::new();
        self.for_each_entry(span, |_, entry| {
            freed.push(entry.frame()?);
            Some(Entry::EMPTY)
        })?;
        for run in runs(&mut freed) {
            self.memory.discard(run)?;
        }
        self.frames.free(freed.into_iter());
        Ok(())
    }

    /// Gives a frame to each page of `span` that has none.
    fn fill(&mut self, span: Span, rights: Rights) -> Result<(), SpaceError> {
        let mut place = None;
        let mut at = span.start();
        while at < span.end() {
            let entry_at = match place {
                Some(place) => place,
                None => self.make_entry(at)?,
            };
            if Entry(self.memory.read_u64(entry_at)?).frame().is_none() {
                let frame = self.allocate()?;
                self.memory.write_u64(entry_at, Entry::new(frame, rights, Level::User).0)?;
            }
            place = paging::next_is_in_same_table(VirtualAddress(at)).then_some(entry_at + 8);
            at += PAGE_BYTES;
        }
        Ok(())
    }

    /// Shows each page of `span` whose table exists, with its leaf entry; `change` may answer with another.
    fn for_each_entry(
        &mut self,
        span: Span,
        mut change: impl FnMut(u64, Entry) -> Option<Entry>,
    ) -> Result<(), SpaceError> {
        let mut at = span.start();
        while at < span.end() {
            let Some(mut place) = paging::find_entry(&self.memory, self.root, VirtualAddress(at))? else {
                at = next_table(at);
                continue;
            };
            let end = next_table(at).min(span.end());
            while at < end {
                if let Some(entry) = change(at, Entry(self.memory.read_u64(place)?)) {
                    self.memory.write_u64(place, entry.0)?;
                }
                place += 8;
                at += PAGE_BYTES;
            }
        }
        Ok(())
    }

    /// Splits a guest range at page borders and shows each piece's place in guest-physical memory.
    fn for_each_piece(
        &mut self,
        address: u64,
        bytes: usize,
        access: Access,
        mut piece: impl FnMut(&mut GuestMemory, u64, usize) -> Result<(), OutOfRange>,
    ) -> Result<(), SpaceError> {
        let mut done = 0;
        while done < bytes {
            let at = address.checked_add(done as u64).ok_or(SpaceError::NotMapped)?;
            let entry = self.accessible(at, access)?;
            let offset = at % PAGE_BYTES;
            let size = (PAGE_BYTES - offset).min((bytes - done) as u64) as usize;
            piece(&mut self.memory, entry.address() + offset, size)?;
            done += size;
        }
        Ok(())
    }

    /// The frame behind `address` if the guest may access it so; given now if the guest has not touched it yet.
    fn accessible(&mut self, address: u64, access: Access) -> Result<Frame, SpaceError> {
        let page = VirtualAddress(address).page_start().0;
        for _ in 0..2 {
            let entry = self.entry(page)?;
            if let Some(frame) = entry.frame()
                && access.rights().within(entry.user_rights())
            {
                return Ok(frame);
            }
            match self.fault(page, access)? {
                Fault::Resolved => {}
                Fault::Denied => return Err(SpaceError::NotMapped),
                Fault::OutOfMemory => return Err(SpaceError::NoMemory),
            }
        }
        Err(SpaceError::NotMapped)
    }

    fn entry(&self, page: u64) -> Result<Entry, OutOfRange> {
        match paging::find_entry(&self.memory, self.root, VirtualAddress(page))? {
            Some(at) => Ok(Entry(self.memory.read_u64(at)?)),
            None => Ok(Entry::EMPTY),
        }
    }

    fn set_entry(&mut self, page: u64, entry: Entry) -> Result<(), SpaceError> {
        let at = self.make_entry(page)?;
        Ok(self.memory.write_u64(at, entry.0)?)
    }

    fn make_entry(&mut self, page: u64) -> Result<u64, SpaceError> {
        let Self { memory, vm, frames, covered, tables, root, .. } = self;
        paging::make_entry(memory, *root, VirtualAddress(page), |memory| {
            let frame = frames.allocate().ok_or(SpaceError::NoMemory)?;
            cover(vm, memory, covered, frame)?;
            *tables += 1;
            Ok::<_, SpaceError>(frame)
        })
    }

    fn allocate(&mut self) -> Result<Frame, SpaceError> {
        let frame = self.frames.allocate().ok_or(SpaceError::NoMemory)?;
        self.cover(frame)?;
        Ok(frame)
    }

    fn cover(&mut self, frame: Frame) -> Result<(), Error> {
        cover(&mut self.vm, &self.memory, &mut self.covered, frame)
    }
}

/// Sees to it that the hypervisor backs `frame`.
fn cover(vm: &mut Box<dyn Vm>, memory: &GuestMemory, covered: &mut u64, frame: Frame) -> Result<(), Error> {
    while frame.address() >= *covered {
        let next = (*covered * 2).max(FIRST_COVER).min(memory.bytes());
        vm.cover(memory, next)?;
        *covered = next;
    }
    Ok(())
}

/// The first address whose leaf entry lies in another table than that of `address`.
const fn next_table(address: u64) -> u64 {
    const TABLE_REACH: u64 = 512 * PAGE_BYTES;
    (address & !(TABLE_REACH - 1)).saturating_add(TABLE_REACH)
}
