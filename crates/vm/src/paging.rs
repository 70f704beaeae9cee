//! x86-64 page tables, as bytes in guest memory: 4 levels, 4 KiB pages.
//!
//! Only the host writes them; no guest mapping covers them, so that a walk may trust what it reads. Accessed and
//! dirty bits are preset: the processor never writes a table. Format: Intel SDM volume 3, 4.5; AMD APM volume 2, 5.3.

use coracle_abi::{PAGE_BYTES, VirtualAddress};

use crate::memory::{GuestMemory, OutOfRange};
use crate::rights::Rights;

/// A page of guest-physical memory, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u32);

impl Frame {
    /// The frame's first guest-physical address.
    pub const fn address(self) -> u64 {
        self.0 as u64 * PAGE_BYTES
    }
}

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// Ours (the processor ignores bits 9-11, and every bit of an entry that is not present): the entry owns its frame
/// even when it is not present.
const OWNS_FRAME: u64 = 1 << 9;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// An entry that points to a lower table. The leaf alone decides the rights.
const TABLE: u64 = PRESENT | WRITABLE | USER | ACCESSED;

/// Who may use a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Ring 3: the guest.
    User,
    /// Ring 0: the stub.
    Supervisor,
}

/// A leaf entry of a page table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// Nothing: no access, no frame.
    pub const EMPTY: Self = Self(0);

    /// Maps `frame`. Without rights the page is not present but keeps its frame.
    pub const fn new(frame: Frame, rights: Rights, level: Level) -> Self {
        let mut bits = frame.address() | OWNS_FRAME;
        if !rights.is_none() {
            bits |= PRESENT | ACCESSED | DIRTY;
        }
        if rights.write {
            bits |= WRITABLE;
        }
        if !rights.execute {
            bits |= NO_EXECUTE;
        }
        if matches!(level, Level::User) {
            bits |= USER;
        }
        Self(bits)
    }

    /// The frame the entry owns, accessible or not.
    pub const fn frame(self) -> Option<Frame> {
        if self.0 & OWNS_FRAME == 0 {
            return None;
        }
        Some(Frame(((self.0 & ADDRESS) / PAGE_BYTES) as u32))
    }

    /// What ring 3 may do.
    pub const fn user_rights(self) -> Rights {
        if self.0 & (PRESENT | USER) != PRESENT | USER {
            return Rights::NONE;
        }
        Rights { read: true, write: self.0 & WRITABLE != 0, execute: self.0 & NO_EXECUTE == 0 }
    }
}

impl Entry {
    /// Whether what a processor cached of this entry may still be used when the entry has become `future`: nothing was
    /// cached, or the same frame has at least the same rights for the same level.
    pub(crate) const fn holds_under(self, future: Self) -> bool {
        if self.0 & PRESENT == 0 {
            return true;
        }
        let same_frame = (self.0 ^ future.0) & (ADDRESS | USER | PRESENT) == 0;
        let loses_write = self.0 & WRITABLE != 0 && future.0 & WRITABLE == 0;
        let loses_execute = self.0 & NO_EXECUTE == 0 && future.0 & NO_EXECUTE != 0;
        same_frame && !loses_write && !loses_execute
    }
}

/// The bytes of a table.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a>(pub(crate) &'a [u8; PAGE_BYTES as usize]);

impl Table<'_> {
    /// Entry `n` of 512.
    pub(crate) fn raw(self, n: usize) -> u64 {
        self.0.as_chunks::<8>().0.get(n).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// The leaf entry for `address`.
    pub(crate) fn entry(self, address: VirtualAddress) -> Entry {
        Entry(self.raw(index(address, 0) as usize))
    }

    /// The table below, on the way to `address`.
    pub(crate) fn below(self, address: VirtualAddress, level: u32) -> Option<Frame> {
        Self::link(self.raw(index(address, level) as usize))
    }

    /// The table that an entry above the leaves points to, if it is what this module writes.
    pub(crate) fn link(entry: u64) -> Option<Frame> {
        let frame = u32::try_from((entry & ADDRESS) / PAGE_BYTES).ok()?;
        (entry & !ADDRESS == TABLE).then_some(Frame(frame))
    }
}

