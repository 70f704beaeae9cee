//! An address space's state as plain data, for files; and what must hold before such data is believed.
//!
//! A file may come from anybody. Page tables are pages like others in it, and the host trusts page tables: so [`SavedSpace::check`] walks
//! all of them and compares each entry with what the areas say that it must be. What passes is what this crate itself could have made.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use coracle_abi::{PAGE_BYTES, VirtualAddress, map};
use serde::{Deserialize, Serialize};

use super::mapped::Lent;
use super::{AREAS_MAX, Area, END_TABLES, LAST_BATCH, PageContent, Promise, Space, SpaceState, ZEROS, next_version};
use crate::content::Content;
use crate::frames::Frames;
use crate::paging::{Entry, Frame, Level, Table};
use crate::rights::Rights;
use crate::span::Span;

/// Frames in use at most: 16 GiB of pages. Their numbers are kept while a state is checked, three times at most: 48 MiB.
const FRAMES_MAX: u32 = 1 << 22;

/// What an address space is, apart from the content of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSpace {
    /// Frames from here on were never used.
    pub next_frame: u32,
    /// Those below that are free now, as runs of first and count, in the order of their reuse.
    pub free: Vec<(u32, u32)>,
    /// By address.
    pub areas: Vec<SavedArea>,
}

/// An area as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedArea {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// As `rwx`, with `-` for what is not allowed.
    pub rights: String,
    /// Gets pages downwards.
    #[serde(default, skip_serializing_if = "is_default")]
    pub downwards: bool,
    /// Its pages are set aside.
    #[serde(default, skip_serializing_if = "is_default")]
    pub committed: bool,
    /// The host's own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sealed: bool,
    /// Pages that it gets at its next fault.
    pub batch: u64,
    /// Of lent content: its first frame.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lent: Option<u32>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Why a saved state is not believed.
#[derive(Debug)]
#[non_exhaustive]
pub enum SavedError {
    /// It contradicts itself, or this crate's rules: what, and where.
    Invalid(String),
    /// A page of it cannot be read.
    Content(io::Error),
}

impl fmt::Display for SavedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => f.write_str(what),
            Self::Content(_) => f.write_str("a page table cannot be read"),
        }
    }
}

impl std::error::Error for SavedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Content(error) => Some(error),
            Self::Invalid(_) => None,
        }
    }
}

fn invalid<T>(what: impl Into<String>) -> Result<T, SavedError> {
    Err(SavedError::Invalid(what.into()))
}

/// One of the host's own pages: where, with which rights, for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPlace {
    /// Its address.
    pub address: u64,
    /// Its rights for that level.
    pub rights: Rights,
    /// Who may use it.
    pub level: Level,
}

impl SpaceState {
    /// As plain data.
    pub fn saved(&self) -> SavedSpace {
        let area = |(start, area): (&u64, &Area)| SavedArea {
            start: *start,
            end: area.end,
            rights: area.rights.to_string(),
            downwards: area.downwards,
            committed: area.is_committed(),
            sealed: area.sealed,
            batch: area.batch,
            lent: area.lent.map(|first| first.0),
        };
        let mut free: Vec<(u32, u32)> = Vec::new();
        for frame in self.frames.free_frames() {
            match free.last_mut() {
                Some((first, count)) if first.checked_add(*count) == Some(*frame) => *count += 1,
                _ => free.push((*frame, 1)),
            }
        }
        SavedSpace { next_frame: self.frames.next(), free, areas: self.areas.iter().map(area).collect() }
    }

    /// Where the content that is mapped from `start` on lies.
    pub fn lent_at(&self, start: u64) -> Option<Frame> {
        self.areas.get(&start)?.lent
    }

    /// Whether all of it lies in one area that the host made and set aside for both sides to write.
    pub fn is_host_buffer(&self, span: Span) -> bool {
        let area = self.areas.range(..=span.start()).next_back().map(|(_, area)| area);
        area.is_some_and(|area| {
            area.end >= span.end()
                && area.sealed
                && area.is_committed()
                && area.rights == Rights::RW
                && area.lent.is_none()
        })
    }

    /// The frame behind a page of the guest's, whatever the rights.
    ///
    /// # Errors
    /// When a page table cannot be read.
    pub fn frame_of<'c>(
        &self,
        page: u64,
        mut content: impl FnMut(Frame) -> io::Result<Option<&'c PageContent>>,
    ) -> io::Result<Option<Frame>> {
        let mut table = Space::ROOT;
        for level in (1..=3).rev() {
            let entries = Table(content(table)?.unwrap_or(&ZEROS));
            match entries.below(VirtualAddress(page), level) {
                Some(below) => table = below,
                None => return Ok(None),
            }
        }
        Ok(Table(content(table)?.unwrap_or(&ZEROS)).entry(VirtualAddress(page)).frame())
    }
}

