//! Searches all memory that the guest can read, at every byte, wherever it is mapped.
//!
//! What is mapped is found out by asking the host, so that no list of areas can be incomplete.

use coracle_abi::map;

use crate::system::{self, PAGE};

/// Pages of hits that are told.
const HITS_MAX: usize = 1024;
/// Mappings that are searched: far more than there can be.
const AREAS_MAX: usize = 4096;

/// A number that tells one word from all others, and which nobody finds when he searches memory for that word.
///
/// The last steps of MurmurHash3, each of which can be undone. The host's test has the same.
#[inline(always)]
fn fingerprint(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

/// Where there are words with these fingerprints.
pub(crate) fn everywhere(wanted: [u64; 4]) -> Vec<u64> {
    let mut hits = Vec::with_capacity(HITS_MAX);
    for (from, to) in areas() {
        let mut at = from;
        while at < to && hits.len() < HITS_MAX {
            hits.extend(first_in_page(at, at + PAGE < to, wanted));
            at += PAGE;
        }
    }
    hits
}

/// The first word in this page that has one of the fingerprints; it may reach into the next page if that is `open`.
fn first_in_page(page: u64, open: bool, wanted: [u64; 4]) -> Option<u64> {
    // SAFETY: the area is mapped and readable.
    let word = |n: u64| unsafe { ((page + 8 * n) as *const u64).read_volatile() };
    let words = PAGE / 8;
    let mut low = word(0);
    for n in 0..words {
        let high = if n + 1 < words || open { word(n + 1) } else { 0 };
        if low | high != 0 {
            for byte in 0..8 {
                let found = if byte == 0 { low } else { low >> (8 * byte) | high << (64 - 8 * byte) };
                if wanted.contains(&fingerprint(found)) {
                    return Some(page + 8 * n + byte);
                }
            }
        }
        low = high;
    }
    None
}

/// All that is mapped and may be read.
fn areas() -> Vec<(u64, u64)> {
    let mut areas = Vec::with_capacity(AREAS_MAX);
    for (mut from, end) in [(map::LOWEST, map::CONTROL_START), (map::WINDOW_END, map::HIGHEST)] {
        while let Some(start) = first_mapped(from, end) {
            let bytes = mapping_bytes(start);
            if system::is_readable(start) {
                areas.push((start, start + bytes));
            }
            from = start + bytes;
            assert!(areas.len() < AREAS_MAX);
        }
    }
    // The host's own pages that ring 3 may read: `docs/memory-map.md`.
    areas.extend([map::SYSCALL_ENTRY, map::DOORBELL, map::BOOT_PAGE].map(|page| (page, page + PAGE)));
    areas
}

/// The first mapped page, by halves.
fn first_mapped(mut from: u64, mut to: u64) -> Option<u64> {
    if from >= to || system::is_free(from, to) {
        return None;
    }
    while to - from > PAGE {
        let middle = from + (to - from) / PAGE / 2 * PAGE;
        if system::is_free(from, middle) { from = middle } else { to = middle }
    }
    Some(from)
}

/// Bytes from here to the end of the mapping.
fn mapping_bytes(start: u64) -> u64 {
    let mut pages = 1;
    while system::is_one_mapping(start, 2 * pages * PAGE) {
        pages *= 2;
    }
    // The size is at least `pages`, and less than twice that.
    let mut step = pages / 2;
    while step > 0 {
        if system::is_one_mapping(start, (pages + step) * PAGE) {
            pages += step;
        }
        step /= 2;
    }
    pages * PAGE
}

/// Takes all memory that is left.
pub(crate) fn count_stained_fresh_pages() -> u64 {
    let mut stained = 0;
    let mut bytes = 4 << 20;
    while bytes >= PAGE {
        let Some(start) = system::map(bytes) else {
            bytes /= 2;
            continue;
        };
        for page in (start..start + bytes).step_by(PAGE as usize) {
            // SAFETY: just mapped.
            let is_zero = (page..page + PAGE).step_by(8).all(|at| unsafe { (at as *const u64).read_volatile() } == 0);
            stained += u64::from(!is_zero);
        }
    }
    stained
}
