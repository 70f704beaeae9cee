//! Messages in shared memory: how the host sends one to the guest, and takes what the guest sent.
//!
//! The queues are packed virtqueues, and the host's sides of them those that believe nothing (`coracle_virtq`). Everything
//! that is read here is the guest's claim: a descriptor is copied out before it is looked at, lengths are held against the
//! limit before anything is allocated, and nothing is read twice.
//!
//! The host's messages lie one behind the other, small ones in memory that is there from the start and the others where it
//! comes when it is touched. All of them are forgotten at once, when no call waits: so the same pages are used by the next.

use std::cell::RefCell;

use coracle_abi::message::{HEAD_MAX, Header, KEY_BYTES, Kind};
use coracle_abi::queue::{self, Place};
use coracle_virtq::device::Device;
use coracle_virtq::driver::{Driver, OfferError};
use coracle_virtq::memory::{Memory, OutOfBounds, Segment};
use coracle_virtq::pool::Area;
use coracle_virtq::ring::{self, Layout};
use coracle_vm::{Access, Space, Span};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::crash::Cause;
use crate::error::{Error, ErrorKind};
use crate::layout::{ERROR_ROOM, GuestLayout};

/// The queues of one sandbox, and where messages lie.
#[derive(Debug)]
pub(crate) struct Transport {
    places: Places,
    calls: Driver<()>,
    replies: Driver<()>,
    messages: Device<()>,
    /// Bytes in use by the host's messages.
    used: Used,
    /// What of that is calls.
    used_by_calls: Used,
}

/// What does not change while a sandbox lives.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// Sealed: it stays where it is in guest-physical memory.
    transport: Span,
    transport_at: u64,
    small: Span,
    large_outbound: Option<Span>,
    large_inbound: Option<Span>,
    payload: u64,
}

impl Places {
    /// Where segments may lie as far as the queues look, and how long they may be.
    fn area(&self) -> Option<(Area, u32)> {
        let base = self.large_outbound.map_or(self.transport.start(), Span::start);
        Some((Area::new(base, AREA_SLOT, 2).ok()?, u32::try_from(self.payload + HEAD).ok()?))
    }

    fn queue(&self, place: Place) -> Option<Layout> {
        let start = self.transport.start();
        let Place { size, descriptors, driver_event, device_event } = place;
        Layout::new(size, start + descriptors, start + driver_event, start + device_event).ok()
    }
}

/// A transport without a call in it, as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTransport {
    /// Address and bytes of the area with queues, log records and small messages.
    area: [u64; 2],
    /// Of the host's small messages in it.
    small: [u64; 2],
    /// Of large messages, guest to host and host to guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    large: Option<[[u64; 2]; 2]>,
    /// The most bytes of a payload.
    payload: u64,
    /// Where each queue goes on, calls, replies, messages: index, and the wrap counter in the highest bit.
    queues: [u16; 3],
}

/// Bytes from the start of the parts for small and for large messages of the host.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    small: u64,
    large: u64,
}

/// A message of the guest's. Its payload was copied out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) kind: Kind,
    pub(crate) header: Header,
    /// Of a host call; else 0.
    pub(crate) key: u64,
}

/// Why a message was not sent. Nothing is left of it.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// There is no room until calls were answered.
    Full,
    /// It never can be.
    Never(Error),
}

const HEAD: u64 = HEAD_MAX as u64;

/// One slot that all messages of the guest may lie in: [`View`] knows better where. Two, since it may begin in between.
const AREA_SLOT: u32 = 1 << 31;

