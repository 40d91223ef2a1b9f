//! `regrow.json`: the data that neither Orbax' files nor safetensors files can store.
//!
//! ```text
//! {"crc32c":"1b2e9a40",                      of all bytes after this member's comma
//!  "format":"regrow","version":1,"writer":"regrow 0.1.0","created_unix_ns":...,
//!  "custom_metadata":...,
//!  "structure":{...}                         the exact pytree, see `structure`
//!  "data_files":[{"name":"model.safetensors","len_bytes":...,"data_offset":4096,"head_crc32c":"...",
//!                 "block_len_bytes":32768,"block_crc32c":"1b2e9a40...",        8 hex digits a block
//!                 "blake3":"af13..."}]               only of files that the next save may link, see `base`
//!  "leaf_files":[0,0,-1,...]                 into data_files; -1 zarr chunks in the database; -2 no data
//!  "leaf_offsets":[4096,...]                 from the start of the file
//!  "files":[{"name":"_METADATA","len_bytes":...,"crc32c":"...","blake3":"..."}]   every other file
//!  "database_uuid":"9c1d..."                 of manifest.ocdbt; absent where there is no database
//!  "parts":[{"name":"regrow.process_0.json","len_bytes":...,"crc32c":"...","blake3":"...",
//!            "data_files":["model-00001-of-00002.safetensors"]}]        absent unless the arrays lie in parts
//!  "chunks":{"shapes":[[4,8],...],"leaf_shapes":[0,-1,...],             as `parts`: the chunk shape of each array;
//!            "leaf_write_shapes":[1,-1,...],                            the shard shapes, if any chunk is smaller;
//!            "zstd_leaves":[0,...]}                                     the compressed leaves, if there are any
//!  "pieces":{"leaves":[0,0,3,...],"chunks":[0,1,0,...],                 only in `regrow.process_<k>.json`, and there
//!            "coded":{"file":1,"pieces":[0,1],"offsets":[0,90],         before data_files, leaf_files, structure;
//!                     "lens":[90,80]}}                                  `coded` has the places of compressed pieces
//! }
//! ```
//!
//! A checkpoint of several processes has version 2, as does an uncompressed checkpoint with sharded
//! or cut arrays: the arrays are in *parts*. The part of process `k` is a `regrow.process_<k>.json`
//! of the same form. Its leaves are the pieces of this process, and its data files are the data
//! files of this process. The first part also has the whole pytree (`whole`) and its `chunks`.
//! `regrow.json` names the parts. In `regrow.json`, all arrays are in the database (-1), which has
//! the file and the offset of each chunk. A part is read when one of its files is needed.
//!
//! Unknown members are ignored. Without `regrow.json` a reader reads the folder like Orbax.

use serde::{Deserialize, Serialize};

use crate::safetensors::SUFFIX;
use crate::structure::Structure;
use regrow_base::bytes::checksum::{Crc32c, crc32c};
use regrow_base::bytes::hex;
use regrow_base::error::{Error, Result};
use regrow_tree::array::Shape;

/// Name of the file.
pub const FILE_NAME: &str = "regrow.json";

/// The prefix of the names of data files.
const DATA_STEM: &str = "model";

/// The version of a checkpoint without parts.
pub const VERSION: u32 = 1;

/// The version of a checkpoint in parts; the latest version.
pub const VERSION_OF_PARTS: u32 = 2;

/// The prefix of the names of files of one process.
const PART_PREFIX: &str = "regrow.process_";

/// The suffixes of the record of a process, of its compressed data, and of the file that claims its
/// number.
const RECORD_SUFFIX: &str = ".json";
const CODED_SUFFIX: &str = ".zstd";
const CLAIM_SUFFIX: &str = ".claim";

/// Name of the record of the files of one process.
pub fn part_name(process: u32) -> String {
    format!("{PART_PREFIX}{process}{RECORD_SUFFIX}")
}

/// Name of the data file with the compressed leaves of one process.
pub fn coded_name(process: u32) -> String {
    format!("{PART_PREFIX}{process}{CODED_SUFFIX}")
}

/// Name of the file by which a process claims its number.
pub fn claim_name(process: u32) -> String {
    format!("{PART_PREFIX}{process}{CLAIM_SUFFIX}")
}

