//! What the decision says about the heap that guests use, so that a new version of it cannot make that untrue unseen.

use coracle_heap_bench::heap::{SealedTalc, Talc};
use coracle_heap_bench::measure::{demand, doubling, first, init, started};
use coracle_heap_bench::workload::{Start, message, request};
use coracle_heap_bench::{Heap, PAGE_BYTES};

#[test]
fn a_heap_of_any_size_touches_two_pages_and_its_static() {
    for bytes in [128 << 10, 8 << 20, 256 << 20, 16 << 30] {
        let pages = init::<SealedTalc>(bytes).unwrap();
        assert!(pages.heap_touched <= 2 && pages.state_written == 1, "{bytes} bytes: {pages:?}");
    }
}

#[test]
fn a_request_dirties_few_pages_more_than_it_needs() {
    let (_, _, bytes) = demand().unwrap();
    let pages = first::<SealedTalc>(Start::LeavesHoles).unwrap();
    assert!(pages <= bytes.div_ceil(PAGE_BYTES) + 4, "{pages} pages for {bytes} bytes");
    assert!(pages * 2 < first::<Talc>(Start::LeavesHoles).unwrap(), "sealing no longer pays");
}

#[test]
fn a_vector_grows_to_half_of_the_heap() {
    for bytes in [128 << 10, 8 << 20, 256 << 20] {
        assert!(doubling::<SealedTalc>(bytes).unwrap() >= 0.5, "{bytes} bytes");
    }
}

#[test]
fn a_restored_heap_dirties_the_same_pages_again() {
    fn dirtied<H: Heap>(restored: bool) -> usize {
        let mut placed = started::<H>(Start::LeavesHoles).unwrap();
        placed.snapshot().unwrap();
        if restored {
            drop(request(placed.handle(), &message(1)));
            placed.restore().unwrap();
        }
        drop(request(placed.handle(), &message(0)));
        placed.pages().unwrap().written()
    }
    assert_eq!(dirtied::<SealedTalc>(true), dirtied::<SealedTalc>(false));
}
