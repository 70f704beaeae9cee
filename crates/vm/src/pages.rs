//! Sets of pages of guest-physical memory. Pure book-keeping.

use crate::paging::Frame;

/// A set of pages that remembers the order in which they came. Adding and asking cost the same however many there are;
/// going through it costs what is in it, not what could be.
#[derive(Clone, Debug, Default)]
pub struct PageSet {
    pages: u64,     // Those from here on have no place.
    bits: Vec<u64>, // As long as the last page that was ever added asks.
    list: Vec<u32>, // Invariant: the pages whose bit is set, each once.
}

impl PageSet {
    /// An empty set of pages that are all below `pages`.
    pub fn below(pages: u64) -> Self {
        Self { pages, bits: Vec::new(), list: Vec::new() }
    }

    /// Adds a page. Whether it was not there before; also `false` if the set has no place for it.
    #[inline]
    pub fn insert(&mut self, page: Frame) -> bool {
        if u64::from(page.0) >= self.pages {
            return false;
        }
        let word = page.0 as usize / 64;
        if word >= self.bits.len() {
            // Frames are given from 0 upwards: this follows what the guest uses.
            self.bits.resize((word + 1).next_power_of_two(), 0);
        }
        let word = &mut self.bits[word];
        let bit = 1 << (page.0 % 64);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.list.push(page.0);
        true
    }

    /// Whether the page is there.
    pub fn contains(&self, page: Frame) -> bool {
        self.bits.get(page.0 as usize / 64).is_some_and(|word| word & 1 << (page.0 % 64) != 0)
    }

    /// The pages, in the order in which they came.
    pub fn as_slice(&self) -> &[u32] {
        &self.list
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes out all pages.
    pub fn clear(&mut self) {
        for page in self.list.drain(..) {
            self.bits[page as usize / 64] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_there_once() {
        let mut set = PageSet::below(100);
        assert!(set.insert(Frame(99)) && set.insert(Frame(3)) && !set.insert(Frame(99)));
        assert_eq!(set.as_slice(), [99, 3]);
        assert!(set.contains(Frame(3)) && !set.contains(Frame(4)));
    }

    #[test]
    fn a_page_outside_has_no_place() {
        let mut set = PageSet::below(64);
        assert!(set.insert(Frame(63)));
        set.clear();
        assert!(!set.insert(Frame(64)) && !set.insert(Frame(u32::MAX)));
        assert!(!set.contains(Frame(u32::MAX)) && set.is_empty());
    }

    #[test]
    fn what_is_taken_out_can_come_back() {
        let mut set = PageSet::below(256);
        (0..200).for_each(|page| assert!(set.insert(Frame(page))));
        set.clear();
        assert!((0..256).all(|page| !set.contains(Frame(page))) && set.is_empty());
        assert!(set.insert(Frame(7)) && set.contains(Frame(7)));
    }
}
