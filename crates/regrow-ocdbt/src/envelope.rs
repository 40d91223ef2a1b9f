//! The frame that manifests, version tree nodes and B+tree nodes share.
//!
//! ```text
//! | magic u32be | length u64le | format version | compression | body            | crc32c u32le |
//! |<-- 4 bytes->|<-- 8 bytes ->|<- varint, 0 -->|<- varint -->|<- plain, zstd ->|<-- 4 bytes ->|
//! |<------------------------------ length bytes, what the checksum covers ... -> |             |
//! ```
//!
//! The length counts everything. The checksum covers everything before it, also the compressed
//! body, so the parser reads only checked bytes. A zstd body is exactly one frame. The reader does
//! not trust the size that a frame states, and a frame may state none. So the reader decompresses
//! the frame as a stream with an upper limit.

use bytes::Bytes;
use zstd::zstd_safe::{self, DCtx, InBuffer, OutBuffer};

use crate::bytes::checksum::{Crc32c, crc32c};
use crate::bytes::limits::OCDBT_NODE_LEN_MAX_BYTES;
use crate::bytes::varint::write_varint;
use crate::bytes::zstd::Zstd;
use crate::error::{Error, Result};
use crate::text::counted;
use regrow_store::{ByteRange, Store, StoreExt};

use super::fields::Fields;
use super::rule::{Rule, relocate};

const LENGTH_OFFSET: usize = size_of::<u32>();
const VERSION_OFFSET: usize = LENGTH_OFFSET + size_of::<u64>();
const CRC_LEN_BYTES: usize = size_of::<u32>();
/// The shortest structure: magic, length, checksum.
const LEN_MIN_BYTES: usize = VERSION_OFFSET + CRC_LEN_BYTES;

const FORMAT_VERSION: u64 = 0;
const COMPRESSION_NONE: u64 = 0;
const COMPRESSION_ZSTD: u64 = 1;

/// The length of the pieces of decompressed output. The limit is checked after each piece.
const PIECE_LEN_BYTES: usize = 128 << 10;

/// The three structures that have this frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Structure {
    Manifest,
    VersionNode,
    BtreeNode,
}

impl Structure {
    /// The first four bytes, stored big endian. They never change.
    fn magic(self) -> u32 {
        match self {
            Self::Manifest => 0x0cdb_3a2a,
            Self::VersionNode => 0x0cdb_1234,
            Self::BtreeNode => 0x0cdb_20de,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Manifest => "OCDBT manifest",
            Self::VersionNode => "OCDBT version tree node",
            Self::BtreeNode => "OCDBT B+tree node",
        }
    }
}

/// A body that has passed its checksum, decompressed.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Bytes,
    /// The offset of the body within the structure.
    start_bytes: u64,
    compressed: bool,
}

impl Body {
    /// Checks length, magic, length field, checksum, version and compression, in this order.
    ///
    /// Offsets of errors count from the start of `stored`.
    pub(super) fn open(stored: &Bytes, structure: Structure, decoded_len_max_bytes: u64) -> Result<Self> {
        let name = structure.name();
        if stored.len() < LEN_MIN_BYTES {
            return Err(Rule::Short
                .error(format_args!("{name} is cut short"))
                .expected(format_args!("at least {LEN_MIN_BYTES} bytes"), stored.len()));
        }
        if stored.len() as u64 > OCDBT_NODE_LEN_MAX_BYTES {
            return Err(Rule::Limit
                .error(format_args!("{name} is too large"))
                .expected(format_args!("at most {OCDBT_NODE_LEN_MAX_BYTES} bytes"), stored.len()));
        }
        let (covered, crc) = stored.split_at(stored.len() - CRC_LEN_BYTES);
        let mut header = Fields::new(covered);
        read_start(&mut header, structure, stored.len() as u64)?;
        compare_crc(crc, crc32c(covered), structure)?;
        let version = header.v32("format version")?;
        if u64::from(version) != FORMAT_VERSION {
            return Err(Rule::Version
                .error(format_args!("{name} has format version {version}"))
                .at_byte(VERSION_OFFSET as u64)
                .expected(FORMAT_VERSION, version));
        }
        let compression = header.v32("compression format")?;
        let start_bytes = header.offset_bytes();
        let body = stored.slice(start_bytes as usize..covered.len());
        match u64::from(compression) {
            COMPRESSION_NONE => Ok(Self { bytes: body, start_bytes, compressed: false }),
            COMPRESSION_ZSTD => {
                let bytes =
                    unzstd(&body, decoded_len_max_bytes).map_err(|error| error.at_byte(start_bytes))?;
                Ok(Self { bytes: bytes.into(), start_bytes, compressed: true })
            }
            _ => Err(Rule::Compression
                .error(format_args!("{name} has compression format {compression}"))
                .at_byte(start_bytes - 1)
                .expected("0 (none) or 1 (zstd)", compression)),
        }
    }

