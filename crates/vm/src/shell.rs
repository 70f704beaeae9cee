//! A virtual machine without a guest: what takes most of the time to make, and can be used again.

use coracle_abi::PageBytes;

use crate::backend::{Backend, Parts, Vcpu, Vm};
use crate::error::Error;
use crate::memory::GuestMemory;
use crate::space::Space;

/// Memory of zeros, a machine that has it, and a processor. Its registers are anything: whoever enters a guest sets them all, and
/// begins inside the doorbell's page, which gives it fresh vector and x87 registers.
pub struct Shell {
    /// Zeros.
    pub memory: GuestMemory,
    /// The machine.
    pub vm: Box<dyn Vm>,
    /// Its processor.
    pub vcpu: Box<dyn Vcpu>,
}

impl Shell {
    /// A new one.
    ///
    /// # Errors
    /// When there is no address space for the memory, and the hypervisor's.
    pub fn new(backend: &dyn Backend, memory: PageBytes) -> Result<Self, Error> {
        let memory = GuestMemory::reserve(memory).map_err(|error| {
            let what = format!("reserving {} bytes of address space for the guest's memory", memory.get());
            Error::refused(&what, error)
        })?;
        let parts = Parts { root: Space::ROOT, exception_stack: Space::EXCEPTION_STACK };
        let (vm, vcpu) = backend.create(&parts)?;
        Ok(Self { memory, vm, vcpu })
    }

    /// What is left of a guest's machine when everything of the guest is gone from it. The guest may have been stopped
    /// anywhere.
    ///
    /// # Errors
    /// The hypervisor's. Nothing of the guest is reachable any more, since nothing is left.
    pub fn of(space: Space, vcpu: Box<dyn Vcpu>) -> Result<Self, Error> {
        let (mut memory, mut vm) = space.into_parts()?;
        // What it wrote is of no interest, but is told only once.
        vm.empty_log(&mut memory)?;
        memory.clear().map_err(|error| Error::refused("clearing guest memory", error))?;
        vm.forget_translations(&memory)?;
        Ok(Self { memory, vm, vcpu })
    }
}
