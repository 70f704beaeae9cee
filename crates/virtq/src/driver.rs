//! The driver's side of a queue: it makes buffers available and collects them when they were used
//! (VIRTIO 1.3, sections 2.8.21 and 2.8.22).
//!
//! The driver remembers what it offered and never reads it back: what comes out of [`Driver::collect`] are the
//! segments that went into [`Driver::offer`], each exactly once. Of a used descriptor it believes the identifier
//! if it is outstanding, and the length if it fits.
//!
//! A used descriptor with an identifier that is not outstanding leaves no way to know where the next one will be:
//! the driver must know the length of each chain to skip it. The queue is then broken: it says so until
//! [`Driver::reset`] has given everything back and both sides start again.

use alloc::boxed::Box;
use core::fmt;

use crate::event::{BadEvent, Events};
use crate::memory::{Memory, OutOfBounds, Segment};
use crate::ring::{Layout, NEXT, Place, Ring, WRITE};

/// One side of a queue. See the [module](self).
#[derive(Debug)]
pub struct Driver<M> {
    ring: Ring<M>,
    events: Events,
    next_available: Place,
    next_used: Place,
    /// Descriptors that are neither available nor waiting to be collected.
    free: u16,
    /// The first free entry; meaningless when `free` is 0.
    first_free: u16,
    /// A chain is named by its first entry, and continues by `next`. So are the free entries.
    entries: Box<[Entry]>,
    /// What is known of the chain that starts with the entry of the same number.
    chains: Box<[Chain]>,
    bytes_max: u32,
    broken: bool,
}

/// What the driver remembers of one descriptor: 16 bytes, because after a large copy each line of it is a cache miss.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    address: u64,
    bytes: u32,
    next: u16,
}

const _: () = assert!(size_of::<Entry>() == 16);

/// What the driver remembers of one chain.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    /// How many descriptors it has; 0 if there is none.
    count: u16,
    /// How many of them the device may only read.
    readable: u16,
    /// Its last entry.
    last: u16,
    /// How much the device may write.
    writable_bytes: u32,
}

/// A chain that the device has used. Its segments belong to the caller again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used<'b> {
    /// What [`Driver::offer`] called it.
    pub id: u16,
    /// How many bytes the device says it wrote, from the start of the writable segments.
    pub written: Result<u32, WroteTooMuch>,
    /// The segments that the device could read.
    pub readable: &'b [Segment],
    /// The segments that the device could write.
    pub writable: &'b [Segment],
}

impl<M: Clone> Clone for Driver<M> {
    fn clone(&self) -> Self {
        Self {
            ring: self.ring.clone(),
            events: self.events.clone(),
            next_available: self.next_available,
            next_used: self.next_used,
            free: self.free,
            first_free: self.first_free,
            entries: self.entries.clone(),
            chains: self.chains.clone(),
            bytes_max: self.bytes_max,
            broken: self.broken,
        }
    }

    /// Puts it to another side's state, and allocates nothing if both queues are of one size.
    fn clone_from(&mut self, other: &Self) {
        let Self { ring, events, next_available, next_used, free, first_free, entries, chains, bytes_max, broken } =
            other;
        self.ring.clone_from(ring);
        self.events.clone_from(events);
        self.next_available = *next_available;
        self.next_used = *next_used;
        self.free = *free;
        self.first_free = *first_free;
        self.entries.clone_from(entries);
        self.chains.clone_from(chains);
        self.bytes_max = *bytes_max;
        self.broken = *broken;
    }
}

impl<M> Driver<M> {
    /// Where it goes on, if nothing is outstanding: all that is to be known of it then, beside what it was made with.
    pub fn idle_at(&self) -> Option<Place> {
        let is_idle = !self.broken && self.free == self.ring.layout.size() && self.next_available == self.next_used;
        is_idle.then_some(self.next_available)
    }

    fn begin_at(&mut self, place: Place) {
        let layout = self.ring.layout;
        self.next_available = place;
        self.next_used = place;
        self.events = Events::new(layout.driver_event(), layout.device_event(), layout.size(), place);
        self.free = layout.size();
        self.first_free = 0;
        self.chains.fill(Chain::default());
        for (index, entry) in self.entries.iter_mut().enumerate() {
            *entry = Entry { next: (index + 1) as u16, ..Entry::default() };
        }
    }

