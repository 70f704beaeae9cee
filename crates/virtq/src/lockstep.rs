//! The two sides of a queue for a program that trusts its peer, where both never run at once and each chain is one
//! descriptor: a guest that serves its host.
//!
//! They keep a place or two and nothing else, allocate nothing, and fit a word each ([`Offers::pack`], [`Takes::pack`]). What
//! they put into the ring is what [`Driver`](crate::driver::Driver) and [`Device`](crate::device::Device) on the other
//! side expect, which believe nothing.

use crate::memory::{Memory, OutOfBounds, Segment};
use crate::ring::{Layout, Place, Ring};

/// The driver's side. Its peer uses everything that was offered each time it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    next: Place,
    waiting: u16, // Invariant: at most the ring's size.
}

impl Offers {
    /// Where a queue starts.
    pub const START: Self = Self { next: Place::START, waiting: 0 };

    /// Whether nothing can be offered before the peer has run.
    #[inline]
    pub const fn is_full(&self, layout: &Layout) -> bool {
        self.waiting >= layout.size()
    }

    /// Whether nothing was offered since the peer ran.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Makes `segment` available to the peer, to be read.
    ///
    /// # Errors
    /// When the ring is full, or not in memory. Nothing is offered then.
    #[inline]
    pub fn offer<M: Memory>(&mut self, memory: &M, layout: &Layout, segment: Segment) -> Result<(), OutOfBounds> {
        if self.is_full(layout) {
            return Err(OutOfBounds { address: segment.address, bytes: u64::from(segment.bytes) });
        }
        let ring = Ring { memory, layout: *layout };
        // At most `size` are outstanding, so that no two have the same place.
        ring.prepare_head(self.next, segment, self.next.index)?;
        ring.publish_available(self.next, 0)?;
        self.next = self.next.after(1, layout.size());
        self.waiting += 1;
        Ok(())
    }

    /// The peer has run, and used everything.
    #[inline]
    pub const fn used_all(&mut self) {
        self.waiting = 0;
    }

    /// All of it in one word.
    #[inline]
    pub const fn pack(self) -> u32 {
        self.next.pack() as u32 | (self.waiting as u32) << 16
    }

    /// What was packed.
    #[inline]
    pub const fn unpack(word: u32) -> Self {
        Self { next: Place::unpack(word as u16), waiting: (word >> 16) as u16 }
    }
}

/// The device's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takes {
    next_available: Place,
    next_used: Place,
}

/// A chain that was taken: where it lies, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the driver waits until it is returned"]
pub struct Taken {
    /// Where it lies.
    pub segment: Segment,
    /// What the driver calls it.
    pub id: u16,
}

impl Takes {
    /// Where a queue starts.
    pub const START: Self = Self { next_available: Place::START, next_used: Place::START };

    /// Takes the next chain that is available, if there is one.
    ///
    /// # Errors
    /// When the ring is not in memory.
    #[inline]
    pub fn take<M: Memory>(&mut self, memory: &M, layout: &Layout) -> Result<Option<Taken>, OutOfBounds> {
        let ring = Ring { memory, layout: *layout };
        let flags = ring.flags(self.next_available)?;
        if !self.next_available.is_available(flags) {
            return Ok(None);
        }
        let descriptor = ring.head(self.next_available, flags)?;
        self.next_available = self.next_available.after(1, layout.size());
        Ok(Some(Taken { segment: descriptor.segment, id: descriptor.id }))
    }

    /// Returns a chain that was taken, in any order.
    ///
    /// # Errors
    /// When the ring is not in memory.
    #[inline]
    pub fn give_back<M: Memory>(&mut self, memory: &M, layout: &Layout, id: u16) -> Result<(), OutOfBounds> {
        Ring { memory, layout: *layout }.publish_used(self.next_used, id, 0)?;
        self.next_used = self.next_used.after(1, layout.size());
        Ok(())
    }

    /// All of it in one word.
    #[inline]
    pub const fn pack(self) -> u32 {
        self.next_available.pack() as u32 | (self.next_used.pack() as u32) << 16
    }

