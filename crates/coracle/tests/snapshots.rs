//! Snapshots in memory: a restored sandbox is as it was, whatever happened in between.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coracle::{Builder, CpuTemplate, DirtyLog, ErrorKind, Image, Kvm, Sandbox, Snapshot, Status};
use coracle_artifacts::{ECHO, ECHO_NOSTD, KEEPER, RustGuest};
use coracle_testing::{kvm_or_skip, patiently, within};

fn builder(guest: RustGuest) -> Builder {
    Sandbox::builder(&Image::from_path(guest.path()).unwrap())
        .timeout(Duration::from_secs(20))
        .host_fn("greet", |name: String| Ok::<_, String>(name))
        .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)))
}

/// Runs `body` with each way to learn what a guest wrote.
fn with_each_log(body: fn(Builder)) {
    within(Duration::from_secs(120), move || {
        if kvm_or_skip().is_none() {
            return;
        }
        for log in [DirtyLog::Best, DirtyLog::Bitmap] {
            body(builder(KEEPER).backend(Kvm::open(CpuTemplate::Host).unwrap().with_dirty_log(log)));
        }
    });
}

fn kept(sandbox: &mut Sandbox) -> Vec<u64> {
    sandbox.call("kept", ()).unwrap()
}

fn keep(sandbox: &mut Sandbox, number: u64) {
    sandbox.call::<()>("keep", number).unwrap();
}

#[test]
fn a_restored_guest_has_forgotten() {
    with_each_log(|builder| {
        let mut sandbox = builder.build().unwrap();
        keep(&mut sandbox, 1);
        let snapshot = sandbox.snapshot().unwrap();
        for round in 0..20 {
            keep(&mut sandbox, 100 + round);
            assert_eq!(kept(&mut sandbox), [1, 100 + round]);
            sandbox.restore(&snapshot).unwrap();
            assert_eq!(kept(&mut sandbox), [1], "round {round}");
        }
        assert_eq!(sandbox.stats().restores, 20);
    });
}

#[test]
fn generations_and_branches_stay_apart() {
    with_each_log(|builder| {
        let mut sandbox = builder.build().unwrap();
        // A tree: each snapshot has the numbers on the way to it.
        let mut snapshots: Vec<(Snapshot, Vec<u64>)> = vec![(sandbox.snapshot().unwrap(), Vec::new())];
        for n in 0..12_u64 {
            let (parent, numbers) = snapshots[(n as usize * 7) % snapshots.len()].clone();
            sandbox.restore(&parent).unwrap();
            keep(&mut sandbox, n);
            let numbers = [numbers, vec![n]].concat();
            assert_eq!(kept(&mut sandbox), numbers);
            snapshots.push((sandbox.snapshot().unwrap(), numbers));
        }
        for step in 0..60 {
            let (snapshot, numbers) = &snapshots[(step * 5 + step / 3) % snapshots.len()];
            sandbox.restore(snapshot).unwrap();
            assert_eq!(&kept(&mut sandbox), numbers, "step {step}");
            if step % 4 == 0 {
                keep(&mut sandbox, 1000);
            }
        }
    });
}

#[test]
fn mappings_made_and_unmade_in_between_are_undone() {
    with_each_log(|builder| {
        let mut sandbox = builder.build().unwrap();
        let before: u64 = sandbox.call("map", (64_u64, 7_u8)).unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        for round in 0..6_u8 {
            // Each way to change what is mapped: more, less, other rights, other content.
            let more: u64 = sandbox.call("map", (16_u64 + u64::from(round) * 700, 9_u8)).unwrap();
            assert_eq!(sandbox.call::<u8>("peek", more).unwrap(), 9);
            sandbox.call::<()>("poke", (before, 1_u8)).unwrap();
            match round % 3 {
                0 => sandbox.call::<()>("unmap", (before, 64_u64)).unwrap(),
                1 => sandbox.call::<()>("seal", (before, 64_u64)).unwrap(),
                _ => {}
            }
            sandbox.restore(&snapshot).unwrap();
            assert_eq!(sandbox.call::<u8>("peek", before).unwrap(), 7, "round {round}");
            sandbox.call::<()>("poke", (before, 8_u8)).unwrap();
            assert_eq!(sandbox.call::<u8>("peek", before).unwrap(), 8);
            // What was mapped afterwards is gone, at once.
            let error = sandbox.call::<u8>("peek", more).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::GuestStopped, "round {round}: what was mapped later is still there");
            sandbox.restore(&snapshot).unwrap();
        }
    });
}

