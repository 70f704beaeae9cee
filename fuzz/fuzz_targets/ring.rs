//! A peer of a virtqueue that writes what it likes, wherever and whenever it likes: between the operations of the
//! other side, and between any two accesses of one.
//!
//! Each step is a byte that says what it is, then what it needs. Both sides are real and both are lied to. Whatever
//! is written, a receiver sees only segments of the payload area, each slot once and within the limits; a sender gets
//! its slots back, each once; and when both sides have started again, messages pass as on the first day.
#![no_main]

use std::cell::RefCell;

use coracle_virtq::device::TakeError;
use coracle_virtq::driver::CollectError;
use coracle_virtq::link::{Config, Receiver, Sender};
use coracle_virtq::memory::{Memory, OutOfBounds};
use coracle_virtq::pointer::{Owned, PointerMemory};
use coracle_virtq::ring::Layout;
use libfuzzer_sys::fuzz_target;

const BASE: u64 = 0x4_0000;
const SLOT: u32 = 64;
const SLOTS: u16 = 16;
const BYTES_MAX: u32 = 600;

struct Script<'b> {
    bytes: &'b [u8],
    /// Writes that wait for an access: how many accesses to let pass, where, what.
    pending: Vec<(u8, u64, u16)>,
}

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
}

/// Memory in which the script writes between accesses.
struct Shared<'m> {
    inner: PointerMemory<'m>,
    script: &'m RefCell<Script<'m>>,
}

impl Shared<'_> {
    fn access(&self) {
        let mut script = self.script.borrow_mut();
        let Some((wait, at, value)) = script.pending.pop() else { return };
        match wait.checked_sub(1) {
            Some(wait) => script.pending.push((wait, at, value)),
            None => self.inner.store_u16_release(at, value).unwrap(),
        }
    }
}

impl Memory for Shared<'_> {
    fn check(&self, address: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.inner.check(address, bytes)
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.access();
        self.inner.read(address, out)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.access();
        self.inner.write(address, bytes)
    }

    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        self.access();
        self.inner.load_u16_acquire(address)
    }

    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        self.access();
        self.inner.store_u16_release(address, value)
    }
}

fn receive(receiver: &mut Receiver<Shared<'_>>, config: &Config, reply: usize) {
    let Ok(Some(mut message)) = receiver.next().map_err(|error| assert!(matches!(error, TakeError::Bad(_)))) else {
        return;
    };
    let room = message.reply_bytes_max();
    assert!(message.bytes() + u64::from(room) <= u64::from(config.bytes_max));
    let mut seen = [false; SLOTS as usize];
    for segment in message.segments() {
        for slot in config.area.slots_of(*segment).expect("it lies in the area") {
            assert!(!std::mem::replace(&mut seen[slot], true), "a slot twice");
        }
    }
    message.read(0, &mut vec![0; message.bytes() as usize]).unwrap();
    assert_eq!(message.reply(&[&vec![7; reply]]).is_ok(), reply <= room as usize);
}

fn collect(sender: &mut Sender<Shared<'_>>) {
    let free = sender.pool().free_slots();
    let collected = sender.collect().map(|reply| {
        reply.map(|reply| {
            if let Ok(bytes) = reply.bytes() {
                reply.read(0, &mut vec![0; bytes as usize]).unwrap();
            }
        })
    });
    match collected {
        Ok(Some(())) => assert!(sender.pool().free_slots() > free),
        Ok(None) => {}
        Err(error) => assert!(matches!(error, CollectError::NotOutstanding(_) | CollectError::Broken)),
    }
}

fn restart(sender: &mut Sender<Shared<'_>>, receiver: &mut Receiver<Shared<'_>>, script: &RefCell<Script<'_>>) {
    script.borrow_mut().pending.clear();
    sender.reset().unwrap();
    receiver.reset().unwrap();
    assert_eq!(sender.pool().free_slots(), usize::from(SLOTS));
    let driver = sender.driver();
    assert_eq!(driver.free(), driver.layout().size());
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > 4096 {
        return;
    }
    let script = RefCell::new(Script { bytes, pending: Vec::new() });
    let size = u16::from(script.borrow_mut().byte() % 9) + 2;
    let memory = Owned::new(BASE, 16 << 10);
    let config = Config { bytes_max: BYTES_MAX, ..Config::contiguous(BASE, size, SLOT, SLOTS).unwrap() };
    let side = || Shared { inner: memory.view(), script: &script };
    let mut sender = Sender::new(side(), config).unwrap();
    let mut receiver = Receiver::new(side(), config).unwrap();
    while !script.borrow().bytes.is_empty() {
        let mut now = script.borrow_mut();
        match now.byte() % 12 {
            0 | 1 => {
                let (bytes, room) = (usize::from(now.word() % 700), u32::from(now.byte()));
                drop(now);
                let free = (sender.pool().free_slots(), sender.driver().free());
                if sender.send(&[&vec![1; bytes]], room).is_err() {
                    assert_eq!((sender.pool().free_slots(), sender.driver().free()), free);
                }
            }
            2 | 3 => {
                let reply = now.byte().into();
                drop(now);
                receive(&mut receiver, &config, reply);
            }
            4 | 5 => {
                drop(now);
                collect(&mut sender);
            }
            6 => {
                drop(now);
                let _ = (sender.driver().must_notify(), receiver.device().must_notify());
            }
            7 => {
                let (what, count) = (now.byte(), now.word());
                drop(now);
                match what % 5 {
                    0 => sender.driver().mute().unwrap(),
                    1 => drop(sender.driver().listen_after(count).unwrap()),
                    2 => drop(receiver.device().listen_after(count).unwrap()),
                    3 => drop(receiver.device().listen().unwrap()),
                    _ => receiver.device().mute().unwrap(),
                }
            }
            // A whole descriptor, true or nearly so.
            8 => {
                let (index, slot, bytes) = (u64::from(now.byte()) % u64::from(size), now.byte(), now.byte());
                let (id, flags) = (now.byte(), now.word());
                drop(now);
                let at = BASE + index * 16;
                let view = memory.view();
                let address = config.area.base().wrapping_add((slot as i8 as i64 as u64).wrapping_mul(u64::from(SLOT)));
                view.write(at, &address.to_le_bytes()).unwrap();
                view.write(at + 8, &u32::from(bytes).to_le_bytes()).unwrap();
                view.write(at + 12, &u16::from(id).to_le_bytes()).unwrap();
                view.store_u16_release(at + 14, flags).unwrap();
            }
            // Any word of the queue, now or at an access to come.
            9 => {
                let (at, value) = (now.word(), now.word());
                let at = BASE + u64::from(at) % Layout::bytes(size) / 2 * 2;
                memory.view().store_u16_release(at, value).unwrap();
            }
            10 => {
                let (wait, at, value) = (now.byte() % 32, now.word(), now.word());
                let at = BASE + u64::from(at) % Layout::bytes(size) / 2 * 2;
                now.pending.push((wait, at, value));
            }
            _ => {
                drop(now);
                restart(&mut sender, &mut receiver, &script);
            }
        }
    }
    restart(&mut sender, &mut receiver, &script);
    for round in 0..2 * size as u8 {
        sender.send(&[&[round; 30]], 20).unwrap();
        let mut message = receiver.next().unwrap().unwrap();
        let mut bytes = [0; 30];
        message.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [round; 30]);
        message.reply(&[&[!round; 20]]).unwrap();
        drop(message);
        let reply = sender.collect().unwrap().unwrap();
        let mut bytes = [0; 20];
        reply.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [!round; 20]);
    }
});
