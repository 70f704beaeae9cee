//! The guest of a command: from its image or from a snapshot, with what its host answers.
//!
//! In steps, so that all that can be said without running anything is said first: [`Flags::describe`], then
//! [`Flags::answers`], then [`Flags::builder`].

use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use coracle::{Builder, Content, Image, Interface, Output, Sandbox, Snapshot, Store};

use crate::failure::Failure;
use crate::function::{self, Functions};
use crate::settings::Settings;
use crate::snapshot::{Document, Name};
use crate::{quantity, text};

/// The flags that `call` and `snapshot save` share.
#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// Start from this snapshot, in place of GUEST. Memory, stack, heap, processor, environment and initial data are the
    /// snapshot's
    #[arg(
        long,
        value_name = "STORE:TAG",
        value_parser = Name::parse,
        conflicts_with_all = ["memory", "stack", "heap", "cpu", "env", "init_data"],
    )]
    pub(crate) from: Option<Name>,

    /// A file that was mapped into the guest when the snapshot was made; may be given several times
    #[arg(long, value_name = "FILE", requires = "from")]
    content: Vec<PathBuf>,

    /// Its heap [default: half of the memory]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, help_heading = "Sandbox")]
    heap: Option<u64>,

    /// A file that the guest can read in place, as its initial data
    #[arg(long, value_name = "FILE", help_heading = "Sandbox")]
    init_data: Option<PathBuf>,

    /// Answers a host function that the guest needs, always with the same value; may be given several times
    #[arg(long, value_name = "NAME=JSON", value_parser = stub, help_heading = "Sandbox")]
    host: Vec<Stub>,

    #[command(flatten)] // Last, because its heading is that of all that follow.
    settings: Settings,
}

/// A host function's name, and the text of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stub {
    name: String,
    answer: String,
}

/// A guest that nothing runs of yet.
pub(crate) struct Guest {
    pub(crate) functions: Functions,
    origin: Origin,
}

enum Origin {
    Image(Image),
    /// And the digest: what a tag stands for may change meanwhile.
    Stored(Store, String),
}

/// Where a sandbox may come from.
pub(crate) enum Source {
    Image(Image),
    Snapshot(Snapshot),
}

/// A host function that is offered: its signature, and its encoded result or an error's text.
#[derive(Debug)]
pub(crate) struct Answer {
    signature: String,
    result: Result<Vec<u8>, String>,
}

/// Host functions that the guest needs and the command line does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Are an error now.
    Refuse,
    /// Fail when the guest calls them.
    Fail,
}

impl Flags {
    /// What the guest offers and needs. Needs no hypervisor.
    pub(crate) fn describe(&self, guest: Option<&Path>) -> Result<Guest, Failure> {
        match (&self.from, guest) {
            (Some(name), _) => {
                let store = Store::open(name.store())?;
                let inspection = store.inspect(name.reference())?;
                let digest = inspection.digest.to_string();
                match Document::parse(&inspection.config).and_then(|document| document.functions()) {
                    Ok(functions) => Ok(Guest { functions, origin: Origin::Stored(store, digest) }),
                    // The library knows better what is wrong.
                    Err(failure) => Err(Snapshot::load(&store, &digest).map_or_else(Failure::from, |_| failure)),
                }
            }
            (None, Some(path)) => {
                let image = Image::from_path(path)?;
                let Some(interface) = Interface::of(&image)? else {
                    let built = self.settings.apply(Sandbox::builder(&image)).build();
                    return Err(built.map_or_else(Failure::from, |_| Failure::file("the image is no Coracle guest")));
                };
                interface.check_version()?;
                Ok(Guest { functions: Functions::from(&interface), origin: Origin::Image(image) })
            }
            (None, None) => Err(Failure::own("there is no guest: give GUEST, or a snapshot by --from STORE:TAG")),
        }
    }

    /// Each host function that the guest needs, by what the command line says of it.
    pub(crate) fn answers(&self, functions: &Functions, unanswered: Unanswered) -> Result<Vec<Answer>, Failure> {
        answers(functions, &self.host, unanswered)
    }

    /// Opens the image or loads the snapshot. With `is_trusted`, its pages are compared with no digest.
    pub(crate) fn source(&self, guest: Guest, is_trusted: bool) -> Result<Source, Failure> {
        let (store, digest) = match guest.origin {
            Origin::Image(image) => return Ok(Source::Image(image)),
            Origin::Stored(store, digest) => (store, digest),
        };
        let mut loader = Snapshot::loader(&store);
        for path in &self.content {
            loader = loader.content(&Content::from_file(path)?);
        }
        let loaded = if is_trusted { loader.load_unverified(&digest) } else { loader.load(&digest) };
        loaded
            .map(Source::Snapshot)
            .map_err(|error| Failure::from(error).with_hint("Loader::content", "--content FILE"))
    }

