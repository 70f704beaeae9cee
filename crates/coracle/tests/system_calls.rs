//! System calls mean what `man 2` says, and no sequence of them harms the host.
//!
//! The guest is played by the test itself, on the backend without a hypervisor: it runs the real loop, system calls and
//! address space.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coracle::fake::{Fake, FakeCpu, FakeGuest};
use coracle::{Builder, Cause, Error, ErrorKind, Input, Output, Sandbox, linux};
use coracle_abi::{PAGE_BYTES, map};
use coracle_testing::patiently;
use coracle_vm::{Exception, Exit, Registers, exit};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const READ: u64 = 0;
const WRITE: u64 = 1;
const OPEN: u64 = 2;
const CLOSE: u64 = 3;
const STAT: u64 = 4;
const FSTAT: u64 = 5;
const POLL: u64 = 7;
const LSEEK: u64 = 8;
const MMAP: u64 = 9;
const MPROTECT: u64 = 10;
const MUNMAP: u64 = 11;
const BRK: u64 = 12;
const RT_SIGACTION: u64 = 13;
const RT_SIGPROCMASK: u64 = 14;
const IOCTL: u64 = 16;
const READV: u64 = 19;
const WRITEV: u64 = 20;
const MREMAP: u64 = 25;
const MADVISE: u64 = 28;
const DUP: u64 = 32;
const DUP2: u64 = 33;
const NANOSLEEP: u64 = 35;
const GETPID: u64 = 39;
const EXIT: u64 = 60;
const WAIT4: u64 = 61;
const KILL: u64 = 62;
const UNAME: u64 = 63;
const FCNTL: u64 = 72;
const GETCWD: u64 = 79;
const GETTIMEOFDAY: u64 = 96;
const GETRLIMIT: u64 = 97;
const GETUID: u64 = 102;
const SIGALTSTACK: u64 = 131;
const PRCTL: u64 = 157;
const ARCH_PRCTL: u64 = 158;
const GETTID: u64 = 186;
const TKILL: u64 = 200;
const TIME: u64 = 201;
const FUTEX: u64 = 202;
const SCHED_GETAFFINITY: u64 = 204;
const CLOCK_GETTIME: u64 = 228;
const CLOCK_GETRES: u64 = 229;
const CLOCK_NANOSLEEP: u64 = 230;
const EXIT_GROUP: u64 = 231;
const TGKILL: u64 = 234;
const OPENAT: u64 = 257;
const NEWFSTATAT: u64 = 262;
const PPOLL: u64 = 271;
const DUP3: u64 = 292;
const PRLIMIT64: u64 = 302;
const GETRANDOM: u64 = 318;
const RSEQ: u64 = 334;

const EPERM: i64 = -1;
const ENOENT: i64 = -2;
const ESRCH: i64 = -3;
const EBADF: i64 = -9;
const ECHILD: i64 = -10;
const EAGAIN: i64 = -11;
const ENOMEM: i64 = -12;
const EACCES: i64 = -13;
const EFAULT: i64 = -14;
const EEXIST: i64 = -17;
const ENODEV: i64 = -19;
const EINVAL: i64 = -22;
const EMFILE: i64 = -24;
const ENOTTY: i64 = -25;
const ENOSPC: i64 = -28;
const ESPIPE: i64 = -29;
const ERANGE: i64 = -34;
const ENAMETOOLONG: i64 = -36;
const ENOSYS: i64 = -38;
const ETIMEDOUT: i64 = -110;

/// Four pages that may be written; after them comes nothing.
const RW: u64 = 0x10_0000;
const RW_END: u64 = RW + 4 * PAGE_BYTES;
/// One page that may be read.
const RO: u64 = 0x20_0000;
/// One page without rights.
const NONE: u64 = 0x30_0000;
/// The image's only page: code.
const CODE: u64 = 0x40_0000;
/// Nothing.
const HOLE: u64 = 0x50_0000;

const MINUS: fn(i64) -> u64 = |n| (-n) as u64;
const PROT_RW: u64 = 3;
const ANONYMOUS: u64 = 0x22; // MAP_PRIVATE | MAP_ANONYMOUS
const FIXED: u64 = ANONYMOUS | 0x10;

enum Request {
    Call(u64, [u64; 6]),
    Read(u64, usize),
    Write(u64, Vec<u8>),
    Registers,
}

enum Answer {
    Result(i64),
    Bytes(Vec<u8>),
    Written,
    Registers(Registers),
}

/// A program that does what its handle is told. It ends when the handle is dropped.
struct Guest {
    requests: Option<Sender<Request>>,
    answers: Receiver<Answer>,
    run: JoinHandle<Result<i32, Error>>,
}

