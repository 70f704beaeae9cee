//! A jail around the host side: a seccomp filter for threads that run guests.
//!
//! The walls around a guest are the hypervisor's and this library's. Should both fail, so that a guest runs code in the host process, what
//! a thread can still ask of its kernel decides what that is worth. A thread that entered a [`Jail`] has the few system calls that calls,
//! restores, snapshots and new sandboxes need; no file can be opened, no socket, no program started, and no memory made executable.
//!
//! The filter is the kernel's (`man 2 seccomp`), made by `seccompiler`. It holds for the thread, and for threads that it starts, for ever.
//! Host functions run on the calling thread: what they need beyond is allowed by [`Jail::allow`].

use std::collections::BTreeMap;
use std::fmt;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::error::{Error, ErrorKind};
use crate::{deadline, shells};

/// What a thread may do that runs guests, and nothing else.
///
/// ```
/// # use coracle::{Jail, Sandbox, fake::FakeGuest};
/// # let guest = FakeGuest::new().function("double", |n: u32| Ok::<_, String>(n * 2));
/// let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build()?;
/// let answer = std::thread::spawn(move || {
///     Jail::new().enter()?;
///     assert!(std::fs::read("/etc/passwd").is_err());
///     sandbox.call::<u32>("double", 21u32)
/// });
/// assert_eq!(answer.join().unwrap()?, 42);
/// # Ok::<(), coracle::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a jail holds nobody until a thread enters it"]
pub struct Jail {
    allowed: BTreeMap<i64, Vec<Condition>>,
    on_violation: Violation,
}

/// What becomes of a thread that asks for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// It gets an error, `EPERM`, and goes on. Default.
    Refuse,
    /// The whole process ends at once, by `SIGSYS`.
    KillProcess,
}

/// A condition on one argument.
#[derive(Clone, Copy, Debug)]
enum Condition {
    /// It is an ioctl of KVM's.
    OfKvm(u8),
    /// It has none of these bits.
    Without(u8, u32),
}

/// System calls without a condition. Files can be used that are open, not be opened.
const PLAIN: &[i64] = &[
    // Memory, but for what makes it executable.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Waiting for each other, and for time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    // Streams, stored pages, and the files in memory that new sandboxes map.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_memfd_create,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
    // Random bytes, signals, the end of the thread.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_rseq,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
];

const PROT_EXEC: u32 = libc::PROT_EXEC as u32;
/// The `_IOC_TYPE` field of an ioctl's number, and KVM's.
const IOCTL_TYPE: u32 = 0xff00;
const KVM_TYPE: u32 = 0xae00;

impl Jail {
    /// With what this library needs.
    pub fn new() -> Self {
        let mut allowed: BTreeMap<i64, Vec<Condition>> = PLAIN.iter().map(|number| (*number, Vec::new())).collect();
        for number in [libc::SYS_mmap, libc::SYS_mprotect] {
            allowed.insert(number, vec![Condition::Without(2, PROT_EXEC)]);
        }
        allowed.insert(libc::SYS_ioctl, vec![Condition::OfKvm(1)]);
        Self { allowed, on_violation: Violation::Refuse }
    }

    /// Allows one more system call, by its number (`libc::SYS_…`), whatever its arguments.
    pub fn allow(mut self, system_call: i64) -> Self {
        self.allowed.insert(system_call, Vec::new());
        self
    }

    /// What becomes of a thread that asks for something else.
    pub fn on_violation(mut self, violation: Violation) -> Self {
        self.on_violation = violation;
        self
    }

    /// Puts the calling thread into the jail, for ever. First starts the threads of this library that later work may need, outside.
    ///
    /// # Errors
    /// [`ErrorKind::Host`] when the kernel has no seccomp filters, or refuses; the thread is free then.
    pub fn enter(&self) -> Result<(), Error> {
        let cannot = |why: &dyn fmt::Display| Error::new(ErrorKind::Host, format!("cannot jail this thread: {why}"));
        let program = self.program().map_err(|error| cannot(&error))?;
        deadline::prepare();
        shells::prepare();
        seccompiler::apply_filter(&program).map_err(|error| cannot(&error))
    }

    fn program(&self) -> Result<BpfProgram, seccompiler::BackendError> {
        let mut rules = BTreeMap::new();
        for (number, conditions) in &self.allowed {
            let conditions: Result<Vec<SeccompCondition>, _> =
                conditions.iter().map(|condition| condition.compiled()).collect();
            let conditions = conditions?;
            // No rule at all means: whatever the arguments.
            let rule = if conditions.is_empty() { Vec::new() } else { vec![SeccompRule::new(conditions)?] };
            rules.insert(*number, rule);
        }
        let otherwise = match self.on_violation {
            Violation::Refuse => SeccompAction::Errno(libc::EPERM as u32),
            Violation::KillProcess => SeccompAction::KillProcess,
        };
        SeccompFilter::new(rules, otherwise, SeccompAction::Allow, TargetArch::x86_64)?.try_into()
    }
}

impl Condition {
    fn compiled(self) -> Result<SeccompCondition, seccompiler::BackendError> {
        let (argument, mask, value) = match self {
            Self::OfKvm(argument) => (argument, IOCTL_TYPE, KVM_TYPE),
            Self::Without(argument, bits) => (argument, bits, 0),
        };
        let op = SeccompCmpOp::MaskedEq(mask.into());
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value.into())
    }
}

impl Default for Jail {
    fn default() -> Self {
        Self::new()
    }
}
