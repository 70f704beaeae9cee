//! Parsers on bytes in memory, for fuzzers. No part of the interface.

use super::document::{Index, Manifest};
use super::layer::{BASE_INDEX_MAX, CHUNK_BYTES_MAX, ChunkReader, DERIVED_INDEX_MAX, LayerIndex, LayerKind};
use crate::{Digest, Error, PageBytes};

/// All pages of a layer, whose index has the digest that the bytes have.
///
/// # Errors
/// What is wrong with it.
pub fn layer(bytes: &[u8], is_base: bool, is_checked: bool) -> Result<Vec<(u32, PageBytes)>, Error> {
    let (kind, limit) =
        if is_base { (LayerKind::Base, BASE_INDEX_MAX) } else { (LayerKind::Derived, DERIVED_INDEX_MAX) };
    let digest = index_digest(bytes);
    let index = LayerIndex::read(bytes, "layer", bytes.len() as u64, kind, &digest, limit)?;
    let mut reader = ChunkReader::new(bytes, "layer", &index, is_checked);
    let mut chunk = vec![0; CHUNK_BYTES_MAX];
    let mut numbers = index.pages.iter();
    let mut pages = Vec::new();
    for number in 0..index.chunks.len() {
        let content = reader.read(number, &mut chunk)?;
        // In this order, since what comes first is asked first: no number is lost at the end of a chunk.
        pages.extend(content.iter().zip(numbers.by_ref()).map(|(page, number)| (number, *page)));
    }
    Ok(pages)
}

/// The digest of an index and footer, found as a reader would find it.
pub fn index_digest(bytes: &[u8]) -> Digest {
    let stored =
        bytes.len().checked_sub(16).and_then(|at| bytes[at..at + 8].as_array()).map(|at| u64::from_le_bytes(*at));
    let start = stored.and_then(|stored| usize::try_from(stored).ok()).filter(|start| *start <= bytes.len());
    Digest::of(&bytes[start.unwrap_or(0)..])
}

/// A manifest; gives it back as this version writes it.
///
/// # Errors
/// What is wrong with it.
pub fn manifest(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    Ok(Manifest::parse("manifest", bytes)?.write())
}

/// `index.json`; gives it back as this version writes it.
///
/// # Errors
/// What is wrong with it.
pub fn index(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    Ok(Index::parse("index.json", bytes)?.write())
}