impl Guest {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// With [`RW`], [`RO`] and [`NONE`] in place.
    fn with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let guest = Self::bare(settings);
        for (at, pages, protection) in [(RW, 4, PROT_RW), (RO, 1, 1), (NONE, 1, 0)] {
            assert_eq!(guest.call(MMAP, &[at, pages * PAGE_BYTES, protection, FIXED, MINUS(1), 0]), at as i64);
        }
        guest
    }

    fn bare(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let (requests, incoming) = mpsc::channel();
        let (outgoing, answers) = mpsc::channel();
        let script = std::sync::Mutex::new(Some(Script { requests: incoming, answers: outgoing, pending: None }));
        let backend = Fake::new(move || {
            let mut script = script.lock().unwrap().take().unwrap();
            move |cpu: &mut FakeCpu<'_>| script.run(cpu)
        });
        let builder = settings(Sandbox::builder(&FakeGuest::new().image()).backend(backend));
        let run = std::thread::spawn(move || builder.run().map(|ended| ended.code));
        Self { requests: Some(requests), answers, run }
    }

    /// What it is answered, or `None` if that was its end.
    fn ask(&self, request: Request) -> Option<Answer> {
        self.requests.as_ref().unwrap().send(request).ok()?;
        self.answers.recv().ok()
    }

    fn try_call(&self, number: u64, arguments: &[u64]) -> Option<i64> {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        match self.ask(Request::Call(number, all))? {
            Answer::Result(result) => Some(result),
            _ => unreachable!("a call has a result"),
        }
    }

    #[track_caller]
    fn call(&self, number: u64, arguments: &[u64]) -> i64 {
        self.try_call(number, arguments).unwrap()
    }

    #[track_caller]
    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        match self.ask(Request::Read(address, bytes)) {
            Some(Answer::Bytes(bytes)) => bytes,
            _ => panic!("the guest cannot read {address:#x}"),
        }
    }

    #[track_caller]
    fn write(&self, address: u64, bytes: &[u8]) {
        assert!(self.ask(Request::Write(address, bytes.to_vec())).is_some(), "the guest cannot write {address:#x}");
    }

    #[track_caller]
    fn write_words(&self, address: u64, words: &[u64]) {
        self.write(address, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    }

    #[track_caller]
    fn word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.read(address, 8).try_into().unwrap())
    }

    fn registers(&self) -> Registers {
        match self.ask(Request::Registers) {
            Some(Answer::Registers(registers)) => registers,
            _ => panic!("the guest is gone"),
        }
    }

    /// Ends it by `exit_group(7)`, if it has not ended, and says how it ended.
    fn end(mut self) -> Result<i32, Error> {
        self.requests = None;
        self.run.join().unwrap()
    }

    /// Why it was stopped.
    #[track_caller]
    fn cause(self) -> Cause {
        self.end().unwrap_err().crash().unwrap().cause.clone()
    }
}

struct Script {
    requests: Receiver<Request>,
    answers: Sender<Answer>,
    pending: Option<Request>,
}

impl Script {
    fn run(&mut self, cpu: &mut FakeCpu<'_>) -> Exit {
        let mut request = match self.pending.take() {
            Some(Request::Call(..)) => {
                let _ = self.answers.send(Answer::Result(cpu.registers.rax as i64));
                None
            }
            other => other, // A copy that faulted.
        };
        loop {
            let next =
                request.take().or_else(|| self.requests.recv().ok()).unwrap_or(Request::Call(EXIT_GROUP, [7; 6]));
            let answer = match &next {
                Request::Call(number, [rdi, rsi, rdx, r10, r8, r9]) => {
                    let fs_base = cpu.registers.fs_base;
                    *cpu.registers = Registers {
                        rax: *number,
                        rdi: *rdi,
                        rsi: *rsi,
                        rdx: *rdx,
                        r10: *r10,
                        r8: *r8,
                        r9: *r9,
                        fs_base,
                        rsp: cpu.registers.rsp,
                        ..Registers::default()
                    };
                    self.pending = Some(next);
                    return Exit::Syscall;
                }
                Request::Read(address, bytes) => {
                    let mut out = vec![0; *bytes];
                    let fault = pages(*address, *bytes).find(|page| !cpu.read(*page, &mut [0]));
                    let read = fault.is_none() && cpu.read(*address, &mut out);
                    if read { Ok(Answer::Bytes(out)) } else { Err((fault.unwrap_or(*address), 4)) }
                }
                Request::Write(address, bytes) => {
                    let fault = pages(*address, bytes.len()).find(|page| {
                        let mut byte = [0];
                        !cpu.read(*page, &mut byte) || !cpu.write(*page, &byte)
                    });
                    let written = fault.is_none() && cpu.write(*address, bytes);
                    if written { Ok(Answer::Written) } else { Err((fault.unwrap_or(*address), 6)) }
                }
                Request::Registers => Ok(Answer::Registers(*cpu.registers)),
            };
            match answer {
                Ok(answer) => drop(self.answers.send(answer)),
                Err((address, error_code)) => {
                    self.pending = Some(next);
                    return Exit::Exception(Exception { vector: exit::PAGE_FAULT, error_code, address });
                }
            }
        }
    }
}

/// An address in each page of a range.
fn pages(address: u64, bytes: usize) -> impl Iterator<Item = u64> {
    let end = address + bytes as u64;
    std::iter::successors(Some(address), |at| Some((at / PAGE_BYTES + 1) * PAGE_BYTES)).take_while(move |at| *at < end)
}

#[track_caller]
fn table(rows: &[(u64, &[u64], i64)]) {
    let guest = Guest::new();
    for (number, arguments, want) in rows {
        let name = linux::name(*number).unwrap_or("?");
        assert_eq!(guest.call(*number, arguments), *want, "{name}({arguments:#x?})");
    }
    assert_eq!(guest.end().unwrap(), 7);
}

/// An `int` with nonsense in its upper half, as C compilers may leave it.
const fn dirty(int: u64) -> u64 {
    int | 0xdead_beef << 32
}

