//! One opened value, to be read by offset: a file, an object, memory.
//!
//! | kind | reads | map | suits |
//! |---|---|---|---|
//! | a file on a disk | `pread`, or direct I/O past the page cache | yes | few requests of 4 MiB |
//! | an object in a bucket | one ranged GET each | no | many requests at once, long ones |
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
    /// Through the page cache, and nothing but what is asked for.
    Cached,
    /// Through the page cache, front to back: what follows is read ahead.
    Streamed,
    /// Past the page cache, where the file system can.
    Direct,
}

/// What takes bytes as they come. An error ends that.
pub type EachChunk<'a> = &'a mut (dyn FnMut(&[u8]) -> Result<()> + Send);

/// An opened value. It stays the opened value, also if its name leads to another one later.
pub trait Blob: Debug + Send + Sync {
    /// Its length when it was opened.
    fn len_bytes(&self) -> u64;

    /// What a person would call it, for errors.
    fn describe(&self) -> PathBuf;

    /// Fills `out` with the bytes from `offset_bytes` on.
    ///
    /// # Errors
    /// `Corrupt` if the value ends before; `Replaced` if it is another by now; what the storage
    /// says.
    fn read(&self, offset_bytes: u64, out: &mut [u8], way: ReadPath) -> Result<()>;

    /// Reads `len` bytes, at most [`FETCH_LEN_MAX_BYTES`], into memory of `scratch`.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
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

    /// Hands `len_bytes` from `offset_bytes` on to `each` as they come, front to back: one request,
    /// and no memory for them. False where bytes do not come by themselves, and then `each` has got
    /// none: read them.
    ///
    /// # Errors
    /// As for [`read`](Self::read); errors of `each`.
    fn stream(&self, _offset_bytes: u64, _len_bytes: u64, _each: EachChunk<'_>) -> Result<bool> {
        Ok(false)
    }

    /// All of it as a read-only map, the same each time; `None` where there are no maps.
    ///
    /// # Errors
    /// Errors of the storage.
    fn map(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// All of it as memory of this process: what is written to it does not reach the value. Another
    /// map each time; `None` where there are no maps.
    ///
    /// # Errors
    /// Errors of the storage.
    fn map_private(&self) -> Result<Option<PrivateMap>> {
        Ok(None)
    }

    /// Whether memory has the bytes already, so that reading them is a copy.
    fn is_cached(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        true
    }

    /// Whether the value is still as long as when it was opened. A map of a shorter file would
    /// fault.
    fn has_its_length(&self) -> bool {
        true
    }

    /// The identity of the value, to be compared with another; `None` if unknown.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Its key and version, of an object in a bucket.
    fn object(&self) -> Option<(String, Identity)> {
        None
    }

    /// How it is read fastest.
    fn suits(&self) -> Suits;
}

/// How a value is read fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suits {
    /// Fewest requests at once that keep it busy.
    pub requests_min: usize,
    /// Most requests at once that it has a use for.
    pub requests_max: usize,
}

impl Suits {
    /// From so many on, each request waits for a network more than for its bytes.
    const REQUESTS_OF_NETWORK_MIN: usize = 8;

    /// Whether requests wait for a network: then few long ones, many at once, are better than short
    /// ones in a row.
    #[inline]
    pub fn is_far(&self) -> bool {
        self.requests_min >= Self::REQUESTS_OF_NETWORK_MIN
    }
}

/// Longest [`fetch`](Blob::fetch): with what lies before it in its first device block it fills a
/// buffer.
pub const FETCH_LEN_MAX_BYTES: u64 = (BUFFER_LEN_BYTES - ALIGN_BYTES) as u64;

/// From here on a read past the cache is worth a request of its own; less is read through it, at
/// once.
pub const LONG_LEN_MIN_BYTES: u64 = 256 << 10;

/// Bytes that are copied out of the page cache and used while the processor's own cache has them.
pub const CACHED_LEN_BYTES: u64 = 256 << 10;

/// A value that is in memory.
#[derive(Debug, Clone)]
pub struct MemoryBlob {
    bytes: Bytes,
    name: PathBuf,
}

impl MemoryBlob {
    /// These bytes, under a name for errors.
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
