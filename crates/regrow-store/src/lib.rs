//! Internals of regrow, without promises: kvstores, keys to byte values. A file system, memory, a
//! prefix of another store, an OCDBT database.
//!
//! Stores know nothing of trees or arrays. Keys are bytes: any bytes in OCDBT, safe relative paths
//! in a file system. Values are shared slices of a map or a buffer.
//!
//! A `Storage` has many folders. Each folder opens as a store. A [`Blob`] is one opened value.
//!
//! | store | keys are |
//! |---|---|
//! | [`LocalStore`] | paths below a folder; ranged reads, read-only maps, durable puts |
//! | [`MemoryStore`] | anything; for tests and small things |
//! | `regrow_ocdbt::OcdbtStore` | those of one version of an OCDBT database (read only) |

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use ::bytes::Bytes;

use crate::error::Result;

use regrow_base::{bytes, error, monitor, system, threads};

mod blob;
mod blocks;
mod buffer;
mod file_writer;
mod identity;
pub mod least;
pub mod local;
mod memory;
mod private_map;
pub mod reads;
mod scratch;

pub use blob::{Blob, EachChunk, FETCH_LEN_MAX_BYTES, MemoryBlob, ReadPath, Suits};
pub use blob::{CACHED_LEN_BYTES, LONG_LEN_MIN_BYTES};
pub use blocks::BlockChecksums;
pub use file_writer::{FileSink, FileWriter, WriteOptions, WrittenFile};
pub use identity::{Document, Identity};
pub use local::{Access, DirectWriter, LocalStore, advise};
pub use local::{read_document, read_opened_document};
pub use memory::MemoryStore;
pub use private_map::PrivateMap;
pub use scratch::Scratch;

/// Which bytes of a value are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// All of them.
    Full,
    /// `len_bytes` from `offset_bytes` on; an error of kind `Corrupt` if the value is shorter.
    Span {
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
    /// The last bytes; an error of kind `Corrupt` if the value is shorter.
    Suffix(u64),
}

/// Where the value of a key lies, so that a reader can plan, coalesce and map.
#[derive(Debug, Clone)]
pub enum Located {
    /// Here: it lay inside an index that has been read (and checked) already.
    Inline(Bytes),
    /// In a byte range of a value of a store further down.
    At(Span),
}

impl Located {
    /// Length of the value.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::At(span) => span.len_bytes,
        }
    }
}

/// A byte range of the value at `key` in `store`.
#[derive(Debug, Clone)]
pub struct Span {
    /// The store that holds the bytes themselves.
    pub store: Arc<dyn Store>,
    /// Its key.
    pub key: Arc<[u8]>,
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
}

impl Span {
    /// Reads the bytes.
    ///
    /// # Errors
    /// `Corrupt` if the file is gone or too short.
    #[inline]
    pub fn read(&self) -> Result<Bytes> {
        self.store.get(&self.key, self.range())?.ok_or_else(|| self.is_missing())
    }

    /// Hands the bytes to `each`, front to back, in pieces.
    ///
    /// # Errors
    /// As for [`read`](Self::read), perhaps after some pieces; errors of `each`.
    pub fn stream(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.store.stream(&self.key, self.range(), each)? { Ok(()) } else { Err(self.is_missing()) }
    }

    fn range(&self) -> ByteRange {
        ByteRange::Span { offset_bytes: self.offset_bytes, len_bytes: self.len_bytes }
    }

    fn is_missing(&self) -> crate::error::Error {
        crate::error::Error::corrupt("a data file that the index refers to is missing")
            .in_file(self.store.describe(&self.key))
            .at_byte(self.offset_bytes)
            .help("copy the whole checkpoint again, with all its folders")
    }
}

/// One version of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Its length.
    pub len_bytes: u64,
    /// A text that differs from that of every other version and value.
    pub text: String,
}

/// Keys to values, as readers need them. [`StoreExt`] has the comfort.
pub trait Store: Debug + Send + Sync {
    /// The bytes of `range` at `key`, or `None` when the store has no such key.
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>>;

