//! Where things lie in the guest's address space. `docs/memory-map.md` draws it.
//!
//! Everything that every guest needs lies in one 1 GiB window below [`WINDOW_END`], so that five page-table pages
//! are enough for a small guest. Only images with a link base of their own, big heaps and `mmap` go elsewhere.

use crate::address::PAGE_BYTES;

/// Nothing is ever mapped below this address (64 KiB, Linux's default `mmap_min_addr`), so that a null pointer
/// with a field offset faults.
pub const LOWEST: u64 = 0x1_0000;

/// End of the user half, exclusive. The page below the architectural end is never mapped: a `syscall` there
/// would return to a non-canonical address.
pub const HIGHEST: u64 = 0x7fff_ffff_f000;

/// Start of the window in which position-independent images and everything host-made lie.
pub const WINDOW_START: u64 = 0x7fff_8000_0000;

/// End of that window, exclusive.
pub const WINDOW_END: u64 = 0x7fff_c000_0000;

/// Load base of position-independent images; `brk` follows the image.
pub const IMAGE_BASE: u64 = WINDOW_START;

/// `brk` and position-independent images stay below this address.
pub const IMAGE_END: u64 = WINDOW_START + (512 << 20);

/// `mmap` without a fixed address, and the heap, are placed from here downwards.
pub const MMAP_END: u64 = WINDOW_START;

/// Pages for the host's own use at the top of the window: descriptor tables, stub, exception stack, doorbell,
/// boot page. Fixed places, below.
pub const CONTROL_START: u64 = WINDOW_END - 16 * PAGE_BYTES;

/// Read-only, supervisor: GDT, IDT.
pub const DESCRIPTORS: u64 = CONTROL_START;
/// Read-only, supervisor: the task-state segment and its I/O permission bitmap.
pub const TASK_STATE: u64 = CONTROL_START + PAGE_BYTES;
/// Read-only, supervisor, executable: the exception gates' code.
pub const GATES: u64 = CONTROL_START + 2 * PAGE_BYTES;
/// Read-only, user-executable: where `syscall` arrives.
pub const SYSCALL_ENTRY: u64 = CONTROL_START + 3 * PAGE_BYTES;
/// Writable, supervisor: the stack on which the processor leaves an exception's frame.
pub const EXCEPTION_STACK: u64 = CONTROL_START + 4 * PAGE_BYTES;
/// Read-only, user-executable: the doorbell, called like a function.
pub const DOORBELL: u64 = CONTROL_START + 8 * PAGE_BYTES;
/// Where a guest goes on that rang: behind the page's `out`. The page's code then gives it fresh registers and returns to the
/// address on top of its stack.
pub const DOORBELL_RETURN: u64 = DOORBELL + 2;
/// Read-only, user: the [boot page](crate::boot).
pub const BOOT_PAGE: u64 = CONTROL_START + 9 * PAGE_BYTES;

/// Everything below this and above the stack guard is laid out per sandbox: transport area, then stack.
pub const TRANSPORT_END: u64 = CONTROL_START - PAGE_BYTES; // One page between them is never mapped.

/// Never mapped, below the stack: a frame of up to this many bytes that runs past the stack's end faults here and
/// is reported as an overflow.
pub const STACK_GUARD_BYTES: u64 = 1 << 20;

// Changing any of these breaks guests and snapshots that already exist. Read docs/memory-map.md first.
const _: () = {
    assert!(WINDOW_END - WINDOW_START == 1 << 30);
    assert!(WINDOW_END < HIGHEST);
    assert!(WINDOW_START.is_multiple_of(1 << 30));
    assert!(CONTROL_START == 0x7fff_bfff_0000);
    assert!(SYSCALL_ENTRY == 0x7fff_bfff_3000);
    assert!(DOORBELL == 0x7fff_bfff_8000);
    assert!(BOOT_PAGE == 0x7fff_bfff_9000);
};
