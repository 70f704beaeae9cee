//! Descriptor tables and the ring-0 stub, as the bytes that go into the guest's control pages.
//!
//! This is all the code that ever runs in ring 0, and all that ring 0 ever reads:
//!
//! - an *exception gate* for each vector: one `out`, after which the host takes over and never comes back here;
//! - the *system-call entry*: one `out`, then `sysretq` for hosts where `syscall` enters ring 0 (bare metal). Under
//!   kvm-pvm `syscall` arrives here still in ring 3, which is why the page is user-executable and the doorbell port open;
//! - the *doorbell*: one `out`, then fresh registers where a C function may change them, then `ret`; ring 3 calls it.
//!
//! Exceptions switch to the exception stack always (IST and RSP0 are the same stack), so that no value of the guest's
//! RSP matters. Formats: Intel SDM volume 3, 3.4, 6.14, 8.7.

use coracle_abi::map;
use coracle_abi::port::{DOORBELL_PORT, EXCEPTION_PORT};

use crate::backend::ControlPage;
use crate::paging::Level;
use crate::rights::Rights;

/// Selector of the ring-3 code segment.
pub(super) const USER_CODE: u16 = 0x2b;
/// Selector of the ring-3 data segments.
pub(super) const USER_DATA: u16 = 0x23;
/// Selector of the ring-0 code segment; the one for data follows it, as `syscall` demands.
const KERNEL_CODE: u16 = 0x08;
/// Selector of the task state.
pub(super) const TASK: u16 = 0x30;

/// STAR: `syscall` loads CS and SS from bits 47:32, `sysretq` from bits 63:48 plus 16 and 8.
pub(super) const STAR: u64 = (0x1b << 48) | ((KERNEL_CODE as u64) << 32);
/// Flags that `syscall` clears: TF, IF, DF, IOPL, NT, AC.
pub(super) const SYSCALL_FLAG_MASK: u64 = 0x4_7700;

/// Global descriptor table: null, kernel code and data, an empty place, user data and code, and the task state's two.
/// Accessed bits are preset: the page is read-only.
const DESCRIPTORS: [u64; 8] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
    0x0000_8900_0000_0000
        | TASK_LIMIT as u64
        | (map::TASK_STATE & 0xff_ffff) << 16
        | (map::TASK_STATE >> 24 & 0xff) << 56,
    map::TASK_STATE >> 32,
];
/// Limit of the global descriptor table.
pub(super) const DESCRIPTORS_LIMIT: u16 = (size_of_val(&DESCRIPTORS) - 1) as u16;

/// Vectors with a gate: the exceptions. `int n` beyond them is a general-protection fault.
const VECTORS: u64 = 32;
/// Where the interrupt descriptor table lies, in the page of the other one.
pub(super) const INTERRUPTS: u64 = map::DESCRIPTORS + 0x800;
/// Limit of the interrupt descriptor table.
pub(super) const INTERRUPTS_LIMIT: u16 = (VECTORS * 16 - 1) as u16;
const GATE_BYTES: u64 = 16;

/// The task state ends with the I/O permission bitmap, which ends after the doorbell port's byte.
const BITMAP: usize = 0x68;
const BITMAP_BYTES: usize = DOORBELL_PORT as usize / 8 + 1;
/// Limit of the task state: ports whose bit lies beyond it are closed. The processor reads two bytes for each check.
pub(super) const TASK_LIMIT: u32 = (BITMAP + BITMAP_BYTES) as u32;

/// First address after the exception stack: where the processor starts to push.
pub(super) const STACK_TOP: u64 = map::EXCEPTION_STACK + coracle_abi::PAGE_BYTES;

/// Which vector's gate this instruction pointer is in.
pub(super) fn vector_at(rip: u64) -> Option<u8> {
    let offset = rip.checked_sub(map::GATES)?;
    u8::try_from(offset / GATE_BYTES).ok().filter(|vector| u64::from(*vector) < VECTORS)
}

