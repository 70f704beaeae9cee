//! `coracle snapshot verify`: every byte, compared with what names it.

use std::path::{Path, PathBuf};

use coracle::Store;
use serde_json::json;

use super::{Name, Report, counted};
use crate::failure::Failure;
use crate::progress;
use crate::text::size;

/// Reads a snapshot, or all of a store, and compares it with its digests
///
/// Prepared bases are compared, too. A directory's path means all snapshots that have a tag.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 when all is good, 126 when anything is not, 127 when it is not there.")]
pub(super) struct Args {
    /// The store, or one snapshot
    #[arg(value_name = "STORE[:TAG]")]
    target: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Target {
    All(PathBuf),
    One(Name),
}

/// A path may look like a snapshot's name: what is there decides.
fn target(text: &str, is_directory: impl FnOnce(&Path) -> bool) -> Target {
    let path = Path::new(text);
    match Name::parse(text) {
        Ok(name) if !is_directory(path) => Target::One(name),
        _ => Target::All(path.to_owned()),
    }
}

pub(super) fn run(args: &Args, as_json: bool) -> Result<Report, Failure> {
    let verified = match target(&args.target, Path::is_dir) {
        Target::All(path) => {
            let store = Store::open(path)?;
            progress::during("verifying", as_json, || store.verify_all())?
        }
        Target::One(name) => {
            let store = Store::open(name.store())?;
            progress::during("verifying", as_json, || store.verify(name.reference()))?
        }
    };
    let parts = [
        counted(verified.snapshots as u64, "snapshot"),
        counted(verified.layers as u64, "layer"),
        counted(verified.run_forms as u64, "prepared base"),
    ];
    let text = format!("good: {}, {}\n", parts.join(", "), size(verified.bytes));
    let json = json!({
        "good": true,
        "snapshots": verified.snapshots,
        "layers": verified.layers,
        "run_forms": verified.run_forms,
        "bytes": verified.bytes,
    });
    Ok(Report { text, json })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_a_colon_is_a_store() {
        assert_eq!(target("a:b", |_| true), Target::All("a:b".into()));
        assert_eq!(target("a:b", |_| false), Target::One(Name::parse("a:b").unwrap()));
        for text in ["a", "a:", "a:b/c"] {
            assert_eq!(target(text, |_| false), Target::All(text.into()), "{text}");
        }
    }
}
