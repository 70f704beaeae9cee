//! Sandboxes and calls, beside what plain KVM takes for the same. Names are the field's.
//!
//! `cargo xtask bench` runs this, and then what compares them in turn: on a shared machine only that means anything.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use coracle::{Bytes, Sandbox, shells};
use coracle_bench::{raw, time_without_drop, workload};
use criterion::{Bencher, Criterion, criterion_group, criterion_main};

/// Times `make` without the drop of what it made.
fn without_drop<T>(bencher: &mut Bencher<'_>, mut make: impl FnMut() -> T) {
    bencher.iter_custom(|iterations| time_without_drop(iterations, &mut make));
}

fn raw_kvm(c: &mut Criterion) {
    let host = raw::Host::new();
    let mut group = c.benchmark_group("raw");
    group.bench_function("create_to_first_exit", |b| without_drop(b, || host.create_to_first_exit()));
    let mut guest = host.create_to_first_exit();
    group.bench_function("doorbell_round_trip", |b| b.iter(|| guest.round_trip()));
}

fn create(c: &mut Criterion) {
    let image = workload::echo_image();
    shells::set_limit(0); // A machine of its own for each.
    let mut group = c.benchmark_group("sandboxes");
    for (name, heap) in workload::HEAPS {
        group.bench_function(format!("create_initialized/{name}"), |b| {
            without_drop(b, || workload::sandbox(&image, heap))
        });
    }
    for (name, heap) in workload::HEAPS {
        group.bench_function(format!("create_initialized_and_drop/{name}"), |b| {
            b.iter(|| workload::sandbox(&image, heap))
        });
    }
    let hello = workload::hello_image();
    group.bench_function("create_initialized/hello", |b| without_drop(b, || workload::sandbox(&hello, 8 << 20)));
}

fn calls(c: &mut Criterion) {
    let image = workload::echo_image();
    let mut sandbox = workload::sandbox(&image, 8 << 20);
    let mut group = c.benchmark_group("guest_calls");
    group.bench_function("call/by_name", |b| {
        b.iter(|| sandbox.call::<String>("echo", black_box("hello\n")).expect("echo answers"));
    });
    let echo = sandbox.function::<str, String>("echo").expect("the guest has echo");
    group.bench_function("call/resolved", |b| {
        b.iter(|| echo.call(&mut sandbox, black_box("hello\n")).expect("echo answers"));
    });
    let mut carrier = workload::carrier(128 << 20);
    let empty = carrier.function::<(), ()>("empty").expect("the guest has empty");
    group.bench_function("batch_of_100", |b| b.iter(|| carrier.call_batch(&empty, [(); 100])));
    group.bench_function("call_with_host_function/by_name", |b| {
        b.iter(|| sandbox.call::<String>("call_host", black_box("hello\n")).expect("call_host answers"));
    });
}

fn payloads(c: &mut Criterion) {
    let mut carrier = workload::carrier(128 << 20);
    let third = carrier.function::<Bytes, Bytes>("third").expect("the guest has third");
    let input = Bytes::from(vec![7; 24 << 10]);
    c.bench_function("sample_workloads/24K_in_8K_out", |b| b.iter(|| third.call(&mut carrier, black_box(&input))));
    let measure = carrier.function::<(Bytes, String), u64>("measure").expect("the guest has measure");
    let parameters = (Bytes::from(vec![7; 50 << 20]), "x".repeat(50 << 20));
    let mut group = c.benchmark_group("guest_calls");
    group.sample_size(10);
    group.bench_function("guest_functions_with_large_parameters", |b| {
        b.iter(|| measure.call(&mut carrier, black_box(&parameters)).expect("measure answers"));
    });
}

fn snapshots(c: &mut Criterion) {
    let image = workload::echo_image();
    for (name, heap) in workload::HEAPS {
        let mut sandbox = workload::sandbox(&image, heap);
        sandbox.call::<String>("echo", "hello\n").expect("echo answers");
        let clean = sandbox.snapshot().expect("a ready guest can be frozen");
        let mut group = c.benchmark_group("snapshots");
        group.bench_function(format!("create/{name}"), |b| {
            // Of what one echo changes.
            b.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    sandbox.call::<String>("echo", "hello\n").expect("echo answers");
                    let start = Instant::now();
                    let made = black_box(sandbox.snapshot().expect("a ready guest can be frozen"));
                    total += start.elapsed();
                    drop(made);
                }
                total
            });
        });
        group.bench_function(format!("restore/{name}"), |b| {
            b.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    sandbox.call::<String>("echo", "hello\n").expect("echo answers");
                    let start = Instant::now();
                    sandbox.restore(&clean).expect("a snapshot fits its own sandbox");
                    total += start.elapsed();
                }
                total
            });
        });
        group.finish();
        let mut group = c.benchmark_group("guest_calls");
        group.bench_function(format!("call_with_restore/{name}"), |b| {
            b.iter(|| {
                let answer = sandbox.call::<String>("echo", black_box("hello\n")).expect("echo answers");
                sandbox.restore(&clean).expect("a snapshot fits its own sandbox");
                answer
            });
        });
        group.finish();
        let mut group = c.benchmark_group("sandboxes");
        group.bench_function(format!("sandbox_from_snapshot/{name}"), |b| {
            without_drop(b, || Sandbox::from_snapshot(&clean).expect("a snapshot spawns"));
        });
        group.bench_function(format!("sandbox_from_snapshot_reused/{name}"), |b| {
            b.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                shells::set_limit(1);
                for _ in 0..iterations {
                    drop(Sandbox::from_snapshot(&clean).expect("a snapshot spawns"));
                    while shells::stats().kept == 0 {
                        thread::yield_now();
                    }
                    let start = Instant::now();
                    let made = black_box(Sandbox::from_snapshot(&clean).expect("a snapshot spawns"));
                    total += start.elapsed();
                    drop(made);
                    shells::clear();
                }
                shells::set_limit(0);
                total
            });
        });
    }
    let mut parent = workload::sandbox(&image, 8 << 20);
    let mut group = c.benchmark_group("sandboxes");
    group.bench_function("fork", |b| without_drop(b, || parent.fork().expect("a ready guest forks")));
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);
    targets = raw_kvm, calls, payloads, create, snapshots
}
criterion_main!(benches);