#[test]
fn a_list_of_hot_pages_cools_and_loses_nothing() {
    with_each_log(|builder| {
        let mut sandbox = builder.build().unwrap();
        let address: u64 = sandbox.call("map", (600_u64, 1_u8)).unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        let calls = |sandbox: &Sandbox| sandbox.stats().hypervisor_calls;
        let mut cooled = 0;
        for round in 0..300_u64 {
            let page = address + ((round * 37 % 600) << 12);
            assert_eq!(sandbox.call::<u8>("peek", page).unwrap(), 1, "round {round}");
            sandbox.call::<()>("poke", (page, 9_u8)).unwrap();
            keep(&mut sandbox, round);
            let before = sandbox.stats().hot_pages;
            sandbox.restore(&snapshot).unwrap();
            cooled += u64::from(sandbox.stats().hot_pages < before);
            assert_eq!(sandbox.call::<u8>("peek", page).unwrap(), 1, "round {round}");
            assert!(kept(&mut sandbox).is_empty(), "round {round}");
        }
        assert!((1..10).contains(&cooled), "cooled {cooled} times, {} hypervisor calls", calls(&sandbox));
        assert!(sandbox.stats().hot_pages < 400, "{} hot pages", sandbox.stats().hot_pages);
    });
}

#[test]
fn every_way_to_stop_is_healed() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut sandbox = builder(ECHO).timeout(Duration::from_millis(300)).build().unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        for round in 0..12 {
            let error = match round % 4 {
                0 => sandbox.call::<()>("panic_with", "x").unwrap_err(),
                1 => sandbox.call::<()>("exit_with", 1).unwrap_err(),
                2 => sandbox.call::<u64>("allocate", 1_u64 << 40).unwrap_err(),
                _ => sandbox.call::<String>("fail", "x").unwrap_err(),
            };
            assert!(matches!(error.kind(), ErrorKind::GuestStopped | ErrorKind::GuestReturned), "{error}");
            sandbox.restore(&snapshot).unwrap();
            assert_eq!(sandbox.status(), Status::Ready);
            for n in 0..3 {
                assert_eq!(sandbox.call::<i32>("add", (n, round)).unwrap(), n + round);
            }
        }
    });
}

#[test]
fn a_guest_stopped_at_any_moment_is_healed() {
    with_each_log(|builder| {
        let mut sandbox = builder.timeout(Duration::from_secs(5)).build().unwrap();
        keep(&mut sandbox, 1);
        let snapshot = sandbox.snapshot().unwrap();
        for micros in [0, 50, 200, 700, 1500, 3000, 5000] {
            let hasty = snapshot.builder().timeout(Duration::from_micros(micros));
            let mut hasty = hasty.build().unwrap();
            for round in 0..8 {
                let error = hasty.call::<()>("spin", ()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                // Its state is good in every sandbox, its own and a patient one.
                hasty.restore(&snapshot).unwrap();
                sandbox.restore(&hasty.snapshot().unwrap()).unwrap();
                assert_eq!(kept(&mut sandbox), [1], "stopped after {micros} us, round {round}");
            }
        }
    });
}

#[test]
fn spawned_sandboxes_live_their_own_lives() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut parent = builder(KEEPER).build().unwrap();
        keep(&mut parent, 1);
        let snapshot = parent.snapshot().unwrap();
        let mut children: Vec<Sandbox> = (0..10).map(|_| Sandbox::from_snapshot(&snapshot).unwrap()).collect();
        drop(parent);
        for (n, child) in (0..).zip(&mut children) {
            keep(child, 10 + n);
        }
        for (n, child) in (0..).zip(&mut children) {
            assert_eq!(kept(child), [1, 10 + n]);
            let mut fork = child.fork().unwrap();
            keep(&mut fork, 99);
            assert_eq!((kept(&mut fork), kept(child)), (vec![1, 10 + n, 99], vec![1, 10 + n]));
            // And each can be put to the other's state.
            let own = child.snapshot().unwrap();
            fork.restore(&own).unwrap();
            assert_eq!(kept(&mut fork), [1, 10 + n]);
        }
    });
}

#[test]
fn pages_that_a_spawned_guest_gives_back_are_zero_when_it_gets_them_again() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut parent = builder(KEEPER).build().unwrap();
        let (first, second): (u64, u64) =
            (parent.call("map", (300_u64, 0x5a_u8)).unwrap(), parent.call("map", (40_u64, 0xa5_u8)).unwrap());
        let snapshot = parent.snapshot().unwrap();
        for _ in 0..3 {
            let mut child = Sandbox::from_snapshot(&snapshot).unwrap();
            assert_eq!(child.call::<u8>("peek", first).unwrap(), 0x5a);
            child.call::<()>("unmap", (first, 300_u64)).unwrap();
            assert_eq!(child.call::<u64>("sum_of_fresh", 300_u64).unwrap(), 0, "pages of the base came back");
            child.call::<()>("poke", (second, 1_u8)).unwrap();
            child.call::<()>("unmap", (second, 40_u64)).unwrap();
            assert_eq!(child.call::<u64>("sum_of_fresh", 500_u64).unwrap(), 0);
            child.restore(&snapshot).unwrap();
            assert_eq!(child.call::<u8>("peek", second).unwrap(), 0xa5);
        }
        assert_eq!(parent.call::<u8>("peek", first).unwrap(), 0x5a);
    });
}

