//! Files of a store. Whoever can write to it may have put anything there.
//!
//! Every path is one name below an open directory, no link is followed, and nothing but regular files is opened: a FIFO
//! would block, a device might do anything. What is written comes into being under its name only when it is whole and on
//! the disk.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::Error;

/// An open directory, and its path inside the store for messages.
pub(crate) struct Directory {
    fd: OwnedFd,
    path: String,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Directory {
    /// The store itself. Links on the way there are the caller's.
    pub(crate) fn root(path: &Path) -> Result<Self, Errno> {
        Ok(Self { fd: rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?, path: String::new() })
    }

    /// The path inside the store of a file that is here.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}/{name}", self.path) }
    }

    fn error(&self, doing: &str, name: &str, errno: Errno) -> Error {
        Error::io(format!("cannot {doing} {}", self.path(name)), errno)
    }

    /// What tells this directory from others.
    pub(crate) fn stat(&self) -> Result<Stat, Error> {
        rustix::fs::fstat(&self.fd).map_err(|errno| self.error("look at", ".", errno))
    }

    pub(crate) fn child(&self, name: &str) -> Result<Option<Self>, Error> {
        match rustix::fs::openat(&self.fd, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path: self.path(name) })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(Error::damaged(self.path(name), "is no directory")),
            Err(errno) => Err(self.error("open", name, errno)),
        }
    }

    pub(crate) fn child_or_new(&self, name: &str) -> Result<Self, Error> {
        if let Some(child) = self.child(name)? {
            return Ok(child);
        }
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => self.sync()?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.error("make the directory", name, errno)),
        }
        self.child(name)?.ok_or_else(|| self.error("open", name, Errno::NOENT))
    }

    /// Opens a regular file for reading. `None` if there is nothing with this name.
    pub(crate) fn open(&self, name: &str) -> Result<Option<Opened>, Error> {
        // Asked first, since opening a device can have effects; asked again, since it may be another file by then.
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => self.check_regular(name, &stat)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.error("look at", name, errno)),
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(Error::damaged(self.path(name), "is a symbolic link")),
            Err(errno) => return Err(self.error("open", name, errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.error("look at", name, errno))?;
        self.check_regular(name, &stat)?;
        Ok(Some(Opened {
            file: File::from(fd),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            path: self.path(name),
        }))
    }

    fn check_regular(&self, name: &str, stat: &Stat) -> Result<(), Error> {
        let fault = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(()),
            FileType::Symlink => "is a symbolic link",
            FileType::Directory => "is a directory",
            FileType::Fifo => "is a FIFO",
            FileType::Socket => "is a socket",
            _ => "is a device",
        };
        Err(Error::damaged(self.path(name), fault))
    }

    /// Whether there is a regular file with this name and size.
    pub(crate) fn has(&self, name: &str, bytes: u64) -> bool {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && u64::try_from(stat.st_size) == Ok(bytes)
        })
    }

    /// A lock file; `None` where it cannot be made because nothing can be written here.
    pub(crate) fn open_lock(&self, name: &str) -> Result<Option<OwnedFd>, Error> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags | OFlags::CREATE, Mode::from_raw_mode(0o666)) {
            Ok(fd) => fd,
            Err(Errno::ROFS | Errno::ACCESS) => match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(self.error("open", name, errno)),
            },
            Err(Errno::LOOP) => return Err(Error::damaged(self.path(name), "is a symbolic link")),
            Err(errno) => return Err(self.error("open", name, errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.error("look at", name, errno))?;
        self.check_regular(name, &stat)?;
        Ok(Some(fd))
    }

    /// A new file under a name that nobody else uses; it is removed again when it is dropped.
    pub(crate) fn temporary(&self) -> Result<Temporary<'_>, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            // Another process of another namespace may have the same id: then the next number is tried.
            let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            match rustix::fs::openat(&self.fd, &name, flags, Mode::from_raw_mode(0o644)) {
                Ok(fd) => return Ok(Temporary { directory: self, file: File::from(fd), name: Some(name) }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.error("make", &name, errno)),
            }
        }
    }

    /// Makes new names in it last.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        rustix::fs::fsync(&self.fd).map_err(|errno| self.error("write to the disk", ".", errno))
    }

    /// Whether there was such a file.
    pub(crate) fn remove(&self, name: &str) -> Result<bool, Error> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.error("remove", name, errno)),
        }
    }

    /// Names of what is in it and is no directory, with the bytes that each takes on the disk.
    pub(crate) fn files(&self) -> Result<Vec<(String, u64)>, Error> {
        let error = |errno| self.error("list", ".", errno);
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(error)? {
            let entry = entry.map_err(error)?;
            let Ok(name) = entry.file_name().to_str() else { continue }; // None of ours.
            let Ok(stat) = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                files.push((name.to_owned(), 512 * u64::try_from(stat.st_blocks).unwrap_or(0)));
            }
        }
        Ok(files)
    }
}

