//! A value of a store as a blob. The store opens the value. If too many values are open, the store
//! closes the oldest ones.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::threads::pool;
use crate::{Blob, PrivateMap, ReadPath, Span, Store, StoreExt, Suits};

/// The value at a key, with the length that it had when it was found.
#[derive(Debug, Clone)]
pub struct KeyedBlob {
    store: Arc<dyn Store>,
    key: Arc<[u8]>,
    len_bytes: u64,
    changed: Option<fn() -> Error>,
}

impl KeyedBlob {
    /// The value at `key`, of this length. `changed` makes the error for a value whose length has
    /// changed.
    pub fn new(store: Arc<dyn Store>, key: &[u8], len_bytes: u64, changed: fn() -> Error) -> Self {
        Self { store, key: key.into(), len_bytes, changed: Some(changed) }
    }

    /// The value that contains a span. Its full length is not known.
    pub fn of_span(span: Span) -> Self {
        let len_bytes = span.offset_bytes.saturating_add(span.len_bytes);
        Self { store: span.store, key: span.key, len_bytes, changed: None }
    }
}

impl Blob for KeyedBlob {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn describe(&self) -> PathBuf {
        self.store.describe(&self.key)
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8], _way: ReadPath) -> Result<()> {
        self.store.read_into(&self.key, offset_bytes, out)
    }

    /// Returns an error if the length of the file has changed, unless the blob is a span: access
    /// after the end of the file would fault.
    fn map(&self) -> Result<Option<Bytes>> {
        let Some(map) = self.store.map(&self.key)? else { return Ok(None) };
        match self.changed.filter(|_| !self.has_its_length() || (map.len() as u64) < self.len_bytes) {
            Some(changed) => Err(changed().in_file(self.describe())),
            None => Ok(Some(map)),
        }
    }

    fn map_private(&self) -> Result<Option<PrivateMap>> {
        let Some(map) = self.store.map_private(&self.key)? else { return Ok(None) };
        match self.changed.filter(|_| map.len() as u64 != self.len_bytes) {
            Some(changed) => Err(changed().in_file(self.describe())),
            None => Ok(Some(map)),
        }
    }

    fn is_cached(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.store.is_cached(&self.key, offset_bytes, len_bytes)
    }

    fn has_its_length(&self) -> bool {
        self.store.len_bytes(&self.key).is_ok_and(|len| len == Some(self.len_bytes))
    }

    fn suits(&self) -> Suits {
        Suits { requests_min: 1, requests_max: pool::thread_count() }
    }
}
