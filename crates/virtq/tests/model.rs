//! Random operations of a driver and a device against a plain queue, and messages over a link against what was sent.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, VecDeque};

use coracle_virtq::device::{Device, Token};
use coracle_virtq::driver::{Driver, OfferError};
use coracle_virtq::link::{Config, Receiver, SendError, Sender};
use coracle_virtq::memory::Segment;
use coracle_virtq::pointer::Owned;
use coracle_virtq::pool::{AllocError, Area, FreeError, SlotPool};
use coracle_virtq::ring::Layout;
use proptest::collection::vec;
use proptest::prelude::*;

const BASE: u64 = 0x4_0000;
const AREA: u64 = BASE + 4096;
const SLOT: u32 = 64;
const SLOTS: u16 = 32;

fn cases(native: u32) -> ProptestConfig {
    // Under Miri each step takes long, and files are out of reach.
    let cases = if cfg!(miri) { 1 } else { native };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[derive(Clone, Debug)]
enum Step {
    Offer {
        readable: u8,
        writable: u8,
    },
    Take,
    /// Completes one of the chains that are held, in any order.
    Complete {
        which: u8,
        written: u8,
    },
    Collect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..10_u8, 0..4_u8).prop_map(|(readable, writable)| Step::Offer { readable, writable }),
        3 => Just(Step::Take),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(which, written)| Step::Complete { which, written }),
        3 => Just(Step::Collect),
    ]
}

