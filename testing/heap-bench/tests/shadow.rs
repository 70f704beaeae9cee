//! Each candidate against a shadow that knows which bytes are whose: blocks lie in the region, are aligned, overlap
//! with no other, and keep what was written to them, through random allocating, freeing and resizing.
//!
//! Two heaps that are wrong on purpose show that the shadow would see it.
//!
//! Debug builds take 200,000 steps with small blocks, release builds three million, and both fewer where a step costs
//! more; `HEAP_BENCH_STEPS` says otherwise.

#![allow(unsafe_code)] // The wrong heaps are heaps.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;

use coracle_heap_bench::workload::Numbers;
use coracle_heap_bench::{Block, Heap, PAGE_BYTES, Placed, heap};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What a test does to a heap.
#[derive(Clone, Copy)]
struct Case {
    heap_bytes: usize,
    /// Blocks live at once, at most.
    blocks: usize,
    /// Sizes, from the first to the second.
    sizes: (usize, usize),
    /// Steps, for each million that is asked for.
    steps_per_million: usize,
    /// Whether blocks are resized too, which may copy all that they have.
    resizes: bool,
}

/// Small blocks, as in the report of talc 5.0.3 losing its free list.
const SMALL: Case =
    Case { heap_bytes: 128 * KIB, blocks: 600, sizes: (1, 512), steps_per_million: 1_000_000, resizes: true };
/// Blocks of all sizes, and a heap that is full most of the time.
const MIXED: Case =
    Case { heap_bytes: 8 * MIB, blocks: 400, sizes: (1, 256 * KIB), steps_per_million: 300_000, resizes: true };
/// Free blocks of 16 MiB and far more. talc 5.0.3 mixed up sizes whose top byte is odd: from 16 MiB on where a word
/// has 32 bits, and never where it has 64.
const LARGE: Case =
    Case { heap_bytes: 256 * MIB, blocks: 24, sizes: (16, 64 * MIB), steps_per_million: 20_000, resizes: true };
/// Sizes that do not fit in 32 bits.
const HUGE: Case =
    Case { heap_bytes: 16 << 30, blocks: 12, sizes: (4 * KIB, 5 << 30), steps_per_million: 2_000, resizes: false };

/// Live blocks by address, with their ends.
#[derive(Default)]
struct Shadow(BTreeMap<usize, usize>);

impl Shadow {
    #[track_caller]
    fn add<H: Heap>(&mut self, block: &Block<'_, H>, region: &std::ops::Range<usize>) {
        let (start, layout) = (block.address(), block.layout());
        let end = start + layout.size();
        assert!(region.start <= start && end <= region.end, "{start:#x}..{end:#x} is outside {region:#x?}");
        assert!(start.is_multiple_of(layout.align()), "{start:#x} is not aligned to {}", layout.align());
        if let Some((other, other_end)) = self.0.range(..end).next_back() {
            assert!(*other_end <= start, "{start:#x}..{end:#x} overlaps {other:#x}..{other_end:#x}");
        }
        self.0.insert(start, end);
    }

    #[track_caller]
    fn remove<H: Heap>(&mut self, block: &Block<'_, H>) {
        assert_eq!(self.0.remove(&block.address()), Some(block.address() + block.layout().size()));
    }
}

/// All of a small block. Of a large one the ends, where an allocator writes its own.
fn stamped(bytes: usize) -> impl Iterator<Item = usize> {
    let edge = if bytes <= 4 * KIB { bytes } else { 64 };
    let middle = (bytes > 4 * KIB).then_some(bytes / 2);
    (0..edge).chain(middle).chain(bytes.saturating_sub(64).max(edge)..bytes)
}

fn layout(numbers: &mut Numbers, sizes: (usize, usize)) -> Layout {
    let align = match numbers.below(16) {
        0 => PAGE_BYTES,
        1..4 => 1 << numbers.below(10),
        _ => 8,
    };
    Layout::from_size_align(numbers.spread(sizes.0, sizes.1), align).expect("sizes here are far from the limit")
}

