//! A clean sandbox for each of 10,000 requests.
//!
//! ```sh
//! cargo run --release --example restore
//! ```
//!
//! The guest counts its calls. Since each request gets a sandbox that was put back to its first state, the count is always
//! one.

use std::time::{Duration, Instant};

use coracle::{Image, Pool, Sandbox};

const REQUESTS: usize = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = Image::from_path(coracle_artifacts::KEEPER.path())?;
    let snapshot = Sandbox::builder(&image).timeout(Duration::from_secs(1)).build()?.snapshot()?;
    let pool = Pool::builder(&snapshot).min(2).max(4).build()?;

    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let start = Instant::now();
        let mut sandbox = pool.get()?;
        let count: u64 = sandbox.call("count", ())?;
        drop(sandbox);
        times.push(start.elapsed());
        if count != 1 {
            return Err(format!("a sandbox was not clean: its guest counted {count}").into());
        }
    }
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize];
    println!("{REQUESTS} requests, each in a clean sandbox: p50 {:?}, p99 {:?}", at(0.50), at(0.99));
    println!("{:?}", pool.stats());
    Ok(())
}
