//! Machines that are used again: the next guest finds nothing of the last one. The counts are the process's: one test at a time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use coracle::{Builder, CpuTemplate, DirtyLog, Image, Kvm, Sandbox, Status, shells};
use coracle_artifacts::{ECHO, KEEPER, RustGuest};
use coracle_testing::{kvm_or_skip, patiently};

fn alone(body: impl FnOnce() + Send + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    patiently(|| {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if kvm_or_skip().is_some() {
            shells::set_limit(16);
            shells::clear();
            body();
        }
    });
}

fn builder(guest: RustGuest) -> Builder {
    Sandbox::builder(&Image::from_path(guest.path()).unwrap())
        .timeout(Duration::from_secs(20))
        .host_fn("greet", |name: String| Ok::<_, String>(name))
        .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)))
}

/// Drops a sandbox, and waits until its machine is there for the next one.
fn give_back(sandbox: Sandbox) {
    let kept = shells::stats().kept;
    drop(sandbox);
    while shells::stats().kept == kept {
        std::thread::yield_now();
    }
}

/// That the next sandbox gets a machine that was there.
fn reused(make: impl FnOnce() -> Sandbox) -> Sandbox {
    let before = shells::stats();
    let sandbox = make();
    let after = shells::stats();
    assert_eq!((after.reused, after.created), (before.reused + 1, before.created));
    sandbox
}

#[test]
fn the_next_guest_finds_nothing_of_the_last() {
    alone(|| {
        for log in [DirtyLog::Best, DirtyLog::Bitmap] {
            let with_log = |guest| builder(guest).backend(Kvm::open(CpuTemplate::Host).unwrap().with_dirty_log(log));
            let mut first = with_log(KEEPER).build().unwrap();
            let snapshot = first.snapshot().unwrap();
            let clean: Vec<u64> = first.call("registers", ()).unwrap();
            let nonce = 0x1122_3344_5566_7788_u64;
            let _ = first.call::<()>("fill_registers", nonce);
            assert_eq!(first.status(), Status::Poisoned);
            give_back(first);
            let mut spawned = reused(|| snapshot.builder().build().unwrap());
            assert_eq!(spawned.call::<Vec<u64>>("registers", ()).unwrap(), clean);
            spawned.call::<()>("keep", nonce).unwrap();
            let _ = spawned.call::<()>("fill_registers", nonce);
            give_back(spawned);
            let mut booted = reused(|| with_log(KEEPER).build().unwrap());
            assert_eq!(booted.call::<Vec<u64>>("registers", ()).unwrap(), clean);
            assert_eq!(booted.call::<Vec<u64>>("kept", ()).unwrap(), Vec::<u64>::new());
            give_back(booted);
        }
    });
}

#[test]
fn guests_of_other_images_follow_each_other() {
    alone(|| {
        let mut sandbox = builder(KEEPER).build().unwrap();
        let keeper = sandbox.snapshot().unwrap();
        for round in 0..20 {
            give_back(sandbox);
            let mut echo = reused(|| builder(ECHO).build().unwrap());
            assert_eq!(echo.call::<String>("echo", "hello").unwrap(), "hello");
            give_back(echo);
            sandbox = reused(|| Sandbox::from_snapshot(&keeper).unwrap());
            sandbox.call::<()>("keep", round).unwrap();
            assert_eq!(sandbox.call::<Vec<u64>>("kept", ()).unwrap(), [round]);
        }
    });
}

#[test]
fn a_spawn_on_a_machine_that_was_there_makes_no_hypervisor_call() {
    alone(|| {
        let mut sandbox = builder(ECHO).build().unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        give_back(sandbox);
        let spawned = reused(|| Sandbox::from_snapshot(&snapshot).unwrap());
        let stats = spawned.stats();
        assert_eq!((stats.entries, stats.hypervisor_calls), (0, 0));
    });
}

#[test]
fn other_memory_and_other_processors_get_machines_of_their_own() {
    alone(|| {
        give_back(builder(ECHO).build().unwrap());
        let created = shells::stats().created;
        drop(builder(ECHO).memory_bytes(32 << 20).build().unwrap());
        drop(builder(ECHO).backend(Kvm::open(CpuTemplate::X86_64V2).unwrap()).build().unwrap());
        assert_eq!(shells::stats().created, created + 2);
    });
}

#[test]
fn no_more_are_kept_than_the_limit() {
    alone(|| {
        shells::set_limit(2);
        let sandboxes: Vec<Sandbox> = (0..8).map(|_| builder(ECHO).build().unwrap()).collect();
        drop(sandboxes);
        let mut sandbox = builder(ECHO).build().unwrap();
        while shells::stats().kept < 2 {
            std::thread::yield_now();
        }
        assert_eq!(sandbox.call::<String>("echo", "x").unwrap(), "x");
        drop(sandbox);
        shells::set_limit(1);
        assert!(shells::stats().kept <= 1);
        shells::clear();
        assert_eq!(shells::stats().kept, 0);
        shells::set_limit(0);
        let created = shells::stats().created;
        drop(builder(ECHO).build().unwrap());
        drop(builder(ECHO).build().unwrap());
        shells::clear();
        assert_eq!(shells::stats().created, created + 2);
    });
}
