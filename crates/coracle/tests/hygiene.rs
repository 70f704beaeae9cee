//! Nothing of one life of a guest reaches another: a guest leaves a nonce wherever it can, is restored, spawned anew or
//! given back to a pool, and then searches all that it can read; so does the test, in all of the process's guest memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use coracle::{Builder, CpuTemplate, DirtyLog, Error, ErrorKind, Image, Kvm, Pool, Sandbox, Snapshot, Status};
use coracle_artifacts::{HYGIENE, KEEPER};
use coracle_testing::{kvm_or_skip, within};

/// What the guest does when it has left the nonce everywhere, and what the caller sees.
const ENDINGS: [(&str, Option<ErrorKind>); 12] = [
    ("return", None),
    ("error", Some(ErrorKind::GuestReturned)),
    ("host error", Some(ErrorKind::GuestReturned)),
    ("host error, then panic", Some(ErrorKind::GuestStopped)),
    ("panic", Some(ErrorKind::GuestStopped)),
    ("null pointer", Some(ErrorKind::GuestStopped)),
    ("stack overflow", Some(ErrorKind::GuestStopped)),
    ("out of memory", Some(ErrorKind::GuestStopped)),
    ("abort", Some(ErrorKind::GuestStopped)),
    ("exit", Some(ErrorKind::GuestStopped)),
    ("endless loop", Some(ErrorKind::TimedOut)),
    ("endless sleep", Some(ErrorKind::TimedOut)),
];

/// Small, since all of it is searched.
const MEMORY_BYTES: u64 = 16 << 20;

const PAGE: usize = 4096;

/// Bytes of the text that repeats the nonce: more than what later frames overwrite.
const TEXT_BYTES: usize = 100 << 10;

fn builder() -> Builder {
    Sandbox::builder(&Image::from_path(HYGIENE.path()).unwrap())
        .payload_bytes(128 << 10) // The search touches all that messages may ever take.
        .memory_bytes(MEMORY_BYTES)
        .heap_bytes(4 << 20)
        .args(["a".repeat(2 * PAGE)]) // A page for itself, as all that is searched for.
        .env([("NAME", "e".repeat(2 * PAGE))])
        .timeout(Duration::from_secs(20))
        .host_fn("refuse", |text: String| Err::<(), _>(text))
        .host_fn("refuse.again", |text: String| Err::<(), _>(text))
}

/// Runs `body` with each way to learn what a guest wrote.
fn with_each_log(guest: fn() -> Builder, body: fn(Builder)) {
    within(Duration::from_secs(300), move || {
        if kvm_or_skip().is_none() {
            return;
        }
        for log in [DirtyLog::Best, DirtyLog::Bitmap] {
            body(guest().backend(Kvm::open(CpuTemplate::Host).unwrap().with_dirty_log(log)));
        }
    });
}

/// 16 letters and digits that are nowhere else: text, so that it goes wherever text goes.
struct Nonce([u8; 16]);

impl Nonce {
    fn new() -> Self {
        const LETTERS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+-";
        let random = [(); 2].map(|()| RandomState::new().hash_one(0));
        Self(std::array::from_fn(|n| LETTERS[(random[n / 8] >> (6 * (n % 8))) as usize % 64]))
    }

    fn text(&self) -> String {
        std::str::from_utf8(&self.0).unwrap().repeat(TEXT_BYTES / self.0.len())
    }

    /// Its halves, each also with its bytes in reverse order.
    fn parts(&self) -> [u64; 4] {
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap()));
        [low, high, low.swap_bytes(), high.swap_bytes()]
    }

    /// As the guest makes them: what it searches by must not be what it searches for.
    fn fingerprints(&self) -> [u64; 4] {
        self.parts().map(|mut word| {
            word ^= word >> 33;
            word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
            word ^= word >> 33;
            word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            word ^ word >> 33
        })
    }

    /// How many pages of this process's guest memory hold it or a half of it, whichever sandbox's they are: mapped for the
    /// guest or not, page tables and the host's own pages included.
    fn pages_in_guest_memory(&self) -> usize {
        let memory = File::open("/proc/self/mem").unwrap();
        let parts = self.parts();
        let mut page = [0; PAGE];
        guest_memory()
            .into_iter()
            .flat_map(|(start, end)| (start..end).step_by(PAGE))
            .filter(|at| {
                // Other tests' sandboxes come and go meanwhile.
                memory.read_exact_at(&mut page, *at).is_ok() && page != [0; PAGE] && has_any(&page, parts)
            })
            .count()
    }
}

