//! Any bytes as a guest image: parsing must refuse or accept them, and what it accepts must keep its promises.
//!
//! Run it with `cargo +nightly fuzz run image fuzz/corpus/image fuzz/seeds/image`.
#![no_main]

use coracle::image::{Image, Linkage};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let image = match Image::from_bytes(bytes) {
        Ok(image) => image,
        Err(error) => {
            assert!(!error.to_string().contains(char::is_control));
            return;
        }
    };
    let extent = image.extent();
    let mut end = 0;
    for segment in image.segments() {
        let pages = segment.page_range();
        assert!(segment.memory_bytes > 0 && end <= segment.address);
        assert!(extent.start <= pages.start && pages.end <= extent.end);
        assert!(image.bytes()[segment.file.clone()].len() as u64 <= segment.memory_bytes);
        assert!(!(segment.rights.write && segment.rights.execute));
        end = segment.range().end;
        for address in [segment.address, segment.address + segment.memory_bytes / 2, end - 1] {
            symbol(&image, address);
        }
    }
    match image.linkage() {
        Linkage::Fixed => assert_eq!(image.load_bias(), 0),
        Linkage::PositionIndependent => {
            let bias = image.load_bias();
            assert!(extent.start.wrapping_add(bias) < extent.end.wrapping_add(bias));
        }
    }
    assert!(extent.contains(&image.entry()));
    if let Some(relro) = image.relro() {
        assert!(extent.start <= relro.start && relro.start < relro.end && relro.end <= extent.end);
    }
    if let Some(address) = image.program_headers().address {
        assert!(extent.contains(&address));
    }
    for address in [image.entry(), 0, u64::MAX] {
        symbol(&image, address);
    }
    for (_, content) in image.notes() {
        assert!(content.len() <= bytes.len());
    }
    assert_eq!(image.name(), None);
    assert_eq!(image.clone().bytes(), bytes);
    assert!(!format!("{image:?}").is_empty());
});

fn symbol(image: &Image, address: u64) {
    if let Some(symbol) = image.symbol(address) {
        assert!(symbol.offset <= address);
        assert!(symbol.name.len() <= 1100 && !symbol.name.contains(char::is_control));
    }
}