/// A regular file that is open for reading.
pub(crate) struct Opened {
    pub(crate) file: File,
    /// Its size when it was opened.
    pub(crate) bytes: u64,
    /// Its path inside the store.
    pub(crate) path: String,
}

impl Opened {
    /// Taken before it is read: a change during that is one.
    pub(crate) fn watch(&self) -> Result<Watched, Error> {
        let failed = |error: io::Error| Error::io(format!("cannot look at {}", self.path), error);
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| failed(errno.into()))?;
        Ok(Watched { _file: self.file.try_clone().map_err(failed)?, stamp: Stamp::of(&stat) })
    }

    /// All of it, if it has at most `most` bytes. A file that grows meanwhile is cut.
    pub(crate) fn read(mut self, most: u64) -> Result<Vec<u8>, Error> {
        if self.bytes > most {
            return Err(Error::damaged(self.path, format!("has {} bytes, of at most {most}", self.bytes)));
        }
        let mut bytes = Vec::with_capacity(self.bytes as usize);
        (&mut self.file)
            .take(self.bytes)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io(format!("cannot read {}", self.path), error))?;
        Ok(bytes)
    }
}

/// A file whose content is known. It is kept open, so that no other file gets its number.
pub(crate) struct Watched {
    _file: File,
    stamp: Stamp,
}

/// What changes with a file's content.
#[derive(PartialEq)]
struct Stamp {
    file: (u64, u64),
    bytes: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "types differ between architectures")]
    fn of(stat: &Stat) -> Self {
        Self {
            file: (stat.st_dev as u64, stat.st_ino as u64),
            bytes: stat.st_size as i64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }
}

impl Watched {
    /// Whether this file is still there under this name, and unchanged. One system call.
    pub(crate) fn is_still(&self, directory: &Directory, name: &str) -> bool {
        rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| Stamp::of(&stat) == self.stamp)
    }
}

/// A file that has no lasting name yet.
pub(crate) struct Temporary<'d> {
    directory: &'d Directory,
    file: File,
    name: Option<String>,
}

impl Temporary<'_> {
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> String {
        self.directory.path(self.name.as_deref().unwrap_or_default())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|error| self.error("write", error))
    }

    pub(crate) fn error(&self, doing: &str, error: io::Error) -> Error {
        Error::io(format!("cannot {doing} {}", self.path()), error)
    }

    /// Brings its content to the disk, then gives it its name, in place of what had it. The name lasts after
    /// [`Directory::sync`].
    pub(crate) fn keep(mut self, directory: &Directory, name: &str) -> Result<File, Error> {
        self.file.sync_all().map_err(|error| self.error("write to the disk", error))?;
        let temporary = self.name.take().unwrap_or_default();
        if let Err(errno) = rustix::fs::renameat(&self.directory.fd, &temporary, &directory.fd, name) {
            self.name = Some(temporary);
            return Err(directory.error("put in place", name, errno));
        }
        self.file.try_clone().map_err(|error| Error::io("cannot use a file", error))
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let _ = self.directory.remove(&name); // What stays is found by the next prune.
        }
    }
}