/// Whether a file name is the name of a claim file.
pub fn is_claim_name(name: &str) -> bool {
    name.starts_with(PART_PREFIX) && name.ends_with(CLAIM_SUFFIX)
}

/// The process of a record, from the record's name; `u32::MAX` for other names.
pub(super) fn rank_of_part(name: &str) -> u32 {
    let number = name.strip_prefix(PART_PREFIX).and_then(|rest| rest.strip_suffix(RECORD_SUFFIX));
    number.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

/// Whether a file name is the name of the record or of the compressed data of one process.
pub fn is_part_name(name: &str) -> bool {
    let Some(name) = name.strip_prefix(PART_PREFIX) else { return false };
    [RECORD_SUFFIX, CODED_SUFFIX].into_iter().filter_map(|suffix| name.strip_suffix(suffix)).any(is_number)
}

/// Whether a file name is the name of the record of one process.
pub(super) fn is_record_name(name: &str) -> bool {
    is_part_name(name) && name.ends_with(RECORD_SUFFIX)
}

/// The name of data file number `at` of `count`, where numbers start at 1.
pub(super) fn data_name_of(at: u32, count: u32) -> String {
    format!("{DATA_STEM}-{at:05}-of-{count:05}{SUFFIX}")
}

/// The name of the second or a later data file of a process.
pub(super) fn further_data_name_of(at: u32, count: u32, file: usize) -> String {
    format!("{DATA_STEM}-{at:05}-of-{count:05}-{file}{SUFFIX}")
}

/// Whether a save gives this name to a data file: `model.safetensors`,
/// `model-<at>-of-<count>.safetensors` or `model-<at>-of-<count>-<file>.safetensors`.
pub fn is_data_name(name: &str) -> bool {
    let stem = name.strip_suffix(SUFFIX).and_then(|name| name.strip_prefix(DATA_STEM));
    stem.is_some_and(|rest| {
        let numbers = rest.strip_prefix('-').and_then(|rest| rest.split_once("-of-"));
        rest.is_empty() || numbers.is_some_and(|(at, count)| is_number(at) && count.split('-').all(is_number))
    })
}

/// Whether a name has the prefix and the suffix of data files.
pub(super) fn looks_like_data_name(name: &str) -> bool {
    name.starts_with(DATA_STEM) && name.ends_with(SUFFIX)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

pub(super) const OPENING: &str = "{\"crc32c\":\"";
pub(super) const CRC_HEX_LEN: usize = 8;
pub(super) const BODY_OFFSET: usize = OPENING.len() + CRC_HEX_LEN + 2;

/// Where a leaf's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafPlace {
    /// Uncompressed in a data file.
    Raw {
        /// The index in `data_files`.
        file: usize,
        /// The offset from the start of the file.
        offset_bytes: u64,
    },
    /// As zarr chunks in the OCDBT database.
    Chunks,
    /// The leaf has no array data.
    Nowhere,
}

pub(super) const CHUNKS: i32 = -1;
pub(super) const NOWHERE: i32 = -2;

/// The parsed `regrow.json`; the module documentation describes each member.
#[derive(Debug, Deserialize)]
pub struct Manifest {
    /// Always `regrow`.
    pub format: String,
    /// [`VERSION`], or `VERSION_OF_PARTS`.
    pub version: u32,
    /// Program and version that wrote the checkpoint.
    pub writer: String,
    /// The time of the save, in nanoseconds since 1970-01-01 UTC.
    pub created_unix_ns: u64,
    /// The user's own metadata.
    #[serde(default)]
    pub custom_metadata: Option<serde_json::Value>,
    /// The exact pytree.
    pub structure: Structure,
    /// The files with array data, with a checksum for each block.
    pub data_files: Vec<DataFile>,
    leaf_files: Vec<i32>,
    leaf_offsets: Vec<u64>,
    /// All other files, with one checksum each.
    pub files: Vec<SmallFile>,
    /// The UUID in `manifest.ocdbt`, as 32 hex digits; `None` without a database.
    #[serde(default)]
    pub database_uuid: Option<String>,
    /// The records of the processes, in a checkpoint in parts.
    #[serde(default)]
    pub parts: Vec<PartRecord>,
    #[serde(default)]
    pub(super) chunks: Option<ChunkShapes>,
    /// The pytree of the whole checkpoint, in its first part.
    #[serde(default)]
    pub(super) whole: Option<Structure>,
}

/// The chunk shapes of the leaves of a checkpoint in parts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ChunkShapes {
    /// The distinct shapes.
    pub shapes: Vec<Vec<u64>>,
    /// For each leaf, the index in `shapes`; -1 for a leaf that is not an array.
    pub leaf_shapes: Vec<i64>,
    /// For each leaf, the index of the shape that a process wrote at once: the array or its shard.
    /// Empty if no leaf has smaller chunks than that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaf_write_shapes: Vec<i64>,
    /// The leaves that are compressed with zstd, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zstd_leaves: Vec<u32>,
}

