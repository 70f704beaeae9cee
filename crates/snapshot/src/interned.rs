//! The bytes of pages, equal ones once in a process.
//!
//! A table leads from hashes to pages without keeping them alive: a page is freed with its last owner and takes
//! its entry along. The table has one place per hash, so content chosen to collide finds no list to make long: a
//! page that finds its place taken by other bytes is merely not shared.
//!
//! Finding the equal page costs about as much as copying one twice. It is always done: besides memory, it makes
//! pages that changed and changed back the same page again, so that restores need not copy them. Guests never see
//! these bytes, only copies; what sharing could tell one about another is in the time that the host takes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::hash::hash;
use crate::{PAGE_BYTES, PageBytes};

const SHARDS: usize = 64; // Threads that work on different pages seldom meet.
const SHARD_SHIFT: u32 = 40; // The map inside a shard goes by the lowest and the highest bits.
const CAPACITY_KEPT: usize = 64; // A table this small is not worth shrinking.

/// Invariant: a place whose page is alive stays that page's until it is dropped.
type Shard = HashMap<u64, Weak<Page>, BuildHasherDefault<AlreadyHashed>>;

static TABLE: LazyLock<[Mutex<Shard>; SHARDS]> = LazyLock::new(|| std::array::from_fn(|_| Mutex::default()));
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// What the pages of all snapshots of this process take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Distinct pages. Zero pages are not among them, since no snapshot stores one.
    pub pages: usize,
    /// Their content in bytes, without what leads to them: some hundredths more.
    pub bytes: usize,
}

/// What is alive now. While other threads make or drop snapshots this is as of some moment during the call.
pub fn stats() -> Stats {
    let pages = ALIVE.load(Ordering::Relaxed);
    Stats { pages, bytes: pages * PAGE_BYTES }
}

/// One page's content. It does not change, and [`intern`] is the only way to one.
pub(crate) struct Page {
    bytes: PageBytes,
    hash: u64,
}

impl Page {
    fn new(bytes: &PageBytes, hash: u64) -> Arc<Self> {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { bytes: *bytes, hash })
    }

    pub(crate) const fn bytes(&self) -> &PageBytes {
        &self.bytes
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        let mut shard = lock(self.hash);
        // The place may be another page's: one with the same hash, or one with the same bytes that was made after
        // this one's last owner went and before this line.
        if shard.get(&self.hash).is_some_and(|page| std::ptr::eq(page.as_ptr(), self)) {
            shard.remove(&self.hash);
            if shard.capacity() > CAPACITY_KEPT && shard.len() < shard.capacity() / 8 {
                let capacity = 2 * shard.len();
                shard.shrink_to(capacity);
            }
        }
    }
}

/// The page with these bytes: the one that is alive, or a new one.
pub(crate) fn intern(bytes: &PageBytes) -> Arc<Page> {
    intern_as(bytes, hash(bytes))
}

fn intern_as(bytes: &PageBytes, hash: u64) -> Arc<Page> {
    let mut shard = lock(hash);
    match shard.get(&hash).and_then(Weak::upgrade) {
        Some(page) if page.bytes == *bytes => page,
        Some(other) => {
            // This may have become its last owner, and dropping it takes the lock.
            drop(shard);
            drop(other);
            Page::new(bytes, hash)
        }
        None => {
            let page = Page::new(bytes, hash);
            shard.insert(hash, Arc::downgrade(&page));
            page
        }
    }
}

/// The shard that has this hash's place. Nothing panics under the lock, and a shard is whole between any two
/// statements, so a poisoned one is as good as any.
fn lock(hash: u64) -> MutexGuard<'static, Shard> {
    let shard = (hash >> SHARD_SHIFT) as usize % SHARDS;
    TABLE[shard].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a hash through.
#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Hashes here are chosen, so that these tests and others do not meet.

    fn has_place(hash: u64) -> bool {
        lock(hash).contains_key(&hash)
    }

    #[test]
    fn equal_bytes_are_one_page_while_it_lives() {
        let first = intern_as(&[1; PAGE_BYTES], 1);
        let second = intern_as(&[1; PAGE_BYTES], 1);
        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        assert!(has_place(1));
        drop(second);
        assert!(!has_place(1));
    }

    #[test]
    fn colliding_pages_are_both_right_and_the_first_keeps_its_place() {
        let first = intern_as(&[1; PAGE_BYTES], 2);
        let second = intern_as(&[2; PAGE_BYTES], 2);
        assert_eq!((first.bytes[0], second.bytes[0]), (1, 2));
        drop(second);
        assert!(Arc::ptr_eq(&first, &intern_as(&[1; PAGE_BYTES], 2)));
        let second = intern_as(&[2; PAGE_BYTES], 2);
        drop(first);
        assert!(!has_place(2));
        let third = intern_as(&[2; PAGE_BYTES], 2);
        assert!(!Arc::ptr_eq(&second, &third));
        drop(second);
        assert!(has_place(2));
    }

    #[test]
    fn a_shard_shrinks_after_a_flood() {
        let shard = 5 << SHARD_SHIFT;
        let flood: Vec<_> = (0..4096).map(|hash| intern_as(&[3; PAGE_BYTES], shard | hash << 8)).collect();
        assert!(lock(shard).capacity() >= 4096);
        drop(flood);
        assert!(lock(shard).capacity() <= 2 * CAPACITY_KEPT, "{}", lock(shard).capacity());
    }

    #[test]
    fn a_million_pages_leave_nothing_behind() {
        let shard = 6 << SHARD_SHIFT;
        let mut alive = std::collections::VecDeque::new();
        for number in 0..1_000_000 {
            alive.push_back(intern_as(&[5; PAGE_BYTES], shard | number));
            if alive.len() > 100 {
                alive.pop_front();
            }
        }
        assert_eq!(lock(shard).values().filter(|page| page.strong_count() > 0).count(), 100);
        assert!(lock(shard).len() <= 101 && lock(shard).capacity() <= 1000, "{}", lock(shard).capacity());
    }

    #[test]
    fn a_panic_under_the_lock_does_no_lasting_harm() {
        let page = intern_as(&[4; PAGE_BYTES], 3);
        let panicked = std::thread::spawn(|| {
            let _shard = lock(3);
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert!(Arc::ptr_eq(&page, &intern_as(&[4; PAGE_BYTES], 3)));
        drop(page);
        assert!(!has_place(3));
    }
}
