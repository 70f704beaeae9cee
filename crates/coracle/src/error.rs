//! The one error of this crate: a kind to branch on, a sentence to read, a source.
//!
//! The text of [`ErrorKind::GuestReturned`], and of a panic, is the guest's own: escape it where control characters could
//! do harm.

use std::error::Error as StdError;
use std::fmt;

use crate::crash::CrashReport;

/// Why an operation failed. [`Error::kind`] says what to do next.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    crash: Option<CrashReport>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// How an operation failed, for code that must choose what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The host refused: no hypervisor, no memory, no permission. Nothing that the guest did.
    Host,
    /// A setting makes no sense. Change it.
    Config,
    /// A store, or a snapshot in it, cannot be used: it is not there, damaged, of another version, or for another processor.
    Store,
    /// The image is not one that can run here, or not a Coracle guest of this version.
    Image,
    /// Caller and guest disagree about a function: there is none of that name, or it has other types, or a host function
    /// that the guest needs is missing. The sandbox is as before.
    Signature,
    /// A payload or another quantity is above a limit, which the message names. The sandbox is as before.
    Limit,
    /// The guest's function answered with an error of its own. The sandbox is still good.
    GuestReturned,
    /// The guest was stopped part-way: it crashed, panicked or exited. [`Error::crash`] tells more. Make a new sandbox,
    /// or restore this one.
    GuestStopped,
    /// The time was over before the guest answered. Make a new sandbox, or restore this one.
    TimedOut,
    /// The sandbox does not answer any more since an earlier call. Make a new one, or restore it.
    Unusable,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), crash: None, source: None }))
    }

    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    pub(crate) fn crashed(report: CrashReport) -> Self {
        let message = format!("guest crashed: {}", report.cause);
        Self(Box::new(Inner { kind: ErrorKind::GuestStopped, message, crash: Some(report), source: None }))
    }

    /// What to do next.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// For [`ErrorKind::GuestStopped`]: what is known of the guest's end.
    pub fn crash(&self) -> Option<&CrashReport> {
        self.0.crash.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, message, crash, source } = &*self.0;
        let mut out = f.debug_struct("Error");
        out.field("kind", kind).field("message", message);
        if let Some(crash) = crash {
            out.field("crash", crash);
        }
        if let Some(source) = source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<coracle_vm::Error> for Error {
    fn from(error: coracle_vm::Error) -> Self {
        let kind = match error.kind() {
            coracle_vm::ErrorKind::OutOfMemory => ErrorKind::Limit,
            _ => ErrorKind::Host,
        };
        // The sentence is the backend's; what it stands on is its source.
        let message = error.to_string();
        let outer = Self::new(kind, message);
        match error.into_source() {
            Some(source) => outer.with_source(source),
            None => outer,
        }
    }
}

impl From<coracle_vm::SpaceError> for Error {
    fn from(error: coracle_vm::SpaceError) -> Self {
        match error {
            coracle_vm::SpaceError::Backend(error) => error.into(),
            coracle_vm::SpaceError::NoMemory => Self::new(
                ErrorKind::Limit,
                "the sandbox's memory limit is too small for this guest: raise memory_bytes",
            ),
            coracle_vm::SpaceError::Content(error) => {
                Self::new(ErrorKind::Host, "a page of the snapshot cannot be read").with_source(error)
            }
            error => Self::new(ErrorKind::Host, error.to_string()),
        }
    }
}

impl From<crate::image::ImageError> for Error {
    fn from(error: crate::image::ImageError) -> Self {
        Self::new(ErrorKind::Image, error.to_string())
    }
}
