//! Nothing is done in proportion to the memory that a sandbox may have: not when it is made, frozen, put back, copied or
//! dropped. One test, in a process of its own: it looks at all of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coracle::{Image, Sandbox, Snapshot, shells};
use coracle_artifacts::ECHO;
use coracle_testing::usage::Usage;
use coracle_testing::{kvm_or_skip, within};

/// So many at once, so that little things add up.
const SANDBOXES: i64 = 16;

/// Pages may come to lie in one or two more of the page tables, or in one more page of book-keeping. In proportion to the
/// memory, a bit for each page would be 512 KiB.
const PRIVATE_KIB_MORE: i64 = 64;

/// What a step took for each sandbox: entries and hypervisor calls, mappings and private memory of this process.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    calls: i64,
    mappings: i64,
    private_kib: i64,
}

impl Cost {
    /// All that these and the process have used up to now.
    fn now(alive: &[&[Sandbox]]) -> Self {
        let calls = alive.iter().flat_map(|group| group.iter()).map(Sandbox::stats);
        Self {
            calls: calls.map(|stats| (stats.hypervisor_calls + stats.entries) as i64).sum(),
            mappings: std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as i64,
            private_kib: Usage::now().unwrap().private_kib,
        }
    }

    fn each_since(self, before: Self) -> Self {
        let each = |now: i64, before: i64| (now - before) / SANDBOXES;
        Self {
            calls: each(self.calls, before.calls),
            mappings: each(self.mappings, before.mappings),
            private_kib: each(self.private_kib, before.private_kib),
        }
    }
}

/// The steps of a life, and what each cost.
fn live(image: &Image, heap_bytes: u64) -> Vec<(&'static str, Cost)> {
    let build = || {
        let builder = Sandbox::builder(image)
            .host_fn("greet", |name: String| Ok::<_, String>(name))
            .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)));
        builder.heap_bytes(heap_bytes).build().unwrap()
    };
    let mut steps = Vec::new();
    let mut before = Cost::now(&[]);
    let mut step = |what, alive: &[&[Sandbox]]| {
        let now = Cost::now(alive);
        steps.push((what, now.each_since(before)));
        before = now;
    };
    let mut sandboxes: Vec<Sandbox> = (0..SANDBOXES).map(|_| build()).collect();
    step("made", &[&sandboxes]);
    let snapshots: Vec<Snapshot> = sandboxes.iter_mut().map(|sandbox| sandbox.snapshot().unwrap()).collect();
    step("frozen", &[&sandboxes]);
    for sandbox in &mut sandboxes {
        assert_eq!(sandbox.call::<String>("echo", "hello\n").unwrap(), "hello\n");
    }
    step("called", &[&sandboxes]);
    for (sandbox, snapshot) in sandboxes.iter_mut().zip(&snapshots) {
        sandbox.restore(snapshot).unwrap();
    }
    step("put back", &[&sandboxes]);
    let copies: Vec<Sandbox> = snapshots.iter().map(|snapshot| Sandbox::from_snapshot(snapshot).unwrap()).collect();
    step("copied", &[&sandboxes, &copies]);
    drop(copies);
    shells::clear();
    step("copies dropped", &[&sandboxes]);
    drop((sandboxes, snapshots));
    shells::clear();
    step("dropped", &[]);
    steps
}

#[test]
fn no_step_of_a_life_costs_what_the_memory_limit_allows() {
    within(Duration::from_secs(120), || {
        if kvm_or_skip().is_none() {
            return;
        }
        let image = Image::from_path(ECHO.path()).unwrap();
        shells::set_limit(0); // Each sandbox has a machine of its own.
        live(&image, 64 << 20); // What is paid once.
        for round in 0..3 {
            let (small, large) = (live(&image, 8 << 20), live(&image, 8 << 30));
            let all = || format!("round {round}, each of {SANDBOXES}\n8 MiB: {small:?}\n8 GiB: {large:?}");
            let mut sum = 0;
            for ((what, small), (_, large)) in small.iter().zip(&large) {
                assert_eq!(small.calls, large.calls, "{what}, {}", all());
                assert!((large.mappings - small.mappings).abs() <= 1, "{what}, {}", all());
                assert!((large.private_kib - small.private_kib).abs() <= PRIVATE_KIB_MORE, "{what}, {}", all());
                sum += large.private_kib;
            }
            assert!(sum < PRIVATE_KIB_MORE, "it is not given back: {}", all());
            assert!(small[0].1.calls > 0 && small[0].1.private_kib > 100, "nothing was counted: {}", all());
        }
    });
}
