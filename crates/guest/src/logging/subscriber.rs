//! Events of the `tracing` crate. Spans are accepted and forgotten.

use core::fmt::{Arguments, Debug};

use tracing_core::field::{Field, Visit};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Event, Level, LevelFilter, Metadata, Subscriber, dispatcher};

use crate::rt;
use crate::rt::encode::Encoder;

struct Host;

/// Most fields of an event, so that their number is one byte.
const FIELDS_MAX: u8 = 127;

pub(super) fn install() {
    // A program that has set another subscriber before this runs, in its constructors, keeps it.
    let _ = dispatcher::set_global_default(Dispatch::new(Host));
}

impl Subscriber for Host {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && u32::from(number(*metadata.level())) <= super::wanted()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match super::wanted() {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(link) = rt::link() else { return };
        let metadata = event.metadata();
        link.log(number(*metadata.level()), metadata.target(), |out| write(event, out));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Appends the message and the fields.
fn write(event: &Event<'_>, out: &mut Encoder<'_>) {
    let mut message = Message { out, found: false };
    event.record(&mut message);
    if !message.found {
        out.text(event.metadata().name(), 1);
    }
    let count_at = out.len();
    out.number(0);
    let mut fields = Fields { out, count: 0 };
    event.record(&mut fields);
    let count = fields.count;
    if out.len() > count_at {
        out.patch(count_at, count);
    }
}

fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// The field that the macros give the text of an event.
const MESSAGE: &str = "message";

/// Writes the message.
struct Message<'a, 'm> {
    out: &'a mut Encoder<'m>,
    found: bool,
}

impl Message<'_, '_> {
    fn write(&mut self, field: &Field, value: Arguments<'_>) {
        if field.name() == MESSAGE && !self.found {
            self.found = true;
            self.out.text(value, 1);
        }
    }
}

impl Visit for Message<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.write(field, format_args!("{value:?}"));
    }
}

/// Writes the other fields, each whole or not at all.
struct Fields<'a, 'm> {
    out: &'a mut Encoder<'m>,
    count: u8,
}

impl Fields<'_, '_> {
    fn write(&mut self, field: &Field, value: Arguments<'_>) {
        if field.name() == MESSAGE || self.count == FIELDS_MAX {
            return;
        }
        let before = self.out.len();
        self.out.text(field.name(), 4);
        if self.out.len() == before {
            return;
        }
        self.out.text(value, 0);
        self.count += 1;
    }
}

impl Visit for Fields<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.write(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::rt::window::Window;

    /// Encodes the events of its thread as [`Host`] does.
    struct Encoding {
        room: usize,
        out: &'static Mutex<Vec<u8>>,
    }

    impl Subscriber for Encoding {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut buffer = vec![0; self.room];
            let mut encoder = Encoder::new(Window::new(&mut buffer));
            write(event, &mut encoder);
            let bytes = encoder.len();
            *self.out.lock().unwrap() = buffer[..bytes].to_vec();
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[track_caller]
    fn check(room: usize, event: impl FnOnce(), message: &str, fields: &[(&str, &str)]) {
        let out: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
        tracing::subscriber::with_default(Encoding { room, out }, event);
        let bytes = out.lock().unwrap();
        let got: (&str, Vec<(&str, &str)>) = postcard::from_bytes(&bytes).unwrap();
        assert!(got.0.starts_with(message), "{got:?}");
        assert_eq!(got.1, fields);
    }

    #[test]
    fn events_are_a_message_and_fields() {
        check(200, || tracing::info!("hello {}", 1), "hello 1", &[]);
        let event = || tracing::info!(n = 3, name = "x y", list = ?[1, 2], shown = %'c', "hello");
        check(200, event, "hello", &[("n", "3"), ("name", "x y"), ("list", "[1, 2]"), ("shown", "c")]);
        check(200, || tracing::info!(n = 3), "event ", &[("n", "3")]);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let event = || tracing::info!(n = 1, long_name = "x", "hello");
        // Eight bytes for the message, one for the number of fields, eight for the first field.
        check(17, event, "hello", &[("n", "1")]);
        check(6, event, "he", &[]);
    }
}
