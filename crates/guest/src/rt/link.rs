//! The guest's end of the conversation: what is in which queue when the doorbell rings.
//!
//! Pure in the sense that counts: it knows windows and a function that rings, so tests play the host.
//!
//! The host's messages are read where they lie. The guest's are made where the host reads them, one behind the other,
//! and all of them are forgotten when the host has run: so the same few bytes are used by each call. A message that does
//! not fit what is left is made again where there is more room: among the large ones, or after the host has run.
#![allow(unsafe_code)] // Reads messages in place.

use core::fmt::Display;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

use alloc::string::String;
use coracle_abi::message::{HEAD_MAX, Header, KEY_BYTES, Kind, NOTIFY};
use coracle_abi::queue::{self, Place};
use coracle_virtq::lockstep::{Offers, Taken, Takes};
use coracle_virtq::memory::Segment;
use coracle_virtq::ring::Layout;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::encode::Encoder;
use super::window::{self, Window};
use crate::function::{Failure, Function, Outbox, Output};
use crate::host::HostError;

/// What is kept from message to message. Atomic only because it is shared; nothing ever waits for it.
#[derive(Debug)]
pub(crate) struct State {
    /// Of the call that is being served; 0 while starting.
    correlation: AtomicU32,
    calls: AtomicU32,
    replies: AtomicU32,
    messages: AtomicU32,
    /// Bytes of messages that the host has not taken yet: small ones, large ones, log records.
    used: AtomicUsize,
    used_large: AtomicUsize,
    pub(super) used_log: AtomicUsize,
    /// Whether a message is half made, behind those.
    making: AtomicBool,
    /// Whether a log record is being written.
    pub(super) logging: AtomicBool,
    /// Whether a panic is being reported.
    panicking: AtomicBool,
}

impl State {
    pub(crate) const fn new() -> Self {
        Self {
            correlation: AtomicU32::new(0),
            calls: AtomicU32::new(Takes::START.pack()),
            replies: AtomicU32::new(Takes::START.pack()),
            messages: AtomicU32::new(Offers::START.pack()),
            used: AtomicUsize::new(0),
            used_large: AtomicUsize::new(0),
            used_log: AtomicUsize::new(0),
            making: AtomicBool::new(false),
            logging: AtomicBool::new(false),
            panicking: AtomicBool::new(false),
        }
    }
}

/// Where a queue lies in the window that shows them.
const fn layout(place: Place) -> Layout {
    match Layout::new(place.size, place.descriptors, place.driver_event, place.device_event) {
        Ok(layout) => layout,
        Err(_) => panic!("the queues are where they cannot be"),
    }
}

const CALLS: Layout = layout(queue::CALLS);
const REPLIES: Layout = layout(queue::REPLIES);
const MESSAGES: Layout = layout(queue::MESSAGES);

/// The windows, the state and the doorbell.
pub(crate) struct Link<'m, D> {
    pub(crate) queues: Window<'m>,
    pub(crate) outbound: Window<'m>,
    pub(crate) large: Window<'m>,
    pub(crate) log: Window<'m>,
    /// The most bytes of a payload.
    pub(crate) payload_bytes: usize,
    pub(crate) state: &'m State,
    pub(crate) ring: D,
}

/// With less room for a small message than this, the host is let run first: so that the text of an error fits.
const ROOM_MIN: usize = 2048;

impl<'m, D: Fn()> Link<'m, D> {
    /// Tells the host which functions there are, in the order of their indices.
    pub(crate) fn ready(&self, functions: &[Function]) {
        let room = self.room();
        let mut bytes = 0;
        for function in functions {
            if room.put(bytes, &function.key.to_le_bytes()).is_none() {
                return self.error(format_args!(
                    "{} functions are too many for the {} bytes of a message: raise payload_bytes",
                    functions.len(),
                    room.len()
                ));
            }
            bytes += 8;
        }
        self.send(Header::new(Kind::Ready), None, room, bytes);
    }

    /// Tells the host why there is no result.
    pub(crate) fn error(&self, error: impl Display) {
        let mut output = Output::to(self);
        output.say(&error);
        self.send_output(Header::new(Kind::Error), None, &output);
    }

