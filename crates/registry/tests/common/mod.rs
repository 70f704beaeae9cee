//! What the tests share: stores with snapshots, and what stands between them and a registry.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it, and fails by panicking")]

pub(crate) mod docker;
pub(crate) mod proxy;
pub(crate) mod server;

use std::path::{Path, PathBuf};

use coracle_registry::{Builder, Registry, RegistryReference};
use coracle_snapshot::{Compression, PAGE_BYTES, PageBytes, Pages, Saved, Store};
use tempfile::TempDir;

pub(crate) const CONFIG: &[u8] = br#"{"made-by":"a test"}"#;

/// A directory in memory where there is such a thing: nothing here is about how fast disks are.
pub(crate) fn directory() -> TempDir {
    let shared_memory = Path::new("/dev/shm");
    let parent = if shared_memory.is_dir() { shared_memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("coracle-registry-").tempdir_in(parent).unwrap()
}

/// A new store, and what keeps it.
pub(crate) fn empty_store() -> (TempDir, Store) {
    let directory = directory();
    let store = Store::create(directory.path()).unwrap();
    (directory, store)
}

/// A page that tells its content by its bytes.
fn page(content: u32) -> PageBytes {
    let mut page = [0; PAGE_BYTES];
    for (index, word) in page.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *word = (content ^ (index as u32) << 20).wrapping_mul(0x9e37_79b1).to_le_bytes();
    }
    page
}

/// Snapshots that a store has: `base` with 300 pages, and two that derive from it, `child` with 100 and `variant` with 5
/// pages of their own.
pub(crate) struct Snapshots {
    pub(crate) store: Store,
    pub(crate) base: Saved,
    pub(crate) child: Saved,
    pub(crate) variant: Saved,
    _directory: TempDir,
}

pub(crate) fn snapshots() -> Snapshots {
    let (directory, store) = empty_store();
    let base = Pages::base((0..300).map(|number| (number, page(number + 1))));
    let derive = |numbers: std::ops::Range<u32>, content: u32| {
        let numbers: Vec<u32> = numbers.collect();
        base.derive(&numbers, |number, out| *out = page(content + number)).unwrap()
    };
    let (child, variant) = (derive(0..100, 1000), derive(7..12, 2000));
    let save = |tag, pages| store.save(tag, CONFIG, pages, Compression::None).unwrap();
    let (base, child, variant) = (save("base", &base), save("child", &child), save("variant", &variant));
    Snapshots { store, base, child, variant, _directory: directory }
}

impl Snapshots {
    /// Bytes of the layer that is this snapshot's own, and of its manifest.
    pub(crate) fn own_bytes(&self, tag: &str) -> u64 {
        let (_, bytes, manifest) = self.store.manifest(tag).unwrap();
        manifest.layers().last().unwrap().size + bytes.len() as u64
    }
}

/// Without TLS, as registries on this machine are.
pub(crate) fn plain() -> Builder {
    Registry::builder().plain_http(true)
}

pub(crate) fn reference(text: &str) -> RegistryReference {
    text.parse().unwrap()
}

/// All files below a directory, in a fixed order.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Everything in a store, locks apart: names and content.
pub(crate) fn everything(store: &Store) -> Vec<(PathBuf, Vec<u8>)> {
    let files = files(store.path()).into_iter().filter(|file| !file.to_str().unwrap().ends_with("lock"));
    files.map(|file| (file.strip_prefix(store.path()).unwrap().to_owned(), std::fs::read(&file).unwrap())).collect()
}

/// The error and all that it stems from, in a line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |line, error| format!("{line}: {error}"))
}
