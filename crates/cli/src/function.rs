//! A guest's functions as its image describes them, and the JSON that people give for their parameters.

use coracle::dynamic::{Signature, Type};
use coracle::{FunctionInfo, Interface};
use serde_json::Value;

use crate::failure::Failure;

/// Finds one of the functions by its name.
pub(crate) fn find<'i>(functions: &'i [FunctionInfo], name: &str) -> Option<&'i FunctionInfo> {
    functions.iter().find(|function| function.name == name)
}

/// The function that is to be called.
pub(crate) fn exported(interface: &Interface, name: &str) -> Result<Signature, Failure> {
    match find(&interface.functions, name) {
        Some(info) => Ok(info.typed()?),
        None => {
            let what = format!("the guest has no function '{name}'");
            Err(Failure::own(format!("{what}; it has {}", names(&interface.functions))))
        }
    }
}

/// Names for a sentence.
pub(crate) fn names(functions: &[FunctionInfo]) -> String {
    match functions {
        [] => "none at all".to_owned(),
        functions => functions.iter().map(|function| function.name.as_str()).collect::<Vec<_>>().join(", "),
    }
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
    use serde_json::json;

    fn concat() -> Signature {
        let guest = FakeGuest::new()
            .function("concat", |(text, times): (String, u32)| Ok::<_, String>(text.repeat(times as usize)));
        exported(&Interface::of(&guest.image()).unwrap().unwrap(), "concat").unwrap()
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
        let interface = Interface::of(&FakeGuest::new().image()).unwrap().unwrap();
        assert!(exported(&interface, "concat").is_err());
    }
}
