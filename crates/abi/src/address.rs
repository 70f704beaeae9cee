//! Addresses and sizes that cannot be mixed up.

use core::fmt;

/// Bytes in a page. The only page size guests see.
pub const PAGE_BYTES: u64 = 4096;

/// An address in the guest's own address space. A claim until a host-side map says what lies there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualAddress(pub u64);

impl VirtualAddress {
    /// The address `bytes` further, or `None` past the end of the 64-bit space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The start of the page this address lies in.
    pub const fn page_start(self) -> Self {
        Self(self.0 & !(PAGE_BYTES - 1))
    }

    /// How far into its page this address lies.
    pub const fn page_offset(self) -> u64 {
        self.0 & (PAGE_BYTES - 1)
    }

    /// Whether this is the first address of a page.
    pub const fn is_page_aligned(self) -> bool {
        self.page_offset() == 0
    }
}

impl fmt::Display for VirtualAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A byte count that is a whole number of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageBytes(u64); // Invariant: a multiple of PAGE_BYTES.

impl PageBytes {
    /// No pages.
    pub const ZERO: Self = Self(0);

    /// Rounds `bytes` up to whole pages, or `None` if that exceeds `u64`.
    ///
    /// ```
    /// # use coracle_abi::{PAGE_BYTES, PageBytes};
    /// assert_eq!(PageBytes::round_up(1).unwrap().get(), PAGE_BYTES);
    /// assert_eq!(PageBytes::round_up(0), Some(PageBytes::ZERO));
    /// assert_eq!(PageBytes::round_up(u64::MAX), None);
    /// ```
    pub const fn round_up(bytes: u64) -> Option<Self> {
        match bytes.checked_next_multiple_of(PAGE_BYTES) {
            Some(rounded) => Some(Self(rounded)),
            None => None,
        }
    }

    /// So many pages, or `None` if that exceeds `u64` bytes.
    pub const fn from_pages(pages: u64) -> Option<Self> {
        match pages.checked_mul(PAGE_BYTES) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// The count in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The count in pages.
    pub const fn pages(self) -> u64 {
        self.0 / PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_splits_into_page_and_offset() {
        let address = VirtualAddress(0x1234_5678);
        assert_eq!(address.page_start(), VirtualAddress(0x1234_5000));
        assert_eq!(address.page_offset(), 0x678);
        assert!(!address.is_page_aligned());
        assert!(address.page_start().is_page_aligned());
    }

    #[test]
    fn an_address_does_not_wrap() {
        assert_eq!(VirtualAddress(u64::MAX).checked_add(1), None);
    }

    #[test]
    fn pages_and_bytes_agree() {
        let size = PageBytes::round_up(3 * PAGE_BYTES + 1).unwrap();
        assert_eq!(size.pages(), 4);
        assert_eq!(PageBytes::from_pages(4), Some(size));
        assert_eq!(PageBytes::from_pages(u64::MAX), None);
    }
}
