//! System calls as lines, in the manner of `strace`, and their counts.
//!
//! Only numbers are shown: what a pointer points at is the guest's and may have changed since.

use std::collections::BTreeMap;

use coracle::linux::{SystemCall, name};

/// The error number of a call that nobody answers.
const ENOSYS: i64 = 38;

/// What one program asked for.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    calls: BTreeMap<u64, u64>,
    unanswered: BTreeMap<u64, u64>,
}

impl Trace {
    /// Counts a call.
    pub(crate) fn count(&mut self, call: &SystemCall) {
        *self.calls.entry(call.number).or_default() += 1;
        if call.result == Some(-ENOSYS) {
            *self.unanswered.entry(call.number).or_default() += 1;
        }
    }

    /// All calls, the most frequent first, as one line.
    pub(crate) fn counts(&self) -> String {
        let total: u64 = self.calls.values().sum();
        format!("{total} system call{}{}", if total == 1 { "" } else { "s" }, list(": ", &self.calls))
    }

    /// Calls that got `ENOSYS`, as one line, if there were any.
    pub(crate) fn unanswered(&self) -> Option<String> {
        let list = list("", &self.unanswered);
        (!list.is_empty()).then(|| format!("system calls without an answer (ENOSYS): {list}"))
    }
}

/// `start`, and `write 3, brk`; nothing at all without calls.
fn list(start: &str, counts: &BTreeMap<u64, u64>) -> String {
    let mut sorted: Vec<_> = counts.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count)); // Stable: equal counts stay in order of numbers.
    let items: Vec<String> = sorted
        .into_iter()
        .map(|(number, count)| match count {
            1 => call_name(*number),
            count => format!("{} {count}", call_name(*number)),
        })
        .collect();
    if items.is_empty() { String::new() } else { format!("{start}{}", items.join(", ")) }
}

/// `mmap(0x0, 0x1000, 0x3, 0x22, 0xffffffffffffffff, 0x0) = 0x7fff7ffff000`.
pub(crate) fn line(call: &SystemCall) -> String {
    render(&call_name(call.number), &call.arguments, call.result)
}

fn render(name: &str, arguments: &[u64; 6], result: Option<i64>) -> String {
    let arguments: Vec<String> =
        arguments[..argument_count(name)].iter().map(|argument| format!("{argument:#x}")).collect();
    let result = match result {
        None => "?".to_owned(), // It did not go on.
        Some(errno @ -4095..=-1) => match errno_name(errno) {
            Some(name) => format!("{errno} {name}"),
            None => errno.to_string(),
        },
        Some(address) if matches!(name, "brk" | "mmap" | "mremap") => format!("{address:#x}"),
        Some(value) => value.to_string(),
    };
    format!("{name}({}) = {result}", arguments.join(", "))
}

fn call_name(number: u64) -> String {
    name(number).map_or_else(|| format!("syscall_{number}"), str::to_owned)
}

