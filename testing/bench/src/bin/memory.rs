//! `memory/per_sandbox`: what each of many sandboxes from one snapshot costs, private memory of this process and memory of
//! the whole machine apart: the hypervisor's share is in the latter alone.
//!
//! The machine's figure is a difference of what is available, so that others who come and go blur it.
#![expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]

use coracle::Sandbox;
use coracle_bench::workload;

const SANDBOXES: usize = 1000;

/// A field of one of the kernel's files, in KiB.
fn field(path: &str, name: &str) -> i64 {
    let text = std::fs::read_to_string(path).expect("Linux has it");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the field is there");
    line.split_ascii_whitespace().next().and_then(|number| number.parse().ok()).expect("it is a number")
}

/// Proportional set size of this process, and what the machine has left.
fn now() -> (i64, i64) {
    (field("/proc/self/smaps_rollup", "Pss:"), field("/proc/meminfo", "MemAvailable:"))
}

fn main() {
    let mut parent = workload::sandbox(&workload::echo_image(), 32 << 20);
    parent.call::<String>("echo", "hello\n").expect("echo answers");
    let snapshot = parent.snapshot().expect("a ready guest can be frozen");
    let spawn = || Sandbox::from_snapshot(&snapshot).expect("a snapshot spawns");
    drop(spawn());
    let before = now();
    let show = |when: &str| {
        let after = now();
        let each = |kib: i64| kib / SANDBOXES as i64;
        println!(
            "{when:<20} {:>6} KiB private, {:>6} KiB of the machine",
            each(after.0 - before.0),
            each(before.1 - after.1)
        );
    };
    let mut sandboxes: Vec<Sandbox> = (0..SANDBOXES).map(|_| spawn()).collect();
    println!("memory/per_sandbox, {SANDBOXES} alive");
    show("before a call");
    for sandbox in &mut sandboxes {
        sandbox.call::<String>("echo", "hello\n").expect("echo answers");
    }
    show("after an echo each");
}
