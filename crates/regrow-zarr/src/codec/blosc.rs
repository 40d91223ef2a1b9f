//! The codec `blosc`: zarr v2's default outside Orbax. Read only.
//!
//! ```text
//! | 2 | codec's version | flags | typesize | u32le content | u32le block | u32le frame |    16 bytes
//! | u32le offset of each block | blocks: for each split, u32le length and its bytes |
//! ```
//!
//! Flags: 1 bytes shuffled, 2 content uncompressed after the header, 4 bits shuffled, 16 blocks not
//! split; the top three bits are the compressor. Without flag 16, a full block of at least 128
//! elements of at most 16 bytes is split into one stream for each byte of an element. A stream as
//! long as its content is uncompressed. The frame has everything that a reader needs, so regrow
//! keeps the configuration of the document without using it. Source: c-blosc 1,
//! `README_CHUNK_FORMAT.rst` and `blosc.c`.

use serde_json::{Map, Value};

use super::gzip::{Deflate, Wrapper};
use super::{blosclz, buffer, copy_exact, wrong_len, zstd};
use crate::bytes::Cursor;
use crate::error::{Error, Result};
use crate::zarr::json::Members;

const FORMAT_VERSION: u8 = 2;
const HEADER_LEN_BYTES: usize = 16;
const FLAG_SHUFFLE: u8 = 1;
const FLAG_STORED: u8 = 2;
const FLAG_BIT_SHUFFLE: u8 = 4;
const FLAG_NOT_SPLIT: u8 = 16;

/// Elements wider than this are never split.
const SPLITS_MAX: usize = 16;
/// Blocks of fewer elements than this are never split.
const SPLIT_LEN_MIN_ELEMENTS: usize = 128;

/// The codec's configuration, which a reader does not need.
#[derive(Debug, Clone, PartialEq)]
pub struct Blosc {
    /// The configuration as the document states it.
    pub configuration: Map<String, Value>,
}

impl Blosc {
    /// Takes all members of a codec's configuration.
    pub fn from_members(members: &mut Members) -> Self {
        Self { configuration: members.take_rest() }
    }
}

/// The first 16 bytes of a frame, checked against its length.
struct Header {
    flags: u8,
    typesize: usize,
    content_len: usize,
    block_len: usize,
}

