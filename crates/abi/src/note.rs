//! The ELF notes by which an image describes itself: its ABI version, the functions that it exports and the host
//! functions that it requires. A host reads them from the file, before anything runs.
//!
//! All notes have the owner `Coracle` and lie in the section `.note.coracle`, each padded to four bytes, so that
//! a linker that joins the sections of many objects makes one valid sequence of notes.
//!
//! | type | descriptor |
//! |---|---|
//! | [`ABI`] | `u32` ABI version, little-endian; then name and version of the SDK, UTF-8 |
//! | [`EXPORT`] | a [signature], NUL, the names of the parameters joined by commas |
//! | [`REQUIRE`] | the same, of a host function |
//!
//! There may be no parameter names (nothing after the NUL), else one for each parameter as the programmer sees it:
//! a single parameter that is a pair has one name and two arguments in the signature.
//!
//! This module makes notes at compile time and reads descriptors. Finding the notes in a file is the host's part.
//!
//! ```
//! use coracle_abi::note::{EXPORT, FunctionNote, Note, function_bytes};
//! use postcard_schema::{Schema, schema::NamedType};
//!
//! const ARGS: &NamedType = <(i32, i32)>::SCHEMA;
//! const RESULT: &NamedType = i32::SCHEMA;
//! #[used]
//! #[unsafe(link_section = ".note.coracle")]
//! static NOTE: Note<{ function_bytes("add", ARGS, RESULT, "a,b") }> = Note::function(EXPORT, "add", ARGS, RESULT, "a,b");
//!
//! let note = FunctionNote::parse(NOTE.desc())?;
//! assert_eq!((note.name, note.args, note.result, note.parameters), ("add", "(i32,i32)", "i32", "a,b"));
//! # Ok::<(), coracle_abi::note::BadNote>(())
//! ```

use crate::signature::{self, MAX_SIGNATURE_BYTES};
use core::{fmt, str};
use postcard_schema::schema::NamedType;

/// The section that holds all notes.
pub const SECTION: &str = ".note.coracle";

/// The owner, as it lies in each note.
pub const OWNER: [u8; 8] = *b"Coracle\0";

/// Type of the note with the ABI version. An image has exactly one.
pub const ABI: u32 = 1;

/// Type of a note about an exported function.
pub const EXPORT: u32 = 2;

/// Type of a note about a host function that the image may call.
pub const REQUIRE: u32 = 3;

/// Longest text about an SDK.
pub const MAX_SDK_BYTES: usize = 255;

/// Longest list of parameter names.
pub const MAX_PARAMETERS_BYTES: usize = 4096;

/// A note as it lies in the file. `N` is the length of the descriptor rounded up to four bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(4))]
pub struct Note<const N: usize> {
    owner_bytes: u32,
    /// The true length, without padding.
    desc_bytes: u32,
    kind: u32,
    owner: [u8; 8],
    desc: [u8; N],
}

/// The `N` of a [`Note::abi`].
pub const fn abi_bytes(sdk: &str) -> usize {
    (4 + sdk.len()).next_multiple_of(4)
}

/// The `N` of a [`Note::function`].
pub const fn function_bytes(name: &str, args: &NamedType, result: &NamedType, parameters: &str) -> usize {
    (signature::signature_bytes(name, args, result) + 1 + parameters.len()).next_multiple_of(4)
}

impl<const N: usize> Note<N> {
    /// The note with the ABI version; `sdk` says what made the image, as in `coracle-guest 0.1.0`.
    ///
    /// # Panics
    /// If `N` is not [`abi_bytes`], or the text is too long: at compile time, in a static.
    pub const fn abi(version: u32, sdk: &str) -> Self {
        assert!(N == abi_bytes(sdk), "N is not abi_bytes(...)");
        assert!(sdk.len() <= MAX_SDK_BYTES, "the text about the SDK is longer than 255 bytes");
        let mut desc = [0; N];
        put(&mut desc, 0, &version.to_le_bytes());
        put(&mut desc, 4, sdk.as_bytes());
        Self::new(ABI, 4 + sdk.len(), desc)
    }

    /// A note about a function: `kind` is [`EXPORT`] or [`REQUIRE`].
    ///
    /// # Panics
    /// If `N` is not [`function_bytes`], a text is too long or `name` cannot be a name: at compile time, in a static.
    pub const fn function(kind: u32, name: &str, args: &NamedType, result: &NamedType, parameters: &str) -> Self {
        assert!(kind == EXPORT || kind == REQUIRE, "not a type of note about functions");
        assert!(signature::is_name(name), "this cannot be the name of a function");
        assert!(N == function_bytes(name, args, result, parameters), "N is not function_bytes(...)");
        assert!(parameters.len() <= MAX_PARAMETERS_BYTES, "the parameters' names are longer than 4 KiB");
        let mut desc = [0; N];
        let end = signature::fill_signature(name, args, result, &mut desc); // The NUL after it is there already.
        put(&mut desc, end + 1, parameters.as_bytes());
        Self::new(kind, end + 1 + parameters.len(), desc)
    }

