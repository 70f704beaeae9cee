//! Sandboxes of one snapshot, kept ready.
//!
//! Callers take a sandbox and give it back. Restoring one that wrote little is done where it is given back, since waking a thread takes
//! longer; one thread of the pool's own does what takes time: it restores the others, makes new ones, drops those that are too many. What it does next is a pure function of a few counts,
//! [`next_step`]; everything else here is moving boxes under a lock that is never held over such work.
//!
//! Invariants:
//! - What is in `ready`, and what a caller gets, was put to the snapshot after its last use.
//! - Sandboxes that the pool has, in use or not, are at most `max`; one that is being made counts.
//! - Whoever waits is served in the order of arrival: a sandbox that becomes ready goes to the first in the line, so that
//!   there is nothing in `ready` for others to take while somebody waits.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::builder::Builder;
use crate::error::{Error, ErrorKind};
use crate::sandbox::{Sandbox, Status};
use crate::snapshot::Snapshot;

/// How long the pool waits after it failed to make a sandbox for the first time; twice as long after each further time.
const RETRY_FIRST: Duration = Duration::from_millis(10);
/// And how long at most.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Restoring so many pages takes about as long as waking a thread to do it.
const RESTORED_AT_ONCE: usize = 128;

/// Keeps sandboxes of a snapshot ready, and takes them back.
///
/// A sandbox that was given back is restored before anybody else gets it: at once if it wrote little, else on a thread of the pool.
/// Crashed and poisoned ones are healed by that, those that cannot be are replaced. Clones are handles to the same pool; when the last one is
/// dropped, it is closed.
///
/// ```
/// # use coracle::{Pool, Sandbox, fake::FakeGuest};
/// # let guest = FakeGuest::new().function("double", |n: u32| Ok::<_, String>(n * 2));
/// let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build()?;
/// let pool = Pool::builder(&sandbox.snapshot()?).min(2).max(8).build()?;
/// let mut clean = pool.get()?;
/// assert_eq!(clean.call::<u32>("double", 21u32)?, 42);
/// drop(clean); // Back to the pool.
/// # Ok::<(), coracle::Error>(())
/// ```
///
/// A restore undoes what the guest did. It does not undo what the guest's callers did to the host: what was read from
/// or written to the streams that [`PoolBuilder::with_builder`] gave, what host functions remember, and a sandbox that a
/// caller put in the place of the pool's, which has the snapshot's state afterwards, but its own host functions.
#[derive(Clone)]
pub struct Pool(Arc<Owner>);

/// A pool in the making: from [`Pool::builder`].
#[must_use = "a builder does nothing until build is called"]
pub struct PoolBuilder {
    snapshot: Snapshot,
    min: usize,
    max: Option<usize>,
    shrink_after: Duration,
    hook: Option<Box<Hook>>,
}

type Hook = dyn Fn(&Snapshot) -> Builder + Send + Sync;

/// A sandbox of a pool. Goes back when dropped, also by a panic.
pub struct PoolGuard {
    /// `None` only while it is being dropped.
    sandbox: Option<Box<Sandbox>>,
    shared: Arc<Shared>,
}

/// What a pool has and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Sandboxes that are ready, now.
    pub ready: usize,
    /// Sandboxes that callers have, now.
    pub in_use: usize,
    /// Sandboxes that were given back and are not ready yet, now.
    pub restoring: usize,
    /// Sandboxes that are being made, now.
    pub spawning: usize,
    /// Callers that wait, now.
    pub waiting: usize,
    /// Sandboxes made.
    pub spawned: u64,
    /// Attempts to make one that failed.
    pub spawn_failures: u64,
    /// Sandboxes handed out.
    pub served: u64,
    /// Sandboxes restored.
    pub restored: u64,
    /// Of these, those that could not be called any more when they were given back.
    pub healed: u64,
    /// Sandboxes that could not be restored and were dropped, to be replaced when needed.
    pub replaced: u64,
    /// Sandboxes dropped because they were idle.
    pub retired: u64,
    /// Sandboxes that callers kept: [`PoolGuard::detach`].
    pub detached: u64,
    /// Callers that had to wait.
    pub waits: u64,
    /// Of these, those whose time was over before they were served.
    pub timeouts: u64,
    /// How long callers waited, in all.
    pub wait_time: Duration,
}

