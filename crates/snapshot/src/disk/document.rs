//! The JSON documents of a store: `oci-layout`, `index.json`, and the manifest of a snapshot.
//!
//! They are OCI's, with less freedom: unknown fields are refused, since nobody can say what a snapshot means that has one.
//! Pure functions from bytes to checked documents and back.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Digest, Error};

/// Most bytes of `oci-layout`, `index.json`, a manifest, and a config.
pub(crate) const LAYOUT_MAX: u64 = 1 << 12;
pub(crate) const INDEX_MAX: u64 = 8 << 20;
pub(crate) const MANIFEST_MAX: u64 = 1 << 16;
pub(crate) const CONFIG_MAX: u64 = 1 << 20;

/// Most layers of a snapshot that is loaded.
pub(crate) const LAYERS_MAX: usize = 16;

/// Most bytes of a blob: more than a layer can have. Keeps sums from overflowing.
pub(crate) const BLOB_MAX: u64 = 1 << 44;

/// Of the whole: a tag names a thing of this type.
pub const ARTIFACT_TYPE: &str = "application/vnd.coracle.snapshot.v1";
/// Of a snapshot's config.
pub const CONFIG_TYPE: &str = "application/vnd.coracle.snapshot.config.v1+json";
/// Of a layer with pages.
pub const LAYER_TYPE: &str = "application/vnd.coracle.snapshot.layer.v1";

pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const LAYOUT_VERSION: &str = "1.0.0";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Layout<'a> {
    #[serde(borrow)]
    image_layout_version: Cow<'a, str>,
}

pub(crate) fn layout() -> Vec<u8> {
    to_json(&Layout { image_layout_version: LAYOUT_VERSION.into() })
}

pub(crate) fn check_layout(file: &str, bytes: &[u8]) -> Result<(), Error> {
    let Layout { image_layout_version: version } = parse(file, bytes)?;
    if version != LAYOUT_VERSION {
        return Err(Error::damaged(file, format!("the version of the layout is not {LAYOUT_VERSION}")));
    }
    Ok(())
}

/// `index.json`: what has a tag.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Ascending by tag.
    pub(crate) entries: Vec<IndexEntry>,
}

/// A tag and its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) tag: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Claims, for listings: bytes of all its blobs, and of those that its parent does not have.
    pub(crate) bytes: Option<u64>,
    pub(crate) own_bytes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct IndexDocument<'a> {
    schema_version: u32,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    media_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    manifests: Vec<EntryDocument<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct EntryDocument<'a> {
    #[serde(borrow)]
    media_type: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<Cow<'a, str>>,
    digest: Digest,
    size: u64,
    #[serde(borrow)]
    annotations: EntryAnnotations<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryAnnotations<'a> {
    // In the order of their keys, as tools that sort would write them.
    #[serde(borrow, default, rename = "io.github.coracle-vm.snapshot.bytes", skip_serializing_if = "Option::is_none")]
    bytes: Option<Cow<'a, str>>,
    #[serde(
        borrow,
        default,
        rename = "io.github.coracle-vm.snapshot.own-bytes",
        skip_serializing_if = "Option::is_none"
    )]
    own_bytes: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "org.opencontainers.image.ref.name")]
    tag: Cow<'a, str>,
}

