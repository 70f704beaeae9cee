//! A queue and its payloads together: one side sends requests and collects replies, the other receives and replies.
//!
//! The sender owns the slots: those of a request, and those that it lends for the reply. They come back when the
//! reply is dropped, or at once when sending fails; a receiver that returns nothing holds them until
//! [`Sender::reset`].

use alloc::boxed::Box;
use core::fmt;

use crate::device::{CompleteError, Device, TakeError, Token};
use crate::driver::{CollectError, Driver, OfferError, WroteTooMuch};
use crate::memory::{Memory, OutOfBounds, Segment};
use crate::payload::{CopyError, bytes_of, gather, scatter};
use crate::pool::{AllocError, Area, AreaError, SlotPool};
use crate::ring::{Layout, LayoutError};

/// What both sides of a link must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the queue lies.
    pub layout: Layout,
    /// Where the payloads lie.
    pub area: Area,
    /// How many bytes a request and its reply may have together.
    pub bytes_max: u32,
}

impl Config {
    /// A queue of `size` descriptors at `base`, then `slots` slots from the next multiple of `slot_bytes`. A message
    /// may fill them all.
    ///
    /// # Errors
    /// When such a queue or area cannot be.
    pub const fn contiguous(base: u64, size: u16, slot_bytes: u32, slots: u16) -> Result<Self, ConfigError> {
        let layout = match Layout::contiguous(base, size) {
            Ok(layout) => layout,
            Err(error) => return Err(ConfigError::Layout(error)),
        };
        // The layout ends within u64, and `slot_bytes` of 0 is refused with the area.
        let Some(start) = (base + Layout::bytes(size)).checked_next_multiple_of(slot_bytes as u64) else {
            return Err(ConfigError::Area(AreaError));
        };
        match Area::new(start, slot_bytes, slots) {
            Ok(area) => {
                let bytes_max = if area.bytes() > u32::MAX as u64 { u32::MAX } else { area.bytes() as u32 };
                Ok(Self { layout, area, bytes_max })
            }
            Err(error) => Err(ConfigError::Area(error)),
        }
    }
}