    /// Serves the next call, if there is one, and sends the answer.
    pub(crate) fn serve(&self, functions: &[Function]) -> bool {
        let Some(call) = self.take(&self.state.calls, &CALLS) else { return false };
        // SAFETY: the host's message, which it leaves alone until it is given back.
        let message = unsafe { window::bytes_at(call.segment.address, call.segment.bytes) };
        if let Some((head, arguments)) = message.split_first_chunk::<HEAD_MAX>() {
            let [header, key] = halves(*head);
            let header = Header::decode(header);
            self.state.correlation.store(header.correlation, Relaxed);
            let function = functions.get(usize::from(header.index));
            match function.filter(|function| function.key == u64::from_le_bytes(key)) {
                Some(function) => {
                    let mut output = Output::to(self);
                    let kind = function.call(arguments, &mut output);
                    self.send_output(Header::new(kind), None, &output);
                }
                None => self.error("no such function"),
            }
        }
        self.give_back(&self.state.calls, &CALLS, call);
        true
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
        self.ask(Header::new(Kind::HostCall), key, arguments)?;
        self.ring();
        let reply = self.take(&self.state.replies, &REPLIES).ok_or_else(damaged)?;
        // SAFETY: as in `serve`.
        let message = unsafe { window::bytes_at(reply.segment.address, reply.segment.bytes) };
        let result = match message.split_first_chunk() {
            Some((header, payload)) => match Kind::from_u8(Header::decode(*header).kind) {
                Some(Kind::HostReply) => crate::function::decode(payload).map_err(|failure| {
                    HostError::new(alloc::format!("the host's reply is of another type: {failure}"))
                }),
                Some(Kind::HostError) => Err(HostError::new(String::from_utf8_lossy(payload).into_owned())),
                _ => Err(damaged()),
            },
            None => Err(damaged()),
        };
        self.give_back(&self.state.replies, &REPLIES, reply);
        result
    }

    /// Calls a function of the host's whose answer nobody waits for. The host sees it when it runs next.
    ///
    /// # Errors
    /// Those of the way there.
    pub(crate) fn notify<A: Serialize + ?Sized>(&self, key: u64, arguments: &A) -> Result<(), HostError> {
        self.ask(Header { flags: NOTIFY, ..Header::new(Kind::HostCall) }, key, arguments)
    }

    fn ask<A: Serialize + ?Sized>(&self, header: Header, key: u64, arguments: &A) -> Result<(), HostError> {
        if self.state.making.load(Relaxed) {
            return Err(HostError::new("a message is being made: its `Serialize` must not call the host".into()));
        }
        let mut output = Output::to(self);
        output.reply(arguments).map_err(|failure| match failure {
            Failure::TooLarge { limit } => HostError::new(alloc::format!(
                "the arguments are larger than the {limit} bytes of a payload: raise payload_bytes"
            )),
            failure => HostError::new(alloc::format!("the arguments cannot be sent: {failure}")),
        })?;
        self.send_output(header, Some(key), &output);
        Ok(())
    }

    /// Tells the host of a panic.
    pub(crate) fn panic(&self, message: impl Display, location: Option<&Location<'_>>) {
        let nested = self.state.panicking.swap(true, Relaxed);
        self.state.making.store(false, Relaxed); // What was half made never will be more.
        let room = self.room();
        let mut payload = Encoder::new(room);
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
        self.send(Header::new(Kind::Panic), None, room, payload.len());
        self.ring();
    }

    /// Sends the payload that is at the start of a room.
    fn send(&self, header: Header, key: Option<u64>, room: Window<'m>, bytes: usize) {
        let head = Header::BYTES + if key.is_some() { KEY_BYTES } else { 0 };
        // Rooms have `HEAD_MAX` bytes before them.
        let start = room.address() - head as u64;
        let end = (room.address() + bytes as u64).next_multiple_of(8);
        let (window, used) = match self.outbound.offset(start) {
            Some(_) => (self.outbound, &self.state.used),
            None => (self.large, &self.state.used_large),
        };
        let Some(offset) = window.offset(start) else { return };
        let correlation = self.state.correlation.load(Relaxed);
        window.put(offset, &Header { correlation, ..header }.encode());
        if let Some(key) = key {
            window.put(offset + Header::BYTES, &key.to_le_bytes());
        }
        used.store((end - window.address()) as usize, Relaxed);
        // The limit of a payload fits a u32 with its head.
        self.offer(Segment::new(start, (head + bytes) as u32));
    }

