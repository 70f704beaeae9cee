//! The device's side of a queue: it takes available chains and returns them used (VIRTIO 1.3, sections 2.8.2,
//! 2.8.6, 2.8.18).
//!
//! Every descriptor is copied out once; the checks and the caller see that copy. A chain is taken when all its
//! segments lie in the payload area, no two of them share a slot, the writable ones come last, and it is neither
//! longer nor larger than allowed. Any other is returned at once with nothing written, and reported; the next
//! chain is then served as if it had never been.

use alloc::boxed::Box;
use core::fmt;

use crate::event::{BadEvent, Events};
use crate::memory::{Memory, OutOfBounds, Segment};
use crate::pool::Area;
use crate::ring::{INDIRECT, Layout, NEXT, Place, Ring, WRITE};

/// One side of a queue. See the [module](self).
#[derive(Debug)]
pub struct Device<M> {
    ring: Ring<M>,
    events: Events,
    next_available: Place,
    next_used: Place,
    /// Descriptors of chains that were taken and not completed.
    held: u16,
    /// For each identifier how many descriptors its chain has; 0 if it is not held.
    chains: Box<[u16]>,
    slots: SlotMarks,
    bytes_max: u32,
}

/// A chain that the device holds. Its segments lie in the payload area; what is in them the driver can still change.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the driver waits until the chain is completed"]
pub struct Chain<'b> {
    /// What completes it.
    pub token: Token,
    /// What the device may read; no segment is empty.
    pub readable: &'b [Segment],
    /// What the device may write; no segment is empty.
    pub writable: &'b [Segment],
}

/// The right, and the duty, to complete one chain.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the driver waits until the chain is completed"]
pub struct Token {
    id: u16,
    writable_bytes: u32,
}

impl Token {
    /// The driver's name for the chain.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// How many bytes the device may write.
    pub fn writable_bytes(&self) -> u32 {
        self.writable_bytes
    }
}

impl<M: Clone> Clone for Device<M> {
    fn clone(&self) -> Self {
        Self {
            ring: self.ring.clone(),
            events: self.events.clone(),
            next_available: self.next_available,
            next_used: self.next_used,
            held: self.held,
            chains: self.chains.clone(),
            slots: self.slots.clone(),
            bytes_max: self.bytes_max,
        }
    }

    /// Puts it to another side's state, and allocates nothing if both queues are of one size.
    fn clone_from(&mut self, other: &Self) {
        let Self { ring, events, next_available, next_used, held, chains, slots, bytes_max } = other;
        self.ring.clone_from(ring);
        self.events.clone_from(events);
        self.next_available = *next_available;
        self.next_used = *next_used;
        self.held = *held;
        self.chains.clone_from(chains);
        self.slots.clone_from(slots);
        self.bytes_max = *bytes_max;
    }
}

impl<M> Device<M> {
    /// Where it goes on, if it holds no chain: all that is to be known of it then, beside what it was made with.
    pub fn idle_at(&self) -> Option<Place> {
        (self.held == 0 && self.next_available == self.next_used).then_some(self.next_available)
    }

    /// The same side, parked without its memory: for an embedder that cannot lend it all the time. See [`Device::with`].
    pub fn park(self) -> Device<()> {
        self.over(())
    }

    /// Where the queue lies.
    pub fn layout(&self) -> Layout {
        self.ring.layout
    }

    #[inline]
    fn over<N>(self, memory: N) -> Device<N> {
        let Self { ring, events, next_available, next_used, held, chains, slots, bytes_max } = self;
        let ring = Ring { memory, layout: ring.layout };
        Device { ring, events, next_available, next_used, held, chains, slots, bytes_max }
    }
}

impl Device<()> {
    /// A parked side that goes on where an idle one was ([`Device::idle_at`]), over a queue that is as it was then. `None` for a place
    /// outside of the queue.
    pub fn resume(layout: Layout, area: Area, place: Place, bytes_max: u32) -> Option<Self> {
        let size = layout.size();
        (place.index < size).then(|| Self {
            ring: Ring { memory: (), layout },
            events: Events::new(layout.device_event(), layout.driver_event(), size, place),
            next_available: place,
            next_used: place,
            held: 0,
            chains: alloc::vec![0; usize::from(size)].into_boxed_slice(),
            slots: SlotMarks::new(area),
            bytes_max,
        })
    }

