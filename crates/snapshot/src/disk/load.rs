//! Snapshots out of a store.
//!
//! docs/snapshot-format.md has the order of the checks.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use super::directory::Opened;
use super::document::check_config;
use super::layer::{BASE_INDEX_MAX, ChunkReader, DERIVED_INDEX_MAX, LayerIndex, LayerKind};
use super::run_form::{RunFile, RunForm};
use super::{Descriptor, Manifest, PRIVATE, RUN_FORMS, Store, StoreId, TEMPORARIES, check_digest, is_read_only};
use crate::lazy::{Image, LazyPage, Source};
use crate::lineage::{Lineage, Saved};
use crate::tree::Slot;
use crate::{Digest, Error, PAGE_BYTES, PageBytes, Pages};

/// A layer with at most this many pages is read when it is loaded. So many variants do not keep as many files open, and damage
/// is found early.
const EAGER_PAGES: u32 = 64;

/// A snapshot that was loaded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// What was saved with it: a JSON object.
    pub config: Vec<u8>,
    /// Its pages, read when they are asked for.
    pub pages: Pages,
    /// Of its manifest.
    pub digest: Digest,
    /// Its base, to be mapped.
    pub run_form: RunForm,
}

/// What a snapshot consists of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// Of its manifest.
    pub digest: Digest,
    /// What was saved with it: a JSON object.
    pub config: Vec<u8>,
    /// The base first.
    pub layers: Vec<LayerInspection>,
}

/// One layer of a snapshot.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LayerInspection {
    /// Of its file.
    pub digest: Digest,
    /// Size of its file.
    pub bytes: u64,
    /// A base, or what differs from the layers below.
    pub kind: LayerKind,
    /// Pages with content in this layer, ascending.
    pub pages: Vec<Range<u32>>,
    /// Pages that are zero from this layer on, ascending.
    pub zeroed: Vec<Range<u32>>,
    /// Whether any page is compressed.
    pub is_compressed: bool,
}

impl Store {
    /// Loads the snapshot with this tag or digest.
    ///
    /// Checked are all documents and indexes now; each page of the base against its digest when the run form is made, which
    /// the first load from a store does; each page of other layers against its digest when it is read. Costs what documents
    /// and indexes take, and the pages of small layers, but nothing for the size of the address space.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Reference`]; [`Error::Damaged`] and [`Error::Version`] with what is wrong;
    /// [`Error::Io`], also when the run form must be made and the store cannot be written.
    pub fn load(&self, reference: &str) -> Result<Loaded, Error> {
        self.load_as(reference, true)
    }

