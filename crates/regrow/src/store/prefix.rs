//! The keys of another store below a prefix.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::{ByteRange, Located, Store};
use crate::error::Result;

/// Every key gets `prefix` put in front of it (nothing is added between them).
#[derive(Debug)]
pub struct PrefixStore {
    base: Arc<dyn Store>,
    prefix: Vec<u8>,
}

impl PrefixStore {
    /// The keys of `base` that begin with `prefix`, without it.
    pub fn new(base: Arc<dyn Store>, prefix: impl Into<Vec<u8>>) -> Self {
        Self { base, prefix: prefix.into() }
    }

    fn full(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix.as_slice(), key].concat()
    }
}

impl Store for PrefixStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        self.base.get(&self.full(key), range)
    }

    fn put(&self, key: &[u8], value: Bytes) -> Result<()> {
        self.base.put(&self.full(key), value)
    }

    fn put_if_absent(&self, key: &[u8], value: Bytes) -> Result<bool> {
        self.base.put_if_absent(&self.full(key), value)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.base.delete(&self.full(key))
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut keys = self.base.list(&self.full(prefix))?;
        for key in &mut keys {
            key.drain(..self.prefix.len());
        }
        Ok(keys)
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        self.base.len_bytes(&self.full(key))
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        self.base.locate(&self.full(key))
    }

    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.base.map(&self.full(key))
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        self.base.describe(&self.full(key))
    }
}
