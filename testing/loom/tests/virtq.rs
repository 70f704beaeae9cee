//! Every interleaving, within a bound of preemptions, of a driver and a device on two threads: what is sent arrives
//! whole, what is returned arrives whole, and a side that sleeps is woken.
//!
//! `ci/loom` runs it. The memory is one in which loom sees
//! each access: flags and events are its atomics, all else its cells, in which two accesses that no order forbids to
//! meet are an error.
#![allow(unexpected_cfgs, reason = "loom's own, which Cargo does not know")]
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;

use coracle_virtq::device::Device;
use coracle_virtq::driver::Driver;
use coracle_virtq::memory::{Memory, OutOfBounds, Segment};
use coracle_virtq::pool::Area;
use coracle_virtq::ring::Layout;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU16, Ordering, fence};
use loom::sync::{Arc, Notify};

const AREA: u64 = 1024;
const SLOT: u64 = 8;
const SLOTS: usize = 4;

struct Shared {
    size: u16,
    bodies: Vec<UnsafeCell<[u8; 14]>>,
    /// The flags of each descriptor, then the four words of the two event structures.
    words: Vec<AtomicU16>,
    slots: Vec<UnsafeCell<[u8; SLOT as usize]>>,
    to_device: Notify,
    to_driver: Notify,
}

// SAFETY: loom's cells and atomics find the accesses that race; that is what they are for.
#[allow(unsafe_code)]
unsafe impl Sync for Shared {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Send for Shared {}

/// Where an address leads.
enum Place {
    Descriptor(usize, Range<usize>),
    Slot(usize, Range<usize>),
}

impl Shared {
    fn new(size: u16) -> Arc<Self> {
        Arc::new(Self {
            size,
            bodies: (0..size).map(|_| UnsafeCell::new([0; 14])).collect(),
            words: (0..size + 4).map(|_| AtomicU16::new(0)).collect(),
            slots: (0..SLOTS).map(|_| UnsafeCell::new([0; SLOT as usize])).collect(),
            to_device: Notify::new(),
            to_driver: Notify::new(),
        })
    }

    fn layout(&self) -> Layout {
        Layout::contiguous(0, self.size).unwrap()
    }

    fn place(&self, address: u64, bytes: usize) -> Place {
        let unit = |offset: u64, unit: u64| {
            let start = (offset % unit) as usize;
            ((offset / unit) as usize, start..start + bytes)
        };
        if address >= AREA {
            let (slot, range) = unit(address - AREA, SLOT);
            Place::Slot(slot, range)
        } else {
            let (descriptor, range) = unit(address, 16);
            Place::Descriptor(descriptor, range)
        }
    }

