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

mod mapped;
mod saved;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use coracle_abi::{PAGE_BYTES, PageBytes, VirtualAddress, map};

use crate::backend::{ControlPage, Vm};
use crate::cooling::Cooling;
use crate::error::Error;
use crate::frames::{Frames, runs};
use crate::memory::{GuestMemory, OutOfRange};
use crate::paging::{self, Entry, Frame, Level, Walk};
use crate::rights::Rights;
use crate::span::Span;
pub use mapped::CONTENTS_MAX;
use mapped::Lent;
pub use saved::{ControlPlace, SavedArea, SavedError, SavedSpace};

/// Areas a guest may have, as Linux's `vm.max_map_count`.
pub const AREAS_MAX: usize = 65_530;

/// Guest-physical memory that a new VM gets; doubled as often as the guest needs more.
const FIRST_COVER: u64 = 2 << 20;

/// Pages given at once when a lazy area is touched for the first time; doubled at each further touch if it is committed.
const FIRST_BATCH: u64 = 16;
const LAST_BATCH: u64 = 512;

/// Page tables that one page may need beside the root.
const LEVELS: u64 = 3;
/// Page tables that the two ends of a range may need.
const END_TABLES: u64 = 2 * LEVELS;

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
    downwards: bool, // How it gets frames when touched; whether it got some at once is past.
    promise: Promise,
    sealed: bool,
    batch: u64,
    /// Of lent content: where its first page lies.
    lent: Option<Frame>,
}

impl Area {
    fn is_committed(&self) -> bool {
        self.promise == Promise::Committed
    }

    /// Whether two neighbours can be one area.
    fn joins(&self, other: &Self) -> bool {
        let kind = |area: &Self| (area.rights, area.downwards, area.promise, area.sealed);
        kind(self) == kind(other) && self.lent.is_none() && other.lent.is_none()
    }
}

/// The bytes of a page.
pub type PageContent = [u8; PAGE_BYTES as usize];

const ZEROS: PageContent = [0; PAGE_BYTES as usize];

/// What caches must forget.
#[derive(Debug, Default)]
struct Stale {
    /// A table above the lowest changes: everything.
    above: bool,
    /// Frames that are mapped with rights that they will not have.
    frames: Vec<Frame>,
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
    /// Something is mapped in the range already, or it has another size than what is to be mapped.
    Overlap,
    /// The host made this area, and the guest may not change it.
    Sealed,
    /// Writable and executable at once.
    WriteAndExecute,
    /// A page of a snapshot, or of mapped content, cannot be read. The address space is in an unknown state.
    Content(io::Error),
    /// The hypervisor refused. The address space is in an unknown state.
    Backend(Error),
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMemory => "the sandbox's memory limit is reached",
            Self::TooManyAreas => "the guest has too many separate mappings",
            Self::Overlap => "something is mapped in the range already",
            Self::NotMapped => "a page in the range is not mapped",
            Self::Sealed => "the host made this mapping; the guest may not change it",
            Self::WriteAndExecute => "pages may be writable or executable, not both",
            Self::Content(_) => "a page that lies in a file cannot be read",
            Self::Backend(_) => "the hypervisor refused to change the guest's memory",
        })
    }
}

impl std::error::Error for SpaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Backend(error) => Some(error),
            Self::Content(error) => Some(error),
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