impl SavedSpace {
    /// Checks it for a memory of `limit` pages, with these contents lent, against the page tables that `content` gives.
    ///
    /// # Errors
    /// When anything is not as this crate would have left it.
    pub fn check<'c>(
        &self,
        limit: u64,
        lent: Vec<(Frame, Arc<Content>)>,
        control: &[ControlPlace],
        mut content: impl FnMut(Frame) -> io::Result<Option<&'c PageContent>>,
    ) -> Result<SpaceState, SavedError> {
        let lent: Vec<Lent> = lent.into_iter().map(|(first, content)| Lent { first, content }).collect();
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let areas = self.areas(limit, &lent)?;
        let most = limit.min(FRAMES_MAX);
        if self.next_frame > most {
            return invalid(format!("{} frames are in use, of at most {most}", self.next_frame));
        }
        let free = self.free_frames()?;
        let mut walk = Walker {
            content: &mut content,
            areas: &areas,
            control,
            own_end: limit,
            next: self.next_frame,
            frames: vec![Space::ROOT.0],
            tables: 1,
            loose: 0,
            control_seen: 0,
            reach: Vec::new(),
        };
        walk.table(Space::ROOT, 3, 0)?;
        let Walker { mut frames, mut tables, loose, control_seen, reach, .. } = walk;
        if !control.iter().any(|place| place.address == map::EXCEPTION_STACK) {
            // A backend without exceptions: the frame is set aside all the same.
            frames.push(Space::EXCEPTION_STACK.0);
            tables += 1;
        }
        if control_seen != control.len() {
            return invalid("some of the host's own pages are not mapped");
        }
        frames.extend(&free);
        let used = frames.len();
        frames.sort_unstable();
        frames.dedup();
        if used != self.next_frame as usize || frames.len() != used {
            return invalid("a frame is used twice, or by nobody");
        }
        let committed: u64 = areas
            .iter()
            .filter(|(_, area)| area.is_committed())
            .map(|(start, area)| (area.end - start) / PAGE_BYTES)
            .sum();
        let ends = areas
            .iter()
            .filter(|(_, area)| area.is_committed())
            .flat_map(|(start, area)| [*start, area.end - PAGE_BYTES]);
        for page in ends {
            if reach.binary_search(&(page / TABLE_REACH)).is_err() {
                return invalid(format!("there is no page table for {page:#x}, which was promised"));
            }
        }
        // Control pages count as tables; the exception stack is one of them.
        let tables = tables + control.len() as u64;
        let promised =
            committed.checked_add(committed / 511).and_then(|sum| sum.checked_add(tables + loose + END_TABLES));
        if promised.is_none_or(|promised| promised > u64::from(limit)) {
            return invalid("more pages were promised than there are");
        }
        Ok(SpaceState {
            frames: Frames::from_parts(limit, self.next_frame, free),
            tables,
            committed,
            loose,
            areas,
            lent,
            version: next_version(),
        })
    }

    fn free_frames(&self) -> Result<Vec<u32>, SavedError> {
        let mut free = Vec::new();
        for (first, count) in &self.free {
            let end = first.checked_add(*count).filter(|end| *end <= self.next_frame);
            let Some(end) = end.filter(|_| free.len() + *count as usize <= self.next_frame as usize) else {
                return invalid(format!("{count} free frames from {first} on are not in use"));
            };
            free.extend(*first..end);
        }
        Ok(free)
    }

    fn areas(&self, limit: u32, lent: &[Lent]) -> Result<BTreeMap<u64, Area>, SavedError> {
        if self.areas.len() > AREAS_MAX {
            return invalid(format!("{} areas are more than {AREAS_MAX}", self.areas.len()));
        }
        let mut areas = BTreeMap::new();
        let mut reached = 0;
        for saved in &self.areas {
            let at = |what: &str| invalid(format!("the area at {:#x} {what}", saved.start));
            let bytes = saved.end.checked_sub(saved.start).filter(|bytes| bytes % PAGE_BYTES == 0);
            let Some(span) = bytes.and_then(|bytes| Span::new(saved.start, bytes)) else {
                return at("is not made of pages that a guest may have");
            };
            if span.start() < reached {
                return at("overlaps the one before");
            }
            reached = span.end();
            let Some(rights) = Rights::parse(&saved.rights).filter(|rights| rights.is_legal()) else {
                return at("has no rights that a guest may have");
            };
            if !(1..=LAST_BATCH).contains(&saved.batch) {
                return at("grows by too many pages");
            }
            if let Some(first) = saved.lent {
                let fits = |lent: &Lent| lent.first.0 == first && lent.content.size().pages() == span.pages();
                let is_plain = saved.sealed && !saved.committed && matches!(rights, Rights::R | Rights::RW);
                let ends = u64::from(first) + span.pages() <= u64::from(u32::MAX);
                if !is_plain || !ends || first < limit || !lent.iter().any(fits) {
                    return at("is of no content that is lent");
                }
            }
            let promise = if saved.committed { Promise::Committed } else { Promise::Uncommitted };
            let area = Area {
                end: span.end(),
                rights,
                downwards: saved.downwards,
                promise,
                sealed: saved.sealed,
                batch: saved.batch,
                lent: saved.lent.map(Frame),
            };
            areas.insert(span.start(), area);
        }
        let shown = areas.values().filter(|area| area.lent.is_some()).count();
        if shown != lent.len() {
            return invalid("content is lent that is mapped nowhere");
        }
        Ok(areas)
    }
}

