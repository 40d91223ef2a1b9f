//! A seal as a file: `regrow.seal.json`.
//!
//! ```text
//! {"crc32c":"1b2e9a40",                 of all bytes after this comma
//!  "format":"regrow-seal", "version":1,
//!  "writer":"regrow 0.1.0", "created_unix_ns":...,
//!  "layout":"orbax",                    the layout in which the checkpoint was opened
//!  "covers_folder":true,                whether `names` has all files of the folder
//!  "block_len_bytes":32768,
//!  "names":["_METADATA","d/3f2a"],      below the folder of the seal, sorted
//!  "len_bytes":[812,1048576],
//!  "block_crc32":"9a401b2e..."}         eight digits a block, file after file
//! ```
//!
//! The blocks have a CRC-32, as in zip, and not a CRC-32C. Files of OCDBT databases and chunks of
//! zarr arrays end in their own CRC-32C, and the CRC-32C of data followed by its own CRC-32C is a
//! constant. Such a checksum could not distinguish two of these files.

use serde::{Deserialize, Serialize};

use regrow_base::bytes::side_document::{SideDocument, now_unix_ns, writer};
use regrow_base::bytes::{hex, summed};
use regrow_base::error::{Error, Result};
pub(super) use regrow_storage::side_files::SEAL as NAMES;

/// Name of a seal in the folder of a checkpoint.
pub const FILE_NAME: &str = NAMES.in_folder;

/// The only version that this build reads and writes.
const VERSION: u32 = 1;

const FORMAT: &str = "regrow-seal";

const KIND: SideDocument = SideDocument {
    what: "the seal",
    format: FORMAT,
    version: VERSION,
    help_if_newer: "a newer regrow made it: update regrow, or read without it (`ignore_seal`)",
    error: |what| Error::corrupt(what).help(HELP),
};

/// Length of a block; the last block of a file is shorter.
pub const BLOCK_LEN_BYTES: u64 = 32 << 10;

pub(super) const HELP: &str = "`regrow repair` heals it with parity or a copy (`--from`); if you changed \
    it on purpose, seal it again (`regrow seal`) or remove the seal (`regrow seal --remove`); \
    `ignore_seal` reads it anyway";

/// The parsed seal.
#[derive(Debug, Serialize, Deserialize)]
pub struct SealDocument {
    format: String,
    version: u32,
    /// Program and version that made the seal.
    writer: String,
    created_unix_ns: u64,
    /// The layout that the checkpoint was opened in, for people. An item may have another layout.
    layout: String,
    /// Whether the files are all files of the folder.
    pub covers_folder: bool,
    /// Length of a block; the last block of a file is shorter.
    pub block_len_bytes: u64,
    /// The files, by their paths below the folder.
    pub names: Vec<String>,
    /// The length of each file.
    pub len_bytes: Vec<u64>,
    /// CRC-32 of each block.
    #[serde(with = "hex::list")]
    pub block_crc32: Vec<u32>,
}

/// The files that a seal, a signature or parity covers, and their division into blocks.
#[derive(Debug, PartialEq, Eq)]
pub struct Covered<'d> {
    /// Whether the covered files are all files of one folder.
    pub covers_folder: bool,
    /// The length of a block; the last block of a file is shorter.
    pub block_len_bytes: u64,
    /// The name of each file, below the folder.
    pub names: &'d [String],
    /// The length of each file.
    pub len_bytes: &'d [u64],
}

/// Replaces the prefix `stem` of these names by `to`.
pub fn rename_all(names: &mut [String], stem: &str, to: &str) {
    for name in names {
        if let Some(rest) = name.strip_prefix(stem) {
            *name = format!("{to}{rest}");
        }
    }
}

impl SealDocument {
    /// A new seal without files.
    pub fn new(layout: &str, covers_folder: bool) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            writer: writer(),
            created_unix_ns: now_unix_ns(),
            layout: layout.to_owned(),
            covers_folder,
            block_len_bytes: BLOCK_LEN_BYTES,
            names: Vec::new(),
            len_bytes: Vec::new(),
            block_crc32: Vec::new(),
        }
    }

    /// Adds a file, and the checksums of its blocks.
    pub fn push(&mut self, name: String, len_bytes: u64, block_crc32: &[u32]) {
        self.names.push(name);
        self.len_bytes.push(len_bytes);
        self.block_crc32.extend_from_slice(block_crc32);
    }

    /// Renames the files for a copy: the prefix `stem` of their names becomes `to`.
    pub fn rename(&mut self, stem: &str, to: &str) {
        rename_all(&mut self.names, stem, to);
    }

    /// The layout that the checkpoint was opened in.
    pub fn layout(&self) -> &str {
        &self.layout
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        summed::to_bytes(self).map_err(|error| Error::invalid(format!("the seal cannot be written: {error}")))
    }

    /// Parses and checks the file's bytes.
    ///
    /// # Errors
    /// `Unsupported` for another version; `Corrupt` for every other fault.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        summed::check(bytes).map_err(|unlike| {
            Error::corrupt("the seal fails its crc32c")
                .at_byte(0)
                .expected(unlike.expected, unlike.found)
                .help(HELP)
        })?;
        let parsed: Self = KIND.parse(bytes)?;
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<()> {
        let files = (&*self.names, &*self.len_bytes);
        KIND.check_blocks(files, self.block_len_bytes, self.block_crc32.len(), "checksums")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> SealDocument {
        let mut document = SealDocument::new("orbax", true);
        document.push("_METADATA".to_owned(), 3, &[7]);
        document.push("d/1".to_owned(), 2 * BLOCK_LEN_BYTES + 1, &[1, 2, 3]);
        document.push("empty".to_owned(), 0, &[]);
        document
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = document().to_bytes().unwrap();
        let read = SealDocument::parse(&bytes).unwrap();
        assert_eq!(read.names, ["_METADATA", "d/1", "empty"]);
        assert_eq!(read.block_crc32, [7, 1, 2, 3]);
        assert!(read.covers_folder && read.layout == "orbax");
    }

    #[test]
    fn every_flipped_bit_of_a_seal_is_seen() {
        let good = document().to_bytes().unwrap();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(SealDocument::parse(&bytes).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(SealDocument::parse(&good[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        type Change = fn(&mut SealDocument);
        let changes: [(&str, Change); 7] = [
            ("outside", |seal| seal.names[1] = "../d".to_owned()),
            ("outside", |seal| seal.names[1] = "/d".to_owned()),
            ("twice", |seal| seal.names[1] = "empty".to_owned()),
            ("number of files", |seal| seal.len_bytes.truncate(2)),
            ("number of blocks", |seal| seal.len_bytes[0] = u64::MAX),
            ("block length", |seal| seal.block_len_bytes = 0),
            ("version 2", |seal| seal.version = 2),
        ];
        for (says, change) in changes {
            let mut seal = document();
            change(&mut seal);
            let error = SealDocument::parse(&seal.to_bytes().unwrap()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
