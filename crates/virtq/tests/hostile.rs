//! A peer that does not keep the rules. Each thing it does is an error of its own kind, and none panics, leaks, hands
//! out memory that is not the peer's to give, or keeps the next honest chain from being served.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::{Cell, RefCell};

use coracle_virtq::device::{BadChain, CompleteError, Device, Fault, TakeError};
use coracle_virtq::driver::{CollectError, Driver, OfferError, WroteTooMuch};
use coracle_virtq::event::BadEvent;
use coracle_virtq::link::{Config, Receiver, Sender};
use coracle_virtq::memory::{Memory, OutOfBounds, Segment};
use coracle_virtq::pointer::{Owned, PointerMemory};
use coracle_virtq::pool::Area;
use coracle_virtq::ring::{Layout, Place};
use proptest::collection::vec;
use proptest::prelude::*;

const BASE: u64 = 0x4_0000;
const AREA: u64 = BASE + 4096;
const SLOT: u32 = 64;
const SLOTS: u16 = 16;
const SIZE: u16 = 4;
const BYTES_MAX: u32 = 300;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn memory() -> Owned {
    Owned::new(BASE, 16 << 10)
}

fn layout() -> Layout {
    Layout::contiguous(BASE, SIZE).unwrap()
}

fn area() -> Area {
    Area::new(AREA, SLOT, SLOTS).unwrap()
}

/// The address of slot `number`.
fn slot(number: u64) -> u64 {
    AREA + number * u64::from(SLOT)
}

/// A descriptor as a peer writes it: address, length, identifier, flags without those of the lap.
type Raw = (u64, u32, u16, u16);

/// Writes a descriptor that is available at `place`, whoever may own it.
fn put(memory: &PointerMemory<'_>, place: Place, (address, bytes, id, flags): Raw, lap: u16) {
    let at = BASE + u64::from(place.index) * 16;
    memory.write(at, &address.to_le_bytes()).unwrap();
    memory.write(at + 8, &bytes.to_le_bytes()).unwrap();
    memory.write(at + 12, &id.to_le_bytes()).unwrap();
    memory.store_u16_release(at + 14, flags | lap).unwrap();
}

const fn available(place: Place) -> u16 {
    if place.wrap { 0x80 } else { 0x8000 }
}

const fn used(place: Place) -> u16 {
    if place.wrap { 0x8080 } else { 0 }
}

const fn after(place: Place, count: u16) -> Place {
    let index = place.index + count;
    if index >= SIZE { Place { index: index - SIZE, wrap: !place.wrap } } else { Place { index, wrap: place.wrap } }
}

/// A driver by hand offers `chain` at each place of two laps; the device must refuse it for `want` after `count`
/// descriptors, return it, and serve what comes next.
#[track_caller]
fn refused(chain: &[Raw], count: u16, want: Fault) {
    for start in (0..2 * SIZE).step_by(if cfg!(miri) { 3 } else { 1 }) {
        let memory = memory();
        let view = memory.view();
        let mut device = Device::new(memory.view(), layout(), area(), BYTES_MAX).unwrap();
        let mut buffer = [Segment::default(); SIZE as usize];
        let mut place = Place::START;
        let mut honest = |device: &mut Device<_>, place: &mut Place| {
            put(&view, *place, (slot(3), 5, 2, 0), available(*place));
            let chain = device.take(&mut buffer).unwrap().unwrap();
            assert_eq!((chain.readable, chain.writable), (&[Segment::new(slot(3), 5)][..], &[][..]));
            device.complete(chain.token, 0).unwrap();
            let at = BASE + u64::from(place.index) * 16;
            assert_eq!(view.load_u16_acquire(at + 14).unwrap() & 0x8080, used(*place));
            *place = after(*place, 1);
        };
        for _ in 0..start {
            honest(&mut device, &mut place);
        }
        for (step, &raw) in chain.iter().enumerate() {
            let at = after(place, step as u16);
            put(&view, at, raw, available(at));
        }
        let id = chain[usize::from(count) - 1].2;
        let mut short = [Segment::default(); 3];
        let error = device.take(&mut short).unwrap_err();
        assert_eq!(error, TakeError::Bad(BadChain { id, descriptors: count, fault: want }), "at {start}");
        assert_eq!(device.held(), 0);
        let mut word = [0; 8];
        view.read(BASE + u64::from(place.index) * 16 + 8, &mut word).unwrap();
        let word = u64::from_le_bytes(word);
        assert_eq!((word as u32, (word >> 32) as u16, (word >> 48) as u16), (0, id, used(place)));
        place = after(place, count);
        for _ in 0..2 * SIZE {
            honest(&mut device, &mut place);
        }
        assert_eq!(device.take(&mut short), Ok(None));
    }
}

