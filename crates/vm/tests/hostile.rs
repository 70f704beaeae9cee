//! What a guest can try that needs no system call: every privileged instruction, every I/O port, every address of the
//! host's own pages. Each must end in a typed exit; the hypervisor must go on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{CODE, DATA, STACK_END, guest};
use coracle_abi::port::DOORBELL_PORT;
use coracle_abi::{PAGE_BYTES, map};
use coracle_testing::patiently;
use coracle_vm::exit::{self, Exit, Registers};

/// Instructions that only ring 0 may execute, or that reach for the hypervisor.
const PRIVILEGED: &[(&str, &[u8])] = &[
    ("hlt", &[0xf4]),
    ("cli", &[0xfa]),
    ("sti", &[0xfb]),
    ("clts", &[0x0f, 0x06]),
    ("invd", &[0x0f, 0x08]),
    ("wbinvd", &[0x0f, 0x09]),
    ("rdmsr", &[0x0f, 0x32]),
    ("wrmsr", &[0x0f, 0x30]),
    ("mov rax, cr0", &[0x0f, 0x20, 0xc0]),
    ("mov rax, cr2", &[0x0f, 0x20, 0xd0]),
    ("mov rax, cr3", &[0x0f, 0x20, 0xd8]),
    ("mov rax, cr4", &[0x0f, 0x20, 0xe0]),
    ("mov rax, cr8", &[0x44, 0x0f, 0x20, 0xc0]),
    ("mov cr0, rax", &[0x0f, 0x22, 0xc0]),
    ("mov cr3, rax", &[0x0f, 0x22, 0xd8]),
    ("mov cr4, rax", &[0x0f, 0x22, 0xe0]),
    ("mov cr8, rax", &[0x44, 0x0f, 0x22, 0xc0]),
    ("mov rax, dr0", &[0x0f, 0x21, 0xc0]),
    ("mov rax, dr7", &[0x0f, 0x21, 0xf8]),
    ("mov dr0, rax", &[0x0f, 0x23, 0xc0]),
    ("mov dr7, rax", &[0x0f, 0x23, 0xf8]),
    ("lgdt [rdi]", &[0x0f, 0x01, 0x17]),
    ("lidt [rdi]", &[0x0f, 0x01, 0x1f]),
    ("lldt ax", &[0x0f, 0x00, 0xd0]),
    ("ltr ax", &[0x0f, 0x00, 0xd8]),
    ("lmsw ax", &[0x0f, 0x01, 0xf0]),
    ("invlpg [rdi]", &[0x0f, 0x01, 0x3f]),
    ("invpcid rax, [rdi]", &[0x66, 0x0f, 0x38, 0x82, 0x07]),
    ("swapgs", &[0x0f, 0x01, 0xf8]),
    ("xsetbv", &[0x0f, 0x01, 0xd1]),
    ("monitor", &[0x0f, 0x01, 0xc8]),
    ("mwait", &[0x0f, 0x01, 0xc9]),
    ("sysretq", &[0x48, 0x0f, 0x07]),
    ("sysexit", &[0x0f, 0x35]),
    ("sysenter", &[0x0f, 0x34]),
    ("iretq to ring 0", &[0x48, 0xcf]),
    ("int 0x80", &[0xcd, 0x80]),
    ("int 14", &[0xcd, 0x0e]),
    ("int 32", &[0xcd, 0x20]),
    ("int1", &[0xf1]),
    ("rdpmc", &[0x0f, 0x33]),
    ("vmcall", &[0x0f, 0x01, 0xc1]),
    ("vmmcall", &[0x0f, 0x01, 0xd9]),
    ("vmlaunch", &[0x0f, 0x01, 0xc2]),
    ("vmxoff", &[0x0f, 0x01, 0xc4]),
    ("vmrun", &[0x0f, 0x01, 0xd8]),
    ("stgi", &[0x0f, 0x01, 0xdc]),
    ("clgi", &[0x0f, 0x01, 0xdd]),
    ("skinit", &[0x0f, 0x01, 0xde]),
    ("invlpga", &[0x0f, 0x01, 0xdf]),
    ("xsaves [rdi]", &[0x0f, 0xc7, 0x2f]),
    ("xrstors [rdi]", &[0x0f, 0xc7, 0x1f]),
    ("encls", &[0x0f, 0x01, 0xcf]),
    ("enclu", &[0x0f, 0x01, 0xd7]),
    ("rsm", &[0x0f, 0xaa]),
    ("getsec", &[0x0f, 0x37]),
    ("mov ss, ax with a kernel selector", &[0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd0]),
    ("retf to ring 0", &[0x6a, 0x08, 0x6a, 0x00, 0x48, 0xcb]),
];

/// Instructions that do nothing for ring 3, or only tell it what it may know: after them the guest goes on. Hypervisors
/// answer `vmcall` and `vmmcall` of ring 3 with an error in RAX, or refuse them.
const HARMLESS: &[&str] = &["vmcall", "vmmcall"];

#[test]
fn privileged_instructions_are_refused() {
    patiently(|| {
        for (name, instruction) in PRIVILEGED {
            let mut code = instruction.to_vec();
            code.extend([0x0f, 0x0b]); // ud2: it went on
            let Some(mut guest) = guest(&code) else { return };
            let start = Registers { rip: CODE, rsp: STACK_END - 0x100, rdi: DATA, ..Registers::default() };
            guest.vcpu.set_registers(&start);
            let exit = guest.run();
            let rip = guest.vcpu.registers().rip;
            match exit {
                Exit::Exception(exception) => {
                    let went_on = exception.vector == exit::INVALID_OPCODE && rip >= CODE + instruction.len() as u64;
                    assert!(!went_on || HARMLESS.contains(name), "{name} was executed");
                }
                other => panic!("{name}: {other:?} at {rip:#x}"),
            }
        }
    });
}

