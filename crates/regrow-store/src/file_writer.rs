//! One new file of a checkpoint, written front to back, on any storage.

use std::fmt::Debug;
use std::path::PathBuf;

use super::blocks::BLOCK_LEN_BYTES;
use crate::error::Result;

/// How to write a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// Length that is reserved on disk before anything is written. May turn out wrong; 0 reserves
    /// nothing.
    pub expected_len_bytes: u64,
    /// The byte from which block checksums are counted.
    pub checksums_from: u64,
    /// Whether `finish` waits until the file would survive a power cut.
    pub durable: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { expected_len_bytes: 0, checksums_from: 0, durable: true }
    }
}

/// What was written to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// Its length.
    pub len_bytes: u64,
    /// CRC-32C of each block of [`FileWriter::BLOCK_LEN_BYTES`], counted from the `checksums_from`
    /// byte on; the last may cover fewer bytes.
    pub block_crc32c: Vec<u32>,
}

/// What takes the bytes of one new file.
pub trait FileSink: Debug + Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// What the storage said to this call's bytes or to earlier ones.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Appends `len_bytes` that `fill` produces piece by piece, from front to back: it gets the
    /// offset of each piece, counted from the first byte of this call, and the slice to fill (all
    /// of it; what it holds before is left over from elsewhere). Pieces begin at multiples of 16
    /// bytes and are at most 256 KiB long.
    ///
    /// # Errors
    /// Errors of `fill`; what the storage said to these bytes or to earlier ones.
    fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()>;

    /// Bytes taken so far.
    fn offset_bytes(&self) -> u64;

    /// Counts bytes of data as done that take no room in the file, since they are compressed.
    ///
    /// # Errors
    /// `Cancelled` if the work is to stop.
    fn saved(&self, len_bytes: u64) -> Result<()>;

    /// What a person would call the file, for errors.
    fn describe(&self) -> PathBuf;

    /// Writes what is left, and waits until the file is as durable as was asked for.
    ///
    /// # Errors
    /// What the storage said.
    fn finish(self: Box<Self>) -> Result<WrittenFile>;

    /// Bytes with their offsets, which [`finish`](Self::finish) writes over those that stand there;
    /// the checksums are those of the bytes that were written before. `None` where a file only
    /// grows.
    fn patches(&mut self) -> Option<&mut Vec<(u64, Vec<u8>)>>;
}

/// One new file, written front to back. An error of the storage may show one or more calls after
/// the bytes it concerns; after an error every call fails. If it is dropped unfinished, the
/// publication of the checkpoint removes the file.
#[derive(Debug)]
pub struct FileWriter(Box<dyn FileSink>);

impl FileWriter {
    /// Bytes each checksum covers.
    pub const BLOCK_LEN_BYTES: u64 = BLOCK_LEN_BYTES as u64;

    /// A writer into `sink`.
    #[inline]
    pub fn new(sink: impl FileSink + 'static) -> Self {
        Self(Box::new(sink))
    }

    /// As [`FileSink::write`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write(bytes)
    }

    /// As [`FileSink::write_with`].
    ///
    /// # Errors
    /// As there.
    pub fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.0.write_with(len_bytes, fill)
    }

    /// Bytes taken so far.
    #[inline]
    pub fn offset_bytes(&self) -> u64 {
        self.0.offset_bytes()
    }

    /// As [`FileSink::saved`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn saved(&self, len_bytes: u64) -> Result<()> {
        self.0.saved(len_bytes)
    }

    /// What a person would call the file, for errors.
    #[inline]
    pub fn describe(&self) -> PathBuf {
        self.0.describe()
    }

    /// As [`FileSink::patches`].
    #[inline]
    pub fn patches(&mut self) -> Option<&mut Vec<(u64, Vec<u8>)>> {
        self.0.patches()
    }

    /// As [`FileSink::finish`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn finish(self) -> Result<WrittenFile> {
        self.0.finish()
    }
}
