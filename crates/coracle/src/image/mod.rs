//! Guest images: static x86-64 ELF programs, checked once and then immutable.
//!
//! An [`Image`] exists only if its file can be laid out in a guest's address space without a second look at its
//! headers: segments lie inside the file and the memory map, do not overlap, and no page is writable and
//! executable. All addresses here are *link addresses*, those the linker wrote; whoever loads the image adds
//! [`Image::load_bias`] to them. Relocating is left to the guest's own start code, as in any static program.
//!
//! `PT_GNU_STACK` is not looked at: the guest's stack is never executable, whatever the image asks for.

mod elf;
mod error;
mod symbols;

#[cfg(test)]
mod builder;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::{fmt, fs};

use coracle_abi::PAGE_BYTES;
use coracle_abi::map;
use coracle_snapshot::Digest;
use coracle_vm::Rights;

use self::error::Refusal;
pub use self::error::{Fault, ImageError};
pub use self::symbols::Symbol;
use self::symbols::SymbolTable;

/// A guest program, checked and ready to load. Cloning it is cheap and shares the bytes.
#[derive(Clone)]
pub struct Image(Arc<Inner>);

struct Inner {
    bytes: Vec<u8>,
    layout: elf::Layout,
    name: Option<String>,
    /// Made when the first crash is to be explained: most images are never asked.
    symbols: OnceLock<SymbolTable>,
    digest: OnceLock<Digest>,
}

/// One part of an image that goes to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Link address of its first byte, not always the first of a page.
    pub address: u64,
    /// Bytes it takes in memory, never 0. What the file does not give is zero.
    pub memory_bytes: u64,
    /// The part of [`Image::bytes`] that goes to its start; `0..0` if it is all zeros.
    pub file: Range<usize>,
    /// What the guest may do with it, never both writing and executing. As on the processor, the right to write
    /// or to execute brings the right to read; a segment without any right is a hole that nobody else may use.
    pub rights: Rights,
}

impl Segment {
    /// Its link addresses.
    pub fn range(&self) -> Range<u64> {
        self.address..self.address + self.memory_bytes // Checked when it was made.
    }

    /// Its link addresses, widened to whole pages.
    pub fn page_range(&self) -> Range<u64> {
        let Range { start, end } = self.range();
        page_start(start)..end.next_multiple_of(PAGE_BYTES) // Checked when it was made.
    }
}

/// Whether an image must lie at its link addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// It runs at its link addresses only.
    Fixed,
    /// It runs wherever it is put; Coracle puts it at [`IMAGE_BASE`](coracle_abi::map::IMAGE_BASE).
    PositionIndependent,
}

/// Where a guest finds its own program headers, for the auxiliary vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramHeaders {
    /// Link address of the table, or `None` if no segment loads the whole of it.
    pub address: Option<u64>,
    /// Number of entries.
    pub count: u16,
    /// Bytes of one entry.
    pub entry_bytes: u16,
}

impl Image {
    /// The largest file that is accepted: 1 GiB.
    pub const MAX_FILE_BYTES: u64 = 1 << 30;

    /// Reads and checks the program at `path`. The file is read whole, now; later changes to it are not seen.
    ///
    /// # Errors
    ///
    /// [`Fault::Unreadable`] if it cannot be read or is not a regular file, [`Fault::TooLarge`] above
    /// [`MAX_FILE_BYTES`](Self::MAX_FILE_BYTES), and those of [`from_bytes`](Self::from_bytes).
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, ImageError> {
        let path = path.as_ref();
        let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        read(path).and_then(|bytes| Self::new(bytes, name)).map_err(|error| error.with_path(path))
    }

