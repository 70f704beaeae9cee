//! Texts and numbers in `postcard`'s wire format, formatted straight into a buffer that does not grow.
//!
//! The length of a formatted text is known only when it is there. So it takes three bytes always: a `varint` may be
//! longer than it needs to be. What does not fit is cut, between characters.

use core::fmt::{self, Display, Write as _};

use super::window::Window;

/// Longest text, in bytes: what three bytes of a `varint` can count.
const TEXT_MAX: usize = (1 << 21) - 1;

/// Bytes of each text's length.
const LENGTH: usize = 3;

/// A payload in the making.
pub(crate) struct Encoder<'m> {
    window: Window<'m>,
    at: usize, // Invariant: at most the window's length.
    cut: bool,
}

impl<'m> Encoder<'m> {
    /// A payload at the start of `window`.
    pub(crate) fn new(window: Window<'m>) -> Self {
        Self { window, at: 0, cut: false }
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.at
    }

    /// Whether anything did not fit.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Appends bytes, all or nothing.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        match self.window.put(self.at, bytes) {
            Some(()) => self.at += bytes.len(),
            None => self.cut = true,
        }
    }

    /// Appends a number.
    pub(crate) fn number(&mut self, mut value: u32) {
        while value > 0x7f {
            self.raw(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.raw(&[value as u8]);
    }

    /// Appends a text, cut so that `reserve` bytes are left for what follows.
    pub(crate) fn text(&mut self, text: impl Display, reserve: usize) {
        let start = self.at;
        let room = self.window.len() - start;
        let Some(limit) = room.checked_sub(LENGTH + reserve) else {
            self.cut = true;
            return;
        };
        let mut out = Text { window: self.window.tail(start + LENGTH), bytes: 0, limit: limit.min(TEXT_MAX) };
        // Ends at the first part that does not fit; an implementation that gives up has said what it had to say.
        let whole = write!(out, "{text}").is_ok();
        let bytes = out.bytes;
        self.cut |= !whole;
        let length = [bytes as u8 | 0x80, (bytes >> 7) as u8 | 0x80, (bytes >> 14) as u8];
        self.raw(&length);
        self.at += bytes;
    }

    /// Replaces the byte at `at`.
    #[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "only events of `tracing` count as they go"))]
    pub(crate) fn patch(&mut self, at: usize, byte: u8) {
        debug_assert!(at < self.at);
        self.window.put(at, &[byte]);
    }
}

/// A text in the making.
struct Text<'m> {
    window: Window<'m>,
    bytes: usize,
    limit: usize,
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.floor_char_boundary(self.limit - self.bytes);
        self.window.put(self.bytes, &text.as_bytes()[..fits]).ok_or(fmt::Error)?;
        self.bytes += fits;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postcard_reads_it() {
        let mut buffer = [0; 512];
        let mut encoder = Encoder::new(Window::new(&mut buffer));
        encoder.text(format_args!("a {}", "b".repeat(300)), 0);
        encoder.number(0);
        encoder.number(300);
        encoder.number(u32::MAX);
        encoder.text("", 0);
        let (bytes, cut) = (encoder.len(), encoder.is_cut());
        let value: (&str, u32, u32, u32, &str) = postcard::from_bytes(&buffer[..bytes]).unwrap();
        assert_eq!(value, (&*format!("a {}", "b".repeat(300)), 0, 300, u32::MAX, ""));
        assert!(!cut);
    }

    #[track_caller]
    fn check(room: usize, reserve: usize, want: &str, cut: bool) {
        let mut buffer = [0xee; 64];
        let mut encoder = Encoder::new(Window::new(&mut buffer[..room]));
        encoder.text(format_args!("{}{}", "sö", "gar"), reserve);
        assert_eq!(encoder.is_cut(), cut);
        let bytes = encoder.len();
        assert_eq!(postcard::from_bytes::<&str>(&buffer[..bytes]).unwrap(), want);
        assert!(buffer[room - reserve..].iter().all(|byte| *byte == 0xee));
    }

    #[test]
    fn what_does_not_fit_is_cut_between_characters() {
        check(9, 0, "sögar", false);
        check(8, 0, "söga", true);
        check(10, 2, "söga", true);
        check(5, 0, "s", true);
        check(3, 0, "", true);
    }

    #[test]
    fn without_room_for_a_length_there_is_nothing() {
        let mut buffer = [0; 2];
        let mut encoder = Encoder::new(Window::new(&mut buffer));
        encoder.text("a", 0);
        assert_eq!((encoder.len(), encoder.is_cut()), (0, true));
    }
}
