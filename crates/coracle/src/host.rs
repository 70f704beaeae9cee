//! Functions of the host that a guest may call.
//!
//! A host function gets its arguments decoded and answers by a `Result`. Whatever it does, also a panic, reaches the
//! guest as an error and nobody else.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use coracle_abi::note::FunctionNote;
use coracle_abi::signature;
use postcard_schema::Schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind};
use crate::interface::Interface;

/// Decodes arguments, calls, and encodes the result behind what is in the buffer.
type Handler = dyn Fn(&[u8], &mut Vec<u8>) -> Result<(), String> + Send + Sync;

/// The host functions of a sandbox. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct HostFunctions {
    by_key: HashMap<u64, Entry>,
}

#[derive(Clone)]
struct Entry {
    name: String,
    types: String, // What follows the name in its signature.
    handler: Arc<Handler>,
}

impl fmt::Debug for HostFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_key.values().map(|entry| &entry.name)).finish()
    }
}

impl HostFunctions {
    /// Adds a function, in place of one with the same name.
    pub(crate) fn add<A, R, E, F>(&mut self, name: String, function: F)
    where
        A: DeserializeOwned + Schema,
        R: Serialize + Schema,
        E: Display,
        F: Fn(A) -> Result<R, E> + Send + Sync + 'static,
    {
        let handler = move |arguments: &[u8], out: &mut Vec<u8>| {
            let arguments: A = match postcard::take_from_bytes(arguments) {
                Ok((arguments, [])) => arguments,
                Ok(_) => return Err("the arguments are longer than the host function's types".to_owned()),
                Err(error) => return Err(format!("the arguments cannot be decoded: {error}")),
            };
            let result = function(arguments).map_err(|error| error.to_string())?;
            let encoded = postcard::to_extend(&result, std::mem::take(out));
            *out = encoded.map_err(|error| format!("the result cannot be encoded: {error}"))?;
            Ok(())
        };
        let key = signature::key_from(&name, A::SCHEMA, R::SCHEMA);
        self.insert(key, Entry { name, types: types_text::<A, R>(), handler: Arc::new(handler) });
    }

    /// Adds a function whose types are known only as text, in place of one with the same name. It gets its arguments
    /// encoded, and answers with the encoded result.
    ///
    /// # Errors
    /// [`ErrorKind::Signature`] when the text is not a signature.
    pub(crate) fn add_dynamic<F>(&mut self, signature: &str, function: F) -> Result<(), Error>
    where
        F: Fn(&[u8]) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    {
        let desc = [signature.as_bytes(), &[0]].concat();
        let note = FunctionNote::parse(&desc).map_err(|error| {
            let message = format!("'{}' is not a host function's signature: {error}", signature.escape_debug());
            Error::new(ErrorKind::Signature, message)
        })?;
        let handler = move |arguments: &[u8], out: &mut Vec<u8>| {
            *out = function(arguments)?;
            Ok(())
        };
        let types = signature[note.name.len()..].to_owned();
        self.insert(note.key(), Entry { name: note.name.to_owned(), types, handler: Arc::new(handler) });
        Ok(())
    }

    fn insert(&mut self, key: u64, entry: Entry) {
        self.by_key.retain(|_, old| old.name != entry.name);
        self.by_key.insert(key, entry);
    }

    /// Whether all that the guest needs is there, with the types it expects.
    ///
    /// # Errors
    /// [`ErrorKind::Signature`], naming each function that is missing or differs.
    pub(crate) fn check(&self, interface: &Interface) -> Result<(), Error> {
        let mut problems = Vec::new();
        for wanted in interface.host_functions.iter().filter(|wanted| !self.by_key.contains_key(&wanted.key)) {
            match self.by_key.values().find(|entry| entry.name == wanted.name) {
                Some(entry) => {
                    problems.push(format!("the guest expects {wanted}, the host offers {}{}", entry.name, entry.types));
                }
                None => {
                    problems.push(format!("the guest needs {wanted}: offer it by .host_fn(\"{}\", …)", wanted.name))
                }
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Signature, format!("host functions do not fit: {}", problems.join("; "))))
    }

