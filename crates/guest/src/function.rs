//! Functions that the host can call: how one is registered, called, and answers.
//!
//! `#[function]` adds a [`Function`] to [`FUNCTIONS`] at link time, so that nothing runs to register one. The serve
//! loop finds the function that a call means and lets [`Function::call`] do the rest: arguments in place in the
//! host's message, the answer straight to where the host reads it, and no allocation of its own on the way.
//!
//! Everything here is public for the macros' sake and reached through `__private`; only the macros promise to keep.

use crate::rt::window::Window;
use coracle_abi::message::Kind;
use core::fmt::{self, Write as _};
use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

/// All functions of the program, in the order in which the linker put them. Their indices are those of calls.
#[linkme::distributed_slice]
pub static FUNCTIONS: [Function];

/// Decodes the arguments, calls the function and encodes its result.
pub type Invoke = for<'a> fn(&'a [u8], &mut Output<'_>) -> Result<(), Failure>;

/// A function that the host can call.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Hash of its signature ([`coracle_abi::signature::key_from`]).
    pub key: u64,
    /// What the macro made of it.
    pub invoke: Invoke,
}

impl Function {
    /// Calls it and leaves the answer's payload in `output`, whatever was there before. Returns what message to send:
    /// a reply, or an error with a message that was cut to what fits.
    pub fn call(&self, arguments: &[u8], output: &mut Output<'_>) -> Kind {
        output.clear();
        match (self.invoke)(arguments, output) {
            Ok(()) => Kind::Reply,
            Err(Failure::Returned) => Kind::Error,
            Err(failure) => {
                output.say(&failure);
                Kind::Error
            }
        }
    }
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The arguments are not what the signature says.
    Decode(postcard::Error),
    /// There are more bytes than the arguments need.
    LeftOver {
        /// How many more.
        bytes: usize,
    },
    /// The result needs more than a payload may have.
    TooLarge {
        /// How many bytes that are.
        limit: usize,
    },
    /// The result refuses to be encoded.
    Encode(postcard::Error),
    /// The function returned an error, whose text is in the [`Output`].
    Returned,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode(error) => write!(out, "the arguments cannot be decoded: {error}"),
            Self::LeftOver { bytes } => write!(out, "{bytes} bytes are left over after the arguments"),
            Self::TooLarge { limit } => {
                write!(out, "the result is larger than the {limit} bytes of a payload: raise payload_bytes")
            }
            Self::Encode(error) => write!(out, "the result cannot be encoded: {error}"),
            Self::Returned => out.write_str("the function returned an error"),
        }
    }
}

/// Decodes all of `arguments`. What is decoded may borrow from them.
///
/// # Errors
/// [`Failure::Decode`] and [`Failure::LeftOver`].
#[inline]
pub fn decode<'a, T: Deserialize<'a>>(arguments: &'a [u8]) -> Result<T, Failure> {
    match postcard::take_from_bytes(arguments) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(Failure::LeftOver { bytes: rest.len() }),
        Err(error) => Err(Failure::Decode(error)),
    }
}

/// Where a payload is made.
pub(crate) trait Outbox {
    /// Room for one, from now on half made.
    fn begin(&self) -> Window<'_>;

    /// More room than this, for the same one from its start; `None` if there is none.
    fn more(&self, room: Window<'_>) -> Option<Window<'_>>;

    /// It is made, or given up.
    fn end(&self);

    /// The most bytes of a payload.
    fn limit(&self) -> usize;
}

/// A payload in the making: bytes at the start of a buffer that does not grow. If they are too many, it is made again in a
/// larger one, where there is one.
pub struct Output<'b> {
    buffer: Window<'b>, // No reference: a host call that the function makes may use the same bytes.
    used: usize,        // Invariant: at most the buffer's length.
    outbox: Option<&'b dyn Outbox>,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Output").field("buffer", &self.buffer).field("used", &self.used).finish_non_exhaustive()
    }
}

impl<'b> Output<'b> {
    /// An empty payload that can grow to the whole of `buffer`.
    pub fn new(buffer: &'b mut [u8]) -> Self {
        Self { buffer: Window::new(buffer), used: 0, outbox: None }
    }

