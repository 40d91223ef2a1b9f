//! zarr arrays: how one leaf of an Orbax checkpoint is stored, as a metadata document and chunks.
//!
//! ```text
//! key                        value
//! params.kernel/.zarray      {"chunks":[3,4],"compressor":{"id":"zstd","level":1},...}            zarr v2
//! params.kernel/0.1          one chunk, encoded
//!
//! params.kernel/zarr.json    {"chunk_grid":{...},"codecs":[...],"data_type":"float32",...}         zarr v3
//! params.kernel/c/0/1        one chunk, encoded; Orbax writes it as a shard
//! ```
//!
//! The keys of an array with the empty name begin without a `/`. Keys and values are the same in a
//! folder and in an OCDBT database.
//!
//! | file | is |
//! |---|---|
//! | `mod` | [`ArrayMeta`]: the checked content of a document |
//! | `v2`, `v3`, `fill`, `json` | the two kinds of document, fill values in them, their JSON |
//! | `grid` | [`ChunkGrid`] and [`ChunkKeys`]: the chunks and their keys |
//! | `array`, `raw` | [`ZarrArray`]: reads regions of an array in a store |
//! | `destination` | the destination of decoded pieces |
//!
//! Source: zarr v2 and v3 core specifications; TensorStore 0.1.86 under Orbax 0.12.8 as observed.

use crate::array::{Dtype, Region, Shape};
use crate::codec::Compression;
use crate::codec::{ArrayCodec, BytesCodec, CodecChain, Decoded, Endian, Zstd};
use crate::error::{Error, ErrorKind, Result};

mod array;
mod destination;
mod fill;
mod grid;
pub mod json;
mod raw;
mod v2;
mod v3;

#[cfg(test)]
mod array_tests;
#[cfg(test)]
mod fixture_tests;

/// The document of an array in zarr v2.
pub const V2_DOCUMENT: &str = v2::METADATA_KEY;

/// The document of a group of arrays in zarr v2.
pub const V2_GROUP_DOCUMENT: &str = v2::GROUP_KEY;

/// The document of an array in zarr v3.
pub const V3_DOCUMENT: &str = v3::METADATA_KEY;

pub use array::LISTED_MIN;
pub use array::{Missing, ZarrArray};
pub use destination::Destination;
pub use grid::{ChunkGrid, ChunkKeys, Chunks};

/// The checked contents of an array's metadata document.
///
/// The type keeps these promises: shape and chunk shape have the same rank, every size fits in 63
/// bits, TensorStore knows the dtype, and this build decodes every codec.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrayMeta {
    version: Version,
    grid: ChunkGrid,
    keys: ChunkKeys,
    chain: CodecChain,
    /// Whether the document has a fill value; false for zarr v2's `null`, which reads as zero.
    has_fill: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V2,
    V3,
}

impl ArrayMeta {
    /// Whether chunks that are not stored have a fill value; false for zarr v2's `null`.
    pub fn has_fill(&self) -> bool {
        self.has_fill
    }

    /// Reads a `.zarray` document.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not a `.zarray` document, `Unsupported` for codecs, dtypes and
    /// fill values beyond this build, `Limit` for sizes beyond 63 bits.
    pub fn parse_v2(json: &[u8]) -> Result<Self> {
        v2::parse(json)
    }

    /// Reads a `zarr.json` document of an array.
    pub fn parse_v3(json: &[u8]) -> Result<Self> {
        v3::parse(json)
    }

    /// A zarr v2 array as Orbax writes it.
    ///
    /// # Errors
    /// `Unsupported` for a dtype that TensorStore lacks, `InvalidArgument` for a chunk shape of
    /// another rank or with a zero.
    pub fn v2(shape: Shape, dtype: Dtype, chunk_shape: Shape, compression: Compression) -> Result<Self> {
        let decoded = decoded(dtype, chunk_shape.clone())?;
        let grid = ChunkGrid::new(shape, chunk_shape).map_err(asked_for)?;
        let chain = plain_chain(decoded, compression)?;
        Ok(Self { version: Version::V2, grid, keys: ChunkKeys::V2, chain, has_fill: false })
    }

    /// A zarr v3 array as Orbax writes it: each chunk of shape `write_chunk` is a shard of inner
    /// chunks of shape `read_chunk`, with a checksum for the index.
    ///
    /// # Errors
    /// As [`v2`](Self::v2); also `InvalidArgument` if `read_chunk` does not divide `write_chunk`.
    pub fn v3_sharded(
        shape: Shape,
        dtype: Dtype,
        write_chunk: Shape,
        read_chunk: Shape,
        compression: Compression,
    ) -> Result<Self> {
        let outer = decoded(dtype, write_chunk.clone())?;
        let inner = plain_chain(outer.with_shape(read_chunk), compression)?;
        let grid = ChunkGrid::new(shape, write_chunk.clone()).map_err(asked_for)?;
        let sharding = ArrayCodec::sharding(write_chunk, inner).map_err(asked_for)?;
        let chain = CodecChain::new(outer, Vec::new(), sharding, Vec::new())?;
        Ok(Self { version: Version::V3, grid, keys: ChunkKeys::V3, chain, has_fill: true })
    }

    /// A zarr v3 array whose one chunk is its plain C-order bytes.
    pub fn v3_raw(shape: Shape, dtype: Dtype) -> Result<Self> {
        let at_least_one: Vec<u64> = shape.dims().iter().map(|&dim| dim.max(1)).collect();
        Self::v3(shape, dtype, Shape::new(at_least_one)?, Compression::None)
    }

