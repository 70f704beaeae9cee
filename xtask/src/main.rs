//! Chores of the repository: `cargo xtask bench`.

mod bench;
mod chart;
mod sweep;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores of the Coracle repository", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Runs the benchmarks, and compares what SPEC.md promises.
    Bench {
        /// Only the ratios, in about ten seconds.
        #[arg(long)]
        only_ratios: bool,
        /// Fail when a promise is not kept.
        #[arg(long)]
        check: bool,
        /// Only the sweep over the pages that a request writes, in about a minute: figures and pictures in `docs/img`.
        #[arg(long, conflicts_with_all = ["only_ratios", "check"])]
        plot: bool,
        /// Draw these figures instead of measuring.
        #[arg(long, value_name = "FILE", requires = "plot")]
        from: Option<PathBuf>,
        /// What the pictures shall call this machine.
        #[arg(long, value_name = "TEXT", requires = "plot", conflicts_with = "from")]
        machine: Option<String>,
    },
}

fn main() -> ExitCode {
    let Chore::Bench { only_ratios, check, plot, from, machine } = Arguments::parse().chore;
    let done = match from {
        Some(figures) => sweep::draw(&figures),
        None if plot => bench::sweep(machine.as_deref()),
        None => bench::run(&bench::Options { only_ratios, check }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
