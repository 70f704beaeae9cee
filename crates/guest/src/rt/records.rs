//! Log records: how the guest leaves them for the host.
//!
//! Records are messages, behind each other in a place of their own: one may be made while another message is half made.
//! The host takes them whenever it runs; whoever finds their place full lets it run for nothing but that.

use core::sync::atomic::Ordering::Relaxed;

use coracle_abi::message::{Header, Kind};
use coracle_abi::queue::DROPPED;
use coracle_virtq::memory::Segment;

use super::encode::Encoder;
use super::link::Link;

/// Bytes that a record needs behind its target: an empty message, no fields.
const RESERVE: usize = 4;

impl<D: Fn()> Link<'_, D> {
    /// Leaves a log record. `fill` appends the message and the fields; it is called again if the host has to run first.
    ///
    /// What is logged while a record is made is dropped, and counted.
    pub(crate) fn log(&self, level: u8, target: &str, fill: impl Fn(&mut Encoder<'_>)) {
        if self.state.logging.swap(true, Relaxed) {
            return self.drop_record();
        }
        let used = self.state.used_log.load(Relaxed);
        if !self.record(used, level, target, &fill, used > 0) {
            self.flush();
            self.record(0, level, target, &fill, false);
        }
        self.state.logging.store(false, Relaxed);
    }

    /// Writes a record behind `used` bytes of others. `false`, and nothing changed, if it must be `whole` and is not.
    fn record(&self, used: usize, level: u8, target: &str, fill: &impl Fn(&mut Encoder<'_>), whole: bool) -> bool {
        let place = self.log.tail(used);
        let mut encoder = Encoder::new(place.tail(Header::BYTES));
        encoder.raw(&[level]);
        encoder.text(target, RESERVE);
        let fits = !encoder.is_cut();
        fill(&mut encoder);
        if whole && encoder.is_cut() {
            return false;
        }
        if !fits {
            // Too small even for an empty record.
            self.drop_record();
            return true;
        }
        let bytes = Header::BYTES + encoder.len();
        place.put(0, &Header::new(Kind::Log).encode());
        // The host may have run in between, if there was no room in the ring, or a part of the record called it: then what
        // lies before this one is free, and not used again before it runs.
        self.offer(Segment::new(place.address(), bytes as u32));
        self.state.used_log.store(used + bytes.next_multiple_of(8), Relaxed);
        true
    }

    #[cold]
    fn drop_record(&self) {
        let dropped = self.queues.get(DROPPED as usize).map_or(0, u32::from_le_bytes).saturating_add(1);
        self.queues.put(DROPPED as usize, &dropped.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::super::link::tests::{Sent, converse};
    use super::*;

    type Record<'a> = (u8, &'a str, &'a str, Vec<(&'a str, &'a str)>);

    fn record(message: &Sent) -> Record<'_> {
        assert_eq!(message.kind, Kind::Log);
        postcard::from_bytes(&message.payload).unwrap()
    }

    fn say<D: Fn()>(link: &Link<'_, D>, text: &str) {
        link.log(3, "here", |out| {
            out.text(text, 1);
            out.number(0);
        });
    }

    #[test]
    fn records_go_with_the_next_exit() {
        let guest = |link: &Link<'_, &dyn Fn()>, host: &super::super::link::tests::Host<'_>| {
            say(link, "one");
            say(link, "two");
            assert_eq!(host.exits.get(), 0);
            link.ready(&[]);
            link.ring();
        };
        let messages = converse(guest, |_, _| {});
        assert_eq!(messages.len(), 3);
        assert_eq!(record(&messages[0]), (3, "here", "one", vec![]));
        assert_eq!(record(&messages[1]), (3, "here", "two", vec![]));
        assert_eq!(messages[2].kind, Kind::Ready);
    }

    #[test]
    fn a_full_place_lets_the_host_run_first() {
        let long = "z".repeat(90);
        let guest = |link: &Link<'_, &dyn Fn()>, host: &super::super::link::tests::Host<'_>| {
            say(link, "one");
            say(link, &long);
            say(link, &"w".repeat(500)); // More than the whole place: cut.
            assert_eq!(host.exits.get(), 2);
            link.ring();
        };
        let messages = converse(guest, |_, _| {});
        assert_eq!(record(&messages[0]), (3, "here", "one", vec![]));
        assert_eq!(record(&messages[1]), (3, "here", &*long, vec![]));
        assert!(record(&messages[2]).2.starts_with("wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww"));
    }

    #[test]
    fn a_record_amid_a_message_leaves_it_alone() {
        struct Chatty<'c>(&'c dyn Fn());
        impl serde::Serialize for Chatty<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                (self.0)();
                serializer.serialize_str("whole")
            }
        }
        let guest = |link: &Link<'_, &dyn Fn()>, _: &super::super::link::tests::Host<'_>| {
            let chat = || (0..100).for_each(|_| say(link, "amid"));
            link.notify(9, &("before", Chatty(&chat), "behind")).unwrap();
            link.ring();
        };
        let messages = converse(guest, |_, _| {});
        assert_eq!(messages.len(), 101);
        let whole: (&str, &str, &str) = postcard::from_bytes(&messages[100].payload).unwrap();
        assert_eq!(whole, ("before", "whole", "behind"));
    }

    #[test]
    fn what_is_logged_by_a_record_is_dropped() {
        let dropped = Cell::new(0);
        let guest = |link: &Link<'_, &dyn Fn()>, _: &super::super::link::tests::Host<'_>| {
            link.log(1, "outer", |out| {
                say(link, "inner");
                out.text("whole", 1);
                out.number(0);
            });
            dropped.set(link.queues.get(DROPPED as usize).map_or(0, u32::from_le_bytes));
            link.ring();
        };
        let messages = converse(guest, |_, _| {});
        assert_eq!(record(&messages[0]), (1, "outer", "whole", vec![]));
        assert_eq!(dropped.get(), 1);
    }
}
