//! Snapshots on disk: saving, loading, and starting from what was loaded. Names are the field's.
//!
//! The store's own benchmarks, with larger memories and without a hypervisor, are `coracle-snapshot`'s.

use std::hint::black_box;
use std::time::{Duration, Instant};

use coracle::{Sandbox, Snapshot, shells};
use coracle_bench::time_without_drop;
use coracle_bench::workload::{self, Stored};
use criterion::{Bencher, Criterion, criterion_group, criterion_main};

/// Times `make` without the drop of what it made.
fn without_drop<T>(bencher: &mut Bencher<'_>, mut make: impl FnMut() -> T) {
    bencher.iter_custom(|iterations| time_without_drop(iterations, &mut make));
}

fn first_call(mut sandbox: Sandbox) -> Sandbox {
    sandbox.call::<String>("echo", black_box("hello\n")).expect("echo answers");
    sandbox
}

fn spawn(snapshot: &Snapshot) -> Sandbox {
    workload::with_host_functions(snapshot.builder()).build().expect("a snapshot spawns")
}

fn files(c: &mut Criterion) {
    shells::set_limit(0);
    let mut group = c.benchmark_group("snapshot_files");
    for (name, heap) in workload::HEAPS {
        let stored = Stored::new(heap);
        let store = stored.store.clone();
        let load = || Snapshot::load(&store, Stored::TAG).expect("it loads");
        let unverified = || Snapshot::loader(&store).load_unverified(Stored::TAG).expect("it loads");
        group.bench_function(format!("save_snapshot/{name}"), |b| {
            b.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    let empty = tempfile::tempdir().expect("there is room for files");
                    let start = Instant::now();
                    let store = coracle::Store::create(empty.path()).expect("a store can be made");
                    black_box(stored.snapshot.save(&store, "new").expect("it can be saved"));
                    total += start.elapsed();
                }
                total
            });
        });
        group.bench_function(format!("load_snapshot/{name}"), |b| without_drop(b, load));
        group.bench_function(format!("load_snapshot_unverified/{name}"), |b| without_drop(b, unverified));
        group.bench_function(format!("cold_start_via_snapshot/{name}"), |b| {
            without_drop(b, || first_call(spawn(&load())));
        });
        group.bench_function(format!("cold_start_via_snapshot_unverified/{name}"), |b| {
            without_drop(b, || first_call(spawn(&unverified())));
        });
        group.bench_function(format!("cold_start_via_evolve/{name}"), |b| {
            let image = workload::echo_image();
            without_drop(b, || first_call(workload::sandbox(&image, heap)));
        });
    }
    let stored = Stored::new(8 << 20);
    let mut sandbox = spawn(&Snapshot::load(&stored.store, Stored::TAG).expect("it loads"));
    group.bench_function("save_delta", |b| {
        let store = stored.store.clone();
        let mut n = 0;
        b.iter(|| {
            n += 1;
            sandbox.call::<String>("echo", &*format!("{n}")).expect("echo answers");
            let variant = sandbox.snapshot().expect("a ready guest can be frozen");
            variant.save(&store, "variant").expect("it can be saved");
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(20);
    targets = files
}
criterion_main!(benches);
