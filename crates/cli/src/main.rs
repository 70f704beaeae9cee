//! The `coracle` command: the library at the command line.
//!
//! | file | what it does |
//! |---|---|
//! | `run.rs` | `coracle run`: an ordinary program, to its end |
//! | `call.rs` | `coracle call`: one function of a guest, JSON in and out |
//! | `snapshot/` | `coracle snapshot`: snapshots in stores, a file for each of its commands |
//! | `inspect.rs` | `coracle inspect`: what a file is, without running it |
//! | `doctor.rs` | `coracle doctor`: what this machine can do |
//! | `guest.rs` | the guest of a command: an image or a snapshot, and what its host answers |
//! | `settings.rs` | the flags that describe a sandbox |
//! | `quantity.rs` | sizes and durations as people write them |
//! | `function.rs` | a guest's functions, and JSON for their parameters |
//! | `trace.rs` | system calls as lines |
//! | `doorbell.rs` | measures what one exit costs |
//! | `failure.rs` | errors as text and exit codes |
//! | `text.rs` | tables, and text of guests that a terminal can bear |
//! | `output.rs` | standard output and standard error |
//! | `progress.rs` | shows that long work goes on |
//!
//! # Exit codes
//! Those of `timeout(1)`, `env(1)` and the shells, so that scripts know them already.
//!
//! | code | when |
//! |---|---|
//! | 0 | success |
//! | the program's own | `run`: the program ended by itself |
//! | 1 | `call`: the function returned an error. `doctor`: nothing works here |
//! | 124 | the timeout passed |
//! | 125 | `coracle` itself failed: no hypervisor, a wrong flag, arguments that do not fit the function |
//! | 126 | the file is not a program that can run here; the snapshot or its store is damaged, of another version, or for another processor |
//! | 127 | the file, the store or the snapshot was not found |
//! | 128 + n | the guest crashed; n is the signal that Linux would have sent: 139 for a bad address, 134 for a panic |
//!
//! A program that `run` runs may end with any of these by itself; a message on standard error that starts with
//! `coracle:` tells the difference.
#![forbid(unsafe_code)]

mod call;
mod doctor;
mod doorbell;
mod failure;
mod function;
mod guest;
mod inspect;
mod output;
mod progress;
mod quantity;
mod run;
mod settings;
mod snapshot;
mod text;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use crate::failure::{Failure, OWN_ERROR};

const EXAMPLES: &str = "\
Examples:
  coracle doctor
  echo hello | coracle run ./busybox sha256sum
  coracle inspect ./hello
  coracle call ./hello greet world
  coracle snapshot save ./hello ./store:hello
  coracle call --from ./store:hello greet world

Use 'coracle help' for exit codes, 'coracle help COMMAND' for each command.";

const EXIT_CODES: &str = "\
Exit codes:
  0        success
  any      run: the program's own
  1        call: the function returned an error; doctor: nothing works here
  124      the timeout passed
  125      coracle itself failed: no hypervisor, a wrong flag, arguments that do not fit
  126      the file is not a program, or the snapshot not one, that can be used here
  127      the file, the store or the snapshot was not found
  128 + n  the guest crashed; n is the signal that Linux would have sent (139: bad address)";

/// Runs untrusted programs in hardware-isolated micro-VMs.
///
/// Programs are static x86-64 Linux executables. They get memory, their three streams and the time; no files, no
/// network and no other process.
#[derive(Debug, Parser)]
#[command(
    name = "coracle",
    version = format!("{} (ABI {})", env!("CARGO_PKG_VERSION"), coracle_abi::ABI_VERSION),
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"),
    max_term_width = 100,
)]
struct Cli {
    /// Which log records go to standard error, the guest's among them: off, error, warn, info, debug or trace
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "CORACLE_LOG",
        hide_env_values = true,
        default_value = "warn"
    )]
    log: LevelFilter,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Call(call::Args),
    Snapshot(snapshot::Args),
    Inspect(inspect::Args),
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors too, for clap.
            if !error.use_stderr() {
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            let text = error.render().to_string();
            output::complain(&text.strip_prefix("error: ").map_or(text.clone(), |text| format!("coracle: {text}")));
            return OWN_ERROR.into();
        }
    };
    show_log(cli.log);
    let outcome = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Call(args) => call::run(args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Doctor(args) => doctor::run(args),
    };
    outcome.unwrap_or_else(|failure: Failure| failure.report()).into()
}

/// Without times: a command is over before one wants to know when.
fn show_log(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_max_level(level)
        .without_time()
        .init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
