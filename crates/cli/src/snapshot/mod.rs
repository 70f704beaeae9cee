//! `coracle snapshot`: snapshots in stores.
//!
//! | file | what it does |
//! |---|---|
//! | `save.rs` | boots a guest, or goes on from a snapshot, and saves it |
//! | `freeze.rs` | loads an ordinary program and saves it |
//! | `list.rs`, `inspect.rs` | what a store has, what a snapshot is |
//! | `verify.rs`, `diff.rs` | compares with digests, and two snapshots with each other |
//! | `untag.rs`, `prune.rs` | takes tags away, and files that nobody needs |
//! | `registry.rs` | to and from registries |
//! | `name.rs` | `STORE:TAG` |
//! | `document.rs` | what a snapshot says of itself |
//! | `runs.rs`, `drawing.rs` | which pages are whose, as text and as a picture |
//! | `places.rs` | what a page is in its guest |

mod diff;
mod document;
mod drawing;
mod freeze;
mod inspect;
mod list;
mod name;
mod places;
mod prune;
mod registry;
mod runs;
mod save;
mod untag;
mod verify;

use serde_json::Value;

pub(crate) use self::document::Document;
pub(crate) use self::name::Name;
use crate::failure::Failure;
use crate::output;
use crate::text::escape_json;

/// Keeps guests in stores, ready to be called
///
/// A store is a directory with snapshots: an OCI image layout. A snapshot is named STORE:TAG, or STORE@sha256:DIGEST for
/// what no tag can be moved away from. Snapshots that derive from each other share what they have in common.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coracle snapshot save ./hello ./store:hello
  coracle snapshot save --from ./store:hello --call 'learn {\"language\": \"fr\"}' ./store:french
  coracle snapshot list ./store
  coracle snapshot inspect ./store:french
  coracle call --from ./store:french greet world")]
pub(crate) struct Args {
    /// Print one JSON object, also for an error. Sizes are numbers of bytes
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Save(Box<save::Args>),
    Freeze(freeze::Args),
    List(list::Args),
    Inspect(inspect::Args),
    Verify(verify::Args),
    Diff(diff::Args),
    Untag(untag::Args),
    Prune(prune::Args),
    Push(registry::PushArgs),
    Pull(registry::PullArgs),
}

/// What a command has to say, for people and for programs.
struct Report {
    text: String,
    json: Value,
}

pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    let Args { json, command } = args;
    let outcome = match command {
        Command::Save(args) => save::run(&args, json),
        Command::Freeze(args) => freeze::run(&args),
        Command::List(args) => list::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args, json),
        Command::Diff(args) => diff::run(&args, json),
        Command::Untag(args) => untag::run(&args),
        Command::Prune(args) => prune::run(&args, json),
        Command::Push(args) => registry::push(&args, json),
        Command::Pull(args) => registry::pull(&args, json),
    };
    if !json {
        output::print(&outcome?.text)?;
        return Ok(0);
    }
    let value = outcome.as_ref().map_or_else(Failure::json, |report| report.json.clone());
    output::print(&format!("{}\n", escape_json(&value.to_string())))?;
    outcome.map(|_| 0)
}

/// `1 page`, `2 pages`.
fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
