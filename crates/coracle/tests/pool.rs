//! Pools: whoever gets a sandbox gets a clean one, in turn, within the bounds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use coracle::fake::{FakeGuest, Step};
use coracle::{Error, ErrorKind, Image, Input, Pool, PoolBuilder, PoolStats, Sandbox, Snapshot, Status};
use coracle_artifacts::{ENDLESS_LOOP, KEEPER};
use coracle_testing::{kvm_or_skip, patiently, within};
use coracle_vm::Exit;

const SHORT: Duration = Duration::from_millis(30);

/// Held for writing by the one test that counts this process's pools.
static POOLS: RwLock<()> = RwLock::new(());

/// Runs a body that makes pools.
#[track_caller]
fn test(body: impl FnOnce() + Send + 'static) {
    patiently(|| {
        let _shared = POOLS.read();
        body();
    });
}

fn fake_snapshot(memory_bytes: u64) -> Snapshot {
    let guest = FakeGuest::new()
        .function("double", |n: u32| Ok::<_, String>(n * 2))
        .script::<(), ()>("crash", |_| Step::Exit(Exit::Shutdown));
    let builder = Sandbox::builder(&guest.image()).backend(guest.backend()).memory_bytes(memory_bytes);
    builder.build().unwrap().snapshot().unwrap()
}

fn fake_pool() -> PoolBuilder {
    Pool::builder(&fake_snapshot(16 << 20))
}

fn keeper_snapshot() -> Snapshot {
    let builder = Sandbox::builder(&Image::from_path(KEEPER.path()).unwrap()).timeout(Duration::from_secs(20));
    builder.build().unwrap().snapshot().unwrap()
}

/// Waits until the pool has come to this.
#[track_caller]
fn until(pool: &Pool, what: impl Fn(&PoolStats) -> bool) -> PoolStats {
    let start = Instant::now();
    loop {
        let stats = pool.stats();
        if what(&stats) {
            return stats;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn what_comes_back_is_restored_before_it_goes_out_again() {
    test(|| {
        let pool = fake_pool().max(1).build().unwrap();
        for round in 0..10 {
            let mut sandbox = pool.get().unwrap();
            assert_eq!((sandbox.status(), sandbox.stats().restores), (Status::Ready, round));
            assert_eq!(sandbox.call::<u32>("double", 4_u32).unwrap(), 8);
        }
        let stats = until(&pool, |stats| stats.ready == 1);
        assert_eq!((stats.spawned, stats.served, stats.restored, stats.healed), (1, 10, 10, 0));
    });
}

#[test]
fn what_wrote_little_is_ready_when_it_was_given_back() {
    test(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let pool = Pool::builder(&keeper_snapshot()).max(1).build().unwrap();
        for round in 1..=20 {
            assert_eq!(pool.get().unwrap().call::<u64>("count", ()).unwrap(), 1);
            let stats = pool.stats();
            assert_eq!((stats.ready, stats.restored, stats.in_use), (1, round, 0));
        }
        // What takes longer is done elsewhere, and as well.
        let mut sandbox = pool.get().unwrap();
        sandbox.call::<u64>("sum_of_fresh", 1000_u64).unwrap();
        drop(sandbox);
        until(&pool, |stats| stats.ready == 1);
        assert_eq!(pool.get().unwrap().call::<u64>("count", ()).unwrap(), 1);
    });
}

#[test]
fn a_crash_is_healed() {
    test(|| {
        let pool = fake_pool().max(1).build().unwrap();
        let mut sandbox = pool.get().unwrap();
        assert_eq!(kind(sandbox.call::<()>("crash", ())), Some(ErrorKind::GuestStopped));
        drop(sandbox);
        assert_eq!(pool.get().unwrap().call::<u32>("double", 2_u32).unwrap(), 4);
        let stats = until(&pool, |stats| stats.ready == 1);
        assert_eq!((stats.healed, stats.replaced, stats.spawned), (1, 0, 1));
    });
}

#[test]
fn what_cannot_be_restored_is_replaced() {
    test(|| {
        let pool = fake_pool().max(1).build().unwrap();
        let mut sandbox = pool.get().unwrap();
        // One that the snapshot does not fit.
        *sandbox = Sandbox::from_snapshot(&fake_snapshot(32 << 20)).unwrap();
        drop(sandbox);
        assert_eq!(pool.get().unwrap().call::<u32>("double", 2_u32).unwrap(), 4);
        let stats = pool.stats();
        assert_eq!((stats.replaced, stats.spawned), (1, 2), "{stats:?}");
    });
}

#[test]
fn a_holder_that_panics_gives_back() {
    test(|| {
        let pool = fake_pool().max(1).build().unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _sandbox = pool.get().unwrap();
            std::panic::resume_unwind(Box::new("the holder's own"));
        }));
        assert!(panicked.is_err());
        assert_eq!(pool.get().unwrap().stats().restores, 1);
    });
}

