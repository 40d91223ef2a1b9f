//! A folder as a store.  (stub: the I/O room replaces it)
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{ByteRange, Located, Store};
use crate::error::{Error, Result};

/// Files below a folder.
#[derive(Debug)]
pub struct LocalStore {
    root: PathBuf,
}

impl LocalStore {
    /// The folder `root`; it need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

impl Store for LocalStore {
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
        self.root.join(String::from_utf8_lossy(key).as_ref())
    }
}

/// What was written to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// Its length.
    pub len_bytes: u64,
    /// CRC-32C of each block of [`DirectWriter::BLOCK_LEN_BYTES`], counted from the `checksums_from` byte on.
    pub block_crc32c: Vec<u32>,
}

/// Writes one file front to back: copies what it is given into a small ring of aligned buffers, checksums on
/// the way, and lets a thread of its own write them with direct I/O.
#[derive(Debug)]
pub struct DirectWriter {}

impl DirectWriter {
    /// Bytes each checksum covers.
    pub const BLOCK_LEN_BYTES: u64 = 1 << 20;

    /// Creates the file (it must not exist). `expected_len_bytes` is reserved on disk first, so a full disk
    /// shows before anything is written. Block checksums begin at byte `checksums_from`.
    pub fn create(_path: &Path, _expected_len_bytes: u64, _checksums_from: u64) -> Result<Self> {
        Err(Error::unsupported("stub"))
    }
    /// Bytes taken so far.
    pub fn offset_bytes(&self) -> u64 {
        0
    }
    /// Appends bytes.
    pub fn write(&mut self, _bytes: &[u8]) -> Result<()> {
        Err(Error::unsupported("stub"))
    }
    /// Appends `len_bytes` that `fill` produces piece by piece: it gets the offset of each piece and the slice to fill.
    pub fn write_with(
        &mut self,
        _len_bytes: u64,
        _fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        Err(Error::unsupported("stub"))
    }
    /// Writes what is left, syncs the file to disk.
    pub fn finish(self) -> Result<WrittenFile> {
        Err(Error::unsupported("stub"))
    }
}