    fn send_output(&self, header: Header, key: Option<u64>, output: &Output<'_>) {
        let bytes = output.len();
        // The room again, with this link's lifetime.
        let room = output.place();
        for window in [self.outbound, self.large] {
            if let Some(offset) = window.offset(room) {
                return self.send(header, key, window.tail(offset), bytes);
            }
        }
    }

    /// Shows the host a message. If it has seen too few of those before, it is let run first.
    pub(super) fn offer(&self, segment: Segment) {
        let mut offers = Offers::unpack(self.state.messages.load(Relaxed));
        if offers.is_full(&MESSAGES) {
            self.flush();
            offers = Offers::unpack(self.state.messages.load(Relaxed));
        }
        // There is room, and the queues are there.
        let _ = offers.offer(&self.queues, &MESSAGES, segment);
        self.state.messages.store(offers.pack(), Relaxed);
    }

    #[inline]
    fn take(&self, state: &AtomicU32, layout: &Layout) -> Option<Taken> {
        let mut takes = Takes::unpack(state.load(Relaxed));
        let taken = takes.take(&self.queues, layout).ok()??;
        state.store(takes.pack(), Relaxed);
        Some(taken)
    }

    #[inline]
    fn give_back(&self, state: &AtomicU32, layout: &Layout, taken: Taken) {
        let mut takes = Takes::unpack(state.load(Relaxed));
        // The queues are there.
        let _ = takes.give_back(&self.queues, layout, taken.id);
        state.store(takes.pack(), Relaxed);
    }

    /// Hands over. What the host answers is there when it returns, and it has taken all messages.
    pub(crate) fn ring(&self) {
        self.flush();
        if !self.state.making.load(Relaxed) {
            self.state.used.store(0, Relaxed);
            self.state.used_large.store(0, Relaxed);
        }
    }

    /// Lets the host take all messages. What is half made stays where it is.
    pub(super) fn flush(&self) {
        (self.ring)();
        let mut offers = Offers::unpack(self.state.messages.load(Relaxed));
        offers.used_all();
        self.state.messages.store(offers.pack(), Relaxed);
        self.state.used_log.store(0, Relaxed);
    }

    /// Room for a small message's payload, with `HEAD_MAX` bytes before it.
    fn room(&self) -> Window<'m> {
        let used = self.state.used.load(Relaxed);
        if used != 0 && self.outbound.len() < used + ROOM_MIN {
            self.ring();
        }
        self.after(self.outbound, &self.state.used)
    }

    /// Room behind what is used of a window.
    fn after(&self, window: Window<'m>, used: &AtomicUsize) -> Window<'m> {
        window.tail(used.load(Relaxed) + HEAD_MAX).head(self.payload_bytes)
    }
}

impl<D: Fn()> Outbox for Link<'_, D> {
    fn begin(&self) -> Window<'_> {
        let room = self.room();
        self.state.making.store(true, Relaxed);
        room
    }

    fn more(&self, room: Window<'_>) -> Option<Window<'_>> {
        let State { used, used_large, .. } = self.state;
        let large = self.after(self.large, used_large);
        if self.large.offset(room.address()).is_none() && large.len() > room.len() {
            return Some(large);
        }
        if used.load(Relaxed) == 0 && used_large.load(Relaxed) == 0 {
            return None;
        }
        // What is there is for the host to take; the message is then made from the start.
        self.flush();
        used.store(0, Relaxed);
        used_large.store(0, Relaxed);
        [self.after(self.outbound, used), self.after(self.large, used_large)]
            .into_iter()
            .find(|other| other.len() > room.len())
    }

    fn end(&self) {
        self.state.making.store(false, Relaxed);
    }

    fn limit(&self) -> usize {
        self.payload_bytes
    }
}

/// A header's bytes and a key's.
#[inline]
fn halves(head: [u8; HEAD_MAX]) -> [[u8; 8]; 2] {
    let word = u128::from_le_bytes(head);
    [(word as u64).to_le_bytes(), ((word >> 64) as u64).to_le_bytes()]
}

#[cold]
fn damaged() -> HostError {
    HostError::new("the host's reply is damaged".into())
}

#[cfg(test)]
pub(super) mod tests {
    use core::cell::{Cell, RefCell};

    use super::*;
    use crate::function::decode;