#[test]
fn tables_of_descriptors_are_refused() {
    refused(&[(slot(0), 16, 0, INDIRECT)], 1, Fault::Indirect);
    refused(&[(slot(0), 16, 0, NEXT), (slot(1), 16, 0, INDIRECT | WRITE)], 2, Fault::Indirect);
}

#[test]
fn what_is_read_comes_before_what_is_written() {
    refused(&[(slot(0), 1, 0, NEXT | WRITE), (slot(1), 1, 0, 0)], 2, Fault::ReadableAfterWritable);
}

#[test]
fn segments_lie_in_the_area() {
    let end = slot(u64::from(SLOTS));
    for (address, bytes) in [
        (0, 1),
        (BASE, 16),
        (AREA - 1, 2),
        (end - 1, 2),
        (end, 1),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 10, 200),
        (1 << 63, 64),
    ] {
        refused(&[(address, bytes, 0, 0)], 1, Fault::OutOfArea);
        refused(&[(slot(1), 4, 0, NEXT), (address, bytes, 0, WRITE)], 2, Fault::OutOfArea);
    }
}

#[test]
fn segments_of_a_chain_share_no_slot() {
    refused(&[(slot(1), 64, 0, NEXT), (slot(1), 64, 0, WRITE)], 2, Fault::Overlap);
    refused(&[(slot(1), 8, 0, NEXT), (slot(1) + 56, 8, 0, 0)], 2, Fault::Overlap);
    refused(&[(slot(2), 64, 0, NEXT), (slot(1) + 63, 2, 0, 0)], 2, Fault::Overlap);
}

#[test]
fn lengths_are_limited_in_sum() {
    refused(&[(slot(0), u32::MAX, 0, 0)], 1, Fault::TooLarge);
    refused(&[(slot(0), 1, 0, NEXT), (slot(1), u32::MAX, 0, 0)], 2, Fault::TooLarge);
    refused(&[(slot(0), 200, 0, NEXT), (slot(4), 101, 0, WRITE)], 2, Fault::TooLarge);
}

#[test]
fn chains_end() {
    // A chain through the whole ring that leads on to its own start.
    let circle = [0, 1, 2, 3].map(|number| (slot(number), 1, 0, NEXT));
    refused(&circle, 4, Fault::TooLong);
    // Longer than the device's buffer of three.
    let long = [0, 1, 2, 3].map(|number| (slot(number), 1, 0, if number == 3 { 0 } else { NEXT }));
    refused(&long, 4, Fault::TooLong);
}

#[test]
fn a_chain_does_not_go_on_in_a_descriptor_of_the_device() {
    refused(&[(slot(0), 1, 1, NEXT)], 1, Fault::Torn);
    refused(&[(slot(0), 1, 1, NEXT), (slot(1), 1, 1, NEXT)], 2, Fault::Torn);
}

#[test]
fn the_first_of_several_faults_is_named() {
    refused(&[(slot(0), 16, 0, NEXT | INDIRECT), (0, 16, 99, 0)], 2, Fault::Indirect);
}

