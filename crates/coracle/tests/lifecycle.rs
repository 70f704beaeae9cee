//! Many sandboxes, one after the other: nothing is left behind. One test only, since it counts what the process has.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coracle::{Image, Sandbox, shells};
use coracle_artifacts::ECHO_NOSTD;
use coracle_testing::{kvm_or_skip, within};

fn image() -> Image {
    Image::from_path(ECHO_NOSTD.path()).unwrap()
}

fn sandbox(image: &Image) -> Sandbox {
    Sandbox::builder(image).host_fn("greet", |name: String| Ok::<_, String>(name)).build().unwrap()
}

/// File descriptors, mappings, threads, and resident kilobytes of this process.
fn footprint() -> [u64; 4] {
    let lines = |path: &str| std::fs::read_to_string(path).unwrap().lines().count() as u64;
    let entries = |path: &str| std::fs::read_dir(path).unwrap().count() as u64;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = resident.split_ascii_whitespace().next().unwrap().parse().unwrap();
    [entries("/proc/self/fd"), lines("/proc/self/maps"), entries("/proc/self/task"), resident]
}

#[test]
fn ten_thousand_sandboxes_leave_nothing_behind() {
    within(Duration::from_secs(300), || {
        if kvm_or_skip().is_none() {
            return;
        }
        let image = image();
        for _ in 0..100 {
            assert_eq!(sandbox(&image).call::<i32>("add", (1, 2)).unwrap(), 3);
        }
        shells::clear();
        let before = footprint();
        for n in 0..10_000 {
            assert_eq!(sandbox(&image).call::<i32>("add", (n, 1)).unwrap(), n + 1);
        }
        shells::clear();
        let after = footprint();
        assert_eq!(before[0], after[0], "file descriptors");
        assert!(after[1] <= before[1] + 8, "mappings: {} before, {} after", before[1], after[1]);
        assert_eq!(before[2], after[2], "threads");
        assert!(after[3] <= before[3] + 4096, "resident KiB: {} before, {} after", before[3], after[3]);
    });
}
