//! A guest's functions as its image or snapshot describes them, and the JSON that people give for their parameters.

use coracle::dynamic::{Signature, Type};
use coracle::{FunctionInfo, Interface};
use coracle_abi::note::FunctionNote;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::text::escape;

/// What a guest offers and needs. Nothing of it was checked but where a name ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Functions {
    pub(crate) offered: Vec<Described>,
    /// Of the host.
    pub(crate) needed: Vec<Described>,
}

/// A function in the words of an image or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) signature: String,
    /// Names, joined by commas.
    parameters: String,
}

impl Described {
    pub(crate) fn new(signature: &str, parameters: &str) -> Self {
        let name = signature.split('(').next().unwrap_or_default().to_owned();
        Self { name, signature: signature.to_owned(), parameters: parameters.to_owned() }
    }

    /// Its signature, taken apart and checked.
    pub(crate) fn typed(&self) -> Result<Signature, Failure> {
        let desc = format!("{}\0{}", self.signature, self.parameters);
        let damaged = || Failure::file(format!("what is said of function '{}' is damaged", self.name));
        let note = FunctionNote::parse(desc.as_bytes()).map_err(|error| damaged().because(&error))?;
        Signature::from_note(&note).map_err(|error| damaged().because(&error))
    }
}

impl From<&Interface> for Functions {
    fn from(interface: &Interface) -> Self {
        let described = |infos: &[FunctionInfo]| {
            infos.iter().map(|info| Described::new(&info.signature, &info.parameters)).collect()
        };
        Self { offered: described(&interface.functions), needed: described(&interface.host_functions) }
    }
}

impl Functions {
    /// The function that is to be called.
    pub(crate) fn exported(&self, name: &str) -> Result<Signature, Failure> {
        match find(&self.offered, name) {
            Some(function) => function.typed(),
            None => {
                let what = format!("the guest has no function '{name}'");
                Err(Failure::own(format!("{what}; it has {}", names(&self.offered))))
            }
        }
    }
}

/// Finds one of the functions by its name.
pub(crate) fn find<'f>(functions: &'f [Described], name: &str) -> Option<&'f Described> {
    functions.iter().find(|function| function.name == name)
}

/// Names for a sentence.
pub(crate) fn names(functions: &[Described]) -> String {
    match functions {
        [] => "none at all".to_owned(),
        functions => functions.iter().map(|function| function.name.as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// Functions under a title, one in a line.
pub(crate) fn section<'s>(title: &str, signatures: impl IntoIterator<Item = &'s Signature>) -> String {
    let mut lines = String::new();
    for signature in signatures {
        lines += &format!("  {}\n", escape(&signature.to_string()));
    }
    format!("\n{title}\n{}", if lines.is_empty() { "  none\n" } else { &lines })
}

/// A function for programs: the text of its signature, and its parts.
pub(crate) fn describe(text: &str, signature: &Signature) -> Value {
    let parameters: Vec<Value> = signature
        .parameters
        .iter()
        .map(|parameter| json!({ "name": parameter.name, "type": parameter.ty.to_string() }))
        .collect();
    json!({
        "name": signature.name,
        "signature": text,
        "parameters": parameters,
        "result": signature.result.to_string(),
    })
}

/// Encodes one text for each parameter.
pub(crate) fn arguments(signature: &Signature, texts: &[String]) -> Result<Vec<u8>, Failure> {
    let (want, found) = (signature.parameters.len(), texts.len());
    if want != found {
        let noun = if want == 1 { "argument" } else { "arguments" };
        return Err(Failure::own(format!("{} takes {want} {noun}, not {found}: {signature}", signature.name)));
    }
    let values: Vec<Value> = signature
        .parameters
        .iter()
        .zip(texts)
        .map(|(parameter, text)| {
            value(&parameter.ty, text).map_err(|error| {
                let place = parameter.name.as_deref().unwrap_or("an argument");
                Failure::own(format!("'{text}' is no JSON, for {place} of {signature}")).because(&error)
            })
        })
        .collect::<Result<_, _>>()?;
    signature
        .encode_arguments(&values)
        .map_err(|error| Failure::own(format!("the arguments do not fit {signature}")).because(&error))
}

/// A result as JSON.
pub(crate) fn result(signature: &Signature, bytes: &[u8]) -> Result<Value, Failure> {
    signature.result.decode_json(bytes).map_err(|error| {
        Failure::file(format!("the guest's result is not what its signature says: {signature}")).because(&error)
    })
}

/// The JSON value that a text stands for. Where a string is wanted, what is no JSON string is the string itself, since
/// nothing else could be meant.
pub(crate) fn value(ty: &Type, text: &str) -> Result<Value, serde_json::Error> {
    match (ty, serde_json::from_str(text)) {
        (Type::String, Ok(string @ Value::String(_))) => Ok(string),
        (Type::String, _) => Ok(Value::String(text.to_owned())),
        (_, parsed) => parsed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coracle::fake::FakeGuest;

    fn concat() -> Signature {
        let guest = FakeGuest::new()
            .function("concat", |(text, times): (String, u32)| Ok::<_, String>(text.repeat(times as usize)));
        Functions::from(&Interface::of(&guest.image()).unwrap().unwrap()).exported("concat").unwrap()
    }

    #[test]
    fn a_string_needs_no_quotes() {
        for (text, want) in [("world", "world"), ("\"world\"", "world"), ("42", "42"), ("null", "null"), ("", "")] {
            assert_eq!(value(&Type::String, text).unwrap(), json!(want));
        }
        assert_eq!(value(&Type::U8, "42").unwrap(), json!(42));
        assert!(value(&Type::U8, "world").is_err());
        assert!(value(&Type::Option(Box::new(Type::String)), "world").is_err());
    }

    #[test]
    fn there_is_one_argument_for_each_parameter() {
        let encode = |texts: &[&str]| arguments(&concat(), &texts.iter().map(|it| (*it).into()).collect::<Vec<_>>());
        assert_eq!(encode(&["ab", "3"]).unwrap(), [2, b'a', b'b', 3]);
        for texts in [&["ab"][..], &["ab", "3", "4"], &["ab", "x"], &["ab", "-1"], &[]] {
            assert!(encode(texts).is_err(), "{texts:?}");
        }
    }

    #[test]
    fn a_function_that_is_not_there_is_an_error() {
        assert!(Functions::default().exported("concat").is_err());
    }

    #[test]
    fn what_a_snapshot_says_is_checked_when_it_is_used() {
        assert_eq!(Described::new("f(u8) -> u8", "n").typed().unwrap().to_string(), "f(n: u8) -> u8");
        for signature in ["", "f", "f(", "f(u8)", "f(nothing) -> u8", "f\u{1b}(u8) -> u8"] {
            assert!(Described::new(signature, "").typed().is_err(), "{signature:?}");
        }
    }
}