#[test]
fn memory_calls_answer_like_linux() {
    let page = PAGE_BYTES;
    table(&[
        (MMAP, &[0, 0, PROT_RW, ANONYMOUS, MINUS(1), 0], EINVAL),
        (MMAP, &[0, page, PROT_RW, 0x20, MINUS(1), 0], EINVAL), // Neither private nor shared.
        (MMAP, &[0, page, 7, ANONYMOUS, MINUS(1), 0], EACCES),
        (MMAP, &[0, page, 0x100, ANONYMOUS, MINUS(1), 0], EINVAL),
        (MMAP, &[0, page, 1, 2, 0, 0], ENODEV), // A pipe.
        (MMAP, &[0, page, 1, 2, MINUS(1), 0], EBADF),
        (MMAP, &[0, u64::MAX, PROT_RW, ANONYMOUS, MINUS(1), 0], ENOMEM),
        (MMAP, &[0, 1 << 46, PROT_RW, ANONYMOUS, MINUS(1), 0], ENOMEM),
        (MMAP, &[RW + 1, page, PROT_RW, FIXED, MINUS(1), 0], EINVAL),
        (MMAP, &[map::CONTROL_START, page, PROT_RW, FIXED, MINUS(1), 0], ENOMEM),
        (MMAP, &[map::HIGHEST, page, PROT_RW, FIXED, MINUS(1), 0], ENOMEM),
        (MMAP, &[MINUS(4096), page, PROT_RW, FIXED, MINUS(1), 0], ENOMEM),
        (MMAP, &[0, page, PROT_RW, FIXED, MINUS(1), 0], ENOMEM),
        (MMAP, &[RW, page, PROT_RW, ANONYMOUS | 0x10_0000, MINUS(1), 0], EEXIST),
        (MMAP, &[HOLE, 3, PROT_RW, ANONYMOUS, MINUS(1), 0], HOLE as i64), // A hint.
        (MUNMAP, &[HOLE, 3], 0),
        (MUNMAP, &[HOLE, page], 0), // Nothing is there.
        (MUNMAP, &[HOLE + 1, page], EINVAL),
        (MUNMAP, &[HOLE, 0], EINVAL),
        (MUNMAP, &[HOLE, u64::MAX], EINVAL),
        (MUNMAP, &[map::DOORBELL, page], EINVAL),
        (MPROTECT, &[HOLE, page, 1], ENOMEM),
        (MPROTECT, &[RW + 1, page, 1], EINVAL),
        (MPROTECT, &[HOLE, 0, 1], 0),
        (MPROTECT, &[RW, page, 7], EACCES),
        (MPROTECT, &[CODE, page, 3], 0), // It was code, and is data now.
        (MPROTECT, &[CODE, page, 7], EACCES),
        (MPROTECT, &[RW, 8 * page, 1], ENOMEM),
        (MPROTECT, &[RW, u64::MAX - page, 1], ENOMEM),
        (MPROTECT, &[map::BOOT_PAGE, page, 3], ENOMEM),
        (MADVISE, &[RW, page, dirty(4)], 0),
        (MADVISE, &[RW + 1, page, 4], EINVAL),
        (MADVISE, &[HOLE, page, 4], ENOMEM),
        (MADVISE, &[RW, page, 14], 0),
        (MADVISE, &[RW, page, 9], EINVAL),
        (MADVISE, &[RW, page, 1000], EINVAL),
        (MADVISE, &[RW, 0, 4], 0),
        (MREMAP, &[RW, 4 * page, 0, 1, 0], EINVAL),
        (MREMAP, &[RW, 4 * page, page, 1 << 5, 0], EINVAL),
        (MREMAP, &[RW, 4 * page, page, 2, HOLE], EINVAL), // Fixed, and may not move.
        (MREMAP, &[RW, 4 * page, 4 * page, 3, RW + page], EINVAL), // Onto itself.
        (MREMAP, &[RW, 4 * page, 4 * page, 3, HOLE + 1], EINVAL),
        (MREMAP, &[HOLE, page, 2 * page, 1, 0], EFAULT),
        (MREMAP, &[RW, 5 * page, 6 * page, 1, 0], EFAULT),
        (MREMAP, &[RW, 4 * page, 1 << 40, 1, 0], ENOMEM),
        (MREMAP, &[RW, 4 * page, 4 * page, 3, map::CONTROL_START], ENOMEM),
        (MREMAP, &[RW, 4 * page, 4 * page, 0, 0], RW as i64),
    ]);
}

