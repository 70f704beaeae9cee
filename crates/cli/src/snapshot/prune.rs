//! `coracle snapshot prune`: removes what nobody needs.

use std::path::PathBuf;

use coracle::Store;
use serde_json::json;

use super::{Report, counted};
use crate::failure::Failure;
use crate::progress;
use crate::text::size;

/// Removes what no tag of a store leads to
///
/// Files of snapshots that lost their tags, prepared bases that no snapshot has, and what a killed process left. Waits
/// until nobody else uses the store; snapshots that are loaded stay usable.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The store
    #[arg(value_name = "STORE")]
    store: PathBuf,
}

pub(super) fn run(args: &Args, as_json: bool) -> Result<Report, Failure> {
    let store = Store::open(&args.store)?;
    let pruned = progress::during("pruning", as_json, || store.prune())?;
    let parts = [
        counted(pruned.blobs as u64, "blob"),
        counted(pruned.run_forms as u64, "prepared base"),
        counted(pruned.temporaries as u64, "unfinished file"),
    ];
    let text = format!("removed {}: {} freed\n", parts.join(", "), size(pruned.bytes));
    let json = json!({
        "blobs": pruned.blobs,
        "run_forms": pruned.run_forms,
        "temporaries": pruned.temporaries,
        "bytes": pruned.bytes,
    });
    Ok(Report { text, json })
}
