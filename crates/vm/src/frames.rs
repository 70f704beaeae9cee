//! Which guest-physical pages are in use. Pure book-keeping.

use std::ops::Range;

use coracle_abi::PAGE_BYTES;

use crate::paging::Frame;

/// Hands out frames from 0 upwards, freed ones first.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    limit: u32,
    next: u32,      // Invariant: frames from here on were never handed out.
    free: Vec<u32>, // Invariant: all below `next`, each once.
}

impl Frames {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, next: 0, free: Vec::new() }
    }

    /// From what [`Frames::next`] and [`Frames::free_frames`] said.
    pub(crate) fn from_parts(limit: u32, next: u32, free: Vec<u32>) -> Self {
        Self { limit, next, free }
    }

    /// Frames from here on were never handed out.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Those that were taken back; the last is handed out first.
    pub(crate) fn free_frames(&self) -> &[u32] {
        &self.free
    }

    /// A frame whose content is zero, or `None` at the limit.
    pub(crate) fn allocate(&mut self) -> Option<Frame> {
        if let Some(frame) = self.free.pop() {
            return Some(Frame(frame));
        }
        if self.next == self.limit {
            return None;
        }
        self.next += 1;
        Some(Frame(self.next - 1))
    }

    /// Takes frames back. Their content must be zero, or be made so before the next allocation.
    pub(crate) fn free(&mut self, frames: impl Iterator<Item = Frame>) {
        self.free.extend(frames.map(|frame| frame.0));
    }

    /// The highest frame that was ever handed out.
    pub(crate) fn last(&self) -> Option<Frame> {
        self.next.checked_sub(1).map(Frame)
    }

    pub(crate) fn limit(&self) -> u64 {
        u64::from(self.limit)
    }

    pub(crate) fn in_use(&self) -> u64 {
        u64::from(self.next) - self.free.len() as u64
    }
}

/// Joins frames into ranges of guest-physical addresses. Sorts `frames`.
pub(crate) fn runs(frames: &mut [Frame]) -> Vec<Range<u64>> {
    frames.sort_unstable();
    let mut runs: Vec<Range<u64>> = Vec::new();
    for frame in frames {
        match runs.last_mut() {
            Some(run) if run.end == frame.address() => run.end += PAGE_BYTES,
            _ => runs.push(frame.address()..frame.address() + PAGE_BYTES),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_order_and_end_at_the_limit() {
        let mut frames = Frames::new(2);
        assert_eq!((frames.allocate(), frames.allocate(), frames.allocate()), (Some(Frame(0)), Some(Frame(1)), None));
        frames.free([Frame(0)].into_iter());
        assert_eq!(frames.in_use(), 1);
        assert_eq!((frames.allocate(), frames.allocate()), (Some(Frame(0)), None));
    }

    #[test]
    fn neighbours_join() {
        assert_eq!(runs(&mut [Frame(5), Frame(1), Frame(2), Frame(4)]), [4096..3 * 4096, 4 * 4096..6 * 4096]);
        assert!(runs(&mut []).is_empty());
    }
}
