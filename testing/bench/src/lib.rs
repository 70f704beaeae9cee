//! What the benchmarks share, and the physical limit that they compare with.

pub mod raw;
pub mod sweep;
pub mod workload;

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long it takes to make something so many times, without the drop of what was made.
pub fn time_without_drop<T>(times: u64, mut make: impl FnMut() -> T) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..times {
        let start = Instant::now();
        let made = black_box(make());
        total += start.elapsed();
        drop(made);
        coracle::shells::clear(); // Dropping goes on in another thread, and must not be in the way of what is timed next.
    }
    total
}
