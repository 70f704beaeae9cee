//! What an image says of itself, as any bytes: its notes, the types in them, and values of these types.
//!
//! The bytes up to the first `0xff` (which no text has) are a type, what follows them a value of it; all of them together
//! are the content of an image's note section.
#![no_main]

use coracle::dynamic::{Signature, Type};
use coracle::{Image, Interface};
use coracle_abi::note::FunctionNote;
use coracle_abi::signature::{MAX_FUNCTIONS, is_name};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|byte| *byte == 0xff).unwrap_or(bytes.len());
    if let Ok(text) = str::from_utf8(&bytes[..end]) {
        value(text, bytes.get(end + 1..).unwrap_or(&[]));
    }
    if let Ok(image) = Image::from_bytes(elf(bytes))
        && let Ok(Some(interface)) = Interface::of(&image)
    {
        check(&interface);
    }
});

/// JSON that came from bytes goes back to bytes, and these give the same JSON.
fn value(text: &str, bytes: &[u8]) {
    let Ok(ty) = Type::parse(text) else { return };
    assert!(!ty.to_string().is_empty());
    let Ok(json) = ty.decode_json(bytes) else { return };
    let encoded = ty.encode_json(&json).unwrap_or_else(|error| panic!("{ty} {json}: {error}"));
    let again = ty.decode_json(&encoded).unwrap_or_else(|error| panic!("{ty} {json}: {error}"));
    assert_eq!(json, again, "{ty}");
}

fn check(interface: &Interface) {
    assert!(!interface.sdk.contains(char::is_control));
    let _ = interface.check_version();
    for functions in [&interface.functions, &interface.host_functions] {
        assert!(functions.len() <= MAX_FUNCTIONS);
        let mut names: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two functions of one name");
        for function in functions {
            assert!(is_name(&function.name) && function.types().starts_with('('));
            assert!(!function.signature.contains(char::is_control));
            let desc = [function.signature.as_bytes(), &[0], function.parameters.as_bytes()].concat();
            let note = FunctionNote::parse(&desc).unwrap();
            if let Ok(signature) = Signature::from_note(&note) {
                assert_eq!(signature.name, function.name);
            }
        }
    }
}

/// An image with one page of code and these notes in it.
fn elf(notes: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 2 * 56;
    const BASE: u64 = 0x40_0000;
    let end = HEADERS + notes.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]); // An x86-64 executable, version 1.
    file.extend([BASE, 64, 0].map(u64::to_le_bytes).concat()); // Entry, program headers, no section headers.
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
    for (kind, flags, offset, bytes, align) in [(1_u32, 5_u32, 0, end, 4096), (4, 4, HEADERS, notes.len() as u64, 4)] {
        file.extend([kind, flags].map(u32::to_le_bytes).concat());
        file.extend([offset, BASE + offset, BASE + offset, bytes, bytes, align].map(u64::to_le_bytes).concat());
    }
    file.extend(notes);
    file
}
