//! Guest log records become events of the host's `tracing`.
//!
//! Target of the events is `coracle::guest`; what the guest calls its target, and its fields, are fields of the event:
//! `tracing` knows targets only at compile time. Records are the guest's words: cut to a length, control characters
//! escaped, so that they cannot forge lines or drive a terminal.

use tracing::Level;
use tracing::level_filters::LevelFilter;

/// Longest text of a record that is passed on, in bytes.
const TEXT_MAX: usize = 4096;
/// Most fields of a record that are passed on.
const FIELDS_MAX: usize = 64;

/// A level's number in the ABI; 0 for none.
pub(crate) fn number(level: Option<Level>) -> u32 {
    let level = level.or_else(|| LevelFilter::current().into_level());
    match level {
        None => 0,
        Some(Level::ERROR) => 1,
        Some(Level::WARN) => 2,
        Some(Level::INFO) => 3,
        Some(Level::DEBUG) => 4,
        Some(_) => 5,
    }
}

/// Passes on a record. What is malformed is left out.
pub(crate) fn emit(record: &[u8]) {
    if let Some(record) = Record::decode(record) {
        record.emit();
    }
}

/// Passes on how many records were left out by the guest.
pub(crate) fn emit_dropped(dropped: u32) {
    tracing::warn!(target: "coracle::guest", dropped, "the guest dropped log records that were too large");
}

#[derive(Debug, PartialEq, Eq)]
struct Record<'a> {
    level: u8,
    target: &'a str,
    message: &'a str,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> Record<'a> {
    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let ((level, target, message, count), mut rest): ((u8, &str, &str, u32), _) =
            postcard::take_from_bytes(bytes).ok()?;
        let mut fields = Vec::new();
        for _ in 0..(count as usize).min(FIELDS_MAX) {
            let (field, next) = postcard::take_from_bytes(rest).ok()?;
            fields.push(field);
            rest = next;
        }
        Some(Self { level, target, message, fields })
    }

    fn emit(&self) {
        let target = clean(self.target);
        let message = clean(self.message);
        let fields: Vec<String> =
            self.fields.iter().map(|(name, value)| format!("{}={}", clean(name), clean(value))).collect();
        let fields = fields.join(" ");
        macro_rules! event {
            ($level:ident) => {
                tracing::$level!(target: "coracle::guest", guest_target = %target, guest_fields = %fields, "{message}")
            };
        }
        match self.level {
            1 => event!(error),
            2 => event!(warn),
            3 => event!(info),
            4 => event!(debug),
            _ => event!(trace),
        }
    }
}

/// The text without what could do harm where it is shown.
fn clean(text: &str) -> String {
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let mut clean = String::new();
    for character in text[..end].chars() {
        if character.is_control() {
            clean.extend(character.escape_default());
        } else {
            clean.push(character);
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_the_abi_says() {
        let bytes = postcard::to_stdvec(&(3u8, "app", "hello", vec![("n", "1"), ("who", "you")])).unwrap();
        let record = Record::decode(&bytes).unwrap();
        assert_eq!((record.level, record.target, record.message), (3, "app", "hello"));
        assert_eq!(record.fields, [("n", "1"), ("who", "you")]);
    }

    #[test]
    fn a_record_that_claims_too_much_is_none() {
        assert_eq!(Record::decode(&[3, 0xff, 0xff, 0xff, 0xff, 0x0f, b'x']), None);
        assert_eq!(Record::decode(&[]), None);
        emit(&[0xff, 0xff, 0xff, 0xff, 1]);
    }

    #[test]
    fn control_characters_are_escaped_and_length_is_cut() {
        assert_eq!(clean("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(clean(&"é".repeat(5000)).len(), TEXT_MAX);
    }
}
