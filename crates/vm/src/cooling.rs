//! When the list of hot pages is worth shortening. Pure: a policy over counts.
//!
//! Hot pages are copied back at every restore, whether they changed or not. A guest that once wrote much, while it started
//! or in one large request, would pay for that for ever. So now and then a restore compares instead of copying blindly,
//! and learns how many pages really change. When the list is far longer than that, it is dropped and its pages are
//! write-protected: the next run pays one fault for each page that it writes, and the list is short again.

/// Restores between two that compare.
const COMPARE_EVERY: u32 = 32;
/// Comparisons that must have been made, so that one quiet request does not throw a busy list away.
const COMPARISONS: u32 = 2;
/// A list of this length is never dropped: copying it back costs about what the system call and a fault do.
const NEVER_BELOW: usize = 16;
/// How much longer than what changes the list must be. A fault costs about as much as copying 16 pages back once: at twice the length
/// a drop pays for itself in 16 restores, before the next comparison.
const TIMES: usize = 2;

/// Remembers what restores found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cooling {
    restores: u32,
    comparisons: u32,
    peak: usize, // The most pages that a comparison found changed, since the list was dropped.
}

impl Cooling {
    /// Whether the restore that comes should compare a list of this length.
    pub(crate) fn should_compare(&mut self, hot: usize) -> bool {
        self.restores += 1;
        hot > NEVER_BELOW && self.restores.is_multiple_of(COMPARE_EVERY)
    }

    /// What a restore that compared found. Whether the list should be dropped.
    pub(crate) fn compared(&mut self, hot: usize, changed: usize) -> bool {
        self.comparisons += 1;
        self.peak = self.peak.max(changed);
        let drop = self.comparisons >= COMPARISONS && hot > NEVER_BELOW && hot > TIMES * self.peak;
        if drop {
            *self = Self::default();
        }
        drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Restores until the list is dropped, for a list of constant length of which as many pages change.
    fn restores_until_dropped(hot: usize, changed: usize) -> Option<u32> {
        let mut cooling = Cooling::default();
        (1..=1000).find(|_| cooling.should_compare(hot) && cooling.compared(hot, changed))
    }

    #[test]
    fn a_list_of_what_changes_stays() {
        assert_eq!(restores_until_dropped(1000, 1000), None);
        assert_eq!(restores_until_dropped(1000, 500), None);
    }

    #[test]
    fn a_list_far_longer_than_what_changes_is_dropped() {
        assert_eq!(restores_until_dropped(1000, 200), Some(64));
        assert_eq!(restores_until_dropped(1000, 0), Some(64));
    }

    #[test]
    fn a_short_list_is_not_worth_it() {
        assert_eq!(restores_until_dropped(NEVER_BELOW, 0), None);
    }

    #[test]
    fn one_large_request_keeps_the_list() {
        let mut cooling = Cooling::default();
        assert!(!cooling.compared(1000, 600));
        assert!(!cooling.compared(1000, 10));
        assert!(!cooling.compared(1000, 10));
    }
}
