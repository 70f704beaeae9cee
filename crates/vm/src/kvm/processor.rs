//! A KVM virtual CPU that only ever runs ring 3: set up once, then one `KVM_RUN` for each exit.
//!
//! Registers are read and written in the shared page (`KVM_CAP_SYNC_REGS`), never by an ioctl. Where the guest is after
//! an exit differs from where the vCPU is: after a trap the vCPU is in the stub, and the guest's own RIP, RSP and flags
//! are on the exception stack or in RCX and R11. `Origin` remembers which.

use std::sync::Arc;

use coracle_abi::map;
use coracle_abi::port::{DOORBELL_PORT, EXCEPTION_PORT};
use kvm_bindings::{CpuId, Msrs, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs, kvm_vcpu_events, kvm_xcr, kvm_xcrs};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};

use super::{control, cpuid};
use crate::backend::{Kick, Parts, Vcpu};
use crate::error::Error;
use crate::exit::{Exception, Exit, Registers, has_error_code, sanitized_flags};
use crate::kick::{self, ThreadId};
use crate::memory::GuestMemory;

const MSR_STAR: u32 = 0xc000_0081;
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_FMASK: u32 = 0xc000_0084;

/// PE, MP, ET, NE, WP, AM, PG. With WP even ring 0 cannot write a read-only page.
const CR0: u64 = 0x8005_0033;
/// PAE, OSFXSR, OSXMMEXCPT.
const CR4: u64 = 0x620;
const CR4_OSXSAVE: u64 = 1 << 18;
/// SCE, LME, LMA, NXE.
const EFER: u64 = 0xd01;

/// Where the guest's own state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// In the vCPU's registers: ring 3 stopped by itself or was interrupted.
    Ring3,
    /// `syscall` arrived in ring 3 (kvm-pvm): RIP is in RCX, the flags in R11.
    SyscallInRing3,
    /// `syscall` arrived in ring 0 (bare metal): likewise, and CS and SS are the stub's.
    SyscallInRing0,
    /// In the frame that the processor pushed.
    Frame { rip: u64, rflags: u64, rsp: u64 },
}

pub(super) struct Processor {
    vcpu: VcpuFd,
    origin: Origin,
    stack: u64, // Guest-physical address of the exception stack's end.
    user_code: kvm_segment,
    user_data: kvm_segment,
    /// Where the `out` of the last exit is, which KVM may not have stepped over yet.
    pending: Option<u64>,
    /// Whether the last exit was by an interruption, which may come at any moment.
    interrupted: bool,
    entries: u64,
    calls: u64,
}

