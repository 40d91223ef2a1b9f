//! Reading regions of an array in a store: only the chunks, inner chunks and byte ranges that
//! overlap the region.
//!
//! | chunks are | what is read |
//! |---|---|
//! | raw | the needed rows, in pieces of at most 8 MiB; a long run with one destination is read directly into it |
//! | shards of several inner chunks | the index, then each needed inner chunk by its range; or the whole value, if the value is short and the region needs all of it |
//! | shards with one raw inner chunk | the index, then the inner chunk like a raw chunk |
//! | one long zstd frame with one destination | the value (or the inner chunk of a shard), piece by piece |
//! | anything else | the whole value |
//!
//! The extra memory is a buffer of a few MiB if a value is read in pieces. Otherwise it is one
//! stored and one decoded (inner) chunk. If a chunk fills a run of the result, no decoded chunk is
//! needed.

use std::sync::Arc;

use super::raw::read_raw;
use super::{ArrayMeta, Destination};
use crate::array::Region;
use crate::codec::{ByteSource, CodecChain, Sharding, bytes_codec};
use crate::error::{Error, ErrorKind, Result};
use regrow_store::{Located, Span, Store};

/// The index of a chunk in the grid, and the part of the array that it holds.
pub type StoredChunk = (Vec<u64>, Region);

/// The longest shard of several inner chunks that is read in one step if the region needs all of
/// it.
pub(super) const SHARD_READ_WHOLE_LEN_MAX_BYTES: u64 = 8 << 20;

/// From this length on, values are decoded piece by piece.
pub(super) const STREAMED_LEN_MIN_BYTES: u64 = 256 << 10;

/// The most memory for decoding piece by piece: a buffer of a reader or a piece of raw rows, and a
/// decoder.
const STREAM_LEN_MAX_BYTES: u64 = 9 << 20;

/// If a region needs more chunks than this, and chunks may be missing, the stored chunks are
/// listed.
pub const LISTED_MIN: u64 = 256;

/// The meaning of a chunk, or an inner chunk of a shard, that is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Damage: Orbax stores every chunk.
    Error,
    /// Elements that all have the fill value.
    Fill,
}

/// An array in a store. Reading is safe from several threads at once.
#[derive(Debug, Clone)]
pub struct ZarrArray {
    store: Arc<dyn Store>,
    /// The name and `/`; empty for the empty name.
    prefix: Vec<u8>,
    meta: Arc<ArrayMeta>,
    missing: Missing,
}

impl ZarrArray {
    /// The array `name` in `store`, whose parsed document is `meta`.
    pub fn new(store: Arc<dyn Store>, name: &[u8], meta: Arc<ArrayMeta>, missing: Missing) -> Self {
        let mut prefix = name.to_vec();
        if !name.is_empty() {
            prefix.push(b'/');
        }
        Self { store, prefix, meta, missing }
    }

    /// The array's parsed document.
    pub fn meta(&self) -> &Arc<ArrayMeta> {
        &self.meta
    }