#[test]
fn an_exhausted_pool_says_so_in_time() {
    test(|| {
        let pool = fake_pool().max(2).build().unwrap();
        let out = (pool.get().unwrap(), pool.get().unwrap());
        assert!(pool.try_get().is_none());
        let start = Instant::now();
        let error = pool.get_timeout(SHORT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        assert!(error.to_string().contains("at most 2"), "{error}");
        assert!(start.elapsed() >= SHORT);
        assert_eq!(kind(pool.get_timeout(Duration::ZERO)), Some(ErrorKind::Limit));
        let stats = pool.stats();
        assert_eq!((stats.waiting, stats.timeouts, stats.in_use), (0, 2, 2), "{stats:?}");
        // No ticket was left that a sandbox could be lost to.
        drop(out);
        until(&pool, |stats| stats.ready == 2);
        assert!(pool.try_get().is_some());
        assert!(pool.get_timeout(Duration::MAX).is_ok());
    });
}

#[test]
fn the_first_to_come_is_the_first_served() {
    test(|| {
        let pool = fake_pool().max(1).build().unwrap();
        let held = pool.get().unwrap();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for n in 0..8 {
                scope.spawn({
                    let (pool, order) = (&pool, &order);
                    move || {
                        if n == 3 {
                            // Leaves the line, and no gap.
                            assert_eq!(kind(pool.get_timeout(Duration::from_millis(1))), Some(ErrorKind::Limit));
                            return;
                        }
                        let _sandbox = pool.get().unwrap();
                        order.lock().unwrap().push(n);
                        assert!(pool.try_get().is_none(), "overtook those that wait");
                    }
                });
                until(&pool, |stats| stats.waits == n + 1);
            }
            until(&pool, |stats| stats.timeouts == 1);
            drop(held);
        });
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 4, 5, 6, 7]);
    });
}

/// Sandboxes that are alive, and the most there ever were. Each has a stream that notices its end.
#[derive(Clone, Default)]
struct Census(Arc<(AtomicUsize, AtomicUsize)>);

struct Counted(Census);