    /// Hands out the bytes of `range` at `key` front to back, in pieces that are gone when `each`
    /// returns; `false` if the store has no such key. A local store reads what the page cache lacks
    /// past it, and keeps none of it.
    ///
    /// # Errors
    /// As [`get`](Self::get), perhaps after some pieces; errors of `each`.
    fn stream(
        &self,
        key: &[u8],
        range: ByteRange,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        match self.get(key, range)? {
            Some(bytes) => each(&bytes).map(|()| true),
            None => Ok(false),
        }
    }

    /// All keys that begin with `prefix`, sorted as bytes.
    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Length of the value in bytes, or `None` when there is no such key.
    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>>;

    /// Where the value lies; `None` when there is no such key.
    fn locate(&self, key: &[u8]) -> Result<Option<Located>>;

    /// The value, opened for reads by offset; `None` when there is no such key.
    ///
    /// # Errors
    /// Errors of the storage.
    fn open(&self, key: &[u8]) -> Result<Option<Arc<dyn Blob>>> {
        let value = self.get(key, ByteRange::Full)?;
        Ok(value.map(|bytes| Arc::new(MemoryBlob::new(bytes, self.describe(key))) as Arc<dyn Blob>))
    }

    /// Reads exactly as many bytes as `out` has into it: where [`get`](Self::get) makes memory of
    /// its own.
    ///
    /// # Errors
    /// As `get`; `Corrupt` also if there is no such key.
    fn read_into(&self, key: &[u8], offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let span = ByteRange::Span { offset_bytes, len_bytes: out.len() as u64 };
        let bytes = self.get(key, span)?.ok_or_else(|| missing(self.describe(key)))?;
        out.copy_from_slice(&bytes);
        Ok(())
    }

    /// The whole of a document; `None` when there is no such key.
    ///
    /// # Errors
    /// As `Storage::read_document`.
    fn read_document(&self, key: &str, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        let Some(len_bytes) = self.len_bytes(key.as_bytes())? else { return Ok(None) };
        document.check_len(len_bytes).map_err(|error| error.in_file(self.describe(key.as_bytes())))?;
        Ok(self.get(key.as_bytes(), ByteRange::Full)?.map(Into::into))
    }

    /// What a person would call the value: a path, for errors.
    fn describe(&self, key: &[u8]) -> PathBuf;

    /// What the store can do beside this. A store that wraps another one passes each of them on or
    /// replaces it.
    fn capabilities(&self) -> StoreCapabilities<'_>;
}

/// What a store can do beside reading.
#[derive(Debug, Clone, Copy)]
pub struct StoreCapabilities<'s> {
    /// The store as a writer needs it, or why nothing is written to it.
    pub writes: std::result::Result<&'s dyn StoreWrites, ReadOnly>,
    /// What of its values is in memory; `None` for a store without maps.
    pub maps: Option<&'s dyn StoreMaps>,
    /// What tells versions of its values apart, where that is known.
    pub versions: Option<&'s dyn StoreVersions>,
}

/// Why nothing is written to a store or a storage.
#[derive(Debug, Clone, Copy)]
pub struct ReadOnly {
    /// In words: `archives are read only`.
    pub what: &'static str,
    /// What to do instead.
    pub help: Option<&'static str>,
}

impl ReadOnly {
    /// Of what is read for an open checkpoint.
    pub const OPEN: Self = Self { what: "an open checkpoint is read only", help: None };

    /// The error of a write to this file.
    pub fn error(self, file: impl Into<PathBuf>) -> crate::error::Error {
        let error = crate::error::Error::unsupported(self.what).in_file(file);
        match self.help {
            Some(help) => error.help(help),
            None => error,
        }
    }
}

/// Changes of a store.
pub trait StoreWrites: Debug {
    /// Replaces the value at `key`; a reader sees the old value or the new, never a part.
    fn put(&self, key: &[u8], value: Bytes) -> Result<()>;