#[track_caller]
fn check<H: Heap>(case: Case, seed: u64) {
    let asked =
        std::env::var("HEAP_BENCH_STEPS").ok().map(|steps| steps.parse().expect("HEAP_BENCH_STEPS is a number"));
    let steps = asked.unwrap_or(if cfg!(debug_assertions) { 200_000 } else { 3_000_000 });
    let steps: usize = steps * case.steps_per_million / 1_000_000;

    let placed = Placed::<H>::new(case.heap_bytes).expect("the kernel gives memory");
    let region = placed.region();
    let mut numbers = Numbers::new(seed);
    let mut shadow = Shadow::default();
    let mut live: Vec<(Block<'_, H>, u64)> = Vec::new();
    let mut refused = 0;
    for step in 0..steps as u64 {
        if step == steps as u64 / 4 {
            placed.handle().seal();
        }
        let intact = |block: &Block<'_, H>, stamp, bytes| {
            let spoilt = block.spoilt_at(stamp, stamped(bytes).take_while(|offset| *offset < block.layout().size()));
            assert_eq!(spoilt, None, "step {step}: a block of {:?} was written to", block.layout());
        };
        match numbers.below(8) {
            0..4 if live.len() < case.blocks => {
                let Some(mut block) = placed.handle().block(layout(&mut numbers, case.sizes)) else {
                    refused += 1;
                    continue;
                };
                shadow.add(&block, &region);
                block.stamp(step, stamped(block.layout().size()));
                live.push((block, step));
            }
            4 | 5 if case.resizes && !live.is_empty() => {
                let place = numbers.below(live.len());
                let (block, stamp) = &mut live[place];
                let (old, new) = (block.layout().size(), numbers.spread(case.sizes.0, case.sizes.1));
                shadow.remove(block);
                if block.resize(new) {
                    // What was stamped of the part that both have came along.
                    intact(block, *stamp, old);
                    *stamp = step;
                    block.stamp(step, stamped(new));
                } else {
                    refused += 1;
                    intact(block, *stamp, old);
                }
                shadow.add(block, &region);
            }
            _ if !live.is_empty() => {
                let (block, stamp) = live.swap_remove(numbers.below(live.len()));
                intact(&block, stamp, block.layout().size());
                shadow.remove(&block);
            }
            _ => {}
        }
    }
    for (block, stamp) in live {
        assert_eq!(block.spoilt_at(stamp, stamped(block.layout().size())), None);
    }
    assert!(refused < steps / 2, "{refused} of {steps} refused: the case tests little");
}

macro_rules! cases {
    ($($name:ident: $heap:ty;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn small_blocks() {
                check::<$heap>(SMALL, 1);
            }

            #[test]
            fn mixed_blocks_in_a_full_heap() {
                check::<$heap>(MIXED, 2);
            }

            #[test]
            fn gaps_of_16_mib_and_more() {
                check::<$heap>(LARGE, 3);
            }

            #[test]
            fn sizes_beyond_32_bits() {
                check::<$heap>(HUGE, 4);
            }
        }
    )*};
}

cases! {
    talc: heap::Talc;
    talc_sealed: heap::SealedTalc;
    dlmalloc: heap::Dlmalloc;
    rlsf: heap::Rlsf;
    linked_list: heap::LinkedList;
    buddy: heap::Buddy;
    galloc: heap::Galloc;
}

/// Hands out the region from below and takes nothing back. If `TWICE`, each hundredth block is the one before it again;
/// otherwise a block that is resized loses its content.
struct Wrong<const TWICE: bool> {
    next: *mut u8,
    last: *mut u8,
    calls: usize,
}

// SAFETY: it is not a heap, which is its use; the shadow stops at the first fault, and no list of blocks can break.
unsafe impl<const TWICE: bool> Heap for Wrong<TWICE> {
    const NAME: &'static str = "wrong";

    fn empty() -> Self {
        Self { next: std::ptr::null_mut(), last: std::ptr::null_mut(), calls: 0 }
    }

    unsafe fn init(&mut self, region: NonNull<u8>, _: usize) {
        self.next = region.as_ptr();
    }

    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        self.calls += 1;
        if !TWICE || !self.calls.is_multiple_of(100) {
            self.last = self.next.map_addr(|next| next.next_multiple_of(layout.align()));
            self.next = self.last.wrapping_add(layout.size());
        }
        self.last
    }

    unsafe fn dealloc(&mut self, _: *mut u8, _: Layout) {}

    unsafe fn realloc(&mut self, _: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let moved = Layout::from_size_align(bytes, layout.align()).expect("sizes here are far from the limit");
        // SAFETY: passed on.
        unsafe { self.alloc(moved) }
    }
}

const SHORT: Case = Case { steps_per_million: 1_000_000, ..LARGE };

#[test]
#[should_panic(expected = "overlaps")]
fn a_heap_that_gives_a_block_twice_is_found_out() {
    check::<Wrong<true>>(Case { sizes: (4 * KIB, 8 * KIB), blocks: 1000, resizes: false, ..SHORT }, 5);
}

#[test]
#[should_panic(expected = "was written to")]
fn a_heap_that_loses_content_is_found_out() {
    check::<Wrong<false>>(Case { sizes: (4 * KIB, 8 * KIB), ..SHORT }, 6);
}
