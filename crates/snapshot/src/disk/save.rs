//! Snapshots into a store.

use std::sync::mpsc;

use super::directory::Temporary;
use super::document::{CONFIG_MAX, IndexEntry, LAYERS_MAX, check_config, check_tag};
use super::layer::{self, Compression, LayerKind, Written};
use super::{Descriptor, Manifest, Store, TEMPORARIES};
use crate::digest::Hasher;
use crate::lineage::Saved as SavedRelative;
use crate::pages::State;
use crate::runs::{NUMBERS_END, RUN_BYTES};
use crate::{Digest, Error, PAGE_BYTES, Pages};

/// Most layers that are written. Fewer than are loaded, so that a later version may write more.
const LAYERS_WRITTEN: usize = 8;
const _: () = assert!(LAYERS_WRITTEN <= LAYERS_MAX);

/// Most pages of a derived layer, so that as many such layers as there can be are loaded.
const DERIVED_PAGES_MAX: usize = 1 << 13;
const _: () = {
    let index_bytes = DERIVED_PAGES_MAX * (layer::CHUNK_ENTRY_BYTES + RUN_BYTES);
    assert!((LAYERS_WRITTEN - 1) * index_bytes <= layer::DERIVED_INDEX_MAX as usize);
};

/// What a save did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Of the manifest: what names this snapshot for ever.
    pub digest: Digest,
    /// Layers of the snapshot, the base included.
    pub layers: usize,
    /// Pages that were written: none if a saved relative holds the same.
    pub pages_written: usize,
    /// Bytes of all files that the snapshot needs.
    pub bytes: u64,
    /// Bytes of those that it does not share with the snapshot it derives from.
    pub own_bytes: u64,
}

/// A saved relative that a layer can be put on, and the pages of that layer.
struct Parent {
    layers: Vec<Descriptor>,
    differences: Vec<u32>,
}

impl Store {
    /// Saves a snapshot under a tag, in place of what had the tag.
    ///
    /// `config` is what the caller wants to know of it when it is loaded: a JSON object of at most 1 MiB. If a relative of
    /// `pages` (a parent, a child, a sibling) was saved to this store or loaded from it by this process, only what differs
    /// from the nearest of them is written; otherwise all pages that are not zero. Saving the same again writes nothing
    /// new and gives the same digest. When it returns, the snapshot is on the disk.
    ///
    /// # Errors
    /// [`Error::Reference`] for a bad tag, [`Error::Unfit`] for a bad config or a page above 1 TiB, [`Error::Io`]; errors
    /// of pages that are in files. The tag is what it was then.
    pub fn save(&self, tag: &str, config: &[u8], pages: &Pages, compression: Compression) -> Result<Saved, Error> {
        check_tag(tag).map_err(|why| Error::Reference { text: tag.chars().take(80).collect(), why })?;
        check_config(config).map_err(|why| Error::Unfit { why })?;
        let state = pages.state();
        let numbers = state.numbers();
        if numbers.last().is_some_and(|last| *last >= NUMBERS_END) {
            return Err(Error::Unfit { why: "it has pages above 1 TiB".into() });
        }
        let lock = self.lock_shared()?;
        let mut pages_written = 0;
        let layers = match self.parent(pages, &state, numbers.len()) {
            Some(Parent { layers, differences }) if differences.is_empty() => layers,
            Some(Parent { mut layers, differences }) => {
                pages_written = differences.len();
                layers.push(self.write_layer(LayerKind::Derived, compression, differences, pages)?);
                layers
            }
            None => {
                pages_written = numbers.len();
                vec![self.write_layer(LayerKind::Base, compression, numbers, pages)?]
            }
        };
        let config = self.write_blob(config)?;
        let manifest = Manifest { config, layers: layers.clone() };
        let manifest_bytes = manifest.write();
        let named = self.write_blob(&manifest_bytes)?;
        self.0.blobs.sync()?;
        let (bytes, own_bytes) = sizes(&manifest, named.size);
        let entry = IndexEntry {
            tag: tag.to_owned(),
            digest: named.digest,
            size: named.size,
            bytes: Some(bytes),
            own_bytes: Some(own_bytes),
        };
        self.set_tag(entry)?;
        drop(lock);
        let count = layers.len();
        pages.lineage().remember(SavedRelative { store: self.0.id, layers, state });
        Ok(Saved { digest: named.digest, layers: count, pages_written, bytes, own_bytes })
    }