    /// The same side, parked without its memory: for an embedder that cannot lend it all the time. See [`Driver::with`].
    pub fn park(self) -> Driver<()> {
        self.over(())
    }

    /// Where the queue lies.
    pub fn layout(&self) -> Layout {
        self.ring.layout
    }

    /// How many descriptors can be offered now.
    pub fn free(&self) -> u16 {
        self.free
    }

    #[inline]
    fn over<N>(self, memory: N) -> Driver<N> {
        let Self { ring, events, next_available, next_used, free, first_free, entries, chains, bytes_max, broken } =
            self;
        let ring = Ring { memory, layout: ring.layout };
        Driver { ring, events, next_available, next_used, free, first_free, entries, chains, bytes_max, broken }
    }
}

impl Driver<()> {
    /// A parked side that goes on where an idle one was ([`Driver::idle_at`]), over a queue that is as it was then. `None` for a place
    /// outside of the queue.
    pub fn resume(layout: Layout, place: Place, bytes_max: u32) -> Option<Self> {
        let size = layout.size();
        let mut driver = Self {
            ring: Ring { memory: (), layout },
            events: Events::new(layout.driver_event(), layout.device_event(), size, place),
            next_available: place,
            next_used: place,
            free: size,
            first_free: 0,
            entries: alloc::vec![Entry::default(); usize::from(size)].into_boxed_slice(),
            chains: alloc::vec![Chain::default(); usize::from(size)].into_boxed_slice(),
            bytes_max,
            broken: false,
        };
        driver.begin_at(place);
        (place.index < size).then_some(driver)
    }

    /// Lends the memory to a parked side while it acts. If `act` panics, the side is of no use any more.
    #[inline]
    pub fn with<M, R>(&mut self, memory: M, act: impl FnOnce(&mut Driver<M>) -> R) -> R {
        let mut side = Self {
            ring: self.ring.clone(),
            events: self.events.clone(),
            entries: core::mem::take(&mut self.entries),
            chains: core::mem::take(&mut self.chains),
            ..*self
        }
        .over(memory);
        let result = act(&mut side);
        *self = side.over(());
        result
    }
}

impl<M: Memory> Driver<M> {
    /// Zeroes the queue at `layout`. No chain may have more than `bytes_max` bytes. Make the driver before the device.
    ///
    /// # Errors
    /// When the queue is not in `memory`.
    pub fn new(memory: M, layout: Layout, bytes_max: u32) -> Result<Self, OutOfBounds> {
        let size = layout.size();
        let mut driver = Self {
            ring: Ring::new(memory, layout)?,
            events: Events::new(layout.driver_event(), layout.device_event(), size, Place::START),
            next_available: Place::START,
            next_used: Place::START,
            free: size,
            first_free: 0,
            entries: alloc::vec![Entry::default(); usize::from(size)].into_boxed_slice(),
            chains: alloc::vec![Chain::default(); usize::from(size)].into_boxed_slice(),
            bytes_max,
            broken: false,
        };
        driver.start()?;
        Ok(driver)
    }

    /// The memory that the queue lies in.
    pub fn memory(&self) -> &M {
        &self.ring.memory
    }

    /// Makes one buffer available: what the device may read, then what it may write. Returns the name of the chain,
    /// which is free again once it was collected.
    ///
    /// # Errors
    /// When the chain is empty, longer than the ring or over the limit; when there is no room now, or the queue is
    /// broken. Nothing was then offered.
    pub fn offer(&mut self, readable: &[Segment], writable: &[Segment]) -> Result<u16, OfferError> {
        if self.broken {
            return Err(OfferError::Broken);
        }
        let count = match readable.len() + writable.len() {
            0 => return Err(OfferError::Empty),
            count if count > usize::from(self.ring.layout.size()) => return Err(OfferError::TooLong),
            count if count > usize::from(self.free) => return Err(OfferError::Full),
            count => count as u16,
        };
        // The order of the sum matters not: u32 segments, at most SIZE_MAX of them, cannot overflow it.
        let sum = |segments: &[Segment]| segments.iter().map(|segment| u64::from(segment.bytes)).sum::<u64>();
        let writable_bytes = sum(writable);
        if sum(readable) + writable_bytes > u64::from(self.bytes_max) {
            return Err(OfferError::TooLarge);
        }
        let id = self.first_free;
        let (last, next_free) = match self.write_chain(id, readable, writable) {
            Ok(entries) => entries,
            Err(error) => {
                // What was written must not be found by a device that has used up what comes before. That memory
                // was taken away is our embedder's doing, and so this is best effort.
                for step in 1..count {
                    let _ = self.ring.retract(self.next_available.after(step, self.ring.layout.size()));
                }
                return Err(OfferError::Memory(error));
            }
        };
        // The sum is at most `bytes_max`.
        let chain = Chain { count, readable: readable.len() as u16, last, writable_bytes: writable_bytes as u32 };
        self.chains[usize::from(id)] = chain;
        self.first_free = next_free;
        self.free -= count;
        self.next_available = self.next_available.after(count, self.ring.layout.size());
        self.events.put(count);
        Ok(id)
    }

