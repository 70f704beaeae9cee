//! What a Coracle host and a guest agree on, and nothing else.
//!
//! Everything here is a number, a layout or a pure function: no allocation, no I/O, no unsafe code. The host
//! treats every value that a guest wrote as a claim; the types of this crate describe the claim, they do not
//! check it.
//!
//! | module | what it fixes |
//! |---|---|
//! | [`address`] | guest-virtual addresses and page counts as types |
//! | [`map`] | where things lie in the guest's address space |
//! | [`port`] | the doorbell |
//! | [`boot`] | the read-only page that tells a guest about its sandbox |
//! | [`mapping`] | the table of what the host lends to a guest by name |
//! | [`queue`] | the queues through which host and guest send messages |
//! | [`message`] | what those messages are |
//! | [`note`] | the ELF notes by which an image describes itself |
//! | [`signature`] | function signatures as text, and their hashes |
#![no_std]
#![forbid(unsafe_code)]

pub mod address;
pub mod boot;
pub mod map;
pub mod mapping;
pub mod message;
pub mod note;
pub mod port;
pub mod queue;
pub mod signature;

pub use address::{PAGE_BYTES, PageBytes, VirtualAddress};

/// Version of everything in this crate. A guest carries it in an ELF note ([`note`]) and in no other place; the
/// host refuses a guest of another version and names both.
///
/// It is raised whenever a guest built before the change would misbehave after it.
pub const ABI_VERSION: u32 = 2;
