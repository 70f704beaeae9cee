//! The dirty ring: pages that the guest wrote, told by the kernel in shared memory, without a system call.
//!
//! The kernel appends an entry when a page is written for the first time since it was write-protected. Entries are read
//! and marked; only [`super::machine`] gives them back, when the ring is full, which write-protects their pages again.
//! Format: Linux, `Documentation/virt/kvm/api.rst`, 8.29.
#![allow(unsafe_code)] // Maps and reads memory that the kernel writes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use coracle_abi::PAGE_BYTES;
use kvm_bindings::{KVM_DIRTY_LOG_PAGE_OFFSET, kvm_dirty_gfn};
use kvm_ioctls::VcpuFd;
use rustix::mm::{self, MapFlags, ProtFlags};

/// Entries of a ring. Twice the working set of most requests; a full ring costs an exit and a system call.
const ENTRIES: usize = 4096;

/// Bytes of a ring, for `KVM_CAP_DIRTY_LOG_RING`.
pub(super) const BYTES: usize = ENTRIES * size_of::<kvm_dirty_gfn>();

/// `KVM_DIRTY_GFN_F_DIRTY`: the kernel filled the entry.
const DIRTY: u32 = 1;
/// `KVM_DIRTY_GFN_F_RESET`: we have read it.
const RESET: u32 = 2;

/// A vCPU's ring.
pub(super) struct Ring {
    entries: NonNull<kvm_dirty_gfn>, // Invariant: a mapping of ENTRIES entries that only this value owns.
    next: usize,                     // Invariant: below ENTRIES.
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that made it.
unsafe impl Send for Ring {}

/// A page that the guest wrote.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) slot: u32,
    /// The page's number in its slot.
    pub(super) offset: u64,
}

impl Ring {
    /// Maps the ring of a vCPU whose VM has the capability enabled with [`BYTES`].
    pub(super) fn map(vcpu: &VcpuFd) -> io::Result<Self> {
        // SAFETY: the descriptor is open as long as `vcpu`, which outlives this borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
        let offset = u64::from(KVM_DIRTY_LOG_PAGE_OFFSET) * PAGE_BYTES;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with a null address the kernel chooses a range that nothing uses; nothing is replaced.
        let entries = unsafe { mm::mmap(std::ptr::null_mut(), BYTES, rights, MapFlags::SHARED, fd, offset) }?;
        let entries = NonNull::new(entries.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { entries, next: 0 })
    }

    /// The next page that the guest wrote and that was not told yet.
    pub(super) fn take(&mut self) -> Option<Written> {
        // SAFETY: `next` is below the number of entries, so that the entry lies in the mapping.
        let entry = unsafe { self.entries.add(self.next) };
        // SAFETY: the entry is mapped and aligned; a field's address is taken, nothing is read.
        let flags = unsafe { &raw mut (*entry.as_ptr()).flags };
        // SAFETY: the flags are aligned, mapped for as long as `self`, and the kernel accesses them atomically.
        let flags = unsafe { AtomicU32::from_ptr(flags) };
        // Acquire: the kernel writes slot and offset before the flag.
        if flags.load(Ordering::Acquire) & DIRTY == 0 {
            return None;
        }
        // SAFETY: in the mapping, and the kernel does not touch a filled entry until it is given back.
        let kvm_dirty_gfn { slot, offset, .. } = unsafe { entry.read() };
        // Release: slot and offset have been read before the kernel may take the entry back.
        flags.store(RESET, Ordering::Release);
        self.next = (self.next + 1) % ENTRIES;
        Some(Written { slot, offset })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and whole, and nothing points into it any more.
        let _ = unsafe { mm::munmap(self.entries.as_ptr().cast(), BYTES) };
    }
}
