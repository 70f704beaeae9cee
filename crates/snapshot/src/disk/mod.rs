//! Snapshots on disk: a directory with many of them, each stored as what it adds to others.
//!
//! | module | what it is |
//! |---|---|
//! | `mod` | the store: open, change tags, list |
//! | `save`, `load` | into it, out of it |
//! | `verify`, `prune`, `transfer` | checking all bytes, removing what nobody needs, blobs for registries |
//! | `document` | the JSON documents |
//! | `layer` | the file of one layer |
//! | `run_form` | a base as it is mapped |
//! | `directory`, `lock` | files that nobody can be trusted with, and who may touch them |

mod directory;
mod document;
mod layer;
mod load;
mod lock;
mod prune;
mod run_form;
mod save;
mod transfer;
mod verify;

#[doc(hidden)]
pub mod fuzzing;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use self::directory::{Directory, Opened, Watched};
use self::document::{INDEX_MAX, Index, IndexEntry, LAYOUT_MAX, MANIFEST_MAX, check_tag};
use self::lock::Lock;
use crate::{Digest, Error};

pub use self::document::{ARTIFACT_TYPE, CONFIG_TYPE, Descriptor, LAYER_TYPE, Manifest};
pub use self::layer::{Compression, LayerKind};
pub use self::load::{Inspection, LayerInspection, Loaded};
pub use self::prune::Pruned;
pub use self::run_form::RunForm;
pub use self::save::Saved;
pub use self::transfer::Import;
pub use self::verify::Verified;

const LAYOUT: &str = "oci-layout";
const INDEX: &str = "index.json";
const BLOBS: &str = "blobs";
const ALGORITHM: &str = "sha256";
/// What is ours beside OCI's.
const PRIVATE: &str = "coracle";
const RUN_FORMS: &str = "run";
const TEMPORARIES: &str = "tmp";
const LOCK: &str = "lock";
const INDEX_LOCK: &str = "index.lock";

/// A directory with snapshots: an OCI image layout, so that tools which copy images copy them. Clones share it.
///
/// Any number of threads and processes may use one store at once. A process that is killed at any point leaves what was there
/// before, or what was to be there after. What is in it is not trusted: every byte is checked before it is believed, unless a
/// function's name says otherwise.
///
/// ```
/// # use coracle_snapshot::{Compression, Content, Error, PAGE_BYTES, Pages, Store};
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let store = Store::create(&path)?;
/// let base = Pages::base([(7, [1; PAGE_BYTES]), (8, [2; PAGE_BYTES])]);
/// store.save("base", b"{}", &base, Compression::None)?;
/// // What derives from it costs what differs.
/// let child = base.derive(&[8], |_, page| page.fill(3))?;
/// let saved = store.save("child", b"{}", &child, Compression::None)?;
///
/// let loaded = Store::open(&path)?.load("child")?;
/// assert_eq!(loaded.digest, saved.digest);
/// assert_eq!(loaded.pages.own_numbers(), [8]);
/// assert_eq!(loaded.pages.page(7)?, Content::Bytes(&[1; PAGE_BYTES]));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    path: PathBuf,
    root: Directory,
    blobs: Directory,
    id: StoreId,
    /// What `index.json` said when it was read last.
    index: Mutex<Option<(Watched, Arc<Index>)>>,
}

/// Tells stores apart, whatever paths lead to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StoreId {
    device: u64,
    inode: u64,
}

/// A tag of a store, and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tagged {
    /// Its name.
    pub tag: String,
    /// Of the manifest: the snapshot's name that nobody can move.
    pub digest: Digest,
    /// Bytes of all files that the snapshot needs, if who wrote the tag said so. A claim, compared with nothing.
    pub bytes: Option<u64>,
    /// Bytes of those that it does not share with the snapshot it derives from; likewise a claim.
    pub own_bytes: Option<u64>,
}

/// How a caller names a snapshot.
enum Reference<'a> {
    Tag(&'a str),
    Digest(Digest),
}

