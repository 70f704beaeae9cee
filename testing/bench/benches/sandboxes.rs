//! Sandboxes and calls, beside what plain KVM takes for the same. Names are the field's.
//!
//! `cargo xtask bench` runs this and prints the ratios: on a shared machine only figures of one run compare.

use std::hint::black_box;
use std::time::{Duration, Instant};

use coracle::{Image, Sandbox};
use coracle_artifacts::{ECHO, HELLO};
use coracle_bench::raw;
use criterion::{Bencher, Criterion, criterion_group, criterion_main};

/// Guest heaps, as the field names them.
const HEAPS: [(&str, u64); 4] =
    [("default", 128 << 10), ("small", 8 << 20), ("medium", 64 << 20), ("large", 256 << 20)];

/// Times `make` without the drop of what it made.
fn without_drop<T>(bencher: &mut Bencher<'_>, mut make: impl FnMut() -> T) {
    bencher.iter_custom(|iterations| {
        let mut total = Duration::ZERO;
        for _ in 0..iterations {
            let start = Instant::now();
            let made = black_box(make());
            total += start.elapsed();
            drop(made);
        }
        total
    });
}

fn image() -> Image {
    Image::from_path(ECHO.path()).expect("the echo guest is an image")
}

fn sandbox(image: &Image, heap_bytes: u64) -> Sandbox {
    Sandbox::builder(image)
        .heap_bytes(heap_bytes)
        .host_fn("greet", |name: String| Ok::<_, String>(name))
        .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)))
        .build()
        .expect("the echo guest boots")
}

fn raw_kvm(c: &mut Criterion) {
    let host = raw::Host::new();
    let mut group = c.benchmark_group("raw");
    group.bench_function("create_to_first_exit", |b| without_drop(b, || host.create_to_first_exit()));
    let mut guest = host.create_to_first_exit();
    group.bench_function("doorbell_round_trip", |b| b.iter(|| guest.round_trip()));
}

fn create(c: &mut Criterion) {
    let image = image();
    let mut group = c.benchmark_group("sandboxes");
    for (name, heap) in HEAPS {
        group.bench_function(format!("create_initialized/{name}"), |b| without_drop(b, || sandbox(&image, heap)));
    }
    for (name, heap) in HEAPS {
        group.bench_function(format!("create_initialized_and_drop/{name}"), |b| b.iter(|| sandbox(&image, heap)));
    }
    // The guest of the examples: fewer functions, the same SDK.
    let hello = Image::from_path(HELLO.path()).expect("the hello guest is an image");
    group.bench_function("create_initialized/hello", |b| {
        without_drop(b, || {
            let builder =
                Sandbox::builder(&hello).host_fn("time_of_day", |(): ()| Ok::<_, String>("morning".to_owned()));
            builder.build().expect("the hello guest boots")
        });
    });
}

fn calls(c: &mut Criterion) {
    let image = image();
    let mut sandbox = sandbox(&image, 8 << 20);
    let mut group = c.benchmark_group("guest_calls");
    group.bench_function("call/by_name", |b| {
        b.iter(|| sandbox.call::<String>("echo", black_box("hello\n")).expect("echo answers"));
    });
    let echo = sandbox.function::<str, String>("echo").expect("the guest has echo");
    group.bench_function("call/resolved", |b| {
        b.iter(|| echo.call(&mut sandbox, black_box("hello\n")).expect("echo answers"));
    });
    group.bench_function("call_with_host_function/by_name", |b| {
        b.iter(|| sandbox.call::<String>("call_host", black_box("hello\n")).expect("call_host answers"));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);
    targets = raw_kvm, calls, create
}
criterion_main!(benches);