#[test]
fn identifiers_are_in_range_and_used_once() {
    refused(&[(slot(0), 1, SIZE, 0)], 1, Fault::BadId);
    refused(&[(slot(0), 1, u16::MAX, 0)], 1, Fault::BadId);

    let memory = memory();
    let view = memory.view();
    let mut device = Device::new(memory.view(), layout(), area(), BYTES_MAX).unwrap();
    let mut buffer = [Segment::default(); SIZE as usize];
    let places = [0, 1, 2].map(|count| after(Place::START, count));
    for place in places {
        put(&view, place, (slot(0), 1, 3, 0), available(place));
    }
    let first = device.take(&mut buffer).unwrap().unwrap().token;
    let bad = BadChain { id: 3, descriptors: 1, fault: Fault::IdInUse };
    assert_eq!(device.take(&mut buffer), Err(TakeError::Bad(bad)));
    device.complete(first, 0).unwrap();
    let third = device.take(&mut buffer).unwrap().unwrap().token;
    device.complete(third, 0).unwrap();
}

#[test]
fn empty_segments_are_left_out_wherever_they_lie() {
    let memory = memory();
    let view = memory.view();
    let mut device = Device::new(memory.view(), layout(), area(), BYTES_MAX).unwrap();
    let mut buffer = [Segment::default(); 1];
    let chain = [(u64::MAX, 0, 0, NEXT), (slot(1), 9, 0, NEXT), (0, 0, 0, NEXT | WRITE), (slot(1), 0, 0, WRITE)];
    for (step, raw) in chain.into_iter().enumerate() {
        put(&view, after(Place::START, step as u16), raw, available(Place::START));
    }
    let chain = device.take(&mut buffer).unwrap().unwrap();
    assert_eq!((chain.readable, chain.writable), (&[Segment::new(slot(1), 9)][..], &[][..]));
    assert_eq!(device.complete(chain.token, 1), Err(CompleteError::TooMuch(take_again())));
    assert_eq!(device.held(), 4);
}

/// A token as the test above must get it back.
fn take_again() -> coracle_virtq::device::Token {
    let memory = memory();
    put(&memory.view(), Place::START, (slot(1), 9, 0, 0), available(Place::START));
    let mut device = Device::new(memory.view(), layout(), area(), BYTES_MAX).unwrap();
    device.take(&mut [Segment::default()]).unwrap().unwrap().token
}

#[test]
fn a_driver_that_offers_without_end_is_served_as_far_as_the_ring_goes() {
    let memory = memory();
    let view = memory.view();
    let mut device = Device::new(memory.view(), layout(), area(), BYTES_MAX).unwrap();
    let mut buffer = [Segment::default(); SIZE as usize];
    let mut tokens = Vec::new();
    for count in 0..3 * SIZE {
        let place = after(Place { wrap: (count / SIZE).is_multiple_of(2), ..Place::START }, count % SIZE);
        put(&view, place, (slot(0), 1, count % SIZE, 0), available(place));
        if let Some(chain) = device.take(&mut buffer).unwrap() {
            tokens.push(chain.token);
        }
        assert!(!device.listen().unwrap());
    }
    assert_eq!((tokens.len(), device.held()), (usize::from(SIZE), SIZE));
    for token in tokens {
        device.complete(token, 0).unwrap();
    }
    device.reset().unwrap();
}

/// A device by hand.
struct ByHand<'m> {
    driver: Driver<PointerMemory<'m>>,
    view: PointerMemory<'m>,
    place: Place,
    buffer: [Segment; SIZE as usize],
}

impl<'m> ByHand<'m> {
    fn new(memory: &'m Owned) -> Self {
        let driver = Driver::new(memory.view(), layout(), BYTES_MAX).unwrap();
        Self { driver, view: memory.view(), place: Place::START, buffer: [Segment::default(); SIZE as usize] }
    }

    fn offer(&mut self) -> u16 {
        self.driver.offer(&[Segment::new(slot(0), 7)], &[Segment::new(slot(1), 9)]).unwrap()
    }

    fn uses(&mut self, id: u16, bytes: u32, flags: u16) {
        put(&self.view, self.place, (0xdead, bytes, id, flags), used(self.place));
        self.place = after(self.place, 2);
    }
}

