//! An opened file, object or buffer, which is read by offset.
//!
//! | kind | reads | map | suits |
//! |---|---|---|---|
//! | a file on a disk | `pread`, or direct I/O past the page cache | yes | few requests of 4 MiB |
//! | an object in a bucket | ranged GETs | no | many long requests at once |
//! | memory | a copy | the memory itself | anything |

use std::fmt::Debug;
use std::path::PathBuf;

use bytes::Bytes;

use super::buffer::{ALIGN_BYTES, BUFFER_LEN_BYTES};
use super::{PrivateMap, Scratch};
use crate::Identity;
use crate::error::{Error, Result};

/// How bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPath {
    /// Through the page cache, without readahead.
    Cached,
    /// Through the page cache, with readahead of the following bytes.
    Streamed,
    /// Past the page cache, if the file system supports it.
    Direct,
}

/// A function that receives bytes as they arrive. An error from it ends the read.
pub type EachChunk<'a> = &'a mut (dyn FnMut(&[u8]) -> Result<()> + Send);

/// An opened value. It stays the same value, even if another value takes its name later.
pub trait Blob: Debug + Send + Sync {
    /// The length at the time of the open.
    fn len_bytes(&self) -> u64;

    /// The path or URL of the value, for errors.
    fn describe(&self) -> PathBuf;

    /// Fills `out` with the bytes from `offset_bytes` on.
    ///
    /// # Errors
    /// `Corrupt` if the value is too short; `Replaced` if the value was replaced; errors of the
    /// storage.
    fn read(&self, offset_bytes: u64, out: &mut [u8], way: ReadPath) -> Result<()>;

    /// Reads `len` bytes, at most [`FETCH_LEN_MAX_BYTES`], into memory of `scratch`.
    fn fetch<'s>(
        &self,
        offset_bytes: u64,
        len: usize,
        way: ReadPath,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8]> {
        let room = scratch.room(len).map_err(|error| Error::io("cannot read", self.describe(), error))?;
        self.read(offset_bytes, room, way)?;
        Ok(room)
    }

    /// Passes `len_bytes` from `offset_bytes` on to `each`, in order, as they arrive. The storage
    /// sends one request and needs no buffer. Returns `false`, without a call of `each`, if the
    /// storage cannot stream. The caller must then read the bytes.
    ///
    /// # Errors
    /// As for [`read`](Self::read); errors of `each`.
    fn stream(&self, _offset_bytes: u64, _len_bytes: u64, _each: EachChunk<'_>) -> Result<bool> {
        Ok(false)
    }

    /// The whole value as a read-only map, the same map each time; `None` if the storage has no
    /// maps.
    ///
    /// # Errors
    /// Errors of the storage.
    fn map(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// The whole value as writable memory of this process: writes do not change the value. Each
    /// call makes another map; `None` if the storage has no maps.
    ///
    /// # Errors
    /// Errors of the storage.
    fn map_private(&self) -> Result<Option<PrivateMap>> {
        Ok(None)
    }

    /// Whether the bytes are already in memory, so that a read only copies them.
    fn is_cached(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        true
    }

    /// Whether the value still has its length. If a file became shorter, access to its map would
    /// fault.
    fn has_its_length(&self) -> bool {
        true
    }

    /// The identity of the value, for comparisons; `None` if unknown.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// The key and version of an object in a bucket; `None` for other values.
    fn object(&self) -> Option<(String, Identity)> {
        None
    }

    /// The number of concurrent requests that reads this value fastest.
    fn suits(&self) -> Suits;
}

/// How many concurrent requests read a value fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suits {
    /// The smallest number of concurrent requests that keeps the storage busy.
    pub requests_min: usize,
    /// The largest number of concurrent requests that is useful.
    pub requests_max: usize,
}

impl Suits {
    /// A storage with at least this value of `requests_min` is behind a network, where latency
    /// dominates.
    const REQUESTS_OF_NETWORK_MIN: usize = 8;

    /// Whether each request waits for a network. Then a few long requests at the same time are
    /// better than many short ones in sequence.
    #[inline]
    pub fn is_far(&self) -> bool {
        self.requests_min >= Self::REQUESTS_OF_NETWORK_MIN
    }
}

/// Longest [`fetch`](Blob::fetch). Together with the bytes before it in its first device block, it
/// fills a buffer.
pub const FETCH_LEN_MAX_BYTES: u64 = (BUFFER_LEN_BYTES - ALIGN_BYTES) as u64;

/// Reads of at least this length may use direct I/O. Shorter reads use the page cache.
pub const LONG_LEN_MIN_BYTES: u64 = 256 << 10;

/// Length of a copy from the page cache. The bytes are used while they are still in the processor's
/// cache.
pub const CACHED_LEN_BYTES: u64 = 256 << 10;

/// A value in memory.
#[derive(Debug, Clone)]
pub struct MemoryBlob {
    bytes: Bytes,
    name: PathBuf,
}

impl MemoryBlob {
    /// A value with these bytes. `name` appears in errors.
    #[inline]
    pub fn new(bytes: Bytes, name: PathBuf) -> Self {
        Self { bytes, name }
    }
}

impl Blob for MemoryBlob {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn describe(&self) -> PathBuf {
        self.name.clone()
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8], _way: ReadPath) -> Result<()> {
        let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
        let end = start.saturating_add(out.len());
        let part = self.bytes.get(start..end).ok_or_else(|| {
            Error::corrupt("the value is too short for the wanted bytes")
                .in_file(&self.name)
                .at_byte(offset_bytes)
        })?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn map(&self) -> Result<Option<Bytes>> {
        Ok(Some(self.bytes.clone()))
    }

    fn suits(&self) -> Suits {
        Suits { requests_min: 1, requests_max: usize::MAX }
    }
}
