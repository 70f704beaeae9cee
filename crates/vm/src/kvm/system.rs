//! `/dev/kvm`: opening it, what it can do, and what to tell somebody for whom it does not work.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_enable_cap, kvm_sregs};
use kvm_ioctls::{Kvm as KvmFd, VmFd};

use super::control::ExtendedState;
use super::cpuid::{self, CpuTemplate};
use super::{control, machine, processor, ring};
use crate::backend::{Backend, ControlPage, Pair, Parts, missing};
use crate::error::{Error, ErrorKind};
use crate::kick;

/// The KVM API version of every Linux since 2.6.22.
const API_VERSION: i32 = 12;

/// Linux KVM as a backend. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kvm {
    system: Arc<System>,
    template: CpuTemplate,
    table: Arc<CpuId>,
    log: DirtyLog,
}

/// How KVM tells which pages a guest wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DirtyLog {
    /// A ring in shared memory, where the kernel has it; else the bitmap.
    #[default]
    Best,
    /// A bitmap, by a system call for each memory slot.
    Bitmap,
}

/// What a process needs to know of `/dev/kvm` once.
#[derive(Debug)]
struct System {
    kvm: KvmFd,
    supported: CpuId,
    reset: OnceLock<kvm_sregs>, // A new vCPU's system registers: the same for all.
    tables: Mutex<HashMap<CpuTemplate, Arc<CpuId>>>, // Each made once.
}

/// A capability that Coracle asks KVM for.
#[derive(Clone, Copy, Debug)]
pub struct Capability {
    /// The kernel's name for it.
    pub name: &'static str,
    /// What it is for, in a few words.
    pub purpose: &'static str,
    /// Whether nothing works without it.
    pub required: bool,
    cap: u32,
}

const CAPABILITIES: [Capability; 6] = [
    Capability {
        name: "KVM_CAP_USER_MEMORY",
        purpose: "guest memory from host memory",
        required: true,
        cap: kvm_bindings::KVM_CAP_USER_MEMORY,
    },
    Capability {
        name: "KVM_CAP_SYNC_REGS",
        purpose: "registers without a system call each",
        required: true,
        cap: kvm_bindings::KVM_CAP_SYNC_REGS,
    },
    Capability {
        name: "KVM_CAP_EXT_CPUID",
        purpose: "a chosen processor for the guest",
        required: true,
        cap: kvm_bindings::KVM_CAP_EXT_CPUID,
    },
    Capability { name: "KVM_CAP_XCRS", purpose: "AVX in guests", required: false, cap: kvm_bindings::KVM_CAP_XCRS },
    Capability {
        name: "KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2",
        purpose: "which pages a guest wrote",
        required: false,
        cap: kvm_bindings::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
    },
    Capability {
        name: "KVM_CAP_DIRTY_LOG_RING",
        purpose: "dirty pages without a system call",
        required: false,
        cap: kvm_bindings::KVM_CAP_DIRTY_LOG_RING,
    },
];

/// What a look at `/dev/kvm` found, for `coracle doctor`.
#[derive(Debug)]
pub struct KvmReport {
    /// Each capability, and whether this kernel has it.
    pub capabilities: Vec<(Capability, bool)>,
    /// Whether the processor's own virtualization is behind it (a `vmx` or `svm` flag); without, a PVM host.
    pub hardware: bool,
    /// Features of x86-64-v2 and -v3 that the guest could not have here, by template.
    pub missing: Vec<(CpuTemplate, Vec<&'static str>)>,
}

impl Kvm {
    /// Opens `/dev/kvm`, once for the process.
    ///
    /// # Errors
    /// When it is missing, may not be opened, is too old or lacks a capability: which, and what to do.
    pub fn open(template: CpuTemplate) -> Result<Self, Error> {
        static SYSTEM: OnceLock<Arc<System>> = OnceLock::new();
        let system = match SYSTEM.get() {
            Some(system) => Arc::clone(system),
            None => {
                let system = Arc::new(System::open("/dev/kvm")?);
                Arc::clone(SYSTEM.get_or_init(|| system))
            }
        };
        let table = system.table(template)?;
        Ok(Self { system, template, table, log: DirtyLog::Best })
    }

    /// The same with another way to learn which pages guests wrote: for comparison and for tests.
    #[must_use]
    pub fn with_dirty_log(self, log: DirtyLog) -> Self {
        Self { log, ..self }
    }

    /// What this KVM can do.
    pub fn report(&self) -> KvmReport {
        let capabilities = CAPABILITIES.iter().map(|want| (*want, has(&self.system.kvm, want))).collect();
        let hardware = has_hardware_virtualization();
        let missing = [CpuTemplate::X86_64V2, CpuTemplate::X86_64V3]
            .map(|template| (template, cpuid::missing(&self.system.supported, template)));
        KvmReport { capabilities, hardware, missing: missing.into() }
    }
}

impl System {
    fn open(path: &str) -> Result<Self, Error> {
        let c_path = std::ffi::CString::new(path).map_err(|_| unavailable("the path of KVM holds a zero byte"))?;
        let kvm = KvmFd::new_with_path(&c_path).map_err(|error| cannot_open(path, error.into()))?;
        let version = kvm.get_api_version();
        if version != API_VERSION {
            return Err(unavailable(&format!(
                "KVM at {path} speaks API version {version}, Coracle needs {API_VERSION}: this is no Linux KVM, or one \
                 of before 2007"
            )));
        }
        let missing: Vec<&str> =
            CAPABILITIES.iter().filter(|want| want.required && !has(&kvm, want)).map(|want| want.name).collect();
        if !missing.is_empty() {
            return Err(unavailable(&format!(
                "KVM at {path} lacks {}: use a newer kernel (Linux 5.10 and later have it)",
                missing.join(", ")
            )));
        }
        let supported = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(|error| Error::refused("asking KVM for the processor's features", error))?;
        let supported = if has_hardware_virtualization() { supported } else { cpuid::with_native(&supported)? };
        kick::prepare().map_err(|error| Error::refused("installing the signal that stops a guest", error))?;
        Ok(Self { kvm, supported, reset: OnceLock::new(), tables: Mutex::default() })
    }