#[test]
fn lengths_that_the_device_claims_are_checked_and_the_segments_come_back() {
    let memory = memory();
    let mut by_hand = ByHand::new(&memory);
    for (bytes, flags, want) in [
        (9, WRITE, Ok(9)),
        (0, WRITE, Ok(0)),
        (10, WRITE, Err(WroteTooMuch { claimed: 10, writable: 9 })),
        (u32::MAX, WRITE, Err(WroteTooMuch { claimed: u32::MAX, writable: 9 })),
        // Reserved without the flag, and ignored.
        (u32::MAX, 0, Ok(0)),
        (5, WRITE | NEXT | INDIRECT | 0x7f78, Ok(5)),
    ] {
        let id = by_hand.offer();
        by_hand.uses(id, bytes, flags);
        let found = by_hand.driver.collect(&mut by_hand.buffer).unwrap().unwrap();
        assert_eq!(found.written, want);
        assert_eq!(
            (found.readable, found.writable),
            (&[Segment::new(slot(0), 7)][..], &[Segment::new(slot(1), 9)][..])
        );
        assert_eq!(by_hand.driver.free(), SIZE);
    }
}

#[test]
fn an_identifier_that_is_not_outstanding_breaks_the_queue_until_it_is_reset() {
    for forged in [1, 2, 3, SIZE, 0x7fff, u16::MAX] {
        let memory = memory();
        let mut by_hand = ByHand::new(&memory);
        let (first, second) = (by_hand.offer(), by_hand.offer());
        assert_eq!((first, second), (0, 2));
        by_hand.uses(second, 0, 0);
        by_hand.driver.collect(&mut by_hand.buffer).unwrap().unwrap();
        by_hand.uses(forged, 0, 0);
        let ByHand { driver, buffer, .. } = &mut by_hand;
        assert_eq!(driver.collect(buffer), Err(CollectError::NotOutstanding(forged)));
        assert_eq!(driver.collect(buffer), Err(CollectError::Broken));
        assert_eq!(driver.offer(&[Segment::new(slot(0), 1)], &[]), Err(OfferError::Broken));
        let mut back = Vec::new();
        driver.reset(|segment| back.push(segment)).unwrap();
        assert_eq!(back, [Segment::new(slot(0), 7), Segment::new(slot(1), 9)]);
        assert_eq!(driver.free(), SIZE);
        by_hand.place = Place::START;
        let id = by_hand.offer();
        by_hand.uses(id, 1, WRITE);
        assert_eq!(by_hand.driver.collect(&mut by_hand.buffer).unwrap().unwrap().written, Ok(1));
    }
}

#[test]
fn a_chain_that_was_used_twice_comes_back_once() {
    let memory = memory();
    let mut by_hand = ByHand::new(&memory);
    let id = by_hand.offer();
    by_hand.uses(id, 0, 0);
    by_hand.uses(id, 0, 0);
    let ByHand { driver, buffer, .. } = &mut by_hand;
    assert_eq!(driver.collect(&mut buffer[..1]), Err(CollectError::BufferTooShort(2)));
    assert!(driver.collect(buffer).unwrap().is_some());
    assert_eq!(driver.collect(buffer), Err(CollectError::NotOutstanding(id)));
}