impl Transport {
    /// # Errors
    /// When the transport area is not mapped in one piece, which only a mistake of the host could cause.
    pub(crate) fn new(space: &mut Space, layout: &GuestLayout) -> Result<Self, Error> {
        let transport_at = space.contiguous(layout.transport).ok_or_else(misplaced)?;
        let small_start = layout.transport.start() + layout.parts[0] + layout.parts[1];
        let places = Places {
            transport: layout.transport,
            transport_at,
            small: Span::new(small_start, layout.parts[2]).ok_or_else(misplaced)?,
            large_outbound: layout.large.map(|[outbound, _]| outbound),
            large_inbound: layout.large.map(|[_, inbound]| inbound),
            payload: layout.payload,
        };
        let (area, bytes_max) = places.area().ok_or_else(misplaced)?;
        let view = View::new(&places, space);
        let at = |place| places.queue(place).ok_or_else(misplaced);
        let driver = |place| Driver::new(&view, at(place)?, bytes_max).map_err(|_| misplaced());
        Ok(Self {
            calls: driver(queue::CALLS)?.park(),
            replies: driver(queue::REPLIES)?.park(),
            messages: Device::new(&view, at(queue::MESSAGES)?, area, bytes_max).map_err(|_| misplaced())?.park(),
            places,
            used: Used::default(),
            used_by_calls: Used::default(),
        })
    }

    /// As plain data, for files. `None` while a call is in it.
    pub(crate) fn saved(&self) -> Option<SavedTransport> {
        let Places { transport, small, large_outbound, large_inbound, payload, .. } = self.places;
        let place = |span: Span| [span.start(), span.bytes()];
        let queues = [self.calls.idle_at()?, self.replies.idle_at()?, self.messages.idle_at()?];
        Some(SavedTransport {
            area: place(transport),
            small: place(small),
            large: large_outbound.zip(large_inbound).map(|(outbound, inbound)| [place(outbound), place(inbound)]),
            payload,
            queues: queues.map(ring::Place::pack),
        })
    }

    /// From plain data that may be forged. `find` says where the area lies in guest-physical memory, after it has made sure that the
    /// area is the host's own.
    ///
    /// # Errors
    /// What is wrong with it; and those of `find`.
    pub(crate) fn from_saved(
        saved: &SavedTransport,
        find: impl FnOnce(Span) -> Result<u64, Error>,
    ) -> Result<Self, Error> {
        let wrong = |what: &str| Error::new(ErrorKind::Store, format!("the snapshot cannot be used: {what}"));
        let span = |[start, bytes]: [u64; 2]| {
            let span = Span::new(start, bytes).filter(|span| span.bytes() == bytes);
            span.ok_or_else(|| wrong("a part of its transport area lies nowhere"))
        };
        let (transport, small) = (span(saved.area)?, span(saved.small)?);
        let queues_end = transport.start() + queue::BYTES;
        if small.start() < queues_end || small.end() > transport.end() {
            return Err(wrong("its small messages lie outside of its transport area"));
        }
        let (large_outbound, large_inbound) = match saved.large {
            Some([outbound, inbound]) => (Some(span(outbound)?), Some(span(inbound)?)),
            None => (None, None),
        };
        let payload = saved.payload;
        if payload > Config::PAYLOAD_MAX {
            return Err(wrong("its payloads are larger than any may be"));
        }
        let transport_at = find(transport)?;
        let places = Places { transport, transport_at, small, large_outbound, large_inbound, payload };
        let (area, bytes_max) = places.area().ok_or_else(|| wrong("its messages lie nowhere"))?;
        let nowhere = || wrong("one of its queues lies nowhere");
        let [calls, replies, messages] = saved.queues.map(ring::Place::unpack);
        let at = |place| places.queue(place).ok_or_else(nowhere);
        let driver = |queue, place| Driver::resume(at(queue)?, place, bytes_max).ok_or_else(nowhere);
        Ok(Self {
            calls: driver(queue::CALLS, calls)?,
            replies: driver(queue::REPLIES, replies)?,
            messages: Device::resume(at(queue::MESSAGES)?, area, messages, bytes_max).ok_or_else(nowhere)?,
            places,
            used: Used::default(),
            used_by_calls: Used::default(),
        })
    }

