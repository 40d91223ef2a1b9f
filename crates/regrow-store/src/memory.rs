//! A store in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{ByteRange, Located, Store, StoreCapabilities, StoreMaps, StoreWrites, resolve_range};
use crate::error::{Result, ResultExt};

/// Keys and values in memory, sorted.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<BTreeMap<Vec<u8>, Bytes>>);

impl MemoryStore {
    /// An empty store.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    // Every change is one call on the map, so a thread that panics cannot leave it half changed.
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        let Some(value) = self.entries().get(key).cloned() else { return Ok(None) };
        let part = resolve_range(range, value.len() as u64).in_file(self.describe(key))?;
        Ok(Some(value.slice(part.start as usize..part.end as usize)))
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let entries = self.entries();
        Ok(entries
            .range(prefix.to_vec()..)
            .map(|(key, _)| key)
            .take_while(|key| key.starts_with(prefix))
            .cloned()
            .collect())
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.entries().get(key).map(|value| value.len() as u64))
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        Ok(self.entries().get(key).cloned().map(Located::Inline))
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        PathBuf::from(format!("memory:{}", String::from_utf8_lossy(key)))
    }

    fn capabilities(&self) -> StoreCapabilities<'_> {
        StoreCapabilities { writes: Ok(self), maps: Some(self), versions: None }
    }
}

impl StoreWrites for MemoryStore {
    fn put(&self, key: &[u8], value: Bytes) -> Result<()> {
        self.entries().insert(key.to_vec(), value);
        Ok(())
    }

    fn put_if_absent(&self, key: &[u8], value: Bytes) -> Result<bool> {
        let mut entries = self.entries();
        let is_absent = !entries.contains_key(key);
        if is_absent {
            entries.insert(key.to_vec(), value);
        }
        Ok(is_absent)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.entries().remove(key);
        Ok(())
    }
}

impl StoreMaps for MemoryStore {
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.entries().get(key).cloned())
    }

    fn is_cached(&self, _key: &[u8], _offset_bytes: u64, _len_bytes: u64) -> bool {
        true
    }
}