    /// Reads `region` into `out`, in C order, little endian. Sub-byte elements come out with their
    /// unused bits zero.
    ///
    /// # Errors
    /// `InvalidArgument` if the region leaves the array or `out` is not exactly as long as it;
    /// `Corrupt` for a chunk that is missing (with [`Missing::Error`]) or damaged, with `out`
    /// partly written.
    pub fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        if !region.is_inside(self.meta.shape()) {
            return Err(Error::invalid(format!(
                "region {region} is outside an array of shape {}",
                self.meta.shape()
            )));
        }
        let mut destination = Destination::new(self.meta.dtype(), region, out)?;
        let is_listed = self.missing == Missing::Fill && self.meta.grid().count_in(region) > LISTED_MIN;
        let stored = if is_listed { self.stored_chunks()? } else { None };
        let Some(stored) = stored else {
            for (index, part) in self.meta.chunk_indices(region) {
                self.read_chunk(&index, &part, &mut destination)?;
            }
            return Ok(());
        };
        destination.fill(region, self.meta.chain().fill())?;
        for (index, part) in stored {
            if part.intersect(region).is_some() {
                self.read_chunk(&index, &part, &mut destination)?;
            }
        }
        Ok(())
    }

    /// The stored chunks, in C order, each with its part of the array. The store lists its keys, so
    /// the cost does not depend on the array's claimed shape. `None` if the store cannot list keys,
    /// as on web servers.
    pub fn stored_chunks(&self) -> Result<Option<Vec<StoredChunk>>> {
        let meta = &*self.meta;
        let whole = Region::whole(meta.shape());
        let mut stored = Vec::new();
        let keys = match self.store.list(&self.prefix) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            keys => keys?,
        };
        for key in keys {
            let key = key.get(self.prefix.len()..).and_then(|key| std::str::from_utf8(key).ok());
            let Some(index) = key.and_then(|key| meta.chunk_index(key)) else { continue };
            let part = meta.grid().chunk(&index)?.intersect(&whole);
            stored.extend(part.map(|part| (index, part)));
        }
        stored.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Some(stored))
    }

    /// The most memory, in addition to the result, for reading whole rows of chunks. For raw
    /// chunks, and for zstd chunks that are decoded in place, it is a buffer. Otherwise it is an
    /// (inner) chunk, stored and decoded, and its shard if that is read in one step.
    pub fn working_len_bytes(&self) -> u64 {
        let meta = &*self.meta;
        let (mut chain, mut shard) = (meta.chain(), 0);
        match chain.sharding() {
            Some(sharding) if sharding.inner_count() == 1 => chain = sharding.inner(),
            Some(_) => {
                let len = meta.chunk_shape().len_bytes(meta.dtype()).unwrap_or(u64::MAX);
                shard = len.min(SHARD_READ_WHOLE_LEN_MAX_BYTES);
            }
            None => {}
        }
        let (shape, chunk) = (meta.shape().dims(), meta.chunk_shape().dims());
        let fills_rows = shape.iter().zip(chunk).skip(1).all(|(all, chunk)| all == chunk);
        let is_even = shape.iter().zip(chunk).all(|(all, &chunk)| chunk > 0 && all % chunk == 0);
        let whole = meta.inner_chunk_shape().len_bytes(meta.dtype()).unwrap_or(u64::MAX).saturating_mul(2);
        if chain.is_raw() || chain.is_streamed() && fills_rows && is_even {
            whole.min(STREAM_LEN_MAX_BYTES)
        } else {
            whole.saturating_add(shard)
        }
    }

    /// The position of the array's bytes, if they are stored raw in one chunk, or in the one inner
    /// chunk of one shard, of exactly the array's size. `None` otherwise, and for bool and sub-byte
    /// dtypes, whose elements must be checked or cleaned.
    ///
    /// # Errors
    /// `Corrupt` if the chunk is missing (with [`Missing::Error`]) or has another size.
    pub fn locate_raw_whole(&self) -> Result<Option<Located>> {
        let meta = &*self.meta;
        let chain = meta.chain();
        let only_inner = chain.sharding().filter(|shard| shard.inner_count() == 1 && shard.inner().is_raw());
        let is_raw = meta.is_raw() || only_inner.is_some();
        if !is_raw || meta.chunk_shape() != meta.shape() || !bytes_codec::takes_any_bytes(meta.dtype()) {
            return Ok(None);
        }
        let key = self.chunk_key(&vec![0; meta.shape().rank()]);
        let Some(stored) = self.stored(&key)? else { return Ok(None) };
        let located = match only_inner {
            None => Ok(Some(stored.0)),
            Some(sharding) => sharding
                .only_inner(&stored)
                .map(|inner| inner.map(|(offset_bytes, len_bytes)| stored.part(offset_bytes, len_bytes))),
        };
        match located {
            Ok(Some(located)) if located.len_bytes() != chain.len_bytes() => {
                Err(self.blame(&key, crate::codec::wrong_len(chain.len_bytes(), located.len_bytes())))
            }
            Ok(None) if self.missing == Missing::Error => Err(self.is_missing(&key)),
            located => located.map_err(|error| self.blame(&key, error)),
        }
    }

    /// Reads the parts of one chunk that `destination` needs. `part` is the part of the chunk
    /// inside the array.
    fn read_chunk(&self, index: &[u64], part: &Region, destination: &mut Destination<'_>) -> Result<()> {
        let key = self.chunk_key(index);
        let chain = self.meta.chain();
        let chunk = self.meta.grid().chunk(index)?;
        let Some(stored) = self.stored(&key)? else { return destination.fill(part, chain.fill()) };
        let read = match chain.sharding() {
            _ if chain.is_raw() => read_raw(&stored, chain, &chunk, part, destination),
            Some(sharding) => read_shard(&stored, sharding, &chunk, part, destination, self.missing),
            None => read_encoded(&stored, chain, &chunk, destination, self.missing),
        };
        read.map_err(|error| self.blame(&key, error))
    }

    fn chunk_key(&self, index: &[u64]) -> Vec<u8> {
        [self.prefix.as_slice(), self.meta.chunk_key(index).as_bytes()].concat()
    }

    /// The value at `key`; `None` if the value is missing and its elements have the fill value.
    fn stored(&self, key: &[u8]) -> Result<Option<Stored>> {
        match self.store.locate(key)? {
            Some(located) => Ok(Some(Stored(located))),
            None if self.missing == Missing::Fill => Ok(None),
            None => Err(self.is_missing(key)),
        }
    }

    fn is_missing(&self, key: &[u8]) -> Error {
        Error::corrupt(format!("chunk {} is missing", String::from_utf8_lossy(key)))
            .in_file(self.store.describe(key))
            .help(
                "the checkpoint was saved or copied incompletely; copy it again, or restore the other leaves",
            )
    }

    /// Adds the chunk to an error, unless the chunk is not at fault.
    fn blame(&self, key: &[u8], error: Error) -> Error {
        if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Limit) {
            return error;
        }
        let what = format!("chunk {} cannot be decoded: {}", String::from_utf8_lossy(key), error.what());
        let mut blamed = Error::new(error.kind(), what);
        if let Some(file) = &error.place().file {
            blamed = blamed.in_file(file);
        }
        if let Some(offset_bytes) = error.place().offset_bytes {
            blamed = blamed.at_byte(offset_bytes);
        }
        if let Some((expected, found)) = error.expected_found() {
            blamed = blamed.expected(expected, found);
        }
        if let Some(help) = error.help_text() {
            blamed = blamed.help(help);
        }
        blamed.in_file(self.store.describe(key))
    }
}

