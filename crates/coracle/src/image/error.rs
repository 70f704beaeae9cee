//! Why a file is not an image that can run here, as a fault to branch on and a sentence to read.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// What is wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The file cannot be opened or read, or it is not a regular file.
    Unreadable,
    /// The file is larger than [`Image::MAX_FILE_BYTES`](super::Image::MAX_FILE_BYTES).
    TooLarge,
    /// The bytes are not an ELF file.
    NotElf,
    /// The file ends inside its own headers.
    Truncated,
    /// Not a 64-bit image.
    WrongClass,
    /// Not a little-endian image.
    WrongEndian,
    /// Not an image for x86-64.
    WrongArchitecture,
    /// An ELF file, but not a program: an object file or a core dump.
    WrongType,
    /// The image needs a dynamic loader or shared libraries.
    Dynamic,
    /// The program header table has too many entries, or entries of the wrong size.
    HeaderCount,
    /// One segment's numbers contradict each other, the file, or the guest's memory map.
    BadSegment,
    /// Two segments want the same bytes, or a page that they share would be writable and executable.
    OverlappingSegments,
    /// One segment is both writable and executable.
    WriteAndExecute,
    /// Nothing is to be loaded.
    NoSegments,
    /// The entry point does not lie in an executable segment.
    EntryOutside,
    /// There are more loadable segments than any linker makes.
    TooManySegments,
}

/// What the parser says of bytes that it refuses. It does not know where they came from.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) fault: Fault,
    /// Goes on after "guest image x": what is wrong, then what to do.
    pub(super) sentence: String,
}

impl Refusal {
    pub(super) fn new(fault: Fault, sentence: impl Into<String>) -> Self {
        Self { fault, sentence: sentence.into() }
    }
}

/// Why an image was refused. Its text names the file, the fault, and what to do.
#[derive(Debug)]
pub struct ImageError {
    refusal: Refusal,
    path: Option<PathBuf>,
    source: Option<io::Error>,
}

impl ImageError {
    /// The fault, for code that must choose what to do next.
    pub fn fault(&self) -> Fault {
        self.refusal.fault
    }

    pub(super) fn with_path(mut self, path: &Path) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    pub(super) fn with_source(mut self, source: io::Error) -> Self {
        self.source = Some(source);
        self
    }
}

impl From<Refusal> for ImageError {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, path: None, source: None }
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "guest image {} {}", path.display(), self.refusal.sentence),
            None => write!(f, "guest image {}", self.refusal.sentence),
        }
    }
}

impl Error for ImageError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
