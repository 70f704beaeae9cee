//! Random numbers, from all that a guest can get them from.

use std::hash::BuildHasher;

use coracle_abi::boot::BootInfo;
use coracle_abi::map::BOOT_PAGE;
use coracle_guest::RandomState;

use crate::system;

/// What it is, and how four numbers come from it.
type Source = (&'static str, fn() -> [u64; 4]);

/// Each draws fresh numbers, but for the boot page: that has the same all life long.
pub(crate) const SOURCES: [Source; 5] = [
    ("getrandom", || {
        let mut words = [0; 4];
        system::random(&mut words);
        words
    }),
    ("fill_random", || {
        let mut bytes = [0; 32];
        coracle_guest::fill_random(&mut bytes);
        words(bytes)
    }),
    ("hashers of their own", || [(); 4].map(|()| RandomState::new().hash_one(0))),
    ("one hasher", || {
        let state = RandomState::new();
        [0, 1, 2, 3].map(|n| state.hash_one(n))
    }),
    // SAFETY: the host maps it for every guest of the SDK.
    ("boot page", || words(unsafe { (BOOT_PAGE as *const BootInfo).read_volatile() }.entropy)),
];

fn words(bytes: [u8; 32]) -> [u64; 4] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|n| u64::from_le_bytes(words[n]))
}