    /// Sends a call. It is served behind those that wait.
    ///
    /// # Errors
    /// [`Unsent`]; with [`ErrorKind::Limit`] when the payload is above the limit, or there is no memory for it.
    pub(crate) fn call(&mut self, space: &mut Space, header: Header, key: u64, payload: &[u8]) -> Result<(), Unsent> {
        let mut head = [0; HEAD_MAX];
        head[..Header::BYTES].copy_from_slice(&header.encode());
        head[Header::BYTES..].copy_from_slice(&key.to_le_bytes());
        if self.calls.free() == 0 {
            return Err(Unsent::Full);
        }
        let reply = self.places.payload + HEAD;
        let rooms = match self.places.large_inbound {
            Some(_) => Used { small: ERROR_ROOM, large: reply },
            None => Used { small: ERROR_ROOM + reply, large: 0 },
        };
        let (segment, used) = self.put(space, &head, payload, rooms)?;
        offer(&mut self.calls, &View::new(&self.places, space), segment)?;
        (self.used, self.used_by_calls) = (used, used);
        Ok(())
    }

    /// Answers a host call.
    ///
    /// # Errors
    /// [`Unsent::Full`] when the guest keeps all replies that it got; else as [`Transport::call`].
    pub(crate) fn reply(&mut self, space: &mut Space, header: Header, payload: &[u8]) -> Result<(), Unsent> {
        let view = View::new(&self.places, space);
        // A reply that the guest gave back makes room only when all were: the guest needs them in reverse.
        if collect(&mut self.replies, &view).is_err() {
            return Err(Unsent::Full);
        }
        if self.replies.free() == queue::REPLIES.size {
            self.used = self.used_by_calls;
        }
        if self.replies.free() == 0 {
            return Err(Unsent::Full);
        }
        let (segment, used) = self.put(space, &header.encode(), payload, Used::default())?;
        offer(&mut self.replies, &View::new(&self.places, space), segment)?;
        self.used = used;
        Ok(())
    }

    /// Writes a message behind those that are there, leaving so much room behind it. It counts when the caller says so.
    fn put(&self, space: &mut Space, head: &[u8], payload: &[u8], rooms: Used) -> Result<(Segment, Used), Unsent> {
        if payload.len() as u64 > self.places.payload {
            return Err(Unsent::Never(too_large(payload.len() as u64, self.places.payload)));
        }
        let bytes = (head.len() + payload.len()) as u64;
        let mut used = self.used;
        let fits = |used: u64, span: Span, room: u64| span.bytes().saturating_sub(used + room) >= bytes;
        let end = |used: u64| (used + bytes).next_multiple_of(8);
        let address = match self.places.large_inbound {
            _ if fits(used.small, self.places.small, rooms.small) => {
                let address = self.places.small.start() + used.small;
                used.small = end(used.small);
                address
            }
            Some(large) if fits(used.large, large, rooms.large) => {
                let address = large.start() + used.large;
                used.large = end(used.large);
                address
            }
            _ => return Err(Unsent::Full),
        };
        let view = View::new(&self.places, space);
        view.write(address, head).and_then(|()| view.write(address + head.len() as u64, payload)).map_err(|_| {
            let message =
                format!("the guest has no memory left for a payload of {} bytes: raise memory_bytes", payload.len());
            Unsent::Never(Error::new(ErrorKind::Limit, message))
        })?;
        // The length was held against the limit, which with a header fits a u32.
        Ok((Segment::new(address, bytes as u32), used))
    }