#[test]
fn event_structures_that_cannot_be_are_errors() {
    let memory = memory();
    let view = memory.view();
    let mut driver = Driver::new(memory.view(), layout(), BYTES_MAX).unwrap();
    let mut device = Device::new(memory.view(), layout(), area(), BYTES_MAX).unwrap();
    let mut buffer = [Segment::default(); SIZE as usize];
    for (place, flags, want) in [
        (0, 3, Err(BadEvent::Flags(3))),
        (0, 4, Err(BadEvent::Flags(4))),
        (0, u16::MAX, Err(BadEvent::Flags(u16::MAX))),
        (SIZE, 2, Err(BadEvent::Place(SIZE))),
        (u16::MAX, 2, Err(BadEvent::Place(0x7fff))),
        // What belongs to other flags is not looked at.
        (u16::MAX, 1, Ok(false)),
        (u16::MAX, 0, Ok(true)),
    ] {
        for event in [layout().device_event(), layout().driver_event()] {
            view.store_u16_release(event, place).unwrap();
            view.store_u16_release(event + 2, flags).unwrap();
        }
        driver.offer(&[Segment::new(slot(0), 1)], &[]).unwrap();
        assert_eq!(driver.must_notify(), want);
        assert_eq!(driver.must_notify(), Ok(false), "nothing new");
        let chain = device.take(&mut buffer).unwrap().unwrap();
        device.complete(chain.token, 0).unwrap();
        assert_eq!(device.must_notify(), want);
        driver.collect(&mut buffer).unwrap().unwrap();
    }
}

/// Memory that goes away at a certain access and comes back when told.
struct Failing<'m> {
    inner: PointerMemory<'m>,
    left: &'m Cell<u32>,
}

impl Failing<'_> {
    fn access(&self, address: u64) -> Result<(), OutOfBounds> {
        self.left.set(self.left.get().checked_sub(1).ok_or(OutOfBounds { address, bytes: 0 })?);
        Ok(())
    }
}

impl Memory for Failing<'_> {
    fn check(&self, address: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.access(address)?;
        self.inner.check(address, bytes)
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.access(address)?;
        self.inner.read(address, out)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.access(address)?;
        self.inner.write(address, bytes)
    }

    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        self.access(address)?;
        self.inner.load_u16_acquire(address)
    }

    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        self.access(address)?;
        self.inner.store_u16_release(address, value)
    }
}

#[test]
fn memory_that_goes_away_costs_nothing_but_the_operation() {
    let config = Config::contiguous(BASE, SIZE, SLOT, SLOTS).unwrap();
    let mut failures = 0;
    for fail_at in 0..60 {
        let memory = memory();
        let left = Cell::new(u32::MAX);
        let failing = || Failing { inner: memory.view(), left: &left };
        let mut sender = Sender::new(failing(), config).unwrap();
        let mut receiver = Receiver::new(failing(), config).unwrap();
        left.set(fail_at);
        let free = sender.pool().free_slots();
        let mut sent = sender.send(&[&[1; 100], &[2; 60]], 100);
        if sent.is_err() {
            failures += 1;
            assert_eq!((sender.pool().free_slots(), sender.driver().free()), (free, SIZE));
            left.set(u32::MAX);
            assert!(receiver.next().unwrap().is_none(), "nothing was sent");
            sent = sender.send(&[&[1; 10]], 100);
        }
        sent.unwrap();
        let received = receiver.next().map(|message| drop(message.unwrap()));
        if received.is_err() {
            failures += 1;
            left.set(u32::MAX);
            drop(receiver.next().unwrap().unwrap());
        }
        let collected = sender.collect().map(|reply| reply.is_some());
        if collected != Ok(true) {
            failures += 1;
        }
        left.set(u32::MAX);
        if sender.collect().unwrap().is_none() && collected != Ok(true) {
            // The answer was lost with the memory.
            sender.reset().unwrap();
            receiver.reset().unwrap();
        }
        assert_eq!((sender.pool().free_slots(), sender.driver().free()), (free, SIZE));
    }
    assert!(failures > 8, "{failures}");
}

#[test]
fn a_shorter_chain_after_a_failed_one_shows_nothing_of_it() {
    let memory = memory();
    let left = Cell::new(u32::MAX);
    let mut driver = Driver::new(Failing { inner: memory.view(), left: &left }, layout(), BYTES_MAX).unwrap();
    let mut device = Device::new(memory.view(), layout(), area(), BYTES_MAX).unwrap();
    let mut buffer = [Segment::default(); SIZE as usize];
    let segments = [0, 1, 2].map(|number| Segment::new(slot(number), 1));
    for _ in 0..2 * SIZE {
        // Written are the head and one more; then memory is gone for one access.
        left.set(2);
        let memory_gone = driver.offer(&segments, &[]);
        assert!(matches!(memory_gone, Err(OfferError::Memory(_))));
        left.set(u32::MAX);
        assert!(driver.offer(&segments[..1], &[]).is_ok());
        let token = device.take(&mut buffer).unwrap().unwrap().token;
        device.complete(token, 0).unwrap();
        driver.collect(&mut buffer).unwrap().unwrap();
    }
}

