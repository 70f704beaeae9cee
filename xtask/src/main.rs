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
    /// Runs the benchmarks and prints the ratios that SPEC.md promises.
    Bench {
        /// Only print the ratios of the last run.
        #[arg(long)]
        no_run: bool,
        /// Fail when a promise is not kept.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let Chore::Bench { no_run, check } = Arguments::parse().chore;
    match bench::run(!no_run) {
        Ok(kept) if kept || !check => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
