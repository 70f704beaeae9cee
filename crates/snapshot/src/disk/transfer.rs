//! Blobs one by one: for registries, which know no snapshots.

use std::fs::File;
use std::io::Read;

use super::document::{BLOB_MAX, IndexEntry, check_tag};
use super::layer::CHUNK_BYTES_MAX;
use super::lock::Lock;
use super::save::sizes;
use super::{Descriptor, Manifest, Store, TEMPORARIES};
use crate::digest::Hasher;
use crate::{Digest, Error};

impl Store {
    /// The manifest of the snapshot with this tag or digest: its bytes, their digest, and what they say.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn manifest(&self, reference: &str) -> Result<(Digest, Vec<u8>, Manifest), Error> {
        let _lock = self.lock_shared()?;
        self.find(reference)
    }

    /// Opens a blob for reading, to send it away. Its size was compared, its content was not: who receives it does.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it is missing or has another size; [`Error::Io`].
    pub fn open_blob(&self, descriptor: &Descriptor) -> Result<File, Error> {
        Ok(self.blob(&descriptor.digest, Some(descriptor.size))?.file)
    }

    /// Begins to take in a snapshot from elsewhere. Nothing is pruned until it is dropped.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn import(&self) -> Result<Import<'_>, Error> {
        Ok(Import { store: self, _lock: self.lock_shared()? })
    }
}

/// A snapshot that comes from elsewhere, blob by blob; from [`Store::import`].
pub struct Import<'s> {
    store: &'s Store,
    _lock: Option<Lock>,
}

impl Import<'_> {
    /// Parses a manifest from elsewhere, to see which blobs it needs.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it is no manifest of a snapshot.
    pub fn manifest(&self, bytes: &[u8]) -> Result<Manifest, Error> {
        Manifest::parse("the manifest", bytes)
    }

    /// Whether the store has this blob, as far as name and size tell.
    pub fn has(&self, descriptor: &Descriptor) -> bool {
        self.store.0.blobs.has(&descriptor.digest.hex(), descriptor.size)
    }

    /// Takes in a blob. What comes is compared with size and digest, and is not kept if it differs.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it differs; [`Error::Io`], also of `from`.
    pub fn add(&self, descriptor: &Descriptor, mut from: impl Read) -> Result<(), Error> {
        let name = descriptor.digest.hex();
        let path = self.store.0.blobs.path(&name);
        if descriptor.size > BLOB_MAX {
            return Err(Error::damaged(path, format!("would have more than {BLOB_MAX} bytes")));
        }
        let temporaries = self.store.private_or_new()?.child_or_new(TEMPORARIES)?;
        let mut file = temporaries.temporary()?;
        let mut hasher = Hasher::default();
        let mut left = descriptor.size;
        let mut buffer = vec![0; CHUNK_BYTES_MAX];
        loop {
            let count = match from.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io(format!("cannot receive {path}"), error)),
            };
            let Some(after) = left.checked_sub(count as u64) else {
                return Err(Error::damaged(path, "is longer than its manifest says"));
            };
            left = after;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            file.write(&buffer[..count])?;
        }
        if left != 0 {
            return Err(Error::damaged(path, "is shorter than its manifest says"));
        }
        if hasher.finish() != descriptor.digest {
            return Err(Error::damaged(path, "came with another digest than its manifest says"));
        }
        file.keep(&self.store.0.blobs, &name)?;
        Ok(())
    }

    /// Gives the snapshot a tag, when all its blobs are there.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the manifest is none, or a blob is missing; [`Error::Reference`] for a bad tag;
    /// [`Error::Io`].
    pub fn finish(self, tag: &str, manifest: &[u8]) -> Result<Digest, Error> {
        check_tag(tag).map_err(|why| Error::Reference { text: tag.chars().take(80).collect(), why })?;
        let parsed = self.manifest(manifest)?;
        for blob in std::iter::once(&parsed.config).chain(&parsed.layers) {
            self.store.blob(&blob.digest, Some(blob.size))?;
        }
        let named = self.store.write_blob(manifest)?;
        self.store.0.blobs.sync()?;
        let (bytes, own_bytes) = sizes(&parsed, named.size);
        let (bytes, own_bytes) = (Some(bytes), Some(own_bytes));
        let entry = IndexEntry { tag: tag.to_owned(), digest: named.digest, size: named.size, bytes, own_bytes };
        self.store.set_tag(entry)?;
        Ok(named.digest)
    }
}
