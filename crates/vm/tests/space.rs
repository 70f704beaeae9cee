//! The address space against a model: a map from pages to rights and bytes.
//!
//! After each random step the whole of it is audited: areas, every leaf entry in the page tables, the content of every
//! frame, who owns which frame, what is promised. No hypervisor is needed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use coracle_abi::{PAGE_BYTES, PageBytes, VirtualAddress, map};
use coracle_vm::paging::{Entry, Frame, Level, Walk, walk};
use coracle_vm::space::AREAS_MAX;
use coracle_vm::{
    Access, Content, ControlPage, ControlPlace, Error, Fault, Fill, GuestMemory, PageContent, Promise, Rights,
    SavedError, SavedSpace, Space, SpaceError, SpaceState, Span, Vm,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Guest-physical memory that is there from the start, of a hypervisor that never fails.
struct Flat;

/// One that does not take content back.
struct Clinging;

impl Vm for Clinging {
    fn cover(&mut self, _: &GuestMemory, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn collect_written(&mut self, _: &mut GuestMemory) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    fn empty_log(&mut self, _: &mut GuestMemory) -> Result<(), Error> {
        Ok(())
    }

    fn forget_translations(&mut self, _: &GuestMemory) -> Result<(), Error> {
        Ok(())
    }

    fn lend(&mut self, _: u32, _: u64, _: &Content) -> Result<(), Error> {
        Ok(())
    }

    fn take_back(&mut self, _: u32, _: u64) -> Result<(), Error> {
        Err(coracle_vm::memory::OutOfRange.into())
    }

    fn hypervisor_calls(&self) -> u64 {
        0
    }
}

#[test]
fn content_that_the_hypervisor_may_still_have_is_kept() {
    let memory = GuestMemory::reserve(PageBytes::from_pages(64).unwrap()).unwrap();
    let mut space = Space::new(memory, Box::new(Clinging), &[]).unwrap();
    let content = Arc::new(Content::copy_of(&[1; 4096]).unwrap());
    space.map_content(span(0x1000_0000, 1), &content, false).unwrap();
    let held = Arc::strong_count(&content);
    assert!(space.unmap_content(0x1000_0000).is_err());
    assert_eq!(Arc::strong_count(&content), held);
}

impl Vm for Flat {
    fn cover(&mut self, memory: &GuestMemory, bytes: u64) -> Result<(), Error> {
        assert!(bytes <= memory.bytes() && bytes.is_multiple_of(PAGE_BYTES));
        Ok(())
    }

    fn collect_written(&mut self, _: &mut GuestMemory) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    fn empty_log(&mut self, _: &mut GuestMemory) -> Result<(), Error> {
        Ok(())
    }

    fn forget_translations(&mut self, _: &GuestMemory) -> Result<(), Error> {
        Ok(())
    }

    fn lend(&mut self, _: u32, _: u64, _: &Content) -> Result<(), Error> {
        Ok(())
    }

    fn take_back(&mut self, _: u32, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn hypervisor_calls(&self) -> u64 {
        0
    }
}

fn space(pages: u64) -> Space {
    let memory = GuestMemory::reserve(PageBytes::from_pages(pages).unwrap()).unwrap();
    let page =
        |address, rights, level| ControlPage { address, content: vec![0xcc; PAGE_BYTES as usize], rights, level };
    let control = [
        page(map::DESCRIPTORS, Rights::R, Level::Supervisor),
        page(map::EXCEPTION_STACK, Rights::RW, Level::Supervisor),
        page(map::DOORBELL, Rights::RX, Level::User),
    ];
    Space::new(memory, Box::new(Flat), &control).unwrap()
}

#[track_caller]
fn span(start: u64, pages: u64) -> Span {
    Span::new(start, pages * PAGE_BYTES).unwrap()
}

/// What the page tables hold: each leaf by its page, and how many tables there are.
struct Tables {
    leaves: BTreeMap<u64, Entry>,
    tables: u64,
}

impl Tables {
    fn of(space: &Space) -> Self {
        let mut all = Self { leaves: BTreeMap::new(), tables: 1 };
        all.descend(space.memory(), Space::ROOT.address(), 3, 0);
        all
    }

    fn descend(&mut self, memory: &GuestMemory, table: u64, level: u32, start: u64) {
        let mut entries = [0; PAGE_BYTES as usize];
        memory.read(table, &mut entries).unwrap();
        for (entry, n) in entries.as_chunks::<8>().0.iter().map(|entry| Entry(u64::from_le_bytes(*entry))).zip(0..) {
            let at = start | n << (12 + 9 * level);
            if level == 0 && entry.frame().is_some() {
                self.leaves.insert(at, entry);
            } else if level > 0 && entry != Entry::EMPTY {
                self.tables += 1;
                self.descend(memory, entry.0 & 0x000f_ffff_ffff_f000, level - 1, at);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Page {
    rights: Rights,
    downwards: bool,
    promise: Promise,
    sealed: bool,
    content: Option<Box<[u8; PAGE_BYTES as usize]>>, // Zeros if there is none.
}

impl Page {
    fn joins(&self, other: &Self) -> bool {
        let kind = |page: &Self| (page.rights, page.downwards, page.promise, page.sealed);
        kind(self) == kind(other)
    }

    fn allows(&self, access: Access) -> bool {
        access.rights().within(self.rights)
    }
}

/// What a guest should have.
#[derive(Clone, Debug, Default)]
struct Model(BTreeMap<u64, Page>);

impl Model {
    fn range(&self, span: Span) -> impl Iterator<Item = &Page> {
        self.0.range(span.start()..span.end()).map(|(_, page)| page)
    }

    fn is_whole(&self, span: Span) -> bool {
        self.range(span).count() as u64 == span.pages()
    }

    fn is_sealed(&self, span: Span) -> bool {
        self.range(span).any(|page| page.sealed)
    }

    fn remove(&mut self, span: Span) -> BTreeMap<u64, Page> {
        let mut rest = self.0.split_off(&span.start());
        self.0.extend(rest.split_off(&span.end()));
        rest
    }

    fn areas(&self) -> Vec<(u64, u64, Rights, Promise)> {
        let mut areas: Vec<(u64, u64, &Page)> = Vec::new();
        for (at, page) in &self.0 {
            match areas.last_mut() {
                Some((_, end, last)) if *end == *at && last.joins(page) => *end += PAGE_BYTES,
                _ => areas.push((*at, at + PAGE_BYTES, page)),
            }
        }
        areas.into_iter().map(|(start, end, page)| (start, end, page.rights, page.promise)).collect()
    }

    fn committed(&self) -> u64 {
        self.0.values().filter(|page| page.promise == Promise::Committed).count() as u64
    }
}

/// Everything that must hold at any time.
fn audit(space: &Space, model: &Model, limit: u64) {
    let areas: Vec<_> =
        space.areas().map(|area| (area.span.start(), area.span.end(), area.rights, area.promise)).collect();
    assert_eq!(areas, model.areas());
    let Tables { leaves, tables } = Tables::of(space);
    let mut frames = HashSet::new();
    let mut loose = 0;
    let mut bytes = [0; PAGE_BYTES as usize];
    for (at, entry) in &leaves {
        let frame = entry.frame().unwrap();
        assert!(frames.insert(frame), "{frame:?} has two owners");
        assert!(entry.user_rights().is_legal());
        if (map::CONTROL_START..map::WINDOW_END).contains(at) {
            continue;
        }
        let page = model.0.get(at).unwrap_or_else(|| panic!("{at:#x} has a frame and no area"));
        assert_eq!(entry.user_rights(), page.rights, "{at:#x}");
        space.memory().read(frame.address(), &mut bytes).unwrap();
        assert!(bytes == *page.content.as_deref().unwrap_or(&[0; PAGE_BYTES as usize]), "content of {at:#x}");
        loose += u64::from(page.promise == Promise::Uncommitted);
    }
    for (at, page) in &model.0 {
        assert!(page.content.is_none() || leaves.contains_key(at), "the content of {at:#x} is lost");
    }
    let in_use = tables + leaves.len() as u64;
    assert_eq!(space.frames_in_use(), in_use, "frames without an owner");
    assert!(in_use <= limit);
    // What is promised can be given: the pages, and the tables that they lack. For these one page in 512 is set aside,
    // which is enough because no area lacks those of its ends.
    let fixed = tables + leaves.range(map::CONTROL_START..map::WINDOW_END).count() as u64;
    let exists = |page| matches!(walk(space.memory(), Space::ROOT, VirtualAddress(page)), Ok(Walk::Entry(_)));
    for (start, end, ..) in areas.iter().filter(|(.., promise)| *promise == Promise::Committed) {
        assert!(exists(*start) && exists(end - PAGE_BYTES), "an end of {start:#x}..{end:#x} has no table");
    }
    let mut missing = HashSet::new();
    for (at, _) in model.0.iter().filter(|(_, page)| page.promise == Promise::Committed) {
        if let Walk::MissingUntil(end) = walk(space.memory(), Space::ROOT, VirtualAddress(*at)).unwrap() {
            let from = [21, 30, 39].into_iter().find(|bits| (at >> bits) + 1 == end >> bits && end % (1 << bits) == 0);
            missing.extend([21, 30, 39].into_iter().filter(|bits| Some(*bits) <= from).map(|bits| (bits, at >> bits)));
        }
    }
    let needed = model.committed() + missing.len() as u64 + loose + fixed;
    assert!(needed <= limit, "{needed} frames are promised and there are {limit}");
    let room = limit.saturating_sub(fixed + loose + 6);
    assert_eq!(space.free_pages(), (room - room.div_ceil(512)).saturating_sub(model.committed()));
}

#[derive(Clone, Debug)]
enum Step {
    Map(u64, u64, Rights, Fill, Promise),
    Unmap(u64, u64),
    Protect(u64, u64, Rights),
    Relocate(u64, u64, u64),
    Forget(u64, u64),
    Fault(u64, Access),
    Read(u64, u64),
    Write(u64, u64, u8),
    FindGap(u64),
}

/// Addresses near every border that there is, and far apart.
fn addresses() -> impl Strategy<Value = u64> {
    let anchors = [
        map::LOWEST,
        0x20_0000 - 4 * PAGE_BYTES,
        0x4000_0000 - 4 * PAGE_BYTES,
        0x80_0000_0000 - 4 * PAGE_BYTES,
        map::WINDOW_START - 6 * PAGE_BYTES,
        SEALED - 2 * PAGE_BYTES,
        map::CONTROL_START - 6 * PAGE_BYTES,
        map::WINDOW_END,
        map::HIGHEST - 8 * PAGE_BYTES,
    ];
    (select(anchors.to_vec()), 0..9u64).prop_map(|(anchor, page)| anchor + page * PAGE_BYTES)
}

/// Where an area of the host's own lies, four pages.
const SEALED: u64 = 0x1234_5600_0000;

fn steps() -> impl Strategy<Value = Step> {
    let pages = || prop_oneof![8 => 1..9u64, 2 => 60..70u64, 1 => 500..1100u64];
    let legal = select(&[Rights::NONE, Rights::R, Rights::RW, Rights::RW, Rights::RX][..]);
    let rights = prop_oneof![
        15 => legal,
        1 => Just(Rights { read: true, write: true, execute: true }),
    ];
    let fill = select(&[Fill::Now, Fill::Up, Fill::Down][..]);
    let promise = select(&[Promise::Committed, Promise::Committed, Promise::Uncommitted][..]);
    let access = select(&[Access::Read, Access::Write, Access::Execute][..]);
    let anywhere = || (addresses(), 0..PAGE_BYTES).prop_map(|(page, offset)| page + offset);
    prop_oneof![
        6 => (addresses(), pages(), rights.clone(), fill, promise).prop_map(|(at, n, r, f, p)| Step::Map(at, n, r, f, p)),
        3 => (addresses(), pages()).prop_map(|(at, n)| Step::Unmap(at, n)),
        4 => (addresses(), pages(), rights).prop_map(|(at, n, r)| Step::Protect(at, n, r)),
        4 => (addresses(), pages(), addresses()).prop_map(|(at, n, to)| Step::Relocate(at, n, to)),
        1 => (addresses(), pages()).prop_map(|(at, n)| Step::Forget(at, n)),
        3 => (anywhere(), access).prop_map(|(at, access)| Step::Fault(at, access)),
        2 => (anywhere(), 1..3 * PAGE_BYTES).prop_map(|(at, n)| Step::Read(at, n)),
        6 => (anywhere(), 1..3 * PAGE_BYTES, 1..=255u8).prop_map(|(at, n, byte)| Step::Write(at, n, byte)),
        1 => pages().prop_map(Step::FindGap),
    ]
}

/// Takes one step in both, and compares the answers.
fn take(space: &mut Space, model: &mut Model, step: &Step) {
    match *step {
        Step::Map(at, pages, rights, fill, promise) => {
            let Some(span) = Span::new(at, pages * PAGE_BYTES) else { return };
            let promise = if rights.is_none() { Promise::Uncommitted } else { promise };
            let replaced = model.range(span).filter(|page| page.promise == Promise::Committed).count() as u64;
            let fresh = if promise == Promise::Committed { pages - replaced } else { 0 };
            let room = space.free_pages();
            let want = if !rights.is_legal() {
                Err(SpaceError::WriteAndExecute)
            } else if model.is_sealed(span) {
                Err(SpaceError::Sealed)
            } else if fresh > room {
                Err(SpaceError::NoMemory)
            } else {
                Ok(())
            };
            compare(space.map(span, rights, fill, promise), &want);
            if want.is_ok() {
                model.remove(span);
                let downwards = fill == Fill::Down;
                let page = Page { rights, downwards, promise, sealed: false, content: None };
                model.0.extend((0..pages).map(|n| (at + n * PAGE_BYTES, page.clone())));
            }
        }
        Step::Unmap(at, pages) => {
            let Some(span) = Span::new(at, pages * PAGE_BYTES) else { return };
            let want = if model.is_sealed(span) { Err(SpaceError::Sealed) } else { Ok(()) };
            compare(space.unmap(span), &want);
            if want.is_ok() {
                model.remove(span);
            }
        }
        Step::Protect(at, pages, rights) => {
            let Some(span) = Span::new(at, pages * PAGE_BYTES) else { return };
            let is_fresh =
                |page: &Page| page.promise == Promise::Uncommitted && page.rights.is_none() && !rights.is_none();
            let fresh = model.range(span).filter(|page| is_fresh(page)).count() as u64;
            let want = if !rights.is_legal() {
                Err(SpaceError::WriteAndExecute)
            } else if model.is_sealed(span) {
                Err(SpaceError::Sealed)
            } else if !model.is_whole(span) {
                Err(SpaceError::NotMapped)
            } else if fresh > space.free_pages() {
                Err(SpaceError::NoMemory)
            } else {
                Ok(())
            };
            compare(space.protect(span, rights), &want);
            if want.is_ok() {
                for (_, page) in model.0.range_mut(span.start()..span.end()) {
                    if is_fresh(page) {
                        page.promise = Promise::Committed;
                    }
                    page.rights = rights;
                }
            }
        }
        Step::Relocate(at, pages, to) => {
            let Some(from) = Span::new(at, pages * PAGE_BYTES) else { return };
            let result = space.relocate(from, to);
            let to = Span::new(to, from.bytes()).filter(|to| to.intersection(from).is_none());
            let is_one = model.is_whole(from) && model.range(from).all(|page| page.joins(&model.0[&at]));
            let want = match to {
                None => Err(SpaceError::NotMapped),
                Some(to) if model.is_sealed(from) || model.is_sealed(to) => Err(SpaceError::Sealed),
                Some(_) if !is_one => Err(SpaceError::NotMapped),
                // Tables for the new place may be too many, not in a large memory.
                Some(_) if space.free_pages() < 64 && matches!(result, Err(SpaceError::NoMemory)) => return,
                Some(_) => Ok(()),
            };
            compare(result, &want);
            if let (Some(to), Ok(())) = (to, want) {
                model.remove(to);
                let moved = model.remove(from);
                model.0.extend(moved.into_iter().map(|(page, content)| (page - from.start() + to.start(), content)));
            }
        }
        Step::Forget(at, pages) => {
            let Some(span) = Span::new(at, pages * PAGE_BYTES) else { return };
            let want = if model.is_sealed(span) {
                Err(SpaceError::Sealed)
            } else if !model.is_whole(span) {
                Err(SpaceError::NotMapped)
            } else {
                Ok(())
            };
            compare(space.forget(span), &want);
            if want.is_ok() {
                model.0.range_mut(span.start()..span.end()).for_each(|(_, page)| page.content = None);
            }
        }
        Step::Fault(at, access) => {
            let page = model.0.get(&VirtualAddress(at).page_start().0);
            let fault = space.fault(at, access).unwrap();
            match page.filter(|page| page.allows(access)) {
                None => assert_eq!(fault, Fault::Denied),
                Some(page) if page.promise == Promise::Uncommitted => assert_ne!(fault, Fault::Denied),
                Some(_) => assert_eq!(fault, Fault::Resolved),
            }
        }
        Step::Read(at, bytes) => {
            let mut out = vec![0; bytes as usize];
            let result = space.read(at, &mut out);
            let reach = reach(space, model, at, bytes, Access::Read);
            assert_eq!(result.is_ok(), reach == bytes, "{result:?}");
            if result.is_ok() {
                let want = |n: u64| {
                    let content = &model.0[&VirtualAddress(at + n).page_start().0].content;
                    content.as_ref().map_or(0, |content| content[((at + n) % PAGE_BYTES) as usize])
                };
                assert!((0..bytes).zip(&out).all(|(n, byte)| want(n) == *byte));
            }
        }
        Step::Write(at, bytes, byte) => {
            let result = space.write(at, &vec![byte; bytes as usize]);
            let reach = reach(space, model, at, bytes, Access::Write);
            assert_eq!(result.is_ok(), reach == bytes, "{result:?}");
            // What could be written before the failure was.
            for address in at..at + reach {
                let page = model.0.get_mut(&VirtualAddress(address).page_start().0).unwrap();
                page.content.get_or_insert_with(|| Box::new([0; PAGE_BYTES as usize]))
                    [(address % PAGE_BYTES) as usize] = byte;
            }
        }
        Step::FindGap(pages) => {
            let gap = space.find_gap(pages * PAGE_BYTES, map::MMAP_END).unwrap();
            assert!(gap.pages() == pages && gap.end() <= map::MMAP_END);
            assert!(model.range(gap).next().is_none() && !space.is_mapped(gap));
            assert!(gap.end() == map::MMAP_END || model.0.contains_key(&gap.end()), "there is a higher gap");
        }
    }
}

#[track_caller]
fn compare(result: Result<(), SpaceError>, want: &Result<(), SpaceError>) {
    assert_eq!(format!("{result:?}"), format!("{want:?}"));
}

/// How far an access from `at` on gets. The model alone says so, except where an uncommitted page may find no memory.
fn reach(space: &mut Space, model: &Model, at: u64, bytes: u64, access: Access) -> u64 {
    let page_of = |n| model.0.get(&VirtualAddress(at + n).page_start().0);
    let reach = space.reach(at, bytes, access).unwrap();
    let allowed = (0..bytes).find(|n| !page_of(*n).is_some_and(|page| page.allows(access))).unwrap_or(bytes);
    if reach != allowed {
        assert!(
            reach < allowed && page_of(reach).unwrap().promise == Promise::Uncommitted,
            "{reach} of {allowed} bytes"
        );
    }
    reach
}

fn check(limit: u64, cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&proptest::collection::vec(steps(), 1..60), |steps| {
            let (mut space, mut model) = (space(limit), Model::default());
            space.map_sealed(span(SEALED, 4), Rights::RW, Fill::Now).unwrap();
            let page =
                Page { rights: Rights::RW, downwards: false, promise: Promise::Committed, sealed: true, content: None };
            model.0.extend((0..4).map(|n| (SEALED + n * PAGE_BYTES, page.clone())));
            audit(&space, &model, limit);
            for step in &steps {
                take(&mut space, &mut model, step);
                audit(&space, &model, limit);
            }
            // Whatever was promised is kept, for all of it at once.
            for (at, page) in &model.0 {
                if page.promise == Promise::Committed && page.allows(Access::Read) {
                    assert_eq!(space.fault(*at, Access::Read).unwrap(), Fault::Resolved, "{at:#x}");
                }
            }
            audit(&space, &model, limit);
            is_read_back(&mut space, limit);
            // And nothing is left behind but tables.
            for (start, end, ..) in model.areas().into_iter().filter(|(start, ..)| *start != SEALED) {
                space.unmap(Span::new(start, end - start).unwrap()).unwrap();
                model.remove(Span::new(start, end - start).unwrap());
            }
            audit(&space, &model, limit);
            is_read_back(&mut space, limit);
            assert_eq!(space.frames_in_use(), Tables::of(&space).tables + 3 + 4);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_large_space_does_what_the_model_says() {
    check(1 << 16, 32);
}

#[test]
fn a_small_space_does_what_the_model_says() {
    check(256, 32);
}

#[test]
fn a_space_of_middling_size_does_what_the_model_says() {
    check(1200, 32);
}

#[test]
fn all_of_a_mebibyte_can_be_promised_and_had() {
    let mut space = space(256);
    let free = space.free_pages();
    assert!(free > 230, "{free}");
    assert!(space.map(span(0x40_0000, free + 1), Rights::RW, Fill::Up, Promise::Committed).is_err());
    space.map(span(0x40_0000, free), Rights::RW, Fill::Up, Promise::Committed).unwrap();
    assert_eq!(space.free_pages(), 0);
    let before = space.frames_in_use();
    for rights in [Rights::RW, Rights::NONE] {
        let result = space.map(span(0x7fff_0000_0000, 1), rights, Fill::Now, Promise::Committed);
        assert_eq!(result.is_ok(), rights.is_none());
    }
    assert_eq!(space.frames_in_use(), before);
    // In place of what there was there is room.
    space.map(span(0x40_0000, free), Rights::RW, Fill::Up, Promise::Committed).unwrap();
    space.write(0x40_0000, &vec![7; (free * PAGE_BYTES) as usize]).unwrap();
    space.unmap(span(0x40_0000, free)).unwrap();
    // The tables stay.
    assert!(space.free_pages() + 6 >= free);
}

#[test]
fn a_memory_too_small_for_the_control_pages_is_refused() {
    for pages in 1..16 {
        let memory = GuestMemory::reserve(PageBytes::from_pages(pages).unwrap()).unwrap();
        let page = ControlPage { address: map::DOORBELL, content: vec![1], rights: Rights::RX, level: Level::User };
        let result = Space::new(memory, Box::new(Flat), &[page]);
        assert_eq!(result.is_ok(), pages >= 6, "{pages}: {result:?}");
    }
}

/// A guest that takes all it can get without a promise cannot break the one made before.
#[test]
fn uncommitted_pages_do_not_eat_committed_ones() {
    for (pages, stride) in (600..606).flat_map(|pages| [(pages, 77 * PAGE_BYTES), (pages, 0x8012_3000)]) {
        let mut space = space(1024);
        let promised = span(0x40_0000, pages);
        space.map(promised, Rights::RW, Fill::Up, Promise::Committed).unwrap();
        let reserved = span(0x1_0000_0000, 1 << 30);
        space.map(reserved, Rights::RW, Fill::Up, Promise::Uncommitted).unwrap();
        let mut taken = 0;
        while space.fault(reserved.start() + taken * stride, Access::Write).unwrap() == Fault::Resolved {
            taken += 1;
        }
        assert!(taken > 20, "{taken}");
        space.write(promised.start(), &vec![1; promised.bytes() as usize]).unwrap();
    }
}

#[test]
fn a_page_that_is_promised_late_is_counted_once() {
    let mut space = space(1024);
    let pages = span(0x40_0000, 8);
    space.map(pages, Rights::RW, Fill::Now, Promise::Uncommitted).unwrap();
    space.unmap(pages).unwrap();
    let free = space.free_pages();
    for rights in [Rights::R, Rights::RW, Rights::RX] {
        space.map(pages, Rights::RW, Fill::Now, Promise::Uncommitted).unwrap();
        assert_eq!(space.free_pages(), free - 8);
        space.protect(pages, Rights::NONE).unwrap();
        space.protect(pages, rights).unwrap();
        assert_eq!(space.free_pages(), free - 8);
        space.unmap(pages).unwrap();
        assert_eq!(space.free_pages(), free);
    }
}

/// Nor does moving the promised pages about, which takes new tables each time.
#[test]
fn moving_a_promise_does_not_break_it() {
    for spare in 0..14 {
        let mut space = space(2048);
        let mut promised = span(0x1f_0000, space.free_pages() - spare);
        space.map(promised, Rights::RW, Fill::Up, Promise::Committed).unwrap();
        for n in 1..100 {
            let to = n * 0x80_4000_0000 + 0x1f_0000;
            // Most of it: what is left behind has an end more.
            let part = Span::new(promised.start() + 0x10_0000, promised.bytes() - 0x20_0000).unwrap();
            match space.relocate(part, to) {
                Ok(()) => promised = Span::new(to, part.bytes()).unwrap(),
                Err(SpaceError::NoMemory) => break,
                Err(error) => panic!("{error}"),
            }
            if promised.bytes() < 0x40_0000 {
                break;
            }
        }
        let all: Vec<Span> = space.areas().map(|area| area.span).collect();
        for area in all {
            space.write(area.start(), &vec![1; area.bytes() as usize]).unwrap();
        }
    }
}

/// The tables that scattered pages need are part of the promise.
#[test]
fn scattered_promises_are_kept() {
    const PAGES: u64 = 4096;
    let mut space = space(PAGES);
    let at = |n: u64| 0x1_0000_0000 + n * (3 << 30);
    space.map(span(at(0), (3 << 18) * PAGES), Rights::NONE, Fill::Up, Promise::Committed).unwrap();
    let promised = (0..PAGES).take_while(|n| space.protect(span(at(*n), 1), Rights::RW).is_ok()).count() as u64;
    assert!(promised > PAGES / 4, "{promised}");
    for n in 0..promised {
        assert_eq!(space.fault(at(n), Access::Write).unwrap(), Fault::Resolved, "{n} of {promised}");
    }
    // Holes in what was one piece leave tables that are needed by the page.
    let mut space = self::space(PAGES);
    let whole = span(0x4000_0000, space.free_pages());
    space.map(whole, Rights::RW, Fill::Up, Promise::Committed).unwrap();
    let kept: Vec<u64> = (0..whole.pages() / 512).map(|n| whole.start() + (n * 512 + 100) * PAGE_BYTES).collect();
    for pair in kept.windows(2) {
        space.unmap(Span::new(pair[0] + PAGE_BYTES, pair[1] - pair[0] - PAGE_BYTES).unwrap()).unwrap();
    }
    let rest = space.free_pages();
    space.map(span(0x10_0000_0000, rest), Rights::RW, Fill::Now, Promise::Committed).unwrap();
    for page in kept {
        assert_eq!(space.fault(page, Access::Write).unwrap(), Fault::Resolved);
    }
}

/// What a step costs follows what is mapped, not the numbers in it: each of these would take minutes if it walked
/// addresses.
#[test]
fn terabytes_cost_nothing() {
    let mut space = space(4096);
    let whole = Span::new(map::LOWEST, map::WINDOW_START - map::LOWEST).unwrap();
    for _ in 0..1000 {
        space.map(whole, Rights::RW, Fill::Up, Promise::Uncommitted).unwrap();
        assert_eq!(space.fault(0x1234_5678_9000, Access::Write).unwrap(), Fault::Resolved);
        space.protect(whole, Rights::R).unwrap();
        space.protect(whole, Rights::NONE).unwrap();
        space.forget(whole).unwrap();
        space.unmap(whole).unwrap();
        space.map(span(map::LOWEST, 1), Rights::RW, Fill::Now, Promise::Committed).unwrap();
        space.unmap(whole).unwrap();
    }
    let half = Span::new(map::LOWEST, whole.bytes() / 2 / PAGE_BYTES * PAGE_BYTES).unwrap();
    space.map(half, Rights::RW, Fill::Up, Promise::Uncommitted).unwrap();
    space.write(half.start() + 5, b"moved").unwrap();
    space.relocate(half, half.end()).unwrap();
    let mut out = [0; 5];
    space.read(half.end() + 5, &mut out).unwrap();
    assert_eq!(&out, b"moved");
}

#[test]
fn a_guest_with_too_many_areas_can_still_give_some_back() {
    let mut space = space(4096);
    let at = |n: u64| 0x1_0000_0000 + n * 2 * PAGE_BYTES;
    let mut areas = 0;
    while space.map(span(at(areas), 1), Rights::NONE, Fill::Up, Promise::Uncommitted).is_ok() {
        areas += 1;
    }
    assert_eq!(areas as usize, AREAS_MAX);
    // No page of them has a frame.
    assert!(space.frames_in_use() < 32);
    assert!(matches!(space.protect(span(at(0), 1), Rights::R), Ok(())));
    space.unmap(span(at(10), 1)).unwrap();
    space.map(span(at(10), 1), Rights::R, Fill::Up, Promise::Committed).unwrap();
    space.unmap(Span::new(at(0), at(areas) - at(0)).unwrap()).unwrap();
    assert_eq!(space.areas().count(), 0);
}

#[test]
fn a_guest_cannot_reach_the_control_pages() {
    let mut space = space(4096);
    let mut byte = [0];
    for page in (map::CONTROL_START..map::WINDOW_END).step_by(PAGE_BYTES as usize) {
        assert!(space.write(page, &[1]).is_err(), "{page:#x}");
        assert_eq!(space.read(page, &mut byte).is_ok(), page == map::DOORBELL, "{page:#x}");
        assert_eq!(space.fault(page, Access::Write).unwrap(), Fault::Denied);
        assert_eq!(Span::new(page, 1), None);
    }
    for address in [0, map::LOWEST - 1, map::HIGHEST, 1 << 47, u64::MAX - 4095, u64::MAX] {
        assert!(space.read(address, &mut byte).is_err(), "{address:#x}");
        assert!(space.write(address, &byte).is_err(), "{address:#x}");
        assert_eq!(space.reach(address, u64::MAX, Access::Read).unwrap(), 0);
        assert_eq!(space.fault(address, Access::Read).unwrap(), Fault::Denied);
    }
}

/// What a file has of an address space: its state as plain data, and the pages of its memory.
struct Saved {
    state: SavedSpace,
    pages: HashMap<u32, Box<PageContent>>,
    limit: u64,
}

impl Saved {
    fn of(space: &mut Space, limit: u64) -> Self {
        let state = space.state().saved();
        let page = |number: u32| {
            let mut page = Box::new([0; PAGE_BYTES as usize]);
            space.memory().read(u64::from(number) * PAGE_BYTES, &mut page[..]).unwrap();
            (number, page)
        };
        Self { pages: (0..state.next_frame).map(page).collect(), state, limit }
    }

    fn check(&self) -> Result<SpaceState, SavedError> {
        let control = [
            (map::DESCRIPTORS, Rights::R, Level::Supervisor),
            (map::EXCEPTION_STACK, Rights::RW, Level::Supervisor),
            (map::DOORBELL, Rights::RX, Level::User),
        ];
        let control = control.map(|(address, rights, level)| ControlPlace { address, rights, level });
        self.state.check(self.limit, Vec::new(), &control, |frame| Ok(self.pages.get(&frame.0).map(|page| &**page)))
    }
}

/// That what is read back is what was written, accounts and all.
fn is_read_back(space: &mut Space, limit: u64) {
    let saved = Saved::of(space, limit);
    let read = saved.check().unwrap_or_else(|error| panic!("{error}: {:?}", saved.state));
    assert_eq!(read.saved(), saved.state);
    // A twin goes on as the original does.
    let memory = GuestMemory::reserve(PageBytes::from_pages(limit).unwrap()).unwrap();
    let numbers: Vec<u32> = (0..saved.state.next_frame).collect();
    let content = |frame: Frame| Ok(saved.pages.get(&frame.0).map(|page| &**page));
    let twin = Space::from_state(memory, Box::new(Flat), &read, &numbers, content).unwrap();
    assert_eq!((twin.free_pages(), twin.frames_in_use()), (space.free_pages(), space.frames_in_use()));
    assert!(twin.areas().eq(space.areas()));
}

/// A space with something of everything.
fn varied() -> (Space, u64) {
    let limit = 4096;
    let mut space = space(limit);
    space.map_sealed(span(SEALED, 4), Rights::RW, Fill::Now).unwrap();
    space.map(span(0x40_0000, 3), Rights::RX, Fill::Now, Promise::Committed).unwrap();
    space.map(span(0x50_0000, 40), Rights::RW, Fill::Up, Promise::Committed).unwrap();
    space.map(span(0x7000_0000, 1000), Rights::RW, Fill::Up, Promise::Uncommitted).unwrap();
    space.map(span(0x8000_0000, 8), Rights::R, Fill::Now, Promise::Committed).unwrap();
    for at in [0x50_0000 + 7 * PAGE_BYTES, 0x7000_0000 + 500 * PAGE_BYTES] {
        assert_eq!(space.fault(at, Access::Write).unwrap(), Fault::Resolved);
    }
    space.protect(span(0x8000_0000, 2), Rights::NONE).unwrap();
    space.unmap(span(0x8000_0000 + 4 * PAGE_BYTES, 2)).unwrap();
    (space, limit)
}

#[test]
fn no_page_table_with_one_bit_changed_is_believed() {
    let (mut space, limit) = varied();
    is_read_back(&mut space, limit);
    let mut saved = Saved::of(&mut space, limit);
    let tables: Vec<u32> = {
        let memory = space.memory();
        let mut tables = vec![Space::ROOT.0];
        let mut level = tables.clone();
        for _ in 0..3 {
            let below = |table: &u32| {
                let table = u64::from(*table) * PAGE_BYTES;
                let entry = move |n: u64| memory.read_u64(table + 8 * n).unwrap();
                (0..512).map(entry).filter(|entry| *entry != 0).map(|entry| (entry >> 12) as u32 & 0xff_ffff)
            };
            level = level.iter().flat_map(below).collect();
            tables.extend(&level);
        }
        tables
    };
    let mut tried = 0;
    for table in tables {
        for place in 0..512 {
            let at = 8 * place;
            let word = |saved: &Saved| u64::from_le_bytes(saved.pages[&table][at..at + 8].try_into().unwrap());
            let old = word(&saved);
            let bits: &[u32] =
                if old == 0 { &[0, 9, 13] } else { &[0, 1, 2, 3, 5, 6, 7, 9, 11, 12, 13, 14, 20, 33, 47, 62, 63] };
            for bit in bits {
                let new = old ^ 1 << bit;
                saved.pages.get_mut(&table).unwrap()[at..at + 8].copy_from_slice(&new.to_le_bytes());
                assert!(saved.check().is_err(), "table {table}, entry {place}: {old:#x} became {new:#x}");
                tried += 1;
            }
            saved.pages.get_mut(&table).unwrap()[at..at + 8].copy_from_slice(&old.to_le_bytes());
        }
    }
    assert!(tried > 10_000, "{tried}");
    assert!(saved.check().is_ok());
}

#[test]
fn no_state_that_contradicts_itself_is_believed() {
    type Change = fn(&mut SavedSpace);
    let changes: &[(&str, Change)] = &[
        ("more frames", |state| state.next_frame += 1),
        ("fewer frames", |state| state.next_frame -= 1),
        ("all frames", |state| state.next_frame = u32::MAX),
        ("a used frame is free", |state| state.free.push((2, 1))),
        ("a frame is free twice", |state| state.free.push(state.free[0])),
        ("free frames without end", |state| state.free.push((1, u32::MAX))),
        ("nothing is free", |state| state.free.clear()),
        ("an area is gone", |state| drop(state.areas.remove(0))),
        ("an area twice", |state| state.areas.push(state.areas[0].clone())),
        ("areas in another order", |state| state.areas.swap(0, 1)),
        ("no page", |state| state.areas[0].end = state.areas[0].start),
        ("half a page", |state| state.areas[0].end += 8),
        ("backwards", |state| state.areas[0].end = 0),
        ("the null page", |state| state.areas[0].start = 0),
        ("the host's pages", |state| state.areas.last_mut().unwrap().end = map::WINDOW_END),
        ("other rights", |state| state.areas[0].rights = "rw-".into()),
        ("writable code", |state| state.areas[0].rights = "rwx".into()),
        ("no rights at all", |state| state.areas[0].rights = "yes".into()),
        ("not promised", |state| state.areas[0].committed = false),
        ("a large batch", |state| state.areas[0].batch = 513),
        ("no batch", |state| state.areas[0].batch = 0),
        ("lent", |state| state.areas[0].lent = Some(1 << 20)),
    ];
    let (mut space, limit) = varied();
    let good = Saved::of(&mut space, limit);
    for (what, change) in changes {
        let mut saved = Saved { state: good.state.clone(), pages: good.pages.clone(), limit };
        change(&mut saved.state);
        // What is not promised is only counted otherwise; a state may say so.
        assert_eq!(saved.check().is_ok(), *what == "not promised", "{what}");
    }
    let mut small = good;
    small.limit = u64::from(small.state.next_frame) + 4;
    assert!(small.check().is_err(), "more was promised than there is");
}
