//! Random trees of snapshots against a plain model: a map from numbers to bytes for each.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use coracle_snapshot::{Compression, Content, PAGE_BYTES, PageBytes, Pages};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// What each page holds: a byte that stands for a whole page, 0 for zeros. Pages that are not in it are zero.
type Model = BTreeMap<u32, u8>;

/// Neighbours, and numbers at the edges of what a tree of some height holds.
const NUMBERS: [u32; 22] = [
    0,
    1,
    2,
    7,
    8,
    9,
    63,
    64,
    65,
    511,
    512,
    4095,
    4096,
    32_767,
    32_768,
    1 << 20,
    (1 << 24) - 1,
    1 << 30,
    1 << 31,
    u32::MAX - 8,
    u32::MAX - 1,
    u32::MAX,
];

/// Pages of one content are equal whatever their numbers; of two they differ in one byte, early or late.
fn bytes(content: u8) -> PageBytes {
    let mut page = [0; PAGE_BYTES];
    match content {
        0 => {}
        1 => page[0] = 1,
        2 => page[PAGE_BYTES - 1] = 1,
        other => page.fill(other),
    }
    page
}

/// How one snapshot comes from an earlier one.
#[derive(Clone, Debug)]
struct Step {
    back: usize, // Which: 0 is the one before.
    writes: Vec<(u32, u8)>,
    unchanged: Vec<u32>, // Reported as changed all the same.
}

fn step() -> impl Strategy<Value = Step> {
    let writes = vec((select(&NUMBERS[..]), 0..4_u8), 0..8);
    (prop_oneof![3 => Just(0), 1 => 1..6_usize], writes, vec(select(&NUMBERS[..]), 0..3))
        .prop_map(|(back, writes, unchanged)| Step { back, writes, unchanged })
}

fn read(model: &Model) -> impl FnMut(u32, &mut PageBytes) + '_ {
    |number, page| *page = bytes(model.get(&number).copied().unwrap_or(0))
}

/// Numbers whose pages differ.
fn differences(left: &Model, right: &Model) -> Vec<u32> {
    let numbers: BTreeSet<u32> = left.keys().chain(right.keys()).copied().collect();
    let content = |model: &Model, number| model.get(&number).copied().unwrap_or(0);
    numbers.into_iter().filter(|number| content(left, *number) != content(right, *number)).collect()
}

fn visited(left: &Pages, right: &Pages) -> Vec<u32> {
    let mut numbers = Vec::new();
    left.for_each_difference(right, |number| numbers.push(number));
    numbers
}

#[track_caller]
fn check_content(pages: &Pages, model: &Model) {
    for number in NUMBERS.into_iter().chain([3, 1 << 13, 1 << 29]) {
        let content = model.get(&number).copied().unwrap_or(0);
        assert_eq!(pages.page(number).unwrap().bytes(), &bytes(content), "page {number}");
        assert_eq!(pages.page(number).unwrap() == Content::Zero, content == 0, "page {number}");
    }
    let not_zero = model.iter().filter(|(_, content)| **content != 0).map(|(number, _)| *number);
    assert!(pages.numbers().eq(not_zero));
}

proptest! {
    #[test]
    fn snapshots_are_what_the_model_says(
        base in vec((select(&NUMBERS[..]), 0..4_u8), 0..30),
        steps in vec(step(), 6..20),
        drops in vec(any::<Index>(), 20),
    ) {
        let model: Model = base.iter().copied().collect();
        let pages = Pages::base(base.into_iter().map(|(number, content)| (number, bytes(content))));
        prop_assert_eq!(pages.depth(), 0);
        prop_assert_eq!(pages.own_pages(), pages.numbers().count());
        let mut all = vec![(pages, model)];
        for Step { back, writes, unchanged } in steps {
            let (parent, parent_model) = &all[all.len() - 1 - back.min(all.len() - 1)];
            let mut changed: Vec<u32> = writes.iter().map(|(number, _)| *number).chain(unchanged).collect();
            let mut model = parent_model.clone();
            model.extend(writes);
            let pages = parent.derive(&changed, read(&model)).unwrap();
            let differences = differences(parent_model, &model);
            prop_assert_eq!(pages.same(parent), differences.is_empty());
            if !differences.is_empty() {
                prop_assert_eq!(pages.depth(), parent.depth() + 1);
                prop_assert_eq!(pages.own_numbers(), differences);
                prop_assert_eq!(pages.own_pages(), pages.own_numbers().len());
            }
            // Again without a change, and with nothing reported.
            changed.reverse();
            prop_assert!(pages.derive(&changed, read(&model)).unwrap().same(&pages));
            prop_assert!(pages.derive(&[], |_, _| unreachable!()).unwrap().same(&pages));
            all.push((pages, model));
        }
        for (left, left_model) in &all {
            check_content(left, left_model);
            for (right, right_model) in &all {
                prop_assert_eq!(visited(left, right), differences(left_model, right_model));
            }
            // However many layers, the same as one flat image.
            let flat = Pages::base(left_model.iter().map(|(number, content)| (*number, bytes(*content))));
            check_content(&flat, left_model);
            prop_assert_eq!(visited(left, &flat), [0; 0]);
        }
        // In whatever order others go, those that stay are what they were.
        for index in drops {
            if all.len() > 1 {
                all.swap_remove(index.index(all.len()));
            }
            check_content(&all[0].0, &all[0].1);
        }
    }
}

/// As [`Step`], with numbers that a file can have; many pages at once; and by way of a store.
#[derive(Clone, Debug)]
struct StoredStep {
    back: usize,
    writes: Vec<(u32, u8)>,
    bulk: Option<u8>,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Memory,
    Store,
    StoreUnverified,
    Compressed,
}