    /// A zarr v3 array without shards.
    pub fn v3(shape: Shape, dtype: Dtype, chunk_shape: Shape, compression: Compression) -> Result<Self> {
        let meta = Self::v2(shape, dtype, chunk_shape, compression)?;
        Ok(Self { version: Version::V3, keys: ChunkKeys::V3, has_fill: true, ..meta })
    }

    /// The document, byte for byte as TensorStore writes it: compact, members sorted. Attributes
    /// and dimension names of a document that was read are not kept.
    pub fn to_json(&self) -> Vec<u8> {
        match self.version {
            Version::V2 => v2::write(self),
            Version::V3 => v3::write(self),
        }
    }

    /// The shape of the array.
    pub fn shape(&self) -> &Shape {
        self.grid.shape()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.chain.dtype()
    }

    /// The shape of a chunk of the grid, which has its own key; with shards, the shape of a shard.
    pub fn chunk_shape(&self) -> &Shape {
        self.grid.chunk_shape()
    }

    /// The shape of the smallest part that is read and decoded alone: an inner chunk, or without
    /// shards a chunk.
    pub fn inner_chunk_shape(&self) -> &Shape {
        self.chain.sharding().map_or(self.chunk_shape(), |sharding| sharding.inner_shape())
    }

    /// The grid of chunks.
    pub fn grid(&self) -> &ChunkGrid {
        &self.grid
    }

    /// 2 or 3.
    pub fn version(&self) -> u8 {
        match self.version {
            Version::V2 => 2,
            Version::V3 => 3,
        }
    }

    /// The key of the document, below the array's name.
    pub fn metadata_key(&self) -> &'static str {
        match self.version {
            Version::V2 => v2::METADATA_KEY,
            Version::V3 => v3::METADATA_KEY,
        }
    }

    /// The key of a chunk, below the array's name: `0.1`, `c/0/1`; of a scalar `0`, `c`.
    pub fn chunk_key(&self, index: &[u64]) -> String {
        self.keys.key(index)
    }

    /// The chunk of a key; `None` if the key does not belong to a chunk of this array.
    pub fn chunk_index(&self, key: &str) -> Option<Vec<u64>> {
        let index = self.keys.index(key, self.grid.shape().rank())?;
        self.grid.has(&index).then_some(index)
    }

    /// The chunks that `region` meets, in C order, each with its part of the array. At the upper
    /// edge, the part ends at the end of the array.
    pub fn chunk_indices(&self, region: &Region) -> Chunks<'_> {
        self.grid.chunks(region)
    }

    /// Bytes of a decoded chunk.
    pub fn chunk_len_bytes(&self) -> u64 {
        self.chain.len_bytes()
    }

    /// The bytes of one element that no chunk holds; zeros where zarr v2 says `null`.
    pub fn fill_value(&self) -> &[u8] {
        self.chain.fill()
    }

    /// Whether a stored chunk is the plain C-order little-endian bytes of the full chunk.
    pub fn is_raw(&self) -> bool {
        self.chain.is_raw()
    }

    /// How chunks are stored, for people: `raw`, `zstd`, `sharding_indexed(zstd)`.
    pub fn coding(&self) -> String {
        self.chain.coding()
    }

    /// Encodes a whole chunk in C order, little endian. The caller pads a chunk at the upper edge.
    ///
    /// # Errors
    /// `InvalidArgument` if `chunk` is not [`chunk_len_bytes`](Self::chunk_len_bytes) long or holds
    /// a bool other than 0 or 1, `Unsupported` for blosc.
    pub fn encode_chunk(&self, chunk: &[u8]) -> Result<Vec<u8>> {
        self.chain.encode(chunk)
    }

    /// Decodes a stored chunk to a whole chunk in C order, little endian. Absent inner chunks of a
    /// shard become the fill value.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not valid for the codecs, or decode to another length.
    pub fn decode_chunk(&self, stored: &[u8]) -> Result<Vec<u8>> {
        let mut chunk = Vec::new();
        self.chain.decode(stored, &mut chunk, Missing::Fill)?;
        Ok(chunk)
    }

    /// The codecs of a chunk.
    pub fn chain(&self) -> &CodecChain {
        &self.chain
    }
}

/// Whether TensorStore knows the dtype, so that a zarr array of Orbax can have it.
fn is_storable(dtype: Dtype) -> bool {
    !matches!(
        dtype,
        Dtype::UInt2 | Dtype::UInt4 | Dtype::Float8E4m3 | Dtype::Float6E2m3fn | Dtype::Float6E3m2fn
    )
}

/// The form of the chunks of a new array, with the fill value zero.
fn decoded(dtype: Dtype, shape: Shape) -> Result<Decoded> {
    if !is_storable(dtype) {
        return Err(Error::unsupported(format!("TensorStore has no zarr dtype {dtype}"))
            .help("store the leaf under another dtype, or in the default layout"));
    }
    Ok(Decoded { shape, dtype, fill: vec![0; dtype.size_bytes()] })
}

/// The codec `bytes`, followed by zstd if `compression` is zstd.
fn plain_chain(decoded: Decoded, compression: Compression) -> Result<CodecChain> {
    let codecs = match compression {
        Compression::None => Vec::new(),
        Compression::Zstd(level) => vec![BytesCodec::Zstd(Zstd::new(level)?)],
    };
    CodecChain::new(decoded, Vec::new(), ArrayCodec::Bytes(Endian::Little), codecs)
}

/// Turns `Corrupt` into `InvalidArgument`, because the values come from a caller, not from a
/// document.
fn asked_for(error: Error) -> Error {
    if error.kind() != ErrorKind::Corrupt {
        return error;
    }
    let asked = Error::invalid(error.what());
    match error.expected_found() {
        Some((expected, found)) => asked.expected(expected, found),
        None => asked,
    }
}
