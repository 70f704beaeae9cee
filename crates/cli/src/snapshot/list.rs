//! `coracle snapshot list`: what a store has.

use std::path::PathBuf;

use coracle::Store;
use serde_json::{Value, json};

use super::Report;
use crate::failure::Failure;
use crate::text::{size, table};

/// Lists the snapshots of a store
///
/// Each with the size of all that it needs, and of what it does not share with the one it derives from. Reads one file.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The store
    #[arg(value_name = "STORE")]
    store: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<Report, Failure> {
    let tagged = Store::open(&args.store)?.list()?;
    let bytes = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size);
    let mut rows = vec![["tag", "in all", "own", "digest"].map(str::to_owned)];
    rows.extend(tagged.iter().map(|it| [it.tag.clone(), bytes(it.bytes), bytes(it.own_bytes), it.digest.to_string()]));
    let text = if tagged.is_empty() { "no snapshots\n".to_owned() } else { table("", &rows) };
    let snapshots: Vec<Value> = tagged
        .iter()
        .map(|it| json!({ "tag": it.tag, "digest": it.digest.to_string(), "bytes": it.bytes, "own_bytes": it.own_bytes }))
        .collect();
    Ok(Report { text, json: json!({ "store": args.store.display().to_string(), "snapshots": snapshots }) })
}
