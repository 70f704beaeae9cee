//! Descriptors of the three standard streams. There are no others: no path leads anywhere.

use coracle_abi::PAGE_BYTES;
use coracle_vm::{Access, Space};
use serde::{Deserialize, Serialize};

use super::{Answer, DONE, Errno, Failure, Linux, Outcome, count, fetch, fetch_u64, store};
use crate::deadline::Deadline;
use crate::stream::{ReadOutcome, WriteOutcome};

/// Descriptors a guest may have at once.
pub(super) const DESCRIPTORS_MAX: usize = 64;
/// Most bytes that one call moves; Linux programs go on after a short count.
const MOVE_MAX: u64 = 1 << 20;
/// Bytes copied at a time.
const CHUNK: usize = 16 << 10;
/// As Linux's `UIO_MAXIOV`.
const PIECES_MAX: u64 = 1024;
/// Longest path that is looked at, as Linux's `PATH_MAX`.
const PATH_MAX: usize = 4096;

const F_DUPFD: u64 = 0;
const F_GETFD: u64 = 1;
const F_SETFD: u64 = 2;
const F_GETFL: u64 = 3;
const F_SETFL: u64 = 4;
const F_DUPFD_CLOEXEC: u64 = 1030;
const O_WRONLY: i64 = 1;
const O_CLOEXEC: u64 = 0o2_000_000;

const AT_EMPTY_PATH: u64 = 0x1000;

const POLLIN: u16 = 1;
const POLLOUT: u16 = 4;
const POLLNVAL: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stream {
    Input,
    Output,
    Error,
}

/// Which descriptor is which stream.
#[derive(Clone, Debug)]
pub(super) struct Descriptors(pub(super) [Option<Stream>; DESCRIPTORS_MAX]);

impl Descriptors {
    pub(super) fn new() -> Self {
        let mut table = [None; DESCRIPTORS_MAX];
        (table[0], table[1], table[2]) = (Some(Stream::Input), Some(Stream::Output), Some(Stream::Error));
        Self(table)
    }

    fn get(&self, descriptor: u64) -> Result<Stream, Errno> {
        // The kernel takes descriptors as 32-bit numbers.
        self.0.get(descriptor as u32 as usize).copied().flatten().ok_or(Errno::EBADF)
    }

    pub(super) fn close(&mut self, descriptor: u64) -> Answer {
        self.get(descriptor)?;
        self.0[descriptor as u32 as usize] = None;
        DONE
    }

    pub(super) fn duplicate(&mut self, descriptor: u64, lowest: u64) -> Answer {
        let stream = self.get(descriptor)?;
        if lowest as u32 as usize >= DESCRIPTORS_MAX {
            return Err(Errno::EINVAL.into());
        }
        let free = self.0.iter().enumerate().skip(lowest as u32 as usize).find(|(_, stream)| stream.is_none());
        let (number, _) = free.ok_or(Errno::EMFILE)?;
        self.0[number] = Some(stream);
        count(number)
    }

    /// `dup3`: `dup2` that refuses to do nothing.
    pub(super) fn duplicate_to_other(&mut self, descriptor: u64, to: u64, flags: u64) -> Answer {
        if descriptor as u32 == to as u32 || flags & !O_CLOEXEC != 0 {
            return Err(Errno::EINVAL.into());
        }
        self.duplicate_to(descriptor, to)
    }

    pub(super) fn duplicate_to(&mut self, descriptor: u64, to: u64) -> Answer {
        let stream = self.get(descriptor)?;
        *self.0.get_mut(to as u32 as usize).ok_or(Errno::EBADF)? = Some(stream);
        count(to as u32 as usize)
    }

