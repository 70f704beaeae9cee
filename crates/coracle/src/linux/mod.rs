//! The system calls that guests may make: deny by default.
//!
//! A guest is an ordinary static Linux program, so it asks for its memory, its streams and the time by Linux system
//! calls. This module answers the few dozen that such programs need. Nothing of the host is reachable by them: there is
//! no file system (every path is `ENOENT`), no network, no process but the guest itself, and no thread.
//!
//! Invariants: every pointer is a claim and is copied through [`Space`], which checks it; every length is cut to a
//! limit before anything is allocated; no system call blocks past the deadline.
//!
//! | file | system calls |
//! |---|---|
//! | `memory.rs` | brk, mmap and its relatives |
//! | `files.rs` | the three standard streams, and their descriptors |
//! | `time.rs` | clocks, sleeping, random bytes |
//! | `process.rs` | identity, limits, signals, exit |
//!
//! Numbers and structures are those of Linux x86-64 (`man 2 syscalls`, `asm/unistd_64.h`).

mod errno;
mod files;
mod memory;
mod number;
mod process;
mod saved;
mod time;

use std::collections::BTreeMap;
use std::time::Duration;

use coracle_vm::{Registers, Space, SpaceError};

use crate::deadline::Deadline;
use crate::stream::{Rest, Streams};
pub use errno::Errno;
pub use number::name;
pub(crate) use saved::SavedLinux;

/// What follows a system call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The guest goes on with this result.
    Return(i64),
    /// The guest goes on, with another thread pointer.
    SetFsBase(u64),
    /// The guest ended itself.
    Exit(i32),
    /// The guest sent itself a deadly signal.
    Signal(i32),
    /// The guest waits for something that cannot happen: another thread.
    Deadlock,
    /// The deadline passed while the call waited.
    TimedOut,
}

/// A call that cannot be answered in the usual way.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The guest gets an error number.
    Errno(Errno),
    /// The hypervisor failed; the sandbox cannot go on.
    Host(SpaceError),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<SpaceError> for Failure {
    /// For copies from and to the guest: what it may not access is `EFAULT`.
    fn from(error: SpaceError) -> Self {
        match error {
            SpaceError::Backend(_) => Self::Host(error),
            SpaceError::NoMemory => Self::Errno(Errno::ENOMEM),
            _ => Self::Errno(Errno::EFAULT),
        }
    }
}

type Answer = Result<Outcome, Failure>;

/// One system call and its answer, for tracing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemCall {
    /// Its number.
    pub number: u64,
    /// Its arguments, as the guest gave them.
    pub arguments: [u64; 6],
    /// Its result: a value, or a negated error number. `None` if the guest did not go on.
    pub result: Option<i64>,
}

/// Called after each system call.
pub(crate) type Tracer = Box<dyn FnMut(&SystemCall) + Send>;

/// The Linux side of one sandbox.
pub(crate) struct Linux {
    pub(crate) streams: Streams,
    memory: memory::Heap,
    files: files::Descriptors,
    process: process::Process,
    clock: time::Clock,
    calls: u64,
    unknown: BTreeMap<u64, u64>,
    refused_memory: bool,
    tracer: Option<Tracer>,
}

/// What the host knows of a program besides its memory. For snapshots.
#[derive(Clone, Debug)]
pub(crate) struct LinuxState {
    memory: memory::Heap,
    files: files::Descriptors,
    process: process::Process,
    refused_memory: bool,
    input: Option<Rest>,
}

impl LinuxState {
    /// What was not read yet of an input that a new sandbox can have, too.
    pub(crate) fn input(&self) -> Option<Rest> {
        self.input.clone()
    }
}

/// The most numbers that are counted each by itself.
const UNKNOWN_MAX: usize = 512;

