//! Makes stores with faults: takes a good one apart, changes one thing, and puts it together so that all else fits.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use coracle_snapshot::{Compression, Digest, Store, fuzzing};
use serde_json::{Value, json};

use super::{base, derive, directory};

/// A store in parts: one snapshot of a base and a derived layer, with the tag `tag`.
#[derive(Clone)]
pub(crate) struct Forge {
    config: Vec<u8>,
    layers: [Layer; 2],
}

/// A change, at the point where everything that names what it changes is made to fit.
#[derive(Clone, Copy)]
pub(crate) enum Edit {
    /// Of the base.
    Base(fn(&mut Layer)),
    /// Of the layer above it.
    Derived(fn(&mut Layer)),
    Config(fn(&mut Vec<u8>)),
    Manifest(fn(&mut Value)),
    ManifestText(fn(String) -> String),
    Index(fn(&mut Value)),
    IndexText(fn(String) -> String),
    /// Of the files, when all are written.
    Files(fn(&Paths)),
}

/// Where things are.
pub(crate) struct Paths {
    pub(crate) root: PathBuf,
    pub(crate) manifest: PathBuf,
    pub(crate) config: PathBuf,
    pub(crate) base: PathBuf,
    pub(crate) derived: PathBuf,
}

/// A layer in parts. Nothing is computed anew.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) data: Vec<u8>,
    pub(crate) runs: Vec<[u32; 2]>,
    pub(crate) zeros: Vec<[u32; 2]>,
    /// Digest, bytes stored, coding.
    pub(crate) chunks: Vec<([u8; 32], u32, u32)>,
    /// The footer in words; the magic is the first two.
    pub(crate) footer: [u32; 16],
}

pub(crate) const PAGE_SIZE: usize = 3;
pub(crate) const KIND: usize = 4;
pub(crate) const CHUNK_PAGES: usize = 5;
pub(crate) const PAGES: usize = 6;
pub(crate) const ZEROS: usize = 7;
pub(crate) const PAGE_RUNS: usize = 8;
pub(crate) const CHUNKS: usize = 10;
pub(crate) const STORED: usize = 12;