impl<'a> Reference<'a> {
    fn parse(text: &'a str) -> Result<Self, Error> {
        if text.contains(':') {
            return Ok(Self::Digest(text.parse()?));
        }
        let shown = || text.chars().take(80).collect();
        check_tag(text).map_err(|why| Error::Reference { text: shown(), why })?;
        Ok(Self::Tag(text))
    }
}

impl Store {
    /// Opens a store.
    ///
    /// # Errors
    /// [`Error::NotAStore`] if there is none, [`Error::Damaged`] if its outer files are not what they should be,
    /// [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let root = open_root(path)?;
        let layout = root.open(LAYOUT)?.ok_or_else(|| not_a_store(path, "there is no file oci-layout"))?;
        document::check_layout(LAYOUT, &layout.read(LAYOUT_MAX)?)?;
        Self::with_root(path, root)
    }

    /// Makes a store, with the directories on the way, or opens the one that is there.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn create(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        std::fs::create_dir_all(path).map_err(|error| Error::io(format!("cannot make {}", path.display()), error))?;
        let root = open_root(path)?;
        if root.open(LAYOUT)?.is_none() {
            let private = root.child_or_new(PRIVATE)?;
            let _lock = Lock::shared(&private, LOCK)?;
            let _index_lock = Lock::exclusive(&private, INDEX_LOCK)?;
            root.child_or_new(BLOBS)?.child_or_new(ALGORITHM)?;
            let temporaries = private.child_or_new(TEMPORARIES)?;
            // The file that makes it a store comes last.
            for (name, bytes) in [(INDEX, Index::default().write()), (LAYOUT, document::layout())] {
                if root.open(name)?.is_none() {
                    let mut file = temporaries.temporary()?;
                    file.write(&bytes)?;
                    file.keep(&root, name)?;
                }
            }
            root.sync()?;
        }
        Self::open(path)
    }

    fn with_root(path: &Path, root: Directory) -> Result<Self, Error> {
        let blobs = match root.child(BLOBS)? {
            Some(blobs) => blobs.child(ALGORITHM)?,
            None => None,
        };
        let blobs = blobs.ok_or_else(|| not_a_store(path, "there is no directory blobs/sha256"))?;
        let stat = root.stat()?;
        let id = StoreId { device: stat.st_dev, inode: stat.st_ino };
        Ok(Self(Arc::new(Inner { path: path.to_owned(), root, blobs, id, index: Mutex::default() })))
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// All tags, in ascending order. Reads one file, whatever the number of snapshots.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Io`].
    pub fn list(&self) -> Result<Vec<Tagged>, Error> {
        let tagged = |IndexEntry { tag, digest, bytes, own_bytes, .. }| Tagged { tag, digest, bytes, own_bytes };
        Ok(self.index()?.entries.iter().cloned().map(tagged).collect())
    }

    /// Takes a tag away. The snapshot's files go with the next [`prune`](Self::prune), unless others need them.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such tag; as [`list`](Self::list).
    pub fn untag(&self, tag: &str) -> Result<(), Error> {
        let _lock = self.lock_shared()?;
        self.change_index(|index| {
            let before = index.entries.len();
            index.entries.retain(|entry| entry.tag != tag);
            if index.entries.len() == before {
                return Err(Error::NotFound { reference: tag.chars().take(80).collect() });
            }
            Ok(())
        })
    }

    /// What `index.json` says; parsed again only when it is another file, or was changed.
    fn index(&self) -> Result<Arc<Index>, Error> {
        let mut known = self.0.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((watched, index)) = &*known
            && watched.is_still(&self.0.root, INDEX)
        {
            return Ok(Arc::clone(index));
        }
        let file = self.0.root.open(INDEX)?.ok_or_else(|| not_a_store(&self.0.path, "there is no file index.json"))?;
        let watched = file.watch()?;
        let index = Arc::new(Index::parse(INDEX, &file.read(INDEX_MAX)?)?);
        *known = Some((watched, Arc::clone(&index)));
        Ok(index)
    }

    fn set_tag(&self, entry: IndexEntry) -> Result<(), Error> {
        self.change_index(|index| {
            index.set(entry);
            Ok(())
        })
    }

    /// Writes `index.json` anew; the caller holds the store's lock.
    fn change_index(&self, change: impl FnOnce(&mut Index) -> Result<(), Error>) -> Result<(), Error> {
        let private = self.private_or_new()?;
        let temporaries = private.child_or_new(TEMPORARIES)?;
        let _lock = Lock::exclusive(&private, INDEX_LOCK)?;
        let mut index = Index { entries: self.index()?.entries.clone() };
        change(&mut index)?;
        let bytes = index.write();
        if bytes.len() as u64 > INDEX_MAX {
            return Err(Error::Unfit {
                why: format!("index.json would have more than {INDEX_MAX} bytes: use more stores"),
            });
        }
        let mut file = temporaries.temporary()?;
        file.write(&bytes)?;
        file.keep(&self.0.root, INDEX)?;
        self.0.root.sync()
    }

    fn private_or_new(&self) -> Result<Directory, Error> {
        self.0.root.child_or_new(PRIVATE)
    }

    /// Keeps blobs where they are.
    fn lock_shared(&self) -> Result<Option<Lock>, Error> {
        let private = match self.0.root.child(PRIVATE)? {
            Some(private) => private,
            None => match self.0.root.child_or_new(PRIVATE) {
                Ok(private) => private,
                Err(Error::Io { source, .. }) if is_read_only(&source) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        Lock::shared(&private, LOCK).map(Some)
    }

    /// The manifest that a caller means.
    fn find(&self, reference: &str) -> Result<(Digest, Vec<u8>, Manifest), Error> {
        let not_found = || Error::NotFound { reference: reference.to_owned() };
        let (digest, size) = match Reference::parse(reference)? {
            Reference::Tag(tag) => {
                let index = self.index()?;
                let entry = index.find(tag).ok_or_else(not_found)?;
                (entry.digest, Some(entry.size))
            }
            Reference::Digest(digest) => {
                if self.0.blobs.open(&digest.hex())?.is_none() {
                    return Err(not_found());
                }
                (digest, None)
            }
        };
        let (bytes, manifest) = self.manifest_of(&digest, size)?;
        Ok((digest, bytes, manifest))
    }

    fn manifest_of(&self, digest: &Digest, size: Option<u64>) -> Result<(Vec<u8>, Manifest), Error> {
        let blob = self.blob(digest, size)?;
        let path = blob.path.clone();
        let bytes = blob.read(MANIFEST_MAX)?;
        check_digest(&path, &bytes, digest)?;
        let manifest = Manifest::parse(&path, &bytes)?;
        Ok((bytes, manifest))
    }

    /// Opens a blob, whose content is not looked at.
    fn blob(&self, digest: &Digest, size: Option<u64>) -> Result<Opened, Error> {
        let name = digest.hex();
        let path = || self.0.blobs.path(&name);
        let blob = self.0.blobs.open(&name)?.ok_or_else(|| Error::damaged(path(), "is missing"))?;
        match size {
            Some(size) if size != blob.bytes => {
                Err(Error::damaged(path(), format!("has {} bytes, not {size} as what names it says", blob.bytes)))
            }
            _ => Ok(blob),
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.0.path).finish_non_exhaustive()
    }
}

fn open_root(path: &Path) -> Result<Directory, Error> {
    Directory::root(path).map_err(|errno| match errno {
        Errno::NOENT => not_a_store(path, "there is nothing"),
        Errno::NOTDIR => not_a_store(path, "it is no directory"),
        errno => Error::io(format!("cannot open {}", path.display()), errno),
    })
}

fn not_a_store(path: &Path, why: &str) -> Error {
    Error::NotAStore { why: format!("{}: {why}", path.display()) }
}

fn check_digest(path: &str, bytes: &[u8], digest: &Digest) -> Result<(), Error> {
    if Digest::of(bytes) == *digest {
        Ok(())
    } else {
        Err(Error::damaged(path, "has another digest than its name says"))
    }
}

fn is_read_only(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied)
}