/// The value of a chunk, which can be read in parts.
struct Stored(Located);

impl Stored {
    /// A part of the value, which must lie inside it.
    fn part(&self, offset_bytes: u64, len_bytes: u64) -> Located {
        match &self.0 {
            Located::Inline(bytes) => {
                let start = offset_bytes.min(bytes.len() as u64);
                let end = start.saturating_add(len_bytes).min(bytes.len() as u64);
                Located::Inline(bytes.slice(start as usize..end as usize))
            }
            Located::At(span) => Located::At(Span {
                store: span.store.clone(),
                key: span.key.clone(),
                offset_bytes: span.offset_bytes.saturating_add(offset_bytes),
                len_bytes,
            }),
        }
    }
}

/// Adds the file and the offset of a span to an error. If the error has no offset, it gets the
/// offset of the start of the span.
fn in_span(error: Error, span: &Span) -> Error {
    error.at_byte(0).shift(span.offset_bytes).in_file(span.store.describe(&span.key))
}

impl ByteSource for Stored {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn visit(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        match self.part(offset_bytes, len_bytes) {
            Located::Inline(bytes) => each(&bytes).map_err(|error| error.shift(offset_bytes)),
            Located::At(span) => each(&span.read()?).map_err(|error| in_span(error, &span)),
        }
    }

    fn stream(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        match self.part(offset_bytes, len_bytes) {
            Located::Inline(bytes) => each(&bytes).map_err(|error| error.shift(offset_bytes)),
            Located::At(span) => span.stream(&mut |bytes| each(bytes).map_err(|error| in_span(error, &span))),
        }
    }
}

/// Reads an encoded chunk. A long chunk with one destination is decoded there piece by piece.
fn read_encoded(
    stored: &Stored,
    chain: &CodecChain,
    chunk: &Region,
    destination: &mut Destination<'_>,
    missing: Missing,
) -> Result<()> {
    if chain.is_streamed()
        && stored.len_bytes() >= STREAMED_LEN_MIN_BYTES
        && let Some(slot) = destination.slot(chunk)?
    {
        return chain.decode_streamed(slot, |each| stored.stream(0, stored.len_bytes(), each));
    }
    let put = &mut |bytes: &[u8]| destination.put_chunk(chunk, chain, bytes, missing);
    stored.visit(0, stored.len_bytes(), put)
}

/// Reads a shard. If a shard has one inner chunk, a raw inner chunk is read like a raw chunk, and a
/// long zstd frame piece by piece; otherwise one read gets index and data. One read also gets a
/// shard of several inner chunks if the region needs all of the shard and the shard is short.
fn read_shard(
    stored: &Stored,
    sharding: &Sharding,
    chunk: &Region,
    part: &Region,
    destination: &mut Destination<'_>,
    missing: Missing,
) -> Result<()> {
    let is_single = sharding.inner_count() == 1;
    if is_single && sharding.inner().is_raw() {
        return match sharding.only_inner(stored)? {
            Some((offset, len)) => {
                let inner = Stored(stored.part(offset, len));
                read_raw(&inner, sharding.inner(), chunk, part, destination)
            }
            None => sharding.read_into(stored, chunk.starts(), destination, missing),
        };
    }
    if is_single && sharding.inner().is_streamed() && stored.len_bytes() >= STREAMED_LEN_MIN_BYTES {
        return match sharding.only_inner(stored)? {
            Some((offset, len)) => {
                let inner = Stored(stored.part(offset, len));
                read_encoded(&inner, sharding.inner(), chunk, destination, missing)
            }
            None => sharding.read_into(stored, chunk.starts(), destination, missing),
        };
    }
    let is_whole = destination.region().intersect(part).as_ref() == Some(part);
    if is_single || (is_whole && stored.len_bytes() <= SHARD_READ_WHOLE_LEN_MAX_BYTES) {
        return stored.visit(0, stored.len_bytes(), &mut |bytes| {
            sharding.read_into(&bytes, chunk.starts(), destination, missing)
        });
    }
    sharding.read_into(stored, chunk.starts(), destination, missing)
}
