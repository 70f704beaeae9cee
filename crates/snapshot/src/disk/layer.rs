//! The file of one layer: pages, then an index of them, then a footer that says how long the index is.
//!
//! docs/snapshot-format.md has the table of bytes, and the order of the checks that [`LayerIndex::read`] does. Pure but for
//! [`ReadAt`], so that tests and fuzzers work on bytes in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::error::FORMAT;
use crate::runs::{RUN_BYTES, RunFault, Runs};
use crate::{Digest, Error, PAGE_BYTES, PageBytes};

/// Pages in a chunk of a base: 64 KiB. A derived layer has one page in a chunk.
pub(crate) const BASE_CHUNK_PAGES: usize = 16;
pub(crate) const CHUNK_BYTES_MAX: usize = BASE_CHUNK_PAGES * PAGE_BYTES;

/// Most bytes of the index of a base, and of the indexes of all derived layers of a snapshot together. They bound what a
/// hostile store can make us allocate: 25 GiB of data in a base, 400 MiB in derived layers.
pub(crate) const BASE_INDEX_MAX: u64 = 16 << 20;
pub(crate) const DERIVED_INDEX_MAX: u64 = 4 << 20;

const MAGIC: [u8; 8] = *b"CORALAYR";
const FOOTER_BYTES: usize = 64;
pub(crate) const CHUNK_ENTRY_BYTES: usize = 40;
const RAW: u32 = 0;
const ZSTD: u32 = 1;

// Changing any of these breaks snapshots that exist. Read docs/snapshot-format.md first.
const _: () = assert!(FOOTER_BYTES == 64 && CHUNK_ENTRY_BYTES == 40 && RUN_BYTES == 8 && FORMAT == 1);

/// How the bytes of pages are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Each chunk compressed by zstd, where that makes it smaller. For transport: takes longer to save and to prepare.
    Zstd,
}

const ZSTD_LEVEL: i32 = 3;

/// What a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerKind {
    /// All pages that are not zero.
    Base,
    /// Pages that differ from the layers below.
    Derived,
}

impl LayerKind {
    pub(crate) const fn chunk_pages(self) -> usize {
        match self {
            Self::Base => BASE_CHUNK_PAGES,
            Self::Derived => 1,
        }
    }

    const fn code(self) -> u32 {
        match self {
            Self::Base => 0,
            Self::Derived => 1,
        }
    }
}