/// Whether one of the words is there, at any byte.
fn has_any(bytes: &[u8], words: [u64; 4]) -> bool {
    let mut last = 0;
    bytes.iter().any(|byte| {
        last = last >> 8 | u64::from(*byte) << 56;
        words.contains(&last)
    })
}

/// This process's mappings that no core dump would hold: guest memory is among them, and little else.
fn guest_memory() -> Vec<(u64, u64)> {
    let (mut found, mut last) = (Vec::new(), (0, 0));
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let first = line.split(' ').next().unwrap();
        if first == "VmFlags:" {
            if line.split(' ').any(|flag| flag == "dd") {
                found.push(last);
            }
        } else if let Some((start, end)) = first.split_once('-') {
            last = (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
        }
    }
    found
}

type Places = Vec<(String, u64, u64)>;

/// The guest leaves the nonce everywhere, and ends as it is told to.
fn spread(sandbox: &mut Sandbox, nonce: &Nonce, ending: &str) -> Result<Places, Error> {
    Ok(sandbox.call::<(Places, String)>("spread", (nonce.text(), ending))?.0)
}

/// Spreads, and checks that the guest ended as it was told to.
#[track_caller]
fn stain(sandbox: &mut Sandbox, nonce: &Nonce, (ending, kind): (&str, Option<ErrorKind>)) {
    let result = spread(sandbox, nonce, ending);
    assert_eq!(result.as_ref().err().map(Error::kind), kind, "{ending}: {:?}", result.err());
    assert!(nonce.pages_in_guest_memory() > 100, "{ending}: the nonce is nowhere");
}

/// Where the guest finds the nonce, and how many fresh pages are not zero. Takes all memory that is left.
fn search(sandbox: &mut Sandbox, nonce: &Nonce) -> (Vec<u64>, u64) {
    sandbox.call("search", nonce.fingerprints()).unwrap()
}

/// What a guest of this snapshot is told by the host.
fn clean_answers(snapshot: &Snapshot) -> Vec<u64> {
    Sandbox::from_snapshot(snapshot).unwrap().call("answers", ()).unwrap()
}

/// Checks that nothing of the nonce is left. The sandbox is to be restored afterwards.
#[track_caller]
fn check_clean(sandbox: &mut Sandbox, nonce: &Nonce, answers: &[u64], after: &str) {
    assert_eq!(sandbox.status(), Status::Ready, "after {after}");
    assert_eq!(nonce.pages_in_guest_memory(), 0, "pages with the nonce, seen from the host, after {after}");
    assert_eq!(sandbox.call::<Vec<u64>>("answers", ()).unwrap(), answers, "after {after}");
    let (hits, stained) = search(sandbox, nonce);
    assert!(hits.is_empty(), "after {after} the guest finds the nonce at {hits:x?}");
    assert_eq!(stained, 0, "fresh pages that are not zero, after {after}");
}

/// The tests below would pass, too, if the search found nothing.
#[test]
fn a_search_finds_what_was_spread() {
    with_each_log(builder, |builder| {
        let mut sandbox = builder.build().unwrap();
        let before: Vec<u64> = sandbox.call("answers", ()).unwrap();
        let (nonce, other) = (Nonce::new(), Nonce::new());
        let places = spread(&mut sandbox, &nonce, "return").unwrap();
        let pages = nonce.pages_in_guest_memory();
        assert!(pages > 500, "{pages}");
        assert_eq!(other.pages_in_guest_memory(), 0);
        let answers: Vec<u64> = sandbox.call("answers", ()).unwrap();
        let [low, high, ..] = nonce.parts();
        // The signal table, the alternate stack, the signal mask without what cannot be masked; descriptor 7; the break.
        assert!(answers[..256].contains(&low) && answers[256..259].contains(&high), "{answers:x?}");
        assert_eq!(answers[259], low & !(1 << 8 | 1 << 18), "{answers:x?}");
        let differences = answers[260..].iter().zip(&before[260..]).filter(|(now, before)| now != before).count();
        assert_eq!(differences, 2, "{answers:x?}");
        let (hits, stained) = search(&mut sandbox, &nonce);
        for (what, address, bytes) in &places {
            assert!(
                hits.iter().any(|hit| (*address..address + bytes).contains(hit)),
                "not found: {what}, {address:#x}"
            );
        }
        // What a guest gave back and gets again holds nothing, be it its own.
        assert_eq!(stained, 0);
        assert_eq!(search(&mut sandbox, &other), (Vec::new(), 0));
    });
}