    /// The CPUID table for a template.
    fn table(&self, template: CpuTemplate) -> Result<Arc<CpuId>, Error> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(&template) {
            return Ok(Arc::clone(table));
        }
        let missing = cpuid::missing(&self.supported, template);
        if !missing.is_empty() {
            return Err(unavailable(&format!(
                "this host's processor cannot give the CPU template {template}: it lacks {}. Choose a smaller template",
                missing.join(", ")
            )));
        }
        // Where ring 3 runs natively it has the processor's state, whatever the table says: then that must be reset, too.
        let visible = if has_hardware_virtualization() { template } else { CpuTemplate::Host };
        let table = Arc::new(cpuid::apply(&self.supported, visible)?);
        tables.insert(template, Arc::clone(&table));
        Ok(table)
    }
}

/// Whether the processor virtualizes by itself. Without, this is a PVM host.
fn has_hardware_virtualization() -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.split_ascii_whitespace().any(|flag| matches!(flag, "vmx" | "svm"))
}

/// Has the VM's vCPUs tell written pages in a ring, if this kernel can.
fn enable_ring(vm: &VmFd) -> bool {
    let cap = kvm_enable_cap {
        cap: kvm_bindings::KVM_CAP_DIRTY_LOG_RING,
        args: [ring::BYTES as u64, 0, 0, 0],
        ..kvm_enable_cap::default()
    };
    vm.enable_cap(&cap).is_ok()
}

fn has(kvm: &KvmFd, want: &Capability) -> bool {
    kvm.check_extension_raw(want.cap.into()) > 0
}

fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

/// What to do when `/dev/kvm` does not open.
fn cannot_open(path: &str, error: io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no KVM here. On bare metal enable virtualization in the firmware and load the module kvm_intel or \
             kvm_amd; in a virtual machine ask for nested virtualization or a PVM host; in a container pass the device \
             through (--device /dev/kvm)"
        }
        io::ErrorKind::PermissionDenied => {
            "this user may not use KVM. Join the group that owns the device (usually: usermod -aG kvm USER, then log in \
             again), or have the container's device rules allow it"
        }
        _ => "the device exists but does not open. The kernel's log (dmesg) may say why",
    };
    Error::new(ErrorKind::Unavailable, format!("cannot open {path}: {advice}")).with_source(error)
}

impl Backend for Kvm {
    fn name(&self) -> &'static str {
        "kvm"
    }

    fn create(&self, parts: &Parts) -> Result<Pair, Error> {
        let vm = self.system.kvm.create_vm().map_err(|error| Error::refused("creating a VM", error))?;
        // Before there is a vCPU.
        let has_ring = self.log == DirtyLog::Best && enable_ring(&vm);
        let vcpu = vm.create_vcpu(0).map_err(|error| Error::refused("creating a vCPU", error))?;
        let mut calls = 2;
        let reset = match self.system.reset.get() {
            Some(reset) => reset,
            None => {
                let sregs = vcpu.get_sregs().map_err(|error| Error::refused("reading a vCPU's registers", error))?;
                calls += 1;
                self.system.reset.get_or_init(|| sregs)
            }
        };
        let map_ring = || ring::Ring::map(&vcpu).map_err(|error| Error::refused("mapping the dirty ring", error));
        let ring = has_ring.then(map_ring).transpose()?;
        calls += u64::from(self.log == DirtyLog::Best);
        let processor = processor::Processor::new(vcpu, &self.table, reset, parts)?;
        let machine = machine::Machine::new(vm, ring, calls);
        Ok((Box::new(machine), Box::new(processor)))
    }

    fn cpu_features(&self) -> Vec<&'static str> {
        cpuid::features(&self.system.supported, self.template)
    }

    fn lacks<'f>(&self, features: &'f [String]) -> Vec<&'f str> {
        missing(&cpuid::features(&self.system.supported, CpuTemplate::Host), features)
    }

    fn shell_key(&self) -> Option<u64> {
        // One `/dev/kvm` for the process: template and log are all that differs.
        Some(u64::from(self.template as u8) << 1 | u64::from(self.log == DirtyLog::Best))
    }

    fn control_pages(&self) -> Vec<ControlPage> {
        control::pages(match cpuid::xcr0(&self.table) {
            0 => ExtendedState::Fxsave,
            parts => ExtendedState::Xsave(parts as u8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_says_what_to_do() {
        let error = System::open("/nonexistent/kvm").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("nested virtualization"), "{error}");
    }

    #[test]
    fn a_forbidden_device_says_what_to_do() {
        let error = cannot_open("/dev/kvm", io::ErrorKind::PermissionDenied.into());
        assert!(error.to_string().contains("usermod -aG kvm"), "{error}");
    }

    #[test]
    fn something_that_is_not_kvm_is_refused() {
        let error = System::open("/dev/null").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("/dev/null"), "{error}");
    }
}
