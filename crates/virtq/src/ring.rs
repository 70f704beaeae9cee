//! Where a queue lies, what its descriptors look like, and places in it (VIRTIO 1.3, sections 2.8.1, 2.8.10, 2.8.13).
//!
//! The order of accesses is kept here: a descriptor's flags are written last, and released; they are read first, and
//! acquired. Only the first descriptor of a chain needs that, since nobody polls the others (section 2.8.2).

use core::fmt;

use crate::memory::{Memory, OutOfBounds, Segment};

/// Bytes of a descriptor in the ring.
pub const DESCRIPTOR_BYTES: u64 = 16;
/// Bytes of an event suppression structure.
pub const EVENT_BYTES: u64 = 4;
/// The largest ring: places are 15 bits wide in event suppression structures.
pub const SIZE_MAX: u16 = 1 << 15;

/// More descriptors of the chain follow.
pub(crate) const NEXT: u16 = 1;
/// The device may write to the element; in a used descriptor, it did.
pub(crate) const WRITE: u16 = 2;
/// The element is a table of descriptors. Never accepted.
pub(crate) const INDIRECT: u16 = 4;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

const ID_AT: usize = 12;
const FLAGS_AT: usize = 14;

/// Where the parts of a queue lie, and how many descriptors it has. Aligned, without overlap or overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    size: u16, // Invariant: 1..=SIZE_MAX.
    descriptors: u64,
    driver_event: u64,
    device_event: u64,
}

impl Layout {
    /// A queue of `size` descriptors whose parts lie at the given addresses (sections 2.8.10.1: multiples of 16, 4, 4).
    ///
    /// # Errors
    /// When the size is 0 or above [`SIZE_MAX`], a part is not aligned, overflows, or overlaps another.
    pub const fn new(size: u16, descriptors: u64, driver_event: u64, device_event: u64) -> Result<Self, LayoutError> {
        if size == 0 || size > SIZE_MAX {
            return Err(LayoutError::Size);
        }
        if !descriptors.is_multiple_of(16) || !driver_event.is_multiple_of(4) || !device_event.is_multiple_of(4) {
            return Err(LayoutError::Alignment);
        }
        let ring_bytes = size as u64 * DESCRIPTOR_BYTES;
        if Self::apart(descriptors, ring_bytes, driver_event, EVENT_BYTES)
            && Self::apart(descriptors, ring_bytes, device_event, EVENT_BYTES)
            && Self::apart(driver_event, EVENT_BYTES, device_event, EVENT_BYTES)
        {
            Ok(Self { size, descriptors, driver_event, device_event })
        } else {
            Err(LayoutError::Overlap)
        }
    }

    /// A queue whose parts follow each other from `base`: [`Layout::bytes`] bytes in all.
    ///
    /// # Errors
    /// As for [`Layout::new`].
    pub const fn contiguous(base: u64, size: u16) -> Result<Self, LayoutError> {
        let Some(events) = base.checked_add(size as u64 * DESCRIPTOR_BYTES) else { return Err(LayoutError::Overlap) };
        let Some(device_event) = events.checked_add(EVENT_BYTES) else { return Err(LayoutError::Overlap) };
        Self::new(size, base, events, device_event)
    }

    /// Bytes that a contiguous queue of `size` descriptors takes.
    pub const fn bytes(size: u16) -> u64 {
        size as u64 * DESCRIPTOR_BYTES + 2 * EVENT_BYTES
    }

    /// How many descriptors the ring has.
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// Where the descriptors lie.
    pub const fn descriptors(&self) -> u64 {
        self.descriptors
    }

    /// Where the driver says which notifications it wants.
    pub const fn driver_event(&self) -> u64 {
        self.driver_event
    }

    /// Where the device says which notifications it wants.
    pub const fn device_event(&self) -> u64 {
        self.device_event
    }

    /// Whether two ranges end within `u64` and share no byte.
    const fn apart(a: u64, a_bytes: u64, b: u64, b_bytes: u64) -> bool {
        match (a.checked_add(a_bytes), b.checked_add(b_bytes)) {
            (Some(a_end), Some(b_end)) => a_end <= b || b_end <= a,
            _ => false,
        }
    }
}

/// Why a [`Layout`] was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The ring has no descriptor, or more than [`SIZE_MAX`].
    Size,
    /// A part does not start at a multiple of what it must.
    Alignment,
    /// Parts overlap, or end beyond the last address.
    Overlap,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "a ring has 1 to 32768 descriptors",
            Self::Alignment => "descriptors start at a multiple of 16, event structures at a multiple of 4",
            Self::Overlap => "the parts of the queue overlap or end beyond the last address",
        })
    }
}

impl core::error::Error for LayoutError {}

/// A place in a ring and the side's wrap counter there (section 2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The descriptor's number.
    pub index: u16,
    /// True in the first lap and in each second one after it.
    pub wrap: bool,
}

