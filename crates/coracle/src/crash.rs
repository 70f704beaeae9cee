//! What went wrong in a guest: from a trap to a plain cause.
//!
//! `Cause::of` is a pure function of what the processor said and of what the host knows of the address. The guest
//! has no say in it, except where noted: that an abort was about memory is the guest's own claim.

use std::fmt;

use coracle_abi::map;
use coracle_vm::exit::{self, Exception};
use coracle_vm::{Access, Registers, Rights, Span};

/// The plain cause of a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// An access to the first 64 KiB of the address space, which are never mapped.
    NullPointer,
    /// An access to the guard below the stack.
    StackOverflow,
    /// A store to memory that the guest may only read or execute.
    WriteToReadOnly,
    /// A jump into memory that is not code.
    ExecuteOfData,
    /// An access to memory that the guest has without any rights, or that is the host's.
    ForbiddenMemory,
    /// An access to an address where nothing is mapped.
    UnmappedMemory,
    /// An address that no x86-64 program can have, or an aligned instruction on an address that is not.
    BadAddress,
    /// A division by zero, or one whose result does not fit.
    DivisionByZero,
    /// Bytes that are no instruction, or one that this processor does not have. Compilers also use one to end a program.
    IllegalInstruction,
    /// An instruction that only an operating system may execute.
    PrivilegedInstruction,
    /// Access to an I/O port that is not the guest's; its number, where the instruction shows it.
    ForbiddenPort(Option<u16>),
    /// An unmasked floating-point exception.
    FloatingPoint,
    /// A breakpoint or a single step that nobody asked for.
    Breakpoint,
    /// The memory limit was reached where the guest could not be told, or it aborted after it had been told.
    OutOfMemory,
    /// The program ended itself by `abort`.
    Abort,
    /// The program sent itself this signal.
    Signal(i32),
    /// It panicked. Message and place are the guest's own words, of any length and with any characters: escape them where
    /// they are shown.
    Panic {
        /// What it said.
        message: String,
        /// Where: `file:line:column`.
        location: String,
    },
    /// It exited, with this code, when an answer was due.
    ExitedWithoutAnswer(i32),
    /// It waits for another thread, and there is none.
    Deadlock,
    /// What it left in the transport area is no valid answer.
    ProtocolViolation(&'static str),
    /// The virtual processor stopped for good: a fault while a fault was being delivered.
    Shutdown,
    /// The hypervisor stopped the guest for this reason of its own.
    Hypervisor(u32),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NullPointer => f.write_str("null pointer"),
            Self::StackOverflow => f.write_str("stack overflow"),
            Self::WriteToReadOnly => f.write_str("write to read-only memory"),
            Self::ExecuteOfData => f.write_str("execution of data"),
            Self::ForbiddenMemory => f.write_str("access to forbidden memory"),
            Self::UnmappedMemory => f.write_str("access to unmapped memory"),
            Self::BadAddress => f.write_str("impossible or misaligned address"),
            Self::DivisionByZero => f.write_str("division by zero or overflow in a division"),
            Self::IllegalInstruction => f.write_str("illegal instruction"),
            Self::PrivilegedInstruction => f.write_str("privileged instruction"),
            Self::ForbiddenPort(Some(port)) => write!(f, "forbidden I/O port {port:#x}"),
            Self::ForbiddenPort(None) => f.write_str("forbidden I/O port"),
            Self::FloatingPoint => f.write_str("floating-point exception"),
            Self::Breakpoint => f.write_str("breakpoint"),
            Self::OutOfMemory => f.write_str("out of memory"),
            Self::Abort => f.write_str("abort"),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Panic { message, location } => write!(f, "panic at {location}: {message}"),
            Self::ExitedWithoutAnswer(code) => write!(f, "exit with code {code} without answering"),
            Self::Deadlock => f.write_str("deadlock: it waits for a thread that does not exist"),
            Self::ProtocolViolation(what) => write!(f, "protocol violation: {what}"),
            Self::Shutdown => f.write_str("the virtual processor shut down"),
            Self::Hypervisor(reason) => write!(f, "stopped by the hypervisor (reason {reason})"),
        }
    }
}

/// What the host knows when an exception arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) exception: Exception,
    /// Bytes at the instruction pointer, as far as they can be read.
    pub(crate) code: &'a [u8],
    pub(crate) stack: Span,
    /// Rights of the mapping that holds the address, if there is one.
    pub(crate) rights: Option<Rights>,
}

