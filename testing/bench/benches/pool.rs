//! Pools: what a caller pays for a clean sandbox, beside restoring one itself.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use coracle::{Pool, Sandbox};
use coracle_bench::workload;
use criterion::{Criterion, criterion_group, criterion_main};

fn call(sandbox: &mut Sandbox) {
    sandbox.call::<String>("echo", black_box("hello\n")).expect("echo answers");
}

fn pool(c: &mut Criterion) {
    let mut sandbox = workload::sandbox(&workload::echo_image(), 8 << 20);
    let snapshot = sandbox.snapshot().expect("the guest can be frozen");
    let mut group = c.benchmark_group("pool");
    group.bench_function("call_and_restore_without_pool", |b| {
        b.iter(|| {
            call(&mut sandbox);
            sandbox.restore(&snapshot).expect("it can be restored");
        });
    });
    let pool = Pool::builder(&snapshot).min(2).max(3).shrink_after(Duration::MAX).build().expect("a pool of two");
    // A third one: taking it leaves two ready, and no work for the worker.
    drop((pool.get(), pool.get(), pool.get()));
    group.bench_function("get", |b| {
        b.iter_custom(|iterations| {
            let mut total = Duration::ZERO;
            for _ in 0..iterations {
                while pool.stats().ready < 3 {
                    thread::yield_now();
                }
                let start = Instant::now();
                let mut sandbox = black_box(pool.get().expect("one is ready"));
                total += start.elapsed();
                call(&mut sandbox);
            }
            total
        });
    });
    // An echo writes little: it is restored where it is given back.
    group.bench_function("get_call_and_give_back", |b| {
        b.iter(|| call(&mut pool.get().expect("the pool serves")));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);
    targets = pool
}
criterion_main!(benches);