    /// Checks a program that is already in memory.
    ///
    /// ```
    /// # use coracle::image::{Fault, Image};
    /// let error = Image::from_bytes(b"#!/bin/sh\n").unwrap_err();
    /// assert_eq!(error.fault(), Fault::NotElf);
    /// ```
    ///
    /// # Errors
    ///
    /// When the bytes are not a static x86-64 program that fits the guest's memory map. [`ImageError::fault`]
    /// tells what is wrong, the error's text also what to do.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, ImageError> {
        Self::new(bytes.into(), None)
    }

    fn new(bytes: Vec<u8>, name: Option<String>) -> Result<Self, ImageError> {
        refuse_large(bytes.len() as u64)?;
        let layout = elf::parse(&bytes)?;
        Ok(Self(Arc::new(Inner { bytes, layout, name, symbols: OnceLock::new(), digest: OnceLock::new() })))
    }

    /// The file's content.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The file's name without its directories, if the image came from a path and the name is UTF-8.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Of the file's content. The first use computes it.
    pub(crate) fn digest(&self) -> Digest {
        *self.0.digest.get_or_init(|| Digest::of(&self.0.bytes))
    }

    /// What goes to memory, by ascending address: at least one, none empty, none overlapping. Neighbours may
    /// meet inside one page, which then gets the rights of all of them; that never amounts to writing and
    /// executing.
    pub fn segments(&self) -> &[Segment] {
        &self.0.layout.segments
    }

    /// Whether the image must lie at its link addresses.
    pub fn linkage(&self) -> Linkage {
        self.0.layout.linkage
    }

    /// Link address at which the program starts. It lies in an executable segment.
    pub fn entry(&self) -> u64 {
        self.0.layout.entry
    }

    /// Where the guest finds the program header table.
    pub fn program_headers(&self) -> ProgramHeaders {
        self.0.layout.program_headers
    }

    /// Link addresses from the first page of the first segment to the last page of the last one.
    pub fn extent(&self) -> Range<u64> {
        extent(&self.0.layout.segments)
    }

    /// What to add to a link address, with wrapping, to get the guest-virtual address. 0 for fixed images.
    /// Position-independent ones land wholly between [`IMAGE_BASE`](coracle_abi::map::IMAGE_BASE) and
    /// [`IMAGE_END`](coracle_abi::map::IMAGE_END), as strictly aligned as their segments ask for.
    pub fn load_bias(&self) -> u64 {
        match self.0.layout.linkage {
            Linkage::Fixed => 0,
            Linkage::PositionIndependent => map::IMAGE_BASE.wrapping_sub(self.0.layout.aligned_start),
        }
    }

    /// Link addresses of the pages that the guest's start code makes read-only once it has relocated itself
    /// (`PT_GNU_RELRO`). They lie inside one writable segment's pages; a table entry that does not say so is ignored.
    pub fn relro(&self) -> Option<Range<u64>> {
        self.0.layout.relro.clone()
    }

    /// The function that `link_address` lies in: the nearest function symbol at or below, unless that one's size
    /// says that it has ended before, or it lies in another segment. `None` also if the image is stripped, or
    /// its symbol table is malformed. The first use sorts the table.
    pub fn symbol(&self, link_address: u64) -> Option<Symbol> {
        let Inner { bytes, layout, symbols, .. } = &*self.0;
        symbols.get_or_init(|| SymbolTable::new(bytes, &layout.segments)).find(bytes, &layout.segments, link_address)
    }

    /// The image's notes to Coracle: type and content of those whose owner is `Coracle`, in file order. A
    /// malformed note ends its segment's. Notes beyond the first 4 MiB of note segments are not seen.
    pub fn notes(&self) -> impl Iterator<Item = (u32, &[u8])> {
        elf::notes(&self.0.bytes, &self.0.layout.notes)
    }
}

/// Without the content, which may be long.
impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("name", &self.0.name)
            .field("file_bytes", &self.0.bytes.len())
            .field("linkage", &self.linkage())
            .field("entry", &format_args!("{:#x}", self.entry()))
            .field("segments", &self.segments())
            .finish_non_exhaustive()
    }
}

fn page_start(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

/// The pages of sorted segments, and those between them.
fn extent(segments: &[Segment]) -> Range<u64> {
    match segments {
        [] => 0..0,
        [first, ..] => {
            let end = segments.iter().map(|segment| segment.page_range().end).max();
            first.page_range().start..end.unwrap_or(0)
        }
    }
}

fn refuse_large(file_bytes: u64) -> Result<(), ImageError> {
    if file_bytes <= Image::MAX_FILE_BYTES {
        return Ok(());
    }
    let limit = Image::MAX_FILE_BYTES >> 20;
    let sentence = format!("is larger than {limit} MiB: strip it, or give its data by other means than the program");
    Err(Refusal::new(Fault::TooLarge, sentence).into())
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    let unreadable = |source: io::Error| {
        let sentence = "cannot be read: check the path and its permissions";
        ImageError::from(Refusal::new(Fault::Unreadable, sentence)).with_source(source)
    };
    // Before opening, because opening a pipe waits for a writer; and again after, because files get replaced.
    regular(&fs::metadata(path).map_err(unreadable)?)?;
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    regular(&metadata)?;
    refuse_large(metadata.len())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(metadata.len() as usize).map_err(|error| unreadable(error.into()))?;
    // The file may grow meanwhile: one byte over the limit is enough to notice.
    file.take(Image::MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn regular(metadata: &fs::Metadata) -> Result<(), ImageError> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(Refusal::new(Fault::Unreadable, "is not a regular file: give the path of the guest program itself").into())
}