impl Cause {
    /// What this exception is about.
    pub(crate) fn of(scene: &Scene<'_>) -> Self {
        match scene.exception.vector {
            exit::DIVIDE_ERROR => Self::DivisionByZero,
            exit::DEBUG | exit::BREAKPOINT => Self::Breakpoint,
            exit::INVALID_OPCODE => Self::IllegalInstruction,
            exit::STACK_FAULT | exit::ALIGNMENT_CHECK => Self::BadAddress,
            exit::GENERAL_PROTECTION => general_protection(scene.code),
            exit::PAGE_FAULT => page_fault(scene),
            exit::X87_ERROR | exit::SIMD_ERROR => Self::FloatingPoint,
            vector => Self::Hypervisor(u32::from(vector)),
        }
    }

    /// The number of the signal that Linux would have ended the program with, for exit codes (`128 + signal`).
    pub fn signal(&self) -> i32 {
        match self {
            Self::DivisionByZero | Self::FloatingPoint => 8,
            Self::IllegalInstruction => 4,
            Self::Breakpoint => 5,
            Self::OutOfMemory => 9,
            Self::Abort | Self::Panic { .. } => 6,
            Self::Signal(number) => *number,
            _ => 11,
        }
    }
}

fn page_fault(scene: &Scene<'_>) -> Cause {
    let address = scene.exception.address;
    let guard = scene.stack.start().saturating_sub(map::STACK_GUARD_BYTES)..scene.stack.start();
    if address < map::LOWEST {
        return Cause::NullPointer;
    }
    match (scene.rights, Access::from_error_code(scene.exception.error_code)) {
        (None, _) if guard.contains(&address) => Cause::StackOverflow,
        (None, _) if (map::CONTROL_START..map::WINDOW_END).contains(&address) => Cause::ForbiddenMemory,
        (None, _) => Cause::UnmappedMemory,
        (Some(rights), _) if rights.is_none() => Cause::ForbiddenMemory,
        (Some(_), Access::Write) => Cause::WriteToReadOnly,
        (Some(_), Access::Execute) => Cause::ExecuteOfData,
        (Some(_), Access::Read) => Cause::ForbiddenMemory,
    }
}

/// Looks at the instruction: the processor does not say why it refused. (Intel SDM volume 2, appendix A.)
fn general_protection(code: &[u8]) -> Cause {
    let is_prefix =
        |byte: &u8| matches!(byte, 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
    let start = code.iter().position(|byte| !is_prefix(byte)).unwrap_or(code.len());
    let mut code = &code[start..];
    if let [0x40..=0x4f, rest @ ..] = code {
        code = rest; // REX
    }
    match code {
        [0xe4..=0xe7, port, ..] => Cause::ForbiddenPort(Some(u16::from(*port))),
        [0xec..=0xef | 0x6c..=0x6f, ..] => Cause::ForbiddenPort(None),
        // hlt, cli, sti, iret, int n.
        [0xf4 | 0xfa | 0xfb | 0xcf | 0xcd, ..] => Cause::PrivilegedInstruction,
        // Group 7 (lgdt, lidt, lmsw, invlpg, swapgs, xsetbv, …), clts, sysret, invd, wbinvd, mov to and from CR and DR,
        // wrmsr, rdtsc, rdmsr, rdpmc, sysenter, sysexit, group 6 (lldt, ltr, …).
        [0x0f, 0x00 | 0x01 | 0x06..=0x09 | 0x20..=0x23 | 0x30..=0x35, ..] => Cause::PrivilegedInstruction,
        // invpcid and relatives; xsaves, xrstors.
        [0x0f, 0x38, 0x80..=0x82, ..] | [0x0f, 0xc7, ..] => Cause::PrivilegedInstruction,
        _ => Cause::BadAddress,
    }
}

/// A named place in the guest's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The function, as the programmer wrote it.
    pub function: String,
    /// Bytes from its start.
    pub offset: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.function, self.offset)
    }
}

/// What is known of a guest's end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrashReport {
    /// Why, in plain words.
    pub cause: Cause,
    /// The processor's vector, if it was an exception.
    pub vector: Option<u8>,
    /// For a page fault: the address used.
    pub address: Option<u64>,
    /// For a page fault: how it was used.
    pub access: Option<Access>,
    /// The registers when it happened.
    pub registers: Registers,
    /// The function it happened in, if the image has symbols.
    pub place: Option<Place>,
}

