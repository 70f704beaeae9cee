//! The guest's end of the conversation: what is in which buffer when the doorbell rings.
//!
//! Pure in the sense that counts: it knows windows and a function that rings, so tests play the host.
//!
//! The inbound buffer is used like a stack. A call's frame lies at its start, and its arguments stay where they are
//! while the function runs; the reply to a host call comes behind them, and its place is free again when it has been
//! decoded. In the outbound buffer there is one frame at a time, whose header is written last: a log record that is
//! passed on meanwhile only takes the header's place.
#![allow(unsafe_code)] // Reads frames in place.

use core::fmt::Display;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use alloc::string::String;
use coracle_abi::frame::{Header, Kind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::encode::Encoder;
use super::window::Window;
use crate::function::{Failure, Function, Output};
use crate::host::HostError;

/// What is kept from frame to frame. Atomic only because it is shared; nothing ever waits for it.
#[derive(Debug)]
pub(crate) struct State {
    /// Of the call that is being served; 0 while starting.
    correlation: AtomicU64,
    /// Offset of the first byte in the inbound buffer that no frame in use covers, a multiple of 8.
    free: AtomicUsize,
    /// Whether a log record is being written.
    pub(super) logging: AtomicBool,
    /// Whether a panic is being reported.
    panicking: AtomicBool,
}

impl State {
    pub(crate) const fn new() -> Self {
        Self {
            correlation: AtomicU64::new(0),
            free: AtomicUsize::new(0),
            logging: AtomicBool::new(false),
            panicking: AtomicBool::new(false),
        }
    }
}

/// The buffers, the state and the doorbell.
pub(crate) struct Link<'m, D> {
    pub(crate) inbound: Window<'m>,
    pub(crate) outbound: Window<'m>,
    pub(crate) log: Window<'m>,
    pub(crate) state: &'m State,
    pub(crate) ring: D,
}

/// Room for a payload that the host insists on where a reply is to go.
const REPLY_ROOM: usize = 8;

impl<'m, D: Fn()> Link<'m, D> {
    /// Leaves the frame that tells the host which functions there are, in the order of their indices.
    pub(crate) fn ready(&self, functions: &[Function]) {
        let payload = self.payload();
        let mut bytes = 0;
        for function in functions {
            if payload.put(bytes, &function.key.to_le_bytes()).is_none() {
                return self.error(format_args!(
                    "{} functions are too many for the {} bytes of the outbound buffer: raise payload_bytes",
                    functions.len(),
                    payload.len()
                ));
            }
            bytes += 8;
        }
        self.leave(Header { bytes: bytes as u32, ..Header::new(Kind::Ready) });
    }

    /// Leaves the frame that tells the host why there is no result.
    pub(crate) fn error(&self, error: impl Display) {
        let mut output = self.output();
        output.say(&error);
        self.leave(Header { bytes: output.len() as u32, ..Header::new(Kind::Error) });
    }

    /// Serves the call in the inbound buffer, and leaves the frame with the answer.
    pub(crate) fn serve(&self, functions: &[Function]) {
        let Some((header, end)) = self.frame(0) else {
            return self.error("the host's frame is longer than the inbound buffer");
        };
        self.state.correlation.store(header.correlation, Relaxed);
        self.state.free.store(end.next_multiple_of(8), Relaxed);
        let function = functions.get(header.index as usize).filter(|function| function.key == header.key);
        let Some(function) = function.filter(|_| header.kind == Kind::Call as u8) else {
            return self.error("no such function");
        };
        // SAFETY: the host writes to the inbound buffer while the doorbell rings only, and then from `free` on until
        // this call has its reply. This program does not write there.
        let Some(arguments) = (unsafe { self.inbound.bytes(Header::BYTES..end) }) else { return };
        let mut output = self.output();
        let kind = function.call(arguments, &mut output);
        self.leave(Header { bytes: output.len() as u32, ..Header::new(kind) });
    }