    /// Takes the next message of the guest's, if there is one. Its payload replaces what is in `log` if it is a log record,
    /// else what is in `out`.
    ///
    /// # Errors
    /// When it does not hold.
    pub(crate) fn receive(
        &mut self,
        space: &mut Space,
        out: &mut Vec<u8>,
        log: &mut Vec<u8>,
    ) -> Result<Option<Received>, Cause> {
        let view = View::new(&self.places, space);
        let mut buffer = [Segment::default()];
        let taken = self.messages.with(&view, |device| {
            let Some(chain) = device.take(&mut buffer).map_err(|_| BAD_CHAIN)? else { return Ok(None) };
            let segment = chain.readable.first().copied();
            // The guest does not run until it was copied.
            device.complete(chain.token, 0).map_err(|_| ELSEWHERE)?;
            segment.map(Some).ok_or(TOO_SHORT)
        })?;
        let Some(segment) = taken else { return Ok(None) };
        let mut head = [0; Header::BYTES];
        let mut key = [0; KEY_BYTES];
        let left = u64::from(segment.bytes).checked_sub(Header::BYTES as u64).ok_or(TOO_SHORT)?;
        view.read(segment.address, &mut head).map_err(|_| ELSEWHERE)?;
        let header = Header::decode(head);
        let kind = Kind::from_u8(header.kind).ok_or(Cause::ProtocolViolation("its message is of no kind"))?;
        let head_bytes = kind.head_bytes() as u64;
        let payload = left.checked_sub(head_bytes - Header::BYTES as u64).ok_or(TOO_SHORT)?;
        if payload > self.places.payload {
            return Err(Cause::ProtocolViolation("its message is longer than the limit"));
        }
        if head_bytes == HEAD {
            view.read(segment.address + Header::BYTES as u64, &mut key).map_err(|_| ELSEWHERE)?;
        }
        if !view.is_there(segment) {
            return Err(ELSEWHERE); // Before as much is allocated here.
        }
        let out = if kind == Kind::Log { log } else { out };
        out.clear();
        out.resize(payload as usize, 0);
        view.read(segment.address + head_bytes, out).map_err(|_| ELSEWHERE)?;
        Ok(Some(Received { kind, header, key: u64::from_le_bytes(key) }))
    }

    /// All calls were answered: forgets the host's messages.
    ///
    /// # Errors
    /// When the guest has not given the calls back.
    pub(crate) fn settle(&mut self, space: &mut Space) -> Result<(), Cause> {
        let view = View::new(&self.places, space);
        for driver in [&mut self.calls, &mut self.replies] {
            if collect(driver, &view).is_err() || driver.free() != driver.layout().size() {
                return Err(Cause::ProtocolViolation("it keeps a message that it has answered"));
            }
        }
        (self.used, self.used_by_calls) = (Used::default(), Used::default());
        Ok(())
    }

    /// Log records that the guest had to drop since the last call of this.
    pub(crate) fn take_dropped(&self, space: &mut Space) -> u32 {
        View::new(&self.places, space).take_word(queue::DROPPED) as u32
    }

    /// Bytes of the last allocation that the guest's heap refused since the last call of this; 0 for none.
    pub(crate) fn take_refused_allocation(&self, space: &mut Space) -> u64 {
        View::new(&self.places, space).take_word(queue::REFUSED)
    }
}

impl Clone for Transport {
    fn clone(&self) -> Self {
        let Self { places, calls, replies, messages, used, used_by_calls } = self;
        let (calls, replies, messages) = (calls.clone(), replies.clone(), messages.clone());
        Self { places: *places, calls, replies, messages, used: *used, used_by_calls: *used_by_calls }
    }

    /// As a restore does it: without an allocation.
    fn clone_from(&mut self, other: &Self) {
        let Self { places, calls, replies, messages, used, used_by_calls } = other;
        self.calls.clone_from(calls);
        self.replies.clone_from(replies);
        self.messages.clone_from(messages);
        (self.places, self.used, self.used_by_calls) = (*places, *used, *used_by_calls);
    }
}

/// Shows the guest a message that was written.
fn offer(driver: &mut Driver<()>, view: &View<'_>, segment: Segment) -> Result<(), Unsent> {
    match driver.with(view, |driver| driver.offer(&[segment], &[])) {
        Ok(_) => Ok(()),
        Err(OfferError::Full) => Err(Unsent::Full),
        Err(error) => Err(Unsent::Never(misplaced().with_source(error))),
    }
}

/// Takes back what the guest has used.
fn collect(driver: &mut Driver<()>, view: &View<'_>) -> Result<(), ()> {
    driver.with(view, |driver| {
        let mut buffer = [Segment::default()];
        while driver.collect(&mut buffer).map_err(|_| ())?.is_some() {}
        Ok(())
    })
}