    /// Writes a chain to free descriptors and remembers it in free entries. Returns its last entry, and the free
    /// entry after it.
    fn write_chain(&mut self, id: u16, readable: &[Segment], writable: &[Segment]) -> Result<(u16, u16), OutOfBounds> {
        let size = self.ring.layout.size();
        let head_place = self.next_available;
        let (mut place, mut entry, mut last) = (head_place, id, id);
        let mut head_flags = 0;
        let mut left = readable.len() + writable.len();
        for (segments, writes) in [(readable, 0), (writable, WRITE)] {
            for &segment in segments {
                left -= 1;
                let flags = writes | if left == 0 { 0 } else { NEXT };
                // The standard wants the identifier in the last descriptor only; in all it costs nothing.
                if place == head_place {
                    self.ring.prepare_head(place, segment, id)?;
                    head_flags = flags;
                } else {
                    self.ring.write_follower(place, segment, id, flags)?;
                }
                let kept = &mut self.entries[usize::from(entry)];
                (kept.address, kept.bytes) = (segment.address, segment.bytes);
                (last, entry) = (entry, kept.next);
                place = place.after(1, size);
            }
        }
        self.ring.publish_available(head_place, head_flags)?;
        Ok((last, entry))
    }

    /// Takes back the next chain that the device has used, if there is one. Its segments are put into `buffer`.
    ///
    /// # Errors
    /// When the identifier is not outstanding: the queue is then broken. When `buffer` is shorter than the chain:
    /// nothing is then taken. `buffer` as long as the ring is always enough.
    pub fn collect<'b>(&mut self, buffer: &'b mut [Segment]) -> Result<Option<Used<'b>>, CollectError> {
        if self.broken {
            return Err(CollectError::Broken);
        }
        let flags = self.ring.flags(self.next_used).map_err(CollectError::Memory)?;
        if !self.next_used.is_used(flags) {
            return Ok(None);
        }
        let descriptor = self.ring.head(self.next_used, flags).map_err(CollectError::Memory)?;
        let id = descriptor.id;
        let chain = match self.chains.get(usize::from(id)) {
            Some(chain) if chain.count != 0 => *chain,
            _ => {
                self.broken = true;
                return Err(CollectError::NotOutstanding(id));
            }
        };
        let Some((buffer, _)) = buffer.split_at_mut_checked(usize::from(chain.count)) else {
            return Err(CollectError::BufferTooShort(chain.count));
        };
        // Without the flag the length is reserved (section 2.8.4).
        let written = if flags & WRITE == 0 { 0 } else { descriptor.segment.bytes };
        let written = if written > chain.writable_bytes {
            Err(WroteTooMuch { claimed: written, writable: chain.writable_bytes })
        } else {
            Ok(written)
        };
        self.release(id, |step, segment| buffer[step] = segment);
        self.next_used = self.next_used.after(chain.count, self.ring.layout.size());
        let (readable, writable) = buffer.split_at(usize::from(chain.readable));
        Ok(Some(Used { id, written, readable, writable }))
    }

    /// Frees the entries of an outstanding chain and gives its segments back, in their order.
    fn release(&mut self, id: u16, mut give_back: impl FnMut(usize, Segment)) {
        let Chain { count, last, .. } = core::mem::take(&mut self.chains[usize::from(id)]);
        let mut entry = id;
        for step in 0..usize::from(count) {
            let kept = self.entries[usize::from(entry)];
            give_back(step, Segment::new(kept.address, kept.bytes));
            entry = kept.next;
        }
        self.entries[usize::from(last)].next = self.first_free;
        self.first_free = id;
        self.free += count;
    }

    /// Gives back all segments that are outstanding, and starts again with an empty queue. The device must start
    /// again too, after this and before it looks at the queue.
    ///
    /// # Errors
    /// When the queue is not in memory any more. Everything was given back, and the queue stays broken.
    pub fn reset(&mut self, mut give_back: impl FnMut(Segment)) -> Result<(), OutOfBounds> {
        for id in 0..self.ring.layout.size() {
            if self.chains[usize::from(id)].count != 0 {
                self.release(id, |_, segment| give_back(segment));
            }
        }
        self.broken = true;
        self.start()?;
        self.broken = false;
        Ok(())
    }

    fn start(&mut self) -> Result<(), OutOfBounds> {
        self.begin_at(Place::START);
        self.ring.clear()?;
        self.events.listen(&self.ring.memory)
    }

    /// Whether the device wants to be notified of what was offered since this was last asked.
    ///
    /// # Errors
    /// When the device asked for something that cannot be. Notify it then.
    pub fn must_notify(&mut self) -> Result<bool, BadEvent> {
        self.events.wanted(&self.ring.memory, self.next_available)
    }

    /// Asks for no notifications.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn mute(&mut self) -> Result<(), OutOfBounds> {
        self.events.mute(&self.ring.memory)
    }

    /// Asks for a notification with each chain that is used from now. Returns whether there is one already: then
    /// collect it, for no notification will come.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn listen(&mut self) -> Result<bool, OutOfBounds> {
        self.events.listen(&self.ring.memory)?;
        self.has_used()
    }

    /// Asks for one notification, when the device has used `count` more descriptors (0 is taken for 1, more than the
    /// ring for all of it). Returns whether there is something to collect already; the notification still comes.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn listen_after(&mut self, count: u16) -> Result<bool, OutOfBounds> {
        let size = self.ring.layout.size();
        let place = self.next_used.after(count.clamp(1, size) - 1, size);
        self.events.listen_at(&self.ring.memory, place)?;
        self.has_used()
    }

    fn has_used(&self) -> Result<bool, OutOfBounds> {
        Ok(self.next_used.is_used(self.ring.flags(self.next_used)?))
    }
}

