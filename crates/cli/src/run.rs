//! `coracle run`: an ordinary program, from its start to its end, with the streams of the command itself.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use coracle::{Ended, Image, Input, Output, Sandbox, Snapshot, Store};

use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;
use crate::snapshot::Name;
use crate::trace::{self, Trace};

/// Runs a static Linux program in a micro-VM
///
/// Standard input, output and error are those of this command, and the exit code is the program's. There are no files
/// and no network; the environment is empty. What the program writes is passed on as it is: do not let a terminal show
/// the output of a program that may mean harm.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "coracle run [OPTIONS] <PROGRAM> [ARGS]...",
    after_help = "\
Examples:
  echo hello | coracle run ./busybox sha256sum
  coracle run --memory 256M --timeout 10s ./program --its own --flags
  coracle run --trace-syscalls ./program 2> trace"
)]
pub(crate) struct Args {
    /// Show each system call on standard error, and in the end those that were not answered
    #[arg(long)]
    trace_syscalls: bool,

    /// Show on standard error how long it took and which system calls it made
    #[arg(long)]
    stats: bool,

    /// Run this program that 'coracle snapshot freeze' kept, in place of PROGRAM and ARGS. Memory, stack, processor and environment are
    /// the snapshot's
    #[arg(
        long,
        value_name = "STORE:TAG",
        value_parser = Name::parse,
        conflicts_with_all = ["program", "args", "memory", "stack", "cpu", "env"],
    )]
    from: Option<Name>,

    /// The program: a static x86-64 ELF file
    #[arg(value_name = "PROGRAM", required_unless_present = "from")]
    program: Option<PathBuf>,

    /// Its arguments, whatever they look like
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,

    #[command(flatten)] // Last, because its heading is that of all that follow.
    settings: Settings,
}

pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    let described = match (args.from, args.program) {
        (None, Some(program)) => args.settings.apply(Sandbox::builder(&Image::from_path(&program)?)).args(args.args),
        (Some(name), _) => {
            let snapshot = Snapshot::load(&Store::open(name.store())?, name.reference())?;
            if snapshot.has_functions() {
                let why = "it is a snapshot of a guest whose functions are called, which cannot be run as a program";
                return Err(Failure::own(format!("{why}: use 'coracle call --from {name} FUNCTION'")));
            }
            args.settings.apply_to_snapshot(snapshot.builder())
        }
        (None, None) => return Err(Failure::own("there is no program: give PROGRAM")),
    };
    let mut builder =
        described.stdin(Input::inherit()).stdout(Output::inherit_stdout()).stderr(Output::inherit_stderr());
    let trace = Arc::new(Mutex::new(Trace::default()));
    if args.trace_syscalls || args.stats {
        let (trace, show) = (Arc::clone(&trace), args.trace_syscalls);
        builder = builder.trace_system_calls(move |call| {
            trace.lock().unwrap_or_else(PoisonError::into_inner).count(call);
            if show {
                output::complain(&format!("{}\n", trace::line(call)));
            }
        });
    }
    let start = Instant::now();
    let outcome = builder.run();
    let elapsed = start.elapsed();
    let trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(unanswered) = trace.unanswered().filter(|_| args.trace_syscalls) {
        output::complain(&format!("coracle: {unanswered}\n"));
    }
    if args.stats {
        let milliseconds = elapsed.as_secs_f64() * 1000.0;
        output::complain(&format!("coracle: {milliseconds:.1} ms; {}\n", trace.counts()));
        if let Ok(Ended { stats, .. }) = &outcome {
            output::complain(&format!(
                "coracle: {} entries, {} other hypervisor calls, {} pages in use at the end\n",
                stats.entries, stats.hypervisor_calls, stats.pages_in_use
            ));
        }
    }
    Ok(outcome.map(|ended| ended.code as u8)?) // 0 to 255.
}