/// Whether this instruction pointer, at an exit, means that the system-call entry was reached. Hypervisors differ in
/// whether it is before or after the `out`.
pub(super) fn is_syscall_entry(rip: u64) -> bool {
    rip == map::SYSCALL_ENTRY || rip == map::SYSCALL_ENTRY + OUT_BYTES
}

/// All control pages, in no particular order.
pub(super) fn pages(extended: ExtendedState) -> Vec<ControlPage> {
    let page = |address, content, rights, level| ControlPage { address, content, rights, level };
    vec![
        page(map::DESCRIPTORS, descriptors(), Rights::R, Level::Supervisor),
        page(map::TASK_STATE, task_state(), Rights::R, Level::Supervisor),
        page(map::GATES, gates(), Rights::RX, Level::Supervisor),
        page(map::EXCEPTION_STACK, Vec::new(), Rights::RW, Level::Supervisor),
        page(map::SYSCALL_ENTRY, syscall_entry(), Rights::RX, Level::User),
        page(map::DOORBELL, doorbell(extended), Rights::RX, Level::User),
    ]
}

const OUT_IMM8_AL: u8 = 0xe6;
/// Bytes of the `out` in stub and doorbell.
pub(super) const OUT_BYTES: u64 = 2;
const HLT: u8 = 0xf4;
const RET: u8 = 0xc3;
const SYSRETQ: [u8; 3] = [0x48, 0x0f, 0x07];
const INT3: u8 = 0xcc;

fn descriptors() -> Vec<u8> {
    let mut page = vec![0; coracle_abi::PAGE_BYTES as usize];
    for (descriptor, at) in DESCRIPTORS.iter().zip(page.chunks_exact_mut(8)) {
        at.copy_from_slice(&descriptor.to_le_bytes());
    }
    let table = &mut page[(INTERRUPTS - map::DESCRIPTORS) as usize..];
    for (vector, at) in (0..VECTORS).zip(table.chunks_exact_mut(16)) {
        let handler = map::GATES + vector * GATE_BYTES;
        // `int3` and `into` may be executed by ring 3; `int n` with another vector is a general-protection fault.
        let privilege: u64 = if matches!(vector, 3 | 4) { 3 } else { 0 };
        let interrupt_gate = 0x8e | privilege << 5;
        let stack: u64 = 1; // IST1
        let low = handler & 0xffff
            | u64::from(KERNEL_CODE) << 16
            | stack << 32
            | interrupt_gate << 40
            | (handler >> 16 & 0xffff) << 48;
        at[..8].copy_from_slice(&low.to_le_bytes());
        at[8..].copy_from_slice(&(handler >> 32).to_le_bytes());
    }
    page
}

fn task_state() -> Vec<u8> {
    let mut page = vec![0; BITMAP + BITMAP_BYTES + 1];
    page[0x04..0x0c].copy_from_slice(&STACK_TOP.to_le_bytes()); // RSP0
    page[0x24..0x2c].copy_from_slice(&STACK_TOP.to_le_bytes()); // IST1
    page[0x66..0x68].copy_from_slice(&(BITMAP as u16).to_le_bytes());
    page[BITMAP..].fill(0xff);
    page[BITMAP + usize::from(DOORBELL_PORT / 8)] &= !(1 << (DOORBELL_PORT % 8));
    page
}

fn gates() -> Vec<u8> {
    let mut page = vec![HLT; (VECTORS * GATE_BYTES) as usize];
    for gate in page.chunks_exact_mut(GATE_BYTES as usize) {
        gate[..2].copy_from_slice(&[OUT_IMM8_AL, EXCEPTION_PORT as u8]);
    }
    page
}

fn syscall_entry() -> Vec<u8> {
    let mut code = vec![OUT_IMM8_AL, DOORBELL_PORT as u8];
    code.extend(SYSRETQ);
    code.resize(coracle_abi::PAGE_BYTES as usize, INT3);
    code
}