/// A file that is read at offsets.
pub(crate) trait ReadAt {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start.and_then(|start| self.get(start..start.checked_add(out.len())?));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// What was written.
#[derive(Debug)]
pub(crate) struct Written {
    /// Digest of the index.
    pub(crate) index: Digest,
    pub(crate) bytes: u64,
}

/// Writes a layer with the pages `numbers`, ascending. `read` gives their content: those that are zero are marked in a
/// derived layer, and left out of a base. The bytes go to `out` in order.
pub(crate) fn write(
    kind: LayerKind,
    compression: Compression,
    numbers: impl IntoIterator<Item = u32>,
    mut read: impl FnMut(u32, &mut PageBytes) -> Result<(), Error>,
    out: &mut impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Written, Error> {
    let mut data = ChunkWriter::new(kind, compression)?;
    let (mut full, mut zeros) = (Vec::new(), Vec::new());
    let mut page = [0; PAGE_BYTES];
    for number in numbers {
        read(number, &mut page)?;
        if page == [0; PAGE_BYTES] {
            zeros.push(number);
            continue;
        }
        full.push(number);
        data.push(&page, out)?;
    }
    data.finish(out)?;
    if kind == LayerKind::Base {
        zeros.clear();
    }
    let (pages, zeros) = (Runs::from_numbers(full), Runs::from_numbers(zeros));
    let mut index = Vec::new();
    pages.write(&mut index);
    zeros.write(&mut index);
    index.extend(&data.entries);
    index.extend(MAGIC);
    let chunk_count = data.entries.len() / CHUNK_ENTRY_BYTES;
    for word in [
        FORMAT,
        PAGE_BYTES as u32,
        kind.code(),
        kind.chunk_pages() as u32,
        pages.pages(),
        zeros.pages(),
        pages.count() as u32,
        zeros.count() as u32,
        chunk_count as u32,
        0,
    ] {
        index.extend(word.to_le_bytes());
    }
    index.extend(data.stored.to_le_bytes());
    index.extend([0; 8]);
    let limit = match kind {
        LayerKind::Base => BASE_INDEX_MAX,
        LayerKind::Derived => DERIVED_INDEX_MAX,
    };
    if (index.len() - FOOTER_BYTES) as u64 > limit {
        return Err(Error::Unfit { why: format!("it has more pages than an index of {limit} bytes can name") });
    }
    out(&index)?;
    Ok(Written { index: Digest::of(&index), bytes: data.stored + index.len() as u64 })
}

/// Gathers pages into chunks.
struct ChunkWriter {
    chunk: Vec<u8>,
    chunk_bytes: usize,
    entries: Vec<u8>,
    stored: u64,
    compressor: Option<zstd::bulk::Compressor<'static>>,
}

impl ChunkWriter {
    fn new(kind: LayerKind, compression: Compression) -> Result<Self, Error> {
        let chunk_bytes = kind.chunk_pages() * PAGE_BYTES;
        let compressor = match compression {
            Compression::None => None,
            Compression::Zstd => {
                let compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL);
                Some(compressor.map_err(|error| Error::io("cannot compress", error))?)
            }
        };
        Ok(Self { chunk: Vec::with_capacity(chunk_bytes), chunk_bytes, entries: Vec::new(), stored: 0, compressor })
    }

    fn push(&mut self, page: &PageBytes, emit: &mut impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        self.chunk.extend_from_slice(page);
        if self.chunk.len() == self.chunk_bytes { self.finish(emit) } else { Ok(()) }
    }

    /// Ends a chunk that has anything.
    fn finish(&mut self, emit: &mut impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let compressed = match &mut self.compressor {
            Some(compressor) => {
                Some(compressor.compress(&self.chunk).map_err(|error| Error::io("cannot compress", error))?)
            }
            None => None,
        };
        let (bytes, coding) = match &compressed {
            Some(compressed) if compressed.len() < self.chunk.len() => (compressed, ZSTD),
            _ => (&self.chunk, RAW),
        };
        emit(bytes)?;
        self.entries.extend(Digest::of(&self.chunk).bytes());
        self.entries.extend((bytes.len() as u32).to_le_bytes());
        self.entries.extend(coding.to_le_bytes());
        self.stored += bytes.len() as u64;
        self.chunk.clear();
        Ok(())
    }
}

/// Some pages in a row, as a file stores them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Of its pages, not of how they are stored.
    pub(crate) digest: Digest,
    offset: u64,
    stored: u32,
    is_compressed: bool,
}

/// A checked index.
#[derive(Debug)]
pub(crate) struct LayerIndex {
    pub(crate) kind: LayerKind,
    /// Pages with content, in the order of the file.
    pub(crate) pages: Runs,
    /// Pages that became zero.
    pub(crate) zeros: Runs,
    pub(crate) chunks: Box<[Chunk]>,
    /// Of the index in the file.
    pub(crate) bytes: u64,
}