impl Index {
    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        let document: IndexDocument<'_> = parse(file, bytes)?;
        let fault = |fault: String| Err(Error::damaged(file, fault));
        if document.schema_version != 2 {
            return fault("its schemaVersion is not 2".into());
        }
        if document.media_type.is_some_and(|media_type| media_type != INDEX_TYPE) {
            return fault(format!("its mediaType is not {INDEX_TYPE}"));
        }
        let mut entries: Vec<IndexEntry> = Vec::with_capacity(document.manifests.len());
        for (at, entry) in document.manifests.into_iter().enumerate() {
            if entry.media_type != MANIFEST_TYPE {
                return fault(format!("entry {at} is no manifest: its mediaType is another"));
            }
            if entry.artifact_type.is_some_and(|artifact_type| artifact_type != ARTIFACT_TYPE) {
                return fault(format!("entry {at} is no snapshot: its artifactType is another"));
            }
            if entry.size > MANIFEST_MAX {
                return fault(format!("entry {at} has a manifest of more than {MANIFEST_MAX} bytes"));
            }
            let EntryAnnotations { bytes, own_bytes, tag } = entry.annotations;
            if let Err(why) = check_tag(&tag) {
                return fault(format!("entry {at} has a bad tag: {why}"));
            }
            let mut numbers = [None; 2];
            for (number, text) in numbers.iter_mut().zip([bytes, own_bytes]) {
                let Some(text) = text else { continue };
                match text.parse() {
                    Ok(bytes) if text.bytes().all(|byte| byte.is_ascii_digit()) => *number = Some(bytes),
                    _ => return fault(format!("entry {at} has a size that is no number")),
                }
            }
            let [bytes, own_bytes] = numbers;
            entries.push(IndexEntry { tag: tag.into(), digest: entry.digest, size: entry.size, bytes, own_bytes });
        }
        entries.sort_by(|left, right| left.tag.cmp(&right.tag)); // Other tools write in other orders.
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].tag == pair[1].tag) {
            return fault(format!("the tag \"{}\" is there twice", pair[0].tag));
        }
        Ok(Self { entries })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let text = |number: Option<u64>| number.map(|number| Cow::Owned(number.to_string()));
        let entry = |entry: &'_ IndexEntry| EntryDocument {
            media_type: MANIFEST_TYPE.into(),
            artifact_type: Some(ARTIFACT_TYPE.into()),
            digest: entry.digest,
            size: entry.size,
            annotations: EntryAnnotations {
                bytes: text(entry.bytes),
                own_bytes: text(entry.own_bytes),
                tag: Cow::Owned(entry.tag.clone()),
            },
        };
        to_json(&IndexDocument {
            schema_version: 2,
            media_type: Some(INDEX_TYPE.into()),
            manifests: self.entries.iter().map(entry).collect(),
        })
    }

    pub(crate) fn find(&self, tag: &str) -> Option<&IndexEntry> {
        let at = self.entries.binary_search_by(|entry| entry.tag.as_str().cmp(tag)).ok()?;
        self.entries.get(at)
    }

    /// Sets a tag, in place of what had it.
    pub(crate) fn set(&mut self, entry: IndexEntry) {
        match self.entries.binary_search_by(|other| other.tag.cmp(&entry.tag)) {
            Ok(at) => self.entries[at] = entry,
            Err(at) => self.entries.insert(at, entry),
        }
    }
}

/// Names a blob: what a manifest says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Of the whole file.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Of a layer's index alone, so that it can be checked without reading the pages. A config has none.
    pub(crate) index: Option<Digest>,
}

/// A checked manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ManifestDocument<'a> {
    schema_version: u32,
    #[serde(borrow)]
    media_type: Cow<'a, str>,
    #[serde(borrow)]
    artifact_type: Cow<'a, str>,
    #[serde(borrow)]
    config: ConfigDocument<'a>,
    #[serde(borrow)]
    layers: Vec<LayerDocument<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ConfigDocument<'a> {
    #[serde(borrow)]
    media_type: Cow<'a, str>,
    digest: Digest,
    size: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LayerDocument<'a> {
    #[serde(borrow)]
    media_type: Cow<'a, str>,
    digest: Digest,
    size: u64,
    annotations: LayerAnnotations,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerAnnotations {
    #[serde(rename = "io.github.coracle-vm.snapshot.index-digest")]
    index: Digest,
}

impl Manifest {
    /// What it says of the config blob.
    pub fn config(&self) -> &Descriptor {
        &self.config
    }

    /// Its layers, the base first; at least one.
    pub fn layers(&self) -> &[Descriptor] {
        &self.layers
    }

    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        let document: ManifestDocument<'_> = parse(file, bytes)?;
        let fault = |fault: String| Err(Error::damaged(file, fault));
        if document.schema_version != 2 {
            return fault("the manifest's schemaVersion is not 2".into());
        }
        if document.media_type != MANIFEST_TYPE {
            return fault(format!("the manifest's mediaType is not {MANIFEST_TYPE}"));
        }
        if document.artifact_type != ARTIFACT_TYPE {
            return fault(format!("the manifest's artifactType is not {ARTIFACT_TYPE}: this is no snapshot"));
        }
        let ConfigDocument { media_type, digest, size } = document.config;
        if media_type != CONFIG_TYPE {
            return fault(format!("the config's mediaType is not {CONFIG_TYPE}"));
        }
        if size > CONFIG_MAX {
            return fault(format!("the manifest has a config of more than {CONFIG_MAX} bytes"));
        }
        let config = Descriptor { digest, size, index: None };
        if document.layers.is_empty() {
            return fault("the manifest has no layer".into());
        }
        if document.layers.len() > LAYERS_MAX {
            return fault(format!("the manifest has more than {LAYERS_MAX} layers"));
        }
        let mut layers: Vec<Descriptor> = Vec::new();
        for (at, layer) in document.layers.into_iter().enumerate() {
            if layer.media_type != LAYER_TYPE {
                return fault(format!("layer {at} has another mediaType than {LAYER_TYPE}"));
            }
            if layer.size > BLOB_MAX {
                return fault(format!("layer {at} has more than {BLOB_MAX} bytes"));
            }
            layers.push(Descriptor { digest: layer.digest, size: layer.size, index: Some(layer.annotations.index) });
        }
        Ok(Self { config, layers })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let layer = |layer: &'_ Descriptor| LayerDocument {
            media_type: LAYER_TYPE.into(),
            digest: layer.digest,
            size: layer.size,
            annotations: LayerAnnotations { index: layer.index.unwrap_or(layer.digest) },
        };
        to_json(&ManifestDocument {
            schema_version: 2,
            media_type: MANIFEST_TYPE.into(),
            artifact_type: ARTIFACT_TYPE.into(),
            config: ConfigDocument {
                media_type: CONFIG_TYPE.into(),
                digest: self.config.digest,
                size: self.config.size,
            },
            layers: self.layers.iter().map(layer).collect(),
        })
    }
}

