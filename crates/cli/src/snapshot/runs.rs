//! Which pages of a snapshot are whose, as runs of neighbours.

use std::ops::Range;

use coracle::store::LayerInspection;

/// Whose a page is. In the order of how much there is to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Zero,
    /// In a layer below the snapshot's own.
    Shared,
    /// In the snapshot's own layer, its last.
    Own,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Own, Self::Shared, Self::Zero];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Shared => "shared",
            Self::Own => "own",
        }
    }
}

/// Neighbouring pages of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) pages: Range<u32>,
    pub(super) kind: Kind,
}

/// The pages with content of a snapshot that consists of these layers, ascending. All others are zero.
pub(super) fn of_layers(layers: &[LayerInspection]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let kind = if number + 1 == layers.len() { Kind::Own } else { Kind::Shared };
        let run = |kind| move |pages: &Range<u32>| Run { pages: pages.clone(), kind };
        let mut upper: Vec<Run> = layer.pages.iter().map(run(kind)).collect();
        upper.extend(layer.zeroed.iter().map(run(Kind::Zero)));
        upper.sort_unstable_by_key(|run| run.pages.start);
        runs = overlay(&runs, &upper);
    }
    runs.retain(|run| run.kind != Kind::Zero);
    runs
}

/// `lower` where `upper` has nothing, and `upper`. Both ascend without overlap, and so does what comes of it.
fn overlay(lower: &[Run], upper: &[Run]) -> Vec<Run> {
    let mut out = Vec::with_capacity(lower.len() + upper.len());
    let mut lower = lower.iter().cloned().peekable();
    for above in upper {
        while let Some(below) = lower.peek_mut() {
            if below.pages.start < above.pages.start {
                let end = below.pages.end.min(above.pages.start);
                out.push(Run { pages: below.pages.start..end, kind: below.kind });
            }
            if below.pages.end > above.pages.end {
                below.pages.start = below.pages.start.max(above.pages.end);
                break;
            }
            lower.next();
        }
        out.push(above.clone());
    }
    out.extend(lower);
    out
}

/// Ascending numbers as runs.
pub(super) fn of_numbers(numbers: &[u32]) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == *number => run.end += 1,
            _ => runs.push(*number..number.saturating_add(1)),
        }
    }
    runs
}

/// How many pages of a kind there are.
pub(super) fn count(runs: &[Run], kind: Kind) -> u64 {
    runs.iter().filter(|run| run.kind == kind).map(|run| run.pages.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pages: Range<u32>, kind: Kind) -> Run {
        Run { pages, kind }
    }

    #[test]
    fn what_is_above_hides_what_is_below() {
        use Kind::{Own, Shared, Zero};
        let below = [run(0..4, Shared), run(6..8, Shared), run(10..20, Shared)];
        let above = [run(2..3, Own), run(5..7, Zero), run(12..14, Own), run(19..25, Own), run(30..31, Own)];
        let want = [
            run(0..2, Shared),
            run(2..3, Own),
            run(3..4, Shared),
            run(5..7, Zero),
            run(7..8, Shared),
            run(10..12, Shared),
            run(12..14, Own),
            run(14..19, Shared),
            run(19..25, Own),
            run(30..31, Own),
        ];
        assert_eq!(overlay(&below, &above), want);
        assert_eq!(overlay(&below, &[]), below);
        assert_eq!(overlay(&[], &above), above);
        assert_eq!(overlay(&below, &[run(0..30, Own)]), [run(0..30, Own)]);
    }

    #[test]
    fn every_page_has_the_kind_of_the_topmost_run() {
        // Against the plain way, with every pair of small sets.
        let runs = |bits: u32, kind| -> Vec<Run> {
            of_numbers(&(0..5).filter(|bit| bits & 1 << bit != 0).collect::<Vec<_>>())
                .into_iter()
                .map(|pages| run(pages, kind))
                .collect()
        };
        for (below, above) in (0..32).flat_map(|below| (0..32).map(move |above| (below, above))) {
            let found = overlay(&runs(below, Kind::Shared), &runs(above, Kind::Own));
            for page in 0..5 {
                let kinds: Vec<Kind> =
                    found.iter().filter(|run| run.pages.contains(&page)).map(|run| run.kind).collect();
                let want = match (above & 1 << page != 0, below & 1 << page != 0) {
                    (true, _) => vec![Kind::Own],
                    (false, true) => vec![Kind::Shared],
                    (false, false) => vec![],
                };
                assert_eq!(kinds, want, "{below:b} {above:b} {page}");
            }
            assert!(found.windows(2).all(|pair| pair[0].pages.end <= pair[1].pages.start), "{found:?}");
        }
    }

    #[test]
    fn neighbours_make_a_run() {
        assert_eq!(of_numbers(&[1, 2, 3, 5, 7, 8]), [1..4, 5..6, 7..9]);
        assert!(of_numbers(&[]).is_empty());
        let runs = [run(0..3, Kind::Own), run(4..5, Kind::Shared), run(6..7, Kind::Own)];
        assert_eq!((count(&runs, Kind::Own), count(&runs, Kind::Shared)), (4, 1));
    }
}
