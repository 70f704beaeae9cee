//! `coracle snapshot untag`: takes a tag away.

use coracle::Store;
use serde_json::json;

use super::{Name, Report};
use crate::failure::Failure;

/// Takes a tag away
///
/// The snapshot's files go with the next 'coracle snapshot prune', unless others need them.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot
    #[arg(value_name = "STORE:TAG", value_parser = Name::parse)]
    name: Name,
}

pub(super) fn run(args: &Args) -> Result<Report, Failure> {
    let name = &args.name;
    let Some(tag) = name.tag() else {
        return Err(Failure::own(format!("'{name}' has no tag that could be taken away: write STORE:TAG")));
    };
    Store::open(name.store())?.untag(tag)?;
    let text = format!("untagged {name}\n");
    Ok(Report { text: crate::text::escape_stream(text.as_bytes()), json: json!({ "untagged": name.to_string() }) })
}