/// All tables of an address space.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// The root and those that point to tables.
    pub(crate) above: Vec<Frame>,
    /// Those that point to pages.
    pub(crate) leaves: Vec<Frame>,
}

/// Finds all tables.
///
/// # Errors
/// As [`walk`].
pub(crate) fn tables(memory: &GuestMemory, root: Frame) -> Result<Tables, OutOfRange> {
    let mut tables = Tables { above: vec![root], leaves: Vec::new() };
    let mut level = vec![root];
    for depth in (1..=3).rev() {
        let mut below = Vec::new();
        for table in &level {
            for n in 0..512 {
                let entry = memory.read_u64(table.address() + 8 * n)?;
                if entry & PRESENT != 0 {
                    below.push(Frame(((entry & ADDRESS) / PAGE_BYTES) as u32));
                }
            }
        }
        if depth > 1 {
            tables.above.extend(&below);
        } else {
            tables.leaves.clone_from(&below);
        }
        level = below;
    }
    Ok(tables)
}

/// Index into the table of `level` (3 the root, 0 the leaves).
const fn index(address: VirtualAddress, level: u32) -> u64 {
    (address.0 >> (12 + 9 * level)) & 511
}

/// What a walk through the tables finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// The leaf entry lies here, in guest-physical memory.
    Entry(u64),
    /// A table on the way does not exist. It would serve all addresses up to this one.
    MissingUntil(u64),
}

/// Looks for the leaf entry for `address`.
///
/// # Errors
/// When a table lies outside guest memory, which the host never writes.
pub fn walk(memory: &GuestMemory, root: Frame, address: VirtualAddress) -> Result<Walk, OutOfRange> {
    let mut table = root.address();
    for level in (1..=3).rev() {
        let entry = memory.read_u64(table + index(address, level) * 8)?;
        if entry & PRESENT == 0 {
            let reach = PAGE_BYTES << (9 * level);
            return Ok(Walk::MissingUntil((address.0 & !(reach - 1)).saturating_add(reach)));
        }
        table = entry & ADDRESS;
    }
    Ok(Walk::Entry(table + index(address, 0) * 8))
}

/// Where the leaf entry for `address` lies, or `None` if a table on the way does not exist.
///
/// # Errors
/// As [`walk`].
pub fn find_entry(memory: &GuestMemory, root: Frame, address: VirtualAddress) -> Result<Option<u64>, OutOfRange> {
    Ok(match walk(memory, root, address)? {
        Walk::Entry(at) => Some(at),
        Walk::MissingUntil(_) => None,
    })
}

/// Where the leaf entry for `address` lies; tables on the way that do not exist are made from frames that
/// `new_table` gives, zeroed.
///
/// # Errors
/// `new_table`'s. Tables made before the failure stay, empty.
pub fn make_entry<E: From<OutOfRange>>(
    memory: &mut GuestMemory,
    root: Frame,
    address: VirtualAddress,
    mut new_table: impl FnMut(&mut GuestMemory) -> Result<Frame, E>,
) -> Result<u64, E> {
    let mut table = root.address();
    for level in (1..=3).rev() {
        let at = table + index(address, level) * 8;
        let entry = memory.read_u64(at)?;
        table = if entry & PRESENT == 0 {
            let frame = new_table(memory)?;
            memory.write_u64(at, frame.address() | TABLE)?;
            frame.address()
        } else {
            entry & ADDRESS
        };
    }
    Ok(table + index(address, 0) * 8)
}

/// Whether the entry of the next page lies in the same table as that of `address`.
pub const fn next_is_in_same_table(address: VirtualAddress) -> bool {
    index(address, 0) != 511
}

#[cfg(test)]
mod tests {
    use coracle_abi::PageBytes;

    use super::*;

