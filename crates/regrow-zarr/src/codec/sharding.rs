//! The codec `sharding_indexed`: a chunk divided into inner chunks. One value has all of them and
//! an index.
//!
//! ```text
//! inner chunks, one after another | offset u64, length u64 of each, C order | crc32c u32      index at the end
//! index | inner chunks                                                                        index at the start
//! ```
//!
//! An absent inner chunk has offset and length 2^64-1. Offsets count from the start of the value.
//! regrow writes inner chunks in order without gaps. It reads them in any order and with gaps, if
//! each range lies inside the value.
//!
//! Orbax writes every zarr v3 chunk this way, by default with one inner chunk of the same shape.
//! The index is the only part of an Orbax checkpoint's array data that has a checksum. Source: zarr
//! v3 codec `sharding_indexed`.

use serde_json::{Value, json};

use super::chain::{ArrayCodec, CodecChain, Decoded, name_and_configuration};
use super::{Endian, buffer, crc32c, no_memory};
use crate::array::{Dtype, Region, Shape, copy_region};
use crate::bytes::Cursor;
use crate::bytes::limits::CHUNK_LEN_MAX_BYTES;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::zarr::json::{Members, brief};
use crate::zarr::{ChunkGrid, Destination, Missing};

const ENTRY_LEN_BYTES: u64 = 2 * size_of::<u64>() as u64;

/// The offset and length that mark an absent inner chunk.
const ABSENT: u64 = u64::MAX;

/// A value that can be read in parts: bytes in memory, or a range of a file.
pub trait ByteSource {
    /// Length of the value.
    fn len_bytes(&self) -> u64;

    /// Reads a part, which must be inside the value, and passes it to `each`. In an error of
    /// `each`, the offset is changed to count from the start of the value or, if known, of the
    /// file.
    fn visit(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()>;

    /// Reads front to back in pieces of any length. An error may come after some of the pieces.
    fn stream(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.visit(offset_bytes, len_bytes, each)
    }
}

impl ByteSource for &[u8] {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn visit(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let end = offset_bytes.saturating_add(len_bytes);
        let part = (*self).get(offset_bytes as usize..end as usize);
        let part = part.ok_or_else(|| Error::corrupt("a stored value is too short").at_byte(offset_bytes))?;
        each(part).shift(offset_bytes)
    }
}

/// The division of a shard into inner chunks, and their codecs.
///
/// The type keeps these promises: the inner shape divides the outer shape, and the index is at most
/// [`CHUNK_LEN_MAX_BYTES`] long.
#[derive(Debug, Clone, PartialEq)]
pub struct Sharding {
    grid: ChunkGrid,
    inner: CodecChain,
    index: IndexLayout,
}

/// The codecs of the index, and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexLayout {
    endian: Endian,
    has_crc32c: bool,
    is_at_start: bool,
}

impl Sharding {
    /// The codec as Orbax writes it: the index is at the end, little endian, with its crc32c.
    pub fn new(outer_shape: Shape, inner: CodecChain) -> Result<Self> {
        let index = IndexLayout { endian: Endian::Little, has_crc32c: true, is_at_start: false };
        Self::with_index(outer_shape, inner, index)
    }

    fn with_index(outer_shape: Shape, inner: CodecChain, index: IndexLayout) -> Result<Self> {
        let grid = ChunkGrid::new(outer_shape, inner.shape().clone())?;
        let divides = grid
            .shape()
            .dims()
            .iter()
            .zip(grid.chunk_shape().dims())
            .all(|(outer, inner)| outer % inner == 0);
        if !divides {
            return Err(Error::corrupt("the inner chunks of a shard do not divide it evenly")
                .expected(format_args!("divisors of {}", grid.shape()), grid.chunk_shape()));
        }
        let sharding = Self { grid, inner, index };
        if sharding.index_len_bytes() > CHUNK_LEN_MAX_BYTES {
            return Err(Error::new(ErrorKind::Limit, "a shard has too many inner chunks"));
        }
        Ok(sharding)
    }

    /// Reads the configuration in a zarr v3 document, for chunks like `outer`.
    pub fn from_v3(mut configuration: Members, outer: Decoded) -> Result<Self> {
        let inner_shape = Shape::new(configuration.dims("chunk_shape", 1)?)?;
        let codecs = configuration.required("codecs")?;
        let index_codecs = configuration.required("index_codecs")?;
        let is_at_start = match configuration.take("index_location") {
            None => false,
            Some(Value::String(text)) if text == "end" => false,
            Some(Value::String(text)) if text == "start" => true,
            Some(other) => return Err(configuration.bad("index_location", "\"start\" or \"end\"", &other)),
        };
        configuration.finish()?;
        // Check the grid before the inner chain, so that the error names a wrong rank.
        ChunkGrid::new(outer.shape.clone(), inner_shape.clone())?;
        let inner = CodecChain::from_v3(&codecs, outer.with_shape(inner_shape))?;
        let (endian, has_crc32c) = index_codecs_from_v3(&index_codecs)?;
        Self::with_index(outer.shape, inner, IndexLayout { endian, has_crc32c, is_at_start })
    }