    /// Lends the memory to a parked side while it acts. If `act` panics, the side is of no use any more.
    #[inline]
    pub fn with<M, R>(&mut self, memory: M, act: impl FnOnce(&mut Device<M>) -> R) -> R {
        let mut side = Self {
            ring: self.ring.clone(),
            events: self.events.clone(),
            chains: core::mem::take(&mut self.chains),
            slots: SlotMarks { marks: core::mem::take(&mut self.slots.marks), ..self.slots },
            ..*self
        }
        .over(memory);
        let result = act(&mut side);
        *self = side.over(());
        result
    }
}

impl<M: Memory> Device<M> {
    /// Looks at the queue at `layout`, whose segments must lie in `area` and have at most `bytes_max` bytes a chain.
    ///
    /// # Errors
    /// When the queue or the area is not in `memory`.
    pub fn new(memory: M, layout: Layout, area: Area, bytes_max: u32) -> Result<Self, OutOfBounds> {
        memory.check(area.base(), area.bytes())?;
        let mut device = Self {
            ring: Ring::new(memory, layout)?,
            events: Events::new(layout.device_event(), layout.driver_event(), layout.size(), Place::START),
            next_available: Place::START,
            next_used: Place::START,
            held: 0,
            chains: alloc::vec![0; usize::from(layout.size())].into_boxed_slice(),
            slots: SlotMarks::new(area),
            bytes_max,
        };
        device.reset()?;
        Ok(device)
    }

    /// The memory that the queue lies in.
    pub fn memory(&self) -> &M {
        &self.ring.memory
    }

    /// How many descriptors belong to chains that were taken and not completed.
    pub fn held(&self) -> u16 {
        self.held
    }

