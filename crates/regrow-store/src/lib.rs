//! Internals of regrow, without promises: key-value stores, which map keys to bytes. A store is a
//! folder of files, memory, or an OCDBT database.
//!
//! Stores know nothing of trees or arrays. Keys are bytes: any bytes in OCDBT, safe relative paths
//! in a file system. Values are shared slices of a map or a buffer.
//!
//! A `Storage` has many folders. Each folder opens as a store. A [`Blob`] is one opened value.
//!
//! | store | keys |
//! |---|---|
//! | [`LocalStore`] | paths below a folder (ranged reads, read-only maps, durable puts) |
//! | [`MemoryStore`] | any bytes (for tests and small values) |
//! | `regrow_ocdbt::OcdbtStore` | the keys of one version of an OCDBT database (read only) |

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

/// A range of the bytes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// All bytes.
    Full,
    /// `len_bytes` bytes from `offset_bytes` on. An error of kind `Corrupt` if the value is
    /// shorter.
    Span {
        /// The offset of the first byte.
        offset_bytes: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
    /// This many last bytes. An error of kind `Corrupt` if the value is shorter.
    Suffix(u64),
}

/// The position of the value of a key, so that a reader can plan, combine and map reads.
#[derive(Debug, Clone)]
pub enum Located {
    /// The bytes themselves, from an index that is already read and checked.
    Inline(Bytes),
    /// A byte range of a value in another store, which holds the bytes.
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
    /// The store that holds the bytes.
    pub store: Arc<dyn Store>,
    /// The key of the value in that store.
    pub key: Arc<[u8]>,
    /// The offset of the first byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
}

impl Span {
    /// Reads the bytes. `Corrupt` if the file is missing or too short.
    #[inline]
    pub fn read(&self) -> Result<Bytes> {
        self.store.get(&self.key, self.range())?.ok_or_else(|| self.is_missing())
    }

    /// Passes the bytes to `each` in pieces, in order.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read), also after some calls of `each`; errors of `each`.
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
    /// The length of the value in bytes.
    pub len_bytes: u64,
    /// A text that no other version and no other value has.
    pub text: String,
}

/// A map from keys to values, as readers need it. [`StoreExt`] has more methods for callers.
pub trait Store: Debug + Send + Sync {
    /// The bytes of `range` at `key`; `None` if the store lacks the key.
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>>;

    /// Passes the bytes of `range` at `key` to `each` in pieces, in order. Each piece is valid only
    /// during the call. Returns `false` if the store lacks the key. If the page cache lacks bytes,
    /// a local store reads them past the page cache and does not fill it.
    ///
    /// # Errors
    /// The same as for [`get`](Self::get), also after some calls of `each`; errors of `each`.
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

    /// All keys that begin with `prefix`, sorted by their bytes.
    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// The length of the value in bytes; `None` if the store lacks the key.
    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>>;

    /// The position of the value; `None` if the store lacks the key.
    fn locate(&self, key: &[u8]) -> Result<Option<Located>>;

    /// Opens the value for reads by offset; `None` if the store lacks the key.
    fn open(&self, key: &[u8]) -> Result<Option<Arc<dyn Blob>>> {
        let value = self.get(key, ByteRange::Full)?;
        Ok(value.map(|bytes| Arc::new(MemoryBlob::new(bytes, self.describe(key))) as Arc<dyn Blob>))
    }

    /// Fills `out` with the bytes from `offset_bytes` on, without the allocation that
    /// [`get`](Self::get) makes.
    ///
    /// # Errors
    /// The same as for `get`; `Corrupt` also if the store lacks the key.
    fn read_into(&self, key: &[u8], offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let span = ByteRange::Span { offset_bytes, len_bytes: out.len() as u64 };
        let bytes = self.get(key, span)?.ok_or_else(|| missing(self.describe(key)))?;
        out.copy_from_slice(&bytes);
        Ok(())
    }

    /// A whole document; `None` if the store lacks the key.
    ///
    /// # Errors
    /// The same as for `Storage::read_document`.
    fn read_document(&self, key: &str, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        let Some(len_bytes) = self.len_bytes(key.as_bytes())? else { return Ok(None) };
        document.check_len(len_bytes).map_err(|error| error.in_file(self.describe(key.as_bytes())))?;
        Ok(self.get(key.as_bytes(), ByteRange::Full)?.map(Into::into))
    }

    /// The path or URL of the value, for errors.
    fn describe(&self, key: &[u8]) -> PathBuf;

    /// The other abilities of the store. A store that wraps another one passes each ability on or
    /// replaces it.
    fn capabilities(&self) -> StoreCapabilities<'_>;
}

/// The abilities of a store beside reading.
#[derive(Debug, Clone, Copy)]
pub struct StoreCapabilities<'s> {
    /// The methods for writers, or the reason why the store is read only.
    pub writes: std::result::Result<&'s dyn StoreWrites, ReadOnly>,
    /// The methods for maps; `None` for a store without maps.
    pub maps: Option<&'s dyn StoreMaps>,
    /// The method for versions; `None` if the versions of values are unknown.
    pub versions: Option<&'s dyn StoreVersions>,
}

/// The reason why a store or a storage is read only.
#[derive(Debug, Clone, Copy)]
pub struct ReadOnly {
    /// The reason as text: `archives are read only`.
    pub what: &'static str,
    /// What the user can do instead.
    pub help: Option<&'static str>,
}

impl ReadOnly {
    /// The reason for the files of an open checkpoint.
    pub const OPEN: Self = Self { what: "an open checkpoint is read only", help: None };