/// Why a [`Config`] was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The queue cannot be.
    Layout(LayoutError),
    /// The area cannot be.
    Area(AreaError),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout(error) => error.fmt(f),
            Self::Area(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ConfigError {}

/// The side that sends requests: the queue's driver, and the pool.
#[derive(Clone, Debug)]
pub struct Sender<M> {
    driver: Driver<M>,
    pool: SlotPool,
    segments: Box<[Segment]>,
}

impl<M: Memory> Sender<M> {
    /// Zeroes the queue. Make it before the receiver.
    ///
    /// # Errors
    /// When the queue or the area is not in memory.
    pub fn new(memory: M, config: Config) -> Result<Self, OutOfBounds> {
        memory.check(config.area.base(), config.area.bytes())?;
        let driver = Driver::new(memory, config.layout, config.bytes_max)?;
        Ok(Self::from_parts(driver, SlotPool::new(config.area)))
    }

    /// Sends through a queue that has nothing outstanding, in the slots of a pool that may have given out some.
    pub fn from_parts(driver: Driver<M>, pool: SlotPool) -> Self {
        let segments = no_segments(driver.layout());
        Self { driver, pool, segments }
    }

    /// Sends `parts`, one after the other, as one message, with room for a reply of `reply_bytes` bytes. Returns its
    /// name. A message has at least one byte, or room for one.
    ///
    /// # Errors
    /// When there is no room now, or never; all slots are then free as before.
    pub fn send(&mut self, parts: &[&[u8]], reply_bytes: u32) -> Result<u16, SendError> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let bytes = u32::try_from(bytes).map_err(|_| SendError::Offer(OfferError::TooLarge))?;
        let readable = self.pool.alloc_payload(bytes, &mut self.segments).map_err(SendError::Alloc)?;
        let writable = match self.pool.alloc_payload(reply_bytes, &mut self.segments[readable..]) {
            Ok(writable) => writable,
            Err(error) => {
                self.give_back(readable);
                return Err(SendError::Alloc(error));
            }
        };
        let (request, reply) = self.segments[..readable + writable].split_at(readable);
        let sent = match scatter(self.driver.memory(), request, parts) {
            Ok(_) => self.driver.offer(request, reply).map_err(SendError::Offer),
            Err(error) => Err(SendError::Copy(error)),
        };
        if sent.is_err() {
            self.give_back(readable + writable);
        }
        sent
    }

    fn give_back(&mut self, segments: usize) {
        let result = self.pool.free_payload(&self.segments[..segments]);
        debug_assert_eq!(result, Ok(()), "the pool gave these out");
    }

    /// The next message that was answered, if there is one.
    ///
    /// # Errors
    /// When the receiver returned a message that it does not have: reset the link then.
    pub fn collect(&mut self) -> Result<Option<Reply<'_, M>>, CollectError> {
        let Some(used) = self.driver.collect(&mut self.segments)? else { return Ok(None) };
        let (id, written, readable) = (used.id, used.written, used.readable.len());
        let count = readable + used.writable.len();
        let segments = &self.segments[..count];
        Ok(Some(Reply { id, written, readable, segments, memory: self.driver.memory(), pool: &mut self.pool }))
    }

    /// Takes back the slots of all messages, and starts again. The receiver must do so too, after this.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn reset(&mut self) -> Result<(), OutOfBounds> {
        let pool = &mut self.pool;
        self.driver.reset(|segment| {
            let result = pool.free_payload(&[segment]);
            debug_assert_eq!(result, Ok(()), "the pool gave these out");
        })
    }

    /// The queue, for its notifications.
    pub fn driver(&mut self) -> &mut Driver<M> {
        &mut self.driver
    }

    /// The pool, for its figures.
    pub fn pool(&self) -> &SlotPool {
        &self.pool
    }
}

/// A message that was answered. Its slots are free when this is dropped.
#[derive(Debug)]
pub struct Reply<'s, M> {
    id: u16,
    written: Result<u32, WroteTooMuch>,
    readable: usize,
    segments: &'s [Segment],
    memory: &'s M,
    pool: &'s mut SlotPool,
}

impl<M: Memory> Reply<'_, M> {
    /// What [`Sender::send`] called the message.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// How long the reply is.
    ///
    /// # Errors
    /// When the receiver claims more than there was room for.
    pub fn bytes(&self) -> Result<u32, WroteTooMuch> {
        self.written
    }

    /// Where the reply lies, for a sender that reads it in place. The receiver can still change it.
    pub fn segments(&self) -> &[Segment] {
        &self.segments[self.readable..]
    }

    /// Fills `out` with the reply from byte `skip` on.
    ///
    /// # Errors
    /// When the reply ends before, or is not in memory.
    pub fn read(&self, skip: u64, out: &mut [u8]) -> Result<(), CopyError> {
        let (wanted, room) = (skip.saturating_add(out.len() as u64), u64::from(self.written.unwrap_or(0)));
        if wanted > room {
            return Err(CopyError::TooShort { wanted, room });
        }
        gather(self.memory, self.segments(), skip, out)
    }
}

impl<M> Drop for Reply<'_, M> {
    fn drop(&mut self) {
        let result = self.pool.free_payload(self.segments);
        debug_assert_eq!(result, Ok(()), "the pool gave these out");
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There are too few slots.
    Alloc(AllocError),
    /// The queue does not take it.
    Offer(OfferError),
    /// The slots cannot be written.
    Copy(CopyError),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message was not sent")
    }
}

impl core::error::Error for SendError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(match self {
            Self::Alloc(error) => error,
            Self::Offer(error) => error,
            Self::Copy(error) => error,
        })
    }
}

/// The side that receives requests and answers them: the queue's device.
#[derive(Clone, Debug)]
pub struct Receiver<M> {
    device: Device<M>,
    segments: Box<[Segment]>,
}