impl Processor {
    /// Sets up a new vCPU: long mode, ring 3, our tables. `reset` are a new vCPU's system registers.
    pub(super) fn new(mut vcpu: VcpuFd, template: &CpuId, reset: &kvm_sregs, parts: &Parts) -> Result<Self, Error> {
        let refused = |error| Error::refused("setting up a vCPU", error);
        vcpu.set_cpuid2(template).map_err(refused)?;
        let xcr0 = cpuid::xcr0(template);
        let mut sregs = *reset;
        let code = segment(control::USER_CODE, 11, true);
        let data = segment(control::USER_DATA, 3, false);
        (sregs.cs, sregs.ss, sregs.ds, sregs.es, sregs.fs, sregs.gs) = (code, data, data, data, data, data);
        sregs.tr = kvm_segment {
            base: map::TASK_STATE,
            limit: control::TASK_LIMIT,
            selector: control::TASK,
            type_: 11,
            present: 1,
            ..kvm_segment::default()
        };
        sregs.gdt.base = map::DESCRIPTORS;
        sregs.gdt.limit = control::DESCRIPTORS_LIMIT;
        sregs.idt.base = control::INTERRUPTS;
        sregs.idt.limit = control::INTERRUPTS_LIMIT;
        sregs.cr0 = CR0;
        sregs.cr3 = parts.root.address();
        sregs.cr4 = CR4 | if xcr0 == 0 { 0 } else { CR4_OSXSAVE };
        sregs.efer = EFER;
        vcpu.set_sregs(&sregs).map_err(refused)?;
        let mut calls = 3;
        if xcr0 != 0 {
            let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..kvm_xcrs::default() };
            xcrs.xcrs[0] = kvm_xcr { xcr: 0, value: xcr0, ..kvm_xcr::default() };
            vcpu.set_xcrs(&xcrs).map_err(refused)?;
            calls += 1;
        }
        let msr = |index, data| kvm_msr_entry { index, data, ..kvm_msr_entry::default() };
        let wanted = [
            msr(MSR_STAR, control::STAR),
            msr(MSR_LSTAR, map::SYSCALL_ENTRY),
            msr(MSR_FMASK, control::SYSCALL_FLAG_MASK),
        ];
        let msrs = Msrs::from_entries(&wanted)
            .map_err(|_| Error::refused("setting up a vCPU", std::io::ErrorKind::OutOfMemory))?;
        let written = vcpu.set_msrs(&msrs).map_err(refused)?;
        if written != wanted.len() {
            return Err(Error::refused("setting the vCPU's system-call registers", std::io::ErrorKind::Unsupported));
        }
        vcpu.set_sync_valid_reg(SyncReg::Register);
        vcpu.set_sync_valid_reg(SyncReg::SystemRegister);
        // So that the first entry, whose registers are written here, has something to start from.
        vcpu.sync_regs_mut().sregs = sregs;
        Ok(Self {
            vcpu,
            origin: Origin::Ring3,
            stack: parts.exception_stack.address() + coracle_abi::PAGE_BYTES,
            user_code: code,
            user_data: data,
            pending: None,
            interrupted: false,
            entries: 0,
            calls: calls + 1,
        })
    }

    fn interrupted(&mut self) -> Exit {
        self.interrupted = true;
        Exit::Interrupted
    }

    fn classify(&mut self, port: Option<u16>, memory: &GuestMemory) -> Exit {
        let sync = self.vcpu.sync_regs_mut();
        let (rip, from_ring_3) = (sync.regs.rip, sync.sregs.cs.selector & 3 == 3);
        self.pending = port.map(|_| rip);
        match port {
            Some(DOORBELL_PORT) if !control::is_syscall_entry(rip) => Exit::Doorbell,
            Some(DOORBELL_PORT) => {
                self.origin = if from_ring_3 { Origin::SyscallInRing3 } else { Origin::SyscallInRing0 };
                Exit::Syscall
            }
            Some(EXCEPTION_PORT) if !from_ring_3 => {
                let address = sync.sregs.cr2;
                match control::vector_at(rip).and_then(|vector| self.frame(vector, address, memory)) {
                    Some(exception) => Exit::Exception(exception),
                    None => Exit::Unexpected(kvm_bindings::KVM_EXIT_IO),
                }
            }
            _ => Exit::Unexpected(kvm_bindings::KVM_EXIT_IO),
        }
    }

    /// Reads what the processor pushed: SS, RSP, RFLAGS, CS, RIP and, for some vectors, an error code, downwards.
    fn frame(&mut self, vector: u8, address: u64, memory: &GuestMemory) -> Option<Exception> {
        let word = |n: u64| memory.read_u64(self.stack - 8 * n).ok();
        let (rsp, rflags, rip) = (word(2)?, word(3)?, word(5)?);
        let error_code = if has_error_code(vector) { word(6)? } else { 0 };
        self.origin = Origin::Frame { rip, rflags, rsp };
        Some(Exception { vector, error_code, address })
    }

    /// Lets KVM step over the last exit's `out`, without entering the guest. KVM does so at the next entry if RIP is still
    /// what it was, which a RIP set meanwhile must not be mistaken for.
    fn finish_pending(&mut self) {
        self.vcpu.set_kvm_immediate_exit(1);
        let _ = self.vcpu.run(); // EINTR, by design.
        self.vcpu.set_kvm_immediate_exit(0);
        self.pending = None;
        self.calls += 1;
    }

    /// Whether all segments are ring 3's, as at the start. They are not inside the stub; and ring 3 may load others, and so
    /// leave a few bits in them.
    fn has_plain_segments(&self) -> bool {
        let sregs = self.vcpu.sync_regs().sregs;
        let data = [sregs.ss, sregs.ds, sregs.es, sregs.fs, sregs.gs];
        sregs.cs.selector == control::USER_CODE && data.iter().all(|segment| segment.selector == control::USER_DATA)
    }

    /// Makes them so.
    fn plain_segments(&mut self) {
        if self.has_plain_segments() {
            return;
        }
        let (code, data) = (self.user_code, self.user_data);
        let sregs = &mut self.vcpu.sync_regs_mut().sregs;
        let (fs, gs) = (sregs.fs.base, sregs.gs.base);
        (sregs.cs, sregs.ss, sregs.ds, sregs.es) = (code, data, data, data);
        (sregs.fs, sregs.gs) = (kvm_segment { base: fs, ..data }, kvm_segment { base: gs, ..data });
        self.vcpu.set_sync_dirty_reg(SyncReg::SystemRegister);
    }

    /// Takes back an exception that the hypervisor was about to deliver when it was interrupted: it belongs to what the
    /// guest did before its registers were replaced.
    fn forget_events(&mut self) {
        if std::mem::take(&mut self.interrupted) {
            self.vcpu.sync_regs_mut().events = kvm_vcpu_events::default();
            self.vcpu.set_sync_dirty_reg(SyncReg::VcpuEvents);
        }
    }
}

