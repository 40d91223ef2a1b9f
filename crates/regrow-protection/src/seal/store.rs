//! A folder with sealed files, as a store.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::blob::SealedBlob;
use super::files::{Governed, Seal, SealedFile};
use super::read::of_blob;
use regrow_base::error::{Error, Result};
use regrow_store::reads::KeyedBlob;
use regrow_store::{
    Blob, ByteRange, FETCH_LEN_MAX_BYTES, Located, PrivateMap, ReadOnly, ReadPath, Span, Store,
    StoreCapabilities, StoreExt, StoreMaps, resolve_range,
};

/// The keys below a folder. Reads of sealed files are checked. Other files are read without a
/// check, but a file that was added to a sealed folder is refused.
#[derive(Debug, Clone)]
pub(super) struct SealedStore {
    store: Arc<dyn Store>,
    seal: Arc<Seal>,
    path: PathBuf,
}

/// A value of the store.
enum Value {
    Free,
    Sealed(Arc<SealedFile>),
}

impl SealedStore {
    pub fn new(store: Arc<dyn Store>, seal: Arc<Seal>, path: PathBuf) -> Self {
        Self { store, seal, path }
    }

    fn path_of(&self, key: &[u8]) -> Option<PathBuf> {
        std::str::from_utf8(key).ok().map(|key| self.path.join(key))
    }

    /// The value of a key; an error if the seal forbids the read.
    fn value(&self, key: &[u8]) -> Result<Value> {
        let path = self.path_of(key);
        match path.as_deref().map_or(Governed::Unlisted, |path| self.seal.governs(path)) {
            Governed::Free => Ok(Value::Free),
            Governed::Listed(file) => Ok(Value::Sealed(Arc::clone(file))),
            Governed::Unlisted => match self.store.len_bytes(key)? {
                None => Ok(Value::Free),
                Some(_) => Err((self.seal.said.unlisted)().in_file(self.describe(key))),
            },
        }
    }

    fn is_side_file(&self, key: &[u8]) -> bool {
        self.path_of(key).is_some_and(|path| self.seal.is_side_file(&path))
    }

    fn blob(&self, key: &[u8], file: &SealedFile) -> KeyedBlob {
        KeyedBlob::new(Arc::clone(&self.store), key, file.len_bytes, self.seal.said.misfit)
    }

    fn is_gone(&self, key: &[u8]) -> Error {
        (self.seal.said.misfit)().in_file(self.describe(key))
    }

    /// The bytes from `start` to `end` of a file, by one request.
    fn checked(&self, key: &[u8], file: &SealedFile, start: u64, end: u64) -> Result<Bytes> {
        if start == end {
            return Ok(Bytes::new());
        }
        let (first, last) = (file.table.block_at(start).start, file.table.block_at(end - 1).end);
        let span = ByteRange::Span { offset_bytes: first, len_bytes: last - first };
        let bytes = self.store.get(key, span)?.ok_or_else(|| self.is_gone(key))?;
        file.check(&self.blob(key, file), first, &bytes)?;
        Ok(bytes.slice((start - first) as usize..(end - first) as usize))
    }
}

impl Store for SealedStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        let Value::Sealed(file) = self.value(key)? else { return self.store.get(key, range) };
        let part = resolve_range(range, file.len_bytes).map_err(|error| error.in_file(self.describe(key)))?;
        self.checked(key, &file, part.start, part.end).map(Some)
    }

    fn stream(
        &self,
        key: &[u8],
        range: ByteRange,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let Value::Sealed(file) = self.value(key)? else { return self.store.stream(key, range, each) };
        let part = resolve_range(range, file.len_bytes).map_err(|error| error.in_file(self.describe(key)))?;
        let mut at = part.start;
        while at < part.end {
            // End each part at the end of a block, so that no block is read twice.
            let to = file.table.block_at(at.saturating_add(FETCH_LEN_MAX_BYTES)).start.min(part.end);
            each(&self.checked(key, &file, at, to)?)?;
            at = to;
        }
        Ok(true)
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut keys = self.store.list(prefix)?;
        keys.retain(|key| !self.is_side_file(key));
        Ok(keys)
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        self.store.len_bytes(key)
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        let Value::Sealed(file) = self.value(key)? else { return self.store.locate(key) };
        let (store, len_bytes) = (Arc::new(self.clone()), file.len_bytes);
        Ok(Some(Located::At(Span { store, key: key.into(), offset_bytes: 0, len_bytes })))
    }

    fn open(&self, key: &[u8]) -> Result<Option<Arc<dyn Blob>>> {
        let file = match self.value(key)? {
            Value::Free => return self.store.open(key),
            Value::Sealed(file) => file,
        };
        let blob = self.store.open(key)?.ok_or_else(|| self.is_gone(key))?;
        Ok(Some(Arc::new(SealedBlob::new(blob, file, self.seal.said)?)))
    }

    fn read_into(&self, key: &[u8], offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let Value::Sealed(file) = self.value(key)? else {
            return self.store.read_into(key, offset_bytes, out);
        };
        let span = ByteRange::Span { offset_bytes, len_bytes: out.len() as u64 };
        resolve_range(span, file.len_bytes).map_err(|error| error.in_file(self.describe(key)))?;
        let blob = self.blob(key, &file);
        file.read_checked(&blob, offset_bytes, out, &of_blob(&blob, ReadPath::Cached))
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        self.store.describe(key)
    }

    fn capabilities(&self) -> StoreCapabilities<'_> {
        let versions = self.store.capabilities().versions;
        StoreCapabilities { writes: Err(ReadOnly::OPEN), maps: Some(self), versions }
    }
}

impl StoreMaps for SealedStore {
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.value(key)? {
            Value::Free => self.store.map(key),
            Value::Sealed(_) => Ok(None),
        }
    }

    fn map_private(&self, key: &[u8]) -> Result<Option<PrivateMap>> {
        match self.value(key)? {
            Value::Free => self.store.map_private(key),
            Value::Sealed(_) => Ok(None),
        }
    }

    fn is_cached(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> bool {
        self.store.is_cached(key, offset_bytes, len_bytes)
    }
}
