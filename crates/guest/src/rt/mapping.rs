//! What the host lends by name, in place.
//!
//! The host changes mappings between calls only. So bytes that are lent to a closure are there until it returns.
#![allow(unsafe_code)] // Makes slices of memory at addresses that the host gave.

use core::slice;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use coracle_abi::mapping::{ENTRIES_MAX, ENTRY_BYTES, Entry, HEADER_BYTES};

use super::boot;

/// Content that the host lends to this sandbox: from [`mapping`].
#[derive(Clone, Debug)]
pub struct Mapping {
    address: usize,
    bytes: usize,
    is_writable: bool,
    borrowed: &'static AtomicU8, // Readers, or WRITER. Guests have one thread.
}

const WRITER: u8 = u8::MAX;

/// By place in the table. One place may be of several mappings in turn, but not while one is borrowed.
static BORROWED: [AtomicU8; ENTRIES_MAX] = [const { AtomicU8::new(0) }; ENTRIES_MAX];

/// What the host lends under this name, by `Builder::map` or `Sandbox::map`; `None` if there is nothing, or no sandbox.
///
/// ```no_run
/// let words = coracle_guest::mapping("words").expect("the host lends words");
/// let lines = words.read(|bytes| bytes.split(|byte| *byte == b'\n').count());
/// ```
pub fn mapping(name: &str) -> Option<Mapping> {
    let table = boot::mapping_table()?;
    let (header, entries) = table.split_at(HEADER_BYTES);
    let count = header.first_chunk().map_or(0, |count| u32::from_le_bytes(*count));
    let entries = entries.as_chunks::<ENTRY_BYTES>().0.iter().take(count as usize);
    entries.zip(&BORROWED).find_map(|(entry, borrowed)| {
        let entry = Entry::decode(entry).filter(|entry| entry.name == name)?;
        let (address, bytes) = (entry.address as usize, entry.bytes as usize);
        Some(Mapping { address, bytes, is_writable: entry.is_writable, borrowed })
    })
}

/// Ends a borrow, also when the closure panics.
struct Borrow(&'static AtomicU8, u8);

impl Drop for Borrow {
    fn drop(&mut self) {
        self.0.store(self.1, Relaxed);
    }
}

impl Mapping {
    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "there is none of no bytes")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the guest may write: it gets its own copy of each page that it writes.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Its first byte. It is valid until the host takes the mapping away, which it can do between any two calls; whoever uses it later
    /// crashes.
    pub fn as_ptr(&self) -> *const u8 {
        core::ptr::with_exposed_provenance(self.address)
    }

    /// Lends the bytes to `look`, where they lie.
    ///
    /// # Panics
    /// When called from inside of [`Mapping::write`] of the same mapping, or 254 times inside of itself.
    pub fn read<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let readers = self.borrowed.load(Relaxed);
        assert!(readers < WRITER - 1, "the mapping is being written");
        self.borrowed.store(readers + 1, Relaxed);
        let _borrow = Borrow(self.borrowed, readers);
        // SAFETY: the host mapped that many bytes there, and changes mappings between calls only; the guest writes them by `write` alone,
        // which does not run meanwhile.
        look(unsafe { slice::from_raw_parts(self.as_ptr(), self.bytes) })
    }

    /// Lends the bytes to `change`, to be written, too. `None` if the host lends them to be read only.
    ///
    /// # Panics
    /// When called from inside of [`Mapping::read`] or `write` of the same mapping.
    pub fn write<R>(&mut self, change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        if !self.is_writable {
            return None;
        }
        assert!(self.borrowed.load(Relaxed) == 0, "the mapping is being read or written");
        self.borrowed.store(WRITER, Relaxed);
        let _borrow = Borrow(self.borrowed, 0);
        // SAFETY: as in `read`; and nobody else has these bytes, since nothing else is borrowed of them.
        Some(change(unsafe { slice::from_raw_parts_mut(self.as_ptr().cast_mut(), self.bytes) }))
    }
}
