//! Prepares a guest once, saves it, and has a second process start from it.
//!
//! ```sh
//! cargo run --release --example warm_start
//! ```
//!
//! The first process boots the guest, lets it do what takes time, and saves a snapshot to a store: a directory, in the layout of OCI
//! images. The second process knows the store's path and the tag, and neither the program nor how it was prepared.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use coracle::{Image, Sandbox, Snapshot, Store};

const TAG: &str = "prepared";
/// What the guest has to do before it can answer; in earnest this is reading a model, or compiling a script.
const WORK: u64 = 1000;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    match std::env::args_os().nth(1) {
        Some(store) => start_warm(Path::new(&store)),
        None => prepare(),
    }
}

fn prepare() -> Result<(), Failure> {
    let directory = std::env::temp_dir().join(format!("coracle-warm-start-{}", std::process::id()));
    let image = Image::from_path(coracle_artifacts::KEEPER.path())?;
    let ((), cold) = timed(|| {
        let mut sandbox = Sandbox::builder(&image).timeout(Duration::from_secs(10)).build()?;
        for number in 0..WORK {
            sandbox.call::<()>("keep", number)?;
        }
        let store = Store::create(&directory)?;
        let (saved, took) = timed(|| Ok(sandbox.snapshot()?.save(&store, TAG)?))?;
        println!("first process:  saved {} bytes as {} in {took:?}", saved.bytes, saved.digest);
        Ok(())
    })?;
    println!("first process:  from the program to a prepared guest on disk: {cold:?}");
    let second = Command::new(std::env::current_exe()?).arg(&directory).status();
    std::fs::remove_dir_all(&directory)?;
    if second?.success() { Ok(()) } else { Err("the second process failed".into()) }
}

fn start_warm(directory: &Path) -> Result<(), Failure> {
    // The first load from a store prepares the base, for all processes to map.
    for time in ["first", "second"] {
        let (count, all) = timed(|| {
            let (snapshot, load) = timed(|| Ok(Snapshot::load(&Store::open(directory)?, TAG)?))?;
            let (mut sandbox, spawn) = timed(|| Ok(Sandbox::from_snapshot(&snapshot)?))?;
            let (kept, call) = timed(|| Ok(sandbox.call::<Vec<u64>>("kept", ())?))?;
            println!("second process: {time} time: load {load:?}, new sandbox {spawn:?}, first call {call:?}");
            Ok(kept.len())
        })?;
        println!("second process: {time} answer after {all:?}: the guest knows {count} numbers");
        if count as u64 != WORK {
            return Err("the guest is not the one that was prepared".into());
        }
    }
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<(T, Duration), Failure> {
    let start = Instant::now();
    let result = work()?;
    Ok((result, start.elapsed()))
}
