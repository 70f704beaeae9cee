//! What a guest may do with a page.

use std::fmt;

/// Access rights of guest pages. A page is never both writable and executable: [`Rights::is_legal`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Loads are allowed. On x86-64 a page that may be written or executed may be read.
    pub read: bool,
    /// Stores are allowed.
    pub write: bool,
    /// Instruction fetches are allowed.
    pub execute: bool,
}

impl Rights {
    /// Nothing is allowed; the pages keep their content.
    pub const NONE: Self = Self { read: false, write: false, execute: false };
    /// Constants.
    pub const R: Self = Self { read: true, write: false, execute: false };
    /// Data.
    pub const RW: Self = Self { read: true, write: true, execute: false };
    /// Code.
    pub const RX: Self = Self { read: true, write: false, execute: true };

    /// Whether a guest may have pages with these rights: not writable and executable at once.
    pub const fn is_legal(self) -> bool {
        !(self.write && self.execute)
    }

    /// What [`Display`](fmt::Display) writes: `r-x`.
    pub fn parse(text: &str) -> Option<Self> {
        let [read, write, execute] = *text.as_bytes() else { return None };
        let allowed = |byte: u8, letter: u8| (byte == letter || byte == b'-').then_some(byte == letter);
        Some(Self { read: allowed(read, b'r')?, write: allowed(write, b'w')?, execute: allowed(execute, b'x')? })
    }

    /// Whether nothing at all is allowed.
    pub const fn is_none(self) -> bool {
        !self.read && !self.write && !self.execute
    }

    /// Whether everything that `self` allows, `other` allows too.
    pub const fn within(self, other: Self) -> bool {
        (!self.read || other.read || other.write || other.execute)
            && (!self.write || other.write)
            && (!self.execute || other.execute)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |allowed, letter| if allowed { letter } else { '-' };
        write!(f, "{}{}{}", letter(self.read, 'r'), letter(self.write, 'w'), letter(self.execute, 'x'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_code_is_not_legal() {
        assert!(!Rights { read: true, write: true, execute: true }.is_legal());
        assert!(Rights::RW.is_legal() && Rights::RX.is_legal() && Rights::NONE.is_legal());
    }

    #[test]
    fn rights_nest() {
        assert!(Rights::R.within(Rights::RW) && Rights::R.within(Rights::RX));
        assert!(!Rights::RW.within(Rights::R) && !Rights::RX.within(Rights::RW));
        assert!(Rights::NONE.within(Rights::NONE) && !Rights::R.within(Rights::NONE));
    }

    #[test]
    fn rights_read_like_ls() {
        assert_eq!(Rights::RX.to_string(), "r-x");
        assert_eq!(Rights::NONE.to_string(), "---");
    }
}
