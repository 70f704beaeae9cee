//! Records of the `log` crate.

use log::{LevelFilter, Log, Metadata, Record};

use crate::rt;

struct Logger;

pub(super) fn install(level: u32) {
    // A program that has set another logger before this runs, in its constructors, keeps it.
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(filter(level));
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() as u32 <= super::wanted()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let Some(link) = rt::link() else { return };
        link.log(record.level() as u8, record.target(), |out| {
            out.text(record.args(), 1);
            out.number(0);
        });
    }

    fn flush(&self) {}
}

fn filter(level: u32) -> LevelFilter {
    match level {
        0 => LevelFilter::Off,
        1 => LevelFilter::Error,
        2 => LevelFilter::Warn,
        3 => LevelFilter::Info,
        4 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    }
}

// The ABI's numbers are those of the crate.
const _: () = assert!(log::Level::Error as u8 == 1 && log::Level::Trace as u8 == 5);