/// Why nothing was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferError {
    /// A chain has at least one segment.
    Empty,
    /// The chain has more segments than the ring has descriptors.
    TooLong,
    /// The chain has more bytes than the queue allows.
    TooLarge,
    /// There is no room until more chains are collected.
    Full,
    /// The device broke the queue; reset it.
    Broken,
    /// The queue is not in memory any more.
    Memory(OutOfBounds),
}

impl fmt::Display for OfferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a chain has at least one segment",
            Self::TooLong => "the chain has more segments than the ring has descriptors",
            Self::TooLarge => "the chain has more bytes than the queue allows",
            Self::Full => "the ring is full until used chains are collected",
            Self::Broken => "the device broke the queue; both sides must reset it",
            Self::Memory(_) => "the queue cannot be reached",
        })
    }
}

impl core::error::Error for OfferError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}

/// Why nothing was collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectError {
    /// The device returned a chain that it does not have. The queue is broken from now.
    NotOutstanding(u16),
    /// The device broke the queue earlier; reset it.
    Broken,
    /// The chain has more segments, this many, than the buffer has room for.
    BufferTooShort(u16),
    /// The queue is not in memory any more.
    Memory(OutOfBounds),
}

impl fmt::Display for CollectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOutstanding(id) => write!(f, "the device returned chain {id}, which it does not have"),
            Self::Broken => f.write_str("the device broke the queue; both sides must reset it"),
            Self::BufferTooShort(count) => write!(f, "the chain has {count} segments, and the buffer less room"),
            Self::Memory(_) => f.write_str("the queue cannot be reached"),
        }
    }
}

impl core::error::Error for CollectError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}

/// The device says that it wrote more than it could. The chain came back all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WroteTooMuch {
    /// What it says.
    pub claimed: u32,
    /// What the chain has room for.
    pub writable: u32,
}

impl fmt::Display for WroteTooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the device claims {} bytes written into a chain with room for {}", self.claimed, self.writable)
    }
}

impl core::error::Error for WroteTooMuch {}