impl PoolBuilder {
    /// How many sandboxes to keep ready as long as `max` allows it. Default: 1. With 0, the pool makes one when somebody
    /// asks.
    pub fn min(mut self, min: usize) -> Self {
        self.min = min;
        self
    }

    /// How many sandboxes to have at most, in use or not. Default: one for each processor, at least `min`.
    pub fn max(mut self, max: usize) -> Self {
        self.max = Some(max);
        self
    }

    /// How long more than `min` have to be ready until one that was idle all that time is dropped. Default: 30 seconds.
    pub fn shrink_after(mut self, idle: Duration) -> Self {
        self.shrink_after = idle;
        self
    }

    /// How to describe each sandbox that is made: host functions, streams, a timeout. Default: [`Snapshot::builder`].
    /// Whatever state the described sandbox starts in, it is put to the snapshot before anybody gets it.
    pub fn with_builder(mut self, describe: impl Fn(&Snapshot) -> Builder + Send + Sync + 'static) -> Self {
        self.hook = Some(Box::new(describe));
        self
    }

    /// Makes `min` sandboxes, but at least one, so that a description that does not work is an error here; then
    /// starts the pool's thread.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when `max` is 0 or below `min`, or the described sandboxes have not as much memory as the
    /// snapshot; [`ErrorKind::Host`] without a thread; else as [`Builder::build`] and [`Sandbox::restore`].
    pub fn build(self) -> Result<Pool, Error> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let bounds = Bounds {
            min: self.min,
            max: self.max.unwrap_or(processors.max(self.min)),
            shrink_after: self.shrink_after,
        };
        if bounds.max == 0 || bounds.max < bounds.min {
            let Bounds { min, max, .. } = bounds;
            let message =
                format!("a pool of at least {min} and at most {max}: max must be at least 1, and at least min");
            return Err(Error::new(ErrorKind::Config, message));
        }
        let shared = Arc::new(Shared {
            snapshot: self.snapshot,
            hook: self.hook,
            bounds,
            state: Mutex::default(),
            work: Condvar::new(),
        });
        for _ in 0..bounds.min.max(1) {
            let sandbox = shared.make()?;
            let mut state = shared.lock();
            state.counts.spawned += 1;
            state.offer(sandbox, &bounds);
        }
        let worker = thread::Builder::new().name("coracle-pool".into());
        let worker = worker.spawn({
            let shared = Arc::clone(&shared);
            move || shared.work()
        });
        match worker {
            Ok(worker) => Ok(Pool(Arc::new(Owner { shared, worker: Mutex::new(Some(worker)) }))),
            Err(error) => Err(Error::new(ErrorKind::Host, "the host gives no thread for the pool").with_source(error)),
        }
    }
}

impl Pool {
    /// Starts to describe a pool of sandboxes in this state.
    pub fn builder(snapshot: &Snapshot) -> PoolBuilder {
        PoolBuilder { snapshot: snapshot.clone(), min: 1, max: None, shrink_after: Duration::from_secs(30), hook: None }
    }

    /// A clean sandbox. Waits without limit while `max` sandboxes are in use, behind those that came before.
    ///
    /// # Errors
    /// - [`ErrorKind::Unusable`] when the pool is or gets closed.
    /// - Any other, as of [`Builder::build`], when the pool tried to make a sandbox for this caller and failed. It tries again
    ///   for the next one, after a pause of up to a second.
    pub fn get(&self) -> Result<PoolGuard, Error> {
        self.0.shared.get(None)
    }

