//! Names for addresses, for crash reports.
//!
//! Nothing here is an error: an image without a usable symbol table just has no names. Names are the image's claim,
//! so what is handed out is short and free of control characters.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};
use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, Sym64};
use object::read::elf::{FileHeader as _, SectionHeader as _, Sym as _};

use super::Segment;
use super::elf::{ENDIAN, Header, file_range, segment_at};

/// Functions of one image that get a name; the largest programs have some hundred thousand.
const FUNCTIONS_MAX: usize = 1 << 20;
/// Bytes of a symbol's name in the file that are looked at.
const RAW_NAME_BYTES_MAX: usize = 8 << 10;
/// Bytes of a name that is handed out, before [`CUT`].
const NAME_BYTES_MAX: usize = 1 << 10;
/// Ends a name that would be longer.
const CUT: &str = "...";

/// A place in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The function's name as the programmer wrote it, if that was in Rust. At most about 1 KiB, then cut.
    pub name: String,
    /// Bytes from the function's start.
    pub offset: u64,
}

/// Function symbols, at most one for each address, sorted by it.
pub(super) struct SymbolTable {
    functions: Vec<Function>,
    /// Where in the file names are, as a range inside it.
    strings: Range<usize>,
}

struct Function {
    address: u64,
    size: u64,
    /// Offset into the strings, unchecked.
    name: u32,
}

impl SymbolTable {
    /// Those of `.symtab`, or in a stripped image those few of `.dynsym`.
    pub(super) fn new(bytes: &[u8], segments: &[Segment]) -> Self {
        [elf::SHT_SYMTAB, elf::SHT_DYNSYM]
            .into_iter()
            .filter_map(|kind| read_table(bytes, kind, segments))
            .find(|table| !table.functions.is_empty())
            .unwrap_or(Self { functions: Vec::new(), strings: 0..0 })
    }

    pub(super) fn find(&self, bytes: &[u8], segments: &[Segment], address: u64) -> Option<Symbol> {
        let segment = segment_at(address, segments).filter(|segment| segment.rights.execute)?;
        let after = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions[..after].last()?;
        let offset = address - function.address;
        let inside = function.size == 0 || offset < function.size;
        if !inside || !segment.range().contains(&function.address) {
            return None;
        }
        let name = raw_name(&bytes[self.strings.clone()], function.name)?;
        Some(Symbol { name: readable(name), offset })
    }
}

fn read_table(bytes: &[u8], kind: elf::SectionType, segments: &[Segment]) -> Option<SymbolTable> {
    let header = Header::parse(bytes).ok()?;
    let sections = header.section_headers(ENDIAN, bytes).ok()?;
    let section = sections.iter().find(|section| section.sh_type(ENDIAN) == kind)?;
    let symbols: &[Sym64<LittleEndian>] = section.data_as_array(ENDIAN, bytes).ok()?;
    let strings = sections.get(section.sh_link(ENDIAN) as usize)?;
    let (offset, length) = strings.file_range(ENDIAN)?;
    let strings = file_range(offset, length, bytes)?;
    let executable = |address| segment_at(address, segments).is_some_and(|segment| segment.rights.execute);
    let is_function = |symbol: &&Sym64<LittleEndian>| {
        let kind = match symbol.st_type() {
            elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
            // What assembly exports without a type, such as musl's `_start`.
            elf::STT_NOTYPE => symbol.st_bind() == elf::STB_GLOBAL,
            _ => false,
        };
        kind && !symbol.is_undefined(ENDIAN) && executable(symbol.st_value(ENDIAN))
    };
    let mut functions: Vec<&Sym64<LittleEndian>> = symbols.iter().filter(is_function).take(FUNCTIONS_MAX).collect();
    // Of those at one address, the one that says most comes first and stays.
    functions.sort_by_key(|symbol| {
        (symbol.st_value(ENDIAN), Reverse(symbol.st_size(ENDIAN)), symbol.st_bind() != elf::STB_GLOBAL)
    });
    functions.dedup_by_key(|symbol| symbol.st_value(ENDIAN));
    let functions = functions
        .iter()
        .map(|symbol| Function {
            address: symbol.st_value(ENDIAN),
            size: symbol.st_size(ENDIAN),
            name: symbol.st_name(ENDIAN),
        })
        .collect();
    Some(SymbolTable { functions, strings })
}

/// The bytes up to the terminator, or the first few of a name that is absurdly long.
fn raw_name(strings: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = strings.get(offset as usize..)?;
    let rest = &rest[..rest.len().min(RAW_NAME_BYTES_MAX)];
    let name = rest.split(|&byte| byte == 0).next()?;
    (!name.is_empty()).then_some(name)
}

fn readable(raw: &[u8]) -> String {
    let raw = String::from_utf8_lossy(raw);
    let mut name = Bounded(String::new());
    // The alternate form leaves out the hash. Demangled names can be much longer than what they are made from; the
    // writer's error stops that.
    if write!(name, "{:#}", rustc_demangle::demangle(&raw)).is_err() {
        name.0.push_str(CUT);
    }
    name.0
}

/// Takes up to [`NAME_BYTES_MAX`] bytes.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let character = if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
            if self.0.len() + character.len_utf8() > NAME_BYTES_MAX {
                return Err(fmt::Error);
            }
            self.0.push(character);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_names_lose_their_mangling_and_hash() {
        assert_eq!(readable(b"_ZN5guest4main17h0123456789abcdefE"), "guest::main");
        assert_eq!(readable(b"_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(readable(b"memcpy"), "memcpy");
    }

    #[test]
    fn a_name_cannot_steer_a_terminal() {
        assert_eq!(readable(b"red\x1b[31m\n"), "red\u{fffd}[31m\u{fffd}");
        assert_eq!(readable(b"latin\xe9"), "latin\u{fffd}");
    }

    #[test]
    fn a_long_name_is_cut() {
        let name = readable(&[b'a'; 5000]);
        assert_eq!(name.len(), NAME_BYTES_MAX + CUT.len());
        assert!(name.ends_with("aaa..."));
    }

    #[test]
    fn a_name_ends_at_its_terminator_or_at_the_table_end() {
        assert_eq!(raw_name(b"\0main\0exit", 1), Some(&b"main"[..]));
        assert_eq!(raw_name(b"\0main\0exit", 6), Some(&b"exit"[..]));
        assert_eq!(raw_name(b"\0main\0exit", 0), None);
        assert_eq!(raw_name(b"\0main\0exit", 10), None);
        assert_eq!(raw_name(b"\0main\0exit", u32::MAX), None);
    }
}