/// What the model knows of a chain.
#[derive(Clone, Debug)]
struct Known {
    id: u16,
    readable: Vec<Segment>,
    writable: Vec<Segment>,
    written: u32,
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn both_sides_behave_as_three_plain_queues(size in 1..9_u16, steps in vec(step(), 1..200)) {
        let memory = Owned::new(BASE, 16 << 10);
        let layout = Layout::contiguous(BASE, size).unwrap();
        let area = Area::new(AREA, SLOT, SLOTS).unwrap();
        let mut driver = Driver::new(memory.view(), layout, u32::MAX).unwrap();
        let mut device = Device::new(memory.view(), layout, area, u32::MAX).unwrap();
        let mut buffer = vec![Segment::default(); size.into()];

        let mut available = VecDeque::<Known>::new();
        let mut held = Vec::<(Token, Known)>::new();
        let mut used = VecDeque::<Known>::new();
        let mut free = size;
        let mut number = 0_u64;
        for step in steps {
            match step {
                Step::Offer { readable, writable } => {
                    let count = u16::from(readable + writable);
                    let mut slot = 0;
                    let mut segments = |count: u8| -> Vec<Segment> {
                        (0..count).map(|_| {
                            number += 1;
                            slot += 1;
                            Segment::new(AREA + u64::from(SLOT) * (slot - 1), 1 + (number % u64::from(SLOT)) as u32)
                        }).collect()
                    };
                    let (readable, writable) = (segments(readable), segments(writable));
                    match driver.offer(&readable, &writable) {
                        Ok(id) => {
                            prop_assert!(count <= free && id < size);
                            free -= count;
                            available.push_back(Known { id, readable, writable, written: 0 });
                        }
                        Err(OfferError::Empty) => prop_assert_eq!(count, 0),
                        Err(OfferError::TooLong) => prop_assert!(count > size),
                        Err(OfferError::Full) => prop_assert!(count > free && count <= size),
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                }
                Step::Take => match (device.take(&mut buffer).unwrap(), available.pop_front()) {
                    (None, None) => {}
                    (Some(chain), Some(known)) => {
                        prop_assert_eq!(chain.token.id(), known.id);
                        prop_assert_eq!(chain.readable, &known.readable[..]);
                        prop_assert_eq!(chain.writable, &known.writable[..]);
                        held.push((chain.token, known));
                    }
                    (found, known) => prop_assert!(false, "{found:?} for {known:?}"),
                },
                Step::Complete { which, written } => if !held.is_empty() {
                    let (token, mut known) = held.swap_remove(usize::from(which) % held.len());
                    known.written = u32::from(written).min(token.writable_bytes());
                    device.complete(token, known.written).unwrap();
                    used.push_back(known);
                },
                Step::Collect => match (driver.collect(&mut buffer).unwrap(), used.pop_front()) {
                    (None, None) => {}
                    (Some(found), Some(known)) => {
                        free += found.readable.len() as u16 + found.writable.len() as u16;
                        prop_assert_eq!((found.id, found.written), (known.id, Ok(known.written)));
                        prop_assert_eq!(found.readable, &known.readable[..]);
                        prop_assert_eq!(found.writable, &known.writable[..]);
                    }
                    (found, known) => prop_assert!(false, "{found:?} for {known:?}"),
                },
            }
            prop_assert_eq!(driver.free(), free);
            let in_held: usize = held.iter().map(|(_, known)| known.readable.len() + known.writable.len()).sum();
            prop_assert_eq!(usize::from(device.held()), in_held);
        }
    }

    #[test]
    fn a_link_delivers_what_was_sent_and_leaks_nothing(
        size in 1..9_u16,
        messages in vec((vec(vec(any::<u8>(), 0..150), 0..4), 0..300_u32, 0..350_usize, any::<bool>()), 1..60),
    ) {
        let memory = Owned::new(BASE, 16 << 10);
        let config = Config::contiguous(BASE, size, SLOT, SLOTS).unwrap();
        let mut sender = Sender::new(memory.view(), config).unwrap();
        let mut receiver = Receiver::new(memory.view(), config).unwrap();
        let mut unanswered = VecDeque::new();
        let mut answered = VecDeque::new();
        let collect_one = |sender: &mut Sender<_>, answered: &mut VecDeque<(u16, Vec<u8>)>| {
            let (id, reply) = answered.pop_front().unwrap();
            let found = sender.collect().unwrap().unwrap();
            assert_eq!((found.id(), found.bytes().unwrap() as usize), (id, reply.len()));
            let mut bytes = vec![0; reply.len()];
            found.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, reply);
            assert!(found.read(1, &mut bytes).is_err() || bytes.is_empty() && !reply.is_empty());
        };
        for (parts, room, reply, now) in messages {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let free = sender.pool().free_slots();
            match sender.send(&parts, room) {
                Ok(id) => unanswered.push_back((id, parts.concat(), room, reply)),
                Err(SendError::Offer(OfferError::Empty)) => prop_assert_eq!((parts.concat().len(), room), (0, 0)),
                Err(SendError::Offer(OfferError::Full | OfferError::TooLong) | SendError::Alloc(_)) => {
                    prop_assert_eq!(sender.pool().free_slots(), free);
                }
                Err(error) => prop_assert!(false, "{error:?}"),
            }
            if now || sender.driver().free() == 0 {
                while let Some((id, sent, room, reply)) = unanswered.pop_front() {
                    let mut message = receiver.next().unwrap().unwrap();
                    prop_assert_eq!(message.bytes(), sent.len() as u64);
                    prop_assert_eq!(message.reply_bytes_max(), room);
                    let mut bytes = vec![0; sent.len()];
                    message.read(0, &mut bytes).unwrap();
                    prop_assert_eq!(&bytes, &sent);
                    let reply: Vec<u8> = (0..reply).map(|at| at as u8 ^ id as u8).collect();
                    let fits = reply.len() <= room as usize;
                    prop_assert_eq!(message.reply(&[&reply]).is_ok(), fits);
                    prop_assert!(message.reply(&[&reply]).is_err());
                    drop(message);
                    answered.push_back((id, if fits { reply } else { Vec::new() }));
                }
                prop_assert!(receiver.next().unwrap().is_none());
            }
            if now {
                while !answered.is_empty() {
                    collect_one(&mut sender, &mut answered);
                }
                prop_assert!(sender.collect().unwrap().is_none());
            }
        }
        sender.reset().unwrap();
        receiver.reset().unwrap();
        prop_assert_eq!(sender.pool().free_slots(), usize::from(SLOTS));
        prop_assert_eq!(sender.driver().free(), size);
    }

