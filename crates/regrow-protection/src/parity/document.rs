//! The index of parity as a file: `regrow.parity.json`.
//!
//! ```text
//! {"crc32c":"1b2e9a40",                 of all bytes after this comma
//!  "format":"regrow-parity", "version":1,
//!  "writer":"regrow 0.1.0", "created_unix_ns":...,
//!  "layout":"orbax",                    the layout in which the checkpoint was opened, for people
//!  "ratio":"1/16",                      the ratio that was requested
//!  "covers_folder":true,                whether `names` has all files of the folder
//!  "names":["_METADATA","d/3f2a"],      below the folder of the index, sorted, as in the run of bytes
//!  "len_bytes":[812,1048576],
//!  "block_len_bytes":1024, "data_blocks":205, "parity_blocks":13,
//!  "block_crc32":"9a401b2e...",         of each block of the run, eight digits each
//!  "parity_crc32":"..."}                of each parity block
//! ```
//!
//! `regrow.parity.blocks` has a copy of these bytes after the parity blocks. The last sixteen bytes
//! are their length (eight bytes, little-endian) and `rgparity`.

use serde::{Deserialize, Serialize};

use super::geometry::Geometry;
use super::ratio::ParityRatio;
use crate::seal::{Covered, rename_all};
use regrow_base::bytes::side_document::{SideDocument, now_unix_ns, writer};
use regrow_base::bytes::{hex, summed};
use regrow_base::error::{Error, Result};

/// The only version that this build reads and writes.
const VERSION: u32 = 1;

const FORMAT: &str = "regrow-parity";

const KIND: SideDocument = SideDocument {
    what: "the index of the parity",
    format: FORMAT,
    version: VERSION,
    help_if_newer: "a newer regrow made it: update regrow",
    error: |what| Error::corrupt(what).help(HELP),
};

/// The last bytes of the file with the blocks.
const MAGIC: &[u8; 8] = b"rgparity";

/// Length of the end of the file with the blocks, after the index.
pub const CLOSING_LEN_BYTES: u64 = 16;

const HELP: &str = "if `regrow verify` finds no damage, make the parity again: `regrow parity`";

/// The parsed index.
#[derive(Debug, Serialize, Deserialize)]
pub struct ParityDocument {
    format: String,
    version: u32,
    /// Program and version that made the parity.
    writer: String,
    created_unix_ns: u64,
    /// The layout that the checkpoint was opened in.
    pub layout: String,
    /// The requested amount of parity.
    pub ratio: String,
    /// Whether the files are all files of the folder.
    pub covers_folder: bool,
    /// The files, by their paths below the folder.
    pub names: Vec<String>,
    /// The length of each file.
    pub len_bytes: Vec<u64>,
    block_len_bytes: u64,
    data_blocks: u64,
    parity_blocks: u64,
    /// CRC-32 of each block of the run. The checksum of the last block excludes its padding of
    /// zeros.
    #[serde(with = "hex::list")]
    pub block_crc32: Vec<u32>,
    /// CRC-32 of each parity block.
    #[serde(with = "hex::list")]
    pub parity_crc32: Vec<u32>,
}

impl ParityDocument {
    /// The index of new parity.
    pub fn new(layout: &str, ratio: ParityRatio, covers_folder: bool, files: Vec<(String, u64)>) -> Self {
        let all_bytes = files.iter().map(|(_, len)| *len).fold(0, u64::saturating_add);
        let Geometry { block_len_bytes, data_blocks, parity_blocks, .. } = Geometry::of(all_bytes, ratio);
        let (names, len_bytes) = files.into_iter().unzip();
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            writer: writer(),
            created_unix_ns: now_unix_ns(),
            layout: layout.to_owned(),
            ratio: ratio.to_string(),
            covers_folder,
            names,
            len_bytes,
            block_len_bytes,
            data_blocks,
            parity_blocks,
            block_crc32: Vec::new(),
            parity_crc32: Vec::new(),
        }
    }

    /// Whether the other index describes the same parity of the same files. Their times may differ.
    pub fn is_of_same_parity(&self, other: &Self) -> bool {
        self.covered() == other.covered()
            && self.ratio == other.ratio
            && self.block_crc32 == other.block_crc32
            && self.parity_crc32 == other.parity_crc32
    }

    fn covered(&self) -> Covered<'_> {
        let Self { covers_folder, block_len_bytes, names, len_bytes, .. } = self;
        Covered { covers_folder: *covers_folder, block_len_bytes: *block_len_bytes, names, len_bytes }
    }

    /// Renames the files for a copy: the prefix `stem` of their names becomes `to`.
    pub fn rename(&mut self, stem: &str, to: &str) {
        rename_all(&mut self.names, stem, to);
    }

    /// The division of the files into blocks.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes.iter().fold(0, |all, len| all.saturating_add(*len)),
            block_len_bytes: self.block_len_bytes,
            data_blocks: self.data_blocks,
            parity_blocks: self.parity_blocks,
        }
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        summed::to_bytes(self)
            .map_err(|error| Error::invalid(format!("the index of the parity cannot be written: {error}")))
    }

    /// Parses and checks the file's bytes.
    ///
    /// # Errors
    /// `Unsupported` for another version; `Corrupt` for every other fault.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        summed::check(bytes).map_err(|unlike| {
            Error::corrupt("the index of the parity fails its crc32c")
                .at_byte(0)
                .expected(unlike.expected, unlike.found)
                .help(HELP)
        })?;
        let parsed: Self = KIND.parse(bytes)?;
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<()> {
        KIND.check_files(&self.names, &self.len_bytes)?;
        let geometry = self.geometry();
        geometry.check()?;
        let counts = [
            ("data block", geometry.blocks(), self.block_crc32.len()),
            ("parity block", geometry.all_parity_blocks(), self.parity_crc32.len()),
        ];
        for (of, expected, found) in counts {
            if expected != found as u64 {
                let what = format!("the number of checksums does not fit the number of {of}s");
                return Err(KIND.contradiction(&what).expected(expected, found));
            }
        }
        Ok(())
    }
}

