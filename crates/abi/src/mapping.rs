//! The table of mapped content: what the host lends to a guest, by name.
//!
//! It lies in the boot page, [`TABLE_OFFSET`] bytes behind its start. All fields are little-endian.
//!
//! | offset | field |
//! |---|---|
//! | 0 | number of entries, `u32`; 4: zero |
//! | 8 + 80 n | address, `u64` |
//! | 16 + 80 n | bytes, `u64` |
//! | 24 + 80 n | [`WRITABLE`] or 0, `u32` |
//! | 28 + 80 n | bytes of the name, `u32` |
//! | 32 + 80 n | the name, UTF-8 |

/// Where the table starts in the boot page.
pub const TABLE_OFFSET: u64 = 1024;
/// Entries at most.
pub const ENTRIES_MAX: usize = 32;
/// Bytes of a name at most.
pub const NAME_MAX: usize = 56;
/// Bytes of the whole table.
pub const TABLE_BYTES: usize = HEADER_BYTES + ENTRIES_MAX * ENTRY_BYTES;
/// The guest may write; it gets copies of the pages that it writes.
pub const WRITABLE: u32 = 1;

/// Bytes before the first entry.
pub const HEADER_BYTES: usize = 8;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 80;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The first address, a page's.
    pub address: u64,
    /// Length in bytes; zeros follow to the end of the page.
    pub bytes: u64,
    /// Whether the guest may write.
    pub is_writable: bool,
    /// Its name.
    pub name: &'a str,
}

impl<'a> Entry<'a> {
    /// The entry's bytes. A name that is too long is cut.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut out = [0; ENTRY_BYTES];
        let name = &self.name.as_bytes()[..self.name.len().min(NAME_MAX)];
        out[..8].copy_from_slice(&self.address.to_le_bytes());
        out[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        out[16..20].copy_from_slice(&(if self.is_writable { WRITABLE } else { 0 }).to_le_bytes());
        out[20..24].copy_from_slice(&(name.len() as u32).to_le_bytes());
        out[24..24 + name.len()].copy_from_slice(name);
        out
    }

    /// What an entry says; `None` if it is malformed.
    pub fn decode(bytes: &'a [u8; ENTRY_BYTES]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        debug_assert!(rest.is_empty());
        let lengths = u64::from_le_bytes(words[2]);
        let (flags, name_bytes) = (lengths as u32, (lengths >> 32) as usize);
        let name = core::str::from_utf8(bytes[24..].get(..name_bytes)?).ok()?;
        let (address, bytes) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        Some(Self { address, bytes, is_writable: flags & WRITABLE != 0, name })
    }
}

// Guests read the table in place. Read docs/abi.md before touching it.
const _: () = {
    assert!(TABLE_OFFSET as usize >= crate::boot::BootInfo::BYTES);
    assert!(TABLE_OFFSET as usize + TABLE_BYTES <= crate::PAGE_BYTES as usize);
    assert!(24 + NAME_MAX == ENTRY_BYTES);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_what_was_put_in() {
        for name in ["model", "", "n".repeat(NAME_MAX).as_str()] {
            let entry = Entry { address: 0x7000, bytes: 5, is_writable: name.is_empty(), name };
            assert_eq!(Entry::decode(&entry.encode()), Some(entry));
        }
    }

    #[test]
    fn nonsense_is_no_entry() {
        let mut bytes = Entry { address: 0, bytes: 0, is_writable: false, name: "x" }.encode();
        bytes[24] = 0xff;
        assert_eq!(Entry::decode(&bytes), None);
        bytes[20] = 57;
        assert_eq!(Entry::decode(&bytes), None);
    }
}
