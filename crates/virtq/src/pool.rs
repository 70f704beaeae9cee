//! Fixed-size slots for payloads: given out and taken back in constant time, last in first out.
//!
//! The free slots are a stack; each slot also remembers where it was last put on it. A slot is free exactly if the
//! stack holds it there, so that a second free is found without a mark that would have to be set and cleared. To
//! take slots is to shorten the stack, and to undo that is to lengthen it again.
//!
//! One size of slot. Classes of sizes were not measured to be better: a message of a few bytes wastes most of a slot
//! for as long as it is in flight, and no more.

use alloc::boxed::Box;
use core::fmt;
use core::ops::Range;

use crate::memory::Segment;

/// Where payloads lie: a number of slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    base: u64, // Invariant: base + bytes() does not overflow.
    shift: u8, // Invariant: a slot has 1 << shift bytes, at most 1 << 31.
    slots: u16,
}

impl Area {
    /// `slots` slots of `slot_bytes` bytes from `base`.
    ///
    /// # Errors
    /// When `slot_bytes` is not a power of two, there is no slot, or the last one ends beyond `u64`.
    pub const fn new(base: u64, slot_bytes: u32, slots: u16) -> Result<Self, AreaError> {
        if !slot_bytes.is_power_of_two() || slots == 0 {
            return Err(AreaError);
        }
        match base.checked_add(slot_bytes as u64 * slots as u64) {
            Some(_) => Ok(Self { base, shift: slot_bytes.trailing_zeros() as u8, slots }),
            None => Err(AreaError),
        }
    }

    /// The address of the first slot.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// How many slots there are.
    pub const fn slots(&self) -> u16 {
        self.slots
    }

    /// Bytes of a slot.
    pub const fn slot_bytes(&self) -> u32 {
        1 << self.shift
    }

    /// Bytes of all slots.
    pub const fn bytes(&self) -> u64 {
        (self.slots as u64) << self.shift
    }

    /// How many slots `bytes` bytes take.
    #[inline]
    pub const fn slots_for(&self, bytes: u32) -> usize {
        // Widened, the sum cannot overflow; a shift, because a division would take longer than all else here.
        ((bytes as u64 + (1 << self.shift) - 1) >> self.shift) as usize
    }

    /// The slots that a segment touches, or `None` if it is empty or not in the area.
    #[inline]
    pub fn slots_of(&self, segment: Segment) -> Option<Range<usize>> {
        let offset = segment.address.checked_sub(self.base)?;
        let last = offset.checked_add(u64::from(segment.bytes).checked_sub(1)?)?;
        if last >= self.bytes() {
            return None;
        }
        Some((offset >> self.shift) as usize..(last >> self.shift) as usize + 1)
    }

    #[inline]
    fn address(&self, slot: u16) -> u64 {
        self.base + (u64::from(slot) << self.shift)
    }

    /// The slot that starts at `address`.
    #[inline]
    fn slot_at(&self, address: u64) -> Option<u16> {
        let offset = address.checked_sub(self.base)?;
        let slot = offset >> self.shift;
        (slot < u64::from(self.slots) && slot << self.shift == offset).then_some(slot as u16)
    }
}

/// An area of no slots, of slots whose size is not a power of two, or that ends beyond the last address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaError;

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an area has slots, of a power of two of bytes, and ends within the address space")
    }
}

impl core::error::Error for AreaError {}

/// The slots of an area, free or given out.
#[derive(Clone, Debug)]
pub struct SlotPool {
    area: Area,
    /// How many slots are free: the height of the stack.
    free: usize,
    /// As many as the area has slots. What lies above the stack is what was taken from it.
    entries: Box<[Entry]>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The slot at this height of the stack.
    slot: u16,
    /// Where on the stack the slot of this number was last put.
    height: u16,
}

impl SlotPool {
    /// All slots of `area`, free. The first to be given out is the first of the area.
    pub fn new(area: Area) -> Self {
        let last = area.slots - 1;
        let entries = (0..area.slots).map(|at| Entry { slot: last - at, height: last - at }).collect();
        Self { area, free: usize::from(area.slots), entries }
    }

    /// Where the slots lie.
    pub fn area(&self) -> Area {
        self.area
    }

    /// How many slots are free.
    pub fn free_slots(&self) -> usize {
        self.free
    }