/// A `regrow.process_<k>.json`, as `regrow.json` records it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartRecord {
    /// The name, length and checksums of the file.
    #[serde(flatten)]
    pub file: SmallFile,
    /// The data files that the record describes.
    pub data_files: Vec<String>,
}

/// The pieces that a part has, in the order of the part's leaves.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Pieces {
    /// For each piece, the number of its leaf. The leaves of the whole tree are numbered in flatten
    /// order.
    pub leaves: Vec<u32>,
    /// For each piece, the number of its chunk in the leaf, in C order.
    pub chunks: Vec<u64>,
    /// The positions of the compressed pieces; `None` if no piece is compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coded: Option<CodedPieces>,
}

/// Where the compressed pieces of a part lie.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CodedPieces {
    pub file: u32,
    /// The numbers of the compressed pieces among the pieces of the part, in ascending order.
    pub pieces: Vec<u32>,
    pub offsets: Vec<u64>,
    /// The length of each compressed piece in the file, in bytes.
    pub lens: Vec<u64>,
}

/// A file with array data, and a checksum for each of its blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DataFile {
    /// The path below the checkpoint's folder.
    pub name: String,
    /// Length of the file.
    pub len_bytes: u64,
    /// The offset of the first block. The header lies before it.
    pub data_offset: u64,
    /// CRC-32C of the bytes before `data_offset`.
    #[serde(with = "hex::number")]
    pub head_crc32c: u32,
    /// Length of a block; the last block may be shorter.
    pub block_len_bytes: u64,
    /// CRC-32C of each block.
    #[serde(with = "hex::list")]
    pub block_crc32c: Vec<u32>,
    /// BLAKE3 of the bytes from `data_offset` to the end, in 64 hex digits: only for files of
    /// leaves that did not change since the previous save. With it the next save need not read the
    /// file to find out whether the leaves have changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
}

/// A file that is checked as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallFile {
    /// The path below the checkpoint's folder.
    pub name: String,
    /// Length of the file.
    pub len_bytes: u64,
    /// CRC-32C of the whole file, for regrow 0.1.0, which knows no other checksum. It proves
    /// nothing for files that end in their own CRC-32C, as the database's files do: the CRC of
    /// anything followed by its CRC is [`CRC_OF_SEALED`].
    #[serde(with = "hex::number")]
    pub crc32c: u32,
    /// BLAKE3 of the whole file, in 64 hex digits. If present, readers check this checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
}

impl SmallFile {
    /// The record of a file with these bytes.
    pub fn of_bytes(name: String, bytes: &[u8]) -> Self {
        let mut sum = Sum::new();
        sum.update(bytes);
        sum.record(name, bytes.len() as u64)
    }
}

/// The CRC-32C of any bytes that end in their own CRC-32C, little endian.
pub const CRC_OF_SEALED: u32 = 0x4867_4bc7;

impl SmallFile {
    /// Whether the record proves nothing but the length: any file that ends in its own CRC-32C
    /// would match.
    pub fn says_nothing(&self) -> bool {
        self.blake3.is_none() && self.crc32c == CRC_OF_SEALED
    }

    pub(crate) fn sum(&self) -> Sum {
        Sum { crc32c: Crc32c::new(), blake3: self.blake3.is_some().then(blake3::Hasher::new) }
    }
}

/// The running checksums of a file that is being written or checked.
pub(crate) struct Sum {
    crc32c: Crc32c,
    blake3: Option<blake3::Hasher>,
}

impl Sum {
    pub fn new() -> Self {
        Self { crc32c: Crc32c::new(), blake3: Some(blake3::Hasher::new()) }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.crc32c.update(bytes);
        if let Some(hasher) = &mut self.blake3 {
            hasher.update(bytes);
        }
    }

