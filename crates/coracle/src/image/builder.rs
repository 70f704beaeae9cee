//! Writes small ELF files for tests: valid ones, and ones that are wrong in a chosen way.
//!
//! It writes what it is told and checks nothing.

/// Bytes of the ELF header.
pub(super) const HEADER_BYTES: u64 = 64;

pub(super) const PT_LOAD: u32 = 1;
pub(super) const PT_DYNAMIC: u32 = 2;
pub(super) const PT_INTERP: u32 = 3;
pub(super) const PT_NOTE: u32 = 4;
pub(super) const PT_GNU_STACK: u32 = 0x6474_e551;
pub(super) const PT_GNU_RELRO: u32 = 0x6474_e552;
pub(super) const R: u32 = 4;
pub(super) const RW: u32 = 6;
pub(super) const RX: u32 = 5;

/// An ELF file to be: header fields, tables, and content at chosen places.
#[derive(Clone)]
pub(super) struct Elf {
    pub(super) ident: [u8; 16],
    pub(super) file_type: u16,
    pub(super) machine: u16,
    pub(super) entry: u64,
    pub(super) headers_offset: u64,
    pub(super) header_bytes: u16,
    /// What the header claims, if not the number of `headers`.
    pub(super) header_count: Option<u16>,
    pub(super) headers: Vec<Header>,
    /// `.symtab` and its strings, if any.
    pub(super) symbols: Vec<Symbol>,
    /// Offset and content.
    pub(super) parts: Vec<(u64, Vec<u8>)>,
}

/// One program header.
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) file_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) alignment: u64,
}

/// One symbol, defined in some section.
#[derive(Clone, Copy)]
pub(super) struct Symbol {
    pub(super) name: &'static str,
    /// Type in the lower four bits, binding above.
    pub(super) info: u8,
    pub(super) address: u64,
    pub(super) size: u64,
}

impl Header {
    /// A loadable segment of 4 KiB pages, all of it in the file.
    pub(super) fn load(flags: u32, offset: u64, address: u64, bytes: u64) -> Self {
        let alignment = 4096;
        Self { kind: PT_LOAD, flags, offset, address, file_bytes: bytes, memory_bytes: bytes, alignment }
    }

    /// A loadable segment with nothing in the file.
    pub(super) fn zeros(flags: u32, address: u64, bytes: u64) -> Self {
        Self { file_bytes: 0, ..Self::load(flags, 0, address, bytes) }
    }

    /// Not loadable: something the file says about itself.
    pub(super) fn about(kind: u32, offset: u64, bytes: u64) -> Self {
        Self { kind, alignment: 4, ..Self::load(R, offset, 0, bytes) }
    }
}

impl Elf {
    /// A header without any segment.
    pub(super) fn empty(file_type: u16, entry: u64) -> Self {
        Self {
            ident: *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
            file_type,
            machine: 62,
            entry,
            headers_offset: HEADER_BYTES,
            header_bytes: 56,
            header_count: None,
            headers: Vec::new(),
            symbols: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// An image linked at 0x400000: code with the headers, then data with zeros after it.
    pub(super) fn fixed() -> Self {
        Self::program(2, 0x40_0000)
    }

    /// The same, position-independent and linked at 0.
    pub(super) fn position_independent() -> Self {
        Self::program(3, 0)
    }

    fn program(file_type: u16, base: u64) -> Self {
        let stack = Header { kind: PT_GNU_STACK, ..Header::zeros(RW, 0, 0) };
        let code = Header::load(RX, 0, base, 0x208);
        let data = Header { memory_bytes: 0x2000, ..Header::load(RW, 0x208, base + 0x1208, 0x10) };
        Self {
            headers: vec![code, data, stack],
            parts: vec![(0x200, b"\x31\xc0\x0f\x0b\x90\x90\x90\x90".to_vec()), (0x208, vec![0x11; 0x10])],
            ..Self::empty(file_type, base + 0x200)
        }
    }

    /// The file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut parts = self.parts.clone();
        let table: Vec<u8> = self.headers.iter().flat_map(Header::bytes).collect();
        let end = parts.iter().map(|(offset, part)| offset + part.len() as u64).max().unwrap_or(0);
        let end = end.max(HEADER_BYTES).max(self.headers_offset + table.len() as u64);
        parts.push((self.headers_offset, table));
        let mut sections_offset = 0;
        if !self.symbols.is_empty() {
            let (symbols, strings) = self.symbol_tables();
            let symbols_offset = end.next_multiple_of(8);
            let strings_offset = symbols_offset + symbols.len() as u64;
            sections_offset = (strings_offset + strings.len() as u64).next_multiple_of(8);
            let mut sections = section(0, 0, 0, 0, 0);
            sections.extend(section(2, symbols_offset, symbols.len() as u64, 2, 24));
            sections.extend(section(3, strings_offset, strings.len() as u64, 0, 0));
            parts.extend([(symbols_offset, symbols), (strings_offset, strings), (sections_offset, sections)]);
        }
        parts.push((0, self.header(sections_offset)));
        let mut file = Vec::new();
        for (offset, part) in parts {
            let offset = offset as usize;
            file.resize(file.len().max(offset + part.len()), 0);
            file[offset..offset + part.len()].copy_from_slice(&part);
        }
        file
    }

    fn header(&self, sections_offset: u64) -> Vec<u8> {
        let mut out = self.ident.to_vec();
        let count = self.header_count.unwrap_or(self.headers.len() as u16);
        out.extend(self.file_type.to_le_bytes());
        out.extend(self.machine.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        for word in [self.entry, self.headers_offset, sections_offset] {
            out.extend(word.to_le_bytes());
        }
        out.extend(0u32.to_le_bytes());
        let section_count = if sections_offset == 0 { 0 } else { 3 };
        for half in [HEADER_BYTES as u16, self.header_bytes, count, 64, section_count, 0] {
            out.extend(half.to_le_bytes());
        }
        out
    }

    fn symbol_tables(&self) -> (Vec<u8>, Vec<u8>) {
        let mut symbols = vec![0; 24];
        let mut strings = vec![0];
        for symbol in &self.symbols {
            symbols.extend((strings.len() as u32).to_le_bytes());
            symbols.extend([symbol.info, 0, 1, 0]);
            symbols.extend(symbol.address.to_le_bytes());
            symbols.extend(symbol.size.to_le_bytes());
            strings.extend(symbol.name.as_bytes());
            strings.push(0);
        }
        (symbols, strings)
    }
}

impl Header {
    fn bytes(&self) -> Vec<u8> {
        let mut out = self.kind.to_le_bytes().to_vec();
        out.extend(self.flags.to_le_bytes());
        let words = [self.offset, self.address, self.address, self.file_bytes, self.memory_bytes, self.alignment];
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out
    }
}

fn section(kind: u32, offset: u64, bytes: u64, link: u32, entry_bytes: u64) -> Vec<u8> {
    let mut out = 0u32.to_le_bytes().to_vec();
    out.extend(kind.to_le_bytes());
    for word in [0, 0, offset, bytes] {
        out.extend(word.to_le_bytes());
    }
    out.extend(link.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend(8u64.to_le_bytes());
    out.extend(entry_bytes.to_le_bytes());
    out
}

/// One ELF note, padded to four bytes.
pub(super) fn note(owner: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [owner.len() as u32, content.len() as u32, kind] {
        out.extend(word.to_le_bytes());
    }
    for part in [owner, content] {
        out.extend(part);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}