    /// The codec in a zarr v3 document.
    pub fn to_v3(&self) -> Value {
        let mut index_codecs = vec![self.index.endian.to_v3(size_of::<u64>())];
        if self.index.has_crc32c {
            index_codecs.push(json!({"name": "crc32c"}));
        }
        let mut configuration = json!({
            "chunk_shape": self.inner_shape().dims(),
            "codecs": self.inner.to_v3(),
            "index_codecs": index_codecs,
        });
        if let (true, Some(members)) = (self.index.is_at_start, configuration.as_object_mut()) {
            members.insert("index_location".to_owned(), "start".into());
        }
        json!({"name": "sharding_indexed", "configuration": configuration})
    }

    /// The shape of each inner chunk.
    pub fn inner_shape(&self) -> &Shape {
        self.grid.chunk_shape()
    }

    /// The codecs of each inner chunk.
    pub fn inner(&self) -> &CodecChain {
        &self.inner
    }

    /// Whether inner chunks are shards themselves.
    pub fn is_nested(&self) -> bool {
        self.inner.has_shards()
    }

    /// Number of inner chunks.
    pub fn inner_count(&self) -> u64 {
        self.grid.counts().iter().product()
    }

    fn index_len_bytes(&self) -> u64 {
        let crc = if self.index.has_crc32c { crc32c::CRC32C_LEN_BYTES as u64 } else { 0 };
        self.inner_count().saturating_mul(ENTRY_LEN_BYTES).saturating_add(crc)
    }

    /// Decodes a whole shard into `out`, which is exactly as long as the outer chunk.
    pub fn decode_into(&self, stored: &[u8], out: &mut [u8], missing: Missing) -> Result<()> {
        let whole = Region::whole(self.grid.shape());
        let mut destination = Destination::new(self.inner.dtype(), &whole, out)?;
        self.read_into(&stored, &vec![0; whole.rank()], &mut destination, missing)
    }

    /// Reads and decodes only the inner chunks that `destination` needs. `origin` is the start of
    /// the shard in the destination's coordinates.
    pub fn read_into(
        &self,
        source: &dyn ByteSource,
        origin: &[u64],
        destination: &mut Destination<'_>,
        missing: Missing,
    ) -> Result<()> {
        let outer = Region::new(origin, self.grid.shape().dims())?;
        let Some(wanted) = destination.region().intersect(&outer) else { return Ok(()) };
        let wanted = wanted.relative_to(origin)?;
        let index = self.read_index(source)?;
        for (place, _) in self.grid.chunks(&wanted) {
            let local = self.grid.chunk(&place)?;
            let starts: Vec<u64> =
                local.starts().iter().zip(origin).map(|(start, base)| start + base).collect();
            let region = Region::new(starts, local.lens())?;
            match index.entry(self.linear(&place))? {
                Some((offset, len)) => source.visit(offset, len, &mut |stored| {
                    destination
                        .put_chunk(&region, &self.inner, stored, missing)
                        .map_err(|error| error.at_byte(0))
                })?,
                None if missing == Missing::Fill => destination.fill(&region, self.inner.fill())?,
                None => {
                    return Err(Error::corrupt(format!("inner chunk {place:?} of a shard is missing"))
                        .help("the array was saved incompletely; restore it from another checkpoint"));
                }
            }
        }
        Ok(())
    }

    /// The position of the only inner chunk of a shard: `(offset, length)` in bytes, `None` if the
    /// chunk is absent.
    pub fn only_inner(&self, source: &dyn ByteSource) -> Result<Option<(u64, u64)>> {
        self.read_index(source)?.entry(0)
    }

