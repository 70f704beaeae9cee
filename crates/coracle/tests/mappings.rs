//! Content that the embedder lends to guests: found by name, never copied until it is written, gone when it is taken away.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use coracle::{Builder, Content, CpuTemplate, DirtyLog, ErrorKind, Image, Kvm, MapMode, Output, Sandbox, Status};
use coracle_artifacts::BORROWER;
use coracle_testing::{kvm_or_skip, patiently, within};

const PAGE: u64 = 4096;

fn test(body: fn(&dyn Fn() -> Builder)) {
    within(Duration::from_secs(120), move || {
        if kvm_or_skip().is_none() {
            return;
        }
        for log in [DirtyLog::Best, DirtyLog::Bitmap] {
            let image = Image::from_path(BORROWER.path()).unwrap();
            body(&|| {
                let kvm = Kvm::open(CpuTemplate::Host).unwrap().with_dirty_log(log);
                Sandbox::builder(&image).timeout(Duration::from_secs(20)).backend(kvm)
            });
        }
    });
}

/// A file that goes away with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("coracle-mappings-{}-{name}", std::process::id()));
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn sum(sandbox: &mut Sandbox, name: &str) -> Option<u64> {
    sandbox.call("sum", name).unwrap()
}

fn fill(sandbox: &mut Sandbox, name: &str, from: u64, count: u64, byte: u8) -> bool {
    sandbox.call("fill", (name, from, count, byte)).unwrap()
}

fn bytes(sandbox: &mut Sandbox, name: &str, from: u64, count: u64) -> Vec<u8> {
    sandbox.call::<Option<Vec<u8>>>("bytes", (name, from, count)).unwrap().unwrap()
}

#[test]
fn a_guest_finds_what_was_lent_before_and_after_it_started() {
    test(|builder| {
        let file = File::new("finds", &[1; 10_000]);
        let (from_file, from_bytes) = (Content::from_file(&file.0).unwrap(), Content::from_bytes([2; 5]).unwrap());
        let mut sandbox = builder().map("file", &from_file, MapMode::ReadOnly).build().unwrap();
        assert_eq!(sum(&mut sandbox, "file"), Some(10_000));
        assert_eq!(sum(&mut sandbox, "bytes"), None);
        let address = sandbox.map("bytes", &from_bytes, MapMode::ReadOnly).unwrap();
        assert_eq!(sum(&mut sandbox, "bytes"), Some(10));
        assert_eq!(sandbox.call::<u64>("address", "bytes").unwrap(), address);
        let chosen = 0x1234_5000_0000;
        sandbox.map_at("chosen", &from_bytes, MapMode::ReadOnly, chosen).unwrap();
        assert_eq!(sandbox.call::<u64>("address", "chosen").unwrap(), chosen);
        assert_eq!(sum(&mut sandbox, "chosen"), Some(10));
        let known: Vec<(&str, u64)> = sandbox.mappings().map(|mapping| (mapping.name(), mapping.bytes())).collect();
        assert_eq!(known, [("file", 10_000), ("bytes", 5), ("chosen", 5)]);
        sandbox.unmap("file").unwrap();
        assert_eq!(sum(&mut sandbox, "file"), None);
        assert_eq!(sum(&mut sandbox, "chosen"), Some(10));
        assert_eq!(sandbox.unmap("file").unwrap_err().kind(), ErrorKind::Config);
    });
}

#[test]
fn rights_are_enforced_by_the_processor() {
    test(|builder| {
        let content = Content::from_bytes([9; 3 * PAGE as usize]).unwrap();
        let mut sandbox = builder().map("words", &content, MapMode::ReadOnly).build().unwrap();
        assert!(!fill(&mut sandbox, "words", 0, 1, 1), "the SDK says no");
        let address: u64 = sandbox.call("address", "words").unwrap();
        let error = sandbox.call::<()>("poke", (address + PAGE, 1_u8)).unwrap_err();
        assert_eq!((error.kind(), sandbox.status()), (ErrorKind::GuestStopped, Status::Poisoned));
        assert_eq!(sandbox.map("more", &content, MapMode::ReadOnly).unwrap_err().kind(), ErrorKind::Unusable);
        // What is behind its last page is not the guest's.
        let mut sandbox = builder().map("words", &content, MapMode::CopyOnWrite).build().unwrap();
        let address: u64 = sandbox.call("address", "words").unwrap();
        let error = sandbox.call::<u8>("peek", address - 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::GuestStopped);
    });
}