#[test]
fn file_calls_answer_like_linux() {
    table(&[
        (READ, &[0, RW, 10], 0), // Nothing comes.
        (READ, &[dirty(0), RW, 10], 0),
        (READ, &[0, HOLE, 10], EFAULT),
        (READ, &[0, RO, 10], EFAULT),
        (READ, &[0, u64::MAX, 10], EFAULT),
        (READ, &[0, HOLE, 0], 0),
        (READ, &[1, RW, 10], EBADF),
        (READ, &[3, RW, 10], EBADF),
        (READ, &[MINUS(1), RW, 10], EBADF),
        (WRITE, &[1, RW, 10], 10),
        (WRITE, &[1, NONE, 10], EFAULT),
        (WRITE, &[1, HOLE, 0], 0),
        (WRITE, &[1, RW, u64::MAX], 4 * 4096),
        (WRITE, &[1, RW_END - 5, 10], 5),
        (WRITE, &[1, u64::MAX, 10], EFAULT),
        (WRITE, &[1, map::TASK_STATE, 10], EFAULT),
        (WRITE, &[0, RW, 10], EBADF),
        (WRITE, &[64, RW, 10], EBADF),
        (WRITEV, &[1, HOLE, 1], EFAULT),
        (WRITEV, &[1, RW, 0], 0),
        (WRITEV, &[1, RW, 1025], EINVAL),
        (WRITEV, &[9, RW, 1], EBADF),
        (READV, &[0, HOLE, 1], EFAULT),
        (READV, &[0, RW, MINUS(1)], EINVAL),
        (LSEEK, &[0, 0, 0], ESPIPE),
        (LSEEK, &[5, 0, 0], EBADF),
        (IOCTL, &[1, 0x5401, RW], ENOTTY),
        (IOCTL, &[7, 0x5401, RW], EBADF),
        (FSTAT, &[1, RW], 0),
        (FSTAT, &[1, RO], EFAULT),
        (FSTAT, &[3, RW], EBADF),
        (OPEN, &[RO, 0, 0], ENOENT),
        (OPEN, &[HOLE, 0, 0], EFAULT),
        (STAT, &[u64::MAX, RW], EFAULT),
        (OPENAT, &[MINUS(100), RO, 0], ENOENT),
        (NEWFSTATAT, &[1, RO, RW, dirty(0x1000)], 0), // An empty path.
        (NEWFSTATAT, &[1, RO, RW, 0], ENOENT),
        (GETCWD, &[RW, 1], ERANGE),
        (GETCWD, &[RW, 2], 2),
        (DUP, &[1], 3),
        (DUP, &[9], EBADF),
        (DUP2, &[1, 1], 1),
        (DUP2, &[1, 63], 63),
        (DUP2, &[1, 64], EBADF),
        (DUP2, &[9, 1], EBADF),
        (DUP3, &[1, 1, 0], EINVAL),
        (DUP3, &[1, 5, dirty(0o2_000_000)], 5),
        (DUP3, &[1, 5, 1], EINVAL),
        (DUP3, &[9, 5, 0], EBADF),
        (FCNTL, &[1, dirty(0), 60], 60),
        (FCNTL, &[1, 0, 64], EINVAL),
        (FCNTL, &[1, 3, 0], 1),
        (FCNTL, &[0, 3, 0], 0),
        (FCNTL, &[1, 77, 0], EINVAL),
        (FCNTL, &[9, 1, 0], EBADF),
        (CLOSE, &[60], 0),
        (CLOSE, &[60], EBADF),
        (CLOSE, &[MINUS(1)], EBADF),
        (POLL, &[RW, 1 << 20, 0], EINVAL),
        (POLL, &[HOLE, 1, 0], EFAULT),
        (POLL, &[0, 0, 0], 0),
        (POLL, &[0, dirty(0), 1], 0),
    ]);
}

#[test]
fn other_calls_answer_like_linux() {
    table(&[
        (GETPID, &[], 1),
        (GETTID, &[], 1),
        (GETUID, &[], 1000),
        (WAIT4, &[MINUS(1), RW], ECHILD),
        (UNAME, &[RO], EFAULT),
        (UNAME, &[RW_END - 389], EFAULT),
        (UNAME, &[RW_END - 390], 0),
        (RSEQ, &[RW, 32, 0, 0], ENOSYS),
        (1000, &[], ENOSYS),
        (u64::MAX, &[], ENOSYS),
        (KILL, &[1, 0], 0),
        (KILL, &[0, dirty(17)], 0),
        (KILL, &[2, 0], ESRCH),
        (KILL, &[1, 65], EINVAL),
        (KILL, &[1, MINUS(1)], EINVAL),
        (TKILL, &[0, 6], EINVAL),
        (TKILL, &[5, 6], ESRCH),
        (TGKILL, &[1, 0, 6], EINVAL),
        (TGKILL, &[4, 1, 6], ESRCH),
        (TGKILL, &[1, 1, 0], 0),
        (RT_SIGACTION, &[0, 0, 0, 8], EINVAL),
        (RT_SIGACTION, &[64, 0, RW, 8], 0),
        (RT_SIGACTION, &[65, 0, RW, 8], EINVAL),
        (RT_SIGACTION, &[u64::MAX, 0, RW, 8], EINVAL),
        (RT_SIGACTION, &[9, RW, 0, 8], EINVAL),
        (RT_SIGACTION, &[9, 0, RW, 8], 0),
        (RT_SIGACTION, &[6, 0, RW, 4], EINVAL),
        (RT_SIGACTION, &[6, HOLE, 0, 8], EFAULT),
        (RT_SIGPROCMASK, &[9, RW, 0, 8], EINVAL),
        (RT_SIGPROCMASK, &[9, 0, RW, 8], 0),
        (RT_SIGPROCMASK, &[0, RW, 0, 9], EINVAL),
        (SIGALTSTACK, &[HOLE, 0], EFAULT),
        (SIGALTSTACK, &[0, RO], EFAULT),
        (PRCTL, &[15, RW], 0),
        (PRCTL, &[38, 1], EINVAL),
        (ARCH_PRCTL, &[0x1002, map::HIGHEST], EPERM),
        (ARCH_PRCTL, &[0x1002, u64::MAX], EPERM),
        (ARCH_PRCTL, &[0x1001, 0], EINVAL),
        (ARCH_PRCTL, &[dirty(0x1002), 0x1234], 0),
        (PRLIMIT64, &[0, 16, 0, RW], EINVAL),
        (PRLIMIT64, &[7, 3, 0, RW], ESRCH),
        (PRLIMIT64, &[0, 3, RW, 0], EPERM),
        (PRLIMIT64, &[0, 3, HOLE, 0], EFAULT),
        (PRLIMIT64, &[0, dirty(3), 0, RW], 0),
        (GETRLIMIT, &[7, RW], 0),
        (SCHED_GETAFFINITY, &[0, 7, RW], EINVAL),
        (SCHED_GETAFFINITY, &[0, 128, RW], 8),
        (CLOCK_GETTIME, &[dirty(0), RW], 0),
        (CLOCK_GETTIME, &[1, RO], EFAULT),
        (CLOCK_GETTIME, &[8, RW], EINVAL),
        (CLOCK_GETTIME, &[MINUS(6), RW], EINVAL),
        (CLOCK_GETRES, &[1, 0], 0),
        (CLOCK_GETRES, &[99, 0], EINVAL),
        (GETTIMEOFDAY, &[0, 0], 0),
        (GETTIMEOFDAY, &[HOLE, 0], EFAULT),
        (TIME, &[HOLE], EFAULT),
        (NANOSLEEP, &[HOLE, 0], EFAULT),
        (NANOSLEEP, &[u64::MAX - 7, 0], EFAULT),
        (CLOCK_NANOSLEEP, &[77, 0, RW, 0], EINVAL),
        (GETRANDOM, &[RW, 1 << 40, 0], 4 * 4096),
        (GETRANDOM, &[RW, 64, 8], EINVAL),
        (GETRANDOM, &[RO, 64, 0], EFAULT),
        (GETRANDOM, &[HOLE, 0, 0], 0),
        (GETRANDOM, &[u64::MAX, 2, 0], EFAULT),
        (FUTEX, &[HOLE, 0, 0], EFAULT),
        (FUTEX, &[RW + 2, 0, 0], EINVAL),
        (FUTEX, &[RO, dirty(0), 1], EAGAIN),
        (FUTEX, &[RO, 128, 1, HOLE], EAGAIN),
        (FUTEX, &[RO, 128 + 9, 0, HOLE], EFAULT),
        (FUTEX, &[RO, 129, 1], 0),
        (FUTEX, &[RO, 4, 1], ENOSYS),
    ]);
}

