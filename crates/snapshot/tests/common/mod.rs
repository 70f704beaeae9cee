//! What the tests of stores share.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it, and fails by panicking")]

pub(crate) mod forge;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use coracle_snapshot::{PAGE_BYTES, PageBytes, Pages, Store};
use tempfile::TempDir;

/// A directory in memory where there is such a thing: nothing here is about how fast disks are.
pub(crate) fn directory() -> TempDir {
    let shared_memory = Path::new("/dev/shm");
    let parent = if shared_memory.is_dir() { shared_memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("coracle-snapshot-").tempdir_in(parent).unwrap()
}

/// A new store, and what keeps it.
pub(crate) fn store() -> (TempDir, Store) {
    let directory = directory();
    let store = Store::create(directory.path()).unwrap();
    (directory, store)
}

/// A page that tells its content by its bytes; 0 is zeros.
pub(crate) fn page(content: u32) -> PageBytes {
    let mut page = [0; PAGE_BYTES];
    if content != 0 {
        for (index, word) in page.as_chunks_mut::<4>().0.iter_mut().enumerate().step_by(16) {
            *word = (content ^ (index as u32) << 20).wrapping_mul(0x9e37_79b1).to_le_bytes();
        }
        page[PAGE_BYTES - 4..].copy_from_slice(&content.to_le_bytes());
    }
    page
}

/// A base with these pages, each with its number and one as content.
pub(crate) fn base(numbers: impl IntoIterator<Item = u32>) -> Pages {
    Pages::base(numbers.into_iter().map(|number| (number, page(number + 1))))
}

/// A child whose pages are those of `changed`: number and content.
pub(crate) fn derive(parent: &Pages, changed: &[(u32, u32)]) -> Pages {
    let numbers: Vec<u32> = changed.iter().map(|(number, _)| *number).collect();
    let content = |number| changed.iter().rfind(|(other, _)| *other == number).unwrap().1;
    parent.derive(&numbers, |number, out| *out = page(content(number))).unwrap()
}

/// All pages that are not zero.
pub(crate) fn content(pages: &Pages) -> Vec<(u32, PageBytes)> {
    pages.numbers().map(|number| (number, *pages.page(number).unwrap().bytes())).collect()
}

/// Bytes that the files below a directory take on the disk.
pub(crate) fn disk_bytes(path: &Path) -> u64 {
    files(path).iter().map(|file| 512 * file.symlink_metadata().unwrap().blocks()).sum()
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

/// All files of a store but the private ones: names and content.
pub(crate) fn published(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = files(path).into_iter().filter(|file| !file.starts_with(path.join("coracle")));
    files.map(|file| (file.strip_prefix(path).unwrap().to_owned(), std::fs::read(&file).unwrap())).collect()
}