const TABLE_REACH: u64 = 512 * PAGE_BYTES;

struct Walker<'a, C> {
    content: &'a mut C,
    areas: &'a BTreeMap<u64, Area>,
    control: &'a [ControlPlace],
    own_end: u32,
    next: u32,
    /// All that are used, each use once.
    frames: Vec<u32>,
    tables: u64,
    loose: u64,
    control_seen: usize,
    /// Which lowest tables exist, ascending: addresses by what one reaches.
    reach: Vec<u64>,
}

impl<'c, C: FnMut(Frame) -> io::Result<Option<&'c PageContent>>> Walker<'_, C> {
    fn table(&mut self, table: Frame, level: u32, base: u64) -> Result<(), SavedError> {
        let entries = Table((self.content)(table).map_err(SavedError::Content)?.unwrap_or(&ZEROS));
        if level == 0 {
            self.reach.push(base / TABLE_REACH);
        }
        for n in 0..512 {
            let raw = entries.raw(n);
            if raw == 0 {
                continue;
            }
            let address = base + (n as u64) * (PAGE_BYTES << (9 * level));
            if level == 3 && n >= 256 {
                return invalid("the upper half of the address space is in use");
            }
            if level == 0 {
                self.leaf(address, Entry(raw))?;
                continue;
            }
            let Some(below) = Table::link(raw) else {
                return invalid(format!("the page table for {address:#x} is not linked as it must be"));
            };
            self.use_frame(below, address)?;
            self.tables += 1;
            self.table(below, level - 1, address)?;
        }
        Ok(())
    }

    fn use_frame(&mut self, frame: Frame, address: u64) -> Result<(), SavedError> {
        // More uses than frames: one is used twice, which is found out sooner so.
        if frame.0 >= self.next || self.frames.len() >= self.next as usize {
            return invalid(format!("frame {} for {address:#x} is not in use", frame.0));
        }
        self.frames.push(frame.0);
        Ok(())
    }

    fn leaf(&mut self, page: u64, entry: Entry) -> Result<(), SavedError> {
        let wrong = || invalid(format!("the page at {page:#x} is not mapped as its area says"));
        let Some(frame) = entry.frame() else { return wrong() };
        if let Some(place) = self.control.iter().find(|place| place.address == page) {
            let is_stack = page == map::EXCEPTION_STACK;
            if entry != Entry::new(frame, place.rights, place.level) || is_stack != (frame == Space::EXCEPTION_STACK) {
                return wrong();
            }
            self.control_seen += 1;
            return self.use_frame(frame, page);
        }
        let Some((start, area)) = self.areas.range(..=page).next_back().filter(|(_, area)| page < area.end) else {
            return wrong();
        };
        if let Some(first) = area.lent
            && frame.0 >= self.own_end
        {
            let place = u64::from(first.0) + (page - start) / PAGE_BYTES;
            let is_right = u64::from(frame.0) == place && entry == Entry::new(frame, Rights::R, Level::User);
            return if is_right { Ok(()) } else { wrong() };
        }
        if entry != Entry::new(frame, area.rights, Level::User) {
            return wrong();
        }
        self.loose += u64::from(!area.is_committed());
        self.use_frame(frame, page)
    }
}
