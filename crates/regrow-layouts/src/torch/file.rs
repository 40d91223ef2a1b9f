//! A file with tensors: the whole file as a blob, its map, and slices. A slice is part of the map,
//! or a copy where there are no maps.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_store::reads::KeyedBlob;
use regrow_store::{ByteRange, Store, StoreExt};

/// A file, with its length when it was opened.
#[derive(Debug)]
pub(super) struct DataFile {
    store: Arc<dyn Store>,
    key: Vec<u8>,
    pub len_bytes: u64,
    pub blob: KeyedBlob,
}

impl DataFile {
    pub fn open(at: &Location) -> Result<Self> {
        Self::in_store(at.parent().store(), at.name().as_encoded_bytes())
    }

    pub fn in_store(store: Arc<dyn Store>, key: &[u8]) -> Result<Self> {
        let len_bytes = store.len_bytes(key)?.ok_or_else(|| {
            Error::corrupt("a file is missing")
                .in_file(store.describe(key))
                .help("copy the whole checkpoint again")
        })?;
        let blob = KeyedBlob::new(store.clone(), key, len_bytes, has_changed);
        Ok(Self { store, key: key.to_owned(), len_bytes, blob })
    }

    pub fn describe(&self) -> PathBuf {
        self.store.describe(&self.key)
    }

    /// A slice of the file's map, or a copy where there are no maps.
    pub fn slice(&self, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let end = offset_bytes.checked_add(len_bytes).filter(|&end| end <= self.len_bytes);
        let end = end.ok_or_else(|| {
            Error::corrupt("the file is too short for its content")
                .at_byte(self.len_bytes)
                .expected(format_args!("{len_bytes} bytes from byte {offset_bytes} on"), self.len_bytes)
                .help("it was cut short; copy it again")
                .in_file(self.describe())
        })?;
        if let Some(map) = self.map()? {
            return Ok(map.slice(offset_bytes as usize..end as usize));
        }
        let range = ByteRange::Span { offset_bytes, len_bytes };
        self.store.get(&self.key, range)?.ok_or_else(|| has_changed().in_file(self.describe()))
    }

    pub fn map(&self) -> Result<Option<Bytes>> {
        let Some(map) = self.store.map(&self.key)? else { return Ok(None) };
        // A map of a file that has shrunk since it was opened would fault beyond its end.
        match self.store.len_bytes(&self.key)? == Some(self.len_bytes) && map.len() as u64 >= self.len_bytes {
            true => Ok(Some(map)),
            false => Err(has_changed()).in_file(self.describe()),
        }
    }
}

fn has_changed() -> Error {
    Error::corrupt("a file changed after it was opened").help("open the checkpoint again")
}