/// How many of the six argument registers a call uses. Six, if unknown: better too much than too little.
#[rustfmt::skip]
fn argument_count(name: &str) -> usize {
    match name {
        "sched_yield" | "getpid" | "getuid" | "getgid" | "geteuid" | "getegid" | "getppid" | "getpgrp" | "gettid"
        | "pause" | "fork" | "vfork" | "rt_sigreturn" | "setsid" => 0,
        "close" | "brk" | "dup" | "exit" | "uname" | "chdir" | "unlink" | "umask" | "time" | "set_tid_address"
        | "exit_group" | "pipe" | "fsync" | "rmdir" | "sysinfo" | "times" | "setuid" | "epoll_create1" => 1,
        "stat" | "fstat" | "lstat" | "munmap" | "access" | "dup2" | "nanosleep" | "kill" | "getcwd" | "mkdir"
        | "gettimeofday" | "getrlimit" | "sigaltstack" | "arch_prctl" | "tkill" | "clock_gettime" | "clock_getres"
        | "set_robust_list" | "flock" | "ftruncate" | "rename" | "chmod" | "getrusage" | "getgroups" | "statfs"
        | "rt_sigsuspend" | "timerfd_create" | "eventfd2" | "pipe2" | "memfd_create" | "clone3" | "io_uring_setup"
        | "pkey_alloc" => 2,
        "read" | "write" | "open" | "poll" | "lseek" | "mprotect" | "ioctl" | "readv" | "writev" | "madvise" | "fcntl"
        | "readlink" | "sched_getaffinity" | "tgkill" | "mkdirat" | "unlinkat" | "faccessat" | "dup3" | "getrandom"
        | "msync" | "mincore" | "socket" | "connect" | "execve" | "chown" | "getdents64" | "timer_create" | "seccomp"
        | "membarrier" | "close_range" => 3,
        "rt_sigaction" | "rt_sigprocmask" | "wait4" | "clock_nanosleep" | "openat" | "newfstatat" | "readlinkat"
        | "prlimit64" | "rseq" | "faccessat2" | "pread64" | "pwrite64" | "epoll_wait" | "openat2" => 4,
        "mremap" | "prctl" | "ppoll" | "select" | "clone" | "execveat" | "statx" => 5,
        _ => 6,
    }
}

/// The name of a negated error number (`asm-generic/errno-base.h` and the first of `errno.h`).
fn errno_name(errno: i64) -> Option<&'static str> {
    #[rustfmt::skip]
    const NAMES: [&str; 38] = [
        "EPERM", "ENOENT", "ESRCH", "EINTR", "EIO", "ENXIO", "E2BIG", "ENOEXEC", "EBADF", "ECHILD", "EAGAIN", "ENOMEM",
        "EACCES", "EFAULT", "ENOTBLK", "EBUSY", "EEXIST", "EXDEV", "ENODEV", "ENOTDIR", "EISDIR", "EINVAL", "ENFILE",
        "EMFILE", "ENOTTY", "ETXTBSY", "EFBIG", "ENOSPC", "ESPIPE", "EROFS", "EMLINK", "EPIPE", "EDOM", "ERANGE",
        "EDEADLK", "ENAMETOOLONG", "ENOLCK", "ENOSYS",
    ];
    match -errno {
        110 => Some("ETIMEDOUT"),
        number => NAMES.get(usize::try_from(number).ok()?.checked_sub(1)?).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_have_their_names() {
        for (errno, want) in [(1, "EPERM"), (22, "EINVAL"), (32, "EPIPE"), (34, "ERANGE"), (38, "ENOSYS")] {
            assert_eq!(errno_name(-errno), Some(want));
        }
        assert_eq!((errno_name(0), errno_name(-39), errno_name(i64::MIN + 1)), (None, None, None));
    }

    #[test]
    fn lines_are_like_straces() {
        let anonymous = [0, 0x1000, 3, 0x22, u64::MAX, 0];
        let check = |name: &str, result, want: &str| assert_eq!(render(name, &anonymous, result), want);
        check("mmap", Some(0x7000), "mmap(0x0, 0x1000, 0x3, 0x22, 0xffffffffffffffff, 0x0) = 0x7000");
        check("write", Some(5), "write(0x0, 0x1000, 0x3) = 5");
        check("openat", Some(-2), "openat(0x0, 0x1000, 0x3, 0x22) = -2 ENOENT");
        check("exit_group", None, "exit_group(0x0) = ?");
        check("getpid", Some(1), "getpid() = 1");
    }

    #[test]
    fn unknown_calls_show_every_register() {
        assert_eq!((argument_count("mmap"), argument_count("syscall_9999")), (6, 6));
        assert_eq!(call_name(9999), "syscall_9999");
    }

    #[test]
    fn the_most_frequent_calls_come_first() {
        assert_eq!(list(": ", &BTreeMap::from([(0, 1), (1, 3), (12, 1)])), ": write 3, read, brk");
        assert_eq!(list(": ", &BTreeMap::new()), "");
        assert_eq!(Trace::default().unanswered(), None);
    }
}
