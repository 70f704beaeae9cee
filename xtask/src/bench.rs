//! Runs the benchmarks, then compares medians of the same run: on a shared machine nothing else means anything.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A promise of SPEC.md: the first benchmark takes at most so many times the second.
struct Promise {
    what: &'static str,
    of: &'static str,
    at_most: f64,
}

const PROMISES: &[Promise] = &[
    Promise { what: "guest_calls/call_resolved", of: "raw/doorbell_round_trip", at_most: 1.25 },
    Promise { what: "guest_calls/call_by_name", of: "raw/doorbell_round_trip", at_most: 1.25 },
    Promise { what: "guest_calls/call_with_host_function_by_name", of: "raw/doorbell_round_trip", at_most: 2.4 },
    Promise { what: "sandboxes/create_initialized_small", of: "raw/create_to_first_exit", at_most: 2.5 },
    Promise { what: "sandboxes/create_initialized_large", of: "sandboxes/create_initialized_small", at_most: 1.1 },
];

/// Runs them if wished and prints the ratios. Whether all promises were kept.
pub(crate) fn run(first_run: bool) -> Result<bool, String> {
    if first_run {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let status = cargo.args(["bench", "--package", "coracle-bench"]).status().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("the benchmarks failed: {status}"));
        }
    }
    println!("{:<48} {:>12}   {:<36} {:>7} {:>7}", "median", "µs", "against", "ratio", "limit");
    let mut kept = true;
    for Promise { what, of, at_most } in PROMISES {
        let (time, base) = (median_ns(what)?, median_ns(of)?);
        let ratio = time / base;
        let verdict = if ratio <= *at_most { "" } else { "  ABOVE" };
        kept &= ratio <= *at_most;
        println!("{what:<48} {:>12.2}   {of:<36} {ratio:>7.2} {at_most:>7.2}{verdict}", time / 1000.0);
    }
    Ok(kept)
}

/// The median of a benchmark's last run, from criterion's directory.
fn median_ns(benchmark: &str) -> Result<f64, String> {
    let path = criterion().join(benchmark).join("new/estimates.json");
    let missing =
        |error: &dyn std::fmt::Display| format!("no figures at {}: {error}. Run without --no-run", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| missing(&error))?;
    let estimates: serde_json::Value = serde_json::from_str(&text).map_err(|error| missing(&error))?;
    estimates["median"]["point_estimate"].as_f64().ok_or_else(|| missing(&"no median in it"))
}

fn criterion() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")).join("criterion")
}
