//! A backend without a hypervisor: the "guest" is a Rust closure that a test or a doc example writes.
//!
//! It sees guest memory as ring 3 would, through the page tables that the host wrote, and answers with the exits it
//! likes, also with exits that no real processor would produce. It isolates nothing.

use std::fmt;
use std::sync::Arc;

use coracle_abi::{PAGE_BYTES, VirtualAddress};

use crate::backend::{Backend, ControlPage, Kick, Pair, Parts, Vcpu, Vm};
use crate::content::Content;
use crate::error::Error;
use crate::exit::{Exit, Registers};
use crate::kick::ThreadId;
use crate::memory::GuestMemory;
use crate::paging::{self, Entry, Frame};
use crate::space::Access;

/// What a scripted guest does between an entry and the next exit.
pub trait Program: Send {
    /// Runs until the next exit.
    fn run(&mut self, cpu: &mut FakeCpu<'_>) -> Exit;
}

impl<F: FnMut(&mut FakeCpu<'_>) -> Exit + Send> Program for F {
    fn run(&mut self, cpu: &mut FakeCpu<'_>) -> Exit {
        self(cpu)
    }
}

/// The scripted guest's view of its machine.
pub struct FakeCpu<'a> {
    /// Its registers.
    pub registers: &'a mut Registers,
    memory: &'a mut GuestMemory,
    root: Frame,
}

impl FakeCpu<'_> {
    /// Copies from guest memory; `false` if a byte is not readable to ring 3.
    pub fn read(&self, address: u64, out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < out.len() {
            let Some((at, piece)) = self.piece(address, done, out.len(), Access::Read) else { return false };
            if self.memory.read(at, &mut out[done..done + piece]).is_err() {
                return false;
            }
            done += piece;
        }
        true
    }

    /// Copies to guest memory; `false` if a byte is not writable to ring 3. The bytes before it are written then.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let Some((at, piece)) = self.piece(address, done, bytes.len(), Access::Write) else { return false };
            if self.memory.write(at, &bytes[done..done + piece]).is_err() {
                return false;
            }
            done += piece;
        }
        true
    }

    /// The next bytes of a range that lie in one page: where in guest-physical memory, and how many.
    fn piece(&self, address: u64, done: usize, bytes: usize, access: Access) -> Option<(u64, usize)> {
        let at = address.checked_add(done as u64)?;
        let place = paging::find_entry(self.memory, self.root, VirtualAddress(at).page_start()).ok()??;
        let entry = Entry(self.memory.read_u64(place).ok()?);
        let allowed = match access {
            Access::Write => entry.user_rights().write,
            Access::Read | Access::Execute => entry.user_rights().read,
        };
        let offset = at % PAGE_BYTES;
        let piece = (PAGE_BYTES - offset).min((bytes - done) as u64) as usize;
        allowed.then_some(entry.frame()?.address()).map(|frame| (frame + offset, piece))
    }
}

type Script = Arc<dyn Fn() -> Box<dyn Program> + Send + Sync>;

/// A backend whose guests are scripts.
#[derive(Clone)]
pub struct Fake {
    script: Script,
}

impl Fake {
    /// Each sandbox gets a program of its own from `script`.
    pub fn new<P: Program + 'static>(script: impl Fn() -> P + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(move || Box::new(script())) }
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fake")
    }
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn create(&self, parts: &Parts) -> Result<Pair, Error> {
        let vcpu = FakeVcpu { program: (self.script)(), registers: Registers::default(), root: parts.root, entries: 0 };
        Ok((Box::new(FakeVm), Box::new(vcpu)))
    }

    fn control_pages(&self) -> Vec<ControlPage> {
        Vec::new()
    }
}

struct FakeVm;

impl Vm for FakeVm {
    fn cover(&mut self, _: &GuestMemory, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn collect_written(&mut self, _: &mut GuestMemory) -> Result<Option<u64>, Error> {
        Ok(Some(0)) // A script's writes go through `GuestMemory`, which notes them itself.
    }

    fn empty_log(&mut self, _: &mut GuestMemory) -> Result<(), Error> {
        Ok(())
    }

    fn forget_translations(&mut self, _: &GuestMemory) -> Result<(), Error> {
        Ok(())
    }

    fn lend(&mut self, _: u32, _: u64, _: &Content) -> Result<(), Error> {
        Ok(())
    }

    fn take_back(&mut self, _: u32, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn hypervisor_calls(&self) -> u64 {
        0
    }
}

struct FakeVcpu {
    program: Box<dyn Program>,
    registers: Registers,
    root: Frame,
    entries: u64,
}

impl Vcpu for FakeVcpu {
    fn run(&mut self, memory: &mut GuestMemory) -> Result<Exit, Error> {
        self.entries += 1;
        let mut cpu = FakeCpu { registers: &mut self.registers, memory, root: self.root };
        Ok(self.program.run(&mut cpu))
    }

    fn registers(&self) -> Registers {
        self.registers
    }

    fn set_registers(&mut self, registers: &Registers) {
        self.registers = *registers;
    }

    fn is_parked(&self) -> bool {
        true
    }

    fn finish_syscall(&mut self, result: i64) {
        self.registers.rax = result as u64;
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        Arc::new(NoKick)
    }

    fn entries(&self) -> u64 {
        self.entries
    }

    fn hypervisor_calls(&self) -> u64 {
        0
    }
}

/// A script returns by itself.
struct NoKick;

impl Kick for NoKick {
    fn kick(&self, _: ThreadId) {}
}
