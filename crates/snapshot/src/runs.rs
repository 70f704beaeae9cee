//! Sets of page numbers as runs of neighbours: how an index names pages, in 8 bytes a run.

use std::ops::Range;

/// One more than the largest page number in a file: 1 TiB of pages, the most memory that a sandbox can have.
pub(crate) const NUMBERS_END: u32 = 1 << 28;

/// Bytes of a run in a file: its first number and its length, little-endian.
pub(crate) const RUN_BYTES: usize = 8;

/// Page numbers, in order. The position of a number in that order is its rank.
///
/// Invariant: runs ascend, none is empty, none touches the next, and none reaches beyond [`NUMBERS_END`]. So one set has
/// one form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs {
    runs: Box<[Run]>,
    pages: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    count: u32,
    rank: u32, // Of the first.
}

/// Why bytes are no runs: where, counted in runs, and what.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunFault {
    pub(crate) at: usize,
    pub(crate) fault: &'static str,
}

impl Runs {
    /// Numbers that ascend and are below [`NUMBERS_END`].
    pub(crate) fn from_numbers(numbers: impl IntoIterator<Item = u32>) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        let mut pages = 0;
        for number in numbers {
            match runs.last_mut() {
                Some(run) if run.first + run.count == number => run.count += 1,
                _ => runs.push(Run { first: number, count: 1, rank: pages }),
            }
            pages += 1;
        }
        Self { runs: runs.into(), pages }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, RunFault> {
        let (words, _) = bytes.as_chunks::<4>();
        let (pairs, _) = words.as_chunks::<2>();
        let mut runs = Vec::with_capacity(pairs.len());
        let mut end = None; // Of the run before.
        let mut pages = 0;
        for (at, [first, count]) in pairs.iter().enumerate() {
            let (first, count) = (u32::from_le_bytes(*first), u32::from_le_bytes(*count));
            let fault = match (first.checked_add(count), end) {
                (_, _) if count == 0 => Some("a run of pages is empty"),
                (None, _) => Some("a page number is above the limit"),
                (Some(next), _) if next > NUMBERS_END => Some("a page number is above the limit"),
                (_, Some(end)) if first < end => Some("runs of pages overlap or do not ascend"),
                (_, Some(end)) if first == end => Some("two runs of pages touch: they should be one"),
                _ => None,
            };
            if let Some(fault) = fault {
                return Err(RunFault { at, fault });
            }
            runs.push(Run { first, count, rank: pages });
            end = Some(first + count);
            pages += count; // At most `NUMBERS_END`, since they do not overlap.
        }
        Ok(Self { runs: runs.into(), pages })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for run in &self.runs {
            out.extend(run.first.to_le_bytes());
            out.extend(run.count.to_le_bytes());
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    /// One more than the largest number, 0 if there is none.
    pub(crate) fn end(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.first + run.count)
    }

    pub(crate) fn rank(&self, number: u32) -> Option<u32> {
        let after = self.runs.partition_point(|run| run.first <= number);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let offset = number - run.first;
        (offset < run.count).then(|| run.rank + offset)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges().flatten()
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.runs.iter().map(|run| run.first..run.first + run.count)
    }

    /// The smallest number that is in both.
    pub(crate) fn common(&self, other: &Self) -> Option<u32> {
        let (mut left, mut right) = (self.ranges().peekable(), other.ranges().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let start = a.start.max(b.start);
            if start < a.end.min(b.end) {
                return Some(start);
            }
            if a.end <= b.end {
                left.next()
            } else {
                right.next()
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_set_has_one_form_and_ranks_follow_the_order() {
        let numbers = [0, 1, 2, 7, 9, 10, NUMBERS_END - 1];
        let runs = Runs::from_numbers(numbers);
        assert_eq!((runs.count(), runs.pages(), runs.end()), (4, 7, NUMBERS_END));
        assert!(runs.iter().eq(numbers));
        for (rank, number) in numbers.into_iter().enumerate() {
            assert_eq!(runs.rank(number), Some(rank as u32));
        }
        for number in [3, 6, 8, 11, NUMBERS_END - 2, NUMBERS_END, u32::MAX] {
            assert_eq!(runs.rank(number), None);
        }
        let mut bytes = Vec::new();
        runs.write(&mut bytes);
        assert_eq!(Runs::parse(&bytes), Ok(runs));
        assert_eq!(Runs::parse(&[]), Ok(Runs::default()));
        assert_eq!(Runs::default().rank(0), None);
    }

    #[track_caller]
    fn check_fault(pairs: &[(u32, u32)], at: usize, part: &str) {
        let bytes: Vec<u8> =
            pairs.iter().flat_map(|(first, count)| [first.to_le_bytes(), count.to_le_bytes()].concat()).collect();
        let fault = Runs::parse(&bytes).unwrap_err();
        assert_eq!(fault.at, at);
        assert!(fault.fault.contains(part), "{}", fault.fault);
    }

    #[test]
    fn other_forms_are_refused() {
        check_fault(&[(0, 1), (5, 0)], 1, "empty");
        check_fault(&[(u32::MAX, 1)], 0, "limit");
        check_fault(&[(NUMBERS_END, 1)], 0, "limit");
        check_fault(&[(1, NUMBERS_END)], 0, "limit");
        check_fault(&[(1, 3), (3, 1)], 1, "overlap");
        check_fault(&[(5, 1), (3, 1)], 1, "ascend");
        check_fault(&[(5, 1), (5, 1)], 1, "overlap");
        check_fault(&[(5, 1), (6, 1)], 1, "touch");
    }

    #[test]
    fn common_numbers_are_found() {
        let runs = |numbers: &[u32]| Runs::from_numbers(numbers.iter().copied());
        assert_eq!(runs(&[1, 2, 3, 9]).common(&runs(&[4, 5, 9, 10])), Some(9));
        assert_eq!(runs(&[1, 2, 3]).common(&runs(&[2])), Some(2));
        assert_eq!(runs(&[1, 3, 5]).common(&runs(&[0, 2, 4, 6])), None);
        assert_eq!(runs(&[]).common(&runs(&[1])), None);
    }
}