/// The doorbell: `out`, then a fresh extended state and zeros in the registers that a C function may change, then `ret`.
/// So a guest that comes back from its host has nothing in them of before, whether or not it was restored meanwhile, and
/// nothing of it needs to be saved.
fn doorbell(extended: ExtendedState) -> Vec<u8> {
    let mut code = vec![OUT_IMM8_AL, DOORBELL_PORT as u8];
    code.extend([0xb8, extended.mask(), 0, 0, 0]); // mov eax, mask
    code.extend([0x31, 0xd2]); // xor edx, edx
    // xrstor64 or fxrstor64 [rip + distance]: the distance counts from the end of the instruction.
    code.extend([0x48, 0x0f, 0xae, extended.operand()]);
    code.extend((STATE_OFFSET as u32 - code.len() as u32 - 4).to_le_bytes());
    // The other registers that a C function may change, so that nothing of an earlier life is in them either.
    for register in 0..8 {
        if !matches!(register, RBX | RSP | RBP) {
            code.extend([0x31, 0xc0 | register << 3 | register]); // xor of a register with itself
        }
    }
    for register in 0..4 {
        code.extend([0x45, 0x31, 0xc0 | register << 3 | register]); // r8 to r11
    }
    code.push(RET);
    code.resize(STATE_OFFSET, INT3);
    code.extend(initial_state());
    code.resize(coracle_abi::PAGE_BYTES as usize, INT3);
    code
}

/// Which instruction restores the extended state of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtendedState {
    /// `xrstor`, for these parts.
    Xsave(u8),
    /// `fxrstor`: x87 and SSE.
    Fxsave,
}

impl ExtendedState {
    const fn mask(self) -> u8 {
        match self {
            Self::Xsave(parts) => parts,
            Self::Fxsave => 0,
        }
    }

    /// The byte that says which instruction, with an address relative to RIP.
    const fn operand(self) -> u8 {
        match self {
            Self::Xsave(_) => 0x2d,
            Self::Fxsave => 0x0d,
        }
    }
}

const RBX: u8 = 3;
const RSP: u8 = 4;
const RBP: u8 = 5;

/// Where the state lies in the doorbell's page: 64-byte aligned.
const STATE_OFFSET: usize = 0x400;

/// The state of a processor after `init`, in the standard format (Intel SDM volume 1, 13.4): control words in the legacy
/// part, and a header that says that all parts are initial.
fn initial_state() -> [u8; 576] {
    let mut state = [0; 576];
    state[..2].copy_from_slice(&0x037f_u16.to_le_bytes()); // FCW
    state[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes()); // MXCSR
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bitmap_opens_one_port() {
        let page = task_state();
        let open = |port: usize| {
            let (byte, bit) = (BITMAP + port / 8, port % 8);
            byte <= TASK_LIMIT as usize && page.get(byte).is_some_and(|bits| bits & 1 << bit == 0)
        };
        let all: Vec<usize> = (0..=0xffff).filter(|port| open(*port)).collect();
        assert_eq!(all, [usize::from(DOORBELL_PORT)]);
    }

    #[test]
    fn an_address_in_the_gates_names_its_vector() {
        assert_eq!(vector_at(map::GATES), Some(0));
        assert_eq!(vector_at(map::GATES + 14 * 16 + 2), Some(14));
        assert_eq!(vector_at(map::GATES + 32 * 16), None);
        assert_eq!(vector_at(map::GATES - 1), None);
    }

    #[test]
    fn descriptors_and_gates_do_not_overlap() {
        assert!(map::DESCRIPTORS + u64::from(DESCRIPTORS_LIMIT) < INTERRUPTS);
        assert!(INTERRUPTS + u64::from(INTERRUPTS_LIMIT) < map::DESCRIPTORS + coracle_abi::PAGE_BYTES);
    }

    #[test]
    fn the_only_writable_control_page_is_the_exception_stack() {
        for page in pages(ExtendedState::Fxsave) {
            assert_eq!(page.rights.write, page.address == map::EXCEPTION_STACK, "{:#x}", page.address);
            assert!(page.rights.is_legal());
        }
    }
}