impl LayerIndex {
    /// Reads and checks the index of a file of `bytes` bytes. No page is read.
    ///
    /// `limit` bounds the index, and so what is allocated.
    pub(crate) fn read(
        file: &(impl ReadAt + ?Sized),
        path: &str,
        bytes: u64,
        kind: LayerKind,
        digest: &Digest,
        limit: u64,
    ) -> Result<Self, Error> {
        let Some(footer_at) = bytes.checked_sub(FOOTER_BYTES as u64) else {
            return Err(Error::damaged(path, "is too short for a layer"));
        };
        let mut footer_bytes = [0; FOOTER_BYTES];
        read_at(file, path, &mut footer_bytes, footer_at)?;
        let footer = Footer::parse(&footer_bytes, path, footer_at, kind)?;
        let index_bytes = footer.index_bytes();
        if index_bytes > limit {
            return Err(Error::damaged_at(path, footer_at + 24, format!("the index has more than {limit} bytes")));
        }
        if footer.stored.checked_add(index_bytes) != Some(footer_at) {
            return Err(Error::damaged_at(path, footer_at + 48, "pages and index are not as long as the file says"));
        }
        let mut index = vec![0; index_bytes as usize + FOOTER_BYTES];
        read_at(file, path, &mut index, footer.stored)?;
        if Digest::of(&index) != *digest {
            return Err(Error::damaged_at(path, footer.stored, "the index has another digest than the manifest says"));
        }
        // What the digest is of, should the file change between the two reads.
        let (entries, again) = index.split_at(index_bytes as usize);
        if again != footer_bytes {
            return Err(Error::damaged_at(path, footer_at, "changed while it was read"));
        }
        footer.entries(entries, path)
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.is_compressed)
    }

    /// Bytes of a chunk's pages.
    fn chunk_bytes(&self, chunk: usize) -> usize {
        let pages = self.pages.pages() as usize - chunk * self.kind.chunk_pages();
        pages.min(self.kind.chunk_pages()) * PAGE_BYTES
    }
}

/// What the last bytes of a layer say.
struct Footer {
    kind: LayerKind,
    pages: u32,
    zeros: u32,
    page_runs: u32,
    zero_runs: u32,
    chunks: u32,
    stored: u64,
}

impl Footer {
    fn parse(bytes: &[u8; FOOTER_BYTES], path: &str, at: u64, kind: LayerKind) -> Result<Self, Error> {
        let fault = |offset: u64, fault: &str| Err(Error::damaged_at(path, at + offset, fault));
        if bytes[..8] != MAGIC {
            return fault(0, "is no layer of a snapshot");
        }
        let (words, _) = bytes.as_chunks::<4>();
        let word = |at: usize| u32::from_le_bytes(words[at / 4]);
        if word(8) != FORMAT {
            return Err(Error::Version { file: path.to_owned(), found: word(8) });
        }
        if word(12) != PAGE_BYTES as u32 {
            return fault(12, "has pages of another size than 4096 bytes");
        }
        if word(16) != kind.code() {
            return fault(16, "is a base where a derived layer belongs, or the other way round");
        }
        if word(20) != kind.chunk_pages() as u32 {
            return fault(20, "has chunks of another size than layers of its kind have");
        }
        if word(44) != 0 || bytes[56..] != [0; 8] {
            return fault(44, "has something in bytes that are reserved");
        }
        let footer = Self {
            kind,
            pages: word(24),
            zeros: word(28),
            page_runs: word(32),
            zero_runs: word(36),
            chunks: word(40),
            stored: u64::from(word(48)) | u64::from(word(52)) << 32,
        };
        if footer.chunks != footer.pages.div_ceil(kind.chunk_pages() as u32) {
            return fault(40, "has more or fewer chunks than its pages fill");
        }
        Ok(footer)
    }

    fn index_bytes(&self) -> u64 {
        let runs = (u64::from(self.page_runs) + u64::from(self.zero_runs)) * RUN_BYTES as u64;
        runs + u64::from(self.chunks) * CHUNK_ENTRY_BYTES as u64
    }

