//! Every byte of a store, compared with what names it.

use std::collections::HashSet;
use std::io::Read;

use super::directory::Opened;
use super::layer::{BASE_INDEX_MAX, CHUNK_BYTES_MAX, ChunkReader, DERIVED_INDEX_MAX, LayerKind};
use super::run_form::RunFile;
use super::{Descriptor, PRIVATE, RUN_FORMS, Store};
use crate::digest::Hasher;
use crate::{Digest, Error};

/// What was checked and found good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Snapshots.
    pub snapshots: usize,
    /// Layers, those that several snapshots share once.
    pub layers: usize,
    /// Run forms of bases.
    pub run_forms: usize,
    /// Bytes of the layers.
    pub bytes: u64,
}

impl Store {
    /// Reads all that the snapshot with this tag or digest consists of, its base's run form included, and compares it with
    /// the digests.
    ///
    /// # Errors
    /// The first thing that is wrong, as [`load`](Self::load) would say it.
    pub fn verify(&self, reference: &str) -> Result<Verified, Error> {
        let _lock = self.lock_shared()?;
        let (digest, ..) = self.find(reference)?;
        let mut verified = Verified::default();
        self.verify_manifest(&digest, None, &mut HashSet::new(), &mut verified)?;
        Ok(verified)
    }

    /// [`verify`](Self::verify) of everything that has a tag. What several share is read once.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn verify_all(&self) -> Result<Verified, Error> {
        let _lock = self.lock_shared()?;
        let mut seen = HashSet::new();
        let mut verified = Verified::default();
        for entry in &self.index()?.entries {
            self.verify_manifest(&entry.digest, Some(entry.size), &mut seen, &mut verified)?;
        }
        Ok(verified)
    }

    fn verify_manifest(
        &self,
        digest: &Digest,
        size: Option<u64>,
        seen: &mut HashSet<(Digest, Option<Digest>, bool)>,
        verified: &mut Verified,
    ) -> Result<(), Error> {
        let (_, manifest) = self.manifest_of(digest, size)?;
        self.config(&manifest)?;
        let mut left = DERIVED_INDEX_MAX;
        for (number, layer) in manifest.layers.iter().enumerate() {
            let kind = if number == 0 { LayerKind::Base } else { LayerKind::Derived };
            let (blob, index) = self.layer(layer, kind, if number == 0 { BASE_INDEX_MAX } else { left })?;
            left -= if number == 0 { 0 } else { index.bytes };
            if !seen.insert((layer.digest, layer.index, number == 0)) {
                continue;
            }
            check_blob(&blob, layer)?;
            let mut reader = ChunkReader::new(&blob.file, &blob.path, &index, true);
            let mut chunk = vec![0; CHUNK_BYTES_MAX];
            for number in 0..index.chunks.len() {
                reader.read(number, &mut chunk)?;
            }
            verified.layers += 1;
            verified.bytes += layer.size;
            if number == 0
                && let Some(private) = self.0.root.child(PRIVATE)?
                && let Some(directory) = private.child(RUN_FORMS)?
                // One that is not good is made anew by the next load.
                && let Some(file) = RunFile::open(&directory, layer, &index, false)?
            {
                file.verify(&blob, &index)?;
                verified.run_forms += 1;
            }
        }
        verified.snapshots += 1;
        Ok(())
    }
}

/// The digest of a whole blob.
fn check_blob(blob: &Opened, descriptor: &Descriptor) -> Result<(), Error> {
    let failed = |error| Error::io(format!("cannot read {}", blob.path), error);
    let mut hasher = Hasher::default();
    let mut left = (&blob.file).take(descriptor.size);
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        match left.read(&mut buffer).map_err(failed)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    if hasher.finish() == descriptor.digest {
        Ok(())
    } else {
        Err(Error::damaged(&blob.path, "has another digest than its name says"))
    }
}
