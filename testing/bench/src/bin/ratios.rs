//! The ratios that SPEC.md promises, measured so that a noisy machine matters least: what is compared runs in turn, round
//! after round, and medians are compared.
//!
//! `cargo xtask bench` runs it; `--check` makes a promise that is not kept an error.
#![expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]

use std::hint::black_box;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use coracle::{Bytes, Sandbox, Snapshot, shells};
use coracle_bench::raw;
use coracle_bench::workload::{self, Stored};
use coracle_vm::PageContent;

/// A promise of SPEC.md: the first takes at most so many times the second and so many microseconds more.
#[derive(Clone, Copy)]
struct Promise {
    what: &'static str,
    of: Option<&'static str>,
    times: f64,
    plus_us: f64,
}

const fn at_most(what: &'static str, times: f64, of: &'static str, plus_us: f64) -> Promise {
    Promise { what, of: Some(of), times, plus_us }
}

const fn at_most_us(what: &'static str, plus_us: f64) -> Promise {
    Promise { what, of: None, times: 0.0, plus_us }
}

const PROMISES: &[Promise] = &[
    at_most("call/resolved", 1.25, "raw/doorbell_round_trip", 0.0),
    at_most("call/by_name", 1.25, "raw/doorbell_round_trip", 0.0),
    at_most("call_with_host_function", 2.4, "raw/doorbell_round_trip", 0.0),
    at_most("batch_of_100", 3.0, "call/resolved", 0.0),
    at_most("24K_in_8K_out", 1.0, "call/resolved", 10.0),
    at_most("create_initialized/small", 2.5, "raw/create_to_first_exit", 0.0),
    at_most("create_initialized/large", 1.1, "create_initialized/small", 0.0),
    at_most("create_initialized/hello", 2.5, "raw/create_to_first_exit", 0.0),
    at_most("call_with_restore/small", 1.15, "call/by_name", 5.0),
    at_most("call_with_restore/large", 1.1, "call_with_restore/small", 0.0),
    at_most("restore/512_pages", 1.5, "raw/copy_512_pages", 0.0),
    at_most("large_parameters", 4.0, "raw/copy_100_MiB", 0.0),
    at_most_us("snapshots/create/small", 50.0),
    at_most("snapshots/create/large", 1.1, "snapshots/create/small", 0.0),
    at_most("sandbox_from_snapshot", 1.5, "raw/create_to_first_exit", 0.0),
    at_most("sandbox_from_snapshot/reused", 0.5, "raw/create_to_first_exit", 0.0),
    at_most_us("load_snapshot/small", 300.0),
    at_most("load_snapshot/large", 1.15, "load_snapshot/small", 10.0),
    at_most("cold_start_via_snapshot", 1.3, "first_call_after_spawn", 300.0),
];

/// What a restore may take, and what each page that it copies may add.
const RESTORE_US: f64 = 2.0;
const RESTORED_PAGE_US: f64 = 0.3;

/// What has no base to compare with; printed all the same.
const FIGURES: &[&str] = &["restore/after_echo", "fork"];

/// So often is everything measured before a promise counts as broken: others on the machine may have been in the way.
const ATTEMPTS: usize = 3;

