//! A store whose writers are killed, and one that many use at once.
//!
//! The writers are this program again: the test `writer` does nothing unless it is told where to write.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{base, content, derive, directory, page};
use coracle_snapshot::{Compression, Error, Pages, Store};

const WRITE_TO: &str = "CORACLE_SNAPSHOT_WRITE_TO";
const SECONDS: &str = "CORACLE_STRESS_SECONDS";

/// A snapshot that tells from its first page what all others hold.
fn generation(parent: &Pages, generation: u32) -> Pages {
    let changed: Vec<(u32, u32)> = (0..20).map(|index| (index * 7 % 64, generation + index)).collect();
    derive(parent, &changed)
}

/// Which generation it is, if it is whole.
fn check(parent: &Pages, pages: &Pages) {
    let first = u32::from_le_bytes(*pages.page(0).unwrap().bytes().last_chunk().unwrap());
    assert!(content(pages) == content(&generation(parent, first)), "a mixture");
}

fn parent() -> Pages {
    base(0..64)
}

/// Saves one generation after the other, from the base and from the latest, until it is killed.
#[test]
fn writer() {
    let Some(path) = std::env::var_os(WRITE_TO) else { return };
    let store = Store::open(path).unwrap();
    let parent = store.load("base").unwrap().pages;
    for number in std::process::id().. {
        let pages = generation(&parent, number);
        store.save("latest", b"{}", &pages, Compression::None).unwrap();
        store.save("again", b"{\"n\":1}", &derive(&pages, &[(9, number), (900, 1)]), Compression::Zstd).unwrap();
        if number % 8 == 0 {
            store.prune().unwrap();
        }
        // A base that shares nothing, and its run form.
        let other = Pages::base([(number, page(number + 1)), (number + 9, page(3))]);
        store.save("other", b"{}", &other, Compression::None).unwrap();
        store.load("other").unwrap();
    }
}

fn start_writer(path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["writer", "--exact", "--test-threads=1"]).env(WRITE_TO, path);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_writer_that_is_killed_leaves_the_old_or_the_new() {
    let directory = directory();
    let store = Store::create(directory.path()).unwrap();
    let parent = parent();
    store.save("base", b"{}", &parent, Compression::None).unwrap();
    store.save("latest", b"{}", &generation(&parent, 1), Compression::None).unwrap();
    let mut random = 7_u64;
    let mut seen = std::collections::HashSet::new();
    for _ in 0..200 {
        let mut writer = start_writer(directory.path());
        // Wait until it has begun, then some random time: about three rounds of saves.
        let started = Instant::now();
        let before = store.load("latest").unwrap().digest;
        while store.load("latest").unwrap().digest == before {
            assert!(started.elapsed() < Duration::from_secs(30), "the writer does not begin");
            assert!(writer.try_wait().unwrap().is_none(), "the writer failed");
            std::thread::sleep(Duration::from_micros(200));
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((random >> 33) % 3000));
        writer.kill().unwrap();
        assert!(!writer.wait().unwrap().success(), "the writer failed");
        store.verify_all().unwrap();
        let loaded = store.load("latest").unwrap();
        seen.insert(loaded.digest);
        check(&parent, &loaded.pages);
        assert!(content(&store.load("base").unwrap().pages) == content(&parent));
    }
    assert!(seen.len() > 20, "{}", seen.len());
    store.prune().unwrap();
    store.verify_all().unwrap();
    let left = common::files(&directory.path().join("coracle/tmp"));
    assert!(left.is_empty(), "{left:?}");
}

/// Two processes that write and prune, four threads that read. `CORACLE_STRESS_SECONDS` says how long; two unless set.
#[test]
fn writers_and_readers_share_a_store() {
    let seconds = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(2);
    let directory = directory();
    let store = Store::create(directory.path()).unwrap();
    let parent = parent();
    store.save("base", b"{}", &parent, Compression::None).unwrap();
    store.save("latest", b"{}", &generation(&parent, 1), Compression::None).unwrap();
    let mut writers = [start_writer(directory.path()), start_writer(directory.path())];
    let end = Instant::now() + Duration::from_secs(seconds);
    let digests = std::thread::scope(|scope| {
        let readers = [0, 1, 2, 3].map(|reader| {
            let (parent, path) = (&parent, directory.path());
            scope.spawn(move || {
                let mut digests = std::collections::HashSet::new();
                while Instant::now() < end {
                    // By one's own handle, as another process would.
                    let store = Store::open(path).unwrap();
                    let loaded = store.load("latest").unwrap();
                    check(parent, &loaded.pages);
                    digests.insert(loaded.digest);
                    match store.load(if reader % 2 == 0 { "other" } else { "again" }) {
                        Ok(loaded) => drop(content(&loaded.pages)),
                        Err(Error::NotFound { .. }) => {} // Not yet.
                        Err(error) => panic!("{error}"),
                    }
                    if reader == 3 {
                        store.verify_all().unwrap();
                    }
                }
                digests.len()
            })
        });
        readers.map(|reader| reader.join().unwrap())
    });
    for writer in &mut writers {
        assert!(writer.try_wait().unwrap().is_none(), "a writer failed");
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    assert!(digests.iter().all(|digests| *digests > 1), "{digests:?}");
    store.verify_all().unwrap();
}