#[test]
fn reading_touches_only_what_was_read() {
    let guest = Guest::with(|builder| builder.stdin(Input::bytes(*b"some words and more")));
    guest.write(RW, &[0x55; 64]);
    assert_eq!(guest.call(READ, &[0, RW, 5]), 5);
    assert_eq!(guest.read(RW, 7), b"some U\x55"[..5].iter().copied().chain([0x55, 0x55]).collect::<Vec<u8>>());
    // The buffer ends before the input does: a short count, and nothing is lost.
    assert_eq!(guest.call(READ, &[0, RW_END - 4, 4096]), 4);
    assert_eq!(guest.read(RW_END - 4, 4), b"word");
    assert_eq!(guest.call(READ, &[0, HOLE, 4096]), EFAULT);
    guest.write_words(RW, &[HOLE, 0, RW + 100, 20, 0, 0]);
    assert_eq!(guest.call(READV, &[0, RW, 3]), 10);
    assert_eq!(guest.read(RW + 100, 10), b"s and more");
    assert_eq!(guest.read(RW + 110, 1), [0]);
    assert_eq!(guest.call(READV, &[0, RW, 3]), 0);
    assert_eq!(guest.end().unwrap(), 7);
}

#[test]
fn writing_goes_as_far_as_it_can() {
    let (output, captured) = Output::capture(20);
    let guest = Guest::with(|builder| builder.stdout(output));
    guest.write(RW_END - 4, b"abcd");
    assert_eq!(guest.call(WRITE, &[1, RW_END - 4, 8]), 4);
    guest.write_words(RW, &[RW_END - 4, 2, HOLE, 0, RW_END - 2, 2, HOLE, 1]);
    assert_eq!(guest.call(WRITEV, &[1, RW, 4]), 4);
    assert_eq!(guest.call(WRITEV, &[1, RW + 48, 1]), EFAULT);
    assert_eq!(captured.text(), "abcdabcd");
    assert_eq!(guest.call(WRITE, &[1, RW, 4096]), 12);
    assert_eq!(guest.call(WRITE, &[1, RW, 4096]), ENOSPC);
    assert_eq!(guest.call(WRITE, &[2, RW, 4096]), 4096);
    // Lengths that are not true.
    guest.write_words(RW, &[RW, u64::MAX, RW, u64::MAX]);
    assert_eq!(guest.call(WRITEV, &[2, RW, 2]), 4 * 4096);
    assert_eq!(guest.end().unwrap(), 7);
}

#[test]
fn descriptors_run_out() {
    let guest = Guest::new();
    for want in 3..64 {
        assert_eq!(guest.call(DUP, &[2]), want);
    }
    assert_eq!(guest.call(DUP, &[2]), EMFILE);
    assert_eq!(guest.call(FCNTL, &[2, 0, 10]), EMFILE);
    assert_eq!(guest.call(CLOSE, &[0]), 0);
    assert_eq!(guest.call(DUP, &[2]), 0);
}

#[test]
fn a_path_ends_somewhere() {
    let guest = Guest::new();
    guest.write(RW, &[b'a'; 4 * 4096]);
    assert_eq!(guest.call(OPEN, &[RW, 0, 0]), ENAMETOOLONG);
    assert_eq!(guest.call(OPEN, &[RW_END - 4096, 0, 0]), ENAMETOOLONG);
    assert_eq!(guest.call(OPEN, &[RW_END - 4095, 0, 0]), EFAULT);
    guest.write(RW_END - 1, &[0]);
    assert_eq!(guest.call(OPEN, &[RW_END - 4096, 0, 0]), ENOENT);
}

#[test]
fn poll_says_what_is_ready() {
    let guest = Guest::new();
    let entry = |fd: u32, events: u64| u64::from(fd) | events << 32 | 0xffff << 48;
    guest.write_words(RW, &[entry(0, 1), entry(0, 4), entry(1, 4), entry(2, 1), entry(9, 1), entry(u32::MAX, 1)]);
    assert_eq!(guest.call(POLL, &[RW, 6, 0]), 3);
    let found: Vec<u64> = (0..6).map(|n| guest.word(RW + 8 * n) >> 48).collect();
    assert_eq!(found, [1, 0, 4, 0, 0x20, 0]);
    assert_eq!(guest.call(PPOLL, &[RW, 6, 0, 0]), 3);
    guest.write_words(RW + 64, &[0, 1]);
    assert_eq!(guest.call(PPOLL, &[0, 0, RW + 64, 0]), 0);
}