    pub fn record(self, name: String, len_bytes: u64) -> SmallFile {
        let blake3 = self.blake3.map(|hasher| hasher.finalize().to_hex().to_string());
        SmallFile { name, len_bytes, crc32c: self.crc32c.value(), blake3 }
    }

    /// The expected and the found checksum; `None` if they are equal.
    pub fn differs_from(self, record: &SmallFile) -> Option<(String, String)> {
        let found = self.record(record.name.clone(), record.len_bytes);
        if found == *record {
            return None;
        }
        let show = |file: &SmallFile| match &file.blake3 {
            Some(blake3) => format!("blake3 {blake3}"),
            None => format!("crc32c {:08x}", file.crc32c),
        };
        Some((show(record), show(&found)))
    }
}

/// Checks the bytes against the checksum at their start.
pub(super) fn check_sum(bytes: &[u8]) -> Result<()> {
    let stored = bytes
        .strip_prefix(OPENING.as_bytes())
        .and_then(|rest| std::str::from_utf8(rest.get(..CRC_HEX_LEN)?).ok())
        .and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let (Some(stored), Some(body)) = (stored, bytes.get(BODY_OFFSET..)) else {
        return Err(Error::corrupt("regrow.json does not begin with its checksum")
            .at_byte(0)
            .help(WITHOUT_IT));
    };
    let found = crc32c(body);
    if found != stored {
        return Err(Error::corrupt("regrow.json fails its crc32c")
            .at_byte(BODY_OFFSET as u64)
            .expected(format_args!("{stored:08x}"), format_args!("{found:08x}"))
            .help(WITHOUT_IT));
    }
    Ok(())
}

