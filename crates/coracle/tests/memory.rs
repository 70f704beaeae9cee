//! What a thousand sandboxes of one snapshot take, each. One test, in a process of its own: it looks at all of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coracle::{Image, Sandbox, shells};
use coracle_artifacts::ECHO;
use coracle_testing::usage::{self, Usage};
use coracle_testing::{kvm_or_skip, skip, within};

const SANDBOXES: usize = 1000;

/// Generously.
const DESCRIPTORS_EACH: usize = 4;

/// Of what the machine has left the middle counts: others take and give back, too.
const ATTEMPTS: usize = 3;

#[test]
fn a_thousand_sandboxes_take_little_memory() {
    within(Duration::from_secs(300), || {
        if kvm_or_skip().is_none() {
            return;
        }
        shells::set_limit(0); // Machines that are kept are no sandbox's.
        let builder = Sandbox::builder(&Image::from_path(ECHO.path()).unwrap())
            .host_fn("greet", |name: String| Ok::<_, String>(name))
            .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)))
            .heap_bytes(32 << 20);
        let echo = |sandbox: &mut Sandbox| {
            assert_eq!(sandbox.call::<String>("echo", "hello\n").unwrap(), "hello\n");
        };
        let count = SANDBOXES.min(descriptors() / DESCRIPTORS_EACH);
        if count < SANDBOXES {
            skip(&format!("only {count} of {SANDBOXES} sandboxes: allow more descriptors (ulimit -n 4096)"));
        }
        let mut parent = builder.build().unwrap();
        echo(&mut parent);
        let snapshot = parent.snapshot().unwrap();
        let spawn = || Sandbox::from_snapshot(&snapshot).unwrap();
        let (before, after): (Vec<Usage>, Vec<Usage>) =
            (0..ATTEMPTS).map(|_| usage::of_each(count, spawn, echo).unwrap()).unzip();
        assert!(before.iter().all(|usage| (1..=64).contains(&usage.private_kib)), "before a call: {before:?}");
        assert!(after.iter().all(|usage| (1..=200).contains(&usage.private_kib)), "after an echo: {after:?}");
        let mut machine = before.clone();
        machine.sort_unstable_by_key(|usage| usage.machine_kib);
        assert!(machine[ATTEMPTS / 2].machine_kib <= 400, "of the machine, before a call: {before:?}");
    });
}

/// How many descriptors this process may have.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    limit.split_ascii_whitespace().next().unwrap().parse().unwrap_or(usize::MAX)
}