    /// As [`Pool::get`], but waits no longer than this.
    ///
    /// # Errors
    /// As [`Pool::get`], and [`ErrorKind::Limit`] when the time is over: not [`ErrorKind::TimedOut`], which means that a guest
    /// did not answer.
    pub fn get_timeout(&self, limit: Duration) -> Result<PoolGuard, Error> {
        self.0.shared.get(Some(limit))
    }

    /// A clean sandbox if one is ready. Never overtakes a caller that waits. After `None` the pool grows, if it may.
    pub fn try_get(&self) -> Option<PoolGuard> {
        let shared = &self.0.shared;
        let mut state = shared.lock();
        let sandbox = state.take_ready(&shared.bounds);
        state.missed |= sandbox.is_none();
        let wake = state.is_short(&shared.bounds);
        drop(state);
        if wake {
            shared.work.notify_one();
        }
        sandbox.map(|sandbox| shared.guard(sandbox))
    }

    /// What it has and has done.
    pub fn stats(&self) -> PoolStats {
        let state = self.0.shared.lock();
        let counts = &state.counts;
        PoolStats {
            ready: state.ready.len(),
            restoring: counts.restoring + state.returned.len(),
            waiting: state.waiting.len(),
            ..counts.clone()
        }
    }

    /// Ends the pool for all its handles: who waits gets an error, its thread ends, sandboxes that are not in use are
    /// dropped. Those in use stay usable, and are dropped when they are given back.
    pub fn close(&self) {
        self.0.close();
    }
}

impl PoolGuard {
    /// Takes the sandbox out for good. The pool may make another one in its place.
    pub fn detach(mut self) -> Sandbox {
        let sandbox = self.sandbox.take();
        let mut state = self.shared.lock();
        state.counts.in_use -= 1;
        state.counts.detached += 1;
        drop(state);
        self.shared.work.notify_one();
        match sandbox {
            Some(sandbox) => *sandbox,
            None => unreachable!("{TAKEN}"),
        }
    }
}

const TAKEN: &str = "only dropping or detaching a guard takes its sandbox";

impl Deref for PoolGuard {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        match &self.sandbox {
            Some(sandbox) => sandbox,
            None => unreachable!("{TAKEN}"),
        }
    }
}

impl DerefMut for PoolGuard {
    fn deref_mut(&mut self) -> &mut Sandbox {
        match &mut self.sandbox {
            Some(sandbox) => sandbox,
            None => unreachable!("{TAKEN}"),
        }
    }
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        let Some(mut sandbox) = self.sandbox.take() else { return };
        let snapshot = &self.shared.snapshot;
        let little = sandbox.pages_to_restore(snapshot).is_some_and(|pages| pages <= RESTORED_AT_ONCE);
        let is_clean = little && sandbox.restore(snapshot).is_ok();
        let mut state = self.shared.lock();
        state.counts.in_use -= 1;
        if state.closed {
            // Nobody is there to look after it. Dropping it takes time: not under the lock.
            drop(state);
            return;
        }
        let wake = if is_clean {
            state.counts.restored += 1;
            state.offer(sandbox, &self.shared.bounds);
            // The thread watches for how long there are too many; if it has a time to wake up at, that will do.
            state.plenty_since.is_some() && state.sleeps_without_end
        } else {
            state.returned.push_back(sandbox);
            true
        };
        drop(state);
        if wake {
            self.shared.work.notify_one();
        }
    }
}

