//! Who may do what to a store at the same time.
//!
//! | lock file | shared | exclusive |
//! |---|---|---|
//! | `coracle/lock` | everything that reads or adds blobs | `prune`: nobody holds on to a blob by name |
//! | `coracle/index.lock` | | reading `index.json` to write it anew |
//!
//! The first is always taken before the second. Readers of `index.json` need no lock: it is replaced whole. The kernel
//! takes a lock back when its holder dies.

use std::os::fd::OwnedFd;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::directory::Directory;
use crate::Error;

/// Held until it is dropped.
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it is what unlocks")] Option<OwnedFd>);

impl Lock {
    pub(crate) fn shared(directory: &Directory, name: &str) -> Result<Self, Error> {
        Self::take(directory, name, FlockOperation::LockShared)
    }

    pub(crate) fn exclusive(directory: &Directory, name: &str) -> Result<Self, Error> {
        Self::take(directory, name, FlockOperation::LockExclusive)
    }

    fn take(directory: &Directory, name: &str, operation: FlockOperation) -> Result<Self, Error> {
        // Where no lock file can be made nothing can be changed either.
        let Some(file) = directory.open_lock(name)? else { return Ok(Self(None)) };
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Self(Some(file))),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io(format!("cannot lock {}", directory.path(name)), errno)),
            }
        }
    }
}
