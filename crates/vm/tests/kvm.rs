//! The KVM backend against machine code written by hand: each kind of exit, and what the guest can reach.
//!
//! Without `/dev/kvm` each test says that it was skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{CODE, DATA, STACK_END, call, guest};
use coracle_abi::map;
use coracle_vm::exit::{self, Exit, Registers};
use coracle_vm::{Fault, Fill, Promise, Rights, Span, kick};

#[test]
fn the_doorbell_returns_to_its_caller() {
    let mut code = call(map::DOORBELL);
    code.extend([0x48, 0xff, 0xc3]); // inc rbx
    code.extend(call(map::DOORBELL));
    let Some(mut guest) = guest(&code) else { return };
    assert_eq!(guest.run(), Exit::Doorbell);
    assert_eq!(guest.vcpu.registers().rbx, 0);
    assert_eq!(guest.run(), Exit::Doorbell);
    assert_eq!(guest.vcpu.registers().rbx, 1);
    assert_eq!(guest.vcpu.entries(), 2);
}

#[test]
fn registers_set_at_the_doorbell_hold() {
    let code = [&[0xe6, 0xe9, 0x48, 0xff, 0xc3][..], &call(map::DOORBELL)].concat(); // out 0xe9, al; inc rbx
    let Some(mut guest) = guest(&code) else { return };
    // The hypervisor must not step over the instruction that RIP is set to, even if it is the one that rang.
    for _ in 0..3 {
        assert_eq!(guest.run(), Exit::Doorbell);
        assert_eq!(guest.vcpu.registers().rbx, 0);
        guest.vcpu.set_registers(&Registers { rip: CODE, rsp: STACK_END, ..Registers::default() });
    }
    assert_eq!(guest.run(), Exit::Doorbell);
    assert_eq!(guest.run(), Exit::Doorbell);
    let registers = guest.vcpu.registers();
    assert_eq!((registers.rbx, registers.rip), (1, map::DOORBELL + 2));
    guest.vcpu.set_registers(&Registers { rip: CODE, ..registers });
    assert_eq!(guest.run(), Exit::Doorbell);
}

#[test]
fn a_system_call_gets_its_result() {
    // mov eax, 39; syscall; mov rbx, rax; mov eax, 60; syscall
    let code = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x48, 0x89, 0xc3, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let Some(mut guest) = guest(&code) else { return };
    assert_eq!(guest.run(), Exit::Syscall);
    let registers = guest.vcpu.registers();
    assert_eq!((registers.rax, registers.rip, registers.rsp), (39, CODE + 7, STACK_END));
    guest.vcpu.finish_syscall(-38);
    assert_eq!(guest.run(), Exit::Syscall);
    assert_eq!((guest.vcpu.registers().rbx as i64, guest.vcpu.registers().rax), (-38, 60));
}

#[test]
fn a_page_fault_is_resolved_and_tried_again() {
    // mov rax, [0x700000]; then the doorbell.
    let mut code = vec![0x48, 0x8b, 0x04, 0x25, 0, 0, 0x70, 0];
    code.extend([0x48, 0x89, 0xc3]); // mov rbx, rax
    code.extend(call(map::DOORBELL));
    let Some(mut guest) = guest(&code) else { return };
    let span = Span::new(0x70_0000, 4096).unwrap();
    guest.space.map(span, Rights::RW, Fill::Up, Promise::Committed).unwrap();
    let exception = guest.exception();
    assert_eq!((exception.vector, exception.address), (exit::PAGE_FAULT, 0x70_0000));
    let registers = guest.vcpu.registers();
    assert_eq!((registers.rip, registers.rsp), (CODE, STACK_END));
    assert_eq!(
        guest.space.fault(0x70_0000, coracle_vm::Access::from_error_code(exception.error_code)).unwrap(),
        Fault::Resolved
    );
    guest.space.write(0x70_0000, &77u64.to_le_bytes()).unwrap();
    guest.vcpu.set_registers(&registers);
    assert_eq!(guest.run(), Exit::Doorbell);
    assert_eq!(guest.vcpu.registers().rbx, 77);
}

#[test]
fn each_fault_has_its_vector() {
    let cases: [(&[u8], u8); 8] = [
        (&[0x31, 0xc9, 0xf7, 0xf1], exit::DIVIDE_ERROR), // xor ecx, ecx; div ecx
        (&[0x0f, 0x0b], exit::INVALID_OPCODE),           // ud2
        (&[0xf4], exit::GENERAL_PROTECTION),             // hlt
        (&[0xe6, 0x80], exit::GENERAL_PROTECTION),       // out 0x80, al
        (&[0xcc], exit::BREAKPOINT),                     // int3
        (&[0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], exit::PAGE_FAULT), // mov rax, [0]
        (&[0x48, 0x89, 0x04, 0x25, 0, 0, 0x40, 0], exit::PAGE_FAULT), // mov [CODE], rax
        (&[0x48, 0xc7, 0xc0, 0, 0, 0x50, 0, 0xff, 0xe0], exit::PAGE_FAULT), // mov rax, DATA; jmp rax
    ];
    for (code, vector) in cases {
        let Some(mut guest) = guest(code) else { return };
        assert_eq!(guest.exception().vector, vector, "{code:x?}");
    }
}

