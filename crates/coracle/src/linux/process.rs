//! Identity, limits, signals.
//!
//! The guest is the only process there is. Signal handlers are recorded, so that a program may ask for them, and never
//! run: a signal that the guest sends itself is ignored or deadly.

use coracle_vm::Space;

use super::{Answer, DONE, Errno, Outcome, fetch, fetch_u64, store};

/// The guest's process and thread number.
pub(super) const ID: i64 = 1;
/// Its user and group number: not root.
pub(super) const USER: i64 = 1000;

const ARCH_SET_FS: u64 = 0x1002;
const PR_SET_NAME: u64 = 15;

const RLIMIT_STACK: u64 = 3;
const RLIMIT_CORE: u64 = 4;
const RLIMIT_NPROC: u64 = 6;
const RLIMIT_NOFILE: u64 = 7;
const RLIMITS: u64 = 16;

pub(super) const SIGNALS: usize = 64;
const SIGNAL_SET_BYTES: u64 = 8;
const SIGKILL: u64 = 9;
const SIGCHLD: u64 = 17;
const SIGCONT: u64 = 18;
const SIGSTOP: u64 = 19;
const SIGURG: u64 = 23;
const SIGWINCH: u64 = 28;
const IGNORE: u64 = 1; // SIG_IGN

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) stack_bytes: u64,
    pub(super) actions: [[u64; 4]; SIGNALS], // struct kernel_sigaction: handler, flags, restorer, mask.
    pub(super) mask: u64,
    pub(super) alternate_stack: [u64; 3], // stack_t: address, flags, size.
}

impl Process {
    pub(super) fn new(stack_bytes: u64) -> Self {
        const SS_DISABLE: u64 = 2;
        Self { stack_bytes, actions: [[0; 4]; SIGNALS], mask: 0, alternate_stack: [0, SS_DISABLE, 0] }
    }

    pub(super) fn limit(&self, space: &mut Space, process: u64, resource: u64, new: u64, old: u64) -> Answer {
        if resource >= RLIMITS {
            return Err(Errno::EINVAL.into());
        }
        if process != 0 && process != ID as u64 {
            return Err(Errno::ESRCH.into());
        }
        if new != 0 {
            fetch::<16>(space, new)?;
            return Err(Errno::EPERM.into());
        }
        let limit = match resource {
            RLIMIT_STACK => self.stack_bytes,
            RLIMIT_CORE => 0,
            RLIMIT_NPROC => 1,
            RLIMIT_NOFILE => 64,
            _ => u64::MAX,
        };
        if old != 0 {
            store(space, old, &[limit, limit])?;
        }
        DONE
    }

    pub(super) fn alternate_stack(&mut self, space: &mut Space, new: u64, old: u64) -> Answer {
        let before = self.alternate_stack;
        if new != 0 {
            let bytes: [u8; 24] = fetch(space, new)?;
            for (word, bytes) in self.alternate_stack.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
        }
        if old != 0 {
            store(space, old, &before)?;
        }
        DONE
    }

    pub(super) fn action(&mut self, space: &mut Space, signal: u64, new: u64, old: u64, set_bytes: u64) -> Answer {
        let index = usize::try_from(signal).ok().and_then(|signal| signal.checked_sub(1)).filter(|n| *n < SIGNALS);
        let index = index.filter(|_| set_bytes == SIGNAL_SET_BYTES).ok_or(Errno::EINVAL)?;
        let before = self.actions[index];
        if new != 0 {
            if matches!(signal, SIGKILL | SIGSTOP) {
                return Err(Errno::EINVAL.into());
            }
            let bytes: [u8; 32] = fetch(space, new)?;
            for (word, bytes) in self.actions[index].iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
        }
        if old != 0 {
            store(space, old, &before)?;
        }
        DONE
    }

    pub(super) fn mask(&mut self, space: &mut Space, how: u64, new: u64, old: u64, set_bytes: u64) -> Answer {
        if set_bytes != SIGNAL_SET_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let before = self.mask;
        if new != 0 {
            let set = fetch_u64(space, new)?;
            self.mask = match how {
                0 => before | set,
                1 => before & !set,
                2 => set,
                _ => return Err(Errno::EINVAL.into()),
            } & !(1 << (SIGKILL - 1) | 1 << (SIGSTOP - 1));
        }
        if old != 0 {
            store(space, old, &[before])?;
        }
        DONE
    }

    /// `tkill`, `tgkill`: there is one thread, and it may signal itself.
    pub(super) fn kill_thread(&self, process: u64, thread: u64, signal: u64) -> Answer {
        if process as i32 <= 0 || thread as i32 <= 0 {
            return Err(Errno::EINVAL.into());
        }
        if i64::from(process as i32) != ID {
            return Err(Errno::ESRCH.into());
        }
        self.kill(thread, signal)
    }

    /// `kill`: the guest may signal itself.
    pub(super) fn kill(&self, process: u64, signal: u64) -> Answer {
        // 0 is the process group of the guest, in which it is alone.
        if process as i32 != 0 && i64::from(process as i32) != ID {
            return Err(Errno::ESRCH.into());
        }
        match signal {
            0 => DONE,
            1..=64 => {
                let ignored = matches!(signal, SIGCHLD | SIGCONT | SIGURG | SIGWINCH)
                    || self.actions[signal as usize - 1][0] == IGNORE;
                if ignored { DONE } else { Ok(Outcome::Signal(signal as i32)) }
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

/// `arch_prctl`: the thread pointer may be set; nothing else.
pub(super) fn thread_pointer(code: u64, address: u64) -> Answer {
    match code {
        ARCH_SET_FS if address < coracle_abi::map::HIGHEST => Ok(Outcome::SetFsBase(address)),
        ARCH_SET_FS => Err(Errno::EPERM.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

pub(super) fn control(option: u64) -> Answer {
    if option == PR_SET_NAME { DONE } else { Err(Errno::EINVAL.into()) }
}

/// `uname`: six fields of 65 bytes.
pub(super) fn name(space: &mut Space, out: u64) -> Answer {
    const FIELD: usize = 65;
    // The release is that of a kernel which knows every call answered here: C libraries refuse too old ones.
    let fields = ["Linux", "coracle", "6.1.0-coracle", "#1", "x86_64", "(none)"];
    let mut bytes = [0; FIELD * 6];
    for (field, at) in fields.iter().zip(bytes.chunks_exact_mut(FIELD)) {
        at[..field.len()].copy_from_slice(field.as_bytes());
    }
    space.write(out, &bytes)?;
    DONE
}

/// `sched_getaffinity`: one processor.
pub(super) fn affinity(space: &mut Space, bytes: u64, out: u64) -> Answer {
    if bytes < 8 || !bytes.is_multiple_of(8) {
        return Err(Errno::EINVAL.into());
    }
    store(space, out, &[1])?;
    Ok(Outcome::Return(8))
}