impl From<io::Error> for SpaceError {
    fn from(error: io::Error) -> Self {
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
    /// Whether touching its pages can fail.
    pub promise: Promise,
}

/// A guest's address space and the memory behind it.
pub struct Space {
    memory: GuestMemory,
    vm: Box<dyn Vm>,
    frames: Frames,
    root: Frame,
    tables: u64,    // Frames used for page tables and control pages.
    committed: u64, // Pages promised to committed areas, whether they have frames or not.
    loose: u64,     // Frames that uncommitted areas have.
    // Invariant: the tables for the first and the last page of each committed area exist. So a table that such an area
    // still lacks serves pages of this area alone, and all areas together lack at most one for 511 pages.
    areas: BTreeMap<u64, Area>,
    covered: u64, // Invariant: `vm` covers guest-physical memory up to here.
    /// The state that areas and page tables are those of, while they are.
    version: Option<u64>,
    cooling: Cooling,
    lent: Vec<Option<Lent>>, // What lies behind guest memory; by the hypervisor's number for it.
    changed: Vec<Frame>,     // Kept from restore to restore, so that none allocates.
}

/// What an address space is, apart from the content of memory. For snapshots: [`Space::state`].
#[derive(Clone, Debug)]
pub struct SpaceState {
    frames: Frames,
    tables: u64,
    committed: u64,
    loose: u64,
    areas: BTreeMap<u64, Area>,
    lent: Vec<Lent>,
    version: u64,
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
        let mut space = Self {
            memory,
            vm,
            frames,
            root: Self::ROOT,
            tables: 2,
            committed: 0,
            loose: 0,
            areas,
            covered: 0,
            version: None,
            cooling: Cooling::default(),
            lent: Vec::new(),
            changed: Vec::new(),
        };
        let (root, exception_stack) = (space.allocate()?, space.allocate()?);
        debug_assert_eq!((root, exception_stack), (Self::ROOT, Self::EXCEPTION_STACK));
        for page in control {
            space.map_control(page)?;
        }
        Ok(space)
    }

