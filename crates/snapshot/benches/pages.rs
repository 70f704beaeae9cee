//! What snapshots cost beside the copying: `snapshot_pages/{lookup,derive,derive_512,difference}`.
//!
//! The base has 65,536 pages (256 MiB), all different. Changed pages come in groups of four, far apart.
#![allow(missing_docs)] // criterion's macros write undocumented functions.

use std::hint::black_box;
use std::time::{Duration, Instant};

use coracle_snapshot::{PAGE_BYTES, PageBytes, Pages};
use criterion::{Criterion, criterion_group, criterion_main};

const BASE_PAGES: u32 = 1 << 16;

/// A page as no other number and round have it.
fn bytes(number: u32, round: u32) -> PageBytes {
    let mut page = [0; PAGE_BYTES];
    for (index, word) in page.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *word = (number ^ round << 16 ^ (index as u32) << 20).wrapping_mul(0x9e37_79b1).to_ne_bytes();
    }
    page
}

/// Numbers of `count` pages in groups of four; other pages for another `shift` below 1024.
fn working_set(count: u32, shift: u32) -> Vec<u32> {
    (0..count).map(|index| (index / 4 * 4099 + shift * 64 + index % 4) % BASE_PAGES).collect()
}

fn pages(criterion: &mut Criterion) {
    let base = Pages::base((0..BASE_PAGES).map(|number| (number, bytes(number, 0))));
    let mut group = criterion.benchmark_group("snapshot_pages");

    // One page of a working set of 512.
    let numbers = working_set(512, 0);
    let mut next = numbers.iter().cycle();
    group.bench_function("lookup", |bencher| {
        bencher.iter(|| base.page(black_box(*next.next().expect("a cycle has no end"))).expect("in memory").bytes()[0]);
    });

    // A snapshot after 16 pages changed, and after 512 did; without its drop.
    for (name, count) in [("derive", 16), ("derive_512", 512)] {
        let numbers = working_set(count, 0);
        let memory: Vec<PageBytes> = numbers.iter().map(|number| bytes(*number, 1)).collect();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    let start = Instant::now();
                    let mut next = memory.iter();
                    let child = base.derive(&numbers, |_, page| *page = *next.next().expect("as many as numbers"));
                    total += start.elapsed();
                    drop(child);
                }
                total
            });
        });
    }

    // Two children of one base that differ from it in 16 pages each, others in one than in the other.
    let [left, right] = [1, 2]
        .map(|shift| base.derive(&working_set(16, shift), |number, page| *page = bytes(number, 1)).expect("in memory"));
    group.bench_function("difference", |bencher| {
        bencher.iter(|| {
            let mut count = 0;
            black_box(&left).for_each_difference(&right, |_| count += 1);
            assert_eq!(count, 32);
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = pages
}
criterion_main!(benches);