    fn word(&self, address: u64) -> &AtomicU16 {
        let events = u64::from(self.size) * 16;
        if address >= events {
            &self.words[usize::from(self.size) + ((address - events) / 2) as usize]
        } else {
            assert_eq!(address % 16, 14);
            &self.words[(address / 16) as usize]
        }
    }
}

#[derive(Clone)]
struct View(Arc<Shared>);

impl Memory for View {
    fn check(&self, _: u64, _: u64) -> Result<(), OutOfBounds> {
        Ok(())
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        match self.0.place(address, out.len()) {
            Place::Slot(slot, range) => {
                // SAFETY: loom checks that nobody writes meanwhile.
                #[allow(unsafe_code)]
                self.0.slots[slot].with(|bytes| out.copy_from_slice(unsafe { &(&*bytes)[range] }));
            }
            Place::Descriptor(descriptor, range) => {
                let body = range.start..range.end.min(14);
                let (head, flags) = out.split_at_mut(body.len());
                // SAFETY: loom checks that nobody writes meanwhile.
                #[allow(unsafe_code)]
                self.0.bodies[descriptor].with(|bytes| head.copy_from_slice(unsafe { &(&*bytes)[body] }));
                if !flags.is_empty() {
                    flags.copy_from_slice(&self.0.words[descriptor].load(Ordering::Relaxed).to_le_bytes());
                }
            }
        }
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        match self.0.place(address, bytes.len()) {
            Place::Slot(slot, range) => {
                // SAFETY: loom checks that nobody reads or writes meanwhile.
                #[allow(unsafe_code)]
                self.0.slots[slot].with_mut(|to| unsafe { (&mut *to)[range].copy_from_slice(bytes) });
            }
            Place::Descriptor(descriptor, range) => {
                let body = range.start..range.end.min(14);
                let (head, flags) = bytes.split_at(body.len());
                // SAFETY: loom checks that nobody reads or writes meanwhile.
                #[allow(unsafe_code)]
                self.0.bodies[descriptor].with_mut(|to| unsafe { (&mut *to)[body].copy_from_slice(head) });
                if let Ok(flags) = flags.try_into() {
                    self.0.words[descriptor].store(u16::from_le_bytes(flags), Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        Ok(self.0.word(address).load(Ordering::Acquire))
    }

    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        self.0.word(address).store(value, Ordering::Release);
        Ok(())
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[derive(Clone, Copy)]
enum Wake {
    Each,
    AtPlace,
}

/// Sends `messages` messages of `1 + 1` segments through a ring of `size`, up to `ahead` at once; the device answers
/// each with what it got and one. Both sides sleep when there is nothing to do.
fn exchange(size: u16, messages: u8, ahead: u8, wake: Wake, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let shared = Shared::new(size);
        let layout = shared.layout();
        let mut driver = Driver::new(View(shared.clone()), layout, 64).unwrap();
        let area = Area::new(AREA, SLOT as u32, SLOTS as u16).unwrap();
        let mut device = Device::new(View(shared.clone()), layout, area, 64).unwrap();
        let theirs = shared.clone();
        let thread = loom::thread::spawn(move || {
            let mut buffer = [Segment::default(); 4];
            let mut answered = 0;
            while answered < messages {
                let Some(chain) = device.take(&mut buffer).unwrap() else {
                    let found = match wake {
                        Wake::Each => device.listen(),
                        Wake::AtPlace => device.listen_after(1),
                    };
                    if !found.unwrap() {
                        theirs.to_device.wait();
                    }
                    continue;
                };
                let mut byte = [0];
                device.memory().read(chain.readable[0].address, &mut byte).unwrap();
                device.memory().write(chain.writable[0].address, &[byte[0] + 1]).unwrap();
                device.complete(chain.token, 1).unwrap();
                answered += 1;
                if device.must_notify().unwrap() {
                    theirs.to_driver.notify();
                }
            }
        });
        let mut buffer = [Segment::default(); 4];
        let (mut sent, mut got) = (0, 0);
        while got < messages {
            if sent < messages && sent - got < ahead && driver.free() >= 2 {
                let slot = AREA + u64::from(sent % 2) * 2 * SLOT;
                driver.memory().write(slot, &[10 * sent]).unwrap();
                driver.offer(&[Segment::new(slot, 1)], &[Segment::new(slot + SLOT, 1)]).unwrap();
                sent += 1;
                if driver.must_notify().unwrap() {
                    shared.to_device.notify();
                }
                continue;
            }
            let Some(used) = driver.collect(&mut buffer).unwrap() else {
                let found = match wake {
                    Wake::Each => driver.listen(),
                    Wake::AtPlace => driver.listen_after(1),
                };
                if !found.unwrap() {
                    shared.to_driver.wait();
                }
                continue;
            };
            assert_eq!(used.written, Ok(1));
            let mut byte = [0];
            driver.memory().read(used.writable[0].address, &mut byte).unwrap();
            assert_eq!(byte[0], 10 * got + 1);
            got += 1;
        }
        thread.join().unwrap();
    });
}

#[test]
fn one_at_a_time_woken_each_time() {
    exchange(2, 3, 1, Wake::Each, 3);
}

#[test]
fn one_at_a_time_woken_at_a_place() {
    exchange(2, 3, 1, Wake::AtPlace, 3);
}

#[test]
fn two_at_once_in_a_ring_that_wraps_inside_a_chain() {
    exchange(3, 3, 2, Wake::Each, 2);
    exchange(5, 3, 2, Wake::AtPlace, 2);
}
