//! Linux KVM: on bare metal (VT-x, SVM) and under kvm-pvm, where there is no hardware virtualization.
//!
//! | file | what it does |
//! |---|---|
//! | `system.rs` | `/dev/kvm`: opening it, what it can do |
//! | `control.rs` | descriptor tables and stub, as bytes |
//! | `cpuid.rs` | what the guest sees of its processor |
//! | `machine.rs` | memory slots |
//! | `ring.rs` | written pages, told in shared memory |
//! | `processor.rs` | registers, entering, exits |

mod control;
mod cpuid;
mod machine;
mod processor;
mod ring;
mod system;

pub use cpuid::CpuTemplate;
pub use system::{Capability, DirtyLog, Kvm, KvmReport};