    /// Puts a value where there is none: false, and nothing has changed, if there is one. Of
    /// several callers at once, in any process on any machine, one gets true; a reader sees all of
    /// a value or none of it. It need not survive a power cut.
    ///
    /// A bucket may have done what its answer, which was lost, would have said. It is then asked
    /// what it holds: so callers that put the same bytes may all get true.
    ///
    /// # Errors
    /// Errors of the storage.
    fn put_if_absent(&self, key: &[u8], value: Bytes) -> Result<bool>;

    /// Removes `key`; no error if it is not there. It may be there again after a power cut.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Removes keys, one after the other; no error if some are not there. Once this has returned
    /// they are gone after a power cut, too.
    ///
    /// # Errors
    /// Errors of the storage; some may be gone then.
    fn delete_durably(&self, keys: &[&[u8]]) -> Result<()> {
        keys.iter().try_for_each(|key| self.delete(key))
    }
}

/// What of the values of a store is in memory.
pub trait StoreMaps: Debug {
    /// The whole value as a read-only map, where the store can; else `None`. The same map each
    /// time.
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The whole value, which is not empty, as memory of this process: what is written to it does
    /// not reach the file. Another map each time; `None` if there is no such value, and where there
    /// are no maps.
    ///
    /// # Errors
    /// Errors of the system.
    fn map_private(&self, _key: &[u8]) -> Result<Option<PrivateMap>> {
        Ok(None)
    }

    /// Whether memory has so many bytes of the value already; true if unknown.
    fn is_cached(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> bool;
}

/// What tells versions of values apart.
pub trait StoreVersions: Debug {
    /// What tells this version of the value from every other, for good: another process can compare
    /// it later. `None` when there is no such key.
    ///
    /// # Errors
    /// Errors of the storage.
    fn version(&self, key: &[u8]) -> Result<Option<Version>>;
}

/// Comfort for callers.
pub trait StoreExt: Store {
    /// The whole value.
    fn get_whole(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.get(key, ByteRange::Full)
    }

    /// The whole value of a text key.
    fn get_text_key(&self, key: &str) -> Result<Option<Bytes>> {
        self.get(key.as_bytes(), ByteRange::Full)
    }

    /// As [`StoreMaps::map`]; `None` for a store without maps.
    ///
    /// # Errors
    /// As there.
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.capabilities().maps.map_or(Ok(None), |maps| maps.map(key))
    }

    /// As [`StoreMaps::map_private`]; `None` for a store without maps.
    ///
    /// # Errors
    /// As there.
    fn map_private(&self, key: &[u8]) -> Result<Option<PrivateMap>> {
        self.capabilities().maps.map_or(Ok(None), |maps| maps.map_private(key))
    }