    /// A sandbox in the making.
    pub(crate) fn builder(&self, source: &Source, answers: Vec<Answer>) -> Result<Builder, Failure> {
        let mut builder = match source {
            Source::Image(image) => self.settings.apply(Sandbox::builder(image)),
            Source::Snapshot(snapshot) => self.settings.apply_to_snapshot(snapshot.builder()),
        };
        builder = builder.stdout(guest_words()).stderr(guest_words());
        if let Some(bytes) = self.heap {
            builder = builder.heap_bytes(bytes);
        }
        if let Some(path) = &self.init_data {
            let bytes = std::fs::read(path).map_err(|error| {
                Failure::own(format!("cannot read the initial data from {}", path.display())).because(&error)
            })?;
            builder = builder.init_data(bytes);
        }
        for Answer { signature, result } in answers {
            builder = builder.host_fn_dynamic(&signature, move |_| result.clone())?;
        }
        Ok(builder)
    }
}

fn answers(functions: &Functions, stubs: &[Stub], unanswered: Unanswered) -> Result<Vec<Answer>, Failure> {
    let mut answers = Vec::new();
    for Stub { name, answer } in stubs {
        let Some(function) = function::find(&functions.needed, name) else {
            let needed = function::names(&functions.needed);
            return Err(Failure::own(format!("the guest needs no host function '{name}'; it needs {needed}")));
        };
        let result = function.typed()?.result;
        let misfit = || format!("'{answer}' cannot be the answer of host function '{name}', which is {result}");
        let value = function::value(&result, answer).map_err(|error| Failure::own(misfit()).because(&error))?;
        let bytes = result.encode_json(&value).map_err(|error| Failure::own(misfit()).because(&error))?;
        answers.push(Answer { signature: function.signature.clone(), result: Ok(bytes) });
    }
    let mut missing = Vec::new();
    for function in functions.needed.iter().filter(|function| stubs.iter().all(|stub| stub.name != function.name)) {
        missing.push(function.typed()?.to_string());
        let name = &function.name;
        let text = format!(
            "the host offers no '{name}' while a snapshot is made: answer it by --host {name}=JSON, or do not call it"
        );
        answers.push(Answer { signature: function.signature.clone(), result: Err(text) });
    }
    if missing.is_empty() || unanswered == Unanswered::Fail {
        return Ok(answers);
    }
    let missing = missing.join("; ");
    Err(Failure::own(format!("the guest needs host functions: {missing}. Answer each by --host NAME=JSON")))
}

/// The guest's own output: to standard error, which on a terminal must bear what it says.
fn guest_words() -> Output {
    if io::stderr().is_terminal() { Output::writer(Terminal) } else { Output::inherit_stderr() }
}

/// Standard error, with control characters escaped.
struct Terminal;

impl Write for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(text::escape_stream(bytes).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn stub(text: &str) -> Result<Stub, String> {
    match text.split_once('=') {
        Some((name, answer)) if !name.is_empty() => Ok(Stub { name: name.to_owned(), answer: answer.to_owned() }),
        _ => Err("no answer to a host function: write NAME=JSON, as in answer=42".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coracle::fake::{FakeGuest, Step};
    use coracle_abi::signature;

    fn clock() -> FakeGuest {
        FakeGuest::new().needs::<(), u32>("hour").script::<(), u32>("tell", |_| Step::HostCall {
            key: signature::hash("hour() -> u32"),
            arguments: Vec::new(),
            then: Box::new(|good, bytes| if good { Step::Reply(bytes.into()) } else { Step::Error("no hour".into()) }),
        })
    }

    fn offer(stubs: &[&str], unanswered: Unanswered) -> Result<Builder, Failure> {
        let (guest, stubs) = (clock(), stubs.iter().map(|text| stub(text).unwrap()).collect::<Vec<_>>());
        let functions = Functions::from(&Interface::of(&guest.image()).unwrap().unwrap());
        let mut builder = Sandbox::builder(&guest.image()).backend(guest.backend());
        for Answer { signature, result } in answers(&functions, &stubs, unanswered)? {
            builder = builder.host_fn_dynamic(&signature, move |_| result.clone())?;
        }
        Ok(builder)
    }

    #[test]
    fn a_host_function_answers_what_it_was_told() {
        let mut sandbox = offer(&["hour=300"], Unanswered::Refuse).unwrap().build().unwrap();
        assert_eq!(sandbox.call::<u32>("tell", ()).unwrap(), 300);
    }

    #[test]
    fn what_is_not_answered_fails_when_it_is_called() {
        let mut sandbox = offer(&[], Unanswered::Fail).unwrap().build().unwrap();
        assert_eq!(sandbox.call::<u32>("tell", ()).unwrap_err().to_string(), "no hour");
    }

    #[test]
    fn host_functions_that_do_not_fit_are_named() {
        for (stubs, want) in [
            (&[][..], "the guest needs host functions: hour() -> u32"),
            (&["minute=1"], "the guest needs no host function 'minute'; it needs hour"),
            (&["hour=noon"], "'noon' cannot be the answer of host function 'hour', which is u32"),
            (&["hour=-1"], "'-1' cannot be the answer"),
        ] {
            let failure = offer(stubs, Unanswered::Refuse).err().unwrap();
            let message = failure.json()["error"]["message"].to_string();
            assert!(message.contains(want), "{message}");
        }
    }

    #[test]
    fn a_stub_has_a_name() {
        assert_eq!(stub("a={\"b\": \"=\"}").unwrap().answer, "{\"b\": \"=\"}");
        assert!(stub("a").is_err() && stub("=1").is_err());
    }
}