#[test]
fn each_sandbox_writes_to_a_copy_of_its_own() {
    test(|builder| {
        let file = File::new("copies", &[1; 100 * PAGE as usize]);
        let content = Content::from_file(&file.0).unwrap();
        let make = || builder().map("data", &content, MapMode::CopyOnWrite).build().unwrap();
        let (mut one, mut other) = (make(), make());
        let all = 100 * PAGE;
        assert_eq!((sum(&mut one, "data"), sum(&mut other, "data")), (Some(all), Some(all)));
        let before = one.stats().pages_in_use;
        assert!(fill(&mut one, "data", 10 * PAGE + 5, 3 * PAGE, 2));
        assert_eq!(sum(&mut one, "data"), Some(all + 3 * PAGE));
        assert!(one.stats().pages_in_use <= before + 4, "a copy of each page that was written, and no more");
        assert_eq!(sum(&mut other, "data"), Some(all));
        assert_eq!(std::fs::read(&file.0).unwrap(), vec![1; all as usize]);
    });
}

#[test]
fn snapshots_carry_mappings_and_what_was_written_there() {
    test(|builder| {
        let (first, second) = (Content::from_bytes([1; 20_000]).unwrap(), Content::from_bytes([2; 20_000]).unwrap());
        let mut sandbox = builder().build().unwrap();
        let bare = sandbox.snapshot().unwrap();
        sandbox.map("first", &first, MapMode::CopyOnWrite).unwrap();
        assert!(fill(&mut sandbox, "first", 0, 100, 0), "also with zeros");
        let written = sandbox.snapshot().unwrap();
        sandbox.map("second", &second, MapMode::ReadOnly).unwrap();
        for round in 0..10_u64 {
            assert_eq!(sum(&mut sandbox, "first"), Some(19_900), "round {round}");
            assert!(fill(&mut sandbox, "first", round * 1000, 50, 7));
            match round % 3 {
                0 => sandbox.unmap("first").unwrap(),
                1 => {
                    sandbox.restore(&bare).unwrap();
                    assert_eq!((sum(&mut sandbox, "first"), sum(&mut sandbox, "second")), (None, None));
                    sandbox.map("other", &second, MapMode::CopyOnWrite).unwrap();
                    assert!(fill(&mut sandbox, "other", 0, 20_000, 3));
                }
                _ => {}
            }
            sandbox.restore(&written).unwrap();
            assert_eq!((sum(&mut sandbox, "second"), sum(&mut sandbox, "other")), (None, None), "round {round}");
        }
        assert_eq!(bytes(&mut sandbox, "first", 99, 2), [0, 1]);
        drop((first, second)); // What is mapped keeps itself alive.
        let mut spawned = Sandbox::from_snapshot(&written).unwrap();
        assert_eq!(bytes(&mut spawned, "first", 99, 2), [0, 1]);
        assert!(fill(&mut spawned, "first", 19_000, 1000, 9));
        let mut fork = spawned.fork().unwrap();
        assert_eq!(bytes(&mut fork, "first", 18_999, 2), [1, 9]);
        // Into a sandbox that never had it.
        let mut foreign = builder().build().unwrap();
        foreign.restore(&written).unwrap();
        assert_eq!(sum(&mut foreign, "first"), Some(19_900));
        assert_eq!(foreign.mappings().count(), 1);
        foreign.restore(&bare).unwrap();
        assert_eq!((sum(&mut foreign, "first"), foreign.mappings().count()), (None, 0));
    });
}

#[test]
fn a_steady_restore_makes_no_hypervisor_call_with_mappings_either() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let content = Content::from_bytes([1; 50_000]).unwrap();
        let image = Image::from_path(BORROWER.path()).unwrap();
        let mut sandbox = Sandbox::builder(&image).map("data", &content, MapMode::CopyOnWrite).build().unwrap();
        assert_eq!(sum(&mut sandbox, "data"), Some(50_000));
        assert!(fill(&mut sandbox, "data", 0, 10, 2));
        let snapshot = sandbox.snapshot().unwrap();
        let once = |sandbox: &mut Sandbox| {
            assert!(fill(sandbox, "data", 5, 10, 3));
            assert_eq!(sum(sandbox, "data"), Some(50_000 + 5 + 20));
            sandbox.restore(&snapshot).unwrap();
        };
        (0..3).for_each(|_| once(&mut sandbox));
        let before = sandbox.stats();
        (0..10).for_each(|_| once(&mut sandbox));
        let after = sandbox.stats();
        assert_eq!((after.entries - before.entries, after.hypervisor_calls - before.hypervisor_calls), (20, 0));
    });
}