#[test]
fn the_break_moves_and_its_memory_is_zero() {
    let guest = Guest::new();
    let start = guest.call(BRK, &[0]) as u64;
    for wish in [1, start - 1, u64::MAX, start + (1 << 30), map::CONTROL_START] {
        assert_eq!(guest.call(BRK, &[wish]) as u64, start, "{wish:#x}");
    }
    assert_eq!(guest.call(BRK, &[start + 3 * PAGE_BYTES]) as u64, start + 3 * PAGE_BYTES);
    let inside = (start + PAGE_BYTES) & !(PAGE_BYTES - 1);
    guest.write(inside, b"dirt");
    assert_eq!(guest.call(BRK, &[start]) as u64, start);
    assert_eq!(guest.call(BRK, &[start + 3 * PAGE_BYTES + 1]) as u64, start + 3 * PAGE_BYTES + 1);
    assert_eq!(guest.read(inside, 4), [0; 4]);
    // Something in its way.
    let fixed = guest.call(MMAP, &[inside + 16 * PAGE_BYTES, PAGE_BYTES, PROT_RW, FIXED, MINUS(1), 0]);
    assert_eq!(fixed as u64, inside + 16 * PAGE_BYTES);
    assert_eq!(guest.call(BRK, &[start + 64 * PAGE_BYTES]) as u64, start + 3 * PAGE_BYTES + 1);
}

#[test]
fn remapped_memory_keeps_its_content() {
    let guest = Guest::new();
    guest.write(RW, b"first");
    guest.write(RW_END - 4, b"last");
    // In place, upwards and down again.
    assert_eq!(guest.call(MREMAP, &[RW, 4 * PAGE_BYTES, 100 * PAGE_BYTES, 0, 0]) as u64, RW);
    guest.write(RW + 99 * PAGE_BYTES, b"tail");
    assert_eq!(guest.call(MREMAP, &[RW, 100 * PAGE_BYTES, 4 * PAGE_BYTES, 0, 0]) as u64, RW);
    // Something in its way: elsewhere.
    assert_eq!(guest.call(MMAP, &[RW_END, PAGE_BYTES, PROT_RW, FIXED, MINUS(1), 0]) as u64, RW_END);
    assert_eq!(guest.call(MPROTECT, &[RW_END, PAGE_BYTES, 1]), 0);
    assert_eq!(guest.call(MREMAP, &[RW, 4 * PAGE_BYTES, 9 * PAGE_BYTES, 0, 0]), ENOMEM);
    let moved = guest.call(MREMAP, &[RW, 4 * PAGE_BYTES, 9 * PAGE_BYTES, 1, 0]) as u64;
    assert!((1 << 40..map::MMAP_END).contains(&moved), "{moved:#x}");
    assert_eq!((guest.read(moved, 5), guest.read(moved + RW_END - RW - 4, 4)), (b"first".to_vec(), b"last".to_vec()));
    guest.write(moved + 8 * PAGE_BYTES, b"new");
    assert_eq!(guest.call(WRITE, &[1, RW, 1]), EFAULT);
    // To a given place, over what is there, and smaller.
    assert_eq!(guest.call(MREMAP, &[moved, 9 * PAGE_BYTES, PAGE_BYTES, 3, RO]) as u64, RO);
    assert_eq!(guest.read(RO, 5), b"first");
    assert_eq!(guest.call(MUNMAP, &[moved, 9 * PAGE_BYTES]), 0);
}

#[test]
fn a_reservation_stays_one_when_it_grows() {
    const TERA: u64 = 1 << 40;
    let guest = Guest::new();
    let at = guest.call(MMAP, &[0, TERA, PROT_RW, ANONYMOUS | 0x4000, MINUS(1), 0]) as u64;
    guest.write(at + TERA - 1, b"!");
    let moved = guest.call(MREMAP, &[at, TERA, 3 * TERA, 1, 0]) as u64;
    assert_eq!(guest.read(moved + TERA - 1, 2), b"!\0");
    // It is one piece, and can be moved as one.
    assert_eq!(guest.call(MREMAP, &[moved, 3 * TERA, 2 * TERA, 3, 1 << 44]), 1 << 44);
    assert_eq!(guest.read((1 << 44) + TERA - 1, 1), b"!");
    assert_eq!(guest.call(MUNMAP, &[1 << 44, 2 * TERA]), 0);
}

#[test]
fn rights_hold_for_the_hosts_copies_too() {
    let guest = Guest::new();
    guest.write(RW, b"kept");
    assert_eq!(guest.call(MPROTECT, &[RW, PAGE_BYTES, 0]), 0);
    assert_eq!(guest.call(WRITE, &[1, RW, 4]), EFAULT);
    assert_eq!(guest.call(GETRANDOM, &[RW, 4, 0]), EFAULT);
    assert_eq!(guest.call(MPROTECT, &[RW, PAGE_BYTES, 1]), 0);
    assert_eq!(guest.call(WRITE, &[1, RW, 4]), 4);
    assert_eq!(guest.call(GETRANDOM, &[RW, 4, 0]), EFAULT);
    assert_eq!(guest.call(MPROTECT, &[RW, PAGE_BYTES, 5]), 0);
    assert_eq!(guest.call(GETRANDOM, &[RW, 4, 0]), EFAULT);
    assert_eq!(guest.call(MPROTECT, &[RW, PAGE_BYTES, 3]), 0);
    assert_eq!(guest.read(RW, 4), b"kept");
    assert_eq!(guest.call(MADVISE, &[RW, PAGE_BYTES, 4]), 0);
    assert_eq!(guest.read(RW, 4), [0; 4]);
    assert_eq!(guest.call(MPROTECT, &[RW, PAGE_BYTES, 1]), 0);
    assert!(guest.ask(Request::Write(RW, vec![1])).is_none());
    assert_eq!(guest.cause(), Cause::WriteToReadOnly);
}

