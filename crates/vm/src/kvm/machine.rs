//! A KVM virtual machine's memory: slots over the host range, added as the guest uses more.
#![allow(unsafe_code)] // One of the crate's four unsafe files: telling KVM where guest memory lies.

use kvm_bindings::{
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE, KVM_MEM_LOG_DIRTY_PAGES, kvm_enable_cap,
    kvm_userspace_memory_region,
};
use kvm_ioctls::VmFd;

use crate::backend::Vm;
use crate::error::Error;
use crate::memory::GuestMemory;

/// Memory slots of one VM. Slot n covers what the first n do not; a VM has a few of them at most, since
/// [`crate::space`] doubles what is covered each time.
pub(super) struct Machine {
    vm: VmFd,
    slots: Vec<u64>, // Bytes of each.
    covered: u64,    // Their sum.
    calls: u64,
    tracks: bool, // Whether written pages can be asked for without write-protecting them again.
}

impl Machine {
    /// Takes over a new VM, for which `calls` ioctls were made.
    pub(super) fn new(vm: VmFd, calls: u64) -> Result<Self, Error> {
        let cap = kvm_enable_cap {
            cap: KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
            args: [u64::from(KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE), 0, 0, 0],
            ..kvm_enable_cap::default()
        };
        let tracks = vm.enable_cap(&cap).is_ok();
        Ok(Self { vm, slots: Vec::new(), covered: 0, calls: calls + 1, tracks })
    }
}

impl Vm for Machine {
    fn cover(&mut self, memory: &GuestMemory, bytes: u64) -> Result<(), Error> {
        if bytes <= self.covered {
            return Ok(());
        }
        if bytes > memory.bytes() {
            return Err(crate::memory::OutOfRange.into());
        }
        let region = kvm_userspace_memory_region {
            slot: self.slots.len() as u32,
            flags: if self.tracks { KVM_MEM_LOG_DIRTY_PAGES } else { 0 },
            guest_phys_addr: self.covered,
            memory_size: bytes - self.covered,
            userspace_addr: memory.host_address() + self.covered,
        };
        // SAFETY: the region lies in `memory` (checked above), whose owner, the address space, owns this VM too and
        // drops `memory` only when nothing enters the guest any more. Slots do not overlap: each starts where the last
        // one ended. No Rust reference into `memory` exists that a guest's write could break.
        unsafe { self.vm.set_user_memory_region(region) }
            .map_err(|error| Error::refused("giving memory to the VM", error))?;
        self.calls += 1;
        self.slots.push(bytes - self.covered);
        self.covered = bytes;
        Ok(())
    }

    fn pages_written(&mut self) -> Result<Option<u64>, Error> {
        if !self.tracks {
            return Ok(None);
        }
        let mut pages = 0;
        for (slot, bytes) in self.slots.iter().enumerate() {
            let log = self
                .vm
                .get_dirty_log(slot as u32, *bytes as usize)
                .map_err(|error| Error::refused("asking KVM for written pages", error))?;
            self.calls += 1;
            pages += log.iter().map(|bits| u64::from(bits.count_ones())).sum::<u64>();
        }
        Ok(Some(pages))
    }

    fn hypervisor_calls(&self) -> u64 {
        self.calls
    }
}