#[test]
fn a_mapping_takes_no_memory_of_the_guest() {
    test(|builder| {
        let file = File::new("large", &[]);
        std::fs::OpenOptions::new().write(true).open(&file.0).unwrap().set_len(1 << 30).unwrap();
        let content = Content::from_file(&file.0).unwrap();
        let mut sandbox = builder().memory_bytes(16 << 20).map("large", &content, MapMode::ReadOnly).build().unwrap();
        assert_eq!(bytes(&mut sandbox, "large", (1 << 30) - 4, 4), [0; 4]);
        assert_eq!(bytes(&mut sandbox, "large", 123 << 20, 4), [0; 4]);
        assert!(sandbox.stats().pages_in_use < 4096);
        // What it writes does, and no more than it may have.
        let mut sandbox =
            builder().memory_bytes(16 << 20).map("large", &content, MapMode::CopyOnWrite).build().unwrap();
        let error = sandbox.call::<bool>("fill", ("large", 0_u64, 1_u64 << 29, 1_u8)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::GuestStopped);
        let cause = &error.crash().unwrap().cause;
        assert!(matches!(cause, coracle::Cause::OutOfMemory), "{cause:?}");
    });
}

#[test]
fn the_host_reads_lent_bytes_for_the_guest() {
    test(|builder| {
        let content = Content::from_bytes(b"lent, and printed\n").unwrap();
        let (stdout, captured) = Output::capture(1000);
        let mut sandbox = builder().stdout(stdout).map("text", &content, MapMode::ReadOnly).build().unwrap();
        assert!(sandbox.call::<bool>("print", "text").unwrap());
        assert_eq!(captured.text(), "lent, and printed\n");
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    test(|builder| {
        let content = Content::from_bytes([1; 5000]).unwrap();
        let mut sandbox = builder().map("data", &content, MapMode::ReadOnly).build().unwrap();
        let address: u64 = sandbox.call("address", "data").unwrap();
        let refused = |sandbox: &mut Sandbox, name: &str, address: u64| {
            sandbox.map_at(name, &content, MapMode::CopyOnWrite, address).unwrap_err().to_string()
        };
        let free = 0x1234_5000_0000;
        assert!(refused(&mut sandbox, "data", free).contains("already"));
        assert!(refused(&mut sandbox, "", free).contains("name"));
        assert!(refused(&mut sandbox, &"n".repeat(57), free).contains("name"));
        for overlapping in [address, address + PAGE, address - PAGE] {
            assert!(refused(&mut sandbox, "more", overlapping).contains("something is mapped there"));
        }
        for senseless in [0, 1, PAGE, u64::MAX, u64::MAX - PAGE + 1, 0x7fff_bfff_0000, 0x7fff_ffff_e000, 1 << 63] {
            assert!(refused(&mut sandbox, "more", senseless).contains("not pages that a guest can have"));
        }
        for n in 1..32 {
            sandbox.map(n.to_string(), &content, MapMode::ReadOnly).unwrap();
        }
        assert_eq!(sandbox.map("more", &content, MapMode::ReadOnly).unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!(sum(&mut sandbox, "data"), Some(5000));
        assert_eq!(sum(&mut sandbox, "31"), Some(5000));
        assert_eq!(sandbox.mappings().count(), 32);
        let twice = builder().map("a", &content, MapMode::ReadOnly).map("a", &content, MapMode::ReadOnly).build();
        assert_eq!(twice.unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(Content::from_file("/nonexistent").unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(Content::from_file("/").unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(Content::from_bytes([]).unwrap_err().kind(), ErrorKind::Config);
    });
}

#[test]
fn a_changed_file_is_not_mapped_again() {
    test(|builder| {
        let file = File::new("changed", &[1; 5000]);
        let content = Content::from_file(&file.0).unwrap();
        let mut sandbox = builder().map("data", &content, MapMode::ReadOnly).build().unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        std::fs::OpenOptions::new().append(true).open(&file.0).unwrap().write_all(&[2]).unwrap();
        let error = Sandbox::from_snapshot(&snapshot).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Host);
    });
}

#[test]
fn aliases_are_refused_by_the_sdk() {
    test(|builder| {
        let content = Content::from_bytes([1; 10]).unwrap();
        let mut sandbox = builder().map("data", &content, MapMode::CopyOnWrite).build().unwrap();
        let error = sandbox.call::<()>("read_and_write", "data").unwrap_err();
        assert!(error.to_string().contains("being read or written"), "{error}");
    });
}