    pub(super) fn parse<'a, T>(&'a self, read: impl FnOnce(&mut Fields<'a>) -> Result<T>) -> Result<T> {
        let mut input = Fields::new(&self.bytes);
        let value = read(&mut input).and_then(|value| input.end().map(|()| value));
        value.map_err(|error| self.place(error))
    }

    fn place(&self, error: Error) -> Error {
        match error.place().offset_bytes {
            // An offset in the decompressed body is no offset in the file. So name the start of
            // the zstd frame, and add the offset in the body.
            Some(inside) if self.compressed => {
                relocate(error, self.start_bytes, format_args!("at byte {inside} of the decompressed body"))
            }
            Some(_) => error.shift(self.start_bytes),
            None => error,
        }
    }
}

/// Reads magic and length field of a structure of `len_bytes`.
fn read_start(header: &mut Fields<'_>, structure: Structure, len_bytes: u64) -> Result<()> {
    let name = structure.name();
    let magic = u32::from_be_bytes(header.array("magic number")?);
    if magic != structure.magic() {
        return Err(Rule::Magic
            .error(format_args!("this is not a {name}"))
            .at_byte(0)
            .expected(format_args!("magic number {:08x}", structure.magic()), format_args!("{magic:08x}")));
    }
    let length = header.u64le("length")?;
    if length != len_bytes {
        return Err(Rule::Length
            .error(format_args!("the length of {name} differs from its length field"))
            .at_byte(LENGTH_OFFSET as u64)
            .expected(format_args!("{length} bytes"), len_bytes));
    }
    Ok(())
}

fn compare_crc(stored: &[u8], found: u32, structure: Structure) -> Result<()> {
    let expected = stored.try_into().map_or(0, u32::from_le_bytes);
    if expected == found {
        return Ok(());
    }
    Err(Rule::Crc
        .error(format_args!("{} fails its crc32c", structure.name()))
        .at_byte(0)
        .expected(format_args!("{expected:08x}"), format_args!("{found:08x}")))
}

/// From this length on, the start and the checksum are checked before memory for the whole
/// structure is allocated, because a sparse file may claim any length.
const LOOKED_AT_LEN_MIN_BYTES: u64 = 4 << 20;

/// The bytes of a structure that is the whole value at `key`; `None` if the store lacks the key.
pub(super) fn fetch(store: &dyn Store, key: &[u8], structure: Structure) -> Result<Option<Bytes>> {
    match store.len_bytes(key)? {
        Some(len_bytes @ LOOKED_AT_LEN_MIN_BYTES..) => {
            let read = |offset_bytes, len_bytes| {
                let range = ByteRange::Span { offset_bytes, len_bytes };
                // If the file disappears after the look at its length, this read is empty, and
                // `look` returns an error.
                Ok(store.get(key, range)?.unwrap_or_default())
            };
            look(&read, len_bytes, structure).map_err(|error| error.in_file(store.describe(key)))?;
        }
        Some(_) => {}
        None => return Ok(None),
    }
    store.get_whole(key)
}

