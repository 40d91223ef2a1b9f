//! OCDBT (stub: the OCDBT room replaces it).
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::{ByteRange, Located, Store};
use crate::error::{Error, Result};

/// One version of an OCDBT database, read only.
#[derive(Debug)]
pub struct OcdbtStore {}

impl OcdbtStore {
    /// Opens the newest version of the database whose `manifest.ocdbt` lies at the root of `base`.
    pub fn open(_base: Arc<dyn Store>) -> Result<Self> {
        Err(Error::unsupported("stub"))
    }
    /// Every key with where its value lies, in key order; reads each node once.
    pub fn entries(&self) -> Result<Vec<(Vec<u8>, Located)>> {
        Err(Error::unsupported("stub"))
    }
}

impl Store for OcdbtStore {
    fn get(&self, _key: &[u8], _range: ByteRange) -> Result<Option<Bytes>> {
        Err(Error::unsupported("stub"))
    }
    fn put(&self, _key: &[u8], _value: Bytes) -> Result<()> {
        Err(Error::unsupported("stub"))
    }
    fn delete(&self, _key: &[u8]) -> Result<()> {
        Err(Error::unsupported("stub"))
    }
    fn list(&self, _prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        Err(Error::unsupported("stub"))
    }
    fn len_bytes(&self, _key: &[u8]) -> Result<Option<u64>> {
        Err(Error::unsupported("stub"))
    }
    fn locate(&self, _key: &[u8]) -> Result<Option<Located>> {
        Err(Error::unsupported("stub"))
    }
    fn describe(&self, key: &[u8]) -> PathBuf {
        PathBuf::from(String::from_utf8_lossy(key).as_ref())
    }
}

/// How nodes and manifests are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OcdbtConfig {
    /// Values up to this size lie inside the nodes.
    pub max_inline_value_bytes: u32,
    /// Target size for splitting nodes.
    pub max_decoded_node_bytes: u32,
    /// zstd level of nodes and manifests; `None` for no compression.
    pub zstd_level: Option<i32>,
    /// Log2 of the version tree's arity.
    pub version_tree_arity_log2: u8,
    /// Numbered manifests instead of a single one.
    pub numbered: bool,
}

/// A value handed to [`write_database`].
#[derive(Debug, Clone)]
pub enum EntryValue {
    /// Put inside the node.
    Inline(Bytes),
    /// A byte range of a file: `base` + `relative` is its path below the database.
    Indirect {
        /// First part of the path (`ocdbt.process_0/`, often empty).
        base: Arc<[u8]>,
        /// The rest of the path (`d/<hex>`, `model.safetensors`).
        relative: Arc<[u8]>,
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
}
