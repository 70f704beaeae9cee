//! Snapshots, as callers see them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::store::{Page, intern};
use crate::tree::{Edit, Tree};
use crate::{PAGE_BYTES, PageBytes};

static ZERO: PageBytes = [0; PAGE_BYTES];

/// The content of all pages of a snapshot. It never changes; clones share it.
///
/// A snapshot keeps what it holds alive and nothing else: pages that only its ancestors hold go with them.
#[derive(Clone)]
pub struct Pages(Arc<Layer>);

struct Layer {
    tree: Tree,
    depth: usize,
    own: Box<[u32]>, // Ascending: numbers of the pages that differ from the parent, or in a base from zero.
}

const _: () = {
    const fn is_shared_between_threads<T: Send + Sync>() {}
    is_shared_between_threads::<Pages>();
};

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Zeros only. They take no memory.
    Zero,
    /// These bytes, of which at least one is not zero.
    Bytes(&'a PageBytes),
}

impl<'a> Content<'a> {
    /// The bytes, also of a page that is zero.
    pub const fn bytes(self) -> &'a PageBytes {
        match self {
            Self::Zero => &ZERO,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl Pages {
    /// Pages that are all zero.
    pub fn empty() -> Self {
        Self::base::<PageBytes>([])
    }

    /// A base image: these pages, and all others zero. Of several pages with one number the last counts.
    pub fn base<B: Borrow<PageBytes>>(pages: impl IntoIterator<Item = (u32, B)>) -> Self {
        let mut pages: Vec<Edit> = pages.into_iter().map(|(number, bytes)| (number, store(bytes.borrow()))).collect();
        pages.reverse();
        pages.sort_by_key(|(number, _)| *number); // Stable: what was last is first now, and the one that is kept.
        pages.dedup_by_key(|(number, _)| *number);
        pages.retain(|(_, page)| page.is_some());
        Self::layer(&Tree::default(), 0, pages)
    }

    /// A child that may differ from this snapshot in the pages `changed`, in any order.
    ///
    /// `read` is called once for each of them, in ascending order, to copy the page's content into a buffer that
    /// holds anything. Pages that hold what they hold in this snapshot are left out. If all do, the child is the
    /// [`same`](Self::same). The cost follows the length of `changed`, however large the snapshot is.
    pub fn derive(&self, changed: &[u32], mut read: impl FnMut(u32, &mut PageBytes)) -> Self {
        let mut changed = changed.to_vec();
        changed.sort_unstable();
        changed.dedup();
        let mut buffer = ZERO;
        let mut edits = Vec::new();
        for number in changed {
            read(number, &mut buffer);
            if buffer != *self.page(number).bytes() {
                edits.push((number, store(&buffer)));
            }
        }
        if edits.is_empty() {
            return self.clone();
        }
        Self::layer(&self.0.tree, self.0.depth + 1, edits)
    }

    fn layer(parent: &Tree, depth: usize, mut edits: Vec<Edit>) -> Self {
        let own = edits.iter().map(|(number, _)| *number).collect();
        Self(Arc::new(Layer { tree: parent.edited(&mut edits), depth, own }))
    }

    /// What one page holds. Every number has a page; those that nobody wrote are zero.
    pub fn page(&self, number: u32) -> Content<'_> {
        self.0.tree.get(number).map_or(Content::Zero, |page| Content::Bytes(page.bytes()))
    }

    /// Calls `visit` once for every page whose content may differ between the two, in ascending order.
    ///
    /// It misses none. That a page is visited without a difference is possible but rare: it takes a collision of
    /// 64-bit hashes. The cost follows what does not come from a common ancestor.
    pub fn for_each_difference(&self, other: &Self, mut visit: impl FnMut(u32)) {
        self.0.tree.for_each_difference(&other.0.tree, &mut visit);
    }

    /// Whether both are the same snapshot: clones, or children without a difference. Two that came to hold the
    /// same bytes by different ways are not, but have no differences.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Layers above the base; 0 for a base. It says where this snapshot comes from, and has no influence on cost.
    pub fn depth(&self) -> usize {
        self.0.depth
    }

    /// Numbers of the pages that are not zero, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let mut numbers = Vec::new();
        self.0.tree.for_each_difference(&Tree::default(), &mut |number| numbers.push(number));
        numbers.into_iter()
    }

    /// How many pages are in the topmost layer, those that became zero included.
    pub fn own_pages(&self) -> usize {
        self.0.own.len()
    }

    /// Numbers of the pages in the topmost layer, in ascending order: what [`derive`](Self::derive) found to
    /// differ from the parent, or all that is in a base.
    pub fn own_numbers(&self) -> &[u32] {
        &self.0.own
    }
}

impl Default for Pages {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pages")
            .field("depth", &self.depth())
            .field("own_pages", &self.own_pages())
            .finish_non_exhaustive()
    }
}

/// The stored page with these bytes, `None` if they are zero.
fn store(bytes: &PageBytes) -> Option<Arc<Page>> {
    (*bytes != ZERO).then(|| intern(bytes))
}