/// Checks the start and the checksum of a long structure, without keeping its bytes. `read` gets an
/// offset and a length, and returns these bytes of the structure.
pub(super) fn look(
    read: &dyn Fn(u64, u64) -> Result<Bytes>,
    len_bytes: u64,
    structure: Structure,
) -> Result<()> {
    if len_bytes < LOOKED_AT_LEN_MIN_BYTES {
        return Ok(());
    }
    if len_bytes > OCDBT_NODE_LEN_MAX_BYTES {
        return Err(Rule::Limit
            .error(format_args!("{} is too large", structure.name()))
            .expected(format_args!("at most {OCDBT_NODE_LEN_MAX_BYTES} bytes"), len_bytes));
    }
    let start = read(0, VERSION_OFFSET as u64)?;
    read_start(&mut Fields::new(&start), structure, len_bytes)?;
    let covered = len_bytes - CRC_LEN_BYTES as u64;
    let mut crc = Crc32c::new();
    for at in (0..covered).step_by(PIECE_LEN_BYTES) {
        crc.update(&read(at, (PIECE_LEN_BYTES as u64).min(covered - at))?);
    }
    compare_crc(&read(covered, CRC_LEN_BYTES as u64)?, crc.value(), structure)
}

/// Appends `body` to `out` in its frame, compressed where a level is given; returns the structure's
/// length.
pub(super) fn seal(
    out: &mut Vec<u8>,
    structure: Structure,
    body: &[u8],
    zstd_level: Option<i32>,
) -> Result<u64> {
    let start = out.len();
    out.extend_from_slice(&structure.magic().to_be_bytes());
    out.extend_from_slice(&[0; VERSION_OFFSET - LENGTH_OFFSET]);
    write_varint(out, FORMAT_VERSION);
    match zstd_level {
        None => {
            write_varint(out, COMPRESSION_NONE);
            out.extend_from_slice(body);
        }
        Some(level) => {
            write_varint(out, COMPRESSION_ZSTD);
            let frame = Zstd::new(level).and_then(|zstd| zstd.encode(body)).map_err(|error| {
                let what = format!(
                    "zstd cannot compress an {} at level {level}: {}",
                    structure.name(),
                    error.what()
                );
                error.reworded(what)
            })?;
            out.extend_from_slice(&frame);
        }
    }
    let len_bytes = (out.len() - start + CRC_LEN_BYTES) as u64;
    if let Some(length) = out.get_mut(start + LENGTH_OFFSET..start + VERSION_OFFSET) {
        length.copy_from_slice(&len_bytes.to_le_bytes());
    }
    let crc = crc32c(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(len_bytes)
}

/// Decompresses exactly one frame of at most `len_max_bytes`.
fn unzstd(frame: &[u8], len_max_bytes: u64) -> Result<Vec<u8>> {
    let damaged = |code| {
        let name = zstd_safe::get_error_name(code);
        Rule::Zstd.error(format_args!("the zstd frame is damaged: {name}"))
    };
    let no_memory = || Rule::Limit.error("there is no memory to decompress the zstd frame");
    let mut context = DCtx::try_create().ok_or_else(no_memory)?;
    let mut out = Vec::new();
    let mut piece = vec![0; PIECE_LEN_BYTES.min(frame.len().saturating_mul(8)).max(64)];
    let mut rest = frame;
    loop {
        let mut input = InBuffer::around(rest);
        let mut output = OutBuffer::around(piece.as_mut_slice());
        let hint = context.decompress_stream(&mut output, &mut input).map_err(damaged)?;
        let (read, written) = (input.pos(), output.pos());
        rest = rest.get(read..).unwrap_or_default();
        out.try_reserve(written).map_err(|_| no_memory())?;
        out.extend_from_slice(piece.get(..written).unwrap_or_default());
        if out.len() as u64 > len_max_bytes {
            return Err(Rule::Limit
                .error("the zstd frame holds too much")
                .expected(format_args!("at most {len_max_bytes} bytes"), "more"));
        }
        if hint == 0 {
            break;
        }
        if read == 0 && written == 0 {
            return Err(Rule::Zstd.error("the zstd frame is incomplete"));
        }
    }
    if rest.is_empty() {
        return Ok(out);
    }
    Err(Rule::Trailing.error(format_args!(
        "{} left over after the zstd frame",
        counted(rest.len(), "byte is", "bytes are")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(body: &[u8], zstd_level: Option<i32>) -> Vec<u8> {
        let mut out = Vec::new();
        assert_eq!(seal(&mut out, Structure::BtreeNode, body, zstd_level).unwrap(), out.len() as u64);
        out
    }

    fn rule_of(bytes: Vec<u8>) -> Option<Rule> {
        Rule::of(&Body::open(&bytes.into(), Structure::BtreeNode, 1 << 20).unwrap_err())
    }

    proptest! {
        #[test]
        fn a_body_comes_back(body: Vec<u8>, level in proptest::option::of(-5..4_i32)) {
            let stored = Bytes::from(sealed(&body, level));
            prop_assert_eq!(Body::open(&stored, Structure::BtreeNode, 1 << 20).unwrap().bytes, &body[..]);
        }

        #[test]
        fn every_flipped_bit_is_seen(at: proptest::sample::Index, bit in 0..8_u8, level in proptest::option::of(1..2_i32)) {
            let mut bytes = sealed(b"a body of some length", level);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(Body::open(&bytes.into(), Structure::BtreeNode, 1 << 20).is_err());
        }
    }

    #[test]
    fn the_checks_come_in_order() {
        let bytes = sealed(b"body", None);
        assert_eq!(rule_of(bytes[..15].to_vec()), Some(Rule::Short));
        assert_eq!(rule_of(bytes[..19].to_vec()), Some(Rule::Length));
        let mut other = Vec::new();
        seal(&mut other, Structure::Manifest, b"body", None).unwrap();
        assert_eq!(rule_of(other), Some(Rule::Magic));
    }

    #[test]
    fn a_structure_has_a_least_length() {
        // Cut to the least length, the structure differs from its length field. One byte less is
        // too short.
        let mut least = sealed(b"", None);
        least.truncate(LEN_MIN_BYTES);
        assert_eq!(rule_of(least[..LEN_MIN_BYTES - 1].to_vec()), Some(Rule::Short));
        assert_eq!(rule_of(least), Some(Rule::Length));
    }

    /// Untouched zeros take no memory, except under valgrind.
    #[test]
    fn a_vast_structure_is_refused() {
        let most = OCDBT_NODE_LEN_MAX_BYTES as usize;
        assert_eq!(rule_of(vec![0; most + 1]), Some(Rule::Limit));
        assert_eq!(rule_of(vec![0; most]), Some(Rule::Magic));
    }

    #[test]
    fn an_error_in_a_body_says_where_the_file_has_it() {
        let fails = |level| {
            let body = Body::open(&sealed(b"body", level).into(), Structure::BtreeNode, 1 << 20).unwrap();
            body.parse(|input| {
                input.u8("first")?;
                Err::<(), Error>(input.fail(Rule::Btree, "it fails"))
            })
            .unwrap_err()
        };
        let plain = fails(None);
        assert_eq!(plain.place().offset_bytes, Some(VERSION_OFFSET as u64 + 2 + 1));
        assert!(!plain.to_string().contains("decompressed"), "{plain}");
        let compressed = fails(Some(1));
        assert_eq!(compressed.place().offset_bytes, Some(VERSION_OFFSET as u64 + 2));
        assert!(compressed.to_string().contains("at byte 1 of the decompressed body"), "{compressed}");
        // An unknown compression, in a structure whose checksum is right.
        let mut bytes = sealed(b"body", None);
        bytes[VERSION_OFFSET + 1] = 7;
        let end = bytes.len() - CRC_LEN_BYTES;
        let crc = crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        let error = Body::open(&bytes.into(), Structure::BtreeNode, 1 << 20).unwrap_err();
        assert_eq!(Rule::of(&error), Some(Rule::Compression));
        assert_eq!(error.place().offset_bytes, Some(VERSION_OFFSET as u64 + 1));
    }

    #[test]
    fn long_structures_are_looked_at_piece_by_piece() {
        for body_len in [LOOKED_AT_LEN_MIN_BYTES, LOOKED_AT_LEN_MIN_BYTES + PIECE_LEN_BYTES as u64 - 18] {
            let body: Vec<u8> = (0..body_len).map(|at| (at % 251) as u8).collect();
            let good = sealed(&body, None);
            let rule = |bytes: &[u8]| {
                let read = |at: u64, len: u64| {
                    assert!(len <= PIECE_LEN_BYTES as u64);
                    Ok(Bytes::copy_from_slice(&bytes[at as usize..(at + len) as usize]))
                };
                look(&read, bytes.len() as u64, Structure::BtreeNode)
                    .err()
                    .map(|error| Rule::of(&error).unwrap())
            };
            assert_eq!(rule(&good), None);
            let end = good.len();
            for (at, expected) in [
                (0, Rule::Magic),
                (LENGTH_OFFSET, Rule::Length),
                (VERSION_OFFSET, Rule::Crc),
                (PIECE_LEN_BYTES, Rule::Crc),
                (end - CRC_LEN_BYTES - 1, Rule::Crc),
                (end - 1, Rule::Crc),
            ] {
                let mut bad = good.clone();
                bad[at] ^= 1;
                assert_eq!(rule(&bad), Some(expected), "byte {at} of {end}");
            }
        }
        // `look` does not read a short structure.
        for (len_bytes, is_looked_at) in
            [(LOOKED_AT_LEN_MIN_BYTES - 1, false), (LOOKED_AT_LEN_MIN_BYTES, true)]
        {
            let fails = |_, _| Err(Rule::FileShort.error("it is read"));
            assert_eq!(look(&fails, len_bytes, Structure::BtreeNode).is_err(), is_looked_at, "{len_bytes}");
        }
        // `look` checks the length before it reads.
        let of_len = |len_bytes| {
            let read = |_, _| Ok(Bytes::from_static(&[0; VERSION_OFFSET]));
            Rule::of(&look(&read, len_bytes, Structure::BtreeNode).unwrap_err())
        };
        assert_eq!(of_len(OCDBT_NODE_LEN_MAX_BYTES + 1), Some(Rule::Limit));
        assert_eq!(of_len(OCDBT_NODE_LEN_MAX_BYTES), Some(Rule::Magic));
    }

    #[test]
    fn a_bomb_meets_the_cap() {
        let zeros = vec![0; (1 << 20) + 1];
        assert_eq!(rule_of(sealed(&zeros, Some(3))), Some(Rule::Limit));
        let fits = Bytes::from(sealed(&zeros[1..], Some(3)));
        assert_eq!(Body::open(&fits, Structure::BtreeNode, 1 << 20).unwrap().bytes.len(), 1 << 20);
    }

    #[test]
    fn a_second_frame_or_a_skippable_one_is_too_much() {
        let frame = zstd::bulk::compress(b"body", 3).unwrap();
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9];
        for (body, rule) in [
            ([&frame[..], &frame].concat(), Rule::Trailing),
            ([&frame[..], &skippable].concat(), Rule::Trailing),
            ([&skippable[..], &frame].concat(), Rule::Trailing),
            (frame[..frame.len() - 1].to_vec(), Rule::Zstd),
            (Vec::new(), Rule::Zstd),
        ] {
            // Seal a plain body, declare it compressed, and write its new checksum.
            let mut bytes = sealed(&body, None);
            bytes[VERSION_OFFSET + 1] = 1;
            let end = bytes.len() - CRC_LEN_BYTES;
            let crc = crc32c(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(rule_of(bytes), Some(rule), "{body:x?}");
        }
    }
}
