//! Runs the benchmarks, then the ratios that SPEC.md promises.

use std::process::Command;

/// What to run.
pub(crate) struct Options {
    /// Only the ratios.
    pub(crate) only_ratios: bool,
    /// Fail when a promise is not kept.
    pub(crate) check: bool,
}

/// # Errors
/// When one does not run, or a promise is not kept and that was to be checked.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if !options.only_ratios {
        cargo(&["bench", "--package", "coracle-bench", "--bench", "sandboxes"])?;
        cargo(&["bench", "--package", "coracle-bench", "--bench", "pool"])?;
        cargo(&["bench", "--package", "coracle-heap-bench"])?;
        cargo(&["bench", "--package", "coracle-snapshot"])?;
        cargo(&["run", "--quiet", "--release", "--package", "coracle-bench", "--bin", "memory"])?;
    }
    let mut ratios = vec!["run", "--quiet", "--release", "--package", "coracle-bench", "--bin", "ratios", "--"];
    ratios.extend(options.check.then_some("--check"));
    cargo(&ratios)
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let status = cargo.args(arguments).status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {}: {status}", arguments.join(" "))) }
}