impl Vcpu for Processor {
    fn run(&mut self, memory: &mut GuestMemory) -> Result<Exit, Error> {
        self.entries += 1;
        let exit = self.vcpu.run();
        self.origin = Origin::Ring3;
        self.pending = None;
        self.interrupted = false;
        let port = match exit {
            Ok(VcpuExit::IoOut(port, _)) => Some(port),
            Ok(VcpuExit::IoIn(port, _)) => Some(port),
            Ok(VcpuExit::Shutdown) => return Ok(Exit::Shutdown),
            Ok(VcpuExit::Intr) => return Ok(self.interrupted()),
            Ok(_) => {
                return Ok(match self.vcpu.get_kvm_run().exit_reason {
                    kvm_bindings::KVM_EXIT_DIRTY_RING_FULL => Exit::LogFull,
                    reason => Exit::Unexpected(reason),
                });
            }
            Err(error) => {
                return match std::io::Error::from(error) {
                    error if error.kind() == std::io::ErrorKind::Interrupted => Ok(self.interrupted()),
                    // The guest made the hypervisor touch what is not there, or emulate what it cannot.
                    error if error.raw_os_error() == Some(libc::EFAULT) => Ok(Exit::Unexpected(u32::MAX)),
                    error => Err(Error::refused("entering the guest", error)),
                };
            }
        };
        Ok(self.classify(port, memory))
    }

    fn registers(&self) -> Registers {
        let sync = self.vcpu.sync_regs();
        let mut registers = from_kvm(&sync.regs);
        registers.fs_base = sync.sregs.fs.base;
        registers.gs_base = sync.sregs.gs.base;
        match self.origin {
            // Hypervisors differ in whether they have stepped over the `out` yet.
            Origin::Ring3 if self.pending == Some(map::DOORBELL) => registers.rip = map::DOORBELL_RETURN,
            Origin::Ring3 => {}
            Origin::SyscallInRing3 | Origin::SyscallInRing0 => {
                (registers.rip, registers.rflags) = (registers.rcx, registers.r11);
            }
            Origin::Frame { rip, rflags, rsp } => {
                (registers.rip, registers.rflags, registers.rsp) = (rip, rflags, rsp);
            }
        }
        registers
    }

    fn set_registers(&mut self, registers: &Registers) {
        if self.is_parked()
            && !self.interrupted
            && self.has_plain_segments()
            && registers.same_at_doorbell(&self.registers())
        {
            return; // The next entry continues there anyhow.
        }
        // Behind the doorbell's `out` it has been stepped over already.
        let rip = canonical(registers.rip);
        if self.pending == Some(rip) && rip != map::DOORBELL_RETURN {
            self.finish_pending();
        }
        self.plain_segments();
        self.forget_events();
        let sync = self.vcpu.sync_regs_mut();
        sync.regs = to_kvm(registers);
        let bases = (sync.sregs.fs.base, sync.sregs.gs.base);
        (sync.sregs.fs.base, sync.sregs.gs.base) = (canonical(registers.fs_base), canonical(registers.gs_base));
        self.vcpu.set_sync_dirty_reg(SyncReg::Register);
        if bases != (registers.fs_base, registers.gs_base) {
            self.vcpu.set_sync_dirty_reg(SyncReg::SystemRegister);
        }
        self.origin = Origin::Ring3;
    }

    fn is_parked(&self) -> bool {
        self.origin == Origin::Ring3 && self.registers().rip == map::DOORBELL_RETURN
    }

    fn finish_syscall(&mut self, result: i64) {
        let origin = self.origin;
        let regs = &mut self.vcpu.sync_regs_mut().regs;
        regs.rax = result as u64;
        if origin == Origin::SyscallInRing3 {
            regs.rip = canonical(regs.rcx);
            regs.rflags = sanitized_flags(regs.r11);
        }
        // In ring 0 the stub's `sysretq` takes RCX and R11, which `syscall` itself put there.
        self.vcpu.set_sync_dirty_reg(SyncReg::Register);
        self.origin = Origin::Ring3;
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        Arc::new(Kicker)
    }

    fn entries(&self) -> u64 {
        self.entries
    }

    fn hypervisor_calls(&self) -> u64 {
        self.calls
    }
}

/// A signal makes `KVM_RUN` return.
struct Kicker;

impl Kick for Kicker {
    fn kick(&self, thread: ThreadId) {
        kick::interrupt(thread);
    }
}

fn segment(selector: u16, type_: u8, code: bool) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        dpl: 3,
        s: 1,
        g: 1,
        l: u8::from(code),
        db: u8::from(!code),
        ..kvm_segment::default()
    }
}

/// KVM refuses to enter with an address that is not canonical. Such a claim becomes one at which nothing is mapped.
fn canonical(address: u64) -> u64 {
    if (address as i64) << 16 >> 16 == address as i64 { address } else { 0 }
}

fn from_kvm(regs: &kvm_regs) -> Registers {
    let kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags } = *regs;
    let (fs_base, gs_base) = (0, 0);
    Registers {
        rax,
        rbx,
        rcx,
        rdx,
        rsi,
        rdi,
        rsp,
        rbp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip,
        rflags,
        fs_base,
        gs_base,
    }
}

fn to_kvm(registers: &Registers) -> kvm_regs {
    let Registers { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, .. } = *registers;
    let (rip, rflags) = (canonical(registers.rip), sanitized_flags(registers.rflags));
    kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags }
}