    /// An address space over fresh `memory` that is in `state`. The memory has all of its pages' content already but that
    /// of the pages in `pages`, which `content` gives.
    ///
    /// # Errors
    /// As [`Space::restore`].
    pub fn from_state<'c>(
        memory: GuestMemory,
        vm: Box<dyn Vm>,
        state: &SpaceState,
        pages: &[u32],
        mut content: impl FnMut(Frame) -> io::Result<Option<&'c PageContent>>,
    ) -> Result<Self, SpaceError> {
        let SpaceState { frames, tables, committed, loose, areas, lent, version } = state.clone();
        let (root, version) = (Self::ROOT, Some(version));
        let mut space = Self {
            memory,
            vm,
            frames,
            root,
            tables,
            committed,
            loose,
            areas,
            covered: 0,
            version,
            cooling: Cooling::default(),
            lent: Vec::new(),
            changed: Vec::new(),
        };
        if let Some(last) = state.frames.last() {
            space.cover(last)?;
        }
        for page in pages {
            space.memory.restore(Frame(*page), content(Frame(*page)).map_err(SpaceError::Content)?)?;
        }
        space.exchange_contents(&lent)?;
        Ok(space)
    }

    /// Takes it apart, for a [`Shell`](crate::Shell).
    ///
    /// # Errors
    /// The hypervisor's.
    pub(crate) fn into_parts(mut self) -> Result<(GuestMemory, Box<dyn Vm>), Error> {
        self.take_all_back()?;
        Ok((self.memory, self.vm))
    }

    /// Puts a host-made page at one of the addresses that the ABI reserves.
    ///
    /// # Errors
    /// At the memory limit, and the hypervisor's.
    pub fn map_control(&mut self, page: &ControlPage) -> Result<(), SpaceError> {
        self.version = None;
        if self.spare() <= LEVELS {
            return Err(SpaceError::NoMemory);
        }
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

    /// Maps zeros at `span`, in place of what was there. For uncommitted pages [`Fill::Now`] is a wish: they get frames
    /// as long as there are any. Pages without rights get none.
    ///
    /// # Errors
    /// At a limit, or for a sealed area in the way; nothing is changed then. After [`SpaceError::Backend`] the state is
    /// unknown.
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
        self.version = None;
        if !rights.is_legal() {
            return Err(SpaceError::WriteAndExecute);
        }
        self.check_unsealed(span)?;
        self.check_area_count(span, 1)?;
        let promise = if rights.is_none() { Promise::Uncommitted } else { promise };
        if promise == Promise::Committed {
            let replaced: u64 =
                self.overlapping(span).filter(|(_, area)| area.is_committed()).map(|(part, _)| part.pages()).sum();
            self.check_room(span.pages() - replaced)?;
        }
        self.remove(span)?;
        let downwards = fill == Fill::Down;
        let area = Area { end: span.end(), rights, downwards, promise, sealed, batch: FIRST_BATCH, lent: None };
        self.insert(span.start(), area)?;
        if area.is_committed() {
            self.committed += span.pages();
        }
        if fill == Fill::Now && !rights.is_none() {
            match self.fill(span, &area) {
                Err(SpaceError::NoMemory) if !area.is_committed() => {}
                result => result?,
            }
        }
        self.join_around(span);
        Ok(())
    }

    /// Removes all pages of `span`, mapped or not.
    ///
    /// # Errors
    /// As [`Space::map`].
    pub fn unmap(&mut self, span: Span) -> Result<(), SpaceError> {
        self.version = None;
        self.check_unsealed(span)?;
        self.check_area_count(span, 0)?;
        self.remove(span)
    }

    /// Changes the rights of all pages of `span`; they keep their content.
    ///
    /// # Errors
    /// When a page is not mapped, and as [`Space::map`]; nothing is changed then.
    pub fn protect(&mut self, span: Span, rights: Rights) -> Result<(), SpaceError> {
        self.version = None;
        if !rights.is_legal() {
            return Err(SpaceError::WriteAndExecute);
        }
        self.check_unsealed(span)?;
        self.check_area_count(span, 0)?;
        // Pages without rights are promised only when they get some.
        let is_fresh = |area: &Area| area.rights.is_none() && !area.is_committed() && !rights.is_none();
        let mut fresh = 0;
        let mut reached = span.start();
        for (part, area) in self.overlapping(span) {
            if part.start() != reached {
                return Err(SpaceError::NotMapped);
            }
            reached = part.end();
            if is_fresh(&area) {
                fresh += part.pages();
            }
        }
        if reached != span.end() {
            return Err(SpaceError::NotMapped);
        }
        self.check_room(fresh)?;
        self.split_at(span.start())?;
        self.split_at(span.end())?;
        let changed: Vec<(u64, Area)> =
            self.areas.range(span.start()..span.end()).map(|(at, area)| (*at, *area)).collect();
        for (start, area) in changed {
            let promise = if is_fresh(&area) { Promise::Committed } else { area.promise };
            if promise != area.promise {
                let part = Span::new(start, area.end - start).ok_or(SpaceError::NotMapped)?;
                self.loose -= self.count_frames(part)?;
                self.committed += part.pages();
            }
            self.insert(start, Area { rights, promise, ..area })?;
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

    /// Moves the pages of `from` to `to`, of the same size, in place of what was there; content and all. `from` is
    /// unmapped afterwards.
    ///
    /// # Errors
    /// When `from` is not one area or the two overlap, and as [`Space::map`]; nothing is changed then.
    pub fn relocate(&mut self, from: Span, to: u64) -> Result<(), SpaceError> {
        self.version = None;
        let to = Span::new(to, from.bytes()).filter(|to| to.intersection(from).is_none());
        let to = to.ok_or(SpaceError::NotMapped)?;
        self.check_unsealed(from)?;
        self.check_unsealed(to)?;
        self.check_area_count(from, 0)?;
        self.check_area_count(to, 2)?;
        let area = match self.overlapping(from).next() {
            Some((part, area)) if part == from => area,
            _ => return Err(SpaceError::NotMapped),
        };
        // For the ends of `to`, and for those of what is left around `from`.
        if area.is_committed() && self.spare() < 2 * END_TABLES {
            return Err(SpaceError::NoMemory);
        }
        let mut pages = Vec::new();
        self.for_each_entry(from, |place, entry| {
            pages.extend(entry.frame().map(|frame| (place, frame)));
            None
        })?;
        let places = pages.iter().map(|(place, _)| place - from.start() + to.start());
        // The new tables first: when there is no memory for them, every page is still where it was.
        for place in places.clone() {
            self.make_entry_for(place, &area)?;
        }
        self.remove(to)?;
        self.split_at(from.start())?;
        self.split_at(from.end())?;
        for (place, (_, frame)) in places.zip(&pages) {
            self.set_entry(place, Entry::new(*frame, area.rights, Level::User))?;
        }
        self.for_each_entry(from, |_, _| Some(Entry::EMPTY))?;
        let mut moved: Vec<Frame> = pages.iter().map(|(_, frame)| *frame).collect();
        for run in runs(&mut moved) {
            self.memory.invalidate(run)?;
        }
        self.areas.remove(&from.start());
        self.insert(to.start(), Area { end: to.end(), ..area })?;
        self.join_around(to);
        Ok(())
    }

    /// Forgets the content of the pages of `span` that are mapped: they read as zeros.
    ///
    /// # Errors
    /// When a page is not mapped, or sealed; and the hypervisor's.
    pub fn forget(&mut self, span: Span) -> Result<(), SpaceError> {
        self.version = None;
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
        span.contains(address).then_some(AreaInfo { span, rights: area.rights, promise: area.promise })
    }

    /// All areas, by address.
    pub fn areas(&self) -> impl Iterator<Item = AreaInfo> {
        self.areas.iter().filter_map(|(start, area)| {
            let span = Span::new(*start, area.end - start)?;
            Some(AreaInfo { span, rights: area.rights, promise: area.promise })
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
        if let Some(frame) = self.entry(page)?.frame() {
            if access == Access::Write && self.is_lent(frame) {
                return self.copy_on_write(page, frame, area.rights);
            }
            return Ok(Fault::Resolved); // The vCPU had cached older, smaller rights; the fault flushed them.
        }
        self.version = None;
        let reach = area.batch * PAGE_BYTES;
        let (from, to) = if area.downwards {
            ((page + PAGE_BYTES).saturating_sub(reach).max(start), page + PAGE_BYTES)
        } else {
            (page, area.end.min(page.saturating_add(reach)))
        };
        // What is not promised may be used sparsely, and what is given ahead of use is lost to all others; but content takes nothing.
        if let Some(area) = self.areas.get_mut(&start).filter(|area| area.is_committed() || area.lent.is_some()) {
            area.batch = (area.batch * 2).min(LAST_BATCH);
        }
        let spans = [Span::new(from, to - from), Span::new(page, PAGE_BYTES)];
        for span in spans.into_iter().flatten() {
            let filled = match area.lent {
                Some(first) => self.fill_lent(span, Frame(first.0 + ((span.start() - start) / PAGE_BYTES) as u32)),
                None => self.fill(span, &area),
            };
            match filled {
                Ok(()) if area.lent.is_some() && access == Access::Write => return self.fault(address, access),
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

    /// How many of the `bytes` bytes from `address` on the guest may access, up to the first that it may not. They are
    /// given now if the guest has not touched them yet.
    ///
    /// # Errors
    /// The hypervisor's.
    pub fn reach(&mut self, address: u64, bytes: u64, access: Access) -> Result<u64, SpaceError> {
        let mut done = 0;
        while done < bytes {
            let Some(at) = address.checked_add(done) else { break };
            match self.accessible(at, access) {
                Ok(_) => done = bytes.min(done + PAGE_BYTES - at % PAGE_BYTES),
                Err(SpaceError::Backend(error)) => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies from mapped pages of the guest whatever their rights, and changes nothing: no page appears.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] when a page is not there.
    pub fn peek(&self, address: u64, out: &mut [u8]) -> Result<(), SpaceError> {
        let mut done = 0;
        while done < out.len() {
            let at = address.checked_add(done as u64).ok_or(SpaceError::NotMapped)?;
            let piece = (PAGE_BYTES - at % PAGE_BYTES).min((out.len() - done) as u64) as usize;
            let frame = self.entry(VirtualAddress(at).page_start().0)?.frame().ok_or(SpaceError::NotMapped)?;
            self.memory.read(frame.address() + at % PAGE_BYTES, &mut out[done..done + piece])?;
            done += piece;
        }
        Ok(())
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

    /// Notes in the memory each page that the guest wrote since the last call. How many the hypervisor told, if it tells.
    ///
    /// # Errors
    /// The hypervisor's.
    pub fn collect_written(&mut self) -> Result<Option<u64>, Error> {
        self.vm.collect_written(&mut self.memory)
    }

    /// After [`Exit::LogFull`](crate::Exit::LogFull): notes what the guest wrote, and makes room for more.
    ///
    /// # Errors
    /// The hypervisor's.
    pub fn empty_log(&mut self) -> Result<(), Error> {
        self.vm.empty_log(&mut self.memory)
    }

    /// What the address space is now, apart from the content of memory.
    pub fn state(&mut self) -> SpaceState {
        let version = *self.version.get_or_insert_with(next_version);
        let Self { frames, tables, committed, loose, areas, lent, .. } = self;
        let (frames, areas, lent) = (frames.clone(), areas.clone(), lent.iter().flatten().cloned().collect());
        SpaceState { frames, tables: *tables, committed: *committed, loose: *loose, areas, lent, version }
    }

    /// Puts address space and memory back to `state`, whose pages' content `content` gives (`None`: zeros). Pages that are
    /// [changed](GuestMemory::changed), and those in `also`, ascending, may differ from it; no others do. What is hot
    /// stays so, since the guest can write those pages again without being noticed; but now and then a list that has grown
    /// far beyond what changes is dropped (`cooling.rs`).
    ///
    /// # Errors
    /// When the state needs more memory than there is, and the hypervisor's. The address space is in an unknown state then.
    pub fn restore<'c>(
        &mut self,
        state: &SpaceState,
        also: &[u32],
        mut content: impl FnMut(Frame) -> io::Result<Option<&'c PageContent>>,
    ) -> Result<(), SpaceError> {
        if let Some(last) = state.frames.last() {
            self.cover(last)?;
        }
        let same_tables = self.version == Some(state.version);
        let stale = if same_tables { Stale::default() } else { self.stale(also, &mut content)? };
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        changed.extend(self.memory.changed());
        changed.extend(also.iter().map(|page| Frame(*page)).filter(|page| !self.memory.is_changed(*page)));
        let hot = self.memory.hot().len();
        if self.cooling.should_compare(hot) {
            let mut differed = 0;
            for (n, page) in changed.iter().enumerate() {
                let has = self.memory.restore_changed(*page, content(*page).map_err(SpaceError::Content)?)?;
                differed += usize::from(has && n < hot); // Hot pages come first.
            }
            if self.cooling.compared(hot, differed) {
                self.vm.empty_log(&mut self.memory)?;
                self.memory.forget_hot();
            }
        } else {
            for page in &changed {
                self.memory.restore(*page, content(*page).map_err(SpaceError::Content)?)?;
            }
        }
        self.changed = changed;
        self.memory.forget_touched();
        if stale.above {
            self.vm.forget_translations(&self.memory)?;
        } else {
            let mut frames = stale.frames;
            for run in runs(&mut frames) {
                self.memory.invalidate(run)?;
            }
        }
        if !same_tables {
            let SpaceState { frames, tables, committed, loose, areas, lent, version } = state.clone();
            self.exchange_contents(&lent)?;
            (self.frames, self.areas, self.version) = (frames, areas, Some(version));
            (self.tables, self.committed, self.loose) = (tables, committed, loose);
        }
        Ok(())
    }

    /// What the processor and the hypervisor may have cached that will not hold any more when each page has the content
    /// that `content` gives.
    fn stale<'c>(
        &self,
        also: &[u32],
        content: &mut impl FnMut(Frame) -> io::Result<Option<&'c PageContent>>,
    ) -> Result<Stale, SpaceError> {
        let mut stale = Stale::default();
        let may_differ = |table: Frame| self.memory.is_changed(table) || also.binary_search(&table.0).is_ok();
        let tables = paging::tables(&self.memory, self.root)?;
        for table in tables.above.into_iter().filter(|table| may_differ(*table)) {
            let future = content(table).map_err(SpaceError::Content)?.unwrap_or(&ZEROS);
            let mut now = ZEROS;
            self.memory.read(table.address(), &mut now)?;
            stale.above |= now != *future;
        }
        for table in tables.leaves.into_iter().filter(|table| may_differ(*table)) {
            let future = content(table).map_err(SpaceError::Content)?.unwrap_or(&ZEROS);
            for (n, future) in (0..).zip(future.as_chunks::<8>().0) {
                let now = Entry(self.memory.read_u64(table.address() + 8 * n)?);
                if !now.holds_under(Entry(u64::from_le_bytes(*future))) {
                    stale.frames.extend(now.frame());
                }
            }
        }
        Ok(stale)
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

    /// Guest-physical memory that the hypervisor knows, in bytes: what the guest needed at most, rounded up generously.
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// Frames in use: pages, page tables, control pages.
    pub fn frames_in_use(&self) -> u64 {
        self.frames.in_use()
    }

    /// Pages that a committed mapping could still have.
    pub fn free_pages(&self) -> u64 {
        let room = self.frames.limit().saturating_sub(self.tables + self.loose + END_TABLES);
        // As many as leave one page for the table of each 511: see `areas`.
        (room - room.div_ceil(512)).saturating_sub(self.committed)
    }

    /// Frames that nothing was promised.
    fn spare(&self) -> u64 {
        let promised = self.committed + self.committed / 511;
        self.frames.limit().saturating_sub(self.tables + self.loose + promised)
    }

    fn check_room(&self, pages: u64) -> Result<(), SpaceError> {
        if pages == 0 || pages <= self.free_pages() { Ok(()) } else { Err(SpaceError::NoMemory) }
    }

    /// Whether `new` areas more, and those that come from cutting at the ends of `span`, are not too many.
    fn check_area_count(&self, span: Span, new: usize) -> Result<(), SpaceError> {
        let is_cut = |at: &u64| self.areas.range(..*at).next_back().is_some_and(|(_, area)| area.end > *at);
        let cuts = [span.start(), span.end()].iter().filter(|at| is_cut(at)).count();
        if self.areas.len() + cuts + new <= AREAS_MAX { Ok(()) } else { Err(SpaceError::TooManyAreas) }
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

    /// Puts an area in its place, in the tables too as far as it takes.
    fn insert(&mut self, start: u64, area: Area) -> Result<(), SpaceError> {
        if area.is_committed() {
            self.make_entry(start)?;
            self.make_entry(area.end - PAGE_BYTES)?;
        }
        self.areas.insert(start, area);
        Ok(())
    }

    /// Makes `address` a border between areas.
    fn split_at(&mut self, address: u64) -> Result<(), SpaceError> {
        let Some((start, area)) = self.areas.range(..address).next_back().map(|(start, area)| (*start, *area)) else {
            return Ok(());
        };
        if area.end > address {
            self.insert(start, Area { end: address, ..area })?;
            let lent = area.lent.map(|first| Frame(first.0 + ((address - start) / PAGE_BYTES) as u32));
            self.insert(address, Area { lent, ..area })?;
        }
        Ok(())
    }

    /// Joins equal neighbours in `span` and at its ends, so that the number of areas follows what the guest has, not how
    /// it got there.
    fn join_around(&mut self, span: Span) {
        let borders: Vec<u64> = self.areas.range(span.start()..=span.end()).map(|(start, _)| *start).collect();
        for border in borders {
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
        self.split_at(span.start())?;
        self.split_at(span.end())?;
        let starts: Vec<u64> = self.areas.range(span.start()..span.end()).map(|(start, _)| *start).collect();
        for start in starts {
            if let Some(area) = self.areas.remove(&start)
                && area.is_committed()
            {
                self.committed -= (area.end - start) / PAGE_BYTES;
            }
        }
        Ok(())
    }

    /// Takes the frames of `span` back; the areas stay.
    fn release(&mut self, span: Span) -> Result<(), SpaceError> {
        let mut freed = Vec::new();
        let parts: Vec<(Span, Area)> = self.overlapping(span).collect();
        for (part, area) in parts {
            let before = freed.len();
            let own = self.memory.bytes();
            self.for_each_entry(part, |_, entry| {
                let frame = entry.frame()?;
                if frame.address() < own {
                    freed.push(frame);
                }
                Some(Entry::EMPTY)
            })?;
            if !area.is_committed() {
                self.loose -= (freed.len() - before) as u64;
            }
        }
        for run in runs(&mut freed) {
            self.memory.discard(run)?;
        }
        self.frames.free(freed.into_iter());
        Ok(())
    }

    fn count_frames(&mut self, span: Span) -> Result<u64, SpaceError> {
        let mut frames = 0;
        self.for_each_entry(span, |_, entry| {
            frames += u64::from(entry.frame().is_some());
            None
        })?;
        Ok(frames)
    }

    /// Gives a frame to each page of `span` that has none. `span` lies in `area`.
    fn fill(&mut self, span: Span, area: &Area) -> Result<(), SpaceError> {
        let mut place = None;
        let mut at = span.start();
        while at < span.end() {
            let entry_at = match place {
                Some(place) => place,
                None => self.make_entry_for(at, area)?,
            };
            if Entry(self.memory.read_u64(entry_at)?).frame().is_none() {
                if !area.is_committed() && self.spare() == 0 {
                    return Err(SpaceError::NoMemory);
                }
                let frame = self.allocate()?;
                self.loose += u64::from(!area.is_committed());
                self.memory.write_u64(entry_at, Entry::new(frame, area.rights, Level::User).0)?;
            }
            place = paging::next_is_in_same_table(VirtualAddress(at)).then_some(entry_at + 8);
            at += PAGE_BYTES;
        }
        Ok(())
    }

    /// Shows the guest the content from `first` on in those pages of `span` that it has not written.
    fn fill_lent(&mut self, span: Span, first: Frame) -> Result<(), SpaceError> {
        for page in 0..span.pages() {
            let at = span.start() + page * PAGE_BYTES;
            if self.spare() < LEVELS && paging::find_entry(&self.memory, self.root, VirtualAddress(at))?.is_none() {
                return Err(SpaceError::NoMemory);
            }
            let place = self.make_entry(at)?;
            if Entry(self.memory.read_u64(place)?).frame().is_none() {
                let entry = Entry::new(Frame(first.0 + page as u32), Rights::R, Level::User);
                self.memory.write_u64(place, entry.0)?;
            }
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
            let mut place = match paging::walk(&self.memory, self.root, VirtualAddress(at))? {
                Walk::Entry(place) => place,
                Walk::MissingUntil(next) => {
                    at = next;
                    continue;
                }
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

    /// As [`Space::make_entry`], for a page of `area`: with tables from what was promised to it, or from what is left.
    fn make_entry_for(&mut self, page: u64, area: &Area) -> Result<u64, SpaceError> {
        if !area.is_committed()
            && self.spare() < LEVELS
            && paging::find_entry(&self.memory, self.root, VirtualAddress(page))?.is_none()
        {
            return Err(SpaceError::NoMemory);
        }
        self.make_entry(page)
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

/// A number that no other state has.
fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
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
