//! Log records: how the guest leaves them for the host.
//!
//! Records lie behind each other in the log buffer, which the host empties whenever it runs. Whoever finds it full hands
//! over for nothing but that.

use core::sync::atomic::Ordering::Relaxed;

use coracle_abi::frame::{Header, Kind, LOG_RECORDS};

use super::encode::Encoder;
use super::link::Link;

/// Where the log buffer says how many bytes of records are in use.
const USED: usize = 0;
/// Where it says how many were dropped.
const DROPPED: usize = 4;
/// Bytes that a record needs behind its target: an empty message, no fields.
const RESERVE: usize = 4;

impl<D: Fn()> Link<'_, D> {
    /// Leaves a log record. `fill` appends the message and the fields; it is called again if the buffer has to be
    /// emptied first.
    ///
    /// What is logged while a record is made is dropped, and counted.
    pub(crate) fn log(&self, level: u8, target: &str, fill: impl Fn(&mut Encoder<'_>)) {
        if self.state.logging.swap(true, Relaxed) {
            return self.drop_record();
        }
        let mut used = self.log_word(USED);
        if !self.record(used, level, target, &fill, used > 0) {
            self.send(Header::new(Kind::Flush));
            used = self.log_word(USED);
            self.record(used, level, target, &fill, false);
        }
        self.state.logging.store(false, Relaxed);
    }

    /// Writes a record behind `used` bytes of others. `false`, and nothing changed, if it must be `whole` and is not.
    fn record(&self, used: u32, level: u8, target: &str, fill: &impl Fn(&mut Encoder<'_>), whole: bool) -> bool {
        let buffer = self.log.tail(LOG_RECORDS).tail(used as usize);
        let mut encoder = Encoder::new(buffer.tail(4));
        encoder.raw(&[level]);
        encoder.text(target, RESERVE);
        let fits = !encoder.is_cut();
        fill(&mut encoder);
        if whole && encoder.is_cut() {
            return false;
        }
        if !fits || self.log_word(USED) != used {
            // Too small even for an empty record; or a part of the record called the host, which emptied the buffer.
            self.drop_record();
            return true;
        }
        let bytes = encoder.len() as u32;
        buffer.put(0, &bytes.to_le_bytes());
        self.log.put(USED, &(used + 4 + bytes).to_le_bytes());
        true
    }

    #[cold]
    fn drop_record(&self) {
        let dropped = self.log_word(DROPPED).saturating_add(1);
        self.log.put(DROPPED, &dropped.to_le_bytes());
    }

    fn log_word(&self, at: usize) -> u32 {
        self.log.get(at).map_or(0, u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::super::link::tests::converse;
    use super::*;

    type Record<'a> = (u8, &'a str, &'a str, Vec<(&'a str, &'a str)>);

    fn records(mut bytes: &[u8]) -> Vec<Record<'_>> {
        let mut records = Vec::new();
        while let Some((length, rest)) = bytes.split_first_chunk() {
            let (record, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            records.push(postcard::from_bytes(record).unwrap());
            bytes = rest;
        }
        records
    }

    fn say(link: &Link<'_, &dyn Fn()>, message: &str) {
        link.log(3, "here", |out| {
            out.text(message, 1);
            out.number(0);
        });
    }

    #[test]
    fn records_wait_for_the_next_frame() {
        let guest = |link: &Link<'_, &dyn Fn()>| {
            say(link, "one");
            say(link, "two");
            link.ready(&[]);
            link.ring();
        };
        let frames = converse(guest, |_, _| {});
        assert_eq!(records(&frames[0].log), [(3, "here", "one", vec![]), (3, "here", "two", vec![])]);
    }

    #[test]
    fn a_full_buffer_is_passed_on_first() {
        let long = "z".repeat(80);
        let guest = |link: &Link<'_, &dyn Fn()>| {
            say(link, "one");
            say(link, &long);
            say(link, &"w".repeat(500)); // More than the whole buffer: cut.
            link.ready(&[]);
            link.ring();
        };
        let frames = converse(guest, |_, _| {});
        assert_eq!(frames.iter().map(|frame| frame.kind).collect::<Vec<_>>(), [Kind::Flush, Kind::Flush, Kind::Ready]);
        assert_eq!(records(&frames[0].log), [(3, "here", "one", vec![])]);
        assert_eq!(records(&frames[1].log), [(3, "here", &*long, vec![])]);
        assert!(records(&frames[2].log)[0].2.starts_with("wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww"));
    }

    #[test]
    fn what_is_logged_by_a_record_is_dropped() {
        let dropped = Cell::new(0);
        let guest = |link: &Link<'_, &dyn Fn()>| {
            link.log(1, "outer", |out| {
                say(link, "inner");
                out.text("whole", 1);
                out.number(0);
            });
            dropped.set(link.log_word(DROPPED));
            link.ready(&[]);
            link.ring();
        };
        let frames = converse(guest, |_, _| {});
        assert_eq!(records(&frames[0].log), [(1, "outer", "whole", vec![])]);
        assert_eq!(dropped.get(), 1);
    }
}
