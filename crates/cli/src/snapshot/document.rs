//! What a snapshot says of itself, for showing it. `docs/snapshot-format.md` has the fields.
//!
//! Anybody may have written it. Here is only looked: what has another form than it should is not there. The library, which
//! acts on it, checks it fully.

use coracle::{CpuTemplate, store};
use serde_json::Value;

use crate::failure::Failure;
use crate::function::{Described, Functions};

/// The document: a JSON object.
pub(crate) struct Document(Value);

impl Document {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        match serde_json::from_slice(bytes) {
            Ok(value @ Value::Object(_)) => Ok(Self(value)),
            Ok(_) => Err(Failure::file("the snapshot's document is not an object")),
            Err(error) => Err(Failure::file("the snapshot's document is not JSON").because(&error)),
        }
    }

    /// What the guest offers and needs.
    pub(crate) fn functions(&self) -> Result<Functions, Failure> {
        let list = |name: &str| -> Result<Vec<Described>, Failure> {
            let damaged =
                || Failure::file(format!("the snapshot's document has no {name} as a snapshot of a guest has them"));
            let functions = self.0[name].as_array().ok_or_else(damaged)?;
            let described = |function: &Value| {
                let (signature, parameters) = (function["signature"].as_str(), function["parameters"].as_str());
                Some(Described::new(signature?, parameters?))
            };
            functions.iter().map(|function| described(function).ok_or_else(damaged)).collect()
        };
        Ok(Functions { offered: list("functions")?, needed: list("host_functions")? })
    }

    /// The value at a JSON pointer.
    pub(super) fn at(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or(&Value::Null)
    }

    pub(super) fn text(&self, pointer: &str) -> &str {
        self.at(pointer).as_str().unwrap_or("unknown")
    }

    pub(super) fn number(&self, pointer: &str) -> Option<u64> {
        self.at(pointer).as_u64()
    }

    pub(super) fn list(&self, pointer: &str) -> &[Value] {
        self.at(pointer).as_array().map_or(&[], Vec::as_slice)
    }

    /// Features of the processor that the guest counts on.
    pub(super) fn features(&self) -> Vec<&str> {
        self.list("/cpu/features").iter().filter_map(Value::as_str).collect()
    }

    /// Whether the processor's template is one that this version knows.
    pub(super) fn knows_template(&self) -> bool {
        self.text("/cpu/template").parse::<CpuTemplate>().is_ok()
    }

    /// The end of the pages that its guest ever used, as it says.
    pub(super) fn pages_used(&self) -> u32 {
        let used = self.number("/space/next_frame").unwrap_or(0);
        u32::try_from(used).unwrap_or(u32::MAX).min(PAGES_MAX)
    }
}

/// More than the most memory that a sandbox can have: 1 TiB.
const PAGES_MAX: u32 = 1 << 28;
const _: () = assert!(PAGES_MAX as u64 * store::PAGE_BYTES as u64 == coracle::Config::MEMORY_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_another_form_is_not_there() {
        let document = Document::parse(br#"{"cpu":{"features":["sse",3]},"sdk":5,"space":{"next_frame":-1}}"#).unwrap();
        assert_eq!(document.features(), ["sse"]);
        assert_eq!((document.text("/sdk"), document.text("/program/name")), ("unknown", "unknown"));
        assert_eq!((document.pages_used(), document.number("/limits/memory")), (0, None));
        assert!(document.functions().is_err() && !document.knows_template());
        assert!(Document::parse(b"[]").is_err() && Document::parse(b"{").is_err());
    }

    #[test]
    fn functions_are_found() {
        let text = br#"{"functions":[{"signature":"f() -> u8","parameters":"","index":0}],"host_functions":[]}"#;
        let functions = Document::parse(text).unwrap().functions().unwrap();
        assert_eq!((functions.offered[0].name.as_str(), functions.needed.len()), ("f", 0));
        let huge = Document::parse(br#"{"space":{"next_frame":18446744073709551615}}"#).unwrap();
        assert_eq!(huge.pages_used(), PAGES_MAX);
    }
}
