//! Runs the benchmarks, then the ratios that SPEC.md promises; or the sweep.

use std::process::Command;

use crate::sweep;

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

/// Runs the sweep on this machine, keeps its figures and draws them.
///
/// # Errors
/// When it does not run, and when a file cannot be written.
pub(crate) fn sweep(machine: Option<&str>) -> Result<(), String> {
    let figures = sweep::directory().join("restore-sweep.json");
    let path = figures.to_str().ok_or("the repository lies at a path that is not text: move it")?;
    let mut arguments = vec!["run", "--quiet", "--release", "--package", "coracle-bench", "--bin", "sweep", "--"];
    arguments.extend(["--json", path]);
    arguments.extend(machine.into_iter().flat_map(|machine| ["--machine", machine]));
    cargo(&arguments)?;
    sweep::draw(&figures)
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let status = cargo.args(arguments).status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {}: {status}", arguments.join(" "))) }
}
