//! Builds a guest, calls it, and lets it call back.
//!
//! ```sh
//! cargo run --release --example hello
//! ```
//!
//! The guest is `examples/hello-guest`: twenty lines of ordinary Rust.

use coracle::{Image, Sandbox};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Built here so that one command does everything. Your program would load a file that was built before.
    let path = coracle_artifacts::HELLO.path();

    let image = Image::from_path(path)?;
    let mut sandbox =
        Sandbox::builder(&image).host_fn("time_of_day", |(): ()| Ok::<_, String>("morning".to_owned())).build()?;
    let greeting: String = sandbox.call("greet", "world")?;
    println!("{greeting}");

    let stats = sandbox.stats();
    let written = stats.pages_written_at_start.map_or("unknown".to_owned(), |pages| pages.to_string());
    println!(
        "{} entries into the guest, {} host call, {} system calls to start, {written} pages written until it was ready",
        stats.entries, stats.host_calls, stats.system_calls,
    );
    Ok(())
}
