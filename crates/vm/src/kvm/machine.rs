//! A KVM virtual machine's memory: slots over the host range, added as the guest uses more, and the record of pages that
//! the guest wrote.
#![allow(unsafe_code)] // One of the crate's few unsafe files: telling KVM where guest memory lies.

use std::io;
use std::os::fd::AsRawFd;

use coracle_abi::PAGE_BYTES;
use kvm_bindings::{
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE, KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_READONLY,
    kvm_clear_dirty_log, kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::VmFd;

use super::ring::Ring;
use crate::backend::Vm;
use crate::content::Content;
use crate::error::Error;
use crate::memory::GuestMemory;
use crate::paging::Frame;
use crate::space::CONTENTS_MAX;

/// `KVM_RESET_DIRTY_RINGS`: `_IO(0xae, 0xc7)`, which kvm-ioctls does not have.
const RESET_DIRTY_RINGS: libc::Ioctl = 0xaec7;
/// `KVM_CLEAR_DIRTY_LOG`: `_IOWR(0xae, 0xc0, struct kvm_clear_dirty_log)`, likewise.
const CLEAR_DIRTY_LOG: libc::Ioctl = 0xc018_aec0;

/// A slot number that no guest memory uses.
const DUMMY_SLOT: u32 = 500;
/// The first of those for lent content.
const CONTENT_SLOT: u32 = 400;
const _: () = assert!(CONTENT_SLOT + CONTENTS_MAX as u32 <= DUMMY_SLOT);

/// How KVM tells which pages the guest wrote.
pub(super) enum Log {
    /// In shared memory.
    Ring(Ring),
    /// By a system call for each slot, without write-protecting the pages again.
    Bitmap,
    /// Not at all: an old kernel.
    None,
}

/// Memory slots of one VM. Slot n covers what the first n do not; a VM has a few of them at most, since
/// [`crate::space`] doubles what is covered each time.
pub(super) struct Machine {
    vm: VmFd,
    slots: Vec<Slot>,
    covered: u64, // The sum of their sizes.
    calls: u64,
    log: Log,
}

#[derive(Clone, Copy)]
struct Slot {
    first: u32, // Frame.
    bytes: u64,
}

impl Machine {
    /// Takes over a new VM, for which `calls` ioctls were made, and whose ring has been mapped if it has one.
    pub(super) fn new(vm: VmFd, ring: Option<Ring>, calls: u64) -> Self {
        let log = match ring {
            Some(ring) => Log::Ring(ring),
            None if keep_bits(&vm) => Log::Bitmap,
            None => Log::None,
        };
        let calls = calls + u64::from(!matches!(log, Log::Ring(_)));
        Self { vm, slots: Vec::new(), covered: 0, calls, log }
    }

    /// Gives the ring's entries back to the kernel, which write-protects their pages.
    fn reset_ring(&mut self) -> io::Result<()> {
        // SAFETY: the ioctl takes no argument and touches no memory of this process but the rings, whose entries that we
        // marked it takes back.
        let result = unsafe { libc::ioctl(self.vm.as_raw_fd(), RESET_DIRTY_RINGS, 0) };
        self.calls += 1;
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Clears all bits of the bitmap, and write-protects the pages whose bits were set.
    fn clear_bitmap(&mut self) -> io::Result<()> {
        for (number, slot) in (0..).zip(&self.slots) {
            let pages = slot.bytes / PAGE_BYTES;
            let mut ones = vec![u64::MAX; pages.div_ceil(64) as usize];
            let mut clear =
                kvm_clear_dirty_log { slot: number, num_pages: pages as u32, ..kvm_clear_dirty_log::default() };
            clear.__bindgen_anon_1.dirty_bitmap = ones.as_mut_ptr().cast();
            // SAFETY: the ioctl reads the structure and as many bits as the slot has pages, for which `ones` has room; both
            // live until it returns. It writes to neither.
            let result = unsafe { libc::ioctl(self.vm.as_raw_fd(), CLEAR_DIRTY_LOG, &raw mut clear) };
            self.calls += 1;
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

/// Has KVM keep the bits of a dirty bitmap, and the pages writable, when the bitmap is read.
fn keep_bits(vm: &VmFd) -> bool {
    let cap = kvm_enable_cap {
        cap: KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
        args: [u64::from(KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE), 0, 0, 0],
        ..kvm_enable_cap::default()
    };
    vm.enable_cap(&cap).is_ok()
}

impl Vm for Machine {
    fn cover(&mut self, memory: &GuestMemory, bytes: u64) -> Result<(), Error> {
        if bytes <= self.covered {
            return Ok(());
        }
        if bytes > memory.bytes() {
            return Err(crate::memory::OutOfRange.into());
        }
        let slot = Slot { first: (self.covered / PAGE_BYTES) as u32, bytes: bytes - self.covered };
        let region = kvm_userspace_memory_region {
            slot: self.slots.len() as u32,
            flags: if matches!(self.log, Log::None) { 0 } else { KVM_MEM_LOG_DIRTY_PAGES },
            guest_phys_addr: self.covered,
            memory_size: slot.bytes,
            userspace_addr: memory.host_address() + self.covered,
        };
        // SAFETY: the region lies in `memory` (checked above), whose owner, the address space, owns this VM too and
        // drops `memory` only when nothing enters the guest any more. Slots do not overlap: each starts where the last
        // one ended. No Rust reference into `memory` exists that a guest's write could break.
        unsafe { self.vm.set_user_memory_region(region) }
            .map_err(|error| Error::refused("giving memory to the VM", error))?;
        self.calls += 1;
        self.slots.push(slot);
        self.covered = bytes;
        Ok(())
    }

    fn collect_written(&mut self, memory: &mut GuestMemory) -> Result<Option<u64>, Error> {
        let mut told = 0;
        match &mut self.log {
            Log::None => return Ok(None),
            Log::Ring(ring) => {
                while let Some(written) = ring.take() {
                    // The upper half names the address space, of which there is one.
                    let Some(slot) = self.slots.get((written.slot & 0xffff) as usize) else { continue };
                    memory.note_written(Frame(slot.first + written.offset as u32));
                    told += 1;
                }
            }
            Log::Bitmap => {
                for (number, slot) in self.slots.iter().enumerate() {
                    let bits = self.vm.get_dirty_log(number as u32, slot.bytes as usize);
                    let bits = bits.map_err(|error| Error::refused("asking KVM for written pages", error))?;
                    self.calls += 1;
                    for (word, mut bits) in (0..).zip(bits) {
                        while bits != 0 {
                            memory.note_written(Frame(slot.first + word * 64 + bits.trailing_zeros()));
                            bits &= bits - 1;
                            told += 1;
                        }
                    }
                }
            }
        }
        Ok(Some(told))
    }

    fn empty_log(&mut self, memory: &mut GuestMemory) -> Result<(), Error> {
        self.collect_written(memory)?;
        let failed = |error| Error::refused("write-protecting the guest's pages", error);
        match self.log {
            Log::None => Ok(()),
            Log::Ring(_) => self.reset_ring().map_err(failed),
            Log::Bitmap => self.clear_bitmap().map_err(failed),
        }
    }

    fn forget_translations(&mut self, memory: &GuestMemory) -> Result<(), Error> {
        for bytes in [PAGE_BYTES, 0] {
            let region = kvm_userspace_memory_region {
                slot: DUMMY_SLOT,
                flags: 0,
                // Right behind what the guest can ever have: a fixed high address may be beyond what the processor has.
                guest_phys_addr: memory.bytes(),
                memory_size: bytes,
                userspace_addr: memory.host_address(),
            };
            // SAFETY: as in `cover`: the page lies in `memory`, which is never empty. It is there for the moment between
            // two system calls, in which the guest does not run; removing a slot makes KVM drop every translation.
            unsafe { self.vm.set_user_memory_region(region) }
                .map_err(|error| Error::refused("dropping the VM's translations", error))?;
            self.calls += 1;
        }
        Ok(())
    }

    fn lend(&mut self, number: u32, at: u64, content: &Content) -> Result<(), Error> {
        let region = kvm_userspace_memory_region {
            slot: CONTENT_SLOT + number,
            flags: KVM_MEM_READONLY,
            guest_phys_addr: at,
            memory_size: content.size().get(),
            userspace_addr: content.host_address(),
        };
        // SAFETY: the region is the whole of the content's mapping, which whoever called keeps until after `take_back`, or longer than this
        // VM. The guest cannot write to it: the slot and the mapping are read-only.
        unsafe { self.vm.set_user_memory_region(region) }
            .map_err(|error| Error::refused("mapping content into the VM", error))?;
        self.calls += 1;
        Ok(())
    }

    fn take_back(&mut self, number: u32, at: u64) -> Result<(), Error> {
        let region = kvm_userspace_memory_region {
            slot: CONTENT_SLOT + number,
            guest_phys_addr: at,
            ..kvm_userspace_memory_region::default()
        };
        // SAFETY: a slot without memory is removed.
        unsafe { self.vm.set_user_memory_region(region) }
            .map_err(|error| Error::refused("taking content out of the VM", error))?;
        self.calls += 1;
        Ok(())
    }

    fn hypervisor_calls(&self) -> u64 {
        self.calls
    }
}
