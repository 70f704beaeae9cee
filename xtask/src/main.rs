//! Chores of the repository: `cargo xtask bench`.

mod bench;

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
    },
}

fn main() -> ExitCode {
    let Chore::Bench { only_ratios, check } = Arguments::parse().chore;
    match bench::run(&bench::Options { only_ratios, check }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