    #[test]
    fn a_pool_gives_each_slot_to_one_owner(steps in vec((0..4_u8, any::<u16>()), 1..300)) {
        let area = Area::new(AREA, SLOT, SLOTS).unwrap();
        let mut pool = SlotPool::new(area);
        let mut owned = BTreeMap::<u64, ()>::new();
        for (what, number) in steps {
            match what {
                0 => match pool.alloc() {
                    Ok(address) => prop_assert!(owned.insert(address, ()).is_none()),
                    Err(error) => {
                        prop_assert_eq!(error, AllocError::Exhausted { wanted: 1, free: 0 });
                        prop_assert_eq!(owned.len(), usize::from(SLOTS));
                    }
                },
                1 => {
                    let mut segments = [Segment::default(); 6];
                    let bytes = u32::from(number % 600);
                    let before = pool.free_slots();
                    match pool.alloc_payload(bytes, &mut segments) {
                        Ok(count) => {
                            prop_assert_eq!(segments[..count].iter().map(|segment| segment.bytes).sum::<u32>(), bytes);
                            for slot in segments[..count].iter().flat_map(|segment| area.slots_of(*segment).unwrap()) {
                                let address = AREA + slot as u64 * u64::from(SLOT);
                                prop_assert!(owned.insert(address, ()).is_none());
                            }
                        }
                        Err(AllocError::Exhausted { wanted, free }) => prop_assert!(wanted > free && free == before),
                        Err(AllocError::TooManySegments) => prop_assert_eq!(pool.free_slots(), before),
                    }
                }
                2 => if let Some((&address, ())) = owned.iter().nth(usize::from(number) % owned.len().max(1)) {
                    prop_assert_eq!(pool.free(address), Ok(()));
                    owned.remove(&address);
                },
                _ => {
                    let address = AREA - 64 + u64::from(number % (SLOTS + 2)) * 32;
                    if !owned.contains_key(&address) {
                        let inside = address >= AREA && address < AREA + area.bytes() && address.is_multiple_of(64);
                        let want = if inside { FreeError::AlreadyFree(address) } else { FreeError::Foreign(address) };
                        prop_assert_eq!(pool.free(address), Err(want));
                    }
                }
            }
            prop_assert_eq!(pool.free_slots() + owned.len(), usize::from(SLOTS));
        }
    }

    #[test]
    fn a_side_is_notified_exactly_when_it_asked(size in 1..6_u16, steps in vec((0..4_u8, 0..8_u16), 1..100)) {
        let memory = Owned::new(BASE, 16 << 10);
        let layout = Layout::contiguous(BASE, size).unwrap();
        let area = Area::new(AREA, SLOT, SLOTS).unwrap();
        let mut driver = Driver::new(memory.view(), layout, u32::MAX).unwrap();
        let mut device = Device::new(memory.view(), layout, area, u32::MAX).unwrap();
        let mut buffer = [Segment::default(); 8];
        // What the device asked for: each change, none, or the one that brings the total of offers to a number.
        let (mut always, mut total) = (true, None);
        let (mut offered, mut taken, mut told) = (0_u64, 0_u64, 0_u64);
        for (what, count) in steps {
            match what {
                0 => {
                    if driver.free() == 0 {
                        while let Some(chain) = device.take(&mut buffer).unwrap() {
                            taken += 1;
                            device.complete(chain.token, 0).unwrap();
                        }
                        let mut collected = [Segment::default(); 8];
                        while driver.collect(&mut collected).unwrap().is_some() {}
                    }
                    driver.offer(&[Segment::new(AREA, 1)], &[]).unwrap();
                    offered += 1;
                }
                1 => {
                    let want = offered > told && (always || total.is_some_and(|total| told < total && total <= offered));
                    prop_assert_eq!(driver.must_notify().unwrap(), want);
                    told = offered;
                }
                2 if count == 0 => {
                    device.mute().unwrap();
                    (always, total) = (false, None);
                }
                2 => {
                    prop_assert_eq!(device.listen().unwrap(), offered > taken);
                    (always, total) = (true, None);
                }
                _ => {
                    // An old place comes round again after two laps; tell first, so that none is passed twice.
                    driver.must_notify().unwrap();
                    told = offered;
                    prop_assert_eq!(device.listen_after(count).unwrap(), offered > taken);
                    (always, total) = (false, Some(taken + u64::from(count.clamp(1, size))));
                }
            }
            if total.is_some_and(|total| total <= told) && what != 3 {
                // Passed: what was asked for is done. Ask for nothing, as an owner would.
                device.mute().unwrap();
                total = None;
            }
        }
    }
}