impl Linux {
    /// For a guest whose image ends at `heap_start` and whose stack has `stack_bytes`.
    pub(crate) fn new(
        heap_start: u64,
        heap_end: u64,
        stack_bytes: u64,
        streams: Streams,
        tracer: Option<Tracer>,
    ) -> Self {
        Self {
            streams,
            memory: memory::Heap::new(heap_start, heap_end),
            files: files::Descriptors::new(),
            process: process::Process::new(stack_bytes),
            clock: time::Clock::new(),
            calls: 0,
            unknown: BTreeMap::new(),
            refused_memory: false,
            tracer,
        }
    }

    /// Answers the system call that these registers make.
    ///
    /// # Errors
    /// The hypervisor's; the sandbox cannot go on then.
    pub(crate) fn serve(
        &mut self,
        registers: &Registers,
        space: &mut Space,
        deadline: &Deadline,
    ) -> Result<Outcome, SpaceError> {
        self.calls += 1;
        let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
        let outcome = match self.answer(registers.rax, arguments, space, deadline) {
            Ok(outcome) => outcome,
            Err(Failure::Errno(errno)) => {
                self.refused_memory |= errno == Errno::ENOMEM;
                Outcome::Return(errno.result())
            }
            Err(Failure::Host(error)) => return Err(error),
        };
        if let Some(tracer) = &mut self.tracer {
            let result = match outcome {
                Outcome::Return(value) => Some(value),
                Outcome::SetFsBase(_) => Some(0),
                _ => None,
            };
            tracer(&SystemCall { number: registers.rax, arguments, result });
        }
        Ok(outcome)
    }

    fn answer(&mut self, number: u64, arguments: [u64; 6], space: &mut Space, deadline: &Deadline) -> Answer {
        use number::*;
        let [a, b, c, d, e, _] = arguments;
        match number {
            READ => self.read(space, deadline, a, b, c),
            READV => self.readv(space, deadline, a, b, c),
            WRITE => self.write(space, deadline, a, b, c),
            WRITEV => self.writev(space, deadline, a, b, c),
            CLOSE => self.files.close(a),
            DUP => self.files.duplicate(a, 0),
            DUP2 => self.files.duplicate_to(a, b),
            DUP3 => self.files.duplicate_to_other(a, b, int(c)),
            FCNTL => self.files.control(a, int(b), c),
            LSEEK => self.files.seek(a),
            IOCTL => self.files.device_control(a),
            FSTAT => self.files.status(space, a, b),
            NEWFSTATAT => self.files.status_at(space, a, b, c, int(d)),
            POLL => self.poll(space, deadline, a, int(b), i64::from(c as i32)),
            PPOLL => self.ppoll(space, deadline, a, int(b), c),
            OPEN | STAT | LSTAT | ACCESS | READLINK | CHDIR | MKDIR | UNLINK => files::no_such_path(space, a),
            OPENAT | FACCESSAT | FACCESSAT2 | READLINKAT | MKDIRAT | UNLINKAT => files::no_such_path(space, b),
            GETCWD => files::working_directory(space, a, b),
            UMASK => Ok(Outcome::Return(0o022)),

            BRK => self.memory.set_break(space, a),
            MMAP => memory::map(space, a, b, c, d, e),
            MUNMAP => memory::unmap(space, a, b),
            MREMAP => memory::remap(space, a, b, c, d, e),
            MPROTECT => memory::protect(space, a, b, c),
            MADVISE => memory::advise(space, a, b, int(c)),

            CLOCK_GETTIME => self.clock.get(space, int(a), b),
            CLOCK_GETRES => time::resolution(space, int(a), b),
            GETTIMEOFDAY => time::time_of_day(space, a),
            TIME => time::seconds(space, a),
            NANOSLEEP => self.clock.sleep(space, deadline, a),
            CLOCK_NANOSLEEP => self.clock.sleep_on(space, deadline, int(a), int(b), c),
            GETRANDOM => time::random(space, a, b, int(c)),

            ARCH_PRCTL => process::thread_pointer(int(a), b),
            PRCTL => process::control(int(a)),
            SET_TID_ADDRESS | GETTID | GETPID | GETPGRP => Ok(Outcome::Return(process::ID)),
            GETPPID => Ok(Outcome::Return(0)),
            GETUID | GETEUID | GETGID | GETEGID => Ok(Outcome::Return(process::USER)),
            SET_ROBUST_LIST | SCHED_YIELD => Ok(Outcome::Return(0)),
            RSEQ => Err(Errno::ENOSYS.into()), // Known, and optional to every C library.
            PRLIMIT64 => self.process.limit(space, a, int(b), c, d),
            GETRLIMIT => self.process.limit(space, 0, int(a), 0, b),
            UNAME => process::name(space, a),
            SCHED_GETAFFINITY => process::affinity(space, int(b), c),
            SIGALTSTACK => self.process.alternate_stack(space, a, b),
            RT_SIGACTION => self.process.action(space, int(a), b, c, d),
            RT_SIGPROCMASK => self.process.mask(space, int(a), b, c, d),
            KILL => self.process.kill(a, int(b)),
            TKILL => self.process.kill_thread(process::ID as u64, a, int(b)),
            TGKILL => self.process.kill_thread(a, b, int(c)),
            FUTEX => self.futex(space, deadline, a, int(b), c, d),
            WAIT4 => Err(Errno::ECHILD.into()),
            EXIT | EXIT_GROUP => Ok(Outcome::Exit((a & 0xff) as i32)),
            _ => {
                if self.unknown.len() < UNKNOWN_MAX || self.unknown.contains_key(&number) {
                    *self.unknown.entry(number).or_default() += 1;
                }
                Err(Errno::ENOSYS.into())
            }
        }
    }