#[test]
fn sandboxes_of_different_guests_exchange_states() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let (mut echo, mut keeper) = (builder(ECHO_NOSTD).build().unwrap(), builder(KEEPER).build().unwrap());
        keep(&mut keeper, 5);
        let (of_echo, of_keeper) = (echo.snapshot().unwrap(), keeper.snapshot().unwrap());
        for _ in 0..3 {
            echo.restore(&of_keeper).unwrap();
            keeper.restore(&of_echo).unwrap();
            assert_eq!(kept(&mut echo), [5]);
            assert_eq!(keeper.call::<String>("echo", "changed").unwrap(), "changed");
            assert_eq!(keeper.call::<Vec<u64>>("kept", ()).unwrap_err().kind(), ErrorKind::Signature);
            echo.restore(&of_echo).unwrap();
            keeper.restore(&of_keeper).unwrap();
            assert_eq!(kept(&mut keeper), [5]);
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut small = builder(KEEPER).memory_bytes(32 << 20).build().unwrap();
        let snapshot = builder(KEEPER).build().unwrap().snapshot().unwrap();
        keep(&mut small, 3);
        let error = small.restore(&snapshot).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("33554432") && error.to_string().contains("67108864"), "{error}");
        assert_eq!((small.status(), kept(&mut small)), (Status::Ready, vec![3]));
        let of_echo = builder(ECHO).build().unwrap().snapshot().unwrap();
        let mut without = Sandbox::builder(&Image::from_path(KEEPER.path()).unwrap()).build().unwrap();
        let error = without.restore(&of_echo).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Signature);
        assert!(error.to_string().contains("greet"), "{error}");
        keep(&mut without, 4);
        assert_eq!(kept(&mut without), [4]);
    });
}

#[test]
fn the_clock_goes_on() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut sandbox = builder(KEEPER).build().unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        let mut last = 0;
        for n in 0..20 {
            let now: u64 = sandbox.call("monotonic_ns", ()).unwrap();
            assert!(now > last, "{now} after {last}");
            last = now;
            if n % 2 == 0 {
                sandbox.restore(&snapshot).unwrap();
            }
        }
        let age: u64 = Sandbox::from_snapshot(&snapshot).unwrap().call("monotonic_ns", ()).unwrap();
        assert!(age > 0);
    });
}

#[test]
fn a_steady_restore_makes_no_hypervisor_call() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut sandbox = builder(ECHO).build().unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        for _ in 0..3 {
            sandbox.call::<String>("echo", "warm").unwrap();
            sandbox.restore(&snapshot).unwrap();
        }
        for _ in 0..10 {
            let before = sandbox.stats();
            sandbox.call::<String>("echo", "hello\n").unwrap();
            sandbox.restore(&snapshot).unwrap();
            let after = sandbox.stats();
            assert_eq!((after.entries - before.entries, after.hypervisor_calls - before.hypervisor_calls), (1, 0));
        }
    });
}

#[test]
fn a_restore_copies_the_pages_that_are_written() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        // What the runtime writes at each call is on the list, too.
        const RUNTIME: u64 = 24;
        for pages in [1, 10, 100, 1000_u32] {
            let mut sandbox = builder(KEEPER).build().unwrap();
            sandbox.call::<()>("dirty", (pages, 1_u32)).unwrap();
            let snapshot = sandbox.snapshot().unwrap();
            let mut spawned = Sandbox::from_snapshot(&snapshot).unwrap();
            for _ in 0..5 {
                spawned.call::<()>("dirty", (pages, 1_u32)).unwrap();
                spawned.restore(&snapshot).unwrap();
                let hot = spawned.stats().hot_pages;
                assert!(
                    (u64::from(pages)..=u64::from(pages) + RUNTIME).contains(&hot),
                    "{pages} written, {hot} copied"
                );
            }
        }
    });
}

#[test]
fn a_snapshot_costs_what_differs() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut sandbox = builder(KEEPER).heap_bytes(1 << 30).build().unwrap();
        let base = sandbox.snapshot().unwrap();
        assert!(base.pages() < 400, "{} pages", base.pages());
        let same = sandbox.snapshot().unwrap();
        assert_eq!((same.depth(), same.pages()), (base.depth(), base.pages()));
        keep(&mut sandbox, 1);
        let child = sandbox.snapshot().unwrap();
        assert!((1..=20).contains(&child.own_pages()), "{} own pages", child.own_pages());
    });
}
