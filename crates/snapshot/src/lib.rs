//! The pages of snapshots: what guest memory held at some moment, kept so that many moments cost little.
//!
//! A snapshot is a base image plus layers, each of which holds what differs from its parent. Nothing here changes
//! once it is made: [`Pages`] is a handle that is cheap to clone, safe to share, and outlives its relatives in
//! any order. Looking a page up costs the same however many layers there are; making a layer, and finding where
//! two snapshots differ, cost what differs.
//!
//! This crate knows no hypervisor. A page is [`PAGE_BYTES`] bytes named by its guest-physical frame number;
//! where its bytes come from and where they go is the caller's business. It does not compress, and it does not
//! write files.
//!
//! | module | what it is |
//! |---|---|
//! | `pages` | snapshots, as callers see them |
//! | `tree` | which page is where; unchanged parts are shared with the parent |
//! | `store` | the bytes, equal pages once in a process |
//! | `hash` | how the store finds equal pages |
//!
//! ```
//! use coracle_snapshot::{Content, PAGE_BYTES, Pages};
//!
//! let base = Pages::base([(7, [1; PAGE_BYTES]), (8, [2; PAGE_BYTES])]);
//! let mut memory = |number: u32, page: &mut [u8; PAGE_BYTES]| page.fill(if number == 8 { 0 } else { 1 });
//! // Pages 7, 8 and 9 were written to. Page 7 still holds what it held.
//! let child = base.derive(&[7, 8, 9], &mut memory);
//! assert_eq!(child.own_numbers(), [8, 9]);
//! assert_eq!(child.page(8), Content::Zero);
//! assert_eq!(child.page(9), Content::Bytes(&[1; PAGE_BYTES]));
//! assert_eq!(base.page(8), Content::Bytes(&[2; PAGE_BYTES]));
//! ```
#![forbid(unsafe_code)]

mod hash;
mod pages;
mod store;
mod tree;

pub use pages::{Content, Pages};
pub use store::{Stats, stats};

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// The content of one page.
pub type PageBytes = [u8; PAGE_BYTES];