    /// The error for a write to `file`.
    pub fn error(self, file: impl Into<PathBuf>) -> crate::error::Error {
        let error = crate::error::Error::unsupported(self.what).in_file(file);
        match self.help {
            Some(help) => error.help(help),
            None => error,
        }
    }
}

/// The methods that change a store.
pub trait StoreWrites: Debug {
    /// Replaces the value at `key`. A reader sees the old or the new value, never a part of one.
    fn put(&self, key: &[u8], value: Bytes) -> Result<()>;

    /// Writes a value if the key has none. Returns `false`, with nothing changed, if it has one. Of
    /// several simultaneous callers on any machines, one gets `true`. A reader sees the whole value
    /// or none. The value need not survive a power cut.
    ///
    /// A bucket may have written the value although its answer got lost. The store then compares
    /// the value in the bucket with the given bytes. So several callers with the same bytes may all
    /// get `true`.
    fn put_if_absent(&self, key: &[u8], value: Bytes) -> Result<bool>;

    /// Removes `key`. A missing key is not an error. After a power cut the key may exist again.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Removes keys one after the other. Missing keys are not an error. After this returns, the
    /// keys stay removed even after a power cut.
    ///
    /// # Errors
    /// Errors of the storage. After an error some keys may be removed.
    fn delete_durably(&self, keys: &[&[u8]]) -> Result<()> {
        keys.iter().try_for_each(|key| self.delete(key))
    }
}

/// The maps of the values of a store.
pub trait StoreMaps: Debug {
    /// The whole value as a read-only map, the same map while the store keeps the value open;
    /// `None` if the value cannot be mapped. For committed values only: access to a map of a
    /// truncated file faults.
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The whole value, which is not empty, as writable memory of this process. Writes do not
    /// change the file. Each call makes another map. `None` if the value does not exist or cannot
    /// be mapped.
    fn map_private(&self, _key: &[u8]) -> Result<Option<PrivateMap>> {
        Ok(None)
    }

    /// Whether these bytes of the value are already in memory; true if unknown.
    fn is_cached(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> bool;
}

/// The versions of the values of a store.
pub trait StoreVersions: Debug {
    /// Identifies this version of the value for all time, so that another process can compare it
    /// later. `None` if the store lacks the key.
    fn version(&self, key: &[u8]) -> Result<Option<Version>>;
}

/// Methods on top of the required ones.
pub trait StoreExt: Store {
    /// The whole value; `None` if the store lacks the key.
    fn get_whole(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.get(key, ByteRange::Full)
    }

    /// The whole value of a text key; `None` if the store lacks the key.
    fn get_text_key(&self, key: &str) -> Result<Option<Bytes>> {
        self.get(key.as_bytes(), ByteRange::Full)
    }

    /// The same as [`StoreMaps::map`]; `None` for a store without maps.
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.capabilities().maps.map_or(Ok(None), |maps| maps.map(key))
    }

    /// The same as [`StoreMaps::map_private`]; `None` for a store without maps.
    fn map_private(&self, key: &[u8]) -> Result<Option<PrivateMap>> {
        self.capabilities().maps.map_or(Ok(None), |maps| maps.map_private(key))
    }

    /// The same as [`StoreMaps::is_cached`]; true for a store without maps.
    fn is_cached(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> bool {
        self.capabilities().maps.is_none_or(|maps| maps.is_cached(key, offset_bytes, len_bytes))
    }

    /// The same as [`StoreVersions::version`]; `Unsupported` if versions are unknown.
    fn version(&self, key: &[u8]) -> Result<Option<Version>> {
        match self.capabilities().versions {
            Some(versions) => versions.version(key),
            None => Err(crate::error::Error::unsupported("the values of this store have no versions")
                .in_file(self.describe(key))),
        }
    }

    /// The same as [`StoreWrites::put`]; `Unsupported` if the store is read only.
    fn put(&self, key: &[u8], value: Bytes) -> Result<()> {
        self.capabilities().writes.map_err(|why| why.error(self.describe(key)))?.put(key, value)
    }

    /// The same as [`StoreWrites::put_if_absent`]; `Unsupported` if the store is read only.
    fn put_if_absent(&self, key: &[u8], value: Bytes) -> Result<bool> {
        self.capabilities().writes.map_err(|why| why.error(self.describe(key)))?.put_if_absent(key, value)
    }

    /// The same as [`StoreWrites::delete`]; `Unsupported` if the store is read only.
    fn delete(&self, key: &[u8]) -> Result<()> {
        self.capabilities().writes.map_err(|why| why.error(self.describe(key)))?.delete(key)
    }

    /// The same as [`StoreWrites::delete_durably`]; `Unsupported` if the store is read only.
    fn delete_durably(&self, keys: &[&[u8]]) -> Result<()> {
        let key = keys.first().copied().unwrap_or_default();
        self.capabilities().writes.map_err(|why| why.error(self.describe(key)))?.delete_durably(keys)
    }
}
impl<T: Store + ?Sized> StoreExt for T {}

/// The whole value; `None` if the store lacks the key, also if another process has removed the
/// value between two requests of the store.
///
/// # Errors
/// Errors of the store.
pub fn get_if_there(store: &dyn Store, key: &[u8]) -> Result<Option<Bytes>> {
    match store.get_whole(key) {
        Err(error) if error.kind() == crate::error::ErrorKind::Replaced => Ok(None),
        value => value,
    }
}

/// The error for a missing value to which another file refers.
pub fn missing(file: PathBuf) -> crate::error::Error {
    crate::error::Error::corrupt("a file is missing").in_file(file).help("copy the whole checkpoint again")
}

/// Converts `range` to offsets `start..end` in a value of `len_bytes` bytes. `Corrupt` if the value
/// is shorter than the range.
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
        // A store without versions returns an error instead of a guess.
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