#[test]
fn huge_numbers_cost_nothing() {
    patiently(|| {
        let guest = Guest::new();
        const LOW_HALF: u64 = map::WINDOW_START - map::LOWEST;
        let noreserve = ANONYMOUS | 0x4000;
        for _ in 0..200 {
            let at = guest.call(MMAP, &[0, 100 << 40, PROT_RW, noreserve, MINUS(1), 0]) as u64;
            guest.write(at + (50 << 40), b"x");
            assert_eq!(guest.call(MPROTECT, &[at, 100 << 40, 1]), 0);
            assert_eq!(guest.call(MADVISE, &[at, 100 << 40, 4]), 0);
            assert_eq!(guest.call(MUNMAP, &[map::LOWEST, LOW_HALF]), 0);
            assert_eq!(guest.call(MMAP, &[RW, PAGE_BYTES, PROT_RW, FIXED, MINUS(1), 0]) as u64, RW);
        }
        assert_eq!(guest.end().unwrap(), 7);
    });
}

#[test]
fn a_time_is_told() {
    let guest = Guest::new();
    assert_eq!(guest.call(CLOCK_GETTIME, &[1, RW]), 0);
    let (first, nanoseconds) = (guest.word(RW), guest.word(RW + 8));
    assert!(first < 3600 && nanoseconds < 1_000_000_000, "it counts from the sandbox's creation");
    assert_eq!(guest.call(CLOCK_GETTIME, &[0, RW]), 0);
    let now = guest.word(RW);
    assert!(now > 1_700_000_000 && guest.call(TIME, &[0]) as u64 - now < 60);
    for timespec in [[MINUS(1), 0], [0, 1_000_000_000], [0, u64::MAX], [1 << 63, 0]] {
        guest.write_words(RW, &timespec);
        assert_eq!(guest.call(NANOSLEEP, &[RW, 0]), EINVAL, "{timespec:x?}");
        assert_eq!(guest.call(CLOCK_NANOSLEEP, &[1, 1, RW, 0]), EINVAL, "{timespec:x?}");
    }
    guest.write_words(RW, &[0, 1000]);
    assert_eq!(guest.call(NANOSLEEP, &[RW, 0]), 0);
    assert_eq!(guest.call(CLOCK_NANOSLEEP, &[1, 1, RW, 0]), 0); // In the past.
    assert_eq!(guest.call(FUTEX, &[RO, 0, 0, RW]), ETIMEDOUT);
}

