//! `coracle call`: boots a guest, or loads it from a snapshot, and calls one of its functions. Standard output has the
//! result and nothing else.

use std::path::{Path, PathBuf};

use coracle::Stats;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::guest::{Flags, Unanswered};
use crate::{function, output, text};

/// Calls a function of a Coracle guest
///
/// Arguments are JSON, one for each parameter; where a string is wanted, plain text will do. The result is one line of
/// JSON on standard output. What the guest itself writes goes to standard error. 'coracle inspect' lists a guest's
/// functions, 'coracle snapshot inspect' those of a snapshot.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "coracle call [OPTIONS] <GUEST> <FUNCTION> [JSON]...\n       \
                      coracle call [OPTIONS] --from <STORE:TAG> <FUNCTION> [JSON]...",
    after_help = "\
Examples:
  coracle call ./hello greet world
  coracle call ./geometry area '{\"width\": 3, \"height\": 4}'
  coracle call --timeout 500ms --host time_of_day='\"noon\"' ./clock tell
  coracle call --from ./store:hello greet world"
)]
pub(crate) struct Args {
    /// Print an object with the result and what the call cost, or with the error
    #[arg(long)]
    json: bool,

    /// With --from: compare the pages with no digest. For a store that nobody else can write to
    #[arg(long, requires = "from")]
    unverified: bool,

    /// The guest: a program made with the coracle-guest SDK. Not with --from
    #[arg(value_name = "GUEST", required_unless_present = "from")]
    guest: Option<PathBuf>,

    /// The function's name
    #[arg(value_name = "FUNCTION", required_unless_present = "from", allow_negative_numbers = true)]
    function: Option<String>,

    /// Its arguments
    #[arg(value_name = "JSON", allow_negative_numbers = true)]
    arguments: Vec<String>,

    #[command(flatten)] // Last, because its heading is that of all that follow.
    flags: Flags,
}

impl Args {
    /// The function's name and its arguments: with --from, what else would be the guest is the function.
    fn words(&self) -> Result<(&str, Vec<String>), Failure> {
        let missing =
            || Failure::own("which function is to be called? Give its name: coracle call --from STORE:TAG FUNCTION");
        let rest = self.arguments.iter().cloned();
        if self.flags.from.is_none() {
            return Ok((self.function.as_deref().ok_or_else(missing)?, rest.collect()));
        }
        let name = self.guest.as_deref().ok_or_else(missing)?.to_str();
        let name = name.ok_or_else(|| Failure::own("the function's name is not UTF-8"))?;
        Ok((name, self.function.iter().cloned().chain(rest).collect()))
    }
}

pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    match (call(&args), args.json) {
        (Ok((result, _)), false) => line(&result)?,
        (Ok((result, stats)), true) => line(&json!({ "result": result, "stats": stats_json(&stats) }))?,
        (Err(failure), false) => return Err(failure),
        (Err(failure), true) => {
            line(&failure.json())?;
            return Err(failure);
        }
    }
    Ok(0)
}

fn line(value: &Value) -> Result<(), Failure> {
    output::print(&format!("{}\n", text::escape_json(&value.to_string())))
}

fn call(args: &Args) -> Result<(Value, Stats), Failure> {
    let (name, texts) = args.words()?;
    let guest = args.flags.describe(args.guest.as_deref().map(Path::new))?;
    // All that can be said without running anything is said first.
    let signature = guest.functions.exported(name)?;
    let arguments = function::arguments(&signature, &texts)?;
    let answers = args.flags.answers(&guest.functions, Unanswered::Refuse)?;
    let source = args.flags.source(guest, args.unverified)?;
    let mut sandbox = args.flags.builder(&source, answers)?.build()?;
    let result = sandbox.call_encoded(name, &arguments)?;
    Ok((function::result(&signature, &result)?, sandbox.stats()))
}

fn stats_json(stats: &Stats) -> Value {
    json!({
        "entries": stats.entries,
        "hypervisor_calls": stats.hypervisor_calls,
        "host_calls": stats.host_calls,
        "system_calls": stats.system_calls,
        "pages_in_use": stats.pages_in_use,
        "pages_written_at_start": stats.pages_written_at_start,
    })
}
