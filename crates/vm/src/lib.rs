//! Coracle's hypervisor backends: one virtual machine with one virtual processor, whose guest runs in ring 3 under page
//! tables that only the host writes.
//!
//! This crate knows memory, page tables, registers and exits. It does not know what a guest is for: system calls,
//! images and function calls are the `coracle` crate's.
//!
//! | module | what it does |
//! |---|---|
//! | [`memory`] | guest RAM as one host range; copies in and out |
//! | [`paging`], [`space`] | page tables; which pages the guest has, with which rights |
//! | `content` | what the host lends to guests without copying it |
//! | [`exit`] | why the guest stopped; its registers |
//! | [`backend`] | what a hypervisor must do |
//! | `shell` | machines without a guest, used again |
//! | [`kvm`] | Linux KVM, on bare metal and on PVM hosts |
//! | [`fake`] | a scripted guest, for tests without a hypervisor |
//! | [`kick`] | stopping a running vCPU from another thread |

pub mod backend;
mod base;
mod content;
mod cooling;
pub mod error;
pub mod exit;
pub mod fake;
mod frames;
pub mod kick;
pub mod kvm;
pub mod memory;
mod pages;
pub mod paging;
mod rights;
mod shell;
pub mod space;
mod span;

pub use backend::{Backend, ControlPage, Kick, Parts, Vcpu, Vm};
pub use base::Base;
pub use content::Content;
pub use error::{Error, ErrorKind};
pub use exit::{Exception, Exit, Registers};
pub use memory::GuestMemory;
pub use pages::PageSet;
pub use rights::Rights;
pub use shell::Shell;
pub use space::{
    Access, ControlPlace, Fault, Fill, PageContent, Promise, SavedError, SavedSpace, Space, SpaceError, SpaceState,
};
pub use span::Span;
