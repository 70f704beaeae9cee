//! Virtual machines that lost their guest, kept for the next one.
//!
//! Making a virtual machine takes most of the time of making a sandbox, and ending one as long again. So a sandbox that is dropped
//! hands its machine to a thread, which takes everything of the guest out of it and keeps it, up to a limit for the process; the
//! next sandbox with as much memory, on the same backend, gets it. The thread has it before anybody else: what is kept is
//! clean, and dropping a sandbox costs its caller no more than handing it over.
//!
//! What a guest can leave in a machine is memory, registers, and what processor and hypervisor cached of its page tables. Memory is
//! mapped anew, caches are dropped, registers are set by whoever starts the next guest, and that guest starts inside the
//! doorbell's page ([`coracle_vm::Shell`]). A machine in which the hypervisor failed is not used again.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use coracle_abi::PageBytes;
use coracle_vm::{Backend, Shell, Space, Vcpu};

use crate::error::Error;
use crate::machine::Machine;

/// Machines that are kept, unless somebody says otherwise.
const LIMIT: usize = 16;
/// Machines that wait for the thread. Whoever drops a sandbox when there are as many drops its machine himself, so that dropping
/// never gets ahead of cleaning without bound.
const QUEUE: usize = 64;
/// Memory of which the hypervisor keeps accounts, in bytes, in a machine that is kept: they cost as much as the largest guest needed.
const COVERED_MAX: u64 = 64 << 20;

static KEPT_MAX: AtomicUsize = AtomicUsize::new(LIMIT);
static KEPT: Mutex<Vec<(Key, Shell)>> = Mutex::new(Vec::new());
static CREATED: AtomicU64 = AtomicU64::new(0);
static REUSED: AtomicU64 = AtomicU64::new(0);

/// Machines with the same key are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    backend: u64,
    memory: PageBytes,
}

/// What became of machines in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShellStats {
    /// Kept, now.
    pub kept: usize,
    /// Made, in all.
    pub created: u64,
    /// Sandboxes that got one that was there.
    pub reused: u64,
}

/// How many machines without a guest the process keeps at most; default 16, each of which takes about as much memory of the kernel as a
/// sandbox that was never called. More than that are dropped now. With 0 every sandbox gets a new machine.
pub fn set_limit(shells: usize) {
    KEPT_MAX.store(shells, Ordering::Relaxed);
    let surplus = {
        let mut kept = lock();
        let count = kept.len().min(shells);
        kept.split_off(count)
    };
    drop(surplus); // Takes time: not under the lock.
}

/// Waits until the machines of all sandboxes that were dropped before have been cleaned or dropped, then drops those that are kept.
pub fn clear() {
    if let Some(cleaner) = cleaner() {
        let (done, wait) = mpsc::channel();
        if cleaner.send(Work::Tell(done)).is_ok() {
            let _ = wait.recv();
        }
    }
    let kept = std::mem::take(&mut *lock());
    drop(kept);
}

/// What became of machines so far.
pub fn stats() -> ShellStats {
    let kept = lock().len();
    ShellStats { kept, created: CREATED.load(Ordering::Relaxed), reused: REUSED.load(Ordering::Relaxed) }
}

/// A machine for a guest with so much memory, and what to give it back with.
pub(crate) fn take(backend: &dyn Backend, memory: PageBytes) -> Result<(Shell, Option<Key>), Error> {
    let key = backend.shell_key().map(|backend| Key { backend, memory });
    let kept = key.and_then(|key| {
        let mut kept = lock();
        let place = kept.iter().rposition(|(known, _)| *known == key)?;
        Some(kept.remove(place).1)
    });
    let shell = match kept {
        Some(shell) => {
            REUSED.fetch_add(1, Ordering::Relaxed);
            shell
        }
        None => {
            CREATED.fetch_add(1, Ordering::Relaxed);
            Shell::new(backend, memory)?
        }
    };
    Ok((shell, key))
}

/// Takes the machine of a guest that is gone.
fn give(key: Key, space: Space, vcpu: Box<dyn Vcpu>) {
    let work = Work::Clean(Box::new((key, space, vcpu)));
    let Some(cleaner) = cleaner() else { return };
    match cleaner.try_send(work) {
        Ok(()) => {}
        // Dropped here.
        Err(TrySendError::Full(work) | TrySendError::Disconnected(work)) => drop(work),
    }
}

/// A guest's machine, handed over when it is dropped.
pub(crate) struct Leased(Option<Machine>); // `None` only while it is being dropped.

impl Leased {
    pub(crate) fn new(machine: Machine) -> Self {
        Self(Some(machine))
    }
}

const TAKEN: &str = "only dropping takes the machine";

impl Deref for Leased {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        match &self.0 {
            Some(machine) => machine,
            None => unreachable!("{TAKEN}"),
        }
    }
}

impl DerefMut for Leased {
    fn deref_mut(&mut self) -> &mut Machine {
        match &mut self.0 {
            Some(machine) => machine,
            None => unreachable!("{TAKEN}"),
        }
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(Machine { shell: Some(key), space, vcpu, .. }) = self.0.take() {
            give(key, space, vcpu);
        }
    }
}

enum Work {
    Clean(Box<(Key, Space, Box<dyn Vcpu>)>),
    /// Everything before this is done.
    Tell(mpsc::Sender<()>),
}

/// Starts the thread, for callers that cannot later.
pub(crate) fn prepare() {
    cleaner();
}

/// The way to the thread; `None` if the host gave none.
fn cleaner() -> Option<&'static SyncSender<Work>> {
    static CLEANER: OnceLock<Option<SyncSender<Work>>> = OnceLock::new();
    let start = || {
        let (give, take) = mpsc::sync_channel(QUEUE);
        thread::Builder::new().name("coracle-shells".into()).spawn(move || clean_all(&take)).ok()?;
        Some(give)
    };
    CLEANER.get_or_init(start).as_ref()
}

fn clean_all(work: &Receiver<Work>) {
    while let Ok(work) = work.recv() {
        match work {
            Work::Tell(done) => drop(done),
            Work::Clean(machine) => {
                let (key, space, vcpu) = *machine;
                if space.covered() > COVERED_MAX || lock().len() >= KEPT_MAX.load(Ordering::Relaxed) {
                    continue; // Dropped.
                }
                // One that cannot be cleaned is dropped by the attempt.
                if let Ok(shell) = Shell::of(space, vcpu) {
                    keep(key, shell);
                }
            }
        }
    }
}

fn keep(key: Key, shell: Shell) {
    let mut kept = lock();
    if kept.len() < KEPT_MAX.load(Ordering::Relaxed) {
        kept.push((key, shell));
    }
}

fn lock() -> MutexGuard<'static, Vec<(Key, Shell)>> {
    // Nothing that holds the lock can panic half-way through a change.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}
