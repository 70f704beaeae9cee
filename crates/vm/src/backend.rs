//! What a hypervisor must do for Coracle. Small, so that a new one is a small piece of work.
//!
//! A backend never interprets what a guest says. It enters ring 3, says why it came back, and gives the registers.

use std::sync::Arc;

use crate::content::Content;
use crate::error::Error;
use crate::exit::{Exit, Registers};
use crate::memory::GuestMemory;
use crate::paging::Frame;

/// Memory of one virtual machine, as the hypervisor sees it.
pub trait Vm: Send {
    /// Makes guest-physical memory from 0 to `bytes` (a multiple of the page size, never less than before) usable.
    ///
    /// # Errors
    /// The hypervisor's. What was usable stays so.
    fn cover(&mut self, memory: &GuestMemory, bytes: u64) -> Result<(), Error>;

    /// Notes in `memory` ([`GuestMemory::note_written`]) each page that the guest wrote since the last call. Pages that
    /// were told before, and were not write-protected since, may or may not be told again. Returns how many were told,
    /// or `None` if this backend does not know what the guest writes.
    ///
    /// # Errors
    /// The hypervisor's.
    fn collect_written(&mut self, memory: &mut GuestMemory) -> Result<Option<u64>, Error>;

    /// Collects, and has every page write-protected that was told so far, so that the next write to it is told again: makes
    /// room after [`Exit::LogFull`].
    ///
    /// # Errors
    /// The hypervisor's.
    fn empty_log(&mut self, memory: &mut GuestMemory) -> Result<(), Error>;

    /// Makes the hypervisor drop everything that it keeps of the guest's page tables. For changes that
    /// [`GuestMemory::invalidate`] does not reach: to tables above the lowest. Slow.
    ///
    /// # Errors
    /// The hypervisor's.
    fn forget_translations(&mut self, memory: &GuestMemory) -> Result<(), Error>;

    /// Shows the guest `content`, read-only, from this guest-physical address on, under a number below
    /// [`CONTENTS_MAX`](crate::space::CONTENTS_MAX). It is outlived by `content`, and does not touch anything that is there.
    ///
    /// # Errors
    /// The hypervisor's; nothing is changed then.
    fn lend(&mut self, number: u32, at: u64, content: &Content) -> Result<(), Error>;

    /// Ends that, at once.
    ///
    /// # Errors
    /// The hypervisor's.
    fn take_back(&mut self, number: u32, at: u64) -> Result<(), Error>;

    /// Hypervisor calls (on KVM: ioctls) made for this VM so far, [`Vcpu::run`] not counted.
    fn hypervisor_calls(&self) -> u64;
}

/// One virtual processor, in ring 3 or on its way there.
pub trait Vcpu: Send {
    /// Runs the guest until its next exit.
    ///
    /// # Errors
    /// The hypervisor's. The guest cannot be entered again then.
    fn run(&mut self, memory: &mut GuestMemory) -> Result<Exit, Error>;

    /// The guest's registers at the last exit.
    fn registers(&self) -> Registers;

    /// Replaces them all, before the next entry. `rip`, `rflags` are sanitised; any value is safe for the host.
    fn set_registers(&mut self, registers: &Registers);

    /// Whether the guest waits inside the doorbell's page, so that it goes on with fresh vector and x87 registers.
    fn is_parked(&self) -> bool;

    /// Ends a system call: the guest continues after its `syscall` with `result` in RAX.
    fn finish_syscall(&mut self, result: i64);

    /// A handle that makes [`Vcpu::run`] return [`Exit::Interrupted`], from another thread.
    fn kicker(&self) -> Arc<dyn Kick>;

    /// Times [`Vcpu::run`] entered the guest.
    fn entries(&self) -> u64;

    /// Other hypervisor calls made for this processor so far.
    fn hypervisor_calls(&self) -> u64;

    /// Instructions that the guest executed, if this processor counts them.
    fn instructions(&self) -> Option<u64> {
        None
    }
}

/// Stops a running vCPU from outside.
pub trait Kick: Send + Sync {
    /// Makes the thread `thread` (as [`crate::kick::current_thread`] named it) leave the guest if it is in it. A kick
    /// that arrives just before the entry may be lost: repeat it until the vCPU's owner has answered.
    fn kick(&self, thread: crate::kick::ThreadId);
}

/// Makes virtual machines.
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// The backend's name, for messages: `kvm`, `fake`.
    fn name(&self) -> &'static str;

    /// Makes a VM whose page tables are rooted in `root` and which lives in `memory`. The backend puts what it needs
    /// (descriptor tables, stub) at the addresses that [`coracle_abi::map`] reserves, in frames that `control` gives;
    /// nothing is usable before [`Vm::cover`].
    ///
    /// # Errors
    /// When the hypervisor is missing, too old or refuses: what is missing and what to do.
    fn create(&self, parts: &Parts) -> Result<Pair, Error>;

    /// Machines of backends with the same key are the same, so that one can be used again for a guest of the other
    /// ([`crate::Shell`]). `None`: each is for one guest only.
    fn shell_key(&self) -> Option<u64> {
        None
    }

    /// Features of the processor that guests of this backend may count on, by the names that Linux has for them, in an order that does not
    /// change.
    fn cpu_features(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Which of these a guest that counts on them would miss here, whatever its template shows.
    fn lacks<'f>(&self, features: &'f [String]) -> Vec<&'f str> {
        missing(&self.cpu_features(), features)
    }

    /// Bytes for each control page, to be put there before the first entry.
    fn control_pages(&self) -> Vec<ControlPage>;
}

/// Those of `wanted` that are not in `present`.
pub(crate) fn missing<'f>(present: &[&str], wanted: &'f [String]) -> Vec<&'f str> {
    wanted.iter().map(String::as_str).filter(|wanted| !present.contains(wanted)).collect()
}

/// A new virtual machine and its processor.
pub type Pair = (Box<dyn Vm>, Box<dyn Vcpu>);

/// What a new VM needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// The root page table.
    pub root: Frame,
    /// The frame of the exception stack, [`coracle_abi::map::EXCEPTION_STACK`].
    pub exception_stack: Frame,
}

/// A host-made page in the control part of the guest's address space.
#[derive(Clone, Debug)]
pub struct ControlPage {
    /// Its address.
    pub address: u64,
    /// Its content; zeros follow.
    pub content: Vec<u8>,
    /// Its rights for the given level.
    pub rights: crate::rights::Rights,
    /// Who may use it.
    pub level: crate::paging::Level,
}