#[test]
fn no_sleep_outlasts_the_deadline() {
    patiently(|| {
        let forever = [i64::MAX as u64, 999_999_999];
        let sleeps: [(u64, &[u64]); 7] = [
            (NANOSLEEP, &[RW, 0]),
            (CLOCK_NANOSLEEP, &[0, 0, RW, 0]),
            (CLOCK_NANOSLEEP, &[1, 1, RW, 0]),
            (FUTEX, &[RO, 0, 0, RW]),
            (FUTEX, &[RO, 9 | 256, 0, RW]),
            (PPOLL, &[0, 0, RW, 0]),
            (POLL, &[0, 0, i32::MAX as u64]),
        ];
        for (number, arguments) in sleeps {
            let guest = Guest::with(|builder| builder.timeout(Duration::from_millis(100)));
            guest.write_words(RW, &forever);
            let start = Instant::now();
            assert_eq!(guest.try_call(number, arguments), None);
            assert_eq!(guest.end().unwrap_err().kind(), ErrorKind::TimedOut, "{:?}", linux::name(number));
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    });
}

#[test]
fn waiting_for_nobody_is_a_deadlock() {
    for (number, arguments) in [(FUTEX, &[RO, 0, 0, 0][..]), (POLL, &[0, 0, MINUS(1)]), (PPOLL, &[0, 0, 0, 0])] {
        let guest = Guest::new();
        assert_eq!(guest.try_call(number, arguments), None);
        assert_eq!(guest.cause(), Cause::Deadlock);
    }
}

#[test]
fn deadly_signals_end_the_guest_and_others_do_not() {
    for (number, arguments) in [(KILL, &[1, 6][..]), (KILL, &[0, 6]), (TKILL, &[1, 6]), (TGKILL, &[1, 1, dirty(6)])] {
        let guest = Guest::new();
        assert_eq!(guest.try_call(number, arguments), None);
        assert_eq!(guest.cause(), Cause::Abort);
    }
    let guest = Guest::new();
    guest.write_words(RW, &[1, 0, 0, 0]); // SIG_IGN
    assert_eq!(guest.call(RT_SIGACTION, &[15, RW, 0, 8]), 0);
    assert_eq!(guest.call(RT_SIGACTION, &[15, 0, RW + 64, 8]), 0);
    assert_eq!(guest.word(RW + 64), 1);
    assert_eq!(guest.call(KILL, &[1, 15]), 0);
    assert_eq!(guest.try_call(KILL, &[1, 64]), None);
    assert_eq!(guest.cause(), Cause::Signal(64));
}

#[test]
fn a_signal_mask_is_kept_but_for_what_cannot_be_masked() {
    let guest = Guest::new();
    guest.write_words(RW, &[u64::MAX]);
    assert_eq!(guest.call(RT_SIGPROCMASK, &[2, RW, 0, 8]), 0);
    assert_eq!(guest.call(RT_SIGPROCMASK, &[1, 0, RW + 8, 8]), 0);
    assert_eq!(guest.word(RW + 8), !(1 << 8 | 1 << 18));
}

#[test]
fn an_exit_code_is_a_byte() {
    for (code, want) in [(0, 0), (1, 1), (256, 0), (u64::MAX, 255), (0x1_0000_0003, 3)] {
        let guest = Guest::new();
        assert_eq!(guest.try_call(EXIT, &[code]), None);
        assert_eq!(guest.end().unwrap(), want);
    }
}

#[test]
fn the_thread_pointer_is_set() {
    let guest = Guest::new();
    assert_eq!(guest.call(ARCH_PRCTL, &[0x1002, RW + 8]), 0);
    assert_eq!(guest.registers().fs_base, RW + 8);
    assert_eq!(guest.call(ARCH_PRCTL, &[0x1002, 1 << 47]), EPERM);
    assert_eq!(guest.registers().fs_base, RW + 8);
}

#[test]
fn memory_that_is_refused_explains_an_abort() {
    let guest = Guest::new();
    assert_eq!(guest.call(MMAP, &[0, 1 << 40, PROT_RW, ANONYMOUS, MINUS(1), 0]), ENOMEM);
    assert_eq!(guest.try_call(KILL, &[1, 6]), None);
    assert_eq!(guest.cause(), Cause::OutOfMemory);
}

/// Every number that is answered, and a few that are not.
fn numbers() -> impl Strategy<Value = u64> {
    let known: Vec<u64> = (0..500).filter(|number| linux::name(*number).is_some()).collect();
    let memory = vec![MMAP, MPROTECT, MUNMAP, BRK, MREMAP, MADVISE];
    prop_oneof![10 => select(known), 6 => select(memory), 1 => any::<u64>()]
        .prop_filter("it would end the program", |number| !matches!(*number, EXIT | EXIT_GROUP))
}

fn arguments() -> impl Strategy<Value = u64> {
    let small = prop_oneof![0..20u64, select(vec![63, 64, 65, 1024, 1025, 4095, 4096, 4097, 8192])];
    let sizes = (0..48u32).prop_map(|bits| 1 << bits);
    let flags = select(vec![0x22, 0x32, 0x31, 0x4022, 0x4032, 0x8022, 0xc022, 0x10_0022, 0x1002]);
    let places = select(vec![
        RW,
        RW_END,
        RO,
        NONE,
        CODE,
        HOLE,
        map::LOWEST,
        map::WINDOW_START,
        map::IMAGE_END,
        map::CONTROL_START,
        map::DOORBELL,
        map::TRANSPORT_END,
        map::WINDOW_END,
        map::HIGHEST,
        0x20_0000,
        1 << 30,
        1 << 39,
    ]);
    let near = select(vec![0, 0, 1, 8, 4095, 4096, 8192, MINUS(1), MINUS(8), MINUS(16), MINUS(4096), MINUS(8192)]);
    let edges = select(vec![
        u64::MAX,
        MINUS(2),
        MINUS(4096),
        i64::MIN as u64,
        i64::MAX as u64,
        u64::from(u32::MAX),
        1 << 31,
        (1 << 31) - 1,
        1 << 32,
        1 << 47,
    ]);
    prop_oneof![
        6 => small,
        2 => sizes,
        3 => flags,
        8 => (places, near).prop_map(|(place, offset): (u64, u64)| place.wrapping_add(offset)),
        2 => edges,
        1 => any::<u64>(),
    ]
}

/// Whether a call could sleep for longer than a moment.
fn sleeps(guest: &Guest, number: u64, arguments: &[u64]) -> bool {
    let timespec = match number {
        NANOSLEEP => arguments[0],
        CLOCK_NANOSLEEP | PPOLL => arguments[2],
        FUTEX => arguments[3],
        POLL => return arguments[2] as i32 > 1,
        _ => return false,
    };
    // It is looked at by a call, since not all of it may be there.
    if guest.try_call(WRITE, &[2, timespec, 16]) != Some(16) {
        return false;
    }
    let moment = guest.read(timespec, 16);
    moment[..8] != [0; 8] || moment[12..] != [0; 4]
}

#[test]
fn no_sequence_of_calls_does_harm() {
    patiently(|| {
        let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let calls = proptest::collection::vec((numbers(), proptest::array::uniform6(arguments())), 1..150);
        runner
            .run(&calls, |calls| {
                let guest = Guest::with(|builder| builder.memory_bytes(4 << 20).stdin(Input::bytes(vec![0; 100_000])));
                for (number, arguments) in calls {
                    if sleeps(&guest, number, &arguments) {
                        continue;
                    }
                    let Some(result) = guest.try_call(number, &arguments) else {
                        let may_end = matches!(number, KILL | TKILL | TGKILL | FUTEX | POLL | PPOLL);
                        let error = guest.end().unwrap_err();
                        prop_assert!(may_end, "{:?}: {error}", linux::name(number));
                        prop_assert_eq!(error.kind(), ErrorKind::GuestStopped);
                        return Ok(());
                    };
                    prop_assert!(result >= 0 || (-133..0).contains(&result), "{:?}: {result}", linux::name(number));
                }
                prop_assert_eq!(guest.call(GETPID, &[]), 1);
                prop_assert_eq!(guest.end().unwrap(), 7);
                Ok(())
            })
            .unwrap();
    });
}
