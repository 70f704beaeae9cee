//! Snapshots, as callers see them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::interned::intern;
use crate::lazy::Image;
use crate::lineage::Lineage;
use crate::tree::{Edit, Slot, Tree};
use crate::{Error, PAGE_BYTES, PageBytes};

static ZERO: PageBytes = [0; PAGE_BYTES];

/// The content of all pages of a snapshot. It never changes; clones share it.
///
/// A snapshot keeps what it holds alive: pages that only its ancestors hold go with them, unless they were saved to a store.
/// The first and the latest saved relatives are kept, so that a later save finds what it can share.
///
/// Pages of a snapshot that was loaded are read from its files when they are first asked for, and stay in memory from then
/// on. That can fail, and so can everything that looks at pages.
#[derive(Clone)]
pub struct Pages(Arc<Layer>);

struct Layer {
    base: Option<Arc<Image>>,
    tree: Tree, // What differs from the base, or without one from zeros.
    depth: usize,
    own: Own,
    lineage: Arc<Lineage>,
}

/// Ascending: numbers of the pages that differ from the parent, or in a base from zero.
enum Own {
    Numbers(Box<[u32]>),
    All(OnceLock<Box<[u32]>>), // Of an image in a file: listed when somebody asks.
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
        let page = |bytes: &PageBytes| (*bytes != ZERO).then(|| Slot::Page(intern(bytes)));
        let mut pages: Vec<Edit> = pages.into_iter().map(|(number, bytes)| (number, page(bytes.borrow()))).collect();
        pages.reverse();
        pages.sort_by_key(|(number, _)| *number); // Stable: what was last is first now, and the one that is kept.
        pages.dedup_by_key(|(number, _)| *number);
        pages.retain(|(_, page)| page.is_some());
        let own = Own::Numbers(pages.iter().map(|(number, _)| *number).collect());
        let tree = Tree::default().edited(&mut pages);
        Self(Arc::new(Layer { base: None, tree, depth: 0, own, lineage: Arc::default() }))
    }

    /// The pages of an image in a file.
    pub(crate) fn of_image(image: Arc<Image>, lineage: Arc<Lineage>) -> Self {
        let own = Own::All(OnceLock::new());
        Self(Arc::new(Layer { base: Some(image), tree: Tree::default(), depth: 0, own, lineage }))
    }

    /// A child with these pages, ascending, whose content is not looked at.
    pub(crate) fn with_layer(&self, mut slots: Vec<(u32, Slot)>) -> Self {
        let own = Own::Numbers(slots.iter().map(|(number, _)| *number).collect());
        let below = |number| self.0.base.as_ref().is_some_and(|base| base.has(number));
        let mut edits: Vec<Edit> = slots
            .drain(..)
            .map(|(number, slot)| match slot {
                Slot::Zero if !below(number) => (number, None),
                slot => (number, Some(slot)),
            })
            .collect();
        self.layer(&mut edits, own)
    }

    /// A child that may differ from this snapshot in the pages `changed`, in any order.
    ///
    /// `read` is called once for each of them, in ascending order, to copy the page's content into a buffer that
    /// holds anything. Pages that hold what they hold in this snapshot are left out. If all do, the child is the
    /// [`same`](Self::same). The cost follows the length of `changed`, however large the snapshot is.
    ///
    /// # Errors
    /// When a page of this snapshot, to compare with, cannot be read from its file. Pages in memory have no errors.
    pub fn derive(&self, changed: &[u32], mut read: impl FnMut(u32, &mut PageBytes)) -> Result<Self, Error> {
        let mut changed = changed.to_vec();
        changed.sort_unstable();
        changed.dedup();
        let mut buffer = ZERO;
        let mut edits = Vec::new();
        for number in changed {
            read(number, &mut buffer);
            if buffer != *self.page(number)?.bytes() {
                edits.push((number, self.slot(number, &buffer)?));
            }
        }
        if edits.is_empty() {
            return Ok(self.clone());
        }
        let own = Own::Numbers(edits.iter().map(|(number, _)| *number).collect());
        Ok(self.layer(&mut edits, own))
    }

    /// How the tree says that a page has this content now; `None` when the base says so.
    fn slot(&self, number: u32, bytes: &PageBytes) -> Result<Option<Slot>, Error> {
        let base = self.0.base.as_ref().filter(|base| base.has(number));
        if *bytes == ZERO {
            return Ok(base.map(|_| Slot::Zero));
        }
        if let Some(base) = base
            && self.0.tree.get(number).is_some()
            && base.page(number)?.is_some_and(|page| page.bytes() == bytes)
        {
            return Ok(None); // It changed back.
        }
        Ok(Some(Slot::Page(intern(bytes))))
    }

    fn layer(&self, edits: &mut [Edit], own: Own) -> Self {
        let Layer { base, tree, depth, lineage, .. } = &*self.0;
        let (base, lineage) = (base.clone(), Arc::clone(lineage));
        Self(Arc::new(Layer { base, tree: tree.edited(edits), depth: depth + 1, own, lineage }))
    }

    /// What one page holds. Every number has a page; those that nobody wrote are zero.
    ///
    /// # Errors
    /// When the page is in a file and cannot be read, or is not what it was when it was saved.
    pub fn page(&self, number: u32) -> Result<Content<'_>, Error> {
        Ok(match (self.0.tree.get(number), &self.0.base) {
            (Some(Slot::Page(page)), _) => Content::Bytes(page.bytes()),
            (Some(Slot::Zero), _) | (None, None) => Content::Zero,
            (Some(Slot::Lazy(lazy)), _) => Content::Bytes(lazy.page()?.bytes()),
            (None, Some(base)) => base.page(number)?.map_or(Content::Zero, |page| Content::Bytes(page.bytes())),
        })
    }

    /// Copies one page, without keeping it in memory if it is in a file.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    pub fn copy_page(&self, number: u32, out: &mut PageBytes) -> Result<(), Error> {
        match (self.0.tree.get(number), &self.0.base) {
            (Some(Slot::Page(page)), _) => *out = *page.bytes(),
            (Some(Slot::Zero), _) | (None, None) => out.fill(0),
            (Some(Slot::Lazy(lazy)), _) => lazy.copy(out)?,
            (None, Some(base)) => base.copy(number, out)?,
        }
        Ok(())
    }

    /// Calls `visit` once for every page whose content may differ between the two, in ascending order.
    ///
    /// It misses none. Between relatives in memory, a page that is visited without a difference is possible but rare: it
    /// takes a collision of 64-bit hashes. Pages that are in files, and were not read yet, count as different unless both
    /// come from the same base, or have the same digest in their layers. Nothing is read. The cost follows what does not
    /// come from a common ancestor or base.
    pub fn for_each_difference(&self, other: &Self, mut visit: impl FnMut(u32)) {
        let (left, right) = (self.state(), other.state());
        left.for_each_difference(&right, &mut visit);
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
        self.state().numbers().into_iter()
    }

    /// How many pages are in the topmost layer, those that became zero included.
    pub fn own_pages(&self) -> usize {
        match (&self.0.own, &self.0.base) {
            (Own::All(_), Some(base)) => base.numbers().pages() as usize,
            _ => self.own_numbers().len(),
        }
    }

    /// Numbers of the pages in the topmost layer, in ascending order: what [`derive`](Self::derive) found to
    /// differ from the parent, or all that is in a base.
    pub fn own_numbers(&self) -> &[u32] {
        match &self.0.own {
            Own::Numbers(numbers) => numbers,
            Own::All(numbers) => numbers.get_or_init(|| self.numbers().collect()),
        }
    }

    /// What it holds, without its history.
    pub(crate) fn state(&self) -> State {
        State { base: self.0.base.clone(), tree: self.0.tree.clone() }
    }

    pub(crate) fn lineage(&self) -> &Arc<Lineage> {
        &self.0.lineage
    }
}

