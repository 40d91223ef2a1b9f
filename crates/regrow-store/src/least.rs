//! The smallest possible store, for tests.

use std::path::PathBuf;

use bytes::Bytes;

use super::{ByteRange, Located, MemoryStore, Store, StoreCapabilities};
use crate::error::Result;

/// A store in memory with only the required methods: no maps, like a bucket.
#[derive(Debug)]
pub struct Least(pub MemoryStore);

impl Store for Least {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        self.0.get(key, range)
    }
    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.0.list(prefix)
    }
    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        self.0.len_bytes(key)
    }
    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        self.0.locate(key)
    }
    fn describe(&self, key: &[u8]) -> PathBuf {
        self.0.describe(key)
    }
    fn capabilities(&self) -> StoreCapabilities<'_> {
        StoreCapabilities { maps: None, ..self.0.capabilities() }
    }
}
