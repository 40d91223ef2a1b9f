//! Codecs: the reversible steps between an array and the stored bytes of one of its chunks.
//!
//! ```text
//! chunk of the array          transpose            bytes or              zstd, gzip, zlib,
//! (C order, little endian) -> (any number)  ->  sharding_indexed  ->  blosc, crc32c (any number) -> stored bytes
//!                             array to array    array to bytes        bytes to bytes
//! ```
//!
//! zarr v3 lists the steps by name. zarr v2 has the same steps in another form: `order` F is a
//! transpose, a `>` dtype is the `bytes` codec with `endian` big, and the compressor is the only
//! bytes-to-bytes step.
//!
//! | file | step | writes |
//! |---|---|---|
//! | `bytes_codec` | elements to bytes, in an endianness | yes |
//! | `sharding` | many inner chunks and their index in one value | yes |
//! | `transpose` | another order of the axes | yes |
//! | `zstd`, `gzip` (and zlib) | compression | yes |
//! | `blosc` (and `blosclz`) | compression, as zarr v2 had it by default | no |
//! | `crc32c` | checksum at the end | yes |
//!
//! `CodecChain` holds the steps of one array. A new codec needs a file and a variant of
//! `BytesCodec`. Source: zarr v3 core, "Codecs", and the specification of each codec.

use serde_json::{Map, Value, json};

use crate::bytes::pages::zeroed;
use crate::error::{Error, ErrorKind, Result};
use crate::zarr::json::Members;

mod blosc;
mod blosclz;
pub mod bytes_codec;
mod chain;
mod crc32c;
mod gzip;
mod sharding;
mod transpose;
mod zstd;

pub use crate::bytes::zstd::Zstd;
pub use blosc::Blosc;
pub use bytes_codec::Endian;
pub use chain::{ArrayCodec, CodecChain, Decoded, name_and_configuration};
pub use gzip::{Deflate, Wrapper};
pub use sharding::{ByteSource, Sharding};
pub use transpose::Order;

/// A codec from bytes to bytes. This enum is the only list of these codecs.
#[derive(Debug, Clone, PartialEq)]
pub enum BytesCodec {
    /// One zstd frame.
    Zstd(Zstd),
    /// gzip or zlib.
    Deflate(Deflate),
    /// A blosc frame; read only.
    Blosc(Blosc),
    /// The bytes and their crc32c.
    Crc32c,
}

impl BytesCodec {
    /// The codec of a zarr v3 document. `Unsupported` for an unknown name or member.
    pub fn from_v3(name: &str, mut configuration: Members) -> Result<Self> {
        let codec = match name {
            "zstd" => Self::Zstd(zstd::from_members(&mut configuration, 3)?),
            "gzip" => Self::Deflate(Deflate::from_members(&mut configuration, Wrapper::Gzip, 6)?),
            "blosc" => Self::Blosc(Blosc::from_members(&mut configuration)),
            "crc32c" => Self::Crc32c,
            other => return Err(unknown(other)),
        };
        configuration.finish()?;
        Ok(codec)
    }

    /// The compressor of a zarr v2 document. `Unsupported` for an unknown id or member.
    pub fn from_v2(mut members: Members) -> Result<Self> {
        let id = members.required_text("id")?;
        let codec = match id.as_str() {
            "zstd" => Self::Zstd(zstd::from_members(&mut members, 1)?),
            "gzip" => Self::Deflate(Deflate::from_members(&mut members, Wrapper::Gzip, 1)?),
            "zlib" => Self::Deflate(Deflate::from_members(&mut members, Wrapper::Zlib, 1)?),
            "blosc" => Self::Blosc(Blosc::from_members(&mut members)),
            other => return Err(unknown(other)),
        };
        members.finish()?;
        Ok(codec)
    }

    /// The codec in a zarr v3 document.
    pub fn to_v3(&self) -> Value {
        let configuration = match self {
            Self::Zstd(codec) => json!({"level": codec.level, "checksum": codec.checksum}),
            Self::Deflate(codec) => json!({"level": codec.level}),
            Self::Blosc(codec) => Value::Object(codec.configuration.clone()),
            Self::Crc32c => return json!({"name": self.name()}),
        };
        json!({"name": self.name(), "configuration": configuration})
    }

    /// The compressor in a zarr v2 document.
    pub fn to_v2(&self) -> Value {
        let mut members = match self {
            Self::Zstd(codec) => Map::from_iter([("level".to_owned(), codec.level.into())]),
            Self::Deflate(codec) => Map::from_iter([("level".to_owned(), codec.level.into())]),
            Self::Blosc(codec) => codec.configuration.clone(),
            Self::Crc32c => Map::new(),
        };
        members.insert("id".to_owned(), self.name().into());
        Value::Object(members)
    }