impl Place {
    /// Where both sides start.
    pub const START: Self = Self { index: 0, wrap: true };

    /// The place `count` descriptors on, where `count` is at most `size`.
    pub(crate) const fn after(self, count: u16, size: u16) -> Self {
        // At most 2 * SIZE_MAX - 1, which a u16 holds.
        let index = self.index + count;
        if index >= size { Self { index: index - size, wrap: !self.wrap } } else { Self { index, wrap: self.wrap } }
    }

    /// Both in one word.
    #[inline]
    pub const fn pack(self) -> u16 {
        self.index | (self.wrap as u16) << 15
    }

    /// What was packed.
    #[inline]
    pub const fn unpack(word: u16) -> Self {
        Self { index: word & !(1 << 15), wrap: word >> 15 == 1 }
    }

    /// Its number in two laps, after which wrap counters repeat.
    pub(crate) const fn in_two_laps(self, size: u16) -> u32 {
        self.index as u32 + if self.wrap { 0 } else { size as u32 }
    }

    /// The flags that make a descriptor here available.
    const fn available(self) -> u16 {
        if self.wrap { AVAILABLE } else { USED }
    }

    /// The flags that make a descriptor here used.
    const fn used(self) -> u16 {
        if self.wrap { AVAILABLE | USED } else { 0 }
    }

    /// Whether flags found here say that the descriptor is available.
    pub(crate) const fn is_available(self, flags: u16) -> bool {
        flags & (AVAILABLE | USED) == self.available()
    }

    /// Whether flags found here say that the descriptor is used.
    pub(crate) const fn is_used(self, flags: u16) -> bool {
        flags & (AVAILABLE | USED) == self.used()
    }
}

/// A descriptor, copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) segment: Segment,
    pub(crate) id: u16,
    pub(crate) flags: u16,
}

impl Descriptor {
    #[inline]
    fn encode(self) -> [u8; DESCRIPTOR_BYTES as usize] {
        let word = u64::from(self.segment.bytes) | u64::from(self.id) << 32 | u64::from(self.flags) << 48;
        let mut bytes = [0; DESCRIPTOR_BYTES as usize];
        bytes[..8].copy_from_slice(&self.segment.address.to_le_bytes());
        bytes[8..].copy_from_slice(&word.to_le_bytes());
        bytes
    }

    #[inline]
    fn decode(bytes: [u8; DESCRIPTOR_BYTES as usize]) -> Self {
        let words = u128::from_le_bytes(bytes);
        let segment = Segment::new(words as u64, (words >> 64) as u32);
        Self { segment, id: (words >> 96) as u16, flags: (words >> 112) as u16 }
    }
}

/// The descriptors of a queue, in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Ring<M> {
    pub(crate) memory: M,
    pub(crate) layout: Layout,
}

impl<M: Memory> Ring<M> {
    /// A ring that lies in bounds.
    pub(crate) fn new(memory: M, layout: Layout) -> Result<Self, OutOfBounds> {
        memory.check(layout.descriptors, u64::from(layout.size) * DESCRIPTOR_BYTES)?;
        memory.check(layout.driver_event, EVENT_BYTES)?;
        memory.check(layout.device_event, EVENT_BYTES)?;
        Ok(Self { memory, layout })
    }

    #[inline]
    fn address(&self, place: Place) -> u64 {
        debug_assert!(place.index < self.layout.size);
        self.layout.descriptors + u64::from(place.index) * DESCRIPTOR_BYTES
    }

    /// The flags at `place`, acquired: the one look at a descriptor that may still change.
    #[inline]
    pub(crate) fn flags(&self, place: Place) -> Result<u16, OutOfBounds> {
        self.memory.load_u16_acquire(self.address(place) + FLAGS_AT as u64)
    }

    /// The rest of the descriptor whose flags were acquired.
    #[inline]
    pub(crate) fn head(&self, place: Place, flags: u16) -> Result<Descriptor, OutOfBounds> {
        let mut bytes = [0; DESCRIPTOR_BYTES as usize];
        self.memory.read(self.address(place), &mut bytes[..FLAGS_AT])?;
        Ok(Descriptor { flags, ..Descriptor::decode(bytes) })
    }

    /// A descriptor that follows one whose flags were acquired, in one copy.
    #[inline]
    pub(crate) fn follower(&self, place: Place) -> Result<Descriptor, OutOfBounds> {
        let mut bytes = [0; DESCRIPTOR_BYTES as usize];
        self.memory.read(self.address(place), &mut bytes)?;
        Ok(Descriptor::decode(bytes))
    }

    /// Writes all of the first descriptor of a chain but its flags.
    #[inline]
    pub(crate) fn prepare_head(&self, place: Place, segment: Segment, id: u16) -> Result<(), OutOfBounds> {
        let bytes = Descriptor { segment, id, flags: 0 }.encode();
        self.memory.write(self.address(place), &bytes[..FLAGS_AT])
    }