    /// What a restore puts back. Streams are the embedder's, but for input that lies in memory; the clock goes on.
    pub(crate) fn state(&self) -> LinuxState {
        let Self { memory, files, process, refused_memory, .. } = self;
        let (memory, files, process) = (memory.clone(), files.clone(), process.clone());
        LinuxState { memory, files, process, refused_memory: *refused_memory, input: self.streams.input.rest() }
    }

    /// Puts it back. The monotonic clock never shows less than `age`, nor less than it has shown.
    pub(crate) fn restore(&mut self, state: &LinuxState, age: Duration) {
        let LinuxState { memory, files, process, refused_memory, input } = state.clone();
        (self.memory, self.files, self.process, self.refused_memory) = (memory, files, process, refused_memory);
        self.streams.input.rewind(input.as_ref());
        self.clock.advance_to(age);
    }

    /// What the monotonic clock shows.
    pub(crate) fn age(&self) -> Duration {
        self.clock.age()
    }

    /// System calls made so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Calls that nothing here answers, by number.
    pub(crate) fn unknown(&self) -> &BTreeMap<u64, u64> {
        &self.unknown
    }

    /// Whether the guest was ever refused memory: what an abort afterwards is most likely about.
    pub(crate) fn refused_memory(&self) -> bool {
        self.refused_memory
    }
}

/// An argument that is an `int` in C: its upper half means nothing.
fn int(argument: u64) -> u64 {
    u64::from(argument as u32)
}

/// Copies a value of `N` bytes from the guest.
fn fetch<const N: usize>(space: &mut Space, address: u64) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    space.read(address, &mut bytes)?;
    Ok(bytes)
}

/// Copies a little-endian word from the guest.
fn fetch_u64(space: &mut Space, address: u64) -> Result<u64, Failure> {
    fetch(space, address).map(u64::from_le_bytes)
}

/// Copies words to the guest, each little-endian.
fn store(space: &mut Space, address: u64, words: &[u64]) -> Result<(), Failure> {
    for (n, word) in words.iter().enumerate() {
        let at = address.checked_add(8 * n as u64).ok_or(Errno::EFAULT)?;
        space.write(at, &word.to_le_bytes())?;
    }
    Ok(())
}

/// A count for the guest.
fn count(bytes: usize) -> Answer {
    Ok(Outcome::Return(bytes as i64))
}

const DONE: Answer = Ok(Outcome::Return(0));