impl Census {
    fn stream(&self) -> Input {
        let (alive, most) = &*self.0;
        most.fetch_max(alive.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Input::reader(Counted(self.clone()))
    }

    fn alive(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }

    fn count(&self, builder: PoolBuilder) -> PoolBuilder {
        let census = self.clone();
        builder.with_builder(move |snapshot| snapshot.builder().stdin(census.stream()))
    }
}

impl Read for Counted {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Ok(0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn the_bound_holds_whatever_callers_do() {
    within(Duration::from_secs(120), || {
        let _shared = POOLS.read();
        let census = Census::default();
        let pool = census.count(fake_pool().min(2).max(5).shrink_after(Duration::from_millis(2))).build().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8_u32 {
                let pool = &pool;
                scope.spawn(move || {
                    for n in 0..100 {
                        let mut sandbox = match (n + thread) % 4 {
                            0 => pool.get().unwrap(),
                            1 => match pool.get_timeout(Duration::from_micros(200)) {
                                Ok(sandbox) => sandbox,
                                Err(error) => {
                                    assert_eq!(error.kind(), ErrorKind::Limit);
                                    continue;
                                }
                            },
                            _ => match pool.try_get() {
                                Some(sandbox) => sandbox,
                                None => continue,
                            },
                        };
                        assert_eq!(sandbox.status(), Status::Ready);
                        assert_eq!(sandbox.call::<u32>("double", n).unwrap(), n * 2);
                        if n % 7 == 0 {
                            sandbox.call::<()>("crash", ()).unwrap_err();
                        }
                        let stats = pool.stats();
                        assert!(stats.ready + stats.in_use + stats.restoring + stats.spawning <= 5, "{stats:?}");
                    }
                });
            }
        });
        assert!(census.most() <= 5, "{}", census.most());
        let stats = until(&pool, |stats| stats.ready == 2 && stats.restoring + stats.spawning == 0);
        assert_eq!((stats.in_use, stats.waiting), (0, 0), "{stats:?}");
        drop(pool);
        assert_eq!(census.alive(), 0);
    });
}

#[test]
fn it_grows_with_demand_and_shrinks_when_idle() {
    test(|| {
        let census = Census::default();
        let pool = census.count(fake_pool().min(1).max(4).shrink_after(SHORT)).build().unwrap();
        assert_eq!(census.alive(), 1);
        let out: Vec<_> = (0..4).map(|_| pool.get().unwrap()).collect();
        assert_eq!(census.alive(), 4);
        assert!(pool.try_get().is_none());
        drop(out);
        let stats = until(&pool, |stats| stats.ready == 1 && stats.retired == 3);
        assert_eq!((stats.spawned, stats.restored), (4, 4));
        until(&pool, |_| census.alive() == 1);
    });
}

#[test]
fn with_a_minimum_of_none_it_makes_one_when_asked() {
    test(|| {
        let pool = fake_pool().min(0).max(2).shrink_after(Duration::ZERO).build().unwrap();
        until(&pool, |stats| stats.retired == 1 && stats.ready == 0);
        assert_eq!(pool.get().unwrap().call::<u32>("double", 1_u32).unwrap(), 2);
        let pool = fake_pool().min(0).max(2).build().unwrap();
        let _first = pool.get().unwrap();
        assert!(pool.try_get().is_none());
        until(&pool, |stats| stats.ready == 1);
    });
}

#[test]
fn a_detached_sandbox_makes_room() {
    test(|| {
        let pool = fake_pool().max(1).build().unwrap();
        let mut own = pool.get().unwrap().detach();
        assert_eq!(pool.get().unwrap().call::<u32>("double", 1_u32).unwrap(), 2);
        assert_eq!(own.call::<u32>("double", 3_u32).unwrap(), 6);
        let stats = pool.stats();
        assert_eq!((stats.detached, stats.spawned), (1, 2), "{stats:?}");
    });
}

#[test]
fn guards_outlive_their_pool() {
    test(|| {
        let census = Census::default();
        let pool = census.count(fake_pool().max(2)).build().unwrap();
        let mut held = pool.get().unwrap();
        drop(pool);
        assert_eq!(census.alive(), 1, "only the one that is held");
        assert_eq!(held.call::<u32>("double", 3_u32).unwrap(), 6);
        drop(held);
        assert_eq!(census.alive(), 0);
    });
}

#[test]
fn closing_wakes_those_that_wait() {
    test(|| {
        let pool = fake_pool().max(1).build().unwrap();
        let held = pool.get().unwrap();
        let waiting: Vec<_> = [None, Some(Duration::from_secs(1000))]
            .map(|limit| {
                let pool = pool.clone();
                std::thread::spawn(move || {
                    kind(match limit {
                        None => pool.get(),
                        Some(limit) => pool.get_timeout(limit),
                    })
                })
            })
            .into();
        until(&pool, |stats| stats.waiting == 2);
        pool.close();
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Some(ErrorKind::Unusable));
        }
        drop(held);
        assert_eq!(kind(pool.get()), Some(ErrorKind::Unusable));
        assert!(pool.try_get().is_none());
        pool.close();
    });
}

#[test]
fn bounds_and_descriptions_that_make_no_sense_are_refused() {
    test(|| {
        for (min, max) in [(0, 0), (3, 2)] {
            let error = fake_pool().min(min).max(max).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(&format!("at least {min} and at most {max}")), "{error}");
        }
        let other = fake_snapshot(32 << 20);
        let error = fake_pool().with_builder(move |_| other.builder()).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    });
}

#[test]
fn failing_to_make_one_is_an_error_and_no_hang() {
    for by_panic in [false, true] {
        test(move || {
            let broken = Arc::new(AtomicBool::new(false));
            let pool = fake_pool().min(0).max(3).with_builder({
                let broken = Arc::clone(&broken);
                move |snapshot| match broken.load(Ordering::SeqCst) {
                    true if by_panic => std::panic::resume_unwind(Box::new("the description's own")),
                    true => snapshot.builder().memory_bytes(32 << 20),
                    false => snapshot.builder(),
                }
            });
            let pool = pool.build().unwrap();
            broken.store(true, Ordering::SeqCst);
            let held = pool.get().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let error = pool.get().unwrap_err();
                        let want = if by_panic { ErrorKind::Host } else { ErrorKind::Config };
                        assert_eq!(error.kind(), want, "{error}");
                        assert!(std::error::Error::source(&error).is_some());
                    });
                }
            });
            assert!(pool.stats().spawn_failures >= 1);
            // What there is still serves.
            drop(held);
            let held = pool.get().unwrap();
            // And the pool heals with its surroundings.
            broken.store(false, Ordering::SeqCst);
            let mut other = pool.get_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(other.call::<u32>("double", 1_u32).unwrap(), 2);
            drop(held);
        });
    }
}

