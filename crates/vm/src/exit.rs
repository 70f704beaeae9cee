//! Why a guest stopped, and what its registers held.

use serde::{Deserialize, Serialize};

/// One return from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Ring 3 wrote the doorbell port. Entering again continues after it.
    Doorbell,
    /// Ring 3 executed `syscall`. Number and arguments are in the registers, as Linux has them.
    Syscall,
    /// The processor raised an exception. Entering again, after [`Vcpu::set_registers`](crate::Vcpu::set_registers),
    /// tries the instruction once more.
    Exception(Exception),
    /// A signal or a kick arrived. Entering again continues.
    Interrupted,
    /// The record of written pages is full. Entering again continues, after [`Vm::empty_log`](crate::Vm::empty_log).
    LogFull,
    /// The virtual processor cannot go on: a fault while delivering a fault.
    Shutdown,
    /// The hypervisor stopped for a reason that no guest of ours should be able to cause. The number is the
    /// hypervisor's own.
    Unexpected(u32),
}

/// What the processor said of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The x86 vector, 0-31.
    pub vector: u8,
    /// The error code, or 0 for vectors without one.
    pub error_code: u64,
    /// CR2: for a page fault the address that was used. Else stale.
    pub address: u64,
}

/// Vector of the divide error.
pub const DIVIDE_ERROR: u8 = 0;
/// Vector of the debug exception (single step).
pub const DEBUG: u8 = 1;
/// Vector of `int3`.
pub const BREAKPOINT: u8 = 3;
/// Vector of the invalid-opcode exception.
pub const INVALID_OPCODE: u8 = 6;
/// Vector of the double fault.
pub const DOUBLE_FAULT: u8 = 8;
/// Vector of the stack-segment fault: a non-canonical address by way of RSP or RBP.
pub const STACK_FAULT: u8 = 12;
/// Vector of the general-protection fault.
pub const GENERAL_PROTECTION: u8 = 13;
/// Vector of the page fault.
pub const PAGE_FAULT: u8 = 14;
/// Vector of the x87 floating-point error.
pub const X87_ERROR: u8 = 16;
/// Vector of the alignment check.
pub const ALIGNMENT_CHECK: u8 = 17;
/// Vector of the SIMD floating-point error.
pub const SIMD_ERROR: u8 = 19;

/// Whether the processor pushes an error code for this vector (Intel SDM volume 3, table 6-1).
pub const fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

/// The guest's registers, as ring 3 has them: after a trap, those of the instruction that trapped, not of the stub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registers {
    /// RAX: a system call's number, then its result.
    pub rax: u64,
    /// RBX.
    pub rbx: u64,
    /// RCX.
    pub rcx: u64,
    /// RDX.
    pub rdx: u64,
    /// RSI.
    pub rsi: u64,
    /// RDI.
    pub rdi: u64,
    /// RSP.
    pub rsp: u64,
    /// RBP.
    pub rbp: u64,
    /// R8.
    pub r8: u64,
    /// R9.
    pub r9: u64,
    /// R10.
    pub r10: u64,
    /// R11.
    pub r11: u64,
    /// R12.
    pub r12: u64,
    /// R13.
    pub r13: u64,
    /// R14.
    pub r14: u64,
    /// R15.
    pub r15: u64,
    /// The next instruction.
    pub rip: u64,
    /// The flags. Only those of [`USER_FLAGS`] are taken when set.
    pub rflags: u64,
    /// Base of the FS segment: thread-local storage.
    pub fs_base: u64,
    /// Base of the GS segment.
    pub gs_base: u64,
}

impl Registers {
    /// Whether a guest that waits inside the doorbell's page with these registers goes on as with `other`: the page itself
    /// gives all others a new value.
    pub fn same_at_doorbell(&self, other: &Self) -> bool {
        const KEPT_FLAGS: u64 = TRAP_FLAG | 1 << 10 | 1 << 18 | 1 << 21; // TF, DF, AC, ID
        let kept = |r: &Self| [r.rbx, r.rbp, r.rsp, r.r12, r.r13, r.r14, r.r15, r.rip, r.fs_base, r.gs_base];
        kept(self) == kept(other) && (self.rflags ^ other.rflags) & KEPT_FLAGS == 0
    }
}

/// The flags that ring 3 may change: status flags, TF, DF, AC, ID. Everything else is the host's: no guest value can
/// raise IOPL.
pub const USER_FLAGS: u64 = 0x24_0dd5;
/// The trap flag: one instruction, then a debug exception.
pub const TRAP_FLAG: u64 = 1 << 8;
/// Bit 1 of RFLAGS is always set.
const ALWAYS: u64 = 2;

/// The flags with which ring 3 is entered when it asked for `claim`.
pub const fn sanitized_flags(claim: u64) -> u64 {
    claim & USER_FLAGS | ALWAYS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_claim_raises_the_io_privilege() {
        let iopl = 3 << 12;
        let nested_task = 1 << 14;
        let virtual_8086 = 1 << 17;
        assert_eq!(sanitized_flags(u64::MAX) & (iopl | nested_task | virtual_8086), 0);
        assert_eq!(sanitized_flags(0), 2);
        assert_eq!(sanitized_flags(TRAP_FLAG) & TRAP_FLAG, TRAP_FLAG);
    }
}
