//! One zarr array of a pytree: the positions of its chunks, its missing chunks, and its raw bytes.

use std::path::PathBuf;
use std::sync::Arc;

use regrow_base::bytes::limits::CLAIM_LEN_MAX_BYTES;
use regrow_base::error::{Error, Result};
use regrow_store::reads;
use regrow_store::{Located, Store};
use regrow_tree::array::{Region, Shape};
use regrow_zarr::zarr::{LISTED_MIN, Missing, ZarrArray};

/// One zarr array in its store.
#[derive(Debug)]
pub(super) struct StoredArray {
    pub array: ZarrArray,
    pub(super) name: String,
    pub(super) store: Arc<dyn Store>,
    /// Whether the store knows the position of a value without reading the disk.
    pub(super) is_indexed: bool,
    pub(super) missing: Missing,
}

impl StoredArray {
    /// The position of the first chunk: file and offset. For arrays in folders, the name is enough,
    /// and the disk is not read.
    pub fn position(&self) -> (Vec<u8>, u64) {
        let key = self.first_chunk_key();
        let located = if self.is_indexed { self.store.locate(&key).ok().flatten() } else { None };
        match located {
            Some(Located::At(span)) => (span.key.to_vec(), span.offset_bytes),
            Some(Located::Inline(_)) => (Vec::new(), 0),
            None => (key, 0),
        }
    }

    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// The regions of the stored chunks in C order, if the array has many chunks and some may be
    /// missing; `None` for any other array. The cost depends on the number of stored chunks.
    pub fn sparse(&self) -> Result<Option<Vec<Region>>> {
        let meta = self.array.meta();
        if meta.grid().chunk_count() <= LISTED_MIN {
            return Ok(None);
        }
        if self.missing == Missing::Error {
            // Every chunk of this array must be stored. Only a large claimed length is checked.
            let is_long = meta.shape().len_bytes(meta.dtype()).is_ok_and(|len| len > CLAIM_LEN_MAX_BYTES);
            let missing = if is_long { self.first_missing()? } else { None };
            return missing.map_or(Ok(None), |file| {
                Err(Error::corrupt("a chunk of a long array is missing").in_file(file).help(
                    "the checkpoint was saved or copied incompletely; copy it again, or restore the other leaves",
                ))
            });
        }
        let stored = self.array.stored_chunks()?;
        Ok(stored.map(|stored| stored.into_iter().map(|(_, part)| part).collect()))
    }

    /// The stored chunks, if many chunks may be missing; otherwise all chunks of the grid.
    fn chunks(&self) -> Result<Box<dyn Iterator<Item = (Vec<u64>, Region)> + '_>> {
        let meta = self.array.meta();
        let is_listed = self.missing == Missing::Fill && meta.grid().chunk_count() > LISTED_MIN;
        let stored = if is_listed { self.array.stored_chunks()? } else { None };
        Ok(match stored {
            Some(stored) => Box::new(stored.into_iter()),
            None => Box::new(meta.chunk_indices(&Region::whole(meta.shape()))),
        })
    }

    pub fn first_missing(&self) -> Result<Option<PathBuf>> {
        let meta = self.array.meta();
        // The loop ends at the first missing chunk. So its cost depends on the number of stored
        // chunks, and not on a shape that a damaged document claims.
        for (index, _) in meta.chunk_indices(&Region::whole(meta.shape())) {
            let key = zarr_key(&self.name, &meta.chunk_key(&index));
            if self.store.len_bytes(&key)?.is_none() {
                return Ok(Some(self.store.describe(&key)));
            }
        }
        Ok(None)
    }

    /// For each stored chunk: its file and its decoded length. Chunks inside the index are left
    /// out: the index's checksums cover them.
    pub fn holders(&self) -> Result<Vec<(PathBuf, u64)>> {
        let meta = self.array.meta();
        let mut holders = Vec::new();
        for (index, part) in self.chunks()? {
            match self.store.locate(&zarr_key(&self.name, &meta.chunk_key(&index)))? {
                Some(Located::At(span)) => {
                    let len_bytes = part.shape().len_bytes(meta.dtype()).unwrap_or(0);
                    holders.push((span.store.describe(&span.key), len_bytes));
                }
                // The array is damaged, so stop: its claimed shape may be wrong.
                None if self.missing == Missing::Error => break,
                _ => {}
            }
        }
        Ok(holders)
    }

    /// The source of the bytes: raw in one piece, in the index, or in chunks.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are missing or too few.
    pub fn source(&self) -> Result<reads::Source<'_>> {
        Ok(match self.array.locate_raw_whole()? {
            None => reads::Source::Coded(reads::Coded {
                working_len_bytes: Some(self.array.working_len_bytes()),
                ..reads::Coded::default()
            }),
            Some(Located::Inline(bytes)) => reads::Source::Memory(bytes),
            Some(Located::At(span)) => reads::Source::Raw(reads::Extent {
                offset_bytes: span.offset_bytes,
                len_bytes: span.len_bytes,
                checks: None,
                is_viewable: true,
                working_len_bytes: Some(self.array.working_len_bytes()),
                blob: reads::BlobRef::Made(Box::new(reads::KeyedBlob::of_span(span))),
            }),
        })
    }

    fn first_chunk_key(&self) -> Vec<u8> {
        let meta = self.array.meta();
        zarr_key(&self.name, &meta.chunk_key(&vec![0; Shape::rank(meta.shape())]))
    }
}

/// Name, `/`, zarr key; the empty name adds no `/`.
pub(super) fn zarr_key(name: &str, key: &str) -> Vec<u8> {
    if name.is_empty() { key.as_bytes().to_vec() } else { format!("{name}/{key}").into_bytes() }
}