impl Layer {
    fn parse(bytes: &[u8]) -> Self {
        let (rest, footer) = bytes.split_at(bytes.len() - 64);
        let mut layer = Self {
            data: Vec::new(),
            runs: Vec::new(),
            zeros: Vec::new(),
            chunks: Vec::new(),
            footer: std::array::from_fn(|word| u32::from_le_bytes(footer.as_chunks::<4>().0[word])),
        };
        let (data, index) = rest.split_at(layer.footer[STORED] as usize);
        layer.data = data.to_vec();
        let (runs, index) = index.split_at(8 * layer.footer[PAGE_RUNS] as usize);
        let (zeros, chunks) = index.split_at(8 * layer.footer[9] as usize);
        let pairs = |bytes: &[u8]| -> Vec<[u32; 2]> {
            let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
            words.as_chunks::<2>().0.to_vec()
        };
        (layer.runs, layer.zeros) = (pairs(runs), pairs(zeros));
        layer.chunks = chunks
            .as_chunks::<40>()
            .0
            .iter()
            .map(|entry| {
                let [stored, coding] = pairs(&entry[32..])[0];
                (entry[..32].try_into().unwrap(), stored, coding)
            })
            .collect();
        layer
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.data.clone();
        bytes.extend(self.runs.iter().chain(&self.zeros).flatten().flat_map(|word| word.to_le_bytes()));
        for (digest, stored, coding) in &self.chunks {
            bytes.extend(digest);
            bytes.extend([stored, coding].into_iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes.extend(self.footer.into_iter().flat_map(u32::to_le_bytes));
        bytes
    }

    /// Replaces how the first chunk is stored; what says how long all is fits.
    pub(crate) fn store_first(&mut self, bytes: &[u8], coding: u32) {
        let before = self.chunks[0].1 as usize;
        self.data.splice(..before, bytes.iter().copied());
        (self.chunks[0].1, self.chunks[0].2) = (bytes.len() as u32, coding);
        self.footer[STORED] = self.data.len() as u32;
    }
}

impl Forge {
    pub(crate) fn new() -> Self {
        let directory = directory();
        let store = Store::create(directory.path()).unwrap();
        // Two chunks, two runs; above it a page that has content and two runs that are cleared.
        let parent = base((0..19).chain([30, 31]));
        let child = derive(&parent, &[(2, 0), (5, 0), (6, 0), (40, 7), (42, 8), (43, 9)]);
        store.save("base", b"{}", &parent, Compression::None).unwrap();
        store.save("tag", b"{\"a\":1}", &child, Compression::None).unwrap();
        let inspection = store.inspect("tag").unwrap();
        let layer = |at: usize| Layer::parse(&fs::read(blob(directory.path(), &inspection.layers[at].digest)).unwrap());
        Self { config: inspection.config.clone(), layers: [layer(0), layer(1)] }
    }

    /// Writes the store, with these changes. Gives a name to each digest, so that messages can be compared.
    pub(crate) fn write(&self, root: &Path, edits: &[Edit]) -> HashMap<String, &'static str> {
        let Self { mut config, mut layers } = self.clone();
        for edit in edits {
            match edit {
                Edit::Base(edit) => edit(&mut layers[0]),
                Edit::Derived(edit) => edit(&mut layers[1]),
                Edit::Config(edit) => edit(&mut config),
                _ => {}
            }
        }
        for below in ["blobs/sha256", "coracle"] {
            fs::create_dir_all(root.join(below)).unwrap();
        }
        let mut names = HashMap::new();
        let mut put = |bytes: &[u8], name: &'static str| {
            let digest = Digest::of(bytes);
            names.insert(digest.to_string()[7..].to_owned(), name);
            let path = blob(root, &digest);
            fs::write(&path, bytes).unwrap();
            (digest.to_string(), bytes.len(), path)
        };
        let layers = layers.map(|layer| layer.bytes());
        let files = [put(&layers[0], "BASE"), put(&layers[1], "DERIVED")];
        let described: Vec<Value> = std::iter::zip(&layers, &files)
            .map(|(bytes, (digest, size, _))| {
                json!({
                    "mediaType": "application/vnd.coracle.snapshot.layer.v1",
                    "digest": digest,
                    "size": size,
                    "annotations": {
                        "io.github.coracle-vm.snapshot.index-digest": fuzzing::index_digest(bytes).to_string()
                    },
                })
            })
            .collect();
        let config = put(&config, "CONFIG");
        let mut manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/vnd.coracle.snapshot.v1",
            "config": {
                "mediaType": "application/vnd.coracle.snapshot.config.v1+json", "digest": config.0, "size": config.1,
            },
            "layers": described,
        });
        for edit in edits {
            if let Edit::Manifest(edit) = edit {
                edit(&mut manifest);
            }
        }
        let mut manifest = manifest.to_string();
        for edit in edits {
            if let Edit::ManifestText(edit) = edit {
                manifest = edit(manifest);
            }
        }
        let manifest = put(manifest.as_bytes(), "MANIFEST");
        let mut index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": manifest.0,
                "size": manifest.1,
                "annotations": {"org.opencontainers.image.ref.name": "tag"},
            }],
        });
        for edit in edits {
            if let Edit::Index(edit) = edit {
                edit(&mut index);
            }
        }
        let mut index = index.to_string();
        for edit in edits {
            if let Edit::IndexText(edit) = edit {
                index = edit(index);
            }
        }
        fs::write(root.join("index.json"), index).unwrap();
        fs::write(root.join("oci-layout"), b"{\"imageLayoutVersion\":\"1.0.0\"}").unwrap();
        let [base, derived] = files.map(|(_, _, path)| path);
        let paths = Paths { root: root.to_owned(), manifest: manifest.2, config: config.2, base, derived };
        for edit in edits {
            if let Edit::Files(edit) = edit {
                edit(&paths);
            }
        }
        names
    }
}

fn blob(root: &Path, digest: &Digest) -> PathBuf {
    root.join(digest.to_string().replace("sha256:", "blobs/sha256/"))
}

/// Something else under the name of a file.
pub(crate) fn replace(path: &Path, make: impl FnOnce(&Path)) {
    if path.is_dir() {
        fs::remove_dir_all(path).unwrap();
    } else if path.symlink_metadata().is_ok() {
        fs::remove_file(path).unwrap();
    }
    make(path);
}

/// A link to the file as it was, under another name.
pub(crate) fn link(path: &Path) {
    let elsewhere = path.with_extension("elsewhere");
    fs::rename(path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(elsewhere, path).unwrap();
}

pub(crate) fn fifo(path: &Path) {
    replace(path, |path| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    });
}

/// Another byte at this place, all else as it was.
pub(crate) fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}
