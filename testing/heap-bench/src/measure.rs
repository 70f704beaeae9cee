//! The figures of the table. Each is a count, the same on every run.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::io;

use allocator_api2::vec::Vec as VecIn;

use crate::arena::Pages;
use crate::heap::{Counted, Talc};
use crate::workload::{Numbers, Start, message, request, start_up};
use crate::{Block, Heap, Placed};

/// The heap of a guest that serves requests.
pub const SERVING_BYTES: usize = 8 << 20;

/// A heap of that size in a guest that has started.
///
/// # Errors
/// Where the kernel refuses.
pub fn started<H: Heap>(start: Start) -> io::Result<Placed<H>> {
    let placed = Placed::new(SERVING_BYTES)?;
    start_up(placed.handle(), start);
    Ok(placed)
}

/// Pages that a heap touches to serve its first block, of 16 bytes.
///
/// # Errors
/// Where the kernel refuses.
pub fn init<H: Heap>(heap_bytes: usize) -> io::Result<Pages> {
    let placed = Placed::<H>::new(heap_bytes)?;
    std::mem::forget(placed.handle().block(layout(16)));
    placed.pages()
}

/// Pages that a start and one request touch where no snapshot comes between.
///
/// # Errors
/// Where the kernel refuses.
pub fn cold<H: Heap>() -> io::Result<usize> {
    let placed = started::<H>(Start::LeavesHoles)?;
    drop(request(placed.handle(), &message(0)));
    Ok(placed.pages()?.written())
}

/// Pages that the first request after a start and a snapshot dirties.
///
/// # Errors
/// Where the kernel refuses.
pub fn first<H: Heap>(start: Start) -> io::Result<usize> {
    dirtied(&started::<H>(start)?, |placed| drop(request(placed.handle(), &message(0))))
}

/// Pages that a request dirties after 1,000 others, each of which left nothing.
///
/// # Errors
/// Where the kernel refuses.
pub fn steady<H: Heap>() -> io::Result<usize> {
    let placed = started::<H>(Start::LeavesHoles)?;
    (1..1000).for_each(|seed| drop(request(placed.handle(), &message(seed))));
    dirtied(&placed, |placed| drop(request(placed.handle(), &message(0))))
}

/// Pages that a request dirties after 10,000 others, in a guest that keeps the last 32 answers; and all pages that the
/// heap has by then.
///
/// # Errors
/// Where the kernel refuses.
pub fn keeping<H: Heap>() -> io::Result<(usize, usize)> {
    let placed = started::<H>(Start::LeavesHoles)?;
    let mut kept = VecDeque::new();
    let mut serve = |seed| {
        kept.push_back(request(placed.handle(), &message(seed)));
        if kept.len() > 32 {
            kept.pop_front();
        }
    };
    (1..=10_000).for_each(&mut serve);
    let touched = placed.pages()?.written();
    Ok((dirtied(&placed, |_| serve(0))?, touched))
}

fn dirtied<H: Heap>(placed: &Placed<H>, act: impl FnOnce(&Placed<H>)) -> io::Result<usize> {
    placed.snapshot()?;
    act(placed);
    Ok(placed.pages()?.written())
}

/// What a request asks of its heap, whichever that is: calls of alloc and realloc, and the most bytes live at once.
///
/// # Errors
/// Where the kernel refuses.
pub fn demand() -> io::Result<(usize, usize, usize)> {
    let mut placed = Placed::<Counted<Talc>>::new(SERVING_BYTES)?;
    drop(request(placed.handle(), &message(0)));
    Ok(placed.inspect(|heap| (heap.calls.0, heap.calls.1, heap.live_bytes.1)))
}

/// What is left of a heap in one piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pieces {
    /// The largest block that fits while half of the region is live after long churn, as a share of the bytes that
    /// are not live. `None` if the heap could not even hold that half.
    pub half_live: Option<f64>,
    /// The same, of the whole region, when all is freed again.
    pub all_freed: f64,
}

/// Churns blocks of 16 B to 32 KiB, half of the region live, for 200,000 steps.
///
/// # Errors
/// Where the kernel refuses.
pub fn pieces<H: Heap>() -> io::Result<Pieces> {
    let placed = Placed::<H>::new(SERVING_BYTES)?;
    let (handle, half) = (placed.handle(), SERVING_BYTES / 2);
    handle.seal();
    let mut numbers = Numbers::new(3);
    let (mut blocks, mut live, mut refused) = (Vec::new(), 0, false);
    for _ in 0..200_000 {
        if live >= half {
            let block: Block<'_, H> = blocks.swap_remove(numbers.below(blocks.len()));
            live -= block.layout().size();
        } else if let Some(block) = handle.block(layout(numbers.spread(16, 32 << 10))) {
            live += block.layout().size();
            blocks.push(block);
        } else {
            refused = true;
            break;
        }
    }
    let free = SERVING_BYTES - live;
    let half_live = (!refused).then(|| largest(&placed, free) as f64 / free as f64);
    drop(blocks);
    Ok(Pieces { half_live, all_freed: largest(&placed, SERVING_BYTES) as f64 / SERVING_BYTES as f64 })
}

/// The largest block that fits, to 16 bytes.
fn largest<H: Heap>(placed: &Placed<H>, at_most: usize) -> usize {
    let (mut fits, mut fails) = (0, at_most / 16 + 1);
    while fails - fits > 1 {
        let middle = fits.midpoint(fails);
        match placed.handle().block(layout(middle * 16)) {
            Some(_) => fits = middle,
            None => fails = middle,
        }
    }
    fits * 16
}

/// The capacity that a `Vec<u8>` reaches by pushes, doubling each time, as a share of the region. A few small blocks
/// are live already.
///
/// # Errors
/// Where the kernel refuses.
pub fn doubling<H: Heap>(heap_bytes: usize) -> io::Result<f64> {
    let placed = Placed::<H>::new(heap_bytes)?;
    let others: Vec<_> = (0..16).map(|_| placed.handle().block(layout(64))).collect();
    placed.handle().seal();
    let mut vec = VecIn::<u8, _>::new_in(placed.handle());
    let mut capacity = 8;
    while vec.try_reserve_exact(capacity - vec.len()).is_ok() {
        vec.resize(capacity, 7);
        capacity *= 2;
    }
    drop(others);
    Ok(vec.capacity() as f64 / heap_bytes as f64)
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).expect("sizes here are small")
}