/// The guest's memory as the queues see it: by the guest's addresses, and only where messages may lie.
struct View<'s> {
    places: Places,
    space: RefCell<&'s mut Space>,
}

/// Where a range lies.
enum Part {
    /// In guest-physical memory from here on.
    Physical(u64),
    /// Where the page tables say.
    Mapped,
}

impl<'s> View<'s> {
    fn new(places: &Places, space: &'s mut Space) -> Self {
        Self { places: *places, space: RefCell::new(space) }
    }

    #[inline]
    fn locate(&self, address: u64, bytes: u64) -> Result<Part, OutOfBounds> {
        let Places { transport, transport_at, large_outbound, large_inbound, .. } = self.places;
        let inside = |span: Span| {
            let offset = address.wrapping_sub(span.start());
            (offset <= span.bytes() && bytes <= span.bytes() - offset).then_some(offset)
        };
        if let Some(offset) = inside(transport) {
            return Ok(Part::Physical(transport_at + offset));
        }
        let large = [large_outbound, large_inbound].into_iter().flatten().find_map(inside);
        large.map(|_| Part::Mapped).ok_or(OutOfBounds { address, bytes })
    }

    /// Whether all of a message lies where messages may, and the guest has memory for it.
    fn is_there(&self, segment: Segment) -> bool {
        let bytes = u64::from(segment.bytes);
        match self.locate(segment.address, bytes) {
            Ok(Part::Physical(_)) => true,
            Ok(Part::Mapped) => self
                .space
                .borrow_mut()
                .reach(segment.address, bytes, Access::Read)
                .is_ok_and(|reached| reached == bytes),
            Err(_) => false,
        }
    }

    /// A word of the guest's, which is then 0.
    fn take_word(&self, offset: u64) -> u64 {
        let mut space = self.space.borrow_mut();
        let memory = space.memory_mut();
        let at = self.places.transport_at + offset;
        let word = memory.read_u64(at).unwrap_or(0);
        if word != 0 {
            // In sealed memory that was just read: writing it cannot fail.
            let _ = memory.write_u64(at, 0);
        }
        word
    }
}

impl Memory for View<'_> {
    /// Each access is checked, and only those count: the area of messages has holes.
    fn check(&self, _: u64, _: u64) -> Result<(), OutOfBounds> {
        Ok(())
    }

    #[inline]
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let bytes = out.len() as u64;
        let failed = OutOfBounds { address, bytes };
        match self.locate(address, bytes)? {
            Part::Physical(at) => self.space.borrow().memory().read(at, out).map_err(|_| failed),
            Part::Mapped => self.space.borrow_mut().read(address, out).map_err(|_| failed),
        }
    }

    #[inline]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let failed = OutOfBounds { address, bytes: bytes.len() as u64 };
        match self.locate(address, bytes.len() as u64)? {
            Part::Physical(at) => self.space.borrow_mut().memory_mut().write(at, bytes).map_err(|_| failed),
            Part::Mapped => self.space.borrow_mut().write(address, bytes).map_err(|_| failed),
        }
    }

    // The guest does not run meanwhile: that orders everything.
    #[inline]
    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        let mut bytes = [0; 2];
        self.read(address, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    #[inline]
    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        self.write(address, &value.to_le_bytes())
    }

    fn fence(&self) {}
}

const BAD_CHAIN: Cause = Cause::ProtocolViolation("its message is no chain of one descriptor to be read");
const TOO_SHORT: Cause = Cause::ProtocolViolation("its message is shorter than a header");
const ELSEWHERE: Cause = Cause::ProtocolViolation("its message is not where messages lie");

fn misplaced() -> Error {
    Error::new(ErrorKind::Host, "the transport area is not where it should be")
}

pub(crate) fn too_large(bytes: u64, limit: u64) -> Error {
    let message = format!(
        "a payload of {bytes} bytes is above the limit of {limit}: raise payload_bytes, or send less at a time"
    );
    Error::new(ErrorKind::Limit, message)
}