/// What is wrong with a config, which is any JSON object.
pub(crate) fn check_config(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() as u64 > CONFIG_MAX {
        return Err(format!("the config has more than {CONFIG_MAX} bytes"));
    }
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'{') {
        return Err("the config is no JSON object".into());
    }
    match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the config is no JSON: {error}")),
    }
}

/// What is wrong with a tag: registries' rule.
pub(crate) fn check_tag(tag: &str) -> Result<(), &'static str> {
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match tag.as_bytes() {
        [first, rest @ ..]
            if word(first) && rest.len() < 128 && rest.iter().all(|byte| word(byte) || matches!(byte, b'.' | b'-')) =>
        {
            Ok(())
        }
        _ => Err("a tag is a letter, digit or _, then at most 127 of these, . and -"),
    }
}

fn parse<'a, T: Deserialize<'a>>(file: &str, bytes: &'a [u8]) -> Result<T, Error> {
    // The library would take a list of values for an object with fields. No text here has brackets.
    let mut is_list = false;
    for byte in bytes.iter().filter(|byte| !byte.is_ascii_whitespace()) {
        if is_list && !matches!(byte, b'{' | b']') {
            return Err(Error::damaged(file, "has a list of something else than objects"));
        }
        is_list = *byte == b'[';
    }
    serde_json::from_slice(bytes).map_err(|error| Error::damaged(file, error.to_string()))
}

/// Reproducible: fields come in the order of the types, without white space.
fn to_json(document: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory does not fail, and these types have nothing that JSON lacks.
    let written = serde_json::to_writer(&mut bytes, document);
    debug_assert!(written.is_ok());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_is_what_oci_says() {
        let descriptor = |name: &[u8], index| Descriptor { digest: Digest::of(name), size: 7, index };
        let manifest = Manifest {
            config: descriptor(b"config", None),
            layers: vec![descriptor(b"a", Some(Digest::of(b"i"))), descriptor(b"b", Some(Digest::of(b"j")))],
        };
        let bytes = manifest.write();
        assert_eq!(Manifest::parse("manifest", &bytes).unwrap(), manifest);
        let theirs = oci_spec::image::ImageManifest::from_reader(&bytes[..]).unwrap();
        assert_eq!(theirs.artifact_type().as_ref().unwrap().to_string(), ARTIFACT_TYPE);
        assert_eq!(theirs.layers()[1].digest().to_string(), Digest::of(b"b").to_string());
        assert_eq!(theirs.config().media_type().to_string(), CONFIG_TYPE);

        let mut index = Index::default();
        for tag in ["b", "a", "b"] {
            let digest = Digest::of(tag.as_bytes());
            index.set(IndexEntry { tag: tag.into(), digest, size: 9, bytes: Some(70), own_bytes: None });
        }
        let bytes = index.write();
        let read = Index::parse("index.json", &bytes).unwrap();
        assert_eq!(read.entries, index.entries);
        assert_eq!(read.find("b").unwrap().digest, Digest::of(b"b"));
        assert!(read.find("c").is_none());
        let theirs = oci_spec::image::ImageIndex::from_reader(&bytes[..]).unwrap();
        let annotations = theirs.manifests()[0].annotations().as_ref().unwrap();
        assert_eq!(annotations["org.opencontainers.image.ref.name"], "a");
        assert!(oci_spec::image::OciLayout::from_reader(&layout()[..]).is_ok());
    }

    #[test]
    fn tags_are_registries_tags() {
        let longest = "a".repeat(128);
        for tag in ["latest", "v1.0-rc_2", "_", "9", &longest] {
            assert_eq!(check_tag(tag), Ok(()), "{tag}");
        }
        let too_long = "a".repeat(129);
        for tag in ["", ".", "..", "-x", "a/b", "a b", "\u{e4}", "a:b", &too_long] {
            assert!(check_tag(tag).is_err(), "{tag}");
        }
    }

    #[test]
    fn a_config_is_any_object() {
        for good in [&b"{}"[..], b" {\"a\":[1,2]}\n"] {
            assert_eq!(check_config(good), Ok(()));
        }
        let deep = [vec![b'['; 1000], b"{}".to_vec()].concat();
        let deeper = [b"{\"a\":".to_vec(), vec![b'['; 100_000]].concat();
        for bad in [&b""[..], b"[]", b"{", b"{} {}", b"null", &deep, &deeper, &vec![b' '; (1 << 20) + 1]] {
            assert!(check_config(bad).is_err());
        }
    }
}
