//! Any bytes as a program: system calls, page faults and stores in sequence, on the backend without a hypervisor.
//!
//! Nothing may make the host panic or take long, and the program must be able to exit at the end.
//!
//! A step is a byte that says what it is, then what it needs. A number is a tag and what the tag says: a small number, an
//! address of interest, or eight bytes. When the bytes end, all numbers are 0 and the next step is an exit.
#![no_main]

use std::time::{Duration, Instant};

use coracle::fake::{Fake, FakeCpu, FakeGuest};
use coracle::{ErrorKind, Input, Sandbox, linux};
use coracle_abi::map;
use coracle_vm::{Exception, Exit, Registers, exit};
use libfuzzer_sys::fuzz_target;

/// Of a step's first byte: not the number of a system call.
const RAW_NUMBER: u8 = 0xff;
const FAULT: u8 = 0xfe;
const STORE: u8 = 0xfd;
const EXIT_GROUP: u64 = 231;
const CODE: u64 = 42;

const PLACES: [u64; 16] = [
    0,
    map::LOWEST,
    0x10_0000,
    0x20_0000,
    0x40_0000, // The image.
    1 << 30,
    1 << 39,
    map::MMAP_END,
    map::IMAGE_END,
    map::CONTROL_START,
    map::DOORBELL,
    map::TRANSPORT_END,
    map::WINDOW_END,
    map::HIGHEST,
    1 << 47,
    u64::MAX,
];

struct Script {
    bytes: Vec<u8>,
    at: usize,
    results: Vec<u64>,
    calls: bool, // Whether the last exit was a system call, so that RAX is its result.
}

impl Script {
    fn byte(&mut self) -> u8 {
        self.at += 1;
        self.bytes.get(self.at - 1).copied().unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn number(&mut self, stack: u64) -> u64 {
        match self.byte() {
            small @ 0..0x80 => small.into(),
            place @ 0x80..0x90 => PLACES[usize::from(place & 15)],
            place @ 0x90..0xa0 => PLACES[usize::from(place & 15)].wrapping_sub(u64::from(self.byte()) * 512),
            place @ 0xa0..0xb0 => PLACES[usize::from(place & 15)].wrapping_add(u64::from(self.byte()) * 512),
            power @ 0xb0..0xf0 => 1 << (power - 0xb0),
            0xf0..0xf4 => stack.wrapping_sub(u64::from(self.byte()) * 64),
            negative @ 0xf4..0xf8 => u64::from(negative).wrapping_sub(0xf8),
            0xf8..0xfe => {
                let n = usize::from(self.byte());
                self.results.get(n).copied().unwrap_or(0)
            }
            _ => self.word(),
        }
    }

    fn run(&mut self, cpu: &mut FakeCpu<'_>) -> Exit {
        if std::mem::take(&mut self.calls) {
            self.results.push(cpu.registers.rax);
        }
        let stack = cpu.registers.rsp;
        loop {
            if self.at >= self.bytes.len() {
                *cpu.registers = Registers { rax: EXIT_GROUP, rdi: CODE, ..Registers::default() };
                return Exit::Syscall;
            }
            match self.byte() {
                STORE => {
                    let (at, value) = (self.number(stack), self.number(stack));
                    cpu.write(at, &value.to_le_bytes());
                }
                FAULT => {
                    let (address, error_code) = (self.number(stack), self.byte().into());
                    return Exit::Exception(Exception { vector: exit::PAGE_FAULT, error_code, address });
                }
                number => {
                    let rax = if number == RAW_NUMBER {
                        self.number(stack)
                    } else {
                        NUMBERS[usize::from(number) % NUMBERS.len()]
                    };
                    let [rdi, rsi, rdx, r10, r8, r9] = std::array::from_fn(|_| self.number(stack));
                    if sleeps(rax, rdx) {
                        continue;
                    }
                    *cpu.registers = Registers { rax, rdi, rsi, rdx, r10, r8, r9, ..*cpu.registers };
                    self.calls = true;
                    return Exit::Syscall;
                }
            }
        }
    }
}

/// `poll`, which is the one that can sleep for long by a number in a register.
fn sleeps(number: u64, timeout: u64) -> bool {
    number == 7 && timeout as i32 > 0
}

/// The system calls that have arguments worth trying.
const NUMBERS: [u64; 56] = [
    9, 10, 11, 12, 25, 28, 9, 11, // mmap, mprotect, munmap, brk, mremap, madvise
    0, 1, 2, 3, 4, 5, 7, 8, 13, 14, 16, 19, 20, 21, 32, 33, 35, 60, 62, 63, 72, 79, 89, 96, 97, 131, 157, 158, 200,
    201, 202, 204, 218, 228, 229, 230, 231, 234, 257, 262, 267, 269, 271, 273, 292, 302, 318, 334,
];

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > 4096 {
        return;
    }
    let bytes = bytes.to_vec();
    let start = Instant::now();
    let backend = Fake::new(move || {
        let mut script = Script { bytes: bytes.clone(), at: 0, results: Vec::new(), calls: false };
        move |cpu: &mut FakeCpu<'_>| script.run(cpu)
    });
    let mut last = 0;
    let (seen, tell) = std::sync::mpsc::channel();
    let result = Sandbox::builder(&FakeGuest::new().image())
        .backend(backend)
        .memory_bytes(2 << 20)
        .timeout(Duration::from_millis(500))
        .stdin(Input::bytes(*b"some input"))
        .trace_system_calls(move |call| {
            assert!(call.result.is_none_or(|result| result >= -133), "{call:?}");
            let _ = seen.send(call.number);
        })
        .run();
    while let Ok(number) = tell.recv() {
        last = number;
    }
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    match result {
        Ok(ended) => assert!(ended.code == CODE as i32 || matches!(last, 60 | EXIT_GROUP)),
        Err(error) => match error.kind() {
            // A fault that is not resolved, a signal, a deadlock.
            ErrorKind::GuestStopped => assert!(error.crash().is_some()),
            // Only what can sleep may take so long.
            ErrorKind::TimedOut => assert!(matches!(last, 35 | 202 | 230 | 271), "{:?}", linux::name(last)),
            _ => panic!("{error}"),
        },
    }
});