    /// An empty payload, which is begun when something is put into it.
    pub(crate) fn to(outbox: &'b dyn Outbox) -> Self {
        Self { buffer: Window::EMPTY, used: 0, outbox: Some(outbox) }
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> u64 {
        self.buffer.address()
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Forgets all bytes.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Forgets all bytes, and begins anew where there is room now.
    fn begin(&mut self) {
        self.used = 0;
        if let Some(outbox) = self.outbox {
            self.buffer = outbox.begin();
        }
    }

    fn end(&self) {
        if let Some(outbox) = self.outbox {
            outbox.end();
        }
    }

    /// Makes `value` the payload.
    ///
    /// # Errors
    /// [`Failure::TooLarge`] and [`Failure::Encode`]; the payload is then of no use.
    #[inline]
    pub fn reply<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        self.begin();
        let mut result = postcard::serialize_with_flavor(value, &mut *self);
        while result == Err(postcard::Error::SerializeBufferFull) && self.grow() {
            result = postcard::serialize_with_flavor(value, &mut *self);
        }
        self.end();
        result.map_err(|error| match error {
            postcard::Error::SerializeBufferFull => {
                Failure::TooLarge { limit: self.outbox.map_or(self.buffer.len(), Outbox::limit) }
            }
            error => Failure::Encode(error),
        })
    }

    /// Begins anew where there is more room.
    #[cold]
    fn grow(&mut self) -> bool {
        self.used = 0;
        let Some(more) = self.outbox.and_then(|outbox| outbox.more(self.buffer)) else { return false };
        self.buffer = more;
        true
    }

    /// Makes the text of `error` the payload.
    ///
    /// # Errors
    /// Always [`Failure::Returned`].
    #[cold]
    pub fn refuse<E: fmt::Display + ?Sized>(&mut self, error: &E) -> Result<(), Failure> {
        self.say(error);
        Err(Failure::Returned)
    }

    /// Makes a text the payload, as much of it as fits.
    pub(crate) fn say<T: fmt::Display + ?Sized>(&mut self, text: &T) {
        self.begin();
        // Of the two causes of an error, the buffer's end and an implementation that gives up, neither leaves
        // anything better to say than what is there now.
        let _ = write!(self, "{text}");
        self.end();
    }

    /// Appends `bytes`, all or nothing.
    #[inline]
    fn append(&mut self, bytes: &[u8]) -> Option<()> {
        self.buffer.put(self.used, bytes)?;
        self.used += bytes.len();
        Some(())
    }
}

impl Flavor for &mut Output<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.append(&[byte]).ok_or(postcard::Error::SerializeBufferFull)
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.append(bytes).ok_or(postcard::Error::SerializeBufferFull)
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl fmt::Write for Output<'_> {
    /// Writes what fits, in whole characters, and fails at the first that does not.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.floor_char_boundary(self.buffer.len() - self.used);
        self.append(&text.as_bytes()[..fits]).ok_or(fmt::Error)?;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shout(arguments: &[u8], output: &mut Output<'_>) -> Result<(), Failure> {
        let (text, times): (&str, u8) = decode(arguments)?;
        match times {
            0 => output.refuse("nothing to söy"),
            times => output.reply(&[text; 8][..usize::from(times)]),
        }
    }

    #[track_caller]
    fn check(arguments: &[u8], buffer_bytes: usize, kind: Kind, payload: &[u8]) {
        let mut buffer = [0xee; 128];
        let mut output = Output::new(&mut buffer[..buffer_bytes]);
        output.reply("what was there before").ok();
        assert_eq!(Function { key: 0, invoke: shout }.call(arguments, &mut output), kind);
        let used = output.len();
        assert_eq!(&buffer[..used], payload);
        assert!(buffer[buffer_bytes..].iter().all(|&byte| byte == 0xee));
    }

    #[test]
    fn a_result_is_a_reply() {
        check(b"\x02ab\x02", 128, Kind::Reply, b"\x02\x02ab\x02ab");
        check(b"\x02ab\x02", 7, Kind::Reply, b"\x02\x02ab\x02ab");
    }

    #[test]
    fn a_result_that_does_not_fit_is_an_error_cut_to_what_fits() {
        check(b"\x02ab\x02", 6, Kind::Error, b"the re");
        let message = b"the result is larger than the 64 bytes of a payload: raise paylo";
        let long = [&[62][..], &[b'a'; 62], &[2]].concat();
        check(&long, 64, Kind::Error, message);
    }

    #[test]
    fn an_error_of_the_function_is_its_text() {
        check(b"\0\0", 128, Kind::Error, "nothing to söy".as_bytes());
        check(b"\0\0", 13, Kind::Error, "nothing to s".as_bytes());
    }

    #[test]
    fn arguments_must_fill_their_bytes() {
        let unexpected_end = b"the arguments cannot be decoded: Hit the end of buffer, expected more data";
        check(b"\x02ab", 128, Kind::Error, unexpected_end);
        check(b"\x02ab\x02\0", 128, Kind::Error, b"1 bytes are left over after the arguments");
    }
}
