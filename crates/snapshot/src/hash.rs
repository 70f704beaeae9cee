//! A fast hash of one page, to find equal pages by.
//!
//! Nobody trusts it: pages are equal only if their bytes are. A collision costs a second copy of a page and
//! nothing else, so this need not resist an attacker. The keys are random all the same, so that no content is
//! slow or wasteful on every host.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use crate::{PAGE_BYTES, PageBytes};

const LANES: usize = 4; // As many multiplications as a core has under way at once; eight were no faster.
const _: () = assert!(PAGE_BYTES.is_multiple_of(16 * LANES));

static KEYS: LazyLock<[u64; LANES]> = LazyLock::new(|| {
    let random = RandomState::new();
    std::array::from_fn(|lane| random.hash_one(lane))
});

/// The hash of a page; another in each process.
pub(crate) fn hash(bytes: &PageBytes) -> u64 {
    let keys = *KEYS;
    let mut lanes = keys;
    lanes.rotate_left(1); // Or the first two words could change places.
    let (blocks, _) = bytes.as_chunks::<{ 16 * LANES }>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for lane in 0..LANES {
            let [left, right] = [words[2 * lane], words[2 * lane + 1]].map(u64::from_ne_bytes);
            lanes[lane] = multiply(left ^ lanes[lane], right ^ keys[lane]);
        }
    }
    // Each lane meets another key, so that equal lanes do not cancel out.
    lanes.into_iter().zip(keys).fold(0, |hash, (lane, key)| multiply(hash ^ lane, key | 1))
}

/// Both halves of the product, so that every bit of the factors counts.
const fn multiply(left: u64, right: u64) -> u64 {
    let product = left as u128 * right as u128;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pages_that_differ_in_one_bit_have_different_hashes() {
        for background in [0, 0xff] {
            let mut page = [background; PAGE_BYTES];
            let mut seen = HashSet::from([hash(&page)]);
            for bit in (0..8 * PAGE_BYTES).step_by(5) {
                page[bit / 8] ^= 1 << (bit % 8);
                assert!(seen.insert(hash(&page)), "{bit}");
                page[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn the_order_of_words_counts() {
        let mut seen = HashSet::new();
        for word in 0..PAGE_BYTES / 8 {
            let mut page = [0; PAGE_BYTES];
            page[8 * word] = 1;
            assert!(seen.insert(hash(&page)), "{word}");
        }
    }
}