    #[test]
    fn a_leaf_says_what_it_was_made_of() {
        for rights in [Rights::R, Rights::RW, Rights::RX] {
            let entry = Entry::new(Frame(0x12345), rights, Level::User);
            assert_eq!(entry.frame(), Some(Frame(0x12345)));
            assert_eq!(entry.user_rights(), rights);
        }
    }

    #[test]
    fn a_supervisor_page_gives_the_guest_nothing() {
        assert_eq!(Entry::new(Frame(1), Rights::RW, Level::Supervisor).user_rights(), Rights::NONE);
    }

    #[test]
    fn without_rights_the_frame_stays() {
        let entry = Entry::new(Frame(9), Rights::NONE, Level::User);
        assert_eq!((entry.frame(), entry.user_rights()), (Some(Frame(9)), Rights::NONE));
        assert_eq!(entry.0 & PRESENT, 0);
        assert_eq!(Entry::EMPTY.frame(), None);
    }

    #[test]
    fn a_cached_entry_holds_unless_it_would_allow_too_much() {
        let entry = |frame, rights| Entry::new(Frame(frame), rights, Level::User);
        let (r, rw, rx) = (entry(1, Rights::R), entry(1, Rights::RW), entry(1, Rights::RX));
        assert!(r.holds_under(rw) && r.holds_under(rx) && rw.holds_under(rw));
        assert!(!rw.holds_under(r) && !rx.holds_under(r) && !rw.holds_under(rx));
        assert!(!r.holds_under(entry(2, Rights::R)) && !r.holds_under(Entry::EMPTY));
        assert!(!r.holds_under(entry(1, Rights::NONE)));
        assert!(!r.holds_under(Entry::new(Frame(1), Rights::R, Level::Supervisor)));
        assert!(Entry::EMPTY.holds_under(rw) && entry(1, Rights::NONE).holds_under(Entry::EMPTY));
    }

    #[test]
    fn accessed_and_dirty_are_preset() {
        assert_eq!(Entry::new(Frame(1), Rights::R, Level::User).0 & (ACCESSED | DIRTY), ACCESSED | DIRTY);
    }

    #[test]
    fn tables_are_made_once() {
        let mut memory = GuestMemory::reserve(PageBytes::from_pages(16).unwrap()).unwrap();
        let mut next = 0;
        let mut tables = |_: &mut GuestMemory| -> Result<Frame, OutOfRange> {
            next += 1;
            Ok(Frame(next))
        };
        let address = VirtualAddress(0x7fff_8000_0000);
        assert_eq!(find_entry(&memory, Frame(0), address), Ok(None));
        let first = make_entry(&mut memory, Frame(0), address, &mut tables).unwrap();
        let second = make_entry(&mut memory, Frame(0), VirtualAddress(address.0 + PAGE_BYTES), &mut tables).unwrap();
        assert_eq!(second, first + 8);
        assert_eq!(find_entry(&memory, Frame(0), address), Ok(Some(first)));
        assert_eq!(next, 3);
        let all = super::tables(&memory, Frame(0)).unwrap();
        assert_eq!((all.above, all.leaves), (vec![Frame(0), Frame(1), Frame(2)], vec![Frame(3)]));
    }

    #[test]
    fn a_missing_table_is_stepped_over_whole() {
        let mut memory = GuestMemory::reserve(PageBytes::from_pages(16).unwrap()).unwrap();
        let mut next = 0;
        let tables = |_: &mut GuestMemory| -> Result<Frame, OutOfRange> {
            next += 1;
            Ok(Frame(next))
        };
        make_entry(&mut memory, Frame(0), VirtualAddress(0x1000), tables).unwrap();
        let missing = |address| walk(&memory, Frame(0), VirtualAddress(address)).unwrap();
        assert_eq!(missing(0x20_1000), Walk::MissingUntil(0x40_0000));
        assert_eq!(missing(0x4000_1000), Walk::MissingUntil(0x8000_0000));
        assert_eq!(missing(0x80_0000_1000), Walk::MissingUntil(0x100_0000_0000));
        assert_eq!(missing(0x7fff_ffff_f000), Walk::MissingUntil(0x8000_0000_0000));
    }
}
