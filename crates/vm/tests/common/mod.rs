//! A guest of hand-written machine code on KVM.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use coracle_abi::PageBytes;
use coracle_testing::kvm_or_skip;
use coracle_vm::exit::{Exit, Registers};
use coracle_vm::{Backend, Fill, GuestMemory, Parts, Promise, Rights, Space, Span, Vcpu};

pub const CODE: u64 = 0x40_0000;
pub const DATA: u64 = 0x50_0000;
pub const STACK_END: u64 = 0x60_0000;

pub struct Guest {
    pub space: Space,
    pub vcpu: Box<dyn Vcpu>,
}

/// A VM with one page of code, one of data and four of stack; `None`, said aloud, where there is no KVM.
pub fn guest(code: &[u8]) -> Option<Guest> {
    let kvm = kvm_or_skip()?;
    let memory = GuestMemory::reserve(PageBytes::from_pages(4096).unwrap()).unwrap();
    let parts = Parts { root: Space::ROOT, exception_stack: Space::EXCEPTION_STACK };
    let (vm, vcpu) = kvm.create(&parts).unwrap();
    let mut space = Space::new(memory, vm, &kvm.control_pages()).unwrap();
    let span = |start, bytes| Span::new(start, bytes).unwrap();
    space.map(span(CODE, 4096), Rights::RX, Fill::Now, Promise::Committed).unwrap();
    space.map(span(DATA, 4096), Rights::RW, Fill::Now, Promise::Committed).unwrap();
    space.map(span(STACK_END - 0x4000, 0x4000), Rights::RW, Fill::Now, Promise::Committed).unwrap();
    space.load(CODE, code).unwrap();
    let mut guest = Guest { space, vcpu };
    guest.vcpu.set_registers(&Registers { rip: CODE, rsp: STACK_END, ..Registers::default() });
    Some(guest)
}

impl Guest {
    pub fn run(&mut self) -> Exit {
        loop {
            match self.vcpu.run(self.space.memory_mut()).unwrap() {
                Exit::LogFull => self.space.empty_log().unwrap(),
                exit => return exit,
            }
        }
    }

    pub fn exception(&mut self) -> coracle_vm::Exception {
        match self.run() {
            Exit::Exception(exception) => exception,
            other => panic!("expected an exception, got {other:?}, {:x?}", self.vcpu.registers()),
        }
    }
}

/// `mov rax, imm64; call rax`.
pub fn call(address: u64) -> Vec<u8> {
    let mut code = vec![0x48, 0xb8];
    code.extend(address.to_le_bytes());
    code.extend([0xff, 0xd0]);
    code
}
