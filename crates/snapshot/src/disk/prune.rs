//! Removing what nobody needs.

use std::collections::HashSet;

use super::document::MANIFEST_MAX;
use super::lock::Lock;
use super::{INDEX_LOCK, LOCK, RUN_FORMS, Store, TEMPORARIES};
use crate::{Digest, Error};

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Blobs that no tag leads to.
    pub blobs: usize,
    /// Run forms of bases that no tag leads to.
    pub run_forms: usize,
    /// Files that somebody had begun to write before they were killed.
    pub temporaries: usize,
    /// Bytes on the disk that these took.
    pub bytes: u64,
}

impl Store {
    /// Removes blobs and run forms that no tag leads to, and what killed processes left. Waits until nobody else loads,
    /// saves or verifies. Snapshots that are loaded stay usable.
    ///
    /// # Errors
    /// When a manifest cannot be read: then nobody can say what it needs, and nothing is removed. [`Error::Io`].
    pub fn prune(&self) -> Result<Pruned, Error> {
        let private = self.private_or_new()?;
        let _lock = Lock::exclusive(&private, LOCK)?;
        let _index_lock = Lock::exclusive(&private, INDEX_LOCK)?;
        let (mut blobs, mut bases) = (HashSet::new(), HashSet::new());
        for entry in &self.index()?.entries {
            debug_assert!(entry.size <= MANIFEST_MAX);
            let (_, manifest) = self.manifest_of(&entry.digest, Some(entry.size))?;
            blobs.extend([entry.digest, manifest.config.digest]);
            blobs.extend(manifest.layers.iter().map(|layer| layer.digest));
            bases.extend(manifest.layers.first().map(|layer| layer.digest));
        }
        let mut pruned = Pruned::default();
        let (temporaries, run_forms) = (private.child_or_new(TEMPORARIES)?, private.child_or_new(RUN_FORMS)?);
        let directories = [(&temporaries, None), (&run_forms, Some(&bases)), (&self.0.blobs, Some(&blobs))];
        let counts = [&mut pruned.temporaries, &mut pruned.run_forms, &mut pruned.blobs];
        for ((directory, needed), count) in directories.into_iter().zip(counts) {
            for (name, bytes) in directory.files()? {
                let is_needed = needed.is_some_and(|needed| {
                    // What has no digest for a name is not ours to remove.
                    Digest::from_hex(&name).is_none_or(|digest| needed.contains(&digest))
                });
                if !is_needed && directory.remove(&name)? {
                    *count += 1;
                    pruned.bytes += bytes;
                }
            }
            directory.sync()?;
        }
        Ok(pruned)
    }
}