#[test]
fn every_port_but_the_doorbell_is_closed() {
    patiently(|| {
        // in al, dx; out dx, al; in eax, dx; out dx, eax
        for instruction in [&[0xec][..], &[0xee], &[0xed], &[0xef]] {
            let Some(mut guest) = guest(instruction) else { return };
            for port in 0..=u16::MAX {
                // All of them with the first two, a part with the others: each attempt costs an exit.
                let byte_wide = matches!(instruction, [0xec | 0xee]);
                if !byte_wide && !(0xd0..=0x100).contains(&port) && port % 251 != 0 {
                    continue;
                }
                guest.vcpu.set_registers(&Registers {
                    rip: CODE,
                    rsp: STACK_END,
                    rdx: port.into(),
                    ..Registers::default()
                });
                match guest.run() {
                    Exit::Exception(exception) => {
                        assert_eq!(exception.vector, exit::GENERAL_PROTECTION, "port {port:#x}")
                    }
                    Exit::Doorbell => assert!(byte_wide && port == DOORBELL_PORT, "port {port:#x} rang"),
                    // `in` from the doorbell port: allowed by the bitmap, and told apart from the doorbell.
                    Exit::Unexpected(_) => assert_eq!((instruction[0], port), (0xec, DOORBELL_PORT)),
                    other => panic!("port {port:#x}: {other:?}"),
                }
            }
        }
    });
}

#[test]
fn jumping_into_the_hosts_pages_gives_nothing() {
    patiently(|| {
        let Some(mut guest) = guest(&[0x90]) else { return };
        for page in (map::CONTROL_START..map::WINDOW_END).step_by(PAGE_BYTES as usize) {
            for offset in (0..64).chain([0x200, 0xffe, 0xfff]) {
                let registers = Registers {
                    rip: page + offset,
                    rsp: STACK_END - 0x100,
                    rcx: 0x1234_0000,
                    r11: u64::MAX,
                    rax: 39,
                    ..Registers::default()
                };
                guest.vcpu.set_registers(&registers);
                match guest.run() {
                    // As good as executing `syscall`, which any guest may do.
                    Exit::Syscall => {
                        assert_eq!(page, map::SYSCALL_ENTRY);
                        assert_eq!(guest.vcpu.registers().rip, 0x1234_0000);
                    }
                    Exit::Doorbell => assert!(page == map::DOORBELL || page == map::SYSCALL_ENTRY),
                    Exit::Exception(_) => {}
                    other => panic!("{:#x}: {other:?}", page + offset),
                }
            }
        }
    });
}

#[test]
fn the_hosts_pages_cannot_be_read_or_written() {
    patiently(|| {
        let readable = [map::SYSCALL_ENTRY, map::DOORBELL];
        // mov rax, [rdi]; ud2 and mov [rdi], rax; ud2
        for (instruction, writes) in [(&[0x48, 0x8b, 0x07, 0x0f, 0x0b], false), (&[0x48, 0x89, 0x07, 0x0f, 0x0b], true)]
        {
            let Some(mut guest) = guest(instruction) else { return };
            for page in (map::CONTROL_START..map::WINDOW_END).step_by(PAGE_BYTES as usize) {
                guest.vcpu.set_registers(&Registers { rip: CODE, rdi: page, ..Registers::default() });
                let exception = guest.exception();
                let reached = exception.vector == exit::INVALID_OPCODE;
                assert_eq!(reached, !writes && readable.contains(&page), "{page:#x}, write: {writes}");
            }
        }
    });
}

#[test]
fn a_forged_return_does_not_raise_privileges() {
    patiently(|| {
        // The guest jumps to the system-call entry itself, with flags of its own in R11: IOPL 3, nested task, virtual 8086.
        // in al, 0x80 at DATA would succeed with IOPL 3.
        let code = [0xe4, 0x80];
        let Some(mut guest) = guest(&code) else { return };
        let registers = Registers { rip: map::SYSCALL_ENTRY, rcx: CODE, r11: !exit::TRAP_FLAG, ..Registers::default() };
        guest.vcpu.set_registers(&registers);
        assert_eq!(guest.run(), Exit::Syscall);
        guest.vcpu.finish_syscall(0);
        let exception = guest.exception();
        assert_eq!((exception.vector, guest.vcpu.registers().rip), (exit::GENERAL_PROTECTION, CODE));
    });
}

#[test]
fn impossible_registers_are_survived() {
    patiently(|| {
        let Some(mut guest) = guest(&[0x90]) else { return };
        for bad in [0x8000_0000_0000, 0x7fff_ffff_ffff, u64::MAX, 0xffff_8000_0000_0000, 0x1234_5678_9abc_def0] {
            for registers in [
                Registers { rip: bad, ..Registers::default() },
                Registers {
                    rip: CODE,
                    rsp: bad,
                    fs_base: bad,
                    gs_base: bad,
                    rflags: !exit::TRAP_FLAG,
                    ..Registers::default()
                },
            ] {
                guest.vcpu.set_registers(&registers);
                assert!(matches!(guest.run(), Exit::Exception(_) | Exit::Shutdown), "{registers:x?}");
            }
        }
    });
}
