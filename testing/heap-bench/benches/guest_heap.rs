//! Times of each candidate: `guest_heap/<allocator>/{hot_pair,churn,churn_many,request,grow}`.
#![allow(missing_docs)] // criterion's macros write undocumented functions.

use std::alloc::Layout;
use std::hint::black_box;
use std::time::Duration;

use coracle_heap_bench::measure::started;
use coracle_heap_bench::workload::{Churn, Start, grow, message, request};
use coracle_heap_bench::{Heap, Placed, for_each_heap};
use criterion::{Criterion, criterion_group, criterion_main};

fn one<H: Heap>(criterion: &mut Criterion) {
    let place = || started::<H>(Start::LeavesHoles).expect("the kernel gives memory");
    let mut group = criterion.benchmark_group(format!("guest_heap/{}", H::NAME));

    // 64 bytes, allocated and freed.
    let placed = place();
    let layout = Layout::new::<[u64; 8]>();
    group.bench_function("hot_pair", |bencher| bencher.iter(|| drop(placed.handle().block(black_box(layout)))));

    // One of 512 blocks freed, another allocated.
    let placed = place();
    let mut churn = Churn::new(placed.handle(), 512);
    group.bench_function("churn", |bencher| bencher.iter(|| churn.step()));

    // The same among 30,000, after some use.
    let placed = Placed::<H>::new(256 << 20).expect("the kernel gives memory");
    placed.handle().seal();
    let mut churn = Churn::new(placed.handle(), 30_000);
    (0..30_000).for_each(|_| churn.step());
    group.bench_function("churn_many", |bencher| bencher.iter(|| churn.step()));

    // A whole request, its own work included.
    let placed = place();
    let message = message(0);
    group.bench_function("request", |bencher| bencher.iter(|| drop(request(placed.handle(), &message))));

    // A vector appended to until it has 1 MiB.
    let placed = place();
    group.bench_function("grow", |bencher| bencher.iter(|| drop(grow(placed.handle(), 1 << 20))));
}

fn all(criterion: &mut Criterion) {
    for_each_heap!(one(criterion));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(30);
    targets = all
}
criterion_main!(benches);