fn stored_step() -> impl Strategy<Value = StoredStep> {
    let writes = vec((select(&NUMBERS[..17]), 0..4_u8), 0..8);
    let way = select(&[Way::Memory, Way::Store, Way::StoreUnverified, Way::Compressed][..]);
    let bulk = prop_oneof![4 => Just(None), 1 => (0..4_u8).prop_map(Some)];
    (prop_oneof![3 => Just(0), 1 => 1..6_usize], writes, bulk, way).prop_map(|(back, writes, bulk, way)| StoredStep {
        back,
        writes,
        bulk,
        way,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn snapshots_that_went_through_a_store_are_what_the_model_says(
        base in vec((select(&NUMBERS[..17]), 0..4_u8), 0..30),
        steps in vec(stored_step(), 4..14),
    ) {
        let (_directory, store) = common::store();
        let model: Model = base.iter().copied().collect();
        let pages = Pages::base(base.into_iter().map(|(number, content)| (number, bytes(content))));
        let mut all = vec![(pages, model)];
        for (tag, StoredStep { back, mut writes, bulk, way }) in steps.into_iter().enumerate() {
            let (parent, parent_model) = &all[all.len() - 1 - back.min(all.len() - 1)];
            // More pages than are read when a layer is loaded.
            writes.extend(bulk.into_iter().flat_map(|content| (5000..5100).map(move |number| (number, content))));
            let changed: Vec<u32> = writes.iter().map(|(number, _)| *number).collect();
            let mut model = parent_model.clone();
            model.extend(writes);
            let pages = parent.derive(&changed, read(&model)).unwrap();
            prop_assert_eq!(pages.same(parent), differences(parent_model, &model).is_empty());
            if !pages.same(parent) {
                prop_assert_eq!(pages.own_numbers(), differences(parent_model, &model));
            }
            prop_assert!(visited(parent, &pages) == differences(parent_model, &model));
            if way == Way::Memory {
                all.push((pages, model));
                continue;
            }
            let compression = if way == Way::Compressed { Compression::Zstd } else { Compression::None };
            let tag = tag.to_string();
            store.save(&tag, b"{}", &pages, compression).unwrap();
            let loaded = if way == Way::StoreUnverified { store.load_unverified(&tag) } else { store.load(&tag) };
            all.push((pages, model.clone()));
            all.push((loaded.unwrap().pages, model));
        }
        for (left, left_model) in &all {
            for (right, right_model) in &all {
                // What was not read yet may count as different, but nothing is missed.
                let visited: BTreeSet<u32> = visited(left, right).into_iter().collect();
                prop_assert!(differences(left_model, right_model).iter().all(|number| visited.contains(number)));
            }
        }
        for (pages, model) in &all {
            check_content(pages, model);
            let flat = Pages::base(model.iter().map(|(number, content)| (*number, bytes(*content))));
            for number in 5000..5100 {
                prop_assert_eq!(pages.page(number).unwrap(), flat.page(number).unwrap());
            }
            // Once all is read, pages tell for themselves.
            prop_assert_eq!(visited(pages, &flat), [0; 0]);
        }
        store.verify_all().unwrap();
    }
}

#[test]
fn a_hundred_generations_are_as_good_as_one() {
    let mut model = Model::new();
    let mut pages = Pages::empty();
    let empty = pages.clone();
    for generation in 0..100_u32 {
        model.insert(generation * 77, 3 + generation as u8);
        model.insert(generation * 33 % 500 + 5, 0);
        let changed: Vec<u32> = model.keys().copied().collect();
        pages = pages.derive(&changed, read(&model)).unwrap();
    }
    assert_eq!(pages.depth(), 100);
    assert_eq!(visited(&pages, &empty), differences(&model, &Model::new()));
    for (number, content) in &model {
        assert_eq!(pages.page(*number).unwrap().bytes(), &bytes(*content));
    }
}

#[test]
fn a_base_takes_the_last_of_several_and_no_zeros() {
    let pages = Pages::base([(5, bytes(3)), (1, bytes(1)), (5, bytes(0)), (1, bytes(2)), (9, bytes(0)), (9, bytes(3))]);
    assert_eq!(pages.own_numbers(), [1, 9]);
    assert_eq!(pages.page(1).unwrap().bytes(), &bytes(2));
    assert_eq!(pages.page(5).unwrap(), Content::Zero);
    // Owned, borrowed and boxed pages are all accepted.
    assert_eq!(visited(&pages, &Pages::base([(1, &bytes(2)), (9, &bytes(3))])), [0; 0]);
    assert_eq!(visited(&pages, &Pages::base([(1, Box::new(bytes(2)))])), [9]);
}

#[test]
fn pages_are_read_once_each_in_ascending_order() {
    let mut numbers = Vec::new();
    let derived = Pages::empty().derive(&[9, 3, 9, u32::MAX, 0, 3], |number, page| {
        numbers.push(number);
        *page = bytes(3);
    });
    assert_eq!(derived.unwrap().own_numbers(), numbers);
    assert_eq!(numbers, [0, 3, 9, u32::MAX]);
}

#[test]
fn what_changed_back_is_no_difference() {
    let before = Pages::base([(1, bytes(3)), (2, bytes(2))]);
    let between = before.derive(&[1, 2, 600], |_, page| *page = bytes(1)).unwrap();
    let model = Model::from([(1, 3), (2, 2)]);
    let after = between.derive(&[1, 2, 600], read(&model)).unwrap();
    assert_eq!(visited(&before, &between), [1, 2, 600]);
    assert_eq!(visited(&before, &after), [0; 0]);
    assert!(!before.same(&after));
    assert_eq!(after.depth(), 2);
}