    /// Takes the next available chain, if there is one. Its segments are put into `buffer`, whose length limits how
    /// many a chain may have; empty ones are left out.
    ///
    /// # Errors
    /// When the chain does not hold. It was returned to the driver; take the next one.
    pub fn take<'b>(&mut self, buffer: &'b mut [Segment]) -> Result<Option<Chain<'b>>, TakeError> {
        let size = self.ring.layout.size();
        // All descriptors are held: an honest driver has none to offer.
        if self.held == size {
            return Ok(None);
        }
        let flags = self.ring.flags(self.next_available).map_err(TakeError::Memory)?;
        if !self.next_available.is_available(flags) {
            return Ok(None);
        }
        let mut descriptor = self.ring.head(self.next_available, flags).map_err(TakeError::Memory)?;
        let mut found = Found::new(self.slots.next_chain());
        let mut count = 1;
        loop {
            if found.fault.is_none() {
                found.fault = found.add(descriptor.segment, descriptor.flags, buffer, &mut self.slots, self.bytes_max);
            }
            if descriptor.flags & NEXT == 0 {
                break;
            }
            // A chain that goes on through all descriptors that are not held would never end.
            if count == size - self.held {
                found.fault = found.fault.or(Some(Fault::TooLong));
                break;
            }
            let place = self.next_available.after(count, size);
            let next = self.ring.follower(place).map_err(TakeError::Memory)?;
            if !place.is_available(next.flags) {
                found.fault = found.fault.or(Some(Fault::Torn));
                break;
            }
            descriptor = next;
            count += 1;
        }
        let id = descriptor.id;
        let fault = match self.chains.get(usize::from(id)) {
            None => found.fault.or(Some(Fault::BadId)),
            Some(0) => found.fault,
            Some(_) => found.fault.or(Some(Fault::IdInUse)),
        };
        if let Some(fault) = fault {
            // Returned under the name it came with, even a wrong one: an honest driver gets its descriptors back,
            // and to another nothing is owed.
            self.ring.publish_used(self.next_used, id, 0).map_err(TakeError::Memory)?;
            self.next_available = self.next_available.after(count, size);
            self.advance_used(count);
            return Err(TakeError::Bad(BadChain { id, descriptors: count, fault }));
        }
        self.next_available = self.next_available.after(count, size);
        self.held += count;
        self.chains[usize::from(id)] = count;
        let (readable, writable) = buffer[..found.segments].split_at(found.readable);
        Ok(Some(Chain { token: Token { id, writable_bytes: found.writable_bytes }, readable, writable }))
    }

    /// Returns a chain to the driver, with `written` bytes written from the start of its writable part. Chains can be
    /// completed in any order.
    ///
    /// # Errors
    /// When the queue is not in memory any more, or was reset since the chain was taken, or `written` exceeds what
    /// the chain has room for. The chain was then not returned.
    pub fn complete(&mut self, token: Token, written: u32) -> Result<(), CompleteError> {
        if written > token.writable_bytes {
            return Err(CompleteError::TooMuch(token));
        }
        let count = match self.chains.get(usize::from(token.id)) {
            Some(&count) if count != 0 => count,
            _ => return Err(CompleteError::NotHeld),
        };
        self.ring.publish_used(self.next_used, token.id, written).map_err(CompleteError::Memory)?;
        self.chains[usize::from(token.id)] = 0;
        self.held -= count;
        self.advance_used(count);
        Ok(())
    }

    fn advance_used(&mut self, count: u16) {
        self.next_used = self.next_used.after(count, self.ring.layout.size());
        self.events.put(count);
    }

    /// Forgets all chains and starts again, as a driver does with its `reset`, which comes first.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn reset(&mut self) -> Result<(), OutOfBounds> {
        let layout = self.ring.layout;
        self.next_available = Place::START;
        self.next_used = Place::START;
        self.held = 0;
        self.chains.fill(0);
        self.events = Events::new(layout.device_event(), layout.driver_event(), layout.size(), Place::START);
        self.events.listen(&self.ring.memory)
    }

    /// Whether the driver wants to be notified of what was returned since this was last asked.
    ///
    /// # Errors
    /// When the driver asked for something that cannot be. Notify it then.
    pub fn must_notify(&mut self) -> Result<bool, BadEvent> {
        self.events.wanted(&self.ring.memory, self.next_used)
    }

    /// Asks for no notifications.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn mute(&mut self) -> Result<(), OutOfBounds> {
        self.events.mute(&self.ring.memory)
    }

    /// Asks for a notification with each chain that is offered from now. Returns whether there is one already: then
    /// take it, for no notification will come.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn listen(&mut self) -> Result<bool, OutOfBounds> {
        self.events.listen(&self.ring.memory)?;
        self.has_available()
    }

    /// Asks for one notification, when the driver has offered `count` more descriptors (0 is taken for 1, more than
    /// the ring for all of it). Returns whether there is something to take already; the notification still comes.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn listen_after(&mut self, count: u16) -> Result<bool, OutOfBounds> {
        let size = self.ring.layout.size();
        let place = self.next_available.after(count.clamp(1, size) - 1, size);
        self.events.listen_at(&self.ring.memory, place)?;
        self.has_available()
    }

    fn has_available(&self) -> Result<bool, OutOfBounds> {
        Ok(self.held < self.ring.layout.size()
            && self.next_available.is_available(self.ring.flags(self.next_available)?))
    }
}

/// What is known of a chain while its descriptors are read.
struct Found {
    chain: u32,
    segments: usize,
    readable: usize,
    bytes: u32,
    writable_bytes: u32,
    fault: Option<Fault>,
}

impl Found {
    fn new(chain: u32) -> Self {
        Self { chain, segments: 0, readable: 0, bytes: 0, writable_bytes: 0, fault: None }
    }

    /// Adds an element, or says why it cannot be.
    #[inline]
    fn add(
        &mut self,
        segment: Segment,
        flags: u16,
        buffer: &mut [Segment],
        slots: &mut SlotMarks,
        bytes_max: u32,
    ) -> Option<Fault> {
        if flags & INDIRECT != 0 {
            return Some(Fault::Indirect);
        }
        let writes = flags & WRITE != 0;
        if !writes && self.segments != self.readable {
            return Some(Fault::ReadableAfterWritable);
        }
        if segment.bytes == 0 {
            return None;
        }
        match self.bytes.checked_add(segment.bytes) {
            Some(bytes) if bytes <= bytes_max => self.bytes = bytes,
            _ => return Some(Fault::TooLarge),
        }
        let Some(place) = buffer.get_mut(self.segments) else { return Some(Fault::TooLong) };
        if let Some(fault) = slots.claim(segment, self.chain) {
            return Some(fault);
        }
        *place = segment;
        self.segments += 1;
        if writes {
            self.writable_bytes += segment.bytes; // At most `self.bytes`.
        } else {
            self.readable += 1;
        }
        None
    }
}

