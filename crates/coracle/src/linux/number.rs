//! System-call numbers of Linux x86-64 (`asm/unistd_64.h`).

/// Defines a constant for each call that is answered, and the names of these and of some that are not.
macro_rules! numbers {
    (answered { $($constant:ident $answered:literal $number:literal,)* } other { $($other:literal $other_number:literal,)* }) => {
        $(pub(super) const $constant: u64 = $number;)*

        /// The name of a system call, if it is a common one.
        pub const fn name(number: u64) -> Option<&'static str> {
            Some(match number {
                $($number => $answered,)*
                $($other_number => $other,)*
                _ => return None,
            })
        }
    };
}

#[rustfmt::skip]
numbers! {
    answered {
    READ "read" 0, WRITE "write" 1, OPEN "open" 2, CLOSE "close" 3, STAT "stat" 4, FSTAT "fstat" 5, LSTAT "lstat" 6,
    POLL "poll" 7, LSEEK "lseek" 8, MMAP "mmap" 9, MPROTECT "mprotect" 10, MUNMAP "munmap" 11, BRK "brk" 12,
    RT_SIGACTION "rt_sigaction" 13, RT_SIGPROCMASK "rt_sigprocmask" 14, IOCTL "ioctl" 16, READV "readv" 19,
    WRITEV "writev" 20, ACCESS "access" 21, SCHED_YIELD "sched_yield" 24, MREMAP "mremap" 25, MADVISE "madvise" 28,
    DUP "dup" 32, DUP2 "dup2" 33, NANOSLEEP "nanosleep" 35, GETPID "getpid" 39, EXIT "exit" 60, WAIT4 "wait4" 61,
    KILL "kill" 62, UNAME "uname" 63, FCNTL "fcntl" 72, GETCWD "getcwd" 79, CHDIR "chdir" 80, MKDIR "mkdir" 83,
    UNLINK "unlink" 87, READLINK "readlink" 89, UMASK "umask" 95, GETTIMEOFDAY "gettimeofday" 96,
    GETRLIMIT "getrlimit" 97, GETUID "getuid" 102, GETGID "getgid" 104, GETEUID "geteuid" 107, GETEGID "getegid" 108,
    GETPPID "getppid" 110, GETPGRP "getpgrp" 111, SIGALTSTACK "sigaltstack" 131, PRCTL "prctl" 157,
    ARCH_PRCTL "arch_prctl" 158, GETTID "gettid" 186, TKILL "tkill" 200, TIME "time" 201, FUTEX "futex" 202,
    SCHED_GETAFFINITY "sched_getaffinity" 204, SET_TID_ADDRESS "set_tid_address" 218,
    CLOCK_GETTIME "clock_gettime" 228, CLOCK_GETRES "clock_getres" 229, CLOCK_NANOSLEEP "clock_nanosleep" 230,
    EXIT_GROUP "exit_group" 231, TGKILL "tgkill" 234, OPENAT "openat" 257, MKDIRAT "mkdirat" 258,
    NEWFSTATAT "newfstatat" 262, UNLINKAT "unlinkat" 263, READLINKAT "readlinkat" 267, FACCESSAT "faccessat" 269,
    PPOLL "ppoll" 271, SET_ROBUST_LIST "set_robust_list" 273, DUP3 "dup3" 292, PRLIMIT64 "prlimit64" 302,
    GETRANDOM "getrandom" 318, RSEQ "rseq" 334, FACCESSAT2 "faccessat2" 439,
    } other {
    "pread64" 17, "pwrite64" 18, "rt_sigreturn" 15, "pipe" 22, "select" 23, "msync" 26, "mincore" 27, "pause" 34,
    "socket" 41, "connect" 42, "clone" 56, "fork" 57, "vfork" 58, "execve" 59, "flock" 73, "fsync" 74, "ftruncate" 77,
    "rename" 82, "rmdir" 84, "chmod" 90, "chown" 92, "getrusage" 98, "sysinfo" 99, "times" 100, "setuid" 105, "setgid" 106,
    "setsid" 112, "getgroups" 115, "rt_sigsuspend" 130, "statfs" 137, "getdents64" 217, "timer_create" 222,
    "epoll_wait" 232, "inotify_init" 253, "pselect6" 270, "timerfd_create" 283, "eventfd2" 290, "epoll_create1" 291,
    "pipe2" 293, "seccomp" 317, "memfd_create" 319, "execveat" 322, "membarrier" 324, "copy_file_range" 326,
    "pkey_alloc" 330, "statx" 332, "io_uring_setup" 425, "clone3" 435, "close_range" 436, "openat2" 437,
    }
}
