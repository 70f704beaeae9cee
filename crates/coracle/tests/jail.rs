//! The jail of threads that run guests: all that the library needs works in it, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "asks the kernel for what a jailed thread must not have")]

use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use coracle::{
    Builder, Content, CpuTemplate, DirtyLog, ErrorKind, Image, Jail, Kvm, MapMode, Output, Pool, Sandbox, Status,
    Store, Violation,
};
use coracle_artifacts::{ECHO, KEEPER, RustGuest};
use coracle_testing::{kvm_or_skip, patiently};

fn builder(guest: RustGuest) -> Builder {
    Sandbox::builder(&Image::from_path(guest.path()).unwrap())
        .timeout(Duration::from_secs(20))
        .host_fn("greet", |name: String| Ok::<_, String>(name))
        .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)))
}

/// Runs `body` in a thread of its own that has entered the jail, with each dirty log's backend.
fn jailed(body: fn(Builder, Builder)) {
    patiently(move || {
        if kvm_or_skip().is_none() {
            return;
        }
        for log in [DirtyLog::Best, DirtyLog::Bitmap] {
            let backend = || Kvm::open(CpuTemplate::Host).unwrap().with_dirty_log(log);
            let (keeper, echo) = (builder(KEEPER).backend(backend()), builder(ECHO).backend(backend()));
            let thread = thread::spawn(move || {
                Jail::new().enter().unwrap();
                body(keeper, echo);
            });
            thread.join().unwrap();
        }
    });
}

#[test]
fn everything_that_sandboxes_need_works_in_it() {
    jailed(|keeper, echo| {
        let (stdout, captured) = Output::capture(1000);
        let mut sandbox = keeper.stdout(stdout).build().unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        for round in 0..50_u64 {
            sandbox.call::<()>("keep", round).unwrap();
            assert_eq!(sandbox.call::<u64>("sum_of_fresh", 100_u64).unwrap(), 0);
            sandbox.restore(&snapshot).unwrap();
        }
        let error = sandbox.call::<u8>("peek", 8_u64).unwrap_err();
        assert_eq!((error.kind(), sandbox.status()), (ErrorKind::GuestStopped, Status::Poisoned));
        sandbox.restore(&snapshot).unwrap();
        let words = Content::from_bytes([1; 9000]).unwrap();
        sandbox.map("words", &words, MapMode::ReadOnly).unwrap();
        sandbox.unmap("words").unwrap();
        for _ in 0..5 {
            let mut spawned = Sandbox::from_snapshot(&snapshot).unwrap();
            spawned.call::<()>("keep", 1_u64).unwrap();
            let mut fork = spawned.fork().unwrap();
            assert_eq!(fork.call::<Vec<u64>>("kept", ()).unwrap(), [1]);
        }
        let mut echo = echo.build().unwrap();
        assert_eq!(echo.call::<String>("call_host", "x").unwrap(), "x");
        assert_eq!(captured.text(), "");
    });
}

#[test]
fn deadlines_are_kept_in_it() {
    jailed(|keeper, _| {
        let mut sandbox = keeper.timeout(Duration::from_millis(30)).build().unwrap();
        assert_eq!(sandbox.call::<()>("spin", ()).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn nothing_else_can_be_had_in_it() {
    patiently(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        thread::spawn(move || {
            // What is refused inside works outside.
            let attempts = |expected: bool| {
                let works = [
                    ("open", std::fs::read("/proc/self/status").is_ok()),
                    ("create", std::fs::write(path.join("file"), "x").is_ok()),
                    ("mkdir", std::fs::create_dir(path.join(if expected { "outside" } else { "inside" })).is_ok()),
                    ("list", std::fs::read_dir(&path).is_ok()),
                    ("listen", TcpListener::bind(("127.0.0.1", 0)).is_ok()),
                    ("execute", Command::new("true").status().is_ok()),
                    ("start a thread", thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok())),
                    ("executable memory", is_mapped(libc::PROT_READ | libc::PROT_EXEC)),
                    ("another ioctl", terminal_size_errno() != libc::EPERM),
                ];
                for (what, works) in works {
                    assert_eq!(works, expected, "{what}");
                }
                assert!(is_mapped(libc::PROT_READ | libc::PROT_WRITE));
            };
            attempts(true);
            Jail::new().enter().unwrap();
            attempts(false);
            assert!(Jail::new().enter().is_err(), "nobody changes the filter from inside");
        })
        .join()
        .unwrap();
        // Only that thread.
        assert!(std::fs::read("/proc/self/status").is_ok());
    });
}

#[test]
fn what_host_functions_need_can_be_allowed() {
    patiently(|| {
        thread::spawn(|| {
            Jail::new().allow(libc::SYS_openat).enter().unwrap();
            assert!(std::fs::read("/proc/self/status").is_ok());
            assert!(TcpListener::bind(("127.0.0.1", 0)).is_err());
        })
        .join()
        .unwrap();
    });
}

/// In a process of its own, which does not come back.
#[test]
fn a_violation_can_end_the_process() {
    const INSIDE: &str = "CORACLE_TEST_INSIDE_THE_JAIL";
    if std::env::var_os(INSIDE).is_some() {
        Jail::new().on_violation(Violation::KillProcess).enter().unwrap();
        let _ = std::fs::read("/proc/self/status");
        std::process::exit(0);
    }
    let this = std::env::current_exe().unwrap();
    let mut again = Command::new(this);
    again.args(["--exact", "a_violation_can_end_the_process"]).env(INSIDE, "1");
    let status = again.status().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGSYS));
}

/// Pools and stores are made outside; what they gave works inside.
#[test]
fn pools_and_stored_snapshots_work_in_it() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let store = Store::create(directory.path()).unwrap();
        builder(KEEPER).build().unwrap().snapshot().unwrap().save(&store, "keeper").unwrap();
        let snapshot = coracle::Snapshot::load(&store, "keeper").unwrap();
        let pool = Pool::builder(&snapshot).min(1).max(2).build().unwrap();
        thread::spawn(move || {
            Jail::new().enter().unwrap();
            for _ in 0..20 {
                assert_eq!(pool.get().unwrap().call::<u64>("count", ()).unwrap(), 1);
            }
            let mut spawned = Sandbox::from_snapshot(&snapshot).unwrap();
            assert_eq!(spawned.call::<u64>("count", ()).unwrap(), 1);
            pool.close();
        })
        .join()
        .unwrap();
    });
}

fn is_mapped(protection: i32) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: with a null address the kernel chooses a range that nothing uses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: mapped just now, and used by nobody.
    unsafe { libc::munmap(address, 4096) };
    true
}

fn terminal_size_errno() -> i32 {
    let mut size = [0_u16; 4];
    // SAFETY: the ioctl writes at most a `winsize`, which has four half-words.
    unsafe { libc::ioctl(0, libc::TIOCGWINSZ, size.as_mut_ptr()) };
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
