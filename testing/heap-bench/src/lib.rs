//! Which allocator should a guest's heap use? Measured, so that the answer can be taken again when versions change.
//!
//! A guest gets one zeroed region, page by page as it touches it, and a request's dirtied pages are what a restore
//! has to undo. So pages count first, then time, then fragmentation. Nothing here runs in a guest: an [`Arena`] is a
//! mapping of this process whose pages the kernel counts for us.
//!
//! | module | what it does |
//! |---|---|
//! | [`arena`] | the region: counts pages, takes a snapshot, restores it |
//! | [`heap`] | the candidates behind one trait |
//! | [`handle`] | a candidate placed in an arena, usable by `Vec` and `HashMap` |
//! | [`workload`] | what a guest does: start, serve a request, churn |
//! | [`measure`] | the figures of the table |
//!
//! `cargo run -p coracle-heap-bench --release` prints the counts, `cargo bench -p coracle-heap-bench` the times.
//! The decision that came of it is docs/decisions/0002-guest-heap.md.

pub mod arena;
pub mod handle;
pub mod heap;
pub mod measure;
pub mod workload;

pub use arena::{Arena, PAGE_BYTES};
pub use handle::{Block, Handle, Placed};
pub use heap::Heap;