    /// The descriptor, without padding.
    pub const fn desc(&self) -> &[u8] {
        self.desc.split_at(self.desc_bytes as usize).0
    }

    const fn new(kind: u32, desc_bytes: usize, desc: [u8; N]) -> Self {
        Self { owner_bytes: OWNER.len() as u32, desc_bytes: desc_bytes as u32, kind, owner: OWNER, desc }
    }
}

/// Copies `bytes` into `out` from `at` on.
const fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out.split_at_mut(at).1.split_at_mut(bytes.len()).0.copy_from_slice(bytes);
}

/// What an [`ABI`] note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbiNote<'a> {
    /// The ABI version that the image was built for.
    pub version: u32,
    /// Name and version of the SDK. For people.
    pub sdk: &'a str,
}

impl<'a> AbiNote<'a> {
    /// Reads a descriptor.
    ///
    /// # Errors
    /// If it is not as the module's table says, or has control characters in it.
    pub fn parse(desc: &'a [u8]) -> Result<Self, BadNote> {
        let (version, sdk) = desc.split_first_chunk().ok_or(BadNote("it ends within the ABI version"))?;
        if sdk.len() > MAX_SDK_BYTES {
            return Err(BadNote("its text about the SDK is longer than 255 bytes"));
        }
        Ok(Self { version: u32::from_le_bytes(*version), sdk: printable(sdk)? })
    }
}

/// What an [`EXPORT`] or [`REQUIRE`] note says.
///
/// The signature is taken apart and no more: that `args` and `result` are types of the grammar is known only to who
/// parses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionNote<'a> {
    /// The whole signature. The other parts but the parameters are parts of it.
    pub signature: &'a str,
    /// The function's name.
    pub name: &'a str,
    /// The arguments, in parentheses.
    pub args: &'a str,
    /// The result.
    pub result: &'a str,
    /// Names of the parameters, joined by commas, or nothing. For people.
    pub parameters: &'a str,
}

impl<'a> FunctionNote<'a> {
    /// Reads a descriptor.
    ///
    /// # Errors
    /// If it is not as the module's table says, a part is longer than its limit, or there are control characters in
    /// it.
    pub fn parse(desc: &'a [u8]) -> Result<Self, BadNote> {
        let nul = desc.iter().position(|&byte| byte == 0).ok_or(BadNote("no NUL follows its signature"))?;
        let (signature, parameters) = (&desc[..nul], &desc[nul + 1..]);
        if signature.len() > MAX_SIGNATURE_BYTES {
            return Err(BadNote("its signature is longer than 16 KiB"));
        }
        if parameters.len() > MAX_PARAMETERS_BYTES {
            return Err(BadNote("its parameters' names are longer than 4 KiB"));
        }
        let (signature, parameters) = (printable(signature)?, printable(parameters)?);
        if !parameters.is_empty() && !parameters.split(',').all(signature::is_bare) {
            return Err(BadNote("its parameters' names are not names joined by commas"));
        }
        let (name, _) = signature.split_once('(').ok_or(BadNote("its signature has no arguments"))?;
        if !signature::is_name(name) {
            return Err(BadNote("its function's name is not one"));
        }
        let types = &signature[name.len()..];
        let end = end_of_arguments(types).ok_or(BadNote("its signature's arguments do not end"))?;
        let (args, rest) = types.split_at(end);
        let result = rest.strip_prefix(" -> ").ok_or(BadNote("its signature has no result"))?;
        Ok(Self { signature, name, args, result, parameters })
    }

    /// The function's key ([`signature::key_from`]).
    pub const fn key(&self) -> u64 {
        signature::hash(self.signature)
    }

    /// The hash of its types ([`signature::types_hash`]).
    pub fn types_hash(&self) -> u64 {
        signature::hash(&self.signature[self.name.len()..])
    }
}

