//! What things cost, in counts that are the same on every machine. SPEC.md cites these tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use coracle::{Builder, Config, Image, Sandbox, Stats, shells};
use coracle_artifacts::{ECHO, ECHO_NOSTD, HELLO, RustGuest};
use coracle_testing::{kvm_or_skip, patiently, within};
use std::time::Duration;

fn builder(guest: RustGuest) -> Builder {
    Sandbox::builder(&Image::from_path(guest.path()).unwrap())
        .host_fn("greet", |name: String| Ok::<_, String>(name))
        .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)))
        .host_fn("time_of_day", |(): ()| Ok::<_, String>("morning".to_owned()))
}

/// What `work` cost.
fn cost(sandbox: &mut Sandbox, work: impl FnOnce(&mut Sandbox)) -> (u64, u64) {
    let before = sandbox.stats();
    work(sandbox);
    let after = sandbox.stats();
    (after.entries - before.entries, after.hypervisor_calls - before.hypervisor_calls)
}

#[test]
fn a_warm_call_is_one_entry_and_nothing_else() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        for guest in [ECHO, ECHO_NOSTD] {
            let mut sandbox = builder(guest).build().unwrap();
            sandbox.call::<String>("echo", "warm").unwrap();
            sandbox.call::<String>("call_host", "warm").unwrap();
            for _ in 0..10 {
                let call = cost(&mut sandbox, |sandbox| drop(sandbox.call::<String>("echo", "hello\n").unwrap()));
                assert_eq!(call, (1, 0), "entries and other hypervisor calls of a call");
                let host_call = cost(&mut sandbox, |sandbox| drop(sandbox.call::<String>("call_host", "you").unwrap()));
                assert_eq!(host_call, (2, 0), "with one host call");
            }
        }
    });
}

#[test]
fn a_guest_starts_with_few_system_calls() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let calls = |guest| builder(guest).build().unwrap().stats().system_calls;
        if guest_is_musl(HELLO) {
            assert!(calls(HELLO) <= 4, "{}", calls(HELLO));
        }
        assert_eq!(calls(ECHO_NOSTD), 0);
    });
}

#[test]
fn a_guest_writes_few_pages_before_it_is_ready() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let pages = |guest| builder(guest).build().unwrap().stats().pages_written_at_start.unwrap();
        assert!(!guest_is_musl(HELLO) || pages(HELLO) <= 12, "{}", pages(HELLO));
        assert!(pages(ECHO_NOSTD) <= 8, "{}", pages(ECHO_NOSTD));
    });
}

#[test]
fn a_guest_executes_few_instructions() {
    within(Duration::from_secs(240), || {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut config = Config::default();
        config.count_instructions = true;
        for (guest, start_limit) in [(ECHO, 20_000), (ECHO_NOSTD, 4_000)] {
            let mut sandbox = builder(guest).config(config.clone()).build().unwrap();
            let start = sandbox.stats().guest_instructions.unwrap();
            assert!(start > 0 && (!guest_is_musl(guest) || start <= start_limit), "{guest:?}: {start} until ready");
            sandbox.call::<String>("echo", "hello\n").unwrap();
            let before = sandbox.stats().guest_instructions.unwrap();
            sandbox.call::<String>("echo", "hello\n").unwrap();
            let echo = sandbox.stats().guest_instructions.unwrap() - before;
            assert!((1..=1_200).contains(&echo), "{guest:?}: {echo} for an echo");
        }
    });
}

#[test]
fn cost_does_not_follow_the_configured_size() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        shells::set_limit(0); // A machine that was there costs nothing.
        let stats = |heap: u64| builder(ECHO).heap_bytes(heap).build().unwrap().stats();
        let comparable = |stats: Stats| (stats.entries, stats.hypervisor_calls, stats.pages_in_use);
        let small = comparable(stats(8 << 20));
        for heap in [64 << 20, 256 << 20, 8 << 30] {
            let large = comparable(stats(heap));
            assert_eq!((small.0, small.1), (large.0, large.1), "{heap} bytes of heap");
            // A heap that does not fit the common window needs two page tables of its own.
            assert!(large.2 <= small.2 + 3, "{small:?} {large:?}");
        }
    });
}

/// Whether guests are built as intended: the stand-in C library starts more slowly, and its costs are not promised.
fn guest_is_musl(guest: RustGuest) -> bool {
    guest.path().components().any(|part| part.as_os_str() == "x86_64-unknown-linux-musl")
}
