//! `coracle call`: boots a guest and calls one of its functions. Standard output has the result and nothing else.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use coracle::{Builder, Image, Interface, Output, Sandbox, Stats};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::{function, output, quantity, text};

/// Calls a function of a Coracle guest
///
/// Arguments are JSON, one for each parameter; where a string is wanted, plain text will do. The result is one line of
/// JSON on standard output. What the guest itself writes goes to standard error. 'coracle inspect' lists a guest's
/// functions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coracle call ./hello greet world
  coracle call ./geometry area '{\"width\": 3, \"height\": 4}'
  coracle call --timeout 500ms --host time_of_day='\"noon\"' ./clock tell")]
pub(crate) struct Args {
    /// Print an object with the result and what the call cost, or with the error
    #[arg(long)]
    json: bool,

    /// The guest: a program made with the coracle-guest SDK
    #[arg(value_name = "GUEST")]
    guest: PathBuf,

    /// The function's name
    #[arg(value_name = "FUNCTION")]
    function: String,

    /// Its arguments
    #[arg(value_name = "JSON", allow_negative_numbers = true)]
    arguments: Vec<String>,

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

pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    let as_json = args.json;
    match (call(args), as_json) {
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

fn call(args: Args) -> Result<(Value, Stats), Failure> {
    let image = Image::from_path(&args.guest)?;
    let mut builder = args.settings.apply(Sandbox::builder(&image)).stdout(guest_words()).stderr(guest_words());
    if let Some(bytes) = args.heap {
        builder = builder.heap_bytes(bytes);
    }
    let Some(interface) = Interface::of(&image)? else {
        return Err(builder.build().map_or_else(Failure::from, |_| Failure::file("the image is no Coracle guest")));
    };
    interface.check_version()?;
    // All that can be said without running anything is said first.
    let signature = function::exported(&interface, &args.function)?;
    let arguments = function::arguments(&signature, &args.arguments)?;
    builder = answer_host_calls(builder, &interface, &args.host)?;
    if let Some(path) = &args.init_data {
        let bytes = std::fs::read(path).map_err(|error| {
            Failure::own(format!("cannot read the initial data from {}", path.display())).because(&error)
        })?;
        builder = builder.init_data(bytes);
    }
    let mut sandbox = builder.build()?;
    let result = sandbox.call_encoded(&args.function, &arguments)?;
    let result = signature.result.decode_json(&result).map_err(|error| {
        Failure::file(format!("the guest's result is not what its signature says: {signature}")).because(&error)
    })?;
    Ok((result, sandbox.stats()))
}

/// Offers each host function that the guest needs, by what the command line says of it.
fn answer_host_calls(mut builder: Builder, interface: &Interface, stubs: &[Stub]) -> Result<Builder, Failure> {
    for Stub { name, answer } in stubs {
        let Some(info) = function::find(&interface.host_functions, name) else {
            let needed = function::names(&interface.host_functions);
            return Err(Failure::own(format!("the guest needs no host function '{name}'; it needs {needed}")));
        };
        let result = info.typed()?.result;
        let misfit = || format!("'{answer}' cannot be the answer of host function '{name}', which is {result}");
        let value = function::value(&result, answer).map_err(|error| Failure::own(misfit()).because(&error))?;
        let bytes = result.encode_json(&value).map_err(|error| Failure::own(misfit()).because(&error))?;
        builder = builder.host_fn_dynamic(&info.signature, move |_| Ok(bytes.clone()))?;
    }
    let is_missing = |name: &str| stubs.iter().all(|stub| stub.name != name);
    let missing: Vec<String> = interface
        .host_functions
        .iter()
        .filter(|info| is_missing(&info.name))
        .map(|info| info.typed().map(|signature| signature.to_string()))
        .collect::<Result<_, _>>()?;
    if missing.is_empty() {
        return Ok(builder);
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

    fn offer(stubs: &[&str]) -> Result<Builder, Failure> {
        let (guest, stubs) = (clock(), stubs.iter().map(|text| stub(text).unwrap()).collect::<Vec<_>>());
        let builder = Sandbox::builder(&guest.image()).backend(guest.backend());
        answer_host_calls(builder, &Interface::of(&guest.image()).unwrap().unwrap(), &stubs)
    }

    #[test]
    fn a_host_function_answers_what_it_was_told() {
        let mut sandbox = offer(&["hour=300"]).unwrap().build().unwrap();
        assert_eq!(sandbox.call::<u32>("tell", ()).unwrap(), 300);
    }

    #[test]
    fn host_functions_that_do_not_fit_are_named() {
        for (stubs, want) in [
            (&[][..], "the guest needs host functions: hour() -> u32"),
            (&["minute=1"], "the guest needs no host function 'minute'; it needs hour"),
            (&["hour=noon"], "'noon' cannot be the answer of host function 'hour', which is u32"),
            (&["hour=-1"], "'-1' cannot be the answer"),
        ] {
            let message = offer(stubs).err().unwrap().json()["error"]["message"].to_string();
            assert!(message.contains(want), "{message}");
        }
    }

    #[test]
    fn a_stub_has_a_name() {
        assert_eq!(stub("a={\"b\": \"=\"}").unwrap().answer, "{\"b\": \"=\"}");
        assert!(stub("a").is_err() && stub("=1").is_err());
    }
}