/// Something that takes time: name, and one run that says how long it took.
type Work = (&'static str, Box<dyn FnMut() -> Duration>);

/// Times `make` without the drop of what it made.
fn timed<T>(mut make: impl FnMut() -> T + 'static) -> Box<dyn FnMut() -> Duration> {
    Box::new(move || {
        let start = Instant::now();
        let made = black_box(make());
        let took = start.elapsed();
        drop(made);
        shells::clear(); // Dropping goes on in another thread, and must not be in the way of what is timed next.
        took
    })
}

/// Times `make` as a loop of nothing else would find it: after it was done once.
fn timed_again<T>(mut make: impl FnMut() -> T + 'static) -> Box<dyn FnMut() -> Duration> {
    Box::new(move || {
        drop(make());
        let start = Instant::now();
        let made = black_box(make());
        let took = start.elapsed();
        drop(made);
        took
    })
}

/// Times `make` on a machine that had another guest before.
fn timed_reusing<T>(mut make: impl FnMut() -> T + 'static) -> Box<dyn FnMut() -> Duration> {
    Box::new(move || {
        shells::set_limit(1);
        drop(make());
        while shells::stats().kept == 0 {
            thread::yield_now();
        }
        let start = Instant::now();
        let made = black_box(make());
        let took = start.elapsed();
        shells::set_limit(0);
        drop(made);
        shells::clear();
        took
    })
}

/// Runs all in turn, `rounds` times, and gives each one's median.
fn medians(mut works: Vec<Work>, rounds: usize) -> Vec<(&'static str, Duration)> {
    let mut times = vec![Vec::with_capacity(rounds); works.len()];
    for round in 0..rounds + rounds / 10 {
        for ((_, work), times) in works.iter_mut().zip(&mut times) {
            let took = work();
            if round >= rounds / 10 {
                times.push(took); // The first tenth warms up.
            }
        }
    }
    works
        .iter()
        .zip(&mut times)
        .map(|((name, _), times)| {
            times.sort_unstable();
            (*name, times[times.len() / 2])
        })
        .collect()
}

fn load(stored: &Stored) -> Snapshot {
    Snapshot::load(&stored.store, Stored::TAG).expect("it loads")
}

fn first_call(snapshot: &Snapshot) -> Sandbox {
    let mut sandbox = workload::with_host_functions(snapshot.builder()).build().expect("a snapshot spawns");
    sandbox.call::<String>("echo", "hello\n").expect("echo answers");
    sandbox
}

fn creating() -> Vec<Work> {
    let host = raw::Host::new();
    let (echo, hello) = (workload::echo_image(), workload::hello_image());
    let large = echo.clone();
    let mut parent = workload::sandbox(&hello, 8 << 20);
    let snapshot = parent.snapshot().expect("a ready guest can be frozen");
    let again = snapshot.clone();
    let (small, large_stored, again_small) = (Stored::new(8 << 20), Stored::new(256 << 20), Stored::new(8 << 20));
    let resident = small.snapshot.clone();
    vec![
        ("raw/create_to_first_exit", timed(move || host.create_to_first_exit())),
        ("create_initialized/small", timed(move || workload::sandbox(&echo, 8 << 20))),
        ("create_initialized/large", timed(move || workload::sandbox(&large, 256 << 20))),
        ("create_initialized/hello", timed(move || workload::sandbox(&hello, 8 << 20))),
        ("sandbox_from_snapshot", timed(move || Sandbox::from_snapshot(&snapshot).expect("a snapshot spawns"))),
        (
            "sandbox_from_snapshot/reused",
            timed_reusing(move || Sandbox::from_snapshot(&again).expect("a snapshot spawns")),
        ),
        ("first_call_after_spawn", timed(move || first_call(&resident))),
        ("load_snapshot/small", timed_again(move || load(&small))),
        ("load_snapshot/large", timed_again(move || load(&large_stored))),
        ("cold_start_via_snapshot", timed(move || first_call(&load(&again_small)))),
        ("fork", timed(move || parent.fork().expect("a ready guest forks"))),
    ]
}

fn calling() -> Vec<Work> {
    let mut guest = raw::Host::new().create_to_first_exit();
    let image = workload::echo_image();
    let ready = || workload::sandbox(&image, 8 << 20);
    let (mut by_name, mut resolved, mut with_host) = (ready(), ready(), ready());
    let echo = resolved.function::<str, String>("echo").expect("the guest has echo");
    let (mut carrier, mut other) = (workload::carrier(1 << 20), workload::carrier(1 << 20));
    let empty = carrier.function::<(), ()>("empty").expect("the guest has empty");
    let third = other.function::<Bytes, Bytes>("third").expect("the guest has third");
    let input = Bytes::from(vec![7; 24 << 10]);
    let (mut small, mut large) = (ready(), workload::sandbox(&image, 256 << 20));
    let clean = small.snapshot().expect("a ready guest can be frozen");
    let large_clean = large.snapshot().expect("a ready guest can be frozen");
    let mut put_back = Sandbox::from_snapshot(&clean).expect("a snapshot spawns");
    let clean_again = clean.clone();
    vec![
        ("raw/doorbell_round_trip", timed(move || guest.round_trip())),
        ("call/by_name", timed(move || echo_by_name(&mut by_name))),
        ("call/resolved", timed(move || echo.call(&mut resolved, "hello\n").expect("echo answers"))),
        (
            "call_with_host_function",
            timed(move || with_host.call::<String>("call_host", "hello\n").expect("call_host answers")),
        ),
        (
            "batch_of_100",
            timed(move || assert!(carrier.call_batch(&empty, [(); 100]).iter().all(Result::is_ok), "each answers")),
        ),
        ("24K_in_8K_out", timed(move || third.call(&mut other, &input).expect("third answers"))),
        ("call_with_restore/small", timed(move || echo_and_restore(&mut small, &clean))),
        ("call_with_restore/large", timed(move || echo_and_restore(&mut large, &large_clean))),
        (
            "restore/after_echo",
            Box::new(move || {
                echo_by_name(&mut put_back);
                restoring(&mut put_back, &clean_again)
            }),
        ),
    ]
}

fn freezing() -> Vec<Work> {
    let image = workload::echo_image();
    let (mut small, mut large) = (workload::sandbox(&image, 8 << 20), workload::sandbox(&image, 256 << 20));
    vec![
        ("snapshots/create/small", Box::new(move || snapshot_after_echo(&mut small))),
        ("snapshots/create/large", Box::new(move || snapshot_after_echo(&mut large))),
    ]
}

fn echo_by_name(sandbox: &mut Sandbox) -> String {
    sandbox.call("echo", "hello\n").expect("echo answers")
}

fn echo_and_restore(sandbox: &mut Sandbox, clean: &Snapshot) -> String {
    let answer = echo_by_name(sandbox);
    sandbox.restore(clean).expect("a snapshot fits its own sandbox");
    answer
}

fn snapshot_after_echo(sandbox: &mut Sandbox) -> Duration {
    echo_by_name(sandbox);
    let start = Instant::now();
    let made = black_box(sandbox.snapshot().expect("a ready guest can be frozen"));
    let took = start.elapsed();
    drop(made);
    took
}

fn restoring(sandbox: &mut Sandbox, clean: &Snapshot) -> Duration {
    let start = Instant::now();
    sandbox.restore(clean).expect("a snapshot fits its own sandbox");
    start.elapsed()
}

/// A restore after a request that wrote so many pages of its heap; and what is promised of it.
fn restoring_pages(what: &'static str, pages: u32) -> (Work, Promise) {
    let (mut sandbox, clean) = workload::dirtied(pages);
    let dirty = sandbox.function::<(u32, u32), ()>("dirty").expect("the guest has it");
    let run = move |sandbox: &mut Sandbox| dirty.call(sandbox, &(pages, 1)).expect("it answers");
    run(&mut sandbox);
    sandbox.restore(&clean).expect("a snapshot fits its own sandbox");
    let copied = sandbox.stats().hot_pages;
    let work = move || {
        run(&mut sandbox);
        restoring(&mut sandbox, &clean)
    };
    ((what, Box::new(work)), at_most_us(what, RESTORE_US + RESTORED_PAGE_US * copied as f64))
}

/// Copying as many pages, each from a place of its own, without anything else.
fn copying_pages(pages: usize) -> Box<dyn FnMut() -> Duration> {
    let from: Vec<Box<PageContent>> = (0..pages).map(|page| Box::new([page as u8; size_of::<PageContent>()])).collect();
    let mut to = vec![[0; size_of::<PageContent>()]; pages];
    timed(move || {
        for (to, from) in to.iter_mut().zip(&from) {
            to.copy_from_slice(black_box(&**from));
        }
        black_box(&mut to);
    })
}

/// 50 MiB of bytes and as much text in one call, beside a copy of as much.
fn large_parameters() -> Vec<Work> {
    const BYTES: usize = 50 << 20;
    let mut sandbox = workload::carrier(128 << 20);
    let measure = sandbox.function::<(Bytes, String), u64>("measure").expect("the guest has measure");
    let parameters = (Bytes::from(vec![7_u8; BYTES]), "x".repeat(BYTES));
    let from = vec![7_u8; 2 * BYTES];
    let mut to = vec![0_u8; 2 * BYTES];
    vec![
        ("raw/copy_100_MiB", timed(move || black_box(&mut to).copy_from_slice(black_box(&from)))),
        ("large_parameters", timed(move || measure.call(&mut sandbox, &parameters).expect("measure answers"))),
    ]
}

/// Measures everything once. Whether all promises were kept.
fn compare() -> bool {
    let mut promises = PROMISES.to_vec();
    let (one, promise) = restoring_pages("restore/1_page", 1);
    promises.push(promise);
    let (many, promise) = restoring_pages("restore/512_pages", 512);
    promises.push(promise);
    let mut figures = medians(calling(), 4000);
    figures.extend(medians(freezing(), 4000));
    // Apart from the others, which leave the caches in a state that is not theirs.
    figures.extend(medians(vec![one], 4000));
    figures.extend(medians(vec![many, ("raw/copy_512_pages", copying_pages(512))], 2000));
    figures.extend(medians(creating(), 300));
    figures.extend(medians(large_parameters(), 10));
    let median = |name: &str| {
        let found = figures.iter().find(|(known, _)| *known == name);
        found.map(|(_, median)| median.as_secs_f64() * 1e6).expect("each promise names what is measured")
    };
    println!("{:<26} {:>9}   {:<26} {:>9} {:>6} {:>9}", "median, in turn", "us", "against", "us", "ratio", "limit, us");
    let mut kept = true;
    for Promise { what, of, times, plus_us } in promises {
        let time = median(what);
        let (base, ratio) = of.map_or((0.0, String::new()), |of| {
            let base = median(of);
            (base, format!("{:.2}", time / base))
        });
        let limit = times * base + plus_us;
        kept &= time <= limit;
        let verdict = if time <= limit { "" } else { "  ABOVE" };
        let (of, base) = of.map_or(("", String::new()), |of| (of, format!("{base:.2}")));
        println!("{what:<26} {time:>9.2}   {of:<26} {base:>9} {ratio:>6} {limit:>9.2}{verdict}");
    }
    for name in FIGURES {
        println!("{name:<26} {:>9.2}", median(name));
    }
    kept
}

fn main() -> ExitCode {
    shells::set_limit(0); // A machine of its own for each sandbox, but where the other is measured.
    let check = std::env::args().any(|argument| argument == "--check");
    let attempts = if check { ATTEMPTS } else { 1 };
    if (0..attempts).any(|_| compare()) || !check { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