    pub(super) fn control(&mut self, descriptor: u64, command: u64, argument: u64) -> Answer {
        let stream = self.get(descriptor)?;
        match command {
            F_DUPFD | F_DUPFD_CLOEXEC => self.duplicate(descriptor, argument),
            F_GETFD | F_SETFD | F_SETFL => DONE,
            F_GETFL => Ok(Outcome::Return(if stream == Stream::Input { 0 } else { O_WRONLY })),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    pub(super) fn seek(&self, descriptor: u64) -> Answer {
        self.get(descriptor)?;
        Err(Errno::ESPIPE.into())
    }

    /// No stream is a terminal for the guest, whatever the embedder gave.
    pub(super) fn device_control(&self, descriptor: u64) -> Answer {
        self.get(descriptor)?;
        Err(Errno::ENOTTY.into())
    }

    /// `fstat`: each stream is a pipe.
    pub(super) fn status(&self, space: &mut Space, descriptor: u64, out: u64) -> Answer {
        self.get(descriptor)?;
        // struct stat: st_dev, st_ino, st_nlink, st_mode and st_uid, st_gid, st_rdev, st_size, st_blksize, …
        const PIPE_MODE: u64 = 0o010_600;
        let user = super::process::USER as u64;
        let mut words = [0; 18];
        words[1] = 1 + u64::from(descriptor as u32);
        words[2] = 1;
        words[3] = PIPE_MODE | user << 32;
        words[4] = user;
        words[7] = 4096;
        store(space, out, &words)?;
        DONE
    }

    pub(super) fn status_at(&self, space: &mut Space, descriptor: u64, path: u64, out: u64, flags: u64) -> Answer {
        let empty = fetch::<1>(space, path)? == [0];
        if empty && flags & AT_EMPTY_PATH != 0 {
            return self.status(space, descriptor, out);
        }
        no_such_path(space, path)
    }
}

/// A path that exists nowhere, once it is clear that it is a path.
pub(super) fn no_such_path(space: &mut Space, path: u64) -> Answer {
    let mut bytes = [0; PATH_MAX];
    let mut done = 0;
    while done < PATH_MAX {
        let at = path.checked_add(done as u64).ok_or(Errno::EFAULT)?;
        let piece = (PAGE_BYTES - at % PAGE_BYTES).min((PATH_MAX - done) as u64) as usize;
        let piece = &mut bytes[..piece];
        space.read(at, piece)?;
        if piece.contains(&0) {
            return Err(Errno::ENOENT.into());
        }
        done += piece.len();
    }
    Err(Errno::ENAMETOOLONG.into())
}

pub(super) fn working_directory(space: &mut Space, buffer: u64, bytes: u64) -> Answer {
    if bytes < 2 {
        return Err(Errno::ERANGE.into());
    }
    space.write(buffer, b"/\0")?;
    count(2)
}

impl Linux {
    pub(super) fn read(&mut self, space: &mut Space, deadline: &Deadline, fd: u64, at: u64, bytes: u64) -> Answer {
        if self.files.get(fd)? != Stream::Input {
            return Err(Errno::EBADF.into());
        }
        let mut chunk = [0; CHUNK];
        if bytes == 0 {
            return DONE;
        }
        // The buffer first, so that no input is lost to a bad pointer.
        let wanted = reach(space, at, bytes.min(CHUNK as u64), Access::Write)?;
        match self.streams.input.read(&mut chunk[..wanted], deadline) {
            ReadOutcome::Bytes(bytes) => {
                let bytes = bytes.min(wanted);
                space.write(at, &chunk[..bytes])?;
                count(bytes)
            }
            ReadOutcome::Failed => Err(Errno::EIO.into()),
            ReadOutcome::TimedOut => Ok(Outcome::TimedOut),
        }
    }

    pub(super) fn readv(&mut self, space: &mut Space, deadline: &Deadline, fd: u64, at: u64, pieces: u64) -> Answer {
        // A short count is always allowed: the first piece that holds anything.
        for n in 0..check_pieces(pieces)? {
            let (address, bytes) = piece(space, at, n)?;
            if bytes != 0 {
                return self.read(space, deadline, fd, address, bytes);
            }
        }
        self.read(space, deadline, fd, 0, 0)
    }

    pub(super) fn write(&mut self, space: &mut Space, deadline: &Deadline, fd: u64, at: u64, bytes: u64) -> Answer {
        let stream = self.files.get(fd)?;
        let output = match stream {
            Stream::Input => return Err(Errno::EBADF.into()),
            Stream::Output => &mut self.streams.output,
            Stream::Error => &mut self.streams.error,
        };
        let wanted = bytes.min(MOVE_MAX);
        let mut chunk = [0; CHUNK];
        let mut done = 0;
        while done < wanted {
            let size = (wanted - done).min(CHUNK as u64);
            let fetched = at.checked_add(done).ok_or(Failure::from(Errno::EFAULT)).and_then(|at| {
                let size = reach(space, at, size, Access::Read)?;
                space.read(at, &mut chunk[..size])?;
                Ok(&chunk[..size])
            });
            let failure = match fetched {
                Ok(piece) => match output.write(piece, deadline) {
                    WriteOutcome::Bytes(bytes) if bytes == piece.len() => {
                        done += bytes as u64;
                        continue;
                    }
                    WriteOutcome::Bytes(bytes) => {
                        done += bytes as u64;
                        Errno::ENOSPC.into()
                    }
                    WriteOutcome::TimedOut => return Ok(Outcome::TimedOut),
                    WriteOutcome::Closed => Errno::EPIPE.into(),
                    WriteOutcome::Failed => Errno::EIO.into(),
                },
                Err(failure) => failure,
            };
            return match failure {
                Failure::Errno(_) if done > 0 => Ok(Outcome::Return(done as i64)),
                failure => Err(failure),
            };
        }
        Ok(Outcome::Return(done as i64))
    }

    pub(super) fn writev(&mut self, space: &mut Space, deadline: &Deadline, fd: u64, at: u64, pieces: u64) -> Answer {
        self.files.get(fd)?;
        let mut total = 0;
        for n in 0..check_pieces(pieces)? {
            let written = piece(space, at, n).and_then(|(address, bytes)| {
                let allowed = bytes.min(MOVE_MAX - total);
                Ok((bytes, self.write(space, deadline, fd, address, allowed)?))
            });
            match written {
                Ok((bytes, Outcome::Return(written))) => {
                    total += written as u64;
                    if written as u64 != bytes {
                        break;
                    }
                }
                Ok((_, other)) => return Ok(other),
                Err(Failure::Errno(_)) if total > 0 => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(Outcome::Return(total as i64))
    }

    /// `poll`: streams are always ready. Without one to watch it sleeps.
    pub(super) fn poll(
        &mut self,
        space: &mut Space,
        deadline: &Deadline,
        at: u64,
        entries: u64,
        timeout_ms: i64,
    ) -> Answer {
        if entries > DESCRIPTORS_MAX as u64 * 16 {
            return Err(Errno::EINVAL.into());
        }
        let mut ready = 0;
        for n in 0..entries {
            let entry_at = at.checked_add(n * 8).ok_or(Errno::EFAULT)?;
            let entry = fetch_u64(space, entry_at)?;
            let (descriptor, events) = (entry as u32, (entry >> 32) as u16);
            let found = if (descriptor as i32) < 0 {
                0
            } else {
                match self.files.get(u64::from(descriptor)) {
                    Ok(Stream::Input) => events & POLLIN,
                    Ok(_) => events & POLLOUT,
                    Err(_) => POLLNVAL,
                }
            };
            ready += usize::from(found != 0);
            store(space, entry_at, &[entry & 0xffff_ffff_ffff | u64::from(found) << 48])?;
        }
        if ready == 0 && timeout_ms != 0 {
            // A negative timeout is none, and nothing will ever be ready.
            let Ok(wait) = u64::try_from(timeout_ms) else { return Ok(Outcome::Deadlock) };
            let slept = deadline.sleep(Some(std::time::Duration::from_millis(wait)));
            return if slept { DONE } else { Ok(Outcome::TimedOut) };
        }
        count(ready)
    }

    pub(super) fn ppoll(
        &mut self,
        space: &mut Space,
        deadline: &Deadline,
        at: u64,
        entries: u64,
        timeout: u64,
    ) -> Answer {
        let timeout_ms = if timeout == 0 {
            -1
        } else {
            let wait = super::time::fetch_duration(space, timeout)?;
            // Rounded up, so that a short wait does not become none.
            i64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
        };
        self.poll(space, deadline, at, entries, timeout_ms)
    }
}

/// How many of the bytes from `at` on the guest may access, at least one.
fn reach(space: &mut Space, at: u64, bytes: u64, access: Access) -> Result<usize, Failure> {
    match space.reach(at, bytes, access)? {
        0 => Err(Errno::EFAULT.into()),
        bytes => Ok(bytes as usize),
    }
}

fn check_pieces(pieces: u64) -> Result<u64, Errno> {
    if pieces <= PIECES_MAX { Ok(pieces) } else { Err(Errno::EINVAL) }
}

/// The `n`th `struct iovec`: address and length.
fn piece(space: &mut Space, at: u64, n: u64) -> Result<(u64, u64), Failure> {
    let at = at.checked_add(n * 16).ok_or(Errno::EFAULT)?;
    let second = at.checked_add(8).ok_or(Errno::EFAULT)?;
    Ok((fetch_u64(space, at)?, fetch_u64(space, second)?))
}