/// What the handles of a pool share. Guards do not: they never keep a pool open.
struct Owner {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Owner {
    fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.waiting.clear(); // Who waits notices that nobody can send any more.
        drop(state);
        self.shared.work.notify_one();
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle may be dropped by the worker itself, with a sandbox whose host function has it.
        if let Some(worker) = worker.filter(|worker| worker.thread().id() != thread::current().id()) {
            let _ = worker.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.close();
    }
}

/// What callers and the worker share.
struct Shared {
    snapshot: Snapshot,
    hook: Option<Box<Hook>>,
    bounds: Bounds,
    state: Mutex<State>,
    /// There may be something to do for the worker.
    work: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    min: usize,
    max: usize,
    shrink_after: Duration,
}

#[derive(Default)]
struct State {
    /// Clean. The one that was used last is last, and is taken first: it is warm, and the others get idle.
    ready: VecDeque<Idle>,
    /// Given back, not clean.
    returned: VecDeque<Box<Sandbox>>,
    /// The first is served first.
    waiting: VecDeque<Ticket>,
    next_ticket: u64,
    /// Somebody asked in vain without waiting.
    missed: bool,
    closed: bool,
    /// Since when more than `min` have been ready.
    plenty_since: Option<Instant>,
    /// When to try again to make one, after failures.
    retry_at: Option<Instant>,
    /// The worker does nothing until it is woken.
    sleeps_without_end: bool,
    failures_in_a_row: u32,
    /// Its `ready` and `waiting` are not kept, its `restoring` is what the worker has in its hands.
    counts: PoolStats,
}

struct Idle {
    sandbox: Box<Sandbox>,
    since: Instant,
}

struct Ticket {
    number: u64,
    give: Sender<Result<Box<Sandbox>, Error>>,
}

/// What the worker looks at to decide.
#[derive(Clone, Copy, Debug, Default)]
struct View {
    closed: bool,
    ready: usize,
    returned: usize,
    in_use: usize,
    /// Somebody waits, or asked in vain.
    wanted: bool,
    /// How long not to try to make one.
    retry_in: Duration,
    /// How long one has been more than is needed.
    surplus_for: Option<Duration>,
}

/// What the worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Drop what is not in use, and end.
    End,
    /// Restore the first that came back.
    Restore,
    /// Make one.
    Spawn,
    /// Drop the one that has been idle for the longest time.
    Retire,
    /// Wait until something changes, or this long.
    Sleep(Option<Duration>),
}

/// Whether there are too few, and room for more. What was given back is soon ready and comes first.
fn is_short(bounds: &Bounds, view: &View) -> bool {
    let room = view.ready + view.returned + view.in_use < bounds.max;
    room && view.returned == 0 && (view.ready < bounds.min || (view.wanted && view.ready == 0))
}

fn next_step(bounds: &Bounds, view: &View) -> Step {
    if view.closed {
        return Step::End;
    }
    if view.returned > 0 {
        return Step::Restore;
    }
    let spawn_in = is_short(bounds, view).then_some(view.retry_in);
    let retire_in = view.surplus_for.map(|surplus| bounds.shrink_after.saturating_sub(surplus));
    match (spawn_in, retire_in) {
        (Some(Duration::ZERO), _) => Step::Spawn,
        (_, Some(Duration::ZERO)) => Step::Retire,
        (Some(a), Some(b)) => Step::Sleep(Some(a.min(b))),
        (a, b) => Step::Sleep(a.or(b)),
    }
}

/// How long to wait after this many failures in a row.
fn retry_pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    RETRY_FIRST.saturating_mul(1 << doublings).min(RETRY_MAX)
}

impl State {
    /// All but what needs a clock.
    fn counts_view(&self) -> View {
        View {
            closed: self.closed,
            ready: self.ready.len(),
            returned: self.returned.len(),
            in_use: self.counts.in_use,
            wanted: self.missed || !self.waiting.is_empty(),
            ..View::default()
        }
    }

