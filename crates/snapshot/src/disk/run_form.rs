//! The run form of a base: a sparse file with every page at its place, made once and mapped by many.
//!
//! It is a copy for speed. Whatever is wrong with it, it is made anew from the base's blob. Nothing in it says which pages it
//! has: that comes from the blob's index, whose digest is in the manifest.
//!
//! It is marked by a time of modification that never changes. Who writes to it by accident moves that time, and the next
//! [`RunFile::check`] sees it. Somebody who sets the time back is not seen: a store that others can write to must not be
//! trusted, see docs/snapshot-format.md.

use std::fs::{File, FileTimes, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::directory::{Directory, Opened};
use super::document::Descriptor;
use super::layer::{CHUNK_BYTES_MAX, ChunkReader, LayerIndex};
use crate::error::FORMAT;
use crate::lazy::Source;
use crate::{Digest, Error, PAGE_BYTES, PageBytes, Pages};

const MAGIC: [u8; 8] = *b"CORARUNF";
const TRAILER_BYTES: usize = 128;

/// 2000-01-01: whole seconds, which archives keep.
const MODIFIED: Duration = Duration::from_secs(946_684_800);

/// A base image as a file that is mapped privately by any number of sandboxes: [`file`](Self::file) holds each page at its
/// number times [`PAGE_BYTES`], zeros elsewhere, for [`bytes`](Self::bytes) bytes.
///
/// Keeps the file open, also when the store is pruned meanwhile.
#[derive(Clone, Debug)]
pub struct RunForm {
    pub(crate) file: Arc<RunFile>,
    pub(crate) pages: Pages,
}

impl RunForm {
    /// Open for reading alone.
    pub fn file(&self) -> &File {
        &self.file.file
    }

    /// Bytes of the image: a whole number of pages. The file is a little longer.
    pub fn bytes(&self) -> u64 {
        self.file.image_bytes
    }

    /// The pages of exactly this image: what a sandbox that maps it has before anything is copied.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Whether the file is still what it was when it was made, as far as its length and its time of modification tell. Costs
    /// one system call; call it before the file is mapped.
    ///
    /// # Errors
    /// [`Error::Changed`] when it is not.
    pub fn check(&self) -> Result<(), Error> {
        self.file.check()
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct RunFile {
    file: File,
    path: String,
    image_bytes: u64,
}

impl RunFile {
    /// Opens the run form of a base, if there is one that is good.
    pub(crate) fn open(
        directory: &Directory,
        layer: &Descriptor,
        index: &LayerIndex,
        is_checked: bool,
    ) -> Result<Option<Self>, Error> {
        let opened = match directory.open(&name(layer)) {
            Ok(Some(opened)) => opened,
            // Something else with this name is replaced.
            Ok(None) | Err(Error::Damaged { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Opened { file, bytes, path } = opened;
        let image_bytes = image_bytes(index);
        if bytes != image_bytes + TRAILER_BYTES as u64 {
            return Ok(None);
        }
        let mut trailer_bytes = [0; TRAILER_BYTES];
        if file.read_exact_at(&mut trailer_bytes, image_bytes).is_err() {
            return Ok(None);
        }
        let is_good = trailer_bytes == trailer(layer, index, true)
            || (!is_checked && trailer_bytes == trailer(layer, index, false));
        let file = Self { file, path, image_bytes };
        Ok((is_good && file.check().is_ok()).then_some(file))
    }

    /// Makes it from the blob.
    pub(crate) fn make(
        directory: &Directory,
        temporaries: &Directory,
        layer: &Descriptor,
        blob: &Opened,
        index: &LayerIndex,
        is_checked: bool,
    ) -> Result<(), Error> {
        let temporary = temporaries.temporary()?;
        let file = temporary.file();
        let written = |result: std::io::Result<()>| result.map_err(|error| temporary.error("write", error));
        let image_bytes = image_bytes(index);
        // All of it is a hole now, or zeros where there are no holes. Only pages with content are written.
        written(file.set_len(image_bytes))?;
        let mut reader = ChunkReader::new(&blob.file, &blob.path, index, is_checked);
        let mut numbers = index.pages.ranges();
        let mut range = 0..0;
        let mut chunk = vec![0; CHUNK_BYTES_MAX];
        for number in 0..index.chunks.len() {
            let mut pages = reader.read(number, &mut chunk)?;
            while !pages.is_empty() {
                if range.is_empty() {
                    // There are as many numbers as pages: that is checked.
                    let Some(next) = numbers.next() else { break };
                    range = next;
                }
                let (now, later) = pages.split_at(range.len().min(pages.len()));
                written(file.write_all_at(now.as_flattened(), u64::from(range.start) * PAGE_BYTES as u64))?;
                range.start += now.len() as u32;
                pages = later;
            }
        }
        written(file.write_all_at(&trailer(layer, index, is_checked), image_bytes))?;
        written(file.set_permissions(Permissions::from_mode(0o444)))?;
        written(file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + MODIFIED)))?;
        temporary.keep(directory, &name(layer))?;
        directory.sync()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let metadata =
            self.file.metadata().map_err(|error| Error::io(format!("cannot look at {}", self.path), error))?;
        let is_same = metadata.len() == self.image_bytes + TRAILER_BYTES as u64
            && metadata.modified().is_ok_and(|modified: SystemTime| modified == UNIX_EPOCH + MODIFIED);
        if is_same { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Error {
        Error::Changed { file: self.path.clone() }
    }

    /// Reads all of it: that pages are what the blob says, and all else is zero.
    pub(crate) fn verify(&self, blob: &Opened, index: &LayerIndex) -> Result<(), Error> {
        let mut reader = ChunkReader::new(&blob.file, &blob.path, index, true);
        let mut chunk = vec![0; CHUNK_BYTES_MAX];
        let mut numbers = index.pages.iter();
        let mut found = [0; PAGE_BYTES];
        let mut expect = |number: u32, want: &PageBytes| {
            let at = u64::from(number) * PAGE_BYTES as u64;
            self.read_at(&mut found, at)?;
            if found != *want {
                return Err(Error::damaged_at(&self.path, at, "the run form has another page than the blob"));
            }
            Ok(())
        };
        for number in 0..index.chunks.len() {
            for page in reader.read(number, &mut chunk)? {
                if let Some(number) = numbers.next() {
                    expect(number, page)?;
                }
            }
        }
        // Holes are skipped, where the file system tells of them.
        let mut at = 0;
        while at < self.image_bytes {
            at = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => data / PAGE_BYTES as u64 * PAGE_BYTES as u64,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(Error::io(format!("cannot read {}", self.path), errno)),
            };
            let end = match rustix::fs::seek(&self.file, SeekFrom::Hole(at)) {
                Ok(hole) => hole.min(self.image_bytes),
                Err(errno) => return Err(Error::io(format!("cannot read {}", self.path), errno)),
            };
            while at < end {
                let number = (at / PAGE_BYTES as u64) as u32;
                if index.pages.rank(number).is_none() {
                    expect(number, &[0; PAGE_BYTES])?;
                }
                at += PAGE_BYTES as u64;
            }
        }
        Ok(())
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> Result<(), Error> {
        self.file.read_exact_at(out, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.changed(),
            _ => Error::io(format!("cannot read {}", self.path), error),
        })
    }
}

impl Source for RunFile {
    /// Not compared with a digest: it was, when the file was made.
    fn read(&self, number: u32, _: u32, out: &mut PageBytes) -> Result<(), Error> {
        self.read_at(out, u64::from(number) * PAGE_BYTES as u64)?;
        if *out == [0; PAGE_BYTES] { Err(self.changed()) } else { Ok(()) }
    }
}

/// The file's name in the directory of run forms.
pub(crate) fn name(layer: &Descriptor) -> String {
    layer.digest.hex()
}

fn image_bytes(index: &LayerIndex) -> u64 {
    u64::from(index.pages.end()) * PAGE_BYTES as u64
}

/// What follows the image. It has one form for each base, so that it is compared and not interpreted.
fn trailer(layer: &Descriptor, index: &LayerIndex, is_checked: bool) -> [u8; TRAILER_BYTES] {
    let mut bytes = [0; TRAILER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    let words = [FORMAT, PAGE_BYTES as u32, index.pages.end(), index.pages.pages(), u32::from(is_checked), 0];
    for (out, word) in bytes[8..32].as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *out = word.to_le_bytes();
    }
    bytes[32..64].copy_from_slice(layer.digest.bytes());
    bytes[64..96].copy_from_slice(layer.index.unwrap_or(layer.digest).bytes());
    let digest = Digest::of(&bytes[..96]);
    bytes[96..].copy_from_slice(digest.bytes());
    bytes
}