#[test]
fn nothing_in_memory_outlives_a_restore() {
    with_each_log(builder, |builder| {
        let first = builder.build().unwrap().snapshot().unwrap();
        let answers = clean_answers(&first);
        let mut sandbox = first.builder().timeout(Duration::from_secs(1)).build().unwrap();
        for ending in ENDINGS {
            let nonce = Nonce::new();
            stain(&mut sandbox, &nonce, ending);
            sandbox.restore(&first).unwrap();
            // Nor is it in the state that a snapshot sees now.
            let second = sandbox.snapshot().unwrap();
            check_clean(&mut sandbox, &nonce, &answers, ending.0);
            check_clean(&mut Sandbox::from_snapshot(&second).unwrap(), &nonce, &answers, ending.0);
            sandbox.restore(&second).unwrap();
        }
    });
}

#[test]
fn nothing_in_memory_reaches_the_next_sandbox() {
    with_each_log(builder, |builder| {
        let first = builder.build().unwrap().snapshot().unwrap();
        let answers = clean_answers(&first);
        for ending in ENDINGS {
            let nonce = Nonce::new();
            let mut sandbox = first.builder().timeout(Duration::from_secs(1)).build().unwrap();
            stain(&mut sandbox, &nonce, ending);
            drop(sandbox);
            check_clean(&mut Sandbox::from_snapshot(&first).unwrap(), &nonce, &answers, ending.0);
        }
    });
}

#[test]
fn nothing_in_memory_reaches_the_next_holder_from_a_pool() {
    with_each_log(builder, |builder| {
        let first = builder.build().unwrap().snapshot().unwrap();
        let answers = clean_answers(&first);
        let hasty = |snapshot: &Snapshot| snapshot.builder().timeout(Duration::from_secs(1));
        let pool = Pool::builder(&first).max(1).with_builder(hasty).build().unwrap();
        for ending in ENDINGS {
            let nonce = Nonce::new();
            stain(&mut pool.get().unwrap(), &nonce, ending);
            check_clean(&mut pool.get().unwrap(), &nonce, &answers, ending.0);
        }
        let stats = pool.stats();
        assert_eq!((stats.spawned, stats.replaced), (1, 0), "not the same sandbox again: {stats:?}");
    });
}

fn keeper() -> Builder {
    Sandbox::builder(&Image::from_path(KEEPER.path()).unwrap()).timeout(Duration::from_secs(1))
}

#[test]
fn nothing_in_registers_outlives_a_restore() {
    with_each_log(keeper, |builder| {
        let mut sandbox = builder.build().unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        let clean: Vec<u64> = sandbox.call("registers", ()).unwrap();
        sandbox.restore(&snapshot).unwrap();
        for nonce in [0x1122_3344_5566_7788_u64, u64::MAX, 0xdead_beef_dead_beef] {
            // Fills every register that ring 3 reaches, and rings by itself with them: the host sees a crash.
            assert!(sandbox.call::<()>("fill_registers", nonce).is_err());
            check_registers(&mut sandbox, &snapshot, nonce, &clean);
            for ending in ["null pointer", "loop", "system call", "privileged instruction", "illegal instruction"] {
                let error = sandbox.call::<()>("fill_registers_then", (nonce, ending)).unwrap_err();
                let kind = if ending == "loop" { ErrorKind::TimedOut } else { ErrorKind::GuestStopped };
                assert_eq!(error.kind(), kind, "{ending}: {error}");
                if let Some(report) = error.crash() {
                    assert_eq!((report.registers.rbx, report.registers.r15), (nonce, nonce), "{ending}: not filled");
                }
                check_registers(&mut sandbox, &snapshot, nonce, &clean);
            }
        }
    });
}

#[track_caller]
fn check_registers(sandbox: &mut Sandbox, snapshot: &Snapshot, nonce: u64, clean: &[u64]) {
    sandbox.restore(snapshot).unwrap();
    let after: Vec<u64> = sandbox.call("registers", ()).unwrap();
    assert!(!after.contains(&nonce), "{after:x?}");
    assert_eq!(after, clean);
    sandbox.restore(snapshot).unwrap();
}
