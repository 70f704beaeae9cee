//! When a call must be over, and the one thread of a process that sees to it.
//!
//! The thread sleeps until the earliest deadline, then interrupts the vCPU's thread every millisecond until the call's
//! owner has noticed and taken its entry back: an interruption that arrives just before the guest is entered is lost,
//! the next one is not. A process without deadlines has no such thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coracle_vm::Kick;
use coracle_vm::kick::{ThreadId, current_thread};

/// How long to wait between two interruptions of the same call.
const AGAIN: Duration = Duration::from_millis(1);

/// The time by which one entry into a sandbox must end. Dropped when it has.
pub(crate) struct Deadline {
    at: Option<Instant>,
    expired: Arc<AtomicBool>,
    id: Option<u64>,
}

impl Deadline {
    /// No limit.
    pub(crate) fn never() -> Self {
        Self { at: None, expired: Arc::new(AtomicBool::new(false)), id: None }
    }

    /// From now on, for this thread: when `timeout` has passed, `kick` interrupts it.
    pub(crate) fn after(timeout: Duration, kick: Arc<dyn Kick>) -> Self {
        // Further away than the clock reaches is never.
        let Some(at) = Instant::now().checked_add(timeout) else { return Self::never() };
        let expired = Arc::new(AtomicBool::new(false));
        let entry = Entry { at, kick, thread: current_thread(), expired: Arc::clone(&expired) };
        Self { at: Some(at), expired, id: Some(Watchdog::get().add(entry)) }
    }

    /// Whether the time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.expired.load(Ordering::Relaxed) || self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// Sleeps for the guest, without end if `wait` is `None`. `false` if the deadline came first. A sleep without end
    /// and without deadline returns at once: the caller must treat it as the deadlock it is.
    pub(crate) fn sleep(&self, wait: Option<Duration>) -> bool {
        let left = self.at.map(|at| at.saturating_duration_since(Instant::now()));
        match (wait, left) {
            (Some(wait), Some(left)) if wait >= left => {
                std::thread::sleep(left);
                false
            }
            (Some(wait), _) => {
                std::thread::sleep(wait);
                true
            }
            (None, Some(left)) => {
                std::thread::sleep(left);
                false
            }
            (None, None) => true,
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            Watchdog::get().remove(id);
        }
    }
}

/// Starts the thread, for callers that cannot later.
pub(crate) fn prepare() {
    let watchdog = Watchdog::get();
    watchdog.start(&mut watchdog.lock());
}

struct Entry {
    at: Instant,
    kick: Arc<dyn Kick>,
    thread: ThreadId,
    expired: Arc<AtomicBool>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    running: BTreeMap<u64, Entry>,
    started: bool,
}

#[derive(Default)]
struct Watchdog {
    entries: Mutex<Entries>,
    changed: Condvar,
}

impl Watchdog {
    fn get() -> &'static Self {
        static WATCHDOG: LazyLock<Watchdog> = LazyLock::new(Watchdog::default);
        &WATCHDOG
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Nothing that holds the lock can panic half-way through a change.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&'static self, entry: Entry) -> u64 {
        let mut entries = self.lock();
        self.start(&mut entries);
        entries.next += 1;
        let id = entries.next;
        entries.running.insert(id, entry);
        drop(entries);
        self.changed.notify_one();
        id
    }

    fn start(&'static self, entries: &mut Entries) {
        if !entries.started {
            let thread = std::thread::Builder::new().name("coracle-deadline".into());
            // Without the thread a deadline is still kept at the next exit; the next call tries again.
            entries.started = thread.spawn(|| self.watch()).is_ok();
        }
    }

    fn remove(&self, id: u64) {
        // Under the lock, so that no interruption is sent to this thread after this returns.
        self.lock().running.remove(&id);
    }

    fn watch(&self) {
        let mut entries = self.lock();
        loop {
            let now = Instant::now();
            let mut wait = None;
            for entry in entries.running.values() {
                let mut left = entry.at.saturating_duration_since(now);
                if left.is_zero() {
                    entry.expired.store(true, Ordering::Relaxed);
                    entry.kick.kick(entry.thread);
                    left = AGAIN;
                }
                wait = Some(wait.map_or(left, |wait: Duration| wait.min(left)));
            }
            entries = match wait {
                Some(wait) => self
                    .changed
                    .wait_timeout(entries, wait)
                    .map_or_else(|poisoned| poisoned.into_inner().0, |(entries, _)| entries),
                None => self.changed.wait(entries).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(AtomicBool);

    impl Kick for Count {
        fn kick(&self, _: ThreadId) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn without_a_deadline_nothing_is_over() {
        let deadline = Deadline::never();
        assert!(!deadline.is_over());
        assert!(deadline.sleep(Some(Duration::ZERO)));
        assert!(deadline.sleep(None), "a wait without end is the caller's to name");
    }

    #[test]
    fn a_sleep_ends_at_the_deadline() {
        let kick = Arc::new(Count(AtomicBool::new(false)));
        let deadline = Deadline::after(Duration::from_millis(5), Arc::clone(&kick) as _);
        assert!(!deadline.sleep(Some(Duration::from_secs(1000))));
        assert!(!deadline.sleep(None));
        assert!(deadline.is_over());
    }

    #[test]
    fn the_thread_is_kicked() {
        let kick = Arc::new(Count(AtomicBool::new(false)));
        let _deadline = Deadline::after(Duration::from_millis(1), Arc::clone(&kick) as _);
        while !kick.0.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_timeout_beyond_the_clock_is_none() {
        let kick = Arc::new(Count(AtomicBool::new(false)));
        assert!(!Deadline::after(Duration::MAX, kick).is_over());
    }
}