impl Manifest {
    /// Parses and checks the file's bytes.
    ///
    /// # Errors
    /// `Unsupported` for a later version; `Corrupt` for anything else.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        check_sum(bytes)?;
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let is_known = |version| (VERSION..=VERSION_OF_PARTS).contains(&version);
        let later = |version| {
            Error::unsupported(format!("this checkpoint has layout version {version}"))
                .expected(format_args!("version {VERSION_OF_PARTS} or earlier"), version)
                .help("a newer regrow wrote it: update regrow, or let Orbax or safetensors read it")
        };
        // Parse once. Only after an error, look at the version: a later version may have another
        // form.
        let parsed: Self = serde_json::from_slice(bytes).map_err(|error| {
            match serde_json::from_slice::<Version>(bytes) {
                Ok(Version { version }) if !is_known(version) => later(version),
                _ => Error::corrupt(format!("regrow.json cannot be read: {error}")),
            }
        })?;
        if !is_known(parsed.version) {
            return Err(later(parsed.version));
        }
        Ok(parsed)
    }

    /// Returns an error if a file's name would leave the checkpoint's folder.
    ///
    /// # Errors
    /// `Corrupt`, with the name.
    pub fn check_names(&self) -> Result<()> {
        let names =
            self.data_files.iter().map(|file| &file.name).chain(self.files.iter().map(|file| &file.name));
        let of_parts = self.parts.iter().flat_map(|part| part.data_files.iter().chain([&part.file.name]));
        let names = names.chain(of_parts);
        let leaves = |name: &&String| {
            name.contains('\0') || name.split(['/', '\\']).any(|part| matches!(part, "" | "." | ".."))
        };
        match names.into_iter().find(leaves) {
            Some(name) => {
                Err(Error::corrupt(format!("regrow.json names a file outside its folder: {name:?}")))
            }
            None => Ok(()),
        }
    }

    /// The chunk shape of a leaf of a checkpoint in parts.
    ///
    /// # Errors
    /// `Corrupt` if an array has no chunk shape, or a chunk shape of another rank.
    pub fn chunk_shape(&self, leaf: usize, shape: &Shape) -> Result<Option<Shape>> {
        self.cut_shape(leaf, shape, |chunks| &chunks.leaf_shapes)
    }

    /// For a leaf of a checkpoint in parts: the shape that a process wrote at once.
    ///
    /// # Errors
    /// As [`chunk_shape`](Self::chunk_shape).
    pub fn write_shape(&self, leaf: usize, shape: &Shape) -> Result<Option<Shape>> {
        self.cut_shape(leaf, shape, |chunks| match chunks.leaf_write_shapes.is_empty() {
            true => &chunks.leaf_shapes,
            false => &chunks.leaf_write_shapes,
        })
    }

    /// Whether a leaf of a checkpoint in parts is compressed.
    pub fn is_zstd(&self, leaf: usize) -> bool {
        let leaves = self.chunks.as_ref().map_or(&[][..], |chunks| &chunks.zstd_leaves);
        u32::try_from(leaf).is_ok_and(|leaf| leaves.binary_search(&leaf).is_ok())
    }

    fn cut_shape(
        &self,
        leaf: usize,
        shape: &Shape,
        numbers: fn(&ChunkShapes) -> &[i64],
    ) -> Result<Option<Shape>> {
        let Some(chunks) = &self.chunks else { return Ok(None) };
        let wrong = || Error::corrupt(format!("regrow.json lacks the chunks of leaf {leaf}"));
        let number = *numbers(chunks).get(leaf).ok_or_else(wrong)?;
        let Ok(number) = usize::try_from(number) else { return Ok(None) };
        let chunk = Shape::new(chunks.shapes.get(number).ok_or_else(wrong)?.clone())?;
        let fits = chunk.rank() == shape.rank() && (!chunk.is_empty() || shape.is_empty());
        if fits {
            Ok(Some(chunk))
        } else {
            Err(wrong().expected(format_args!("an array of shape {shape}"), chunk))
        }
    }

    /// The position of the bytes of each of `leaf_count` leaves.
    ///
    /// # Errors
    /// `Corrupt` if the positions contradict the pytree or the data files.
    pub fn places(&self, leaf_count: usize) -> Result<Vec<LeafPlace>> {
        if self.leaf_files.len() != leaf_count || self.leaf_offsets.len() != leaf_count {
            return Err(Error::corrupt("regrow.json lacks the position of a leaf")
                .expected(leaf_count, self.leaf_files.len()));
        }
        let place = |(&file, &offset_bytes): (&i32, &u64)| match file {
            CHUNKS => Ok(LeafPlace::Chunks),
            NOWHERE => Ok(LeafPlace::Nowhere),
            _ => match usize::try_from(file) {
                Ok(file) if file < self.data_files.len() => Ok(LeafPlace::Raw { file, offset_bytes }),
                _ => Err(Error::corrupt(format!("regrow.json places a leaf in data file {file}"))
                    .expected(format_args!("a number below {}", self.data_files.len()), file)),
            },
        };
        self.leaf_files.iter().zip(&self.leaf_offsets).map(place).collect()
    }
}

/// The UUID of a database, as text for `regrow.json`.
pub(super) fn uuid_text(uuid: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*uuid))
}

const WITHOUT_IT: &str = "copy the checkpoint again; if you cannot, remove regrow.json: the folder then \
    opens as an Orbax checkpoint, without regrow's checksums";

#[cfg(test)]
mod tests {
    use super::*;

    /// If there is no record, an overwrite removes every file with a name of regrow's files.
    #[test]
    fn names_of_regrow_are_told_from_those_that_look_like_them() {
        for name in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00001-of-00002-2.safetensors",
            "model-00001-of-00002-2-3.safetensors",
        ] {
            assert!(is_data_name(name), "{name}");
        }
        for name in [
            "models.safetensors",
            "model-.safetensors",
            "model-1.safetensors",
            "model-a-of-00002.safetensors",
            "model-00001-of-b.safetensors",
            "model-00001-of-00002-x.safetensors",
            "model-00001-of-.safetensors",
            "model--of-00002.safetensors",
            "model-00001-of-00002-.safetensors",
            "model-1a-of-2.safetensors",
            "model.safetensors.bak",
            "my-model.safetensors",
        ] {
            assert!(!is_data_name(name), "{name}");
        }
        for name in ["regrow.process_0.json", "regrow.process_12.zstd"] {
            assert!(is_part_name(name), "{name}");
        }
        for name in [
            "regrow.process_.json",
            "regrow.process_a.json",
            "regrow.process_1a.json",
            "regrow.process_0.txt",
            "regrow.process_0",
            "regrow.process.json",
        ] {
            assert!(!is_part_name(name), "{name}");
        }
    }
}