    /// Calls the function with this key. The result, or the error's text, replaces what is in `out`; `true` for a
    /// result.
    pub(crate) fn call(&self, key: u64, arguments: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        let failure = match self.by_key.get(&key) {
            // A handler that panicked is called again like any other: what it shares with its earlier self is its own.
            Some(entry) => match catch_unwind(AssertUnwindSafe(|| (entry.handler)(arguments, out))) {
                Ok(Ok(())) => return true,
                Ok(Err(message)) => message,
                Err(panic) => format!("host function '{}' panicked: {}", entry.name, panic_text(&*panic)),
            },
            None => "the host has no such function".to_owned(),
        };
        out.clear();
        out.extend_from_slice(failure.as_bytes());
        false
    }
}

/// `(ARGUMENTS) -> RESULT`.
pub(crate) fn types_text<A: Schema + ?Sized, R: Schema + ?Sized>() -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = signature::write_types(A::SCHEMA, R::SCHEMA, &mut text);
    text
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> HostFunctions {
        let mut functions = HostFunctions::default();
        functions.add("double".into(), |n: u32| n.checked_mul(2).ok_or("too large"));
        functions.add("explode".into(), |(): ()| -> Result<(), String> { panic!("at once") });
        functions
    }

    #[track_caller]
    fn call<A: Serialize + Schema, R: Schema>(name: &str, args: A) -> (bool, Vec<u8>) {
        let mut out = b"left over".to_vec();
        let arguments = postcard::to_stdvec(&args).unwrap();
        let good = functions().call(signature::key_from(name, A::SCHEMA, R::SCHEMA), &arguments, &mut out);
        (good, out)
    }

    #[test]
    fn results_and_errors_come_back() {
        assert_eq!(call::<u32, u32>("double", 21), (true, vec![42]));
        assert_eq!(call::<u32, u32>("double", u32::MAX), (false, b"too large".to_vec()));
    }

    #[test]
    fn a_panic_is_an_error_and_nothing_more() {
        let (good, out) = call::<(), ()>("explode", ());
        assert!(!good);
        assert_eq!(String::from_utf8(out).unwrap(), "host function 'explode' panicked: at once");
    }

    #[test]
    fn types_may_be_text() {
        let mut functions = functions();
        functions.add_dynamic("double(u32) -> u32", |bytes| Ok(vec![bytes.len() as u8])).unwrap();
        let mut out = Vec::new();
        assert!(functions.call(signature::key_from("double", u32::SCHEMA, u32::SCHEMA), &[21], &mut out));
        assert_eq!(out, [1]);
        // With other types it is another function, and takes the place of the one before.
        functions.add_dynamic("double(u8) -> u8", |_| Err("no".into())).unwrap();
        assert!(!functions.call(signature::key_from("double", u32::SCHEMA, u32::SCHEMA), &[21], &mut out));
        assert!(!functions.call(signature::key_from("double", u8::SCHEMA, u8::SCHEMA), &[21], &mut out));
        assert_eq!(out, b"no");
        assert_eq!(functions.add_dynamic("double", |_| Ok(vec![])).unwrap_err().kind(), ErrorKind::Signature);
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        assert!(!call::<u8, u8>("double", 1).0);
    }

    #[test]
    fn arguments_that_do_not_decode_are_an_error() {
        let functions = functions();
        let key = signature::key_from("double", u32::SCHEMA, u32::SCHEMA);
        for arguments in [&[][..], &[1, 1], &[0xff; 9]] {
            assert!(!functions.call(key, arguments, &mut Vec::new()), "{arguments:x?}");
        }
    }

    #[test]
    fn what_the_guest_needs_is_named() {
        let needs = |name: &str, signature: &str| crate::interface::FunctionInfo {
            signature: signature.into(),
            name: name.into(),
            parameters: String::new(),
            key: signature::hash(signature),
            types: 0,
        };
        let interface = Interface {
            host_functions: vec![
                needs("double", "double(u64) -> u64"),
                needs("explode", "explode() -> ()"),
                needs("other", "other() -> ()"),
            ],
            ..Interface::default()
        };
        let error = functions().check(&interface).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Signature);
        let text = error.to_string();
        assert!(text.contains("expects double(u64) -> u64, the host offers double(u32) -> u32"), "{text}");
        assert!(text.contains("needs other() -> ()") && !text.contains("explode"), "{text}");
    }
}
