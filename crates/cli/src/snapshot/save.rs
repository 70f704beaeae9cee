//! `coracle snapshot save`: a guest, made ready and kept.

use std::path::PathBuf;

use coracle::{Sandbox, Snapshot, Store};
use serde_json::{Value, json};

use super::{Name, Report, counted};
use crate::failure::Failure;
use crate::function::{self, Functions};
use crate::guest::{Flags, Source, Unanswered};
use crate::progress;
use crate::text::{escape, size, table};

/// Boots a guest, or goes on from a snapshot, and saves it
///
/// What is saved is the guest as it is when it has booted and answered the calls given by --call. The store is made if
/// there is none; what had the tag loses it. With --from the snapshot that it goes on from is loaded in place of a guest's
/// boot, and in the same store only what differs is written. Host functions that the guest calls meanwhile and that are
/// not answered by --host fail.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "coracle snapshot save [OPTIONS] <GUEST> <STORE:TAG>\n       \
                      coracle snapshot save [OPTIONS] --from <STORE:TAG> <STORE:TAG>",
    after_help = "\
Examples:
  coracle snapshot save ./hello ./store:hello
  coracle snapshot save --memory 256M --cpu x86-64-v2 --call 'warm_up 1000' ./model ./store:warm
  coracle snapshot save --from ./store:warm --call 'learn {\"language\": \"fr\"}' ./store:french"
)]
pub(super) struct Args {
    /// Call this function first: its name and its arguments as JSON, with spaces between. May be given several times
    #[arg(long = "call", value_name = "FUNCTION JSON...")]
    calls: Vec<String>,

    /// Compress the pages: smaller to move, slower to load for the first time
    #[arg(long)]
    compress: bool,

    /// The guest: a program made with the coracle-guest SDK. Not with --from
    #[arg(value_name = "GUEST", required_unless_present = "from")]
    guest: Option<PathBuf>,

    /// Where to keep it
    #[arg(value_name = "STORE:TAG", required_unless_present = "from", value_parser = Name::parse)]
    target: Option<Name>,

    #[command(flatten)] // Last, because its heading is that of all that follow.
    flags: Flags,
}

impl Args {
    /// The store and the tag to save under: with --from, what else would be the guest.
    fn target(&self) -> Result<(Name, String), Failure> {
        let name = match (&self.flags.from, &self.guest, &self.target) {
            (Some(_), Some(target), None) => {
                let text = target.display().to_string();
                Name::parse(&text).map_err(|why| Failure::own(format!("'{text}' is no place to save to: {why}")))?
            }
            (Some(_), _, Some(_)) => {
                return Err(Failure::own("--from takes the place of the guest: give only STORE:TAG beside it"));
            }
            (None, _, Some(target)) => target.clone(),
            _ => return Err(Failure::own("where is it to be saved? Give STORE:TAG")),
        };
        match name.tag() {
            Some(tag) => {
                let tag = tag.to_owned();
                Ok((name, tag))
            }
            None => {
                Err(Failure::own(format!("'{name}' is no place to save to: its digest comes of itself, give a tag")))
            }
        }
    }
}

/// A call that is made before the guest is frozen.
struct Call {
    name: String,
    signature: coracle::dynamic::Signature,
    arguments: Vec<u8>,
}

pub(super) fn run(args: &Args, as_json: bool) -> Result<Report, Failure> {
    let (target, tag) = args.target()?;
    let guest = args.flags.describe(args.guest.as_deref())?;
    // All that can be said without running anything is said first.
    let calls: Vec<Call> = args.calls.iter().map(|text| call(&guest.functions, text)).collect::<Result<_, _>>()?;
    let answers = args.flags.answers(&guest.functions, Unanswered::Fail)?;
    let source = progress::during("loading", as_json, || args.flags.source(guest, false))?;
    let (snapshot, results) = match &source {
        // As it is: nothing of it would run.
        Source::Snapshot(snapshot) if calls.is_empty() => (snapshot.clone(), Vec::new()),
        source => {
            let mut sandbox = args.flags.builder(source, answers)?.build()?;
            prepare(&mut sandbox, &calls)?
        }
    };
    let saved = progress::during("saving", as_json, || {
        let store = Store::create(target.store())?;
        let saved = if args.compress { snapshot.save_compressed(&store, &tag) } else { snapshot.save(&store, &tag) };
        Ok::<_, Failure>(saved?)
    })?;
    let shared = saved.bytes.saturating_sub(saved.own_bytes);
    let mut text = format!("{}\n", saved.digest);
    let written = match saved.pages_written {
        0 => "no pages: the store had them".to_owned(),
        pages => counted(pages as u64, "page"),
    };
    text += &table(
        "  ",
        &[
            ["written".to_owned(), written],
            ["own".to_owned(), size(saved.own_bytes)],
            ["shared".to_owned(), format!("{} in {}", size(shared), counted(saved.layers as u64 - 1, "layer"))],
        ],
    );
    for (Call { name, .. }, result) in calls.iter().zip(&results) {
        text += &format!("  {} returned {}\n", escape(name), crate::text::escape_json(&result.to_string()));
    }
    let json = json!({
        "snapshot": target.to_string(),
        "digest": saved.digest.to_string(),
        "layers": saved.layers,
        "pages_written": saved.pages_written,
        "bytes": saved.bytes,
        "own_bytes": saved.own_bytes,
        "shared_bytes": shared,
        "results": results,
    });
    Ok(Report { text, json })
}

/// Makes the calls, and freezes what came of them.
fn prepare(sandbox: &mut Sandbox, calls: &[Call]) -> Result<(Snapshot, Vec<Value>), Failure> {
    let mut results = Vec::new();
    for Call { name, signature, arguments } in calls {
        let result = sandbox.call_encoded(name, arguments).map_err(Failure::from);
        let result = result.and_then(|bytes| function::result(signature, &bytes));
        results.push(
            result.map_err(|failure| failure.during(&format!("nothing was saved, for the call of '{name}' failed")))?,
        );
    }
    Ok((sandbox.snapshot()?, results))
}

fn call(functions: &Functions, text: &str) -> Result<Call, Failure> {
    let mut words = words(text);
    if words.is_empty() {
        return Err(Failure::own("--call needs a function's name, as in --call 'greet \"world\"'"));
    }
    let name = words.remove(0);
    let signature = functions.exported(&name)?;
    let arguments = function::arguments(&signature, &words)?;
    Ok(Call { name, signature, arguments })
}

/// Parts of a text between white space, where JSON is one part whatever white space is in it.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end_of_word = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let end = match values.next() {
            // What follows JSON at once, as in 5x, makes it an ordinary word.
            Some(Ok(_)) if rest[values.byte_offset()..].starts_with(char::is_whitespace) => values.byte_offset(),
            Some(Ok(_)) if values.byte_offset() == rest.len() => rest.len(),
            _ => end_of_word,
        };
        words.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_one_word() {
        for (text, want) in [
            ("", &[][..]),
            ("  f ", &["f"]),
            ("f world", &["f", "world"]),
            ("f \"a b\"  {\"c\": [1, 2]}\t-3", &["f", "\"a b\"", "{\"c\": [1, 2]}", "-3"]),
            ("f {\"c\": oops}", &["f", "{\"c\":", "oops}"]),
            ("f 5x \"a\"b \u{e4}", &["f", "5x", "\"a\"b", "\u{e4}"]),
            ("true null", &["true", "null"]),
        ] {
            assert_eq!(words(text), want, "{text}");
        }
    }
}
