//! What is alive in this process, counted. One test at a time: the count is the process's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use coracle_snapshot::{Content, PAGE_BYTES, PageBytes, Pages, stats};

fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(stats().pages, 0);
    guard
}

fn bytes(content: u32) -> PageBytes {
    let mut page = [0; PAGE_BYTES];
    page[2000..2004].copy_from_slice(&content.to_le_bytes());
    page
}

#[test]
fn equal_pages_are_stored_once() {
    let _alone = alone();
    // Inside an image; zero is not stored.
    let base = Pages::base((0..1000).map(|number| (number, bytes(number % 4))));
    assert_eq!((stats().pages, stats().bytes), (3, 3 * PAGE_BYTES));
    // Across layers, and across images that know nothing of each other.
    let child = base.derive(&[1, 2, 3, 5000], |_, page| *page = bytes(3)).unwrap();
    let other = Pages::base([(77, bytes(1)), (78, bytes(3)), (79, bytes(4))]);
    assert_eq!(stats().pages, 4);
    let (Content::Bytes(left), Content::Bytes(right)) = (child.page(5000).unwrap(), other.page(78).unwrap()) else {
        unreachable!()
    };
    assert!(std::ptr::eq(left, right));
    // In any order they go with their last owner.
    drop(base);
    assert_eq!(stats().pages, 4);
    drop(other);
    assert_eq!(stats().pages, 3);
    drop(child);
    assert_eq!(stats().pages, 0);
}

#[test]
fn a_snapshot_keeps_nothing_of_its_ancestors_but_what_it_shows() {
    let _alone = alone();
    let mut pages = Pages::base((0..50).map(|number| (number, bytes(number + 1))));
    for generation in 0..1000 {
        pages = pages.derive(&[7, 2000], |number, page| *page = bytes(100 + 2 * generation + number % 2)).unwrap();
        assert_eq!(stats().pages, 51);
    }
    let changed: Vec<u32> = (0..3000).collect();
    let cleared = pages.derive(&changed, |_, page| page.fill(0)).unwrap();
    drop(pages);
    assert_eq!(stats().pages, 0);
    assert_eq!(cleared.numbers().count(), 0);
    assert_eq!(cleared.own_pages(), 51);
}

#[test]
fn threads_share_pages() {
    let _alone = alone();
    let base = Pages::base([(0, bytes(1))]);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let base = &base;
            scope.spawn(move || {
                // The same contents in all threads at about the same time, made and dropped again and again.
                for round in 0..300 {
                    let content = |number| round / 4 + number;
                    let changed = [1, 2, 3, 100 + thread];
                    let pages = base.derive(&changed, |number, page| *page = bytes(content(number))).unwrap();
                    for number in changed {
                        assert_eq!(pages.page(number).unwrap().bytes(), &bytes(content(number)));
                    }
                }
            });
        }
    });
    assert_eq!(stats().pages, 1);
}

#[test]
fn a_panic_while_reading_loses_nothing() {
    let _alone = alone();
    let base = Pages::base([(0, bytes(1))]);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        base.derive(&[0, 1, 2], |number, page| {
            assert!(number < 2, "on purpose");
            *page = bytes(number + 5);
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(stats().pages, 1);
    let child = base.derive(&[0, 1, 2], |number, page| *page = bytes(number + 5)).unwrap();
    assert_eq!(stats().pages, 4);
    assert_eq!(child.own_pages(), 3);
}
