//! Encodes chunks: small ones in memory, large ones during the write.
//!
//! ```text
//! up to 1 MiB   chunk --encode_chunk--> value
//! larger        piece, piece, ... --zstd frame--> | stored | stored | ...       no buffer of the chunk's size
//!               zarr v3: inner chunk by inner chunk, then the shard's index and its crc32c
//! ```
//!
//! Orbax' chunks are whole arrays by default, so a chunk may be larger than any budget.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use zstd::stream::write::Encoder;

use super::chunking::ChunkShapes;
use super::held::{Chunk, Held};
use super::source::ChunkSource;
use crate::options::Compression;
use regrow_base::bytes::checksum::crc32c;
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Array, Casting, Dtype, Region, chunk_counts};
use regrow_tree::tree::KeyPath;
use regrow_zarr::zarr::ArrayMeta;

/// Chunks up to this size are encoded in memory.
pub(super) const IN_MEMORY_MAX_BYTES: u64 = 1 << 20;

/// The stored form of arrays. Thousands of leaves have the same form, so they share it.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) dtype: Dtype,
    pub(super) casting: Casting,
    pub(super) chunks: ChunkShapes,
    pub(super) compression: Compression,
    pub(super) meta: ArrayMeta,
    pub(super) document: Bytes,
}

/// One array leaf, ready to be written.
#[derive(Debug)]
pub(super) struct PlannedArray<'a> {
    pub(super) name: Arc<str>,
    pub(super) leaf: u32,
    /// The key path of the leaf, if it is cast.
    pub(super) cast_path: Option<KeyPath>,
    pub(super) held: Held<'a>,
    pub(super) form: Arc<Form>,
}

/// `TooLarge` asks the caller to stream the chunk.
pub(super) enum Encoded {
    Value(Vec<u8>),
    TooLarge,
}

impl<'a> PlannedArray<'a> {
    pub(super) fn chunk_count(&self) -> u64 {
        self.held.count(self.form.meta.shape(), &self.form.chunks.outer)
    }

    /// Bytes of the chunks that this process writes, before compression.
    pub(super) fn len_bytes(&self) -> u64 {
        self.chunk_len_bytes().saturating_mul(self.chunk_count())
    }

    /// Bytes of one chunk before compression.
    pub(super) fn chunk_len_bytes(&self) -> u64 {
        self.form.chunks.outer.len_elements().saturating_mul(self.form.dtype.size_bytes() as u64)
    }

    /// A chunk, by its number among the chunks of this process.
    pub(super) fn chunk(&self, number: u64) -> Result<Chunk<'a>> {
        self.held.chunk(number, self.form.meta.shape(), &self.form.chunks.outer)
    }

    /// The number of a chunk among all chunks of the array, in C order.
    pub(super) fn number_in_array(&self, chunk: &Chunk<'_>) -> u64 {
        let counts = chunk_counts(self.form.meta.shape(), &self.form.chunks.outer);
        chunk.index.iter().zip(&counts).fold(0, |number, (index, count)| number * count + index)
    }

    pub(super) fn encode(&self, chunk: &Chunk<'_>) -> Result<Encoded> {
        if self.chunk_len_bytes() > IN_MEMORY_MAX_BYTES {
            return Ok(Encoded::TooLarge);
        }
        let source = ChunkSource {
            array: &chunk.array,
            region: &chunk.region,
            dtype: self.form.dtype,
            casting: self.form.casting,
        };
        let bytes = source.bytes().map_err(|error| self.named(error))?;
        Ok(Encoded::Value(self.form.meta.encode_chunk(&bytes)?))
    }

    fn named(&self, error: Error) -> Error {
        match &self.cast_path {
            Some(path) => error.at_leaf(path),
            None => error,
        }
    }

    /// Passes the value of a chunk of any size to `sink`, part by part.
    pub(super) fn stream(&self, chunk: &Chunk<'_>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let outer = &chunk.region;
        let mut sink = Counted { sink, len_bytes: 0, error: None };
        if self.form.meta.version() == 2 {
            return self.stream_inner(&chunk.array, outer, &mut sink);
        }
        let mut shard_index = Vec::new();
        let inner = self.form.chunks.inner.dims();
        let counts: Vec<u64> = outer.lens().iter().zip(inner).map(|(outer, inner)| outer / inner).collect();
        for number in 0..counts.iter().product() {
            let mut rest = number;
            let mut starts = outer.starts().to_vec();
            for ((start, &count), len) in starts.iter_mut().zip(&counts).zip(inner).rev() {
                *start += rest % count * len;
                rest /= count;
            }
            let offset = sink.len_bytes;
            self.stream_inner(&chunk.array, &Region::new(starts, inner)?, &mut sink)?;
            shard_index.extend(offset.to_le_bytes());
            shard_index.extend((sink.len_bytes - offset).to_le_bytes());
        }
        shard_index.extend(crc32c(&shard_index).to_le_bytes());
        sink.put(&shard_index)
    }

    /// One chunk without an index: its bytes, or one zstd frame that states its content size.
    fn stream_inner(&self, array: &Array, region: &Region, sink: &mut Counted<'_>) -> Result<()> {
        let source = ChunkSource { array, region, dtype: self.form.dtype, casting: self.form.casting };
        let level = match self.form.compression {
            Compression::None => {
                return source.for_each_piece(|piece| sink.put(piece)).map_err(|error| self.named(error));
            }
            Compression::Zstd(level) => level,
        };
        let mut run = || -> io::Result<Result<()>> {
            let mut frame = Encoder::new(&mut *sink, level)?;
            frame.set_pledged_src_size(Some(source.len_bytes()))?;
            frame.include_contentsize(true)?;
            let mut failed = Ok(());
            let cast = source.for_each_piece(|piece| {
                failed = frame.write_all(piece);
                if failed.is_ok() { Ok(()) } else { Err(Error::invalid("the chunk cannot be written")) }
            });
            failed?;
            frame.finish()?;
            Ok(cast)
        };
        let done = run();
        match (sink.error.take(), done) {
            (Some(error), _) => Err(error),
            (None, Ok(cast)) => cast.map_err(|error| self.named(error)),
            (None, Err(error)) => Err(Error::invalid(format!("zstd does not compress: {error}"))),
        }
    }
}

/// The sink of a stream, with its last error, which `io::Write` cannot carry.
struct Counted<'a> {
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
    len_bytes: u64,
    error: Option<Error>,
}

impl Counted<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        (self.sink)(bytes)?;
        self.len_bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes).map_err(|error| {
            self.error = Some(error);
            io::Error::other("see Counted::error")
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