    fn view(&self, now: Instant) -> View {
        let surplus_since = match (self.plenty_since, self.ready.front()) {
            (Some(plenty), Some(idle)) => Some(plenty.max(idle.since)),
            _ => None,
        };
        View {
            retry_in: self.retry_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)),
            surplus_for: surplus_since.map(|since| now.saturating_duration_since(since)),
            ..self.counts_view()
        }
    }

    fn is_short(&self, bounds: &Bounds) -> bool {
        is_short(bounds, &self.counts_view())
    }

    /// Takes one for a caller.
    fn take_ready(&mut self, bounds: &Bounds) -> Option<Box<Sandbox>> {
        let idle = self.ready.pop_back()?;
        self.counts.in_use += 1;
        self.counts.served += 1;
        if self.ready.len() <= bounds.min {
            self.plenty_since = None;
        }
        Some(idle.sandbox)
    }

    /// Gives a clean one to the first who waits, or keeps it.
    fn offer(&mut self, mut sandbox: Box<Sandbox>, bounds: &Bounds) {
        self.missed = false;
        while let Some(ticket) = self.waiting.pop_front() {
            match ticket.give.send(Ok(sandbox)) {
                Ok(()) => {
                    self.counts.in_use += 1;
                    self.counts.served += 1;
                    return;
                }
                // Nobody leaves without the ticket; if somebody did, the next one is served.
                Err(SendError(Ok(back))) => sandbox = back,
                Err(SendError(Err(_))) => return,
            }
        }
        let since = Instant::now();
        self.ready.push_back(Idle { sandbox, since });
        if self.ready.len() > bounds.min {
            self.plenty_since.get_or_insert(since);
        }
    }

    /// Notes that none could be made, and tells those whom nothing that came back meanwhile will serve.
    fn refuse(&mut self, error: Error) {
        self.missed = false;
        self.failures_in_a_row += 1;
        self.counts.spawn_failures += 1;
        self.retry_at = Instant::now().checked_add(retry_pause(self.failures_in_a_row));
        let error = Arc::new(error);
        for ticket in self.waiting.drain(self.returned.len().min(self.waiting.len())..) {
            let message = "the pool could not make a sandbox for this caller";
            let _ = ticket.give.send(Err(Error::new(error.kind(), message).with_source(Arc::clone(&error))));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(self: &Arc<Self>, sandbox: Box<Sandbox>) -> PoolGuard {
        PoolGuard { sandbox: Some(sandbox), shared: Arc::clone(self) }
    }

    fn get(self: &Arc<Self>, limit: Option<Duration>) -> Result<PoolGuard, Error> {
        let mut state = self.lock();
        if state.closed {
            return Err(closed());
        }
        if let Some(sandbox) = state.take_ready(&self.bounds) {
            let wake = state.is_short(&self.bounds);
            drop(state);
            if wake {
                self.work.notify_one();
            }
            return Ok(self.guard(sandbox));
        }
        let (give, take) = mpsc::channel();
        let number = state.next_ticket;
        state.next_ticket += 1;
        state.counts.waits += 1;
        state.waiting.push_back(Ticket { number, give });
        drop(state);
        self.work.notify_one();
        let start = Instant::now();
        let outcome = self.wait(number, &take, limit);
        self.lock().counts.wait_time += start.elapsed();
        outcome.map(|sandbox| self.guard(sandbox))
    }

    fn wait(
        &self,
        number: u64,
        take: &Receiver<Result<Box<Sandbox>, Error>>,
        limit: Option<Duration>,
    ) -> Result<Box<Sandbox>, Error> {
        let Some(limit) = limit else { return take.recv().unwrap_or_else(|_| Err(closed())) };
        match take.recv_timeout(limit) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => return Err(closed()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut state = self.lock();
        let Ok(place) = state.waiting.binary_search_by_key(&number, |ticket| ticket.number) else {
            // Served just now, or closed: what was to be sent is there.
            drop(state);
            return take.recv().unwrap_or_else(|_| Err(closed()));
        };
        state.waiting.remove(place);
        state.counts.timeouts += 1;
        let message = format!(
            "no sandbox of the pool was free for {limit:?}, of at most {}: wait longer, or raise max",
            self.bounds.max
        );
        Err(Error::new(ErrorKind::Limit, message))
    }

    /// A new sandbox in the snapshot's state.
    fn make(&self) -> Result<Box<Sandbox>, Error> {
        let Some(hook) = &self.hook else { return self.snapshot.builder().build().map(Box::new) };
        let mut sandbox = Box::new(hook(&self.snapshot).build()?);
        // Nothing says that the hook described a sandbox of this snapshot.
        sandbox.restore(&self.snapshot)?;
        Ok(sandbox)
    }

    /// The worker's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            let step = next_step(&self.bounds, &state.view(Instant::now()));
            state = match step {
                Step::End => break,
                Step::Restore => self.restore(state),
                Step::Spawn => self.spawn(state),
                Step::Retire => self.retire(state),
                Step::Sleep(None) => {
                    state.sleeps_without_end = true;
                    let mut state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.sleeps_without_end = false;
                    state
                }
                Step::Sleep(Some(limit)) => {
                    self.work.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let rest = (std::mem::take(&mut state.ready), std::mem::take(&mut state.returned));
        drop(state);
        drop(rest);
    }

    fn restore<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(mut sandbox) = state.returned.pop_front() else { return state };
        state.counts.restoring = 1;
        let was_ready = sandbox.status() == Status::Ready;
        let (mut state, restored) = self.aside(state, || match sandbox.restore(&self.snapshot) {
            Ok(()) => Some(sandbox),
            Err(error) => {
                tracing::warn!(target: "coracle::pool", %error, "a sandbox cannot be restored, and is dropped");
                None
            }
        });
        state.counts.restoring = 0;
        match restored.flatten() {
            Some(sandbox) => {
                state.counts.restored += 1;
                state.counts.healed += u64::from(!was_ready);
                state.offer(sandbox, &self.bounds);
            }
            None => state.counts.replaced += 1,
        }
        state
    }

    fn spawn<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.counts.spawning = 1;
        let (mut state, made) = self.aside(state, || self.make());
        state.counts.spawning = 0;
        match made {
            Some(Ok(sandbox)) => {
                state.counts.spawned += 1;
                (state.failures_in_a_row, state.retry_at) = (0, None);
                state.offer(sandbox, &self.bounds);
            }
            Some(Err(error)) => {
                tracing::warn!(target: "coracle::pool", %error, "no sandbox could be made");
                state.refuse(error);
            }
            None => state.refuse(Error::new(ErrorKind::Host, "what describes the pool's sandboxes panicked")),
        }
        state
    }

    fn retire<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let idle = state.ready.pop_front();
        if state.ready.len() <= self.bounds.min {
            state.plenty_since = None;
        }
        state.counts.retired += 1;
        self.aside(state, || drop(idle)).0
    }

    /// Does what takes time without the lock. `None` when it panicked, by code of the embedder: a sandbox that it had is
    /// gone then.
    fn aside<'a, T>(
        &'a self,
        state: MutexGuard<'a, State>,
        effect: impl FnOnce() -> T,
    ) -> (MutexGuard<'a, State>, Option<T>) {
        drop(state);
        let outcome = catch_unwind(AssertUnwindSafe(effect)).ok();
        (self.lock(), outcome)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unusable, "the pool is closed")
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("bounds", &self.0.shared.bounds).field("stats", &self.stats()).finish()
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder").field("min", &self.min).field("max", &self.max).finish_non_exhaustive()
    }
}