impl Header {
    fn parse(input: &mut Cursor<'_>) -> Result<Self> {
        let frame_len = input.remaining_bytes();
        let version = input.u8("the blosc header")?;
        if version != FORMAT_VERSION {
            return Err(Error::unsupported(format!("blosc format version {version}"))
                .at_byte(0)
                .expected(FORMAT_VERSION, version));
        }
        let _compressor_version = input.u8("the blosc header")?;
        let flags = input.u8("the blosc header")?;
        let typesize = usize::from(input.u8("the blosc header")?);
        let content_len = input.u32le("the blosc header")? as usize;
        let block_len = input.u32le("the blosc header")? as usize;
        let stated_len = input.u32le("the blosc header")? as usize;
        if stated_len != frame_len {
            return Err(Error::corrupt("the length of its blosc frame differs from its header")
                .expected(format_args!("{stated_len} bytes"), frame_len));
        }
        if typesize == 0 || block_len > content_len || (block_len == 0 && content_len > 0) {
            return Err(input.corrupt("its blosc header is not valid"));
        }
        Ok(Self { flags, typesize, content_len, block_len })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The number of streams in a block of `len` bytes.
    fn splits(&self, len: usize) -> usize {
        let splits = !self.has(FLAG_NOT_SPLIT)
            && self.typesize <= SPLITS_MAX
            && len / self.typesize >= SPLIT_LEN_MIN_ELEMENTS
            && len == self.block_len;
        if splits { self.typesize } else { 1 }
    }
}

pub fn decoded_len_bytes(stored: &[u8]) -> Result<u64> {
    Ok(Header::parse(&mut Cursor::new(stored))?.content_len as u64)
}

/// Decodes one frame into `out`, which it must fill exactly.
pub fn decode_into(stored: &[u8], out: &mut [u8]) -> Result<()> {
    let mut input = Cursor::new(stored);
    let header = Header::parse(&mut input)?;
    if header.content_len != out.len() {
        return Err(wrong_len(out.len() as u64, header.content_len as u64));
    }
    if header.has(FLAG_STORED) {
        return copy_exact(input.rest(), out);
    }
    if out.is_empty() {
        return Ok(());
    }
    let is_shuffled = header.has(FLAG_SHUFFLE) && header.typesize > 1;
    let is_bit_shuffled = !is_shuffled && header.has(FLAG_BIT_SHUFFLE) && header.block_len >= header.typesize;
    let mut shuffled = buffer(if is_shuffled || is_bit_shuffled { header.block_len as u64 } else { 0 })?;
    for block in out.chunks_mut(header.block_len) {
        let offset = input.u32le("the blosc block offsets")? as usize;
        let start = stored.get(offset..).filter(|_| offset >= HEADER_LEN_BYTES);
        let start = start.ok_or_else(|| input.corrupt("a blosc block is outside its frame"))?;
        let mut streams = Cursor::new(start);
        let decoded = match shuffled.get_mut(..block.len()) {
            Some(shuffled) if is_shuffled || is_bit_shuffled => {
                decode_block(&header, &mut streams, shuffled)?;
                if is_shuffled {
                    unshuffle(header.typesize, shuffled, block);
                } else {
                    unshuffle_bits(header.typesize, shuffled, block);
                }
                Ok(())
            }
            _ => decode_block(&header, &mut streams, block),
        };
        decoded.map_err(|error| error.shift(offset as u64))?;
    }
    Ok(())
}

fn decode_block(header: &Header, streams: &mut Cursor<'_>, out: &mut [u8]) -> Result<()> {
    let splits = header.splits(out.len());
    let split_len = out.len() / splits;
    if split_len * splits != out.len() {
        return Err(streams.corrupt("a blosc block does not have whole elements"));
    }
    for split in out.chunks_mut(split_len) {
        let stored_len = streams.u32le("the length of a blosc stream")? as usize;
        let stored = streams.take(stored_len, "a blosc stream")?;
        if stored_len == split.len() {
            split.copy_from_slice(stored);
        } else {
            decompress(header.flags >> 5, stored, split)?;
        }
    }
    Ok(())
}

fn decompress(compressor: u8, stored: &[u8], out: &mut [u8]) -> Result<()> {
    let failed = |what: &dyn std::fmt::Display| {
        Error::corrupt(format!("a stream of its blosc frame does not decompress: {what}"))
    };
    let len = match compressor {
        0 => blosclz::decode_into(stored, out)?,
        1 => lz4_flex::block::decompress_into(stored, out).map_err(|error| failed(&error))?,
        2 => {
            let len = snap::raw::decompress_len(stored).map_err(|error| failed(&error))?;
            if len != out.len() {
                return Err(wrong_len(out.len() as u64, len as u64));
            }
            snap::raw::Decoder::new().decompress(stored, out).map_err(|error| failed(&error))?
        }
        3 => {
            Deflate { wrapper: Wrapper::Zlib, level: 0 }.decode_into(stored, out)?;
            out.len()
        }
        4 => {
            zstd::decode_into(stored, out)?;
            out.len()
        }
        other => return Err(Error::unsupported(format!("compressor {other} inside the codec \"blosc\""))),
    };
    if len != out.len() {
        return Err(wrong_len(out.len() as u64, len as u64));
    }
    Ok(())
}

/// Reverses blosc's byte shuffle, which stores the first bytes of all elements, then the second
/// bytes, and so on. Bytes after the last whole element are not moved.
fn unshuffle(typesize: usize, shuffled: &[u8], out: &mut [u8]) {
    let count = out.len() / typesize;
    let (planes, tail) = shuffled.split_at(count * typesize);
    let (elements, out_tail) = out.split_at_mut(count * typesize);
    out_tail.copy_from_slice(tail);
    for (place, plane) in planes.chunks_exact(count.max(1)).enumerate() {
        for (element, &byte) in elements.chunks_exact_mut(typesize).zip(plane) {
            if let Some(slot) = element.get_mut(place) {
                *slot = byte;
            }
        }
    }
}

/// Reverses blosc's bit shuffle, which stores the lowest bits of the first bytes of all elements,
/// then the second bits, and so on. Blosc shuffles bits only in blocks whose number of elements is
/// a multiple of eight.
fn unshuffle_bits(typesize: usize, shuffled: &[u8], out: &mut [u8]) {
    let count = out.len() / typesize;
    if !count.is_multiple_of(8) {
        out.copy_from_slice(shuffled);
        return;
    }
    let (planes, tail) = shuffled.split_at(count * typesize);
    let (elements, out_tail) = out.split_at_mut(count * typesize);
    out_tail.copy_from_slice(tail);
    elements.fill(0);
    for (row, plane) in planes.chunks_exact((count / 8).max(1)).enumerate() {
        let (place, bit) = (row / 8, row % 8);
        for (eight, &bits) in elements.chunks_exact_mut(typesize * 8).zip(plane) {
            for (i, element) in eight.chunks_exact_mut(typesize).enumerate() {
                if let Some(slot) = element.get_mut(place) {
                    *slot |= (bits >> i & 1) << bit;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        decode_into(stored, &mut out).map(|()| out)
    }

    /// A frame of TensorStore with six bytes: too few to compress, so the frame stores them
    /// uncompressed.
    const STORED: [u8; 22] = [2, 1, 0x36, 1, 6, 0, 0, 0, 6, 0, 0, 0, 22, 0, 0, 0, 0, 1, 2, 3, 4, 5];

    #[test]
    fn reads_a_stored_frame_and_refuses_other_sizes() {
        assert_eq!(decode(&STORED, 6).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(decode(&STORED, 7).unwrap_err().kind(), ErrorKind::Corrupt);
        for cut in 0..STORED.len() {
            assert!(decode(&STORED[..cut], 6).is_err(), "{cut}");
        }
        let mut other_version = STORED;
        other_version[0] = 5;
        assert_eq!(decode(&other_version, 6).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_result(
            flags: u8, typesize in 1_u8..5, block in 0_u32..70, body in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let mut frame = vec![2, 1, flags, typesize, 64, 0, 0, 0];
            frame.extend(block.to_le_bytes());
            frame.extend((16 + body.len() as u32).to_le_bytes());
            frame.extend(body);
            let _ = decode(&frame, 64);
        }
    }
}