    /// The codec's name in documents, the same in both versions.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Zstd(_) => "zstd",
            Self::Deflate(codec) => codec.wrapper.name(),
            Self::Blosc(_) => "blosc",
            Self::Crc32c => "crc32c",
        }
    }

    /// The most bytes that any `stored_len_bytes` can decode to.
    pub fn decoded_len_max_bytes(&self, stored_len_bytes: u64) -> u64 {
        match self {
            Self::Zstd(_) | Self::Blosc(_) => zstd::decoded_len_max_bytes(stored_len_bytes),
            Self::Deflate(_) => gzip::decoded_len_max_bytes(stored_len_bytes),
            Self::Crc32c => stored_len_bytes,
        }
    }

    /// Decodes into `out`, which the content must fill exactly.
    pub fn decode_into(&self, stored: &[u8], out: &mut [u8]) -> Result<()> {
        match self {
            Self::Zstd(_) => zstd::decode_into(stored, out),
            Self::Deflate(codec) => codec.decode_into(stored, out),
            Self::Blosc(_) => blosc::decode_into(stored, out),
            Self::Crc32c => copy_exact(crc32c::strip(stored)?, out),
        }
    }

    /// Decodes to at most `max_bytes`, for a codec whose result another codec decodes.
    pub fn decode_at_most(&self, stored: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
        match self {
            Self::Zstd(_) => zstd::decode_at_most(stored, max_bytes),
            Self::Deflate(codec) => codec.decode_at_most(stored, max_bytes),
            Self::Blosc(_) => {
                let mut out = buffer(blosc::decoded_len_bytes(stored)?.min(max_bytes))?;
                blosc::decode_into(stored, &mut out)?;
                Ok(out)
            }
            Self::Crc32c => Ok(crc32c::strip(stored)?.to_vec()),
        }
    }

    /// Encodes, except with blosc, which is `Unsupported`.
    pub fn encode(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Zstd(codec) => codec.encode(bytes),
            Self::Deflate(codec) => codec.encode(bytes),
            Self::Blosc(_) => {
                Err(Error::unsupported("regrow reads the codec \"blosc\" but does not write it")
                    .help("write with zstd or without compression"))
            }
            Self::Crc32c => crc32c::append(bytes),
        }
    }
}

fn unknown(name: &str) -> Error {
    Error::unsupported(format!("codec {name:?} is not known")).help(
        "open the array with the library that wrote it, then save it with zstd or without \
            compression",
    )
}

/// Compression of array data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Raw bytes.
    None,
    /// zstd at a level, -131072 to 22.
    Zstd(i32),
}

/// `len_bytes` zeros. Returns an error instead of aborting if the memory is too small.
pub fn buffer(len_bytes: u64) -> Result<Vec<u8>> {
    zeroed(len_bytes).ok_or_else(|| no_memory(len_bytes))
}

/// Makes `buffer` exactly `len_bytes` long, with any content.
pub fn resize(buffer: &mut Vec<u8>, len_bytes: u64) -> Result<()> {
    let len = usize::try_from(len_bytes).map_err(|_| no_memory(len_bytes))?;
    buffer.try_reserve_exact(len.saturating_sub(buffer.len())).map_err(|_| no_memory(len_bytes))?;
    buffer.resize(len, 0);
    Ok(())
}

/// A copy of these bytes. Returns an error instead of aborting if the memory is too small.
pub fn copied(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    out.try_reserve_exact(bytes.len()).map_err(|_| no_memory(bytes.len() as u64))?;
    out.extend_from_slice(bytes);
    Ok(out)
}

fn no_memory(len_bytes: u64) -> Error {
    Error::new(ErrorKind::Limit, format!("there is no memory for a chunk of {len_bytes} bytes"))
        .help("free some memory, or read fewer leaves or slices")
}

/// Copies bytes that must be exactly as long as `out`.
pub fn copy_exact(bytes: &[u8], out: &mut [u8]) -> Result<()> {
    if bytes.len() != out.len() {
        return Err(wrong_len(out.len() as u64, bytes.len() as u64));
    }
    out.copy_from_slice(bytes);
    Ok(())
}

/// The error for a chunk whose length does not fit its shape and dtype.
pub fn wrong_len(expected_bytes: u64, found_bytes: u64) -> Error {
    Error::corrupt("its size is not that of the chunk shape")
        .expected(format_args!("{expected_bytes} bytes"), format_args!("{found_bytes} bytes"))
}