#[test]
fn a_software_interrupt_is_refused() {
    // `int 0x80`: a general-protection fault on bare metal, an invalid opcode under kvm-pvm. Never a 32-bit system call.
    let Some(mut guest) = guest(&[0xcd, 0x80]) else { return };
    assert!(matches!(guest.exception().vector, exit::GENERAL_PROTECTION | exit::INVALID_OPCODE));
}

#[test]
fn the_exception_port_is_closed_to_ring_3() {
    let Some(mut guest) = guest(&[0xe6, 0xea]) else { return };
    assert_eq!(guest.exception().vector, exit::GENERAL_PROTECTION);
}

#[test]
fn avx_works() {
    // vpcmpeqd ymm0, ymm0, ymm0; vmovdqu [0x500000], ymm0; doorbell
    let mut code = vec![0xc5, 0xfd, 0x76, 0xc0, 0xc5, 0xfe, 0x7f, 0x04, 0x25, 0, 0, 0x50, 0];
    code.extend(call(map::DOORBELL));
    let Some(mut guest) = guest(&code) else { return };
    assert_eq!(guest.run(), Exit::Doorbell);
    let mut out = [0; 32];
    guest.space.read(DATA, &mut out).unwrap();
    assert_eq!(out, [0xff; 32]);
}

#[test]
fn rights_that_are_taken_away_are_gone_at_once() {
    // loop: mov [0x500000], rbx; call doorbell; jmp loop
    let mut code = vec![0x48, 0x89, 0x1c, 0x25, 0, 0, 0x50, 0];
    code.extend(call(map::DOORBELL));
    code.extend([0xeb, (-(code.len() as i8) - 2) as u8]);
    let Some(mut guest) = guest(&code) else { return };
    assert_eq!(guest.run(), Exit::Doorbell);
    assert_eq!(guest.run(), Exit::Doorbell);
    guest.space.protect(Span::new(DATA, 4096).unwrap(), Rights::R).unwrap();
    let exception = guest.exception();
    assert_eq!((exception.vector, exception.address), (exit::PAGE_FAULT, DATA));
    // And rights that are given back are there.
    guest.space.protect(Span::new(DATA, 4096).unwrap(), Rights::RW).unwrap();
    let registers = guest.vcpu.registers();
    guest.vcpu.set_registers(&registers);
    let mut exit = guest.run();
    if let Exit::Exception(exception) = exit {
        // The vCPU may have kept the smaller rights: one spurious fault.
        assert_eq!(guest.space.fault(exception.address, coracle_vm::Access::Write).unwrap(), Fault::Resolved);
        let registers = guest.vcpu.registers();
        guest.vcpu.set_registers(&registers);
        exit = guest.run();
    }
    assert_eq!(exit, Exit::Doorbell);
    guest.space.unmap(Span::new(DATA, 4096).unwrap()).unwrap();
    assert_eq!(guest.exception().address, DATA);
}

#[test]
fn an_endless_loop_can_be_kicked() {
    let Some(mut guest) = guest(&[0xeb, 0xfe]) else { return };
    let (kicker, thread) = (guest.vcpu.kicker(), kick::current_thread());
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let other = std::thread::spawn({
        let done = std::sync::Arc::clone(&done);
        move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                kicker.kick(thread);
            }
        }
    });
    assert_eq!(guest.run(), Exit::Interrupted);
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    other.join().unwrap();
    assert_eq!(guest.vcpu.registers().rip, CODE);
}

#[test]
fn single_steps_trap_after_each_instruction() {
    let Some(mut guest) = guest(&[0x90, 0x90, 0x90, 0x90]) else { return };
    let mut registers = guest.vcpu.registers();
    for step in 1..=3 {
        registers.rflags |= exit::TRAP_FLAG;
        guest.vcpu.set_registers(&registers);
        assert_eq!(guest.exception().vector, exit::DEBUG);
        registers = guest.vcpu.registers();
        assert_eq!(registers.rip, CODE + step);
    }
}

#[test]
fn the_first_write_to_each_page_is_counted() {
    let mut code = vec![0x48, 0x89, 0x1c, 0x25, 0, 0, 0x50, 0];
    code.extend(call(map::DOORBELL));
    let Some(mut guest) = guest(&code) else { return };
    assert_eq!(guest.run(), Exit::Doorbell);
    // The data page, and the stack page that the call wrote.
    assert_eq!(guest.space.collect_written().unwrap(), Some(2));
}