    /// As [`StoreMaps::is_cached`]; true for a store without maps.
    fn is_cached(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> bool {
        self.capabilities().maps.is_none_or(|maps| maps.is_cached(key, offset_bytes, len_bytes))
    }

    /// As [`StoreVersions::version`].
    ///
    /// # Errors
    /// As there; `Unsupported` if versions are unknown.
    fn version(&self, key: &[u8]) -> Result<Option<Version>> {
        match self.capabilities().versions {
            Some(versions) => versions.version(key),
            None => Err(crate::error::Error::unsupported("the values of this store have no versions")
                .in_file(self.describe(key))),
        }
    }

    /// As [`StoreWrites::put`].
    ///
    /// # Errors
    /// As there; `Unsupported` if the store is read only.
    fn put(&self, key: &[u8], value: Bytes) -> Result<()> {
        self.capabilities().writes.map_err(|why| why.error(self.describe(key)))?.put(key, value)
    }

    /// As [`StoreWrites::put_if_absent`].
    ///
    /// # Errors
    /// As there; `Unsupported` if the store is read only.
    fn put_if_absent(&self, key: &[u8], value: Bytes) -> Result<bool> {
        self.capabilities().writes.map_err(|why| why.error(self.describe(key)))?.put_if_absent(key, value)
    }

    /// As [`StoreWrites::delete`].
    ///
    /// # Errors
    /// As there; `Unsupported` if the store is read only.
    fn delete(&self, key: &[u8]) -> Result<()> {
        self.capabilities().writes.map_err(|why| why.error(self.describe(key)))?.delete(key)
    }

    /// As [`StoreWrites::delete_durably`].
    ///
    /// # Errors
    /// As there; `Unsupported` if the store is read only.
    fn delete_durably(&self, keys: &[&[u8]]) -> Result<()> {
        let key = keys.first().copied().unwrap_or_default();
        self.capabilities().writes.map_err(|why| why.error(self.describe(key)))?.delete_durably(keys)
    }
}
impl<T: Store + ?Sized> StoreExt for T {}

/// The error for a value that something refers to, and that is not there.
pub fn missing(file: PathBuf) -> crate::error::Error {
    crate::error::Error::corrupt("a file is missing").in_file(file).help("copy the whole checkpoint again")
}

/// The part of `len_bytes` bytes that `range` means, as `start..end`.
///
/// # Errors
/// `Corrupt` if the value is too short for it.
pub fn resolve_range(range: ByteRange, len_bytes: u64) -> Result<std::ops::Range<u64>> {
    let too_short = |wanted: &dyn std::fmt::Display| {
        crate::error::Error::corrupt("a stored value is too short")
            .expected(wanted, format_args!("{len_bytes} bytes"))
            .help("the file was cut short: copy it again")
    };
    match range {
        ByteRange::Full => Ok(0..len_bytes),
        ByteRange::Span { offset_bytes, len_bytes: len } => match offset_bytes.checked_add(len) {
            Some(end) if end <= len_bytes => Ok(offset_bytes..end),
            _ => Err(too_short(&format_args!("{len} bytes from byte {offset_bytes} on"))),
        },
        ByteRange::Suffix(len) => match len_bytes.checked_sub(len) {
            Some(start) => Ok(start..len_bytes),
            None => Err(too_short(&format_args!("at least {len} bytes"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::least::Least;
    use super::{ByteRange, Bytes, MemoryStore, ReadPath, Store, StoreExt};
    use crate::error::ErrorKind;

    #[test]
    fn the_comfort_of_a_store_is_made_of_the_least() {
        let store = Least(MemoryStore::new());
        store.put(b"key", Bytes::from_static(b"abcdef")).unwrap();
        let span = ByteRange::Span { offset_bytes: 1, len_bytes: 4 };
        let mut got = Vec::new();
        let mut each = |bytes: &[u8]| {
            got.extend_from_slice(bytes);
            Ok(())
        };
        assert!(store.stream(b"key", span, &mut each).unwrap());
        assert!(!store.stream(b"other", span, &mut each).unwrap());
        assert_eq!(got, b"bcde");
        assert!(store.is_cached(b"key", 0, 1));
        assert!(store.map(b"key").unwrap().is_none());
        let opened = store.open(b"key").unwrap().unwrap();
        let mut out = [0; 2];
        opened.read(4, &mut out, ReadPath::Cached).unwrap();
        assert_eq!((opened.len_bytes(), &out), (6, b"ef"));
        assert!(store.open(b"other").unwrap().is_none());
        // An unknown version is an error, and not guessed.
        assert_eq!(store.version(b"key").unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(store.get(b"new", ByteRange::Full).unwrap().is_none());
    }

    #[test]
    fn in_memory_values_are_put_once_removed_and_mapped() {
        let store = MemoryStore::new();
        assert!(store.put_if_absent(b"key", Bytes::from_static(b"first")).unwrap());
        assert!(!store.put_if_absent(b"key", Bytes::from_static(b"second")).unwrap());
        assert_eq!(store.map(b"key").unwrap().unwrap(), "first");
        assert!(store.map(b"other").unwrap().is_none());
        store.delete(b"key").unwrap();
        store.delete(b"key").unwrap();
        assert!(store.list(b"").unwrap().is_empty());
    }
}