    /// Calls a function of the host.
    ///
    /// # Errors
    /// Its own, and those of the way there and back.
    pub(crate) fn host_call<A, R>(&self, key: u64, arguments: &A) -> Result<R, HostError>
    where
        A: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        let mut output = self.output();
        output.reply(arguments).map_err(|failure| match failure {
            Failure::TooLarge { limit } => HostError::new(alloc::format!(
                "the arguments are larger than the {limit} bytes of the outbound buffer: raise payload_bytes"
            )),
            failure => HostError::new(alloc::format!("the arguments cannot be sent: {failure}")),
        })?;
        let at = self.state.free.load(Relaxed);
        if self.inbound.len() < at + Header::BYTES + REPLY_ROOM {
            return Err(HostError::new(alloc::format!(
                "the call's arguments leave no room for a reply in the {} bytes of the inbound buffer: raise \
                 payload_bytes",
                self.inbound.len()
            )));
        }
        let header = Header { key, bytes: output.len() as u32, reply_at: at as u32, ..Header::new(Kind::HostCall) };
        self.send(header);
        let (reply, end) = self.frame(at).ok_or_else(damaged)?;
        // A type may call the host while it is decoded.
        self.state.free.store(end.next_multiple_of(8), Relaxed);
        // SAFETY: as in `serve`: the host writes from `free` on only, until the reply has been decoded.
        let payload = unsafe { self.inbound.bytes(at + Header::BYTES..end) }.ok_or_else(damaged)?;
        let result = match Kind::from_u8(reply.kind) {
            Some(Kind::HostReply) => crate::function::decode(payload)
                .map_err(|failure| HostError::new(alloc::format!("the host's reply is of another type: {failure}"))),
            Some(Kind::HostError) => Err(HostError::new(String::from_utf8_lossy(payload).into_owned())),
            _ => Err(damaged()),
        };
        self.state.free.store(at, Relaxed);
        result
    }

    /// Tells the host of a panic.
    pub(crate) fn panic(&self, message: impl Display, location: Option<&Location<'_>>) {
        let nested = self.state.panicking.swap(true, Relaxed);
        let mut payload = Encoder::new(self.payload());
        let (file, line, column) = location.map_or(("", 0, 0), |at| (at.file(), at.line(), at.column()));
        let reserve = file.len().min(1024) + 16;
        if nested {
            // The message itself panicked, so that it is better not asked again.
            payload.text("a panic while the message of another was made", reserve);
        } else {
            payload.text(message, reserve);
        }
        payload.text(file, 10);
        payload.number(line);
        payload.number(column);
        self.send(Header { bytes: payload.len() as u32, ..Header::new(Kind::Panic) });
    }

    /// Completes the frame whose payload is in the outbound buffer, and hands over.
    pub(super) fn send(&self, header: Header) {
        self.leave(header);
        self.ring();
    }

    /// Completes the frame whose payload is in the outbound buffer.
    fn leave(&self, header: Header) {
        let correlation = self.state.correlation.load(Relaxed);
        self.outbound.put(0, &Header { correlation, ..header }.encode());
    }

    /// Hands over. What the host answers is there when it returns.
    pub(crate) fn ring(&self) {
        (self.ring)();
    }

    /// The header at an offset of the inbound buffer and where its payload ends, if that is inside.
    fn frame(&self, at: usize) -> Option<(Header, usize)> {
        let header = Header::decode(&self.inbound.get(at)?);
        let end = at.checked_add(Header::BYTES)?.checked_add(header.bytes as usize)?;
        (end <= self.inbound.len()).then_some((header, end))
    }

    fn payload(&self) -> Window<'m> {
        self.outbound.tail(Header::BYTES)
    }

    fn output(&self) -> Output<'m> {
        Output::in_window(self.payload())
    }
}

#[cold]
fn damaged() -> HostError {
    HostError::new("the host's reply is damaged".into())
}

#[cfg(test)]
pub(super) mod tests {
    use core::cell::RefCell;

    use coracle_abi::frame::LOG_RECORDS;

    use super::*;
    use crate::function::decode;

