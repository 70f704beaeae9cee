//! Where the command's own words go. A reader that went away is no error: `coracle inspect FILE | head` ends well.

use std::io::{self, Write as _};

use crate::failure::Failure;

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::own("cannot write to standard output").because(&error))
        }
        _ => Ok(()),
    }
}

/// Writes to standard error. If that fails there is nobody to tell.
pub(crate) fn complain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
