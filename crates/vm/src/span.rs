//! Ranges of pages that a guest may ask for.

use coracle_abi::{PAGE_BYTES, PageBytes, map};

/// Whole pages in the part of the address space that a guest may map: above the null guard, in the user half, clear of
/// the host's control pages. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    start: u64,
    end: u64,
}

impl Span {
    /// The pages from `start` on that hold `bytes` bytes. `None` if `start` is not a page's first address, if `bytes`
    /// is 0, or if any page is not one the guest may have.
    pub const fn new(start: u64, bytes: u64) -> Option<Self> {
        let Some(size) = PageBytes::round_up(bytes) else { return None };
        let Some(end) = start.checked_add(size.get()) else { return None };
        let in_user_half = start >= map::LOWEST && end <= map::HIGHEST;
        let in_control = start < map::WINDOW_END && end > map::CONTROL_START;
        if size.get() == 0 || !start.is_multiple_of(PAGE_BYTES) || !in_user_half || in_control {
            return None;
        }
        Some(Self { start, end })
    }

    /// First address.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// First address after it.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Its size in bytes.
    pub const fn bytes(self) -> u64 {
        self.end - self.start
    }

    /// Its size in pages, at least 1.
    pub const fn pages(self) -> u64 {
        self.bytes() / PAGE_BYTES
    }

    /// Whether `address` lies in it.
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// The common part, if there is one.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// The part of it in `start..end`, both addresses of pages; `None` if that is empty.
    pub(crate) fn clip(self, start: u64, end: u64) -> Option<Self> {
        self.intersection(Self { start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_a_guest_may_have_are_a_span() {
        assert_eq!(Span::new(0x10000, 1).map(Span::bytes), Some(4096));
        for (start, bytes) in [
            (0, 4096),
            (0xf000, 8192),
            (0x10001, 4096),
            (0x10000, 0),
            (0x10000, u64::MAX),
            (u64::MAX - 4095, 4096),
            (map::HIGHEST, 4096),
            (map::HIGHEST - 4096, 8192),
            (map::CONTROL_START, 4096),
            (map::CONTROL_START - 4096, 8192),
            (map::WINDOW_END - 4096, 8192),
            (map::LOWEST, map::HIGHEST - map::LOWEST),
        ] {
            assert_eq!(Span::new(start, bytes), None, "{start:#x}+{bytes:#x}");
        }
        assert!(Span::new(map::WINDOW_END, 4096).is_some());
        assert!(Span::new(map::HIGHEST - 4096, 4096).is_some());
    }

    #[test]
    fn spans_intersect() {
        let span = |start, bytes| Span::new(start, bytes).unwrap();
        assert_eq!(span(0x10000, 0x3000).intersection(span(0x12000, 0x3000)), Span::new(0x12000, 0x1000));
        assert_eq!(span(0x10000, 0x1000).intersection(span(0x11000, 0x1000)), None);
    }
}
