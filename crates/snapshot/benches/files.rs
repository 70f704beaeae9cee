//! What snapshots on disk cost: `snapshot_files/{save_snapshot,load_snapshot,load_snapshot_unverified}/*`,
//! `save_delta`, `variants/*`, `dense_write`; then sizes, and what is promised as ratios.
//!
//! | image | address space | data |
//! |---|---|---|
//! | `small` | 256 MiB | 8 MiB |
//! | `large` | 1 GiB | 64 MiB |
//! | `wide` | 64 GiB | 8 MiB |
//! | `zeros` | 559 MiB | 4 % |
//!
//! On the file system of the target directory: times of saves are mostly the disk's.
#![allow(missing_docs)] // criterion's macros write undocumented functions.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use coracle_snapshot::{Compression, PAGE_BYTES, PageBytes, Pages, Store};
use criterion::{Criterion, criterion_group, criterion_main};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const CONFIG: &[u8] = b"{\"made-by\":\"a benchmark\"}";
const VARIANTS: u32 = 1000;

/// A page as no other number and round have it.
fn bytes(number: u32, round: u32) -> PageBytes {
    let mut page = [0; PAGE_BYTES];
    for (index, word) in page.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *word = (number ^ round << 16 ^ (index as u32) << 20).wrapping_mul(0x9e37_79b1).to_ne_bytes();
    }
    page
}

/// `data` bytes, in groups of eight pages over all of `space`.
fn image(space: u64, data: u64) -> Pages {
    let (groups, all) = (data / PAGE_BYTES as u64 / 8, space / PAGE_BYTES as u64);
    let number = |index: u64| ((index / 8) * (all / groups) + index % 8) as u32;
    Pages::base((0..groups * 8).map(|index| (number(index), bytes(number(index), 0))))
}

/// Twenty pages of a base that are others, in groups of four.
fn variant(base: &Pages, round: u32) -> Pages {
    let numbers: Vec<u32> = base.numbers().step_by(97).take(5).flat_map(|first| first..first + 4).collect();
    base.derive(&numbers, |number, page| *page = bytes(number, round + 1)).expect("in memory, or readable")
}

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the target directory can be written")
}

fn store(directory: &TempDir) -> Store {
    Store::create(directory.path().join("store")).expect("a new store")
}

fn save(store: &Store, tag: &str, pages: &Pages) {
    store.save(tag, CONFIG, pages, Compression::None).expect("saved");
}

fn disk_bytes(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return fs::symlink_metadata(path).map_or(0, |metadata| 512 * metadata.blocks());
    };
    entries.flatten().map(|entry| disk_bytes(&entry.path())).sum()
}

/// Writes an image as it lies in memory.
fn dense_write(directory: &Path, pages: &Pages, space: u64) -> Duration {
    let path = directory.join("dense");
    let mut buffer = vec![0; MIB as usize];
    let start = Instant::now();
    let mut file = File::create(&path).expect("a file");
    for first in (0..(space / PAGE_BYTES as u64) as u32).step_by(buffer.len() / PAGE_BYTES) {
        for (number, out) in (first..).zip(buffer.as_chunks_mut::<PAGE_BYTES>().0) {
            *out = *pages.page(number).expect("in memory").bytes();
        }
        file.write_all(&buffer).expect("written");
    }
    file.sync_all().expect("on the disk");
    let taken = start.elapsed();
    fs::remove_file(path).expect("removed");
    taken
}

fn timed_save(pages: &Pages) -> (Duration, u64) {
    let directory = directory();
    let store = store(&directory);
    let start = Instant::now();
    save(&store, "tag", pages);
    (start.elapsed(), disk_bytes(&directory.path().join("store/blobs")))
}