/// Memory in which a peer changes something at each access, before or after it, as a script says.
struct Chaos<'m> {
    inner: PointerMemory<'m>,
    script: &'m RefCell<Vec<(u8, u16, u8)>>,
}

impl Chaos<'_> {
    fn meddle(&self) {
        let Some((often, at, value)) = self.script.borrow_mut().pop() else { return };
        if often < 90 {
            // Whole words: Miri does not take a byte of an atomic that is written as a byte.
            let at = BASE + u64::from(at) % Layout::bytes(SIZE) / 2 * 2;
            let word = self.inner.load_u16_acquire(at).unwrap();
            let word = if often < 30 { u16::from(value) * 0x101 } else { word ^ 1 << (value % 16) };
            self.inner.store_u16_release(at, word).unwrap();
        }
    }
}

impl Memory for Chaos<'_> {
    fn check(&self, address: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.inner.check(address, bytes)
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.meddle();
        self.inner.read(address, out)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.inner.write(address, bytes)?;
        self.meddle();
        Ok(())
    }

    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        self.meddle();
        self.inner.load_u16_acquire(address)
    }

    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        self.inner.store_u16_release(address, value)?;
        self.meddle();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 1500 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_changes_between_two_looks_each_side_keeps_its_word(
        script in vec(any::<(u8, u16, u8)>(), 0..400),
        rounds in vec((0..200_usize, 0..200_u32), 1..40),
    ) {
        let memory = memory();
        let script = RefCell::new(script);
        let config = Config { bytes_max: BYTES_MAX, ..Config::contiguous(BASE, SIZE, SLOT, SLOTS).unwrap() };
        let chaos = || Chaos { inner: memory.view(), script: &script };
        let mut sender = Sender::new(chaos(), config).unwrap();
        let mut receiver = Receiver::new(chaos(), config).unwrap();
        for (bytes, room) in rounds {
            let _ = sender.send(&[&vec![7; bytes]], room);
            let _ = sender.driver().must_notify();
            for _ in 0..2 {
                if let Ok(Some(mut message)) = receiver.next() {
                    let bytes = message.bytes();
                    prop_assert!(bytes + u64::from(message.reply_bytes_max()) <= u64::from(BYTES_MAX));
                    let mut slots = [false; SLOTS as usize];
                    for segment in message.segments() {
                        for slot in config.area.slots_of(*segment).unwrap() {
                            prop_assert!(!std::mem::replace(&mut slots[slot], true));
                        }
                    }
                    message.read(0, &mut vec![0; bytes as usize]).unwrap();
                    let reply = vec![1; message.reply_bytes_max() as usize];
                    message.reply(&[&reply]).unwrap();
                }
            }
            let _ = receiver.device().must_notify();
            while let Ok(Some(reply)) = sender.collect() {
                if let Ok(bytes) = reply.bytes() {
                    reply.read(0, &mut vec![0; bytes as usize]).unwrap();
                }
            }
        }
        script.borrow_mut().clear();
        sender.reset().unwrap();
        receiver.reset().unwrap();
        prop_assert_eq!(sender.pool().free_slots(), usize::from(SLOTS));
        for round in 0..3 * SIZE as u8 {
            sender.send(&[&[round; 100]], 10).unwrap();
            let mut message = receiver.next().unwrap().unwrap();
            message.reply(&[&[round; 10]]).unwrap();
            drop(message);
            prop_assert_eq!(sender.collect().unwrap().unwrap().bytes(), Ok(10));
        }
    }
}