    /// What a frame says, for comparison.
    #[derive(Debug, PartialEq)]
    pub(in crate::rt) struct Sent {
        pub(in crate::rt) kind: Kind,
        key: u64,
        correlation: u64,
        reply_at: u32,
        payload: Vec<u8>,
        pub(in crate::rt) log: Vec<u8>,
    }

    /// Runs `guest` with a link whose doorbell notes what was sent and then calls `host`, which may answer.
    pub(in crate::rt) fn converse(guest: impl Fn(&Link<'_, &dyn Fn()>), host: impl Fn(&Sent, Window<'_>)) -> Vec<Sent> {
        let (mut inbound, mut outbound, mut log) = ([0; 256], [0; 256], [0; 128]);
        let (inbound, outbound, log) = (Window::new(&mut inbound), Window::new(&mut outbound), Window::new(&mut log));
        let sent = RefCell::new(Vec::new());
        let ring = || {
            let header = Header::decode(&outbound.get(0).unwrap());
            let copy = |window: Window<'_>, from: usize, bytes: usize| -> Vec<u8> {
                (from..from + bytes).map(|at| window.get::<1>(at).unwrap()[0]).collect()
            };
            let used = u32::from_le_bytes(log.get(0).unwrap()) as usize;
            let frame = Sent {
                kind: Kind::from_u8(header.kind).unwrap(),
                key: header.key,
                correlation: header.correlation,
                reply_at: header.reply_at,
                payload: copy(outbound, Header::BYTES, header.bytes as usize),
                log: copy(log, LOG_RECORDS, used),
            };
            log.put(0, &[0; 4]).unwrap();
            host(&frame, inbound);
            sent.borrow_mut().push(frame);
        };
        let state = State::new();
        let ring: &dyn Fn() = &ring;
        guest(&Link { inbound, outbound, log, state: &state, ring });
        sent.into_inner()
    }

    fn leave(inbound: Window<'_>, at: usize, header: Header, payload: &[u8]) {
        inbound.put(at, &Header { bytes: payload.len() as u32, ..header }.encode()).unwrap();
        inbound.put(at + Header::BYTES, payload).unwrap();
    }

    fn call(key: u64, correlation: u64) -> Header {
        Header { key, correlation, ..Header::new(Kind::Call) }
    }

    const SHOUT: Function = Function {
        key: 7,
        invoke: |arguments, output| {
            let text: &str = decode(arguments)?;
            output.reply(&text.to_uppercase())
        },
    };

    fn sent(kind: Kind, correlation: u64, payload: &[u8]) -> Sent {
        Sent { kind, key: 0, correlation, reply_at: 0, payload: payload.into(), log: Vec::new() }
    }

    #[test]
    fn ready_lists_the_keys() {
        let other = Function { key: 0x0102, ..SHOUT };
        let frames = converse(|link| (link.ready(&[SHOUT, other]), link.ring()).1, |_, _| {});
        assert_eq!(frames, [sent(Kind::Ready, 0, &[7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0])]);
    }

    #[test]
    fn too_many_functions_are_an_error() {
        let frames = converse(|link| (link.ready(&[SHOUT; 29]), link.ring()).1, |_, _| {});
        assert_eq!(frames[0].kind, Kind::Error);
        assert!(frames[0].payload.starts_with(b"29 functions are too many for the 224 bytes"));
    }

    #[test]
    fn a_call_is_answered_under_its_number() {
        let guest = |link: &Link<'_, &dyn Fn()>| {
            leave(link.inbound, 0, call(7, 5), b"\x02ab");
            link.serve(&[SHOUT]);
            link.ring();
        };
        assert_eq!(converse(guest, |_, _| {}), [sent(Kind::Reply, 5, b"\x02AB")]);
    }

    #[test]
    fn a_call_of_nothing_is_an_error() {
        let wrong =
            [call(8, 5), Header { index: 1, ..call(7, 5) }, Header { kind: Kind::HostReply as u8, ..call(7, 5) }];
        for header in wrong {
            let guest = |link: &Link<'_, &dyn Fn()>| {
                leave(link.inbound, 0, header, b"\x02ab");
                link.serve(&[SHOUT]);
                link.ring();
            };
            assert_eq!(converse(guest, |_, _| {}), [sent(Kind::Error, 5, b"no such function")]);
        }
    }

    #[test]
    fn a_frame_that_claims_too_much_is_not_read() {
        let guest = |link: &Link<'_, &dyn Fn()>| {
            link.inbound.put(0, &Header { bytes: 225, ..call(7, 5) }.encode()).unwrap();
            link.serve(&[SHOUT]);
            link.ring();
        };
        let frames = converse(guest, |_, _| {});
        assert_eq!(frames[0].kind, Kind::Error);
    }

    #[test]
    fn a_host_call_leaves_the_arguments_of_the_call_in_place() {
        let answer = |frame: &Sent, inbound: Window<'_>| {
            let at = frame.reply_at as usize;
            leave(inbound, at, Header { key: 9, ..Header::new(Kind::HostReply) }, b"\x03you");
        };
        let guest = |link: &Link<'_, &dyn Fn()>| {
            leave(link.inbound, 0, call(7, 5), b"\x03abc");
            link.state.correlation.store(5, Relaxed);
            link.state.free.store(40, Relaxed);
            for _ in 0..2 {
                assert_eq!(link.host_call::<_, String>(9, &(1u8, "x")), Ok("you".into()));
            }
            assert_eq!(link.inbound.get(32), Some(*b"\x03abc"));
        };
        let want = || Sent { key: 9, reply_at: 40, ..sent(Kind::HostCall, 5, b"\x01\x01x") };
        assert_eq!(converse(guest, answer), [want(), want()]);
    }

    #[track_caller]
    fn refused(answer: impl Fn(&Sent, Window<'_>), free: usize, argument: &str, message: &str) {
        let guest = |link: &Link<'_, &dyn Fn()>| {
            link.state.free.store(free, Relaxed);
            let error = link.host_call::<_, String>(9, argument).unwrap_err();
            assert!(error.message().contains(message), "{error}");
        };
        converse(guest, answer);
    }

    #[test]
    fn a_host_call_without_a_result_is_an_error() {
        let text = |kind: Kind, payload: &'static [u8]| {
            move |_: &Sent, inbound: Window<'_>| leave(inbound, 0, Header::new(kind), payload)
        };
        refused(text(Kind::HostError, b"not today"), 0, "x", "not today");
        refused(text(Kind::HostReply, b"\x05you"), 0, "x", "another type");
        refused(text(Kind::HostReply, b"\x01you"), 0, "x", "another type");
        refused(text(Kind::Call, b""), 0, "x", "damaged");
        let claim = |_: &Sent, inbound: Window<'_>| {
            inbound.put(0, &Header { bytes: 225, ..Header::new(Kind::HostReply) }.encode()).unwrap();
        };
        refused(claim, 0, "x", "damaged");
        refused(|_, _| panic!("nothing is sent"), 220, "x", "no room for a reply");
        refused(|_, _| panic!("nothing is sent"), 0, &"x".repeat(230), "larger than the 224 bytes");
    }

    #[test]
    fn a_panic_says_what_and_where() {
        let location = Location::caller();
        let frames = converse(|link| link.panic(format_args!("no {}", "way"), Some(location)), |_, _| {});
        assert_eq!(frames[0].kind, Kind::Panic);
        let (message, file, line, _): (&str, &str, u32, u32) = postcard::from_bytes(&frames[0].payload).unwrap();
        assert_eq!((message, file, line), ("no way", location.file(), location.line()));
    }

    #[test]
    fn a_long_panic_is_cut_and_a_nested_one_short() {
        let guest = |link: &Link<'_, &dyn Fn()>| {
            link.panic("x".repeat(500), Some(Location::caller()));
            link.panic("y", None);
        };
        let frames = converse(guest, |_, _| {});
        let read = |n: usize| postcard::from_bytes::<(String, String, u32, u32)>(&frames[n].payload).unwrap();
        assert!(read(0).0.len() > 100 && read(0).1.ends_with(".rs"));
        assert!(read(1).0.contains("while the message of another"));
    }
}