/// What a snapshot holds, without its history.
#[derive(Clone)]
pub(crate) struct State {
    base: Option<Arc<Image>>,
    tree: Tree,
}

impl State {
    pub(crate) fn for_each_difference(&self, other: &Self, visit: &mut impl FnMut(u32)) {
        let same_base = match (&self.base, &other.base) {
            (None, None) => true,
            (Some(left), Some(right)) => Arc::ptr_eq(left, right),
            _ => false,
        };
        if same_base {
            return self.tree.for_each_difference(&other.tree, visit);
        }
        let mut numbers = self.numbers();
        numbers.extend(other.numbers());
        numbers.sort_unstable(); // Two ascending sequences: merging them is what the sort does.
        numbers.dedup();
        for number in numbers {
            let (left, right) = (self.slot(number), other.slot(number));
            if left.is_none() || !Slot::same(left.as_ref(), right.as_ref()) {
                visit(number);
            }
        }
    }

    /// What a page is, so that equal slots are equal pages; `None` if nobody read it yet.
    fn slot(&self, number: u32) -> Option<Slot> {
        match (self.tree.get(number), &self.base) {
            (Some(Slot::Lazy(lazy)), _) if let Some(page) = lazy.known() => Some(Slot::Page(Arc::clone(page))),
            (Some(slot), _) => Some(slot.clone()),
            (None, Some(base)) if base.has(number) => base.known(number).map(|page| Slot::Page(Arc::clone(page))),
            (None, _) => Some(Slot::Zero),
        }
    }

    /// Of the pages that are not zero, as far as is known without reading.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let mut numbers = Vec::new();
        let mut base = self.base.iter().flat_map(|base| base.numbers().iter()).peekable();
        self.tree.for_each(&mut |number, slot| {
            while let Some(below) = base.next_if(|below| *below <= number) {
                if below < number {
                    numbers.push(below);
                }
            }
            if !matches!(slot, Slot::Zero) {
                numbers.push(number);
            }
        });
        numbers.extend(base);
        numbers
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