    /// Takes one slot and returns its address.
    ///
    /// # Errors
    /// When none is free.
    #[inline]
    pub fn alloc(&mut self) -> Result<u64, AllocError> {
        let top = self.free.wrapping_sub(1);
        let entry = self.entries.get(top).ok_or(AllocError::Exhausted { wanted: 1, free: 0 })?;
        self.free = top;
        Ok(self.area.address(entry.slot))
    }

    /// Takes the slots for `bytes` bytes, all or none, and describes them in `segments`. Slots that follow each other
    /// share a segment. Returns how many segments there are; none for 0 bytes.
    ///
    /// # Errors
    /// When too few slots are free, or `segments` is too short. No slot is then taken.
    #[inline]
    pub fn alloc_payload(&mut self, bytes: u32, segments: &mut [Segment]) -> Result<usize, AllocError> {
        let slot_bytes = self.area.slot_bytes();
        let count = self.area.slots_for(bytes);
        let Some(rest) = self.free.checked_sub(count) else {
            return Err(AllocError::Exhausted { wanted: count, free: self.free });
        };
        let mut used = 0;
        let mut left = bytes;
        let mut end = None;
        for entry in self.entries[rest..self.free].iter().rev() {
            let address = self.area.address(entry.slot);
            let part = left.min(slot_bytes);
            left -= part;
            if end == Some(address) {
                segments[used - 1].bytes += part;
            } else {
                let Some(segment) = segments.get_mut(used) else { return Err(AllocError::TooManySegments) };
                *segment = Segment::new(address, part);
                used += 1;
            }
            end = Some(address + u64::from(slot_bytes));
        }
        self.free = rest;
        Ok(used)
    }

    /// Gives one slot back.
    ///
    /// # Errors
    /// When no slot starts at `address`, or it is free. Nothing changes then.
    #[inline]
    pub fn free(&mut self, address: u64) -> Result<(), FreeError> {
        let slot = self.area.slot_at(address).ok_or(FreeError::Foreign(address))?;
        self.free_slot(slot)
    }

    /// Gives the slots of a payload back, so that the same request gets the same slots again.
    ///
    /// # Errors
    /// When a segment does not start with a slot of this area, or one of its slots is free. The other slots were
    /// given back.
    #[inline]
    pub fn free_payload(&mut self, segments: &[Segment]) -> Result<(), FreeError> {
        let mut result = Ok(());
        for segment in segments.iter().rev() {
            let count = self.area.slots_for(segment.bytes);
            let first = match self.area.slot_at(segment.address) {
                Some(first) if count != 0 && count <= usize::from(self.area.slots - first) => first,
                _ => {
                    result = Err(FreeError::Foreign(segment.address));
                    continue;
                }
            };
            // At most the number of slots, a u16.
            for slot in (first..first + count as u16).rev() {
                if let Err(error) = self.free_slot(slot) {
                    result = Err(error);
                }
            }
        }
        result
    }

    #[inline]
    fn free_slot(&mut self, slot: u16) -> Result<(), FreeError> {
        let height = usize::from(self.entries[usize::from(slot)].height);
        if height < self.free && self.entries[height].slot == slot {
            return Err(FreeError::AlreadyFree(self.area.address(slot)));
        }
        // A slot that is not on the stack leaves room on it.
        let top = self.free;
        self.entries[top].slot = slot;
        self.entries[usize::from(slot)].height = top as u16;
        self.free = top + 1;
        Ok(())
    }
}

/// Why no slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocError {
    /// Too few slots are free.
    Exhausted {
        /// How many it takes.
        wanted: usize,
        /// How many there are.
        free: usize,
    },
    /// The slots lie apart, in more segments than there is room to describe.
    TooManySegments,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { wanted, free } => write!(f, "{wanted} slots wanted, {free} are free"),
            Self::TooManySegments => f.write_str("the free slots lie apart, in too many segments"),
        }
    }
}

impl core::error::Error for AllocError {}

/// Why a slot was not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// No slot of the pool starts at this address.
    Foreign(u64),
    /// The slot at this address is free.
    AlreadyFree(u64),
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign(address) => write!(f, "no slot of this pool starts at {address:#x}"),
            Self::AlreadyFree(address) => write!(f, "the slot at {address:#x} is free already"),
        }
    }
}

