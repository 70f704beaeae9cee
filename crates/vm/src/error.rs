//! Why a backend could not do its work.

use std::fmt;

/// A hypervisor's failure: a sentence with what to do about it, and the system's own error as its source.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<std::io::Error>,
}

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such hypervisor here, or this process may not use it, or it lacks what is needed.
    Unavailable,
    /// The configured limit of guest memory is reached.
    OutOfMemory,
    /// The hypervisor or the kernel refused an operation.
    Refused,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn refused(what: &str, source: impl Into<std::io::Error>) -> Self {
        Self { kind: ErrorKind::Refused, message: format!("{what} failed"), source: Some(source.into()) }
    }

    pub(crate) fn with_source(mut self, source: impl Into<std::io::Error>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The system's own error behind it, if there is one.
    pub fn into_source(self) -> Option<std::io::Error> {
        self.source
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<crate::memory::OutOfRange> for Error {
    fn from(_: crate::memory::OutOfRange) -> Self {
        Self::new(ErrorKind::Refused, "a host-made address lies outside guest memory; please report this")
    }
}
