//! Calls to the host, seen from the program.

use alloc::string::String;
use core::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rt;

/// Why a host function has no result: the host's own words, or what went wrong on the way.
///
/// A function that is declared by [`host`](crate::host) to return `Result<T, HostError>` gives it to its caller; any
/// other panics with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostError {
    message: String,
}

impl HostError {
    pub(crate) fn new(message: String) -> Self {
        Self { message }
    }

    /// What went wrong, as a sentence.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl core::error::Error for HostError {}

/// Calls the host function with this key: what [`host`](crate::host) expands to.
///
/// # Errors
/// If the host's function fails, if arguments or reply are above the limit of payloads, and in the `Serialize` of what is being
/// sent.
pub fn host_call<A, R>(key: u64, arguments: &A) -> Result<R, HostError>
where
    A: Serialize + ?Sized,
    R: DeserializeOwned,
{
    match rt::link() {
        Some(link) => link.host_call(key, arguments),
        None => Err(HostError::new("there is no host: this program runs outside of a sandbox".into())),
    }
}

/// Calls the host function with this key and does not wait: what [`host`](crate::host) with `notify` expands to.
///
/// # Errors
/// If the arguments are above the limit of payloads, and in the `Serialize` of what is being sent.
pub fn host_notify<A: Serialize + ?Sized>(key: u64, arguments: &A) -> Result<(), HostError> {
    match rt::link() {
        Some(link) => link.notify(key, arguments),
        None => Err(HostError::new("there is no host: this program runs outside of a sandbox".into())),
    }
}
