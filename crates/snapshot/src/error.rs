//! What can go wrong with snapshots on disk.

use std::fmt;
use std::io;

/// Why a store, or a page of a snapshot that came from one, could not be used.
///
/// Files are named by their paths inside the store.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused. The sentence of its [`source`](std::error::Error::source) says why.
    Io {
        /// What was tried, with the file: "cannot open blobs/sha256/…".
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The directory is no store: make one with `Store::create`.
    NotAStore {
        /// Why not.
        why: String,
    },
    /// A tag or a digest is not written like one.
    Reference {
        /// As it was given, cut to a sane length.
        text: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The store has no snapshot with this tag or digest.
    NotFound {
        /// The tag or digest.
        reference: String,
    },
    /// What was to be saved cannot be: nothing was written.
    Unfit {
        /// What is wrong with it.
        why: String,
    },
    /// A file of the store is not what this version writes: damaged, forged, or from other software.
    Damaged {
        /// The file.
        file: String,
        /// Where in the file, in bytes, if that is one place.
        offset: Option<u64>,
        /// What is wrong there.
        fault: String,
    },
    /// A file has a format that this version does not know.
    Version {
        /// The file.
        file: String,
        /// Its format's number.
        found: u32,
    },
    /// A prepared file was changed or truncated while this process used it. Sandboxes that map it may see the change.
    Changed {
        /// The file.
        file: String,
    },
}

/// The formats that this version reads and writes.
pub(crate) const FORMAT: u32 = 1;

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    pub(crate) fn damaged(file: impl Into<String>, fault: impl Into<String>) -> Self {
        Self::Damaged { file: file.into(), offset: None, fault: fault.into() }
    }

    pub(crate) fn damaged_at(file: impl Into<String>, offset: u64, fault: impl Into<String>) -> Self {
        Self::Damaged { file: file.into(), offset: Some(offset), fault: fault.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { what, .. } => write!(f, "{what}"),
            Self::NotAStore { why } => {
                write!(f, "this is no store of snapshots: {why}; create one, or give another path")
            }
            Self::Reference { text, why } => write!(f, "\"{text}\" is no tag and no digest: {why}"),
            Self::NotFound { reference } => {
                write!(f, "the store has no snapshot \"{reference}\": list it to see which it has")
            }
            Self::Unfit { why } => write!(f, "cannot save this: {why}"),
            Self::Damaged { file, offset, fault } => {
                write!(f, "{file}")?;
                if let Some(offset) = offset {
                    write!(f, ", at byte {offset}")?;
                }
                write!(f, ": {fault}; save or pull the snapshot again, to a new store if this one is not yours")
            }
            Self::Version { file, found } => {
                write!(
                    f,
                    "{file} has format {found}, this version knows {FORMAT}: use the version that wrote it, or save again"
                )
            }
            Self::Changed { file } => {
                write!(
                    f,
                    "{file} was changed while it was in use: drop the sandboxes that map it, and load the snapshot again"
                )
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::NotFound { .. } => io::ErrorKind::NotFound,
            Error::Reference { .. } | Error::Unfit { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}