fn files(criterion: &mut Criterion) {
    let small = image(256 * MIB, 8 * MIB);
    let large = image(1024 * MIB, 64 * MIB);
    let wide = image(65_536 * MIB, 8 * MIB);

    for (name, pages) in [("small", &small), ("large", &large)] {
        criterion.bench_function(&format!("snapshot_files/save_snapshot/{name}"), |bencher| {
            bencher.iter_custom(|iterations| (0..iterations).map(|_| timed_save(pages).0).sum());
        });
    }
    for (name, pages) in [("small", &small), ("large", &large), ("wide", &wide)] {
        let directory = directory();
        let store = store(&directory);
        save(&store, name, pages);
        // The first load prepares the base.
        drop(store.load(name).expect("loaded"));
        criterion.bench_function(&format!("snapshot_files/load_snapshot/{name}"), |bencher| {
            bencher.iter(|| store.load(name).expect("loaded"));
        });
        criterion.bench_function(&format!("snapshot_files/load_snapshot_unverified/{name}"), |bencher| {
            bencher.iter(|| store.load_unverified(name).expect("loaded"));
        });
    }
    {
        let directory = directory();
        let store = store(&directory);
        save(&store, "base", &small);
        let mut round = 0;
        criterion.bench_function("snapshot_files/save_delta", |bencher| {
            bencher.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    round += 1;
                    let pages = variant(&small, round);
                    let start = Instant::now();
                    save(&store, "delta", &pages);
                    total += start.elapsed();
                }
                total
            });
        });
    }
    variants(criterion, &small);
}

/// A thousand variants of one base.
fn variants(criterion: &mut Criterion, base: &Pages) {
    let directory = directory();
    let store = store(&directory);
    save(&store, "base", base);
    let before = disk_bytes(directory.path());
    for round in 0..VARIANTS {
        save(&store, &format!("customer-{round}"), &variant(base, round));
    }
    let each = (disk_bytes(directory.path()) - before) / u64::from(VARIANTS);
    println!("snapshot_files/variants: {VARIANTS} of 20 pages, {} KiB on disk each", each >> 10);
    drop(store.load("customer-0").expect("loaded"));
    criterion.bench_function("snapshot_files/variants/list", |bencher| {
        bencher.iter(|| store.list().expect("listed").len());
    });
    criterion.bench_function("snapshot_files/variants/open_and_list", |bencher| {
        bencher.iter(|| Store::open(store.path()).and_then(|store| store.list()).expect("listed").len());
    });
    let mut round = 0;
    criterion.bench_function("snapshot_files/variants/load_one", |bencher| {
        bencher.iter(|| {
            round = (round + 37) % VARIANTS;
            store.load(&format!("customer-{round}")).expect("loaded")
        });
    });
}

/// What is promised: sizes, and a save against a dense write in turn with it.
fn promises(_: &mut Criterion) {
    let directory = directory();
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    for (name, space, data) in
        [("256 MiB with 8 MiB", 256 * MIB, 8 * MIB), ("559 MiB, 96 % zeros", 559 * MIB, 559 * MIB / 25)]
    {
        let pages = image(space, data);
        let (mut saves, mut writes, mut blobs) = (Vec::new(), Vec::new(), 0);
        for _ in 0..5 {
            let (taken, bytes) = timed_save(&pages);
            saves.push(taken);
            blobs = bytes;
            writes.push(dense_write(directory.path(), &pages, space));
        }
        let (saved, written) = (median(saves), median(writes));
        println!(
            "snapshot_files/{name}: saved in {saved:.1?}, a dense write takes {written:.1?}: {:.3} times as long; \
             {:.2} MiB of blobs",
            saved.as_secs_f64() / written.as_secs_f64(),
            blobs as f64 / MIB as f64
        );
        let store = store(&directory);
        save(&store, "tag", &pages);
        let start = Instant::now();
        let loaded = store.load("tag").expect("loaded");
        println!("snapshot_files/{name}: prepared in {:.1?}", start.elapsed());
        drop(loaded);
        fs::remove_dir_all(store.path()).expect("removed");
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(10);
    targets = files, promises
}
criterion_main!(benches);