/// Index after the bracket that closes the one which `types` starts with.
fn end_of_arguments(types: &str) -> Option<usize> {
    let mut open = 0_usize;
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in types.bytes().enumerate() {
        if quoted {
            quoted = escaped || byte != b'"';
            escaped = byte == b'\\' && !escaped;
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'(' | b'[' | b'{' | b'<' => open += 1,
            b')' | b']' | b'}' | b'>' => open = open.checked_sub(1)?,
            _ => {}
        }
        if open == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// The text, if it is one and can be shown on a terminal.
fn printable(bytes: &[u8]) -> Result<&str, BadNote> {
    let text = str::from_utf8(bytes).map_err(|_| BadNote("it is not UTF-8"))?;
    if text.contains(char::is_control) {
        return Err(BadNote("it has control characters in it"));
    }
    Ok(text)
}

/// What is wrong with a descriptor, as the end of a sentence that starts with the note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadNote(&'static str);

impl fmt::Display for BadNote {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }
}

impl core::error::Error for BadNote {}

// Changing any of these breaks guests that already exist. Read docs/abi.md before touching one.
const _: () = {
    assert!(ABI == 1 && EXPORT == 2 && REQUIRE == 3);
    assert!(size_of::<Note<0>>() == 20 && size_of::<Note<8>>() == 28);
    assert!(align_of::<Note<8>>() == 4);
    assert!(core::mem::offset_of!(Note<8>, desc_bytes) == 4);
    assert!(core::mem::offset_of!(Note<8>, kind) == 8);
    assert!(core::mem::offset_of!(Note<8>, owner) == 12);
    assert!(core::mem::offset_of!(Note<8>, desc) == 20);
};

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::{string::String, vec::Vec};
    use postcard_schema::Schema;

    #[test]
    fn a_function_comes_back_from_its_note() {
        const ARGS: &NamedType = <(&str, Option<u8>)>::SCHEMA;
        const RESULT: &NamedType = <Vec<String>>::SCHEMA;
        const NOTE: Note<{ function_bytes("fs.read", ARGS, RESULT, "path,limit") }> =
            Note::function(REQUIRE, "fs.read", ARGS, RESULT, "path,limit");
        let note = FunctionNote::parse(NOTE.desc()).unwrap();
        assert_eq!(note.signature, "fs.read(string,option<u8>) -> [string]");
        assert_eq!(note.name, "fs.read");
        assert_eq!(note.args, "(string,option<u8>)");
        assert_eq!(note.result, "[string]");
        assert_eq!(note.parameters, "path,limit");
        assert_eq!(note.key(), signature::key_from("fs.read", ARGS, RESULT));
        assert_eq!(note.types_hash(), signature::types_hash(ARGS, RESULT));
        assert_eq!(NOTE.kind, REQUIRE);
    }

    #[test]
    fn the_abi_comes_back_from_its_note() {
        const NOTE: Note<{ abi_bytes("sdk 1") }> = Note::abi(7, "sdk 1");
        assert_eq!((NOTE.desc_bytes, NOTE.desc.len()), (9, 12));
        assert_eq!(AbiNote::parse(NOTE.desc()), Ok(AbiNote { version: 7, sdk: "sdk 1" }));
        assert_eq!(AbiNote::parse(&[1, 0, 0, 0]), Ok(AbiNote { version: 1, sdk: "" }));
    }

    #[test]
    fn a_bad_abi_note_is_refused() {
        for bad in [&b""[..], b"\x01\0\0", b"\x01\0\0\0\xff", b"\x01\0\0\0a\x1b[2J"] {
            assert!(AbiNote::parse(bad).is_err(), "{bad:?}");
        }
        assert!(AbiNote::parse(&[b'a'; 4 + 256]).is_err());
    }

    #[test]
    fn an_arrow_inside_a_name_is_no_arrow() {
        let note = FunctionNote::parse(b"f({\") -> (\":i32,\"\\\")\":bool}) -> {\"->\":()}\0x").unwrap();
        assert_eq!(note.args, "({\") -> (\":i32,\"\\\")\":bool})");
        assert_eq!(note.result, "{\"->\":()}");
    }

    #[test]
    fn a_bad_function_note_is_refused() {
        let bad = [
            "",
            "f() -> ()",
            "\0",
            "f\0",
            "() -> ()\0",
            "f g() -> ()\0",
            "f() -> (\u{9b}2J\0",
            "f(\0",
            "f(\")\0",
            "f(]\0",
            "f()\0",
            "f()-> ()\0",
            "f(i32) -> i32\0a b",
            "f(i32) -> i32\0a,",
            "f(i32) -> i32\0a\0",
        ];
        for bad in bad {
            assert!(FunctionNote::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(FunctionNote::parse(b"f() -> \xff\0").is_err());
        assert!(
            FunctionNote::parse(alloc::format!("f() -> {}\0", "a".repeat(MAX_SIGNATURE_BYTES)).as_bytes()).is_err()
        );
    }
}
