//! What can go wrong between a store and a registry.

use std::fmt;

/// How a push or a pull failed, for code that must choose what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What the caller gave cannot be used: a reference, a certificate, a Docker config file. Nothing was moved.
    Input,
    /// The registry wants a login, or refuses the one that it got.
    Login,
    /// The registry does not have it.
    NotFound,
    /// The registry cannot be reached, or the connection broke. Try again: blobs that were moved whole are kept.
    Network,
    /// The registry was silent, or slow, for too long. Try again, or allow more time.
    Timeout,
    /// The registry said that it will not or cannot do this.
    Refused,
    /// The registry's answer is not what it should be: wrong digest, wrong length, no snapshot, a bad redirect.
    Answer,
    /// The snapshot is larger than the caller allows.
    TooLarge,
    /// The local store: its own error is the [`source`](std::error::Error::source).
    Store,
}

/// Why a push or a pull failed: a kind to branch on, a sentence to read, and often a source.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    sentence: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, sentence: impl Into<String>) -> Self {
        Self { kind, sentence: sentence.into(), source: None }
    }

    pub(crate) fn with(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    pub(crate) fn store(what: &str, error: coracle_snapshot::Error) -> Self {
        Self::new(ErrorKind::Store, what).with(error)
    }

    /// What went wrong, in a word.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// What somebody else wrote, fit for a terminal and a line: without control characters, and cut.
pub(crate) fn shown(text: &str) -> String {
    const CHARACTERS_MAX: usize = 200;
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(CHARACTERS_MAX).collect();
    if text.chars().filter(|c| !c.is_control()).nth(CHARACTERS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
