//! The ratios that SPEC.md promises, measured so that a noisy machine matters least: what is compared runs in turn, round
//! after round, and medians are compared.
//!
//! `cargo xtask bench` runs it; `--check` makes a promise that is not kept an error.
#![expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use coracle::Sandbox;
use coracle_bench::{raw, workload};

/// A promise of SPEC.md: the first takes at most so many times the second.
struct Promise {
    what: &'static str,
    of: &'static str,
    at_most: f64,
}

const PROMISES: &[Promise] = &[
    Promise { what: "call/resolved", of: "raw/doorbell_round_trip", at_most: 1.25 },
    Promise { what: "call/by_name", of: "raw/doorbell_round_trip", at_most: 1.25 },
    Promise { what: "call_with_host_function", of: "raw/doorbell_round_trip", at_most: 2.4 },
    Promise { what: "create_initialized/small", of: "raw/create_to_first_exit", at_most: 2.5 },
    Promise { what: "create_initialized/large", of: "create_initialized/small", at_most: 1.1 },
    Promise { what: "create_initialized/hello", of: "raw/create_to_first_exit", at_most: 2.5 },
    Promise { what: "call_with_restore", of: "call/by_name", at_most: 1.3 },
    Promise { what: "sandbox_from_snapshot", of: "raw/create_to_first_exit", at_most: 1.5 },
];

/// What has no base to compare with; printed all the same.
const FIGURES: &[&str] = &["restore/after_echo", "snapshot/after_echo", "fork"];

/// Something that takes time: name, and one run that says how long it took.
type Work = (&'static str, Box<dyn FnMut() -> Duration>);

/// Times `make` without the drop of what it made.
fn timed<T>(mut make: impl FnMut() -> T + 'static) -> Box<dyn FnMut() -> Duration> {
    Box::new(move || {
        let start = Instant::now();
        let made = black_box(make());
        let took = start.elapsed();
        drop(made);
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

fn creating() -> Vec<Work> {
    let host = raw::Host::new();
    let (echo, hello) = (workload::echo_image(), workload::hello_image());
    let large = echo.clone();
    let mut parent = workload::sandbox(&hello, 8 << 20);
    let snapshot = parent.snapshot().expect("a ready guest can be frozen");
    vec![
        ("raw/create_to_first_exit", timed(move || host.create_to_first_exit())),
        ("create_initialized/small", timed(move || workload::sandbox(&echo, 8 << 20))),
        ("create_initialized/large", timed(move || workload::sandbox(&large, 256 << 20))),
        ("create_initialized/hello", timed(move || workload::sandbox(&hello, 8 << 20))),
        ("sandbox_from_snapshot", timed(move || Sandbox::from_snapshot(&snapshot).expect("a snapshot spawns"))),
        ("fork", timed(move || parent.fork().expect("a ready guest forks"))),
    ]
}

fn calling() -> Vec<Work> {
    let mut guest = raw::Host::new().create_to_first_exit();
    let image = workload::echo_image();
    let ready = || workload::sandbox(&image, 8 << 20);
    let (mut by_name, mut resolved, mut with_host) = (ready(), ready(), ready());
    let echo = resolved.function::<str, String>("echo").expect("the guest has echo");
    let (mut restored, mut frozen) = (ready(), ready());
    let clean = restored.snapshot().expect("a ready guest can be frozen");
    let clean_again = clean.clone();
    let mut put_back = Sandbox::from_snapshot(&clean).expect("a snapshot spawns");
    vec![
        ("raw/doorbell_round_trip", timed(move || guest.round_trip())),
        ("call/by_name", timed(move || by_name.call::<String>("echo", "hello\n").expect("echo answers"))),
        ("call/resolved", timed(move || echo.call(&mut resolved, "hello\n").expect("echo answers"))),
        (
            "call_with_host_function",
            timed(move || with_host.call::<String>("call_host", "hello\n").expect("call_host answers")),
        ),
        (
            "call_with_restore",
            timed(move || {
                let answer = restored.call::<String>("echo", "hello\n").expect("echo answers");
                restored.restore(&clean).expect("a snapshot fits its own sandbox");
                answer
            }),
        ),
        (
            "restore/after_echo",
            Box::new(move || {
                put_back.call::<String>("echo", "hello\n").expect("echo answers");
                let start = Instant::now();
                put_back.restore(&clean_again).expect("a snapshot fits its own sandbox");
                start.elapsed()
            }),
        ),
        (
            "snapshot/after_echo",
            Box::new(move || {
                frozen.call::<String>("echo", "hello\n").expect("echo answers");
                let start = Instant::now();
                black_box(frozen.snapshot().expect("a ready guest can be frozen"));
                start.elapsed()
            }),
        ),
    ]
}

fn main() -> ExitCode {
    let mut figures = medians(calling(), 4000);
    figures.extend(medians(creating(), 300));
    let median = |name: &str| {
        let found = figures.iter().find(|(known, _)| *known == name);
        found.map(|(_, median)| median.as_secs_f64() * 1e6).expect("each promise names what is measured")
    };
    println!("{:<28} {:>10}   {:<28} {:>10} {:>7} {:>7}", "median, in turn", "us", "against", "us", "ratio", "limit");
    let mut kept = true;
    for Promise { what, of, at_most } in PROMISES {
        let (time, base) = (median(what), median(of));
        let ratio = time / base;
        kept &= ratio <= *at_most;
        let verdict = if ratio <= *at_most { "" } else { "  ABOVE" };
        println!("{what:<28} {time:>10.2}   {of:<28} {base:>10.2} {ratio:>7.2} {at_most:>7.2}{verdict}");
    }
    for name in FIGURES {
        println!("{name:<28} {:>10.2}", median(name));
    }
    let check = std::env::args().any(|argument| argument == "--check");
    if kept || !check { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