    fn entries(&self, entries: &[u8], path: &str) -> Result<LayerIndex, Error> {
        let index_at = self.stored;
        let zeros_at = self.page_runs as usize * RUN_BYTES;
        let chunks_at = zeros_at + self.zero_runs as usize * RUN_BYTES;
        let at = |offset: usize| index_at + offset as u64;
        let runs = |bytes: &[u8], start: usize, what: &str| {
            Runs::parse(bytes).map_err(|RunFault { at: run, fault }| {
                Error::damaged_at(path, at(start + run * RUN_BYTES), format!("{what}: {fault}"))
            })
        };
        let pages = runs(&entries[..zeros_at], 0, "pages with content")?;
        if pages.pages() != self.pages {
            return Err(Error::damaged_at(path, at(0), "its runs have more or fewer pages than the footer says"));
        }
        let zeros = runs(&entries[zeros_at..chunks_at], zeros_at, "pages that became zero")?;
        if zeros.pages() != self.zeros {
            let fault = "its runs have more or fewer pages that became zero than the footer says";
            return Err(Error::damaged_at(path, at(zeros_at), fault));
        }
        if self.kind == LayerKind::Base && zeros.pages() != 0 {
            return Err(Error::damaged_at(path, at(zeros_at), "a base marks pages as zero"));
        }
        if let Some(page) = pages.common(&zeros) {
            return Err(Error::damaged_at(path, at(zeros_at), format!("page {page} has content and is zero")));
        }
        let mut index =
            LayerIndex { kind: self.kind, pages, zeros, chunks: Box::default(), bytes: entries.len() as u64 };
        let mut chunks = Vec::with_capacity(self.chunks as usize);
        let mut offset = 0_u64;
        let (parts, _) = entries[chunks_at..].as_chunks::<CHUNK_ENTRY_BYTES>();
        for (number, entry) in parts.iter().enumerate() {
            let fault = |fault: &str| Err(Error::damaged_at(path, at(chunks_at + number * CHUNK_ENTRY_BYTES), fault));
            let mut digest = [0; 32];
            digest.copy_from_slice(&entry[..32]);
            let stored = u32::from_le_bytes([entry[32], entry[33], entry[34], entry[35]]);
            let coding = u32::from_le_bytes([entry[36], entry[37], entry[38], entry[39]]);
            let whole = index.chunk_bytes(number);
            match coding {
                RAW if stored as usize != whole => return fault("a chunk is not as long as its pages"),
                ZSTD if stored == 0 => return fault("a compressed chunk is empty"),
                ZSTD if stored as usize >= whole => return fault("a compressed chunk is not shorter than its pages"),
                RAW | ZSTD => {}
                _ => return fault("a chunk is stored in a way that this version does not know"),
            }
            let digest = Digest::from_bytes(digest);
            chunks.push(Chunk { digest, offset, stored, is_compressed: coding == ZSTD });
            offset += u64::from(stored);
        }
        if offset != self.stored {
            return Err(Error::damaged_at(path, at(chunks_at), "chunks are not as long in all as the footer says"));
        }
        index.chunks = chunks.into();
        Ok(index)
    }
}

/// Reads chunks, one after the other or here and there.
pub(crate) struct ChunkReader<'a, F: ?Sized> {
    file: &'a F,
    path: &'a str,
    index: &'a LayerIndex,
    is_checked: bool,
    stored: Vec<u8>,
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
}

impl<'a, F: ReadAt + ?Sized> ChunkReader<'a, F> {
    /// Compares content with digests if `is_checked`.
    pub(crate) fn new(file: &'a F, path: &'a str, index: &'a LayerIndex, is_checked: bool) -> Self {
        Self { file, path, index, is_checked, stored: Vec::new(), decompressor: None }
    }

    /// The pages of a chunk, at the start of `out`, which has [`CHUNK_BYTES_MAX`] bytes or those of the chunk.
    pub(crate) fn read<'o>(&mut self, number: usize, out: &'o mut [u8]) -> Result<&'o [PageBytes], Error> {
        let chunk = self.index.chunks[number];
        let bytes = self.index.chunk_bytes(number);
        let out = &mut out[..bytes];
        let fault = |fault: &str| Error::damaged_at(self.path, chunk.offset, fault);
        if chunk.is_compressed {
            self.stored.resize(chunk.stored as usize, 0);
            read_at(self.file, self.path, &mut self.stored, chunk.offset)?;
            let decompressor = match &mut self.decompressor {
                Some(decompressor) => decompressor,
                empty => {
                    let new = zstd::bulk::Decompressor::new().map_err(|error| Error::io("cannot decompress", error))?;
                    empty.insert(new)
                }
            };
            // It stops at the end of `out`: no chunk grows beyond its pages.
            match decompressor.decompress_to_buffer(&self.stored, &mut *out) {
                Ok(found) if found == bytes => {}
                Ok(_) => return Err(fault("a compressed chunk holds less than its pages")),
                Err(_) => return Err(fault("a compressed chunk is damaged, or holds more than its pages")),
            }
        } else {
            read_at(self.file, self.path, out, chunk.offset)?;
        }
        if self.is_checked && Digest::of(out) != chunk.digest {
            return Err(fault("a chunk has another digest than the index says"));
        }
        let (pages, _) = out.as_chunks::<PAGE_BYTES>();
        if pages.contains(&[0; PAGE_BYTES]) {
            return Err(fault("a page that should have content is zero"));
        }
        Ok(pages)
    }
}