    /// What a message says, for comparison.
    #[derive(Debug, PartialEq)]
    pub(in crate::rt) struct Sent {
        pub(in crate::rt) kind: Kind,
        flags: u8,
        key: u64,
        correlation: u32,
        pub(in crate::rt) payload: Vec<u8>,
    }

    /// Plays the host: its sides of the queues, and where its messages lie.
    pub(in crate::rt) struct Host<'m> {
        queues: Window<'m>,
        inbound: Window<'m>,
        calls: Cell<Offers>,
        replies: Cell<Offers>,
        messages: Cell<Takes>,
        used: Cell<usize>,
        pub(in crate::rt) exits: Cell<usize>,
    }

    impl Host<'_> {
        fn leave(&self, offers: &Cell<Offers>, layout: &Layout, bytes: &[u8]) {
            let at = self.used.get();
            self.inbound.put(at, bytes).unwrap();
            self.used.set((at + bytes.len()).next_multiple_of(8));
            let mut now = offers.get();
            now.offer(&self.queues, layout, Segment::new(self.inbound.address() + at as u64, bytes.len() as u32))
                .unwrap();
            offers.set(now);
        }

        fn call(&self, header: Header, key: u64, payload: &[u8]) {
            self.leave(&self.calls, &CALLS, &[&header.encode()[..], &key.to_le_bytes(), payload].concat());
        }

        fn reply(&self, kind: Kind, payload: &[u8]) {
            self.leave(&self.replies, &REPLIES, &[&Header::new(kind).encode()[..], payload].concat());
        }

        fn take(&self) -> Vec<Sent> {
            let mut takes = self.messages.get();
            let mut sent = Vec::new();
            while let Some(taken) = takes.take(&self.queues, &MESSAGES).unwrap() {
                // SAFETY: the guest left it there, and does not run.
                let bytes = unsafe { window::bytes_at(taken.segment.address, taken.segment.bytes) };
                let (head, rest) = bytes.split_first_chunk().unwrap();
                let header = Header::decode(*head);
                let kind = Kind::from_u8(header.kind).unwrap();
                let (key, payload) = rest.split_at(kind.head_bytes() - Header::BYTES);
                let key = key.first_chunk().map_or(0, |key| u64::from_le_bytes(*key));
                let Header { flags, correlation, .. } = header;
                sent.push(Sent { kind, flags, key, correlation, payload: payload.into() });
                takes.give_back(&self.queues, &MESSAGES, taken.id).unwrap();
            }
            self.messages.set(takes);
            // All calls and replies that were left were taken: as much as a guest that waits promises.
            for offers in [&self.calls, &self.replies] {
                let mut now = offers.get();
                now.used_all();
                offers.set(now);
            }
            sent
        }
    }

    pub(in crate::rt) const SMALL: usize = 4096;
    const LARGE: usize = 16_384;
    const PAYLOAD: usize = 6000;

    /// Runs `guest` with a link whose doorbell takes what was sent and then lets `host` look at it, which may answer.
    pub(in crate::rt) fn converse(
        guest: impl Fn(&Link<'_, &dyn Fn()>, &Host<'_>),
        host: impl Fn(&Host<'_>, &[Sent]),
    ) -> Vec<Sent> {
        let mut memory = vec![0; queue::BYTES as usize + SMALL + LARGE + 128 + 4096];
        let all = Window::new(&mut memory);
        let queues = all.head(queue::BYTES as usize);
        let outbound = all.tail(queues.len()).head(SMALL);
        let large = all.tail(queues.len() + SMALL).head(LARGE);
        let log = all.tail(queues.len() + SMALL + LARGE).head(128);
        let inbound = all.tail(queues.len() + SMALL + LARGE + 128);
        let peer = Host {
            queues,
            inbound,
            calls: Cell::new(Offers::START),
            replies: Cell::new(Offers::START),
            messages: Cell::new(Takes::START),
            used: Cell::new(0),
            exits: Cell::new(0),
        };
        let sent = RefCell::new(Vec::new());
        let ring = || {
            peer.exits.set(peer.exits.get() + 1);
            let now = peer.take();
            host(&peer, &now);
            sent.borrow_mut().extend(now);
        };
        let state = State::new();
        let ring: &dyn Fn() = &ring;
        guest(&Link { queues, outbound, large, log, payload_bytes: PAYLOAD, state: &state, ring }, &peer);
        sent.into_inner()
    }

    fn call(correlation: u32) -> Header {
        Header { correlation, ..Header::new(Kind::Call) }
    }

    const SHOUT: Function = Function {
        key: 7,
        invoke: |arguments, output| {
            let text: &str = decode(arguments)?;
            output.reply(&text.to_uppercase())
        },
    };

    /// As long as the argument says.
    const LONG: Function = Function {
        key: 7,
        invoke: |arguments, output| {
            let count: u32 = decode(arguments)?;
            output.reply(&"x".repeat(count as usize))
        },
    };

    fn sent(kind: Kind, correlation: u32, payload: &[u8]) -> Sent {
        Sent { kind, flags: 0, key: 0, correlation, payload: payload.into() }
    }

    #[test]
    fn ready_lists_the_keys() {
        let other = Function { key: 0x0102, ..SHOUT };
        let messages = converse(|link, _| (link.ready(&[SHOUT, other]), link.ring()).1, |_, _| {});
        assert_eq!(messages, [sent(Kind::Ready, 0, &[7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0])]);
    }

    #[test]
    fn too_many_functions_are_an_error() {
        let messages = converse(|link, _| (link.ready(&[SHOUT; 511]), link.ring()).1, |_, _| {});
        assert_eq!(messages[0].kind, Kind::Error);
        assert!(messages[0].payload.starts_with(b"511 functions are too many for the 4080 bytes"));
    }

    #[test]
    fn calls_are_answered_under_their_numbers() {
        let guest = |link: &Link<'_, &dyn Fn()>, host: &Host<'_>| {
            for number in 5..8 {
                host.call(call(number), 7, b"\x02ab");
            }
            while link.serve(&[SHOUT]) {}
            link.ring();
            assert_eq!(host.exits.get(), 1, "all with one exit");
        };
        assert_eq!(converse(guest, |_, _| {}), [5, 6, 7].map(|number| sent(Kind::Reply, number, b"\x02AB")));
    }

    #[test]
    fn a_call_of_nothing_is_an_error() {
        for (header, key) in [(call(5), 8), (Header { index: 1, ..call(5) }, 7)] {
            let guest = |link: &Link<'_, &dyn Fn()>, host: &Host<'_>| {
                host.call(header, key, b"\x02ab");
                assert!(link.serve(&[SHOUT]));
                link.ring();
            };
            assert_eq!(converse(guest, |_, _| {}), [sent(Kind::Error, 5, b"no such function")]);
        }
    }

    #[test]
    fn results_of_all_sizes_arrive_alone_and_together() {
        let limit = PAYLOAD as u32;
        for count in [0, 1, 1500, 4077, 4078, 4079, 4096, limit - 3, limit - 2, limit - 1, limit, 50_000] {
            for together in [1, 2, 3, 64] {
                let guest = |link: &Link<'_, &dyn Fn()>, host: &Host<'_>| {
                    for number in 0..together {
                        host.call(call(number + 1), 7, &postcard::to_allocvec(&count).unwrap());
                    }
                    while link.serve(&[LONG]) {}
                    link.ring();
                };
                let messages = converse(guest, |_, _| {});
                assert_eq!(messages.len(), together as usize);
                for (number, message) in (1..).zip(&messages) {
                    assert_eq!(message.correlation, number);
                    let bytes = postcard::to_allocvec(&"x".repeat(count as usize)).unwrap();
                    if bytes.len() <= PAYLOAD {
                        assert_eq!(message.kind, Kind::Reply, "{count} {together}");
                        assert_eq!(message.payload, bytes, "{count} {together}");
                    } else {
                        assert_eq!(message.kind, Kind::Error, "{count} {together}");
                        let text = String::from_utf8_lossy(&message.payload);
                        assert!(
                            text.contains("larger than the 6000 bytes of a payload: raise payload_bytes"),
                            "{text}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_full_ring_lets_the_host_run() {
        let guest = |link: &Link<'_, &dyn Fn()>, host: &Host<'_>| {
            for number in 0..200_u8 {
                link.notify(9, &number).unwrap();
            }
            link.ring();
            assert!(host.exits.get() >= 4 && host.exits.get() < 30, "{}", host.exits.get());
        };
        let messages = converse(guest, |_, _| {});
        assert_eq!(messages.len(), 200);
        for (number, message) in (0..).zip(&messages) {
            assert_eq!((message.kind, message.flags, message.key), (Kind::HostCall, NOTIFY, 9));
            assert_eq!(postcard::from_bytes::<u8>(&message.payload), Ok(number));
        }
    }

    #[test]
    fn a_host_call_leaves_the_arguments_of_the_call_in_place() {
        const ASK: Function = Function {
            key: 7,
            invoke: |arguments, output| {
                let text: &str = decode(arguments)?;
                output.reply(&text)
            },
        };
        let guest = |link: &Link<'_, &dyn Fn()>, host: &Host<'_>| {
            host.call(call(5), 7, b"\x03abc");
            link.state.correlation.store(5, Relaxed);
            for _ in 0..70 {
                assert_eq!(link.host_call::<_, String>(9, &(1u8, "x")), Ok("you".into()));
                host.used.set(64); // The reply was given back.
            }
            assert!(link.serve(&[ASK]));
            link.ring();
        };
        let answer = |host: &Host<'_>, sent: &[Sent]| {
            if sent.iter().any(|message| message.kind == Kind::HostCall) {
                host.reply(Kind::HostReply, b"\x03you");
            }
        };
        let messages = converse(guest, answer);
        assert_eq!(messages.len(), 71);
        assert_eq!(messages[3], Sent { key: 9, ..sent(Kind::HostCall, 5, b"\x01\x01x") });
        assert_eq!(messages[70], sent(Kind::Reply, 5, b"\x03abc"));
    }

    #[track_caller]
    fn refused(answer: impl Fn(&Host<'_>, &[Sent]), argument: &str, message: &str) {
        let guest = |link: &Link<'_, &dyn Fn()>, _: &Host<'_>| {
            let error = link.host_call::<_, String>(9, argument).unwrap_err();
            assert!(error.message().contains(message), "{error}");
        };
        converse(guest, answer);
    }

    #[test]
    fn a_host_call_without_a_result_is_an_error() {
        let text = |kind: Kind, payload: &'static [u8]| move |host: &Host<'_>, _: &[Sent]| host.reply(kind, payload);
        refused(text(Kind::HostError, b"not today"), "x", "not today");
        refused(text(Kind::HostReply, b"\x05you"), "x", "another type");
        refused(text(Kind::HostReply, b"\x01you"), "x", "another type");
        refused(text(Kind::Call, b""), "x", "damaged");
        refused(|_, _| {}, "x", "damaged");
        refused(|_, _| panic!("nothing is sent"), &"x".repeat(5999), "larger than the 6000 bytes");
    }

    #[test]
    fn what_is_being_sent_cannot_call_the_host() {
        struct Caller<'c>(&'c dyn Fn() -> HostError);
        impl Serialize for Caller<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str((self.0)().message())
            }
        }
        let guest = |link: &Link<'_, &dyn Fn()>, _: &Host<'_>| {
            let mut output = Output::to(link);
            output.reply(&Caller(&|| link.host_call::<_, ()>(9, &()).unwrap_err())).unwrap();
            link.send_output(Header::new(Kind::Reply), None, &output);
            link.ring();
            link.notify(9, &()).unwrap();
        };
        let messages = converse(guest, |_, _| {});
        assert!(String::from_utf8_lossy(&messages[0].payload).contains("must not call the host"));
    }

    #[test]
    fn a_panic_says_what_and_where() {
        let location = Location::caller();
        let messages = converse(|link, _| link.panic(format_args!("no {}", "way"), Some(location)), |_, _| {});
        assert_eq!(messages[0].kind, Kind::Panic);
        let (message, file, line, _): (&str, &str, u32, u32) = postcard::from_bytes(&messages[0].payload).unwrap();
        assert_eq!((message, file, line), ("no way", location.file(), location.line()));
    }

    #[test]
    fn a_long_panic_is_cut_and_a_nested_one_short() {
        let guest = |link: &Link<'_, &dyn Fn()>, _: &Host<'_>| {
            link.panic("x".repeat(5000), Some(Location::caller()));
            link.panic("y", None);
        };
        let messages = converse(guest, |_, _| {});
        let read = |n: usize| postcard::from_bytes::<(String, String, u32, u32)>(&messages[n].payload).unwrap();
        assert!(read(0).0.len() > 100 && read(0).1.ends_with(".rs"));
        assert!(read(1).0.contains("while the message of another"));
    }
}