    /// Writes a descriptor that only the head's flags will show to the device.
    #[inline]
    pub(crate) fn write_follower(
        &self,
        place: Place,
        segment: Segment,
        id: u16,
        flags: u16,
    ) -> Result<(), OutOfBounds> {
        let bytes = Descriptor { segment, id, flags: flags | place.available() }.encode();
        self.memory.write(self.address(place), &bytes)
    }

    /// Shows the device a chain whose descriptors were all written.
    #[inline]
    pub(crate) fn publish_available(&self, place: Place, flags: u16) -> Result<(), OutOfBounds> {
        self.memory.store_u16_release(self.address(place) + FLAGS_AT as u64, flags | place.available())
    }

    /// Makes a descriptor that was not shown yet unavailable again: as the last lap left it.
    pub(crate) fn retract(&self, place: Place) -> Result<(), OutOfBounds> {
        let last_lap = Place { wrap: !place.wrap, ..place };
        self.memory.store_u16_release(self.address(place) + FLAGS_AT as u64, last_lap.used())
    }

    /// Returns a chain to the driver. `written` counts bytes from the start of its writable part (section 2.8.4).
    #[inline]
    pub(crate) fn publish_used(&self, place: Place, id: u16, written: u32) -> Result<(), OutOfBounds> {
        let bytes = Descriptor { segment: Segment::new(0, written), id, flags: 0 }.encode();
        let address = self.address(place);
        self.memory.write(address + 8, &bytes[8..FLAGS_AT])?;
        let flags = place.used() | if written == 0 { 0 } else { WRITE };
        self.memory.store_u16_release(address + FLAGS_AT as u64, flags)
    }

    /// Zeroes the descriptors: none is available, none is used (section 2.8.13).
    pub(crate) fn clear(&self) -> Result<(), OutOfBounds> {
        for index in 0..self.layout.size {
            let place = Place { index, ..Place::START };
            self.memory.write(self.address(place), &[0; FLAGS_AT])?;
            self.memory.store_u16_release(self.address(place) + FLAGS_AT as u64, 0)?;
        }
        Ok(())
    }
}

const _: () = assert!(ID_AT + 2 == FLAGS_AT && FLAGS_AT + 2 == DESCRIPTOR_BYTES as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_look_as_the_standard_says() {
        let descriptor =
            Descriptor { segment: Segment::new(0x0807_0605_0403_0201, 0x0c0b_0a09), id: 0x0e0d, flags: 0x100f };
        let bytes = descriptor.encode();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(Descriptor::decode(bytes), descriptor);
    }

    #[test]
    fn flags_tell_available_from_used_in_both_laps() {
        let (first, second) = (Place { index: 3, wrap: true }, Place { index: 3, wrap: false });
        assert_eq!((first.available(), first.used()), (0x80, 0x8080));
        assert_eq!((second.available(), second.used()), (0x8000, 0));
        for place in [first, second] {
            assert!(place.is_available(place.available() | NEXT | WRITE) && !place.is_available(place.used()));
            assert!(place.is_used(place.used() | WRITE) && !place.is_used(place.available()));
        }
        assert!(!first.is_available(0) && !first.is_used(0), "a zeroed ring holds nothing");
    }

    #[test]
    fn places_wrap_at_any_size() {
        assert_eq!(Place::START.after(3, 3), Place { index: 0, wrap: false });
        assert_eq!(Place { index: 2, wrap: false }.after(2, 3), Place { index: 1, wrap: true });
        let last = Place { index: SIZE_MAX - 1, wrap: true };
        assert_eq!(last.after(SIZE_MAX, SIZE_MAX), Place { index: SIZE_MAX - 1, wrap: false });
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        assert_eq!(Layout::new(0, 0, 64, 68), Err(LayoutError::Size));
        assert_eq!(Layout::new(SIZE_MAX + 1, 0, 1 << 20, 2 << 20), Err(LayoutError::Size));
        assert_eq!(Layout::new(4, 8, 128, 132), Err(LayoutError::Alignment));
        assert_eq!(Layout::new(4, 0, 66, 132), Err(LayoutError::Alignment));
        assert_eq!(Layout::new(4, 0, 60, 132), Err(LayoutError::Overlap));
        assert_eq!(Layout::new(4, 0, 64, 64), Err(LayoutError::Overlap));
        assert_eq!(Layout::new(4, u64::MAX - 15, 64, 68), Err(LayoutError::Overlap));
        assert_eq!(Layout::contiguous(u64::MAX - 15, 4), Err(LayoutError::Overlap));
        assert_eq!(Layout::contiguous(0, 4), Layout::new(4, 0, 64, 68));
    }
}
