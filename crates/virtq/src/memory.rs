//! What a side needs of the shared memory, and the two words for a piece of it.

use core::fmt;
use core::sync::atomic::{Ordering, fence};

/// Memory that both sides can reach, by addresses that both understand.
///
/// Implementations check every range; the other side may write to the memory at any time, so what was read is
/// a copy and may differ from what the next read finds. The queue never holds a reference into it.
///
/// What is in bounds when a queue is made should stay so; if it does not, the queue's operations return
/// [`OutOfBounds`] and change nothing on this side.
pub trait Memory {
    /// Whether `bytes` bytes from `address` can be read and written.
    ///
    /// # Errors
    /// When some of them cannot. An empty range is in bounds wherever it is.
    fn check(&self, address: u64, bytes: u64) -> Result<(), OutOfBounds>;

    /// Fills `out` with what lies at `address`, in no particular order.
    ///
    /// # Errors
    /// When the range is out of bounds; `out` is then unchanged.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds>;

    /// Puts `bytes` at `address`, in no particular order.
    ///
    /// # Errors
    /// When the range is out of bounds; nothing is then written.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds>;

    /// Loads a little-endian `u16` in one access that acquires: what the other side wrote before it released the
    /// value is seen by reads after this.
    ///
    /// # Errors
    /// When the range is out of bounds, or not aligned to 2 bytes.
    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds>;

    /// Stores a little-endian `u16` in one access that releases everything written before it.
    ///
    /// # Errors
    /// When the range is out of bounds, or not aligned to 2 bytes.
    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds>;

    /// Orders all accesses before it with all after it, stores with later loads included. Called only where
    /// notifications are decided. Where both sides never run at once it may do nothing.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn check(&self, address: u64, bytes: u64) -> Result<(), OutOfBounds> {
        (**self).check(address, bytes)
    }

    #[inline]
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        (**self).read(address, out)
    }

    #[inline]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        (**self).write(address, bytes)
    }

    #[inline]
    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        (**self).load_u16_acquire(address)
    }

    #[inline]
    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        (**self).store_u16_release(address, value)
    }

    fn fence(&self) {
        (**self).fence();
    }
}

/// A range is not in the shared memory, or a word in it is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Where the range starts.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} are not in the shared memory, or not aligned", self.bytes, self.address)
    }
}

impl core::error::Error for OutOfBounds {}

/// A piece of shared memory: one element of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts.
    pub address: u64,
    /// How long it is.
    pub bytes: u32,
}

impl Segment {
    /// Names a piece of memory, and checks nothing.
    pub const fn new(address: u64, bytes: u32) -> Self {
        Self { address, bytes }
    }

    /// The first address behind it, or `None` if that exceeds `u64`.
    pub const fn end(self) -> Option<u64> {
        self.address.checked_add(self.bytes as u64)
    }
}