    /// The saved relative that differs in the fewest pages, if building on it is worth it.
    fn parent(&self, pages: &Pages, state: &State, all: usize) -> Option<Parent> {
        let is_there = |layer: &Descriptor| self.0.blobs.has(&layer.digest.hex(), layer.size);
        let mut best: Option<Parent> = None;
        for relative in pages.lineage().saved_in(self.0.id) {
            let mut differences = Vec::new();
            relative.state.for_each_difference(state, &mut |number| differences.push(number));
            // A layer with as many pages as there are in all saves nothing.
            let most =
                if relative.layers.len() < LAYERS_WRITTEN { DERIVED_PAGES_MAX.min(all.saturating_sub(1)) } else { 0 };
            let is_better = best.as_ref().is_none_or(|best| differences.len() < best.differences.len());
            let is_near = differences.len() <= most && differences.last().is_none_or(|last| *last < NUMBERS_END);
            // Somebody may have pruned what was saved.
            if is_near && is_better && relative.layers.iter().all(is_there) {
                best = Some(Parent { layers: relative.layers, differences });
            }
        }
        best
    }

    fn write_layer(
        &self,
        kind: LayerKind,
        compression: Compression,
        numbers: Vec<u32>,
        pages: &Pages,
    ) -> Result<Descriptor, Error> {
        let temporaries = self.private_or_new()?.child_or_new(TEMPORARIES)?;
        let mut sink = Sink { file: temporaries.temporary()?, hasher: Hasher::default() };
        let is_large = numbers.len() > PIPELINED_PAGES;
        let read = |number, out: &mut [u8; PAGE_BYTES]| pages.copy_page(number, out);
        let mut buffer = Vec::with_capacity(if is_large { BUFFER_BYTES } else { 0 });
        let Written { index, bytes } = if is_large {
            // This thread reads pages and digests chunks, another one digests the file and writes it.
            std::thread::scope(|scope| {
                let (sender, receiver) = mpsc::sync_channel::<Vec<u8>>(2);
                let sink = &mut sink;
                let worker = scope.spawn(move || receiver.iter().try_for_each(|bytes| sink.take(&bytes)));
                let send = |bytes| {
                    let stopped = |_| Error::io("cannot write a layer", std::io::ErrorKind::BrokenPipe);
                    sender.send(bytes).map_err(stopped)
                };
                let written = layer::write(kind, compression, numbers, read, &mut |bytes| {
                    if buffer.len() + bytes.len() > BUFFER_BYTES {
                        send(std::mem::replace(&mut buffer, Vec::with_capacity(BUFFER_BYTES)))?;
                    }
                    buffer.extend_from_slice(bytes);
                    Ok(())
                });
                let written = written.and_then(|written| send(buffer).map(|()| written));
                drop(sender);
                // Its error is why sending failed.
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                written
            })?
        } else {
            let written = layer::write(kind, compression, numbers, read, &mut |bytes| {
                buffer.extend_from_slice(bytes);
                Ok(())
            })?;
            sink.take(&buffer)?;
            written
        };
        let digest = sink.hasher.finish();
        // Also in place of one that is there: it might be damaged.
        sink.file.keep(&self.0.blobs, &digest.hex())?;
        Ok(Descriptor { digest, size: bytes, index: Some(index) })
    }

    /// A small blob. One that is there already and is good is left alone.
    pub(super) fn write_blob(&self, bytes: &[u8]) -> Result<Descriptor, Error> {
        debug_assert!(bytes.len() as u64 <= CONFIG_MAX);
        let digest = Digest::of(bytes);
        let size = bytes.len() as u64;
        let is_there = match self.0.blobs.open(&digest.hex()) {
            Ok(Some(blob)) => blob.read(size).is_ok_and(|found| found == bytes),
            _ => false,
        };
        if !is_there {
            let temporaries = self.private_or_new()?.child_or_new(TEMPORARIES)?;
            let mut file = temporaries.temporary()?;
            file.write(bytes)?;
            file.keep(&self.0.blobs, &digest.hex())?;
        }
        Ok(Descriptor { digest, size, index: None })
    }
}

const BUFFER_BYTES: usize = 1 << 18;
const PIPELINED_PAGES: usize = 256; // Less is not worth a thread; and is gathered in memory.

/// A blob in the making.
struct Sink<'d> {
    file: Temporary<'d>,
    hasher: Hasher,
}

impl Sink<'_> {
    fn take(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.hasher.update(bytes);
        self.file.write(bytes)
    }
}

/// Bytes of all that a snapshot needs, and of what its parent does not have.
pub(super) fn sizes(manifest: &Manifest, manifest_bytes: u64) -> (u64, u64) {
    let documents = manifest_bytes + manifest.config.size;
    let layers = manifest.layers.iter().map(|layer| layer.size);
    let last = manifest.layers.last().map_or(0, |layer| layer.size);
    (documents + layers.sum::<u64>(), documents + last)
}