impl fmt::Display for CrashReport {
    /// Several lines for people: cause, place, registers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guest crashed: {}", self.cause)?;
        if let (Some(address), Some(access)) = (self.address, self.access) {
            let verb = match access {
                Access::Read => "reading",
                Access::Write => "writing",
                Access::Execute => "executing",
            };
            write!(f, " ({verb} {address:#x})")?;
        }
        let r = &self.registers;
        write!(f, "\n  at {:#x}", r.rip)?;
        if let Some(place) = &self.place {
            write!(f, " in {place}")?;
        }
        if let Some(vector) = self.vector {
            write!(f, ", vector {vector}")?;
        }
        let rows = [
            [("rax", r.rax), ("rbx", r.rbx), ("rcx", r.rcx), ("rdx", r.rdx)],
            [("rsi", r.rsi), ("rdi", r.rdi), ("rbp", r.rbp), ("rsp", r.rsp)],
            [("r8 ", r.r8), ("r9 ", r.r9), ("r10", r.r10), ("r11", r.r11)],
            [("r12", r.r12), ("r13", r.r13), ("r14", r.r14), ("r15", r.r15)],
        ];
        for row in rows {
            write!(f, "\n ")?;
            for (name, value) in row {
                write!(f, " {name} {value:016x}")?;
            }
        }
        write!(f, "\n  rflags {:x} fs {:x}", r.rflags, r.fs_base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: u64 = 0x7fff_b000_0000;

    #[track_caller]
    fn check(vector: u8, error_code: u64, address: u64, code: &[u8], rights: Option<Rights>, want: Cause) {
        let stack = Span::new(STACK, 1 << 20).unwrap();
        let scene = Scene { exception: Exception { vector, error_code, address }, code, stack, rights };
        assert_eq!(Cause::of(&scene), want);
    }

    #[test]
    fn a_page_fault_is_told_by_its_address_and_rights() {
        let (read, write, fetch) = (4, 6, 0x14);
        check(14, read, 0, &[], None, Cause::NullPointer);
        check(14, fetch, 0xffff, &[], None, Cause::NullPointer);
        check(14, write, STACK - 8, &[], None, Cause::StackOverflow);
        check(14, write, STACK - (1 << 20), &[], None, Cause::StackOverflow);
        check(14, write, STACK - (1 << 20) - 1, &[], None, Cause::UnmappedMemory);
        check(14, write | 1, 0x40_0000, &[], Some(Rights::RX), Cause::WriteToReadOnly);
        check(14, fetch | 1, 0x40_0000, &[], Some(Rights::RW), Cause::ExecuteOfData);
        check(14, read, 0x40_0000, &[], Some(Rights::NONE), Cause::ForbiddenMemory);
        check(14, read | 1, map::TASK_STATE, &[], None, Cause::ForbiddenMemory);
    }

    #[test]
    fn a_protection_fault_is_told_by_its_instruction() {
        let check = |code: &[u8], want| check(13, 0, 0, code, None, want);
        check(&[0xe6, 0x80], Cause::ForbiddenPort(Some(0x80)));
        check(&[0x66, 0xed], Cause::ForbiddenPort(None));
        check(&[0xf3, 0x6e], Cause::ForbiddenPort(None));
        check(&[0xf4], Cause::PrivilegedInstruction);
        check(&[0x0f, 0x22, 0xd8], Cause::PrivilegedInstruction);
        check(&[0x48, 0x0f, 0x07], Cause::PrivilegedInstruction);
        check(&[0x0f, 0x30], Cause::PrivilegedInstruction);
        check(&[0x0f, 0x28, 0x00], Cause::BadAddress); // movaps
        check(&[0x48, 0x8b, 0x00], Cause::BadAddress);
        check(&[], Cause::BadAddress);
        check(&[0x66; 15], Cause::BadAddress);
    }

    #[test]
    fn a_report_reads_well() {
        let report = CrashReport {
            cause: Cause::NullPointer,
            vector: Some(14),
            address: Some(8),
            access: Some(Access::Read),
            registers: Registers { rip: 0x1234, ..Registers::default() },
            place: Some(Place { function: "main".into(), offset: 4 }),
        };
        let text = report.to_string();
        assert!(
            text.starts_with("guest crashed: null pointer (reading 0x8)\n  at 0x1234 in main+0x4, vector 14"),
            "{text}"
        );
    }
}
