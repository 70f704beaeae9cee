//! The pages of snapshots: what guest memory held at some moment, kept so that many moments cost little.
//!
//! A snapshot is a base image plus layers, each of which holds what differs from its parent. Nothing here changes
//! once it is made: [`Pages`] is a handle that is cheap to clone, safe to share, and outlives its relatives in
//! any order. Looking a page up costs the same however many layers there are; making a layer, and finding where
//! two snapshots differ, cost what differs.
//!
//! This crate knows no hypervisor. A page is [`PAGE_BYTES`] bytes named by its guest-physical frame number;
//! where its bytes come from and where they go is the caller's business. A [`Store`] is a directory that keeps snapshots;
//! the pages of one that was loaded stay in its files until they are asked for.
//!
//! | module | what it is |
//! |---|---|
//! | `pages` | snapshots, as callers see them |
//! | `tree` | which page is where; unchanged parts are shared with the parent |
//! | `interned` | the bytes, equal pages once in a process |
//! | `hash` | how equal pages are found |
//! | `lazy` | pages that are in a file |
//! | `lineage` | which relatives are in which store |
//! | `disk` | stores: the format of their files, and everything that touches them |
//! | `digest`, `runs` | names of blobs, sets of page numbers |
//!
//! ```
//! use coracle_snapshot::{Content, PAGE_BYTES, Pages};
//!
//! let base = Pages::base([(7, [1; PAGE_BYTES]), (8, [2; PAGE_BYTES])]);
//! let mut memory = |number: u32, page: &mut [u8; PAGE_BYTES]| page.fill(if number == 8 { 0 } else { 1 });
//! // Pages 7, 8 and 9 were written to. Page 7 still holds what it held.
//! let child = base.derive(&[7, 8, 9], &mut memory)?;
//! assert_eq!(child.own_numbers(), [8, 9]);
//! assert_eq!(child.page(8)?, Content::Zero);
//! assert_eq!(child.page(9)?, Content::Bytes(&[1; PAGE_BYTES]));
//! assert_eq!(base.page(8)?, Content::Bytes(&[2; PAGE_BYTES]));
//! # Ok::<(), coracle_snapshot::Error>(())
//! ```
#![forbid(unsafe_code)]

mod digest;
mod disk;
mod error;
mod hash;
mod interned;
mod lazy;
mod lineage;
mod pages;
mod runs;
mod tree;

pub use digest::Digest;
#[doc(hidden)]
pub use disk::fuzzing;
pub use disk::{
    ARTIFACT_TYPE, CONFIG_TYPE, Compression, Descriptor, Import, Inspection, LAYER_TYPE, LayerInspection, LayerKind,
    Loaded, Manifest, Pruned, RunForm, Saved, Store, Tagged, Verified,
};
pub use error::Error;
pub use interned::{Stats, stats};
pub use pages::{Content, Pages};

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// The content of one page.
pub type PageBytes = [u8; PAGE_BYTES];
