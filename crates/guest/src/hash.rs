//! Keys for hash maps that no two lives of a guest share.

use core::hash::{BuildHasher, Hasher};
use core::sync::atomic::{AtomicU64, Ordering};
use std::hash::DefaultHasher;

use crate::rt::boot::Boot;

/// Makes hashers for `HashMap` and `HashSet`, in place of the standard library's `RandomState`.
///
/// That one takes its keys once, when the first map of the program is made, so that every sandbox from a snapshot taken
/// afterwards has the same. Each [`RandomState::new`] of this type takes them from the random bytes of the guest's present
/// life ([`generation`](crate::generation)), at the cost of no exit. A map keeps the keys that it was made with.
///
/// ```
/// # fn main() {}
/// use std::collections::HashMap;
///
/// let mut map = HashMap::with_hasher(coracle_guest::RandomState::new());
/// map.insert("key", 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomState {
    keys: [u64; 2],
}

impl RandomState {
    /// Fresh keys. Outside of a sandbox, those of the standard library.
    pub fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let keys = match Boot::get() {
            Some(boot) => {
                // The second half: nobody else uses it.
                let entropy = boot.info().entropy;
                let word = |at: usize| entropy[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
                [word(16), word(24)]
            }
            None => [0, 1].map(|n: u64| std::hash::RandomState::new().hash_one(n)),
        };
        Self { keys: [keys[0].wrapping_add(made), keys[1]] }
    }
}

impl Default for RandomState {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for RandomState {
    type Hasher = DefaultHasher;

    /// The standard library's hash, of the keys and then of what follows: as good as one with these keys, for somebody who
    /// does not know them.
    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        self.keys.iter().for_each(|key| hasher.write_u64(*key));
        hasher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_keys_and_keeps_them() {
        let (one, other) = (RandomState::new(), RandomState::new());
        assert_eq!(one.hash_one("x"), one.hash_one("x"));
        assert_ne!(one.hash_one("x"), other.hash_one("x"));
        assert_ne!(one.hash_one("x"), one.hash_one("y"));
    }
}
