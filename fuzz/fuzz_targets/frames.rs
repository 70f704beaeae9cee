//! A guest that puts anything into the queues: messages, descriptors, events, log records, and that stops as it likes. It
//! plays against the real host side.
//!
//! Each step is a byte that says what it is, then what it needs; when the bytes end, the processor shuts down. Whatever
//! the guest does, each call must end with an answer or an error of the right kind, and a sandbox that was stopped must
//! refuse the next one.
#![no_main]

use coracle::fake::{Fake, FakeCpu, FakeGuest, Segment, Wire, message};
use coracle::{Error, ErrorKind, Sandbox, Status};
use coracle_abi::boot::BootInfo;
use coracle_abi::message::{Header, Kind};
use coracle_abi::{map, queue, signature};
use coracle_vm::{Exception, Exit};
use libfuzzer_sys::fuzz_target;

const GO: &str = "go(bytes) -> bytes";
const TWICE: &str = "twice(bytes) -> bytes";

struct Script {
    bytes: Vec<u8>,
    at: usize,
    last: u32,
}

impl Script {
    fn byte(&mut self) -> u8 {
        self.at += 1;
        self.bytes.get(self.at - 1).copied().unwrap_or(0)
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    fn some(&mut self) -> Vec<u8> {
        let count = self.byte();
        (0..count).map(|_| self.byte()).collect()
    }

    fn run(&mut self, cpu: &mut FakeCpu<'_>) -> Exit {
        let mut queues = [0; 8];
        assert!(cpu.read(map::BOOT_PAGE + std::mem::offset_of!(BootInfo, queues) as u64, &mut queues));
        let queues = u64::from_le_bytes(queues);
        let mut wire = Wire::open(cpu).expect("the host made a boot page");
        let mut calls = Vec::new();
        // The guest may have written over both: then it finds anything, and gives up after a while.
        while calls.len() < 64 && wire.next_call().is_some() {
            calls.push(wire.current());
        }
        (0..8).take_while(|_| wire.next_reply().is_some()).for_each(drop);
        // Of the call that is being served, as far as a script can know it.
        let current = calls.first().copied().unwrap_or_else(|| Header { correlation: self.last, ..wire.current() });
        self.last = current.correlation;
        while self.at < self.bytes.len() {
            match self.byte() % 18 {
                0 => {
                    wire.send(&message(Header::new(Kind::Ready), None, &signature::hash(GO).to_le_bytes()));
                    return wire.ring();
                }
                // A message that belongs to the call, true or nearly so.
                kind @ (1..=3) => {
                    let kind = [Kind::Reply, Kind::Error, Kind::Panic][usize::from(kind - 1)];
                    let payload = self.some();
                    wire.send(&message(Header { kind: kind as u8, ..current }, None, &payload));
                    if self.byte() % 2 == 0 {
                        return wire.ring();
                    }
                }
                // Answers to all that was called, in order.
                4 => {
                    for call in &calls {
                        let payload = self.some();
                        wire.send(&message(Header { kind: Kind::Reply as u8, ..*call }, None, &payload));
                    }
                    return wire.ring();
                }
                5 => {
                    let (key, flags, payload) = (signature::hash(TWICE), self.byte(), self.some());
                    wire.send(&message(Header { kind: Kind::HostCall as u8, flags, ..current }, Some(key), &payload));
                    return wire.ring();
                }
                // Any bytes.
                6 => {
                    let payload = self.some();
                    wire.send(&payload);
                }
                // A log record, or what should be one.
                7 => {
                    let record = self.some();
                    wire.send(&message(Header::new(Kind::Log), None, &record));
                }
                // A message anywhere, of any length.
                8 => {
                    let (address, bytes) = (u64::from_le_bytes(self.take()), u32::from_le_bytes(self.take()));
                    wire.offer(Segment::new(address, bytes));
                }
                9 => {
                    let (offset, bytes) = (u16::from_le_bytes(self.take()), u32::from_le_bytes(self.take()));
                    wire.offer(Segment::new(wire.outbound() + u64::from(offset), bytes));
                }
                // Anything in the queues, and a descriptor that is next.
                10 => {
                    let (at, some) = (u16::from_le_bytes(self.take()), self.some());
                    wire.write_queues(u64::from(at % queue::BYTES as u16), &some);
                }
                11 => {
                    let ((place, available), [name, flags]) = (wire.next_message_place(), self.take());
                    let mut bytes = [0; 16];
                    bytes[..8].copy_from_slice(&wire.outbound().to_le_bytes());
                    bytes[8..12].copy_from_slice(&u32::from_le_bytes(self.take()).to_le_bytes());
                    bytes[12] = name;
                    bytes[14..].copy_from_slice(&(available ^ u16::from(flags)).to_le_bytes());
                    wire.write_queues(queue::MESSAGES.descriptors + 16 * u64::from(place), &bytes);
                    return wire.ring();
                }
                12 => return wire.ring(),
                13 => {
                    let [vector, error_code] = self.take();
                    let address = u64::from_le_bytes(self.take());
                    return Exit::Exception(Exception { vector, error_code: error_code.into(), address });
                }
                14 => {
                    wire.remember();
                    cpu.registers.rax = u64::from(u16::from_le_bytes(self.take()) % 512);
                    cpu.registers.rdi = u64::from_le_bytes(self.take());
                    cpu.registers.rsi = queues;
                    cpu.registers.rdx = self.byte().into();
                    let sleeps = matches!(cpu.registers.rax, 7 | 35 | 202 | 230 | 271);
                    return if sleeps { Exit::Doorbell } else { Exit::Syscall };
                }
                15 => {
                    wire.remember();
                    cpu.registers.rip = u64::from_le_bytes(self.take());
                    return Exit::Doorbell;
                }
                16 => return Exit::Unexpected(self.byte().into()),
                _ => return Exit::Interrupted,
            }
        }
        Exit::Shutdown
    }
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > 4096 {
        return;
    }
    let guest = FakeGuest::new().function("go", |bytes: Vec<u8>| Ok::<_, String>(bytes));
    let bytes = bytes.to_vec();
    let backend = Fake::new(move || {
        let mut script = Script { bytes: bytes.clone(), at: 0, last: 0 };
        move |cpu: &mut FakeCpu<'_>| script.run(cpu)
    });
    let result = Sandbox::builder(&guest.image())
        .backend(backend)
        .memory_bytes(2 << 20)
        .payload_bytes(1 << 20)
        .host_fn("twice", |bytes: Vec<u8>| if bytes.is_empty() { Err("none") } else { Ok(bytes.repeat(2)) })
        .build();
    let mut sandbox = match result {
        Ok(sandbox) => sandbox,
        Err(error) => return stopped(&error),
    };
    for round in 0..5_u8 {
        assert_eq!(sandbox.status(), Status::Ready);
        let mut results = if round % 2 == 0 {
            vec![sandbox.call::<Vec<u8>>("go", vec![round; 3])]
        } else {
            let Ok(go) = sandbox.function::<Vec<u8>, Vec<u8>>("go") else { return };
            sandbox.call_batch(&go, vec![vec![round; 3]; usize::from(round) * 30])
        };
        // A guest that stops is found out by one call; none behind it is made.
        results.retain(|result| !result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unusable));
        for result in results {
            let Err(error) = result else { continue };
            if error.kind() != ErrorKind::GuestReturned {
                stopped(&error);
                assert_eq!(sandbox.status(), Status::Poisoned);
                let error = sandbox.call::<Vec<u8>>("go", Vec::<u8>::new()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unusable);
                assert_eq!(sandbox.status(), Status::Poisoned);
                return;
            }
        }
        if sandbox.status() != Status::Ready {
            return; // What was wrong was found after the last answer.
        }
    }
});

/// The guest's fault, not the host's.
fn stopped(error: &Error) {
    let kinds = [ErrorKind::GuestStopped, ErrorKind::GuestReturned, ErrorKind::Image];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    assert_eq!(error.kind() == ErrorKind::GuestStopped, error.crash().is_some());
    let _ = (error.to_string(), error.crash().map(ToString::to_string));
}