    /// As [`load`](Self::load), but pages are compared with no digest, neither now nor later: for a store that nobody else
    /// can write to. Documents and indexes are checked all the same.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_unverified(&self, reference: &str) -> Result<Loaded, Error> {
        self.load_as(reference, false)
    }

    fn load_as(&self, reference: &str, is_checked: bool) -> Result<Loaded, Error> {
        let _lock = self.lock_shared()?;
        let (digest, _, manifest) = self.find(reference)?;
        let config = self.config(&manifest)?;
        let (base, derived) = split(&manifest)?;
        let (image, file) = self.image(base, is_checked)?;
        let lineage = Arc::<Lineage>::default();
        let base_pages = Pages::of_image(image, Arc::clone(&lineage));
        let mut pages = base_pages.clone();
        let mut left = DERIVED_INDEX_MAX;
        for layer in derived {
            let (blob, index) = self.layer(layer, LayerKind::Derived, left)?;
            left -= index.bytes;
            pages = pages.with_layer(slots(blob, index, is_checked)?);
        }
        let store = self.0.id;
        lineage.remember(Saved { store, layers: vec![base.clone()], state: base_pages.state() });
        lineage.remember(Saved { store, layers: manifest.layers, state: pages.state() });
        Ok(Loaded { config, pages, digest, run_form: RunForm { file, pages: base_pages } })
    }

    /// What a snapshot consists of, without its pages.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn inspect(&self, reference: &str) -> Result<Inspection, Error> {
        let _lock = self.lock_shared()?;
        let (digest, _, manifest) = self.find(reference)?;
        let config = self.config(&manifest)?;
        let mut layers = Vec::new();
        let mut left = DERIVED_INDEX_MAX;
        for (number, layer) in manifest.layers.iter().enumerate() {
            let kind = if number == 0 { LayerKind::Base } else { LayerKind::Derived };
            let (_, index) = self.layer(layer, kind, if number == 0 { BASE_INDEX_MAX } else { left })?;
            left -= if number == 0 { 0 } else { index.bytes };
            layers.push(LayerInspection {
                digest: layer.digest,
                bytes: layer.size,
                kind,
                pages: index.pages.ranges().collect(),
                zeroed: index.zeros.ranges().collect(),
                is_compressed: index.is_compressed(),
            });
        }
        Ok(Inspection { digest, config, layers })
    }

    /// Numbers of the pages that hold something else in one snapshot than in the other, ascending. Pages are read where that
    /// cannot be told otherwise.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn diff(&self, left: &str, right: &str) -> Result<Vec<u32>, Error> {
        let (left, right) = (self.load(left)?.pages, self.load(right)?.pages);
        let mut numbers = Vec::new();
        left.for_each_difference(&right, |number| numbers.push(number));
        let mut differing = Vec::new();
        let (mut one, mut other) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        for number in numbers {
            left.copy_page(number, &mut one)?;
            right.copy_page(number, &mut other)?;
            if one != other {
                differing.push(number);
            }
        }
        Ok(differing)
    }

    pub(super) fn config(&self, manifest: &Manifest) -> Result<Vec<u8>, Error> {
        let Descriptor { digest, size, .. } = &manifest.config;
        let blob = self.blob(digest, Some(*size))?;
        let path = blob.path.clone();
        let config = blob.read(*size)?;
        check_digest(&path, &config, digest)?;
        check_config(&config).map_err(|fault| Error::damaged(path, fault))?;
        Ok(config)
    }

    /// Opens a layer and reads its index.
    pub(super) fn layer(&self, layer: &Descriptor, kind: LayerKind, limit: u64) -> Result<(Opened, LayerIndex), Error> {
        let blob = self.blob(&layer.digest, Some(layer.size))?;
        let digest = layer.index.unwrap_or(layer.digest);
        let index = LayerIndex::read(&blob.file, &blob.path, blob.bytes, kind, &digest, limit)?;
        Ok((blob, index))
    }

    /// A base, as it is mapped. All snapshots of this process that have it share it.
    fn image(&self, layer: &Descriptor, is_checked: bool) -> Result<(Arc<Image>, Arc<RunFile>), Error> {
        let key = |is_checked| (self.0.id, layer.digest, layer.index, is_checked);
        let alive = {
            let images = images();
            let alive = |is_checked| images.get(&key(is_checked))?.upgrade();
            alive(true).or_else(|| if is_checked { None } else { alive(false) })
        };
        if let Some((image, file)) = alive
            && file.check().is_ok()
        {
            return Ok((image, file));
        }
        let (blob, index) = self.layer(layer, LayerKind::Base, BASE_INDEX_MAX)?;
        let file = Arc::new(self.run_file(layer, &blob, &index, is_checked)?);
        let image = Arc::new(Image::new(index.pages, Arc::<RunFile>::clone(&file)));
        let mut images = images();
        images.retain(|_, image| image.0.strong_count() > 0);
        // If another thread was faster, its image is the one to share.
        if let Some((image, file)) = images.get(&key(is_checked)).and_then(WeakImage::upgrade)
            && file.check().is_ok()
        {
            return Ok((image, file));
        }
        images.insert(key(is_checked), WeakImage(Arc::downgrade(&image), Arc::downgrade(&file)));
        Ok((image, file))
    }

    fn run_file(
        &self,
        layer: &Descriptor,
        blob: &Opened,
        index: &LayerIndex,
        is_checked: bool,
    ) -> Result<RunFile, Error> {
        let prepared = match self.0.root.child(PRIVATE)? {
            Some(private) => private.child(RUN_FORMS)?,
            None => None,
        };
        if let Some(directory) = &prepared
            && let Some(file) = RunFile::open(directory, layer, index, is_checked)?
        {
            return Ok(file);
        }
        let make = || {
            let private = self.private_or_new()?;
            let (directory, temporaries) = (private.child_or_new(RUN_FORMS)?, private.child_or_new(TEMPORARIES)?);
            RunFile::make(&directory, &temporaries, layer, blob, index, is_checked)?;
            RunFile::open(&directory, layer, index, is_checked)?
                .ok_or_else(|| Error::Changed { file: directory.path(&super::run_form::name(layer)) })
        };
        make().map_err(|error| match error {
            Error::Io { source, .. } if is_read_only(&source) => {
                let what = "cannot prepare the base: load it once where its store can be written".to_owned();
                Error::Io { what, source }
            }
            error => error,
        })
    }
}

/// A manifest's base, and what is above it.
pub(super) fn split(manifest: &Manifest) -> Result<(&Descriptor, &[Descriptor]), Error> {
    // There is at least one: that was checked where it was parsed.
    manifest.layers.split_first().ok_or_else(|| Error::Unfit { why: "a manifest without a layer".into() })
}

/// Bases of this process.
type Images = HashMap<(StoreId, Digest, Option<Digest>, bool), WeakImage>;

struct WeakImage(Weak<Image>, Weak<RunFile>);

impl WeakImage {
    fn upgrade(&self) -> Option<(Arc<Image>, Arc<RunFile>)> {
        Some((self.0.upgrade()?, self.1.upgrade()?))
    }
}

fn images() -> MutexGuard<'static, Images> {
    static IMAGES: LazyLock<Mutex<Images>> = LazyLock::new(Mutex::default);
    IMAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pages of a derived layer.
struct LayerFile {
    file: File,
    path: String,
    index: LayerIndex,
    is_checked: bool,
}

impl Source for LayerFile {
    fn read(&self, _: u32, rank: u32, out: &mut PageBytes) -> Result<(), Error> {
        let mut reader = ChunkReader::new(&self.file, &self.path, &self.index, self.is_checked);
        reader.read(rank as usize, out).map(|_| ()) // A chunk is a page.
    }
}

/// What a layer puts over those below it, ascending.
fn slots(blob: Opened, index: LayerIndex, is_checked: bool) -> Result<Vec<(u32, Slot)>, Error> {
    let Opened { file, path, .. } = blob;
    let layer = Arc::new(LayerFile { file, path, index, is_checked });
    let index = &layer.index;
    let mut slots: Vec<(u32, Slot)> = Vec::with_capacity((index.pages.pages() + index.zeros.pages()) as usize);
    for (rank, (number, chunk)) in index.pages.iter().zip(&index.chunks).enumerate() {
        let digest = is_checked.then_some(chunk.digest);
        let page = LazyPage::new(number, rank as u32, digest, Arc::<LayerFile>::clone(&layer));
        let slot = if index.pages.pages() <= EAGER_PAGES {
            Slot::Page(Arc::clone(page.page()?))
        } else {
            Slot::Lazy(Arc::new(page))
        };
        slots.push((number, slot));
    }
    slots.extend(index.zeros.iter().map(|number| (number, Slot::Zero)));
    slots.sort_unstable_by_key(|(number, _)| *number);
    Ok(slots)
}