impl fmt::Debug for PoolGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolGuard").field(&**self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BOUNDS: Bounds = Bounds { min: 2, max: 4, shrink_after: SECOND };

    #[track_caller]
    fn check(view: View, want: Step) {
        assert_eq!(next_step(&BOUNDS, &view), want, "{view:?}");
    }

    fn view(ready: usize, returned: usize, in_use: usize) -> View {
        View { ready, returned, in_use, ..View::default() }
    }

    #[test]
    fn enough_is_enough() {
        check(view(2, 0, 0), Step::Sleep(None));
        check(view(2, 0, 2), Step::Sleep(None));
        check(View { wanted: true, ..view(2, 0, 0) }, Step::Sleep(None));
    }

    #[test]
    fn what_came_back_comes_first() {
        check(View { wanted: true, ..view(0, 1, 0) }, Step::Restore);
        check(View { surplus_for: Some(SECOND), ..view(3, 1, 0) }, Step::Restore);
    }

    #[test]
    fn it_grows_to_the_bound_and_not_beyond() {
        check(view(0, 0, 0), Step::Spawn);
        check(view(1, 0, 2), Step::Spawn);
        check(view(1, 0, 3), Step::Sleep(None));
        check(View { wanted: true, ..view(0, 0, 3) }, Step::Spawn);
        check(View { wanted: true, ..view(0, 0, 4) }, Step::Sleep(None));
    }

    #[test]
    fn with_no_minimum_it_grows_when_asked() {
        let bounds = Bounds { min: 0, ..BOUNDS };
        assert_eq!(next_step(&bounds, &view(0, 0, 1)), Step::Sleep(None));
        assert_eq!(next_step(&bounds, &View { wanted: true, ..view(0, 0, 1) }), Step::Spawn);
    }

    #[test]
    fn after_a_failure_it_pauses_but_goes_on_restoring() {
        let failed = |view| View { wanted: true, retry_in: SECOND, ..view };
        check(failed(view(0, 0, 1)), Step::Sleep(Some(SECOND)));
        check(failed(view(0, 1, 1)), Step::Restore);
        check(failed(view(0, 0, 4)), Step::Sleep(None));
    }

    #[test]
    fn what_is_too_much_for_long_enough_goes() {
        check(View { surplus_for: Some(SECOND / 4), ..view(3, 0, 0) }, Step::Sleep(Some(SECOND * 3 / 4)));
        check(View { surplus_for: Some(SECOND), ..view(3, 0, 1) }, Step::Retire);
    }

    #[test]
    fn closed_comes_before_all() {
        check(View { closed: true, wanted: true, ..view(0, 3, 1) }, Step::End);
    }

    #[test]
    fn pauses_double_up_to_a_second() {
        let pauses: Vec<u128> = [1, 2, 3, 7, 8, u32::MAX].map(|n| retry_pause(n).as_millis()).to_vec();
        assert_eq!(pauses, [10, 20, 40, 640, 1000, 1000]);
    }

    /// Whatever happens in whatever order, the worker's decisions keep the bound and leave nobody waiting for nothing.
    #[test]
    fn no_sequence_of_steps_exceeds_the_bound() {
        for start in 0..4096_u32 {
            let (mut at, mut now) = (start, View::default());
            for _ in 0..24 {
                at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                match (at >> 24) % 4 {
                    0 if now.ready > 0 => (now.ready, now.in_use) = (now.ready - 1, now.in_use + 1),
                    1 if now.in_use > 0 => (now.in_use, now.returned) = (now.in_use - 1, now.returned + 1),
                    2 => now.wanted = now.ready == 0,
                    _ => {}
                }
                match next_step(&BOUNDS, &now) {
                    Step::Restore => (now.returned, now.ready) = (now.returned - 1, now.ready + 1),
                    Step::Spawn => now.ready += 1,
                    Step::Sleep(None) => {
                        let all_out = now.in_use + now.ready == BOUNDS.max;
                        assert!(
                            now.ready >= BOUNDS.min || all_out,
                            "asleep, although there is something to do: {now:?}"
                        );
                    }
                    step => panic!("{step:?} at {now:?}"),
                }
                now.wanted &= now.ready == 0;
                assert!(now.ready + now.returned + now.in_use <= BOUNDS.max, "{now:?}");
            }
        }
    }
}
