//! A ring-3 guest on plain KVM: one VM, one vCPU, one slot, a loop that rings the doorbell.
//!
//! It makes the ioctls that the library's KVM backend makes, in the same order, with the same descriptor tables and stub.
//! What is missing is all that a library is for.
#![allow(unsafe_code)] // Telling KVM where the guest's memory lies.

use coracle_abi::{PAGE_BYTES, PageBytes, map};
use coracle_vm::kvm::CpuTemplate;
use coracle_vm::{Backend, GuestMemory};
use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, Msrs, kvm_enable_cap, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs,
    kvm_userspace_memory_region, kvm_xcr, kvm_xcrs,
};
use kvm_ioctls::{Kvm, SyncReg, VcpuExit, VcpuFd, VmFd};

const MEMORY: u64 = 2 << 20;
const CODE: u64 = map::WINDOW_START;

/// What is made once for the process.
pub struct Host {
    kvm: Kvm,
    cpuid: CpuId,
    sregs: kvm_sregs,
    control: Vec<coracle_vm::ControlPage>,
}

/// A VM whose guest waits at the doorbell.
pub struct Guest {
    vcpu: VcpuFd,
    _vm: VmFd,
    _memory: GuestMemory,
}

impl Host {
    /// # Panics
    /// Without KVM.
    #[expect(clippy::unwrap_used, reason = "a benchmark without KVM has nothing to do")]
    pub fn new() -> Self {
        let kvm = Kvm::new().unwrap();
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).unwrap();
        let vm = kvm.create_vm().unwrap();
        let sregs = vm.create_vcpu(0).unwrap().get_sregs().unwrap();
        let control = coracle_vm::kvm::Kvm::open(CpuTemplate::Host).unwrap().control_pages();
        Self { kvm, cpuid, sregs, control }
    }

    /// From nothing to the guest's first exit.
    ///
    /// # Panics
    /// When KVM refuses.
    #[expect(clippy::unwrap_used, reason = "a benchmark without KVM has nothing to do")]
    pub fn create_to_first_exit(&self) -> Guest {
        let mut memory = GuestMemory::reserve(PageBytes::round_up(MEMORY).unwrap()).unwrap();
        let vm = self.kvm.create_vm().unwrap();
        let mut vcpu = vm.create_vcpu(0).unwrap();
        vcpu.set_cpuid2(&self.cpuid).unwrap();
        vcpu.set_sregs(&self.system_registers()).unwrap();
        let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..kvm_xcrs::default() };
        xcrs.xcrs[0] = kvm_xcr { xcr: 0, value: 7, ..kvm_xcr::default() };
        vcpu.set_xcrs(&xcrs).unwrap();
        let msr = |index, data| kvm_msr_entry { index, data, ..kvm_msr_entry::default() };
        let star = 0x1b << 48 | 0x08 << 32;
        let msrs = [msr(0xc000_0081, star), msr(0xc000_0082, map::SYSCALL_ENTRY), msr(0xc000_0084, 0x4_7700)];
        assert_eq!(vcpu.set_msrs(&Msrs::from_entries(&msrs).unwrap()).unwrap(), 3);
        let cap = kvm_enable_cap { cap: 168, args: [1, 0, 0, 0], ..kvm_enable_cap::default() };
        vm.enable_cap(&cap).unwrap(); // KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 1, // KVM_MEM_LOG_DIRTY_PAGES
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: memory.host_address(),
        };
        // SAFETY: the region is the whole of `memory`, which the guest keeps as long as the VM.
        unsafe { vm.set_user_memory_region(region) }.unwrap();
        self.fill(&mut memory);
        vcpu.set_sync_valid_reg(SyncReg::Register);
        vcpu.set_sync_valid_reg(SyncReg::SystemRegister);
        vcpu.sync_regs_mut().regs = kvm_regs { rip: CODE, rflags: 2, ..kvm_regs::default() };
        vcpu.set_sync_dirty_reg(SyncReg::Register);
        let mut guest = Guest { vcpu, _vm: vm, _memory: memory };
        guest.round_trip();
        guest
    }

    fn system_registers(&self) -> kvm_sregs {
        let segment = |selector, type_, l: u8| kvm_segment {
            limit: u32::MAX,
            selector,
            type_,
            present: 1,
            dpl: 3,
            s: 1,
            g: 1,
            l,
            db: 1 - l,
            ..kvm_segment::default()
        };
        let (code, data) = (segment(0x2b, 11, 1), segment(0x23, 3, 0));
        let mut sregs = self.sregs;
        (sregs.cs, sregs.ss, sregs.ds, sregs.es, sregs.fs, sregs.gs) = (code, data, data, data, data, data);
        sregs.tr = kvm_segment {
            base: map::TASK_STATE,
            limit: 0x86,
            selector: 0x30,
            type_: 11,
            present: 1,
            ..kvm_segment::default()
        };
        (sregs.gdt.base, sregs.gdt.limit) = (map::DESCRIPTORS, 63);
        (sregs.idt.base, sregs.idt.limit) = (map::DESCRIPTORS + 0x800, 511);
        (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8005_0033, 0, 0x4_0620, 0xd01);
        sregs
    }

    /// Page tables (root, two levels, two tables), control pages, code.
    #[expect(clippy::unwrap_used, reason = "addresses are constants")]
    fn fill(&self, memory: &mut GuestMemory) {
        const TABLE: u64 = 0x27;
        let index = |address: u64, level: u32| (address >> (12 + 9 * level)) & 511;
        let [root, third, second, code_table, control_table, mut next] =
            [0, 1, 2, 3, 4, 5].map(|n: u64| n * PAGE_BYTES);
        let mut link = |table: u64, address: u64, level: u32, value: u64| {
            memory.write_u64(table + index(address, level) * 8, value).unwrap();
        };
        link(root, CODE, 3, third | TABLE);
        link(third, CODE, 2, second | TABLE);
        link(second, CODE, 1, code_table | TABLE);
        link(second, map::CONTROL_START, 1, control_table | TABLE);
        let mut pages = vec![(CODE, vec![0xe6, 0xe9, 0xeb, 0xfc], 5_u64)]; // out 0xe9, al; jmp back
        for page in &self.control {
            let user = if page.level == coracle_vm::paging::Level::User { 4 } else { 0 };
            pages.push((page.address, page.content.clone(), 1 | user | if page.rights.write { 2 } else { 0 }));
        }
        for (address, content, bits) in pages {
            let table = if address == CODE { code_table } else { control_table };
            memory.write_u64(table + index(address, 0) * 8, next | bits | 0x60).unwrap();
            memory.write(next, &content).unwrap();
            next += PAGE_BYTES;
        }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Guest {
    /// Enters the guest once, until it rings.
    ///
    /// # Panics
    /// When it does not.
    pub fn round_trip(&mut self) {
        match self.vcpu.run() {
            Ok(VcpuExit::IoOut(0xe9, _)) => {}
            other => panic!("the raw guest did not ring: {other:?}"),
        }
    }
}
