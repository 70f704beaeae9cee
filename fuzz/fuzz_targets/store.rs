//! Files of a store of snapshots, as any bytes: a layer with its index, a manifest, `index.json`.
//!
//! The first byte says which. A layer is read as if its manifest had the right digests, for what follows is behind them.
#![no_main]

use coracle_snapshot::{PAGE_BYTES, fuzzing};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let [which, bytes @ ..] = bytes else { return };
    match which {
        b'b' => layer(bytes, true),
        b'd' => layer(bytes, false),
        b'm' => document(bytes, fuzzing::manifest),
        b'i' => document(bytes, fuzzing::index),
        _ => {}
    }
});

fn layer(bytes: &[u8], is_base: bool) {
    let checked = fuzzing::layer(bytes, is_base, true);
    let unchecked = fuzzing::layer(bytes, is_base, false);
    if let Ok(pages) = &unchecked {
        assert!(pages.is_sorted_by(|left, right| left.0 < right.0));
        assert!(pages.iter().all(|(number, page)| *number < 1 << 28 && *page != [0; PAGE_BYTES]));
    }
    match (checked, unchecked) {
        (Ok(checked), Ok(unchecked)) => assert!(checked == unchecked),
        (Ok(_), Err(error)) => panic!("only without checks: {error}"),
        (Err(error), _) => assert!(!error.to_string().is_empty()),
    }
}

/// What is accepted is written in one form, which means the same.
fn document(bytes: &[u8], parse: impl Fn(&[u8]) -> Result<Vec<u8>, coracle_snapshot::Error>) {
    match parse(bytes) {
        Ok(written) => assert_eq!(parse(&written).expect("what was written"), written),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
