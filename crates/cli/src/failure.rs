//! Why a command did not succeed: text for people, an exit code for scripts.
//!
//! The library's sentences are printed as they are, but for what in them a guest may have said: control characters are
//! escaped before anything reaches a terminal.

use std::error::Error as StdError;
use std::io;

use coracle::image::{Fault, ImageError};
use coracle::{Cause, CrashReport, Error, ErrorKind, store};
use serde_json::{Value, json};

use crate::output;
use crate::text::escape;

/// The guest's function returned an error.
pub(crate) const RETURNED: u8 = 1;
/// The timeout passed.
pub(crate) const TIMED_OUT: u8 = 124;
/// The command itself failed.
pub(crate) const OWN_ERROR: u8 = 125;
/// The file, or the snapshot, cannot run here.
pub(crate) const NOT_A_PROGRAM: u8 = 126;
/// There is no such file, store or snapshot.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to a signal's number, as shells do.
const SIGNALLED: i32 = 128;

/// The end of a command that did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    text: String,         // Safe for a terminal; may have several lines.
    because: Vec<String>, // The chain of sources, outermost first.
}

impl Failure {
    /// A mistake of the caller's, or a failure of the command's own.
    pub(crate) fn own(text: impl Into<String>) -> Self {
        Self::new(OWN_ERROR, &text.into())
    }

    /// A file that is not what it should be.
    pub(crate) fn file(text: impl Into<String>) -> Self {
        Self::new(NOT_A_PROGRAM, &text.into())
    }

    fn new(code: u8, text: &str) -> Self {
        Self { code, text: escape(text), because: Vec::new() }
    }

    pub(crate) fn because(mut self, source: &(dyn StdError + 'static)) -> Self {
        let mut next = Some(source);
        while let Some(error) = next {
            self.because.push(escape(&error.to_string()));
            next = error.source();
        }
        self
    }

    /// An error's source, unless it is the same sentence again.
    fn because_of_source(self, error: &dyn StdError) -> Self {
        match error.source() {
            Some(source) if source.to_string() == error.to_string() => self.because_of_source(source),
            Some(source) => self.because(source),
            None => self,
        }
    }

    /// Says first what was being done.
    pub(crate) fn during(mut self, what: &str) -> Self {
        self.text = format!("{}: {}", escape(what), self.text);
        self
    }

    /// Names a flag of the command where the library names a function.
    pub(crate) fn with_hint(mut self, function: &str, flag: &str) -> Self {
        self.text = self.text.replace(function, flag);
        self
    }

    /// Prints it on standard error. Returns the exit code.
    pub(crate) fn report(&self) -> u8 {
        let mut lines = format!("coracle: {}\n", self.text);
        for source in &self.because {
            lines += &format!("  because: {source}\n");
        }
        output::complain(&lines);
        self.code
    }

    /// The same, for programs.
    pub(crate) fn json(&self) -> Value {
        json!({ "error": { "message": self.text, "because": self.because, "exit_code": self.code } })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::GuestReturned => RETURNED,
            ErrorKind::TimedOut => TIMED_OUT,
            ErrorKind::Image => NOT_A_PROGRAM,
            // Where it is not the store's own error, a snapshot's document is at fault, or this processor.
            ErrorKind::Store => error.source().and_then(|it| it.downcast_ref()).map_or(NOT_A_PROGRAM, store_code),
            ErrorKind::GuestStopped => error.crash().map_or(OWN_ERROR, |report| signal_code(&report.cause)),
            _ => OWN_ERROR,
        };
        let failure = match error.crash() {
            Some(report) => Self { code, text: escaped(report).to_string(), because: Vec::new() },
            None => Self::new(code, &error.to_string()),
        };
        failure.because_of_source(&error)
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        Self::new(store_code(&error), &error.to_string()).because_of_source(&error)
    }
}

impl From<coracle_registry::Error> for Failure {
    fn from(error: coracle_registry::Error) -> Self {
        let code = match error.kind() {
            coracle_registry::ErrorKind::NotFound => NOT_FOUND,
            coracle_registry::ErrorKind::Timeout => TIMED_OUT,
            coracle_registry::ErrorKind::Answer => NOT_A_PROGRAM,
            coracle_registry::ErrorKind::Store => {
                error.source().and_then(|it| it.downcast_ref()).map_or(OWN_ERROR, store_code)
            }
            _ => OWN_ERROR,
        };
        Self::new(code, &error.to_string()).because_of_source(&error)
    }
}

fn store_code(error: &store::Error) -> u8 {
    match error {
        store::Error::NotAStore { .. } | store::Error::NotFound { .. } => NOT_FOUND,
        store::Error::Damaged { .. } | store::Error::Version { .. } | store::Error::Changed { .. } => NOT_A_PROGRAM,
        _ => OWN_ERROR,
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        let is_missing = error.fault() == Fault::Unreadable
            && source.is_some_and(|it| matches!(it.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory));
        let code = if is_missing { NOT_FOUND } else { NOT_A_PROGRAM };
        Self::new(code, &error.to_string()).because_of_source(&error)
    }
}

fn signal_code(cause: &Cause) -> u8 {
    u8::try_from(SIGNALLED + cause.signal().clamp(0, 127)).unwrap_or(u8::MAX)
}

/// The report without the control characters that a guest or its image may have put in it.
fn escaped(report: &CrashReport) -> CrashReport {
    let mut report = report.clone();
    if let Cause::Panic { message, location } = &mut report.cause {
        (*message, *location) = (escape(message), escape(location));
    }
    if let Some(place) = &mut report.place {
        place.function = escape(&place.function);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_becomes_the_shells_code() {
        assert_eq!(signal_code(&Cause::NullPointer), 139);
        assert_eq!(signal_code(&Cause::Abort), 134);
        assert_eq!(signal_code(&Cause::Signal(15)), 143);
        assert_eq!(signal_code(&Cause::Signal(i32::MAX)), 255);
        assert_eq!(signal_code(&Cause::Signal(-1)), 128);
    }

    #[test]
    fn a_missing_file_is_told_from_a_wrong_one() {
        let code = |path: &str| Failure::from(coracle::Image::from_path(path).unwrap_err()).code;
        assert_eq!(code("/nonexistent/program"), NOT_FOUND);
        assert_eq!(code("/dev/null/program"), NOT_FOUND);
        assert_eq!(code("/"), NOT_A_PROGRAM);
        assert_eq!(code("/proc/self/cmdline"), NOT_A_PROGRAM);
    }

    #[test]
    fn sources_follow_the_sentence() {
        let source = io::Error::other("inner \u{1b}[2J");
        let failure = Failure::own("outer\n").because(&source);
        assert_eq!((failure.text.as_str(), failure.because[0].as_str()), ("outer\\n", "inner \\u{1b}[2J"));
    }
}
