//! One new file of a checkpoint, written front to back, on any storage.

use std::fmt::Debug;
use std::path::PathBuf;

use ::bytes::Bytes;

use super::blocks::BLOCK_LEN_BYTES;
use crate::error::Result;

/// How to write a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// Length that is reserved on disk before the first write; 0 reserves nothing. The file may get
    /// another length.
    pub expected_len_bytes: u64,
    /// The first byte under a checksum: block 0 begins here.
    pub checksums_from: u64,
    /// Whether `finish` waits until the file would survive a power cut.
    pub durable: bool,
    /// Whether the file is written through the page cache, so that the next reads find it there.
    pub keep_cached: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { expected_len_bytes: 0, checksums_from: 0, durable: true, keep_cached: false }
    }
}

/// The length and checksums of a finished file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// The length of the file in bytes.
    pub len_bytes: u64,
    /// The CRC-32C of each block of [`FileWriter::BLOCK_LEN_BYTES`]. The first block begins at
    /// `checksums_from`, and the last may be shorter.
    pub block_crc32c: Vec<u32>,
}

/// Receives the bytes of one new file.
pub trait FileSink: Debug + Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// Errors of the storage, for these bytes or earlier ones.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Appends bytes. The sink may keep a reference to them.
    ///
    /// # Errors
    /// The same as for [`write`](Self::write).
    fn write_shared(&mut self, bytes: &Bytes) -> Result<()> {
        self.write(bytes)
    }

    /// Appends `len_bytes` that `fill` produces piece by piece, in order. `fill` gets the offset of
    /// each piece, counted from the first byte of this call, and a slice that it must fill
    /// completely. The old content of the slice is arbitrary. Pieces begin at multiples of 16 bytes
    /// and have at most 256 KiB.
    ///
    /// # Errors
    /// Errors of `fill`; errors of the storage, for these bytes or earlier ones.
    fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()>;

    /// Number of bytes appended so far.
    fn offset_bytes(&self) -> u64;

    /// Reports bytes as done that need no space in the file, because they are compressed.
    /// Returns `Cancelled` if the monitor was cancelled.
    fn saved(&self, len_bytes: u64) -> Result<()>;

    /// The path or URL of the file, for errors.
    fn describe(&self) -> PathBuf;

    /// Writes the remaining bytes, and syncs the file if it must be durable.
    fn finish(self: Box<Self>) -> Result<WrittenFile>;

    /// A list for bytes and their offsets. [`finish`](Self::finish) writes these bytes over the old
    /// ones; the checksums stay those of the old bytes. `None` if the storage can only append.
    fn patches(&mut self) -> Option<&mut Vec<(u64, Vec<u8>)>>;
}

/// One new file, written in order. An error of the storage may be reported by a later call than the
/// one with the failed bytes. After an error every call fails. If the writer is dropped unfinished,
/// the publication of the checkpoint removes the file.
#[derive(Debug)]
pub struct FileWriter(Box<dyn FileSink>);

impl FileWriter {
    /// Number of bytes under each checksum.
    pub const BLOCK_LEN_BYTES: u64 = BLOCK_LEN_BYTES as u64;

    /// A writer into `sink`.
    #[inline]
    pub fn new(sink: impl FileSink + 'static) -> Self {
        Self(Box::new(sink))
    }

    /// The same as [`FileSink::write`].
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write(bytes)
    }

    /// The same as [`FileSink::write_shared`].
    #[inline]
    pub fn write_shared(&mut self, bytes: &Bytes) -> Result<()> {
        self.0.write_shared(bytes)
    }

    /// The same as [`FileSink::write_with`].
    pub fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.0.write_with(len_bytes, fill)
    }

    /// Number of bytes appended so far.
    #[inline]
    pub fn offset_bytes(&self) -> u64 {
        self.0.offset_bytes()
    }

    /// The same as [`FileSink::saved`].
    #[inline]
    pub fn saved(&self, len_bytes: u64) -> Result<()> {
        self.0.saved(len_bytes)
    }

    /// The path or URL of the file, for errors.
    #[inline]
    pub fn describe(&self) -> PathBuf {
        self.0.describe()
    }

    /// The same as [`FileSink::patches`].
    #[inline]
    pub fn patches(&mut self) -> Option<&mut Vec<(u64, Vec<u8>)>> {
        self.0.patches()
    }

    /// The same as [`FileSink::finish`].
    #[inline]
    pub fn finish(self) -> Result<WrittenFile> {
        self.0.finish()
    }
}
