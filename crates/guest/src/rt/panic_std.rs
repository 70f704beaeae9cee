//! Panics of programs with the standard library: a hook that does not return, so that nothing unwinds.

use std::panic;

use super::panicked;

/// Sets the hook. Programs that set their own later get what it does, and an unwinding or aborting program.
pub(super) fn install() {
    panic::set_hook(Box::new(|panic| {
        panicked(panic.payload_as_str().unwrap_or("a panic whose payload is no text"), panic.location());
    }));
}
