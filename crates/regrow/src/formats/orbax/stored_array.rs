//! One zarr array of a pytree: where its chunks are, which are missing, and its bytes where they lie.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::array::{Region, Shape};
use crate::error::Result;
use crate::store::{ByteRange, Located, Store, resolve_range};
use crate::zarr::{Missing, ZarrArray};

/// One zarr array, and what the store knows of it.
#[derive(Debug)]
pub(super) struct StoredArray {
    pub array: ZarrArray,
    pub(super) store: Arc<dyn Store>,
    /// Whether the store says where a value lies without a look at the disk.
    pub(super) is_indexed: bool,
    pub(super) missing: Missing,
}

impl StoredArray {
    /// Where the first chunk begins: file and offset. Folders are not asked; there the name says enough.
    pub fn position(&self, name: &str) -> (Vec<u8>, u64) {
        let key = self.first_chunk_key(name);
        let located = if self.is_indexed { self.store.locate(&key).ok().flatten() } else { None };
        match located {
            Some(Located::At(span)) => (span.key.to_vec(), span.offset_bytes),
            Some(Located::Inline(_)) => (Vec::new(), 0),
            None => (key, 0),
        }
    }

    /// What a chunk that is not stored means.
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// The first chunk that is not stored.
    ///
    /// # Errors
    /// What the store says.
    pub fn first_missing(&self, name: &str) -> Result<Option<PathBuf>> {
        let meta = self.array.meta();
        for (index, _) in meta.chunk_indices(&Region::whole(meta.shape())) {
            let key = zarr_key(name, &meta.chunk_key(&index));
            if self.store.len_bytes(&key)?.is_none() {
                return Ok(Some(self.store.describe(&key)));
            }
        }
        Ok(None)
    }

    /// Whether memory has the bytes of the view already.
    pub fn is_cached(&self) -> bool {
        match self.array.locate_raw_whole() {
            Ok(Some(Located::At(span))) => span.store.is_cached(&span.key, span.offset_bytes, span.len_bytes),
            _ => true,
        }
    }

    /// The whole array as a view of a map, if it is stored raw and in one piece.
    ///
    /// # Errors
    /// `Corrupt` if its bytes are missing or too few.
    pub fn view(&self) -> Result<Option<Bytes>> {
        let span = match self.array.locate_raw_whole()? {
            None => return Ok(None),
            Some(Located::Inline(bytes)) => return Ok(Some(bytes)),
            Some(Located::At(span)) => span,
        };
        let Some(map) = span.store.map(&span.key)? else { return Ok(None) };
        let range = ByteRange::Span { offset_bytes: span.offset_bytes, len_bytes: span.len_bytes };
        let part = resolve_range(range, map.len() as u64)
            .map_err(|error| error.in_file(span.store.describe(&span.key)).at_byte(span.offset_bytes))?;
        Ok(Some(map.slice(part.start as usize..part.end as usize)))
    }

    fn first_chunk_key(&self, name: &str) -> Vec<u8> {
        let meta = self.array.meta();
        zarr_key(name, &meta.chunk_key(&vec![0; Shape::rank(meta.shape())]))
    }
}

/// Name, `/`, zarr key; the empty name adds no `/`.
pub(super) fn zarr_key(name: &str, key: &str) -> Vec<u8> {
    if name.is_empty() { key.as_bytes().to_vec() } else { format!("{name}/{key}").into_bytes() }
}