/// Which chain last had each slot: finds segments that overlap within a chain in constant time a slot.
#[derive(Debug)]
struct SlotMarks {
    area: Area,
    marks: Box<[u32]>,
    chain: u32,
}

impl Clone for SlotMarks {
    fn clone(&self) -> Self {
        Self { area: self.area, marks: self.marks.clone(), chain: self.chain }
    }

    fn clone_from(&mut self, other: &Self) {
        let Self { area, marks, chain } = other;
        self.marks.clone_from(marks);
        (self.area, self.chain) = (*area, *chain);
    }
}

impl SlotMarks {
    fn new(area: Area) -> Self {
        Self { area, marks: alloc::vec![0; usize::from(area.slots())].into_boxed_slice(), chain: 0 }
    }

    /// A number that no slot is marked with.
    #[inline]
    fn next_chain(&mut self) -> u32 {
        self.chain = self.chain.checked_add(1).unwrap_or_else(|| {
            self.marks.fill(0);
            1
        });
        self.chain
    }

    /// Marks the slots that a segment touches, or says why it cannot have them.
    #[inline]
    fn claim(&mut self, segment: Segment, chain: u32) -> Option<Fault> {
        let Some(slots) = self.area.slots_of(segment) else { return Some(Fault::OutOfArea) };
        for mark in &mut self.marks[slots] {
            if *mark == chain {
                return Some(Fault::Overlap);
            }
            *mark = chain;
        }
        None
    }
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// The driver offered a chain that does not hold.
    Bad(BadChain),
    /// The queue is not in memory any more.
    Memory(OutOfBounds),
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(chain) => chain.fmt(f),
            Self::Memory(_) => f.write_str("the queue cannot be reached"),
        }
    }
}

impl core::error::Error for TakeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Bad(_) => None,
            Self::Memory(error) => Some(error),
        }
    }
}

/// A chain that was returned to the driver unserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadChain {
    /// What the driver called it.
    pub id: u16,
    /// How many descriptors it had, as far as it was read.
    pub descriptors: u16,
    /// What is wrong with it; the first thing, if there are several.
    pub fault: Fault,
}

impl fmt::Display for BadChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chain {} of {} descriptors was refused: {}", self.id, self.descriptors, self.fault)
    }
}

/// What can be wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It refers to a table of descriptors.
    Indirect,
    /// A segment to be read follows one to be written.
    ReadableAfterWritable,
    /// A segment is not in the payload area.
    OutOfArea,
    /// Two segments lie in one slot.
    Overlap,
    /// It has more bytes than the queue allows.
    TooLarge,
    /// It has more segments than the device takes, or no end.
    TooLong,
    /// It goes on in a descriptor that is not available.
    Torn,
    /// The identifier is not below the size of the ring.
    BadId,
    /// The identifier belongs to a chain that the device still holds.
    IdInUse,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Indirect => "indirect descriptors are not supported",
            Self::ReadableAfterWritable => "a readable segment follows a writable one",
            Self::OutOfArea => "a segment is not in the payload area",
            Self::Overlap => "two segments lie in one slot",
            Self::TooLarge => "it has more bytes than the queue allows",
            Self::TooLong => "it has too many segments, or no end",
            Self::Torn => "it goes on in a descriptor that is not available",
            Self::BadId => "the identifier is not below the size of the ring",
            Self::IdInUse => "the identifier belongs to another chain",
        })
    }
}

/// Why a chain was not returned.
#[derive(Debug, PartialEq, Eq)]
pub enum CompleteError {
    /// More was written than the chain has room for. Here is the token, to complete it with the truth.
    TooMuch(Token),
    /// The queue was reset since.
    NotHeld,
    /// The queue is not in memory any more.
    Memory(OutOfBounds),
}

impl fmt::Display for CompleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMuch(token) => write!(f, "the chain has room for {} bytes only", token.writable_bytes),
            Self::NotHeld => f.write_str("the chain was forgotten when the queue was reset"),
            Self::Memory(_) => f.write_str("the queue cannot be reached"),
        }
    }
}

impl core::error::Error for CompleteError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}