fn read_at(file: &(impl ReadAt + ?Sized), path: &str, out: &mut [u8], offset: u64) -> Result<(), Error> {
    file.read_at(out, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::damaged_at(path, offset, "ends before it should"),
        _ => Error::io(format!("cannot read {path}"), error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{index_digest, layer};

    fn page(number: u32) -> PageBytes {
        let mut page = [0; PAGE_BYTES];
        page[..4].copy_from_slice(&(number % 7).to_le_bytes()); // Every seventh is zero.
        page
    }

    fn written(kind: LayerKind, compression: Compression, numbers: &[u32]) -> (Vec<u8>, Written) {
        let mut bytes = Vec::new();
        let read = |number, out: &mut PageBytes| {
            *out = page(number);
            Ok(())
        };
        let written = write(kind, compression, numbers.iter().copied(), read, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        });
        (bytes, written.unwrap())
    }

    const NUMBERS: [u32; 24] =
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 100, 1 << 20, (1 << 28) - 1];

    #[test]
    fn what_is_written_is_read() {
        for compression in [Compression::None, Compression::Zstd] {
            for (kind, numbers) in
                [(LayerKind::Base, &NUMBERS[..]), (LayerKind::Derived, &NUMBERS), (LayerKind::Base, &[])]
            {
                let (bytes, written) = written(kind, compression, numbers);
                assert_eq!((written.bytes, written.index), (bytes.len() as u64, index_digest(&bytes)));
                let limit = DERIVED_INDEX_MAX;
                let index = LayerIndex::read(&bytes[..], "", bytes.len() as u64, kind, &written.index, limit).unwrap();
                let (zeros, full): (Vec<u32>, Vec<u32>) = numbers.iter().partition(|number| **number % 7 == 0);
                assert!(index.pages.iter().eq(full.iter().copied()));
                assert_eq!(index.zeros.pages() as usize, if kind == LayerKind::Base { 0 } else { zeros.len() });
                assert_eq!(index.is_compressed(), compression == Compression::Zstd && !full.is_empty());
                let pages = layer(&bytes, kind == LayerKind::Base, true).unwrap();
                assert!(pages.iter().map(|(number, _)| *number).eq(full));
                assert!(pages.iter().all(|(number, content)| *content == page(*number)));
                assert!(layer(&bytes, kind != LayerKind::Base, true).is_err());
            }
        }
    }

    #[test]
    fn no_length_and_no_bit_of_an_index_makes_it_panic() {
        for kind in [LayerKind::Base, LayerKind::Derived] {
            let (bytes, written) = written(kind, Compression::Zstd, &NUMBERS);
            let index_at = bytes.len() - bytes.len().min(1100);
            for length in 0..bytes.len() {
                assert!(layer(&bytes[..length], kind == LayerKind::Base, true).is_err(), "{length}");
            }
            // As if the manifest had the digest of what the index was changed to.
            for bit in 8 * index_at..8 * bytes.len() {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let _ = layer(&changed, kind == LayerKind::Base, false);
                // With the manifest's own digest it is refused, or is the same: zstd has bits that mean nothing.
                let limit = DERIVED_INDEX_MAX;
                let length = changed.len() as u64;
                if LayerIndex::read(&changed[..], "", length, kind, &written.index, limit).is_ok()
                    && let Ok(pages) = layer(&changed, kind == LayerKind::Base, true)
                {
                    assert!(pages.iter().all(|(number, content)| *content == page(*number)), "{bit}");
                }
            }
        }
    }
}
