//! A guest that leaves any bytes in the transport area: headers, payloads, log records, and that stops as it likes.
//!
//! Each step is a byte that says what it is, then what it needs; when the bytes end, the processor shuts down. Whatever
//! the guest does, each call must end with an answer or an error of the right kind, and a sandbox that was stopped must
//! refuse the next one.
#![no_main]

use coracle::fake::{Fake, FakeCpu, FakeGuest};
use coracle::{Error, ErrorKind, Sandbox, Status};
use coracle_abi::boot::BootInfo;
use coracle_abi::frame::{Header, Kind, LOG_RECORDS};
use coracle_abi::{map, signature};
use coracle_vm::{Exception, Exit};
use libfuzzer_sys::fuzz_target;

const GO: &str = "go(bytes) -> bytes";
const TWICE: &str = "twice(bytes) -> bytes";

struct Script {
    bytes: Vec<u8>,
    at: usize,
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
        let place = |cpu: &FakeCpu<'_>, field: usize| {
            let mut word = [0; 8];
            assert!(cpu.read(map::BOOT_PAGE + field as u64, &mut word));
            u64::from_le_bytes(word)
        };
        let inbound = place(cpu, std::mem::offset_of!(BootInfo, inbound));
        let outbound = place(cpu, std::mem::offset_of!(BootInfo, outbound));
        let log = place(cpu, std::mem::offset_of!(BootInfo, log));
        let leave = |cpu: &mut FakeCpu<'_>, header: Header, payload: &[u8]| {
            assert!(cpu.write(outbound, &header.encode()));
            assert!(cpu.write(outbound + Header::BYTES as u64, payload));
        };
        let mut call = [0; Header::BYTES];
        assert!(cpu.read(inbound, &mut call));
        let correlation = Header::decode(&call).correlation;
        while self.at < self.bytes.len() {
            match self.byte() % 16 {
                0 => {
                    let payload = signature::hash(GO).to_le_bytes();
                    leave(cpu, Header { bytes: 8, ..Header::new(Kind::Ready) }, &payload);
                    return Exit::Doorbell;
                }
                // A frame that belongs to the call, true or nearly so.
                kind @ (1..=4) => {
                    let kind = [Kind::Reply, Kind::Error, Kind::Panic, Kind::Flush][usize::from(kind - 1)];
                    let payload = self.some();
                    let bytes = payload.len() as u32;
                    leave(cpu, Header { correlation, bytes, ..Header::new(kind) }, &payload);
                    return Exit::Doorbell;
                }
                5 => {
                    let reply_at = u32::from_le_bytes(self.take());
                    let payload = self.some();
                    let (key, bytes) = (signature::hash(TWICE), payload.len() as u32);
                    let header = Header { key, correlation, bytes, reply_at, ..Header::new(Kind::HostCall) };
                    leave(cpu, header, &payload);
                    return Exit::Doorbell;
                }
                // Any frame.
                6 => {
                    let header: [u8; Header::BYTES] = self.take();
                    let payload = self.some();
                    leave(cpu, Header::decode(&header), &payload);
                    return Exit::Doorbell;
                }
                // A log record, or what should be one.
                7 => {
                    let (cursor, record): ([u8; 16], _) = (self.take(), self.some());
                    assert!(cpu.write(log, &cursor) && cpu.write(log + LOG_RECORDS as u64, &record));
                }
                8 => {
                    let record = self.some();
                    let bytes = record.len() as u32;
                    assert!(cpu.write(log, &(u64::from(bytes) + 4).to_le_bytes()));
                    let at = log + LOG_RECORDS as u64;
                    assert!(cpu.write(at, &bytes.to_le_bytes()) && cpu.write(at + 4, &record));
                }
                9 => return Exit::Doorbell,
                10 => {
                    let [vector, error_code] = self.take();
                    let address = u64::from_le_bytes(self.take());
                    return Exit::Exception(Exception { vector, error_code: error_code.into(), address });
                }
                11 => {
                    cpu.registers.rax = u64::from(u16::from_le_bytes(self.take()) % 512);
                    cpu.registers.rdi = u64::from_le_bytes(self.take());
                    cpu.registers.rsi = outbound;
                    cpu.registers.rdx = self.byte().into();
                    let sleeps = matches!(cpu.registers.rax, 7 | 35 | 202 | 230 | 271);
                    if !sleeps {
                        return Exit::Syscall;
                    }
                }
                12 => {
                    let (at, some) = (u16::from_le_bytes(self.take()), self.some());
                    cpu.write(outbound + u64::from(at), &some);
                }
                13 => cpu.registers.rip = u64::from_le_bytes(self.take()),
                14 => return Exit::Unexpected(self.byte().into()),
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
        let mut script = Script { bytes: bytes.clone(), at: 0 };
        move |cpu: &mut FakeCpu<'_>| script.run(cpu)
    });
    let result = Sandbox::builder(&guest.image())
        .backend(backend)
        .memory_bytes(2 << 20)
        .host_fn("twice", |bytes: Vec<u8>| if bytes.is_empty() { Err("none") } else { Ok(bytes.repeat(2)) })
        .build();
    let mut sandbox = match result {
        Ok(sandbox) => sandbox,
        Err(error) => return stopped(&error),
    };
    for round in 0..5_u8 {
        assert_eq!(sandbox.status(), Status::Ready);
        match sandbox.call::<Vec<u8>>("go", vec![round; 3]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::GuestReturned => {}
            Err(error) => {
                stopped(&error);
                assert_eq!(sandbox.status(), Status::Poisoned);
                let error = sandbox.call::<Vec<u8>>("go", Vec::<u8>::new()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unusable);
                assert_eq!(sandbox.status(), Status::Poisoned);
                return;
            }
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