    /// What was packed.
    #[inline]
    pub const fn unpack(word: u32) -> Self {
        Self { next_available: Place::unpack(word as u16), next_used: Place::unpack((word >> 16) as u16) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::device::Device;
    use crate::driver::Driver;
    use crate::pointer::Owned;
    use crate::pool::Area;

    const BASE: u64 = 0x4000;

    #[test]
    fn a_device_that_believes_nothing_takes_what_is_offered() {
        for size in [1, 2, 3, 8] {
            let memory = Owned::new(BASE, 8192);
            let layout = Layout::contiguous(BASE, size).unwrap();
            let area = Area::new(BASE + 4096, 4096, 1).unwrap();
            let mut device = Device::new(memory.view(), layout, area, 4096).unwrap();
            let mut offers = Offers::START;
            let mut number = 0;
            for round in 0..40 {
                let count = 1 + round % size;
                let segments: Vec<Segment> =
                    (0..count).map(|n| Segment::new(BASE + 4096 + u64::from(number + n), 1)).collect();
                number = (number + count) % 4000;
                for segment in &segments {
                    offers.offer(&memory.view(), &layout, *segment).unwrap();
                }
                assert_eq!(offers.is_full(&layout), count == size);
                for segment in &segments {
                    let mut buffer = [Segment::default()];
                    let chain = device.take(&mut buffer).unwrap().unwrap();
                    assert_eq!(chain.readable, [*segment]);
                    device.complete(chain.token, 0).unwrap();
                }
                assert_eq!(device.take(&mut [Segment::default()]).unwrap(), None);
                assert!(!offers.is_empty());
                offers = Offers::unpack(offers.pack());
                offers.used_all();
                assert!(offers.is_empty());
            }
        }
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let memory = Owned::new(BASE, 4096);
        let layout = Layout::contiguous(BASE, 2).unwrap();
        let mut offers = Offers::START;
        for _ in 0..2 {
            offers.offer(&memory.view(), &layout, Segment::new(BASE, 1)).unwrap();
        }
        assert!(offers.offer(&memory.view(), &layout, Segment::new(BASE, 1)).is_err());
    }

    #[test]
    fn a_driver_that_believes_nothing_gets_back_what_was_taken() {
        for size in [1, 2, 3, 8] {
            let memory = Owned::new(BASE, 4096);
            let layout = Layout::contiguous(BASE, size).unwrap();
            let mut driver = Driver::new(memory.view(), layout, 4096).unwrap();
            let mut takes = Takes::START;
            for round in 0..40 {
                let count = 1 + round % size;
                let names: Vec<u16> = (0..count)
                    .map(|n| driver.offer(&[Segment::new(0x10_0000 + u64::from(n), 1)], &[]).unwrap())
                    .collect();
                let mut taken = Vec::new();
                while let Some(one) = takes.take(&memory.view(), &layout).unwrap() {
                    assert_eq!(one.segment, Segment::new(0x10_0000 + taken.len() as u64, 1));
                    taken.push(one.id);
                }
                assert_eq!(taken, names);
                if round % 2 == 1 {
                    taken.reverse();
                }
                takes = Takes::unpack(takes.pack());
                for id in &taken {
                    takes.give_back(&memory.view(), &layout, *id).unwrap();
                }
                let mut buffer = [Segment::default()];
                for id in taken {
                    assert_eq!(driver.collect(&mut buffer).unwrap().unwrap().id, id);
                }
                assert_eq!(driver.free(), size);
            }
        }
    }

    #[test]
    fn a_parked_side_goes_on_and_back_to_a_copy() {
        let memory = Owned::new(BASE, 8192);
        let layout = Layout::contiguous(BASE, 4).unwrap();
        let area = Area::new(BASE + 4096, 4096, 1).unwrap();
        let mut device = Device::new(memory.view(), layout, area, 4096).unwrap().park();
        let driver = Driver::new(memory.view(), layout, 4096);
        let mut driver = driver.unwrap().park();
        let (clean_driver, clean_device) = (driver.clone(), device.clone());
        let mut ring = [0; 72];
        memory.view().read(BASE, &mut ring).unwrap();
        for round in 0..3 {
            for number in 0..7_u64 {
                let segment = Segment::new(BASE + 4096 + number, 1);
                driver.with(memory.view(), |driver| driver.offer(&[segment], &[])).unwrap();
                assert_eq!((driver.free(), driver.layout()), (3, layout));
                let taken = device.with(memory.view(), |device| {
                    let mut buffer = [Segment::default()];
                    let chain = device.take(&mut buffer).unwrap().unwrap();
                    let segment = chain.readable[0];
                    device.complete(chain.token, 0).unwrap();
                    segment
                });
                assert_eq!(taken, segment, "round {round}");
                let used =
                    driver.with(memory.view(), |driver| driver.collect(&mut [Segment::default()]).unwrap().is_some());
                assert!(used);
            }
            // Memory and both sides as they were: in the middle of a lap, for the next round.
            memory.view().write(BASE, &ring).unwrap();
            driver.clone_from(&clean_driver);
            device.clone_from(&clean_device);
        }
    }
}