impl core::error::Error for FreeError {}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const BASE: u64 = 0x5000;

    fn pool(slots: u16) -> SlotPool {
        SlotPool::new(Area::new(BASE, 4096, slots).unwrap())
    }

    #[test]
    fn areas_that_cannot_be_are_refused() {
        assert_eq!(Area::new(0, 1500, 4), Err(AreaError));
        assert_eq!(Area::new(0, 0, 4), Err(AreaError));
        assert_eq!(Area::new(0, 4096, 0), Err(AreaError));
        assert_eq!(Area::new(u64::MAX - 4095, 4096, 1), Err(AreaError));
        assert!(Area::new(u64::MAX - 4096, 4096, 1).is_ok());
    }

    #[test]
    fn the_last_slot_freed_is_the_next_given_out() {
        let mut pool = pool(3);
        let slots: Vec<u64> = (0..3).map(|_| pool.alloc().unwrap()).collect();
        assert_eq!(slots, [BASE, BASE + 4096, BASE + 8192]);
        assert_eq!(pool.alloc(), Err(AllocError::Exhausted { wanted: 1, free: 0 }));
        pool.free(slots[1]).unwrap();
        pool.free(slots[0]).unwrap();
        assert_eq!((pool.alloc(), pool.alloc()), (Ok(slots[0]), Ok(slots[1])));
    }

    #[test]
    fn double_frees_and_foreign_addresses_are_found() {
        let mut pool = pool(2);
        assert_eq!(pool.free(BASE), Err(FreeError::AlreadyFree(BASE)), "never given out");
        let slot = pool.alloc().unwrap();
        for address in [0, BASE - 4096, slot + 1, slot + 4095, BASE + 8192, u64::MAX] {
            assert_eq!(pool.free(address), Err(FreeError::Foreign(address)));
        }
        pool.free(slot).unwrap();
        assert_eq!(pool.free(slot), Err(FreeError::AlreadyFree(slot)));
        assert_eq!(pool.free_slots(), 2);
    }

    #[test]
    fn payloads_take_all_their_slots_or_none() {
        let mut pool = pool(4);
        let mut segments = [Segment::default(); 4];
        assert_eq!(pool.alloc_payload(0, &mut []), Ok(0));
        assert_eq!(pool.alloc_payload(4 * 4096 + 1, &mut segments), Err(AllocError::Exhausted { wanted: 5, free: 4 }));
        assert_eq!(
            pool.alloc_payload(u32::MAX, &mut segments),
            Err(AllocError::Exhausted { wanted: 1 << 20, free: 4 })
        );
        assert_eq!(pool.alloc_payload(2 * 4096 + 1, &mut segments), Ok(1));
        assert_eq!(segments[0], Segment::new(BASE, 2 * 4096 + 1));
        assert_eq!(pool.free_slots(), 1);
        pool.free_payload(&segments[..1]).unwrap();
        assert_eq!(pool.free_slots(), 4);
    }

    #[test]
    fn slots_that_lie_apart_are_segments_of_their_own() {
        let mut pool = pool(5);
        let slots: Vec<u64> = (0..5).map(|_| pool.alloc().unwrap()).collect();
        for slot in [slots[4], slots[2], slots[0]] {
            pool.free(slot).unwrap();
        }
        let mut segments = [Segment::default(); 3];
        assert_eq!(pool.alloc_payload(8193, &mut segments[..2]), Err(AllocError::TooManySegments));
        assert_eq!(pool.free_slots(), 3);
        for _ in 0..2 {
            assert_eq!(pool.alloc_payload(8193, &mut segments), Ok(3));
            assert_eq!(
                segments,
                [Segment::new(slots[0], 4096), Segment::new(slots[2], 4096), Segment::new(slots[4], 1)]
            );
            pool.free_payload(&segments).unwrap();
        }
        let wrong = [segments[0], Segment::new(slots[1] + 8, 8), Segment::new(slots[1], 0)];
        assert_eq!(pool.alloc_payload(4096, &mut segments), Ok(1));
        assert_eq!(pool.free_payload(&wrong), Err(FreeError::Foreign(slots[1] + 8)));
        assert_eq!(pool.free_slots(), 3, "what was right was given back");
    }
}