#[test]
fn dropping_a_pool_ends_its_thread() {
    fn threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        // A thread that ends while we look has no name any more.
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.trim() == "coracle-pool")
            .count()
    }
    within(Duration::from_secs(300), || {
        let _alone = POOLS.write();
        assert_eq!(threads(), 0);
        let pools: Vec<_> = (0..3).map(|_| fake_pool().build().unwrap()).collect();
        let guards: Vec<_> = pools.iter().map(|pool| pool.get().unwrap()).collect();
        // A thread gives itself its name, when it gets to it.
        while threads() != 3 {
            std::thread::yield_now();
        }
        let clone = pools[0].clone();
        drop(pools);
        assert_eq!(threads(), 1);
        drop(clone);
        assert_eq!(threads(), 0);
        drop(guards);
    });
}

#[test]
fn every_guest_of_eight_threads_keeps_only_its_own() {
    within(Duration::from_secs(180), || {
        let _shared = POOLS.read();
        if kvm_or_skip().is_none() {
            return;
        }
        let pool = Pool::builder(&keeper_snapshot()).min(2).max(4).build().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let pool = &pool;
                scope.spawn(move || {
                    for n in 0..200 {
                        let mut sandbox = pool.get().unwrap();
                        let own = [thread, n];
                        for number in own {
                            sandbox.call::<()>("keep", number).unwrap();
                        }
                        assert_eq!(sandbox.call::<Vec<u64>>("kept", ()).unwrap(), own);
                    }
                });
            }
        });
        let stats = pool.stats();
        assert_eq!((stats.served, stats.replaced, stats.healed), (1600, 0, 0), "{stats:?}");
        assert!(stats.spawned <= 4, "{stats:?}");
    });
}

#[test]
fn a_guest_is_clean_after_every_way_to_stop() {
    within(Duration::from_secs(120), || {
        let _shared = POOLS.read();
        if kvm_or_skip().is_none() {
            return;
        }
        let pool = Pool::builder(&keeper_snapshot()).max(1).build().unwrap();
        let clean: Vec<u64> = pool.get().unwrap().call("registers", ()).unwrap();
        for round in 0..8_u64 {
            let mut sandbox = pool.get().unwrap();
            assert_eq!(sandbox.call::<Vec<u64>>("kept", ()).unwrap(), [0_u64; 0], "round {round}");
            sandbox.call::<()>("keep", round).unwrap();
            match round % 4 {
                0 => sandbox.call::<u8>("peek", 16_u64).map(|_| ()).unwrap_err(), // A crash.
                1 => sandbox.call::<()>("unmap", (1_u64, 1_u64)).unwrap_err(),    // A panic.
                2 => sandbox.call::<()>("fill_registers", u64::MAX).unwrap_err(),
                _ => sandbox.call::<u8>("peek", "no number").unwrap_err(), // Refused by the host.
            };
            drop(sandbox);
            assert_eq!(pool.get().unwrap().call::<Vec<u64>>("registers", ()).unwrap(), clean, "round {round}");
        }
        let stats = pool.stats();
        assert_eq!((stats.healed, stats.spawned), (6, 1), "{stats:?}");
    });
}

#[test]
fn a_guest_that_never_answers_is_healed_too() {
    test(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let image = Image::from_path(ENDLESS_LOOP.path()).unwrap();
        let snapshot = Sandbox::builder(&image).build().unwrap().snapshot().unwrap();
        let describe = |snapshot: &Snapshot| snapshot.builder().timeout(Duration::from_millis(20));
        let pool = Pool::builder(&snapshot).max(1).with_builder(describe).build().unwrap();
        for round in 1..=3 {
            let mut sandbox = pool.get().unwrap();
            assert_eq!(kind(sandbox.call::<()>("go", ())), Some(ErrorKind::TimedOut));
            drop(sandbox);
            until(&pool, |stats| stats.healed == round);
        }
    });
}