impl<M: Memory> Receiver<M> {
    /// Looks at a queue that the sender has made.
    ///
    /// # Errors
    /// When the queue or the area is not in memory.
    pub fn new(memory: M, config: Config) -> Result<Self, OutOfBounds> {
        Ok(Self {
            device: Device::new(memory, config.layout, config.area, config.bytes_max)?,
            segments: no_segments(config.layout),
        })
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// When it does not hold. It was returned to the sender; ask for the next.
    #[expect(clippy::should_implement_trait, reason = "a message borrows the receiver, as no iterator's item can")]
    pub fn next(&mut self) -> Result<Option<Message<'_, M>>, TakeError> {
        let Some(chain) = self.device.take(&mut self.segments)? else { return Ok(None) };
        let (token, readable) = (chain.token, chain.readable.len());
        let count = readable + chain.writable.len();
        Ok(Some(Message { token: Some(token), readable, segments: &self.segments[..count], device: &mut self.device }))
    }

    /// Forgets all messages and starts again, after the sender did.
    ///
    /// # Errors
    /// When the queue is not in memory any more.
    pub fn reset(&mut self) -> Result<(), OutOfBounds> {
        self.device.reset()
    }

    /// The queue, for its notifications.
    pub fn device(&mut self) -> &mut Device<M> {
        &mut self.device
    }
}

/// A message that was received. It goes back to the sender with its reply, or without one when it is dropped.
#[derive(Debug)]
pub struct Message<'r, M: Memory> {
    token: Option<Token>, // None: answered.
    readable: usize,
    segments: &'r [Segment],
    device: &'r mut Device<M>,
}

impl<M: Memory> Message<'_, M> {
    /// How long it is.
    pub fn bytes(&self) -> u64 {
        bytes_of(self.segments())
    }

    /// How long a reply may be.
    pub fn reply_bytes_max(&self) -> u32 {
        self.token.as_ref().map_or(0, Token::writable_bytes)
    }

    /// Where it lies, for a receiver that reads it in place. The sender can still change it.
    pub fn segments(&self) -> &[Segment] {
        &self.segments[..self.readable]
    }

    /// Fills `out` with the message from byte `skip` on.
    ///
    /// # Errors
    /// When the message ends before, or is not in memory.
    pub fn read(&self, skip: u64, out: &mut [u8]) -> Result<(), CopyError> {
        gather(self.device.memory(), self.segments(), skip, out)
    }

    /// Writes `parts`, one after the other, as the reply, and returns the message to the sender.
    ///
    /// # Errors
    /// When there is too little room; try another reply then. When it was answered already, or memory is gone.
    pub fn reply(&mut self, parts: &[&[u8]]) -> Result<(), ReplyError> {
        if self.token.is_none() {
            return Err(ReplyError::Answered);
        }
        let room = &self.segments[self.readable..];
        let written = scatter(self.device.memory(), room, parts).map_err(ReplyError::Copy)?;
        let Some(token) = self.token.take() else { return Err(ReplyError::Answered) };
        // The room is at most `bytes_max`, a u32.
        self.device.complete(token, written as u32).map_err(ReplyError::Complete)
    }
}

impl<M: Memory> Drop for Message<'_, M> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            // It fails only where memory is gone, and then there is nobody to tell.
            let _ = self.device.complete(token, 0);
        }
    }
}

/// Why a reply was not sent.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// It does not fit, or cannot be written.
    Copy(CopyError),
    /// The queue does not take it.
    Complete(CompleteError),
    /// The message was answered already.
    Answered,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copy(_) | Self::Complete(_) => "the reply was not sent",
            Self::Answered => "the message was answered already",
        })
    }
}

impl core::error::Error for ReplyError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Copy(error) => Some(error),
            Self::Complete(error) => Some(error),
            Self::Answered => None,
        }
    }
}

fn no_segments(layout: Layout) -> Box<[Segment]> {
    alloc::vec![Segment::default(); usize::from(layout.size())].into_boxed_slice()
}
