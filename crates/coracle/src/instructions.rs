//! Counting the guest's instructions: a vCPU that traps after each of them.
//!
//! The trap flag raises a debug exception after every instruction; this wrapper counts it and enters again, so that the
//! run loop sees the same exits as without. Each instruction costs an exit. The instruction that leaves the guest by
//! itself (doorbell, system call, fault) is not counted: it does not end in ring 3.

use std::sync::Arc;

use coracle_vm::exit::{self, TRAP_FLAG};
use coracle_vm::{Error, Exit, GuestMemory, Kick, Registers, Vcpu};

/// A [`Vcpu`] that counts.
pub(crate) struct Counting {
    vcpu: Box<dyn Vcpu>,
    instructions: u64,
}

impl Counting {
    pub(crate) fn wrap(vcpu: Box<dyn Vcpu>) -> Box<dyn Vcpu> {
        Box::new(Self { vcpu, instructions: 0 })
    }
}

impl Vcpu for Counting {
    fn run(&mut self, memory: &mut GuestMemory) -> Result<Exit, Error> {
        loop {
            match self.vcpu.run(memory)? {
                Exit::Exception(exception) if exception.vector == exit::DEBUG => {
                    self.instructions += 1;
                    let registers = self.vcpu.registers();
                    self.set_registers(&registers);
                }
                other => return Ok(other),
            }
        }
    }

    fn registers(&self) -> Registers {
        self.vcpu.registers()
    }

    fn set_registers(&mut self, registers: &Registers) {
        self.vcpu.set_registers(&Registers { rflags: registers.rflags | TRAP_FLAG, ..*registers });
    }

    fn is_parked(&self) -> bool {
        self.vcpu.is_parked()
    }

    fn finish_syscall(&mut self, result: i64) {
        self.vcpu.finish_syscall(result);
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        self.vcpu.kicker()
    }

    fn entries(&self) -> u64 {
        self.vcpu.entries()
    }

    fn hypervisor_calls(&self) -> u64 {
        self.vcpu.hypervisor_calls()
    }

    fn instructions(&self) -> Option<u64> {
        Some(self.instructions)
    }
}