/// The bytes after an index of this length in the file with the blocks.
pub fn closing(index_len_bytes: u64) -> [u8; CLOSING_LEN_BYTES as usize] {
    let mut closing = [0; CLOSING_LEN_BYTES as usize];
    let (len, magic) = closing.split_at_mut(8);
    len.copy_from_slice(&index_len_bytes.to_le_bytes());
    magic.copy_from_slice(MAGIC);
    closing
}

/// The length of the index, from the last bytes of a file; `None` if the file is not a file with
/// parity blocks.
pub fn index_len_bytes(closing: &[u8]) -> Option<u64> {
    let (len, magic) = closing.split_first_chunk::<8>()?;
    (magic == MAGIC).then(|| u64::from_le_bytes(*len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> ParityDocument {
        let files = [("_METADATA", 30), ("d/1", 100), ("empty", 0)];
        let files = files.map(|(name, len)| (name.to_owned(), len)).to_vec();
        let mut document = ParityDocument::new("orbax", ParityRatio::default(), true, files);
        document.block_crc32 = vec![1, 2, 3];
        document.parity_crc32 = vec![4, 5];
        document
    }

    #[test]
    fn what_is_written_is_read() {
        let read = ParityDocument::parse(&document().to_bytes().unwrap()).unwrap();
        assert_eq!(read.names, ["_METADATA", "d/1", "empty"]);
        assert_eq!((read.block_crc32, read.parity_crc32), (vec![1, 2, 3], vec![4, 5]));
        assert_eq!(index_len_bytes(&closing(7)), Some(7));
        assert_eq!(index_len_bytes(&[0; 16]), None);
        assert_eq!(index_len_bytes(b"short"), None);
    }

    #[test]
    fn a_parity_is_the_same_if_all_is_but_for_the_time() {
        type Change = fn(&mut ParityDocument);
        let changes: [(&str, Change); 5] = [
            ("a name", |index| index.names[1] = "d/2".to_owned()),
            ("a length", |index| index.len_bytes[1] = 101),
            ("the ratio", |index| index.ratio = "1/1".parse().unwrap()),
            ("a data block", |index| index.block_crc32[1] = 0),
            ("a parity block", |index| index.parity_crc32[1] = 0),
        ];
        assert!(document().is_of_same_parity(&document()));
        for (what, change) in changes {
            let mut other = document();
            change(&mut other);
            assert!(!document().is_of_same_parity(&other), "{what}");
        }
    }

    #[test]
    fn every_flipped_bit_of_an_index_is_seen() {
        let good = document().to_bytes().unwrap();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(ParityDocument::parse(&bytes).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(ParityDocument::parse(&good[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        type Change = fn(&mut ParityDocument);
        let changes: [(&str, Change); 10] = [
            ("outside", |index| index.names[1] = "../d".to_owned()),
            ("outside", |index| index.names[1] = "/d".to_owned()),
            ("twice", |index| index.names[1] = "empty".to_owned()),
            ("number of files", |index| index.len_bytes.truncate(2)),
            ("of data blocks", |index| index.len_bytes[0] = u64::MAX),
            ("of parity blocks", |index| index.parity_crc32.truncate(1)),
            ("block length", |index| index.block_len_bytes = 0),
            ("block length", |index| index.block_len_bytes = 768),
            ("blocks of a stripe", |index| index.parity_blocks = 1025),
            ("version 2", |index| index.version = 2),
        ];
        for (says, change) in changes {
            let mut index = document();
            change(&mut index);
            let error = ParityDocument::parse(&index.to_bytes().unwrap()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
