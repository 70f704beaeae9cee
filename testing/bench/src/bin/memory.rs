//! `memory/per_sandbox`: what each of many sandboxes from one snapshot costs, private memory of this process and memory of
//! the whole machine apart: the hypervisor's share is in the latter alone.
//!
//! The machine's figure is a difference of what is available, so that others who come and go blur it. What SPEC.md promises
//! is held by a test, `coracle/tests/memory.rs`.
#![expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]

use coracle::Sandbox;
use coracle_bench::workload;
use coracle_testing::usage::{self, Usage};

const SANDBOXES: usize = 1000;

fn main() {
    let mut parent = workload::sandbox(&workload::echo_image(), 32 << 20);
    let echo = |sandbox: &mut Sandbox| drop(sandbox.call::<String>("echo", "hello\n").expect("echo answers"));
    echo(&mut parent);
    let snapshot = parent.snapshot().expect("a ready guest can be frozen");
    let spawn = || Sandbox::from_snapshot(&snapshot).expect("a snapshot spawns");
    let (before, after) = usage::of_each(SANDBOXES, spawn, echo).expect("Linux tells");
    println!("memory/per_sandbox, {SANDBOXES} alive");
    for (when, Usage { private_kib, machine_kib }) in [("before a call", before), ("after an echo each", after)] {
        println!("{when:<20} {private_kib:>6} KiB private, {machine_kib:>6} KiB of the machine");
    }
}