    /// Encodes a chunk: every inner chunk, whether or not it holds only the fill value.
    pub fn encode(&self, chunk: &[u8]) -> Result<Vec<u8>> {
        let index_len = self.index_len_bytes() as usize;
        let mut out = Vec::new();
        out.try_reserve(index_len + chunk.len()).map_err(|_| no_memory(chunk.len() as u64))?;
        out.resize(if self.index.is_at_start { index_len } else { 0 }, 0);
        let mut index = Vec::with_capacity(index_len);
        let mut entry = |number: usize| {
            let number = number as u64;
            index.extend(match self.index.endian {
                Endian::Little => number.to_le_bytes(),
                Endian::Big => number.to_be_bytes(),
            });
        };
        let outer_shape = self.grid.shape();
        let mut piece = buffer(self.inner.len_bytes())?;
        for (place, _) in self.grid.chunks(&Region::whole(outer_shape)) {
            let region = self.grid.chunk(&place)?;
            let origin = vec![0; region.rank()];
            let size = self.inner.dtype().size_bytes();
            copy_region(size, chunk, outer_shape, &region, &mut piece, self.inner_shape(), &origin)?;
            let stored = self.inner.encode(&piece)?;
            entry(out.len());
            entry(stored.len());
            out.try_reserve(stored.len()).map_err(|_| no_memory(stored.len() as u64))?;
            out.extend(stored);
        }
        if self.index.has_crc32c {
            index = crc32c::append(&index)?;
        }
        if self.index.is_at_start {
            out.splice(..index_len, index);
        } else {
            out.extend(index);
        }
        Ok(out)
    }

    fn read_index(&self, source: &dyn ByteSource) -> Result<ShardIndex> {
        let (shard_len, index_len) = (source.len_bytes(), self.index_len_bytes());
        let Some(after) = shard_len.checked_sub(index_len) else {
            return Err(Error::corrupt("a shard is shorter than its index")
                .expected(format_args!("at least {index_len} bytes"), shard_len));
        };
        let offset = if self.index.is_at_start { 0 } else { after };
        let mut entries = Vec::new();
        source.visit(offset, index_len, &mut |stored| {
            entries = if self.index.has_crc32c { crc32c::strip(stored)? } else { stored }.to_vec();
            Ok(())
        })?;
        Ok(ShardIndex {
            entries,
            endian: self.index.endian,
            offset_bytes: offset,
            shard_len_bytes: shard_len,
        })
    }

    fn linear(&self, place: &[u64]) -> u64 {
        place.iter().zip(self.grid.counts()).fold(0, |at, (i, count)| at * count + i)
    }
}

/// The index of one shard, after the check of its checksum.
struct ShardIndex {
    entries: Vec<u8>,
    endian: Endian,
    offset_bytes: u64,
    shard_len_bytes: u64,
}

impl ShardIndex {
    /// Offset and length of an inner chunk; `None` if it is absent.
    fn entry(&self, position: u64) -> Result<Option<(u64, u64)>> {
        let at = position * ENTRY_LEN_BYTES;
        let mut input = Cursor::new(self.entries.get(at as usize..).unwrap_or_default());
        let mut number = || -> Result<u64> {
            let bytes = input.array("an entry of a shard index")?;
            Ok(match self.endian {
                Endian::Little => u64::from_le_bytes(bytes),
                Endian::Big => u64::from_be_bytes(bytes),
            })
        };
        let (offset, len) = (number()?, number()?);
        if (offset, len) == (ABSENT, ABSENT) {
            return Ok(None);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.shard_len_bytes => Ok(Some((offset, len))),
            _ => Err(Error::corrupt(format!("inner chunk {position} of a shard is outside of it"))
                .at_byte(self.offset_bytes + at)
                .expected(
                    format_args!("a range inside {} bytes", self.shard_len_bytes),
                    format_args!("{len} bytes from byte {offset} on"),
                )),
        }
    }
}

/// Reads the codecs of the index: its endianness, and whether it has a crc32c. The index has a
/// fixed length, so no other codec is allowed.
fn index_codecs_from_v3(codecs: &Value) -> Result<(Endian, bool)> {
    // The index is an array of u64 of any shape; `bytes` and `crc32c` do not depend on the shape.
    let decoded = Decoded { shape: Shape::scalar(), dtype: Dtype::UInt64, fill: Vec::new() };
    for codec in codecs.as_array().into_iter().flatten() {
        let (name, _) = name_and_configuration(codec, "codec")?;
        if !matches!(name.as_str(), "bytes" | "crc32c") {
            return Err(Error::unsupported(format!("codec {name:?} for the index of a shard")));
        }
    }
    let chain = CodecChain::from_v3(codecs, decoded)?;
    match chain.bytes_codecs().len() {
        0 | 1 => Ok((chain.endian(), !chain.bytes_codecs().is_empty())),
        _ => Err(Error::unsupported(format!("the index codecs {} of a shard", brief(codecs)))),
    }
}

impl ArrayCodec {
    /// Shards of one shape, encoded as Orbax does.
    pub fn sharding(outer_shape: Shape, inner: CodecChain) -> Result<Self> {
        Ok(Self::Sharding(Box::new(Sharding::new(outer_shape, inner)?)))
    }
}
