//! regrow's own index after the last record: bytes to [`Trailer`] and back. No I/O.
//!
//! ```text
//! FF "regrow" 0A | raw bytes of leaves that have no record | JSON | length of the JSON, u64le | crc32c of it, u32le | 0A "worger" FF
//! ```
//!
//! Equinox reads as many records as its `like` has leaves, and ignores the bytes after them. The
//! trailer cannot look like a record: its first byte is not the first byte of npy's magic or of a
//! zip archive, and not an opcode of a pickle.
//!
//! ```text
//! {"version":1,
//!  "structure":{...}                  the exact pytree, see the module `structure`
//!  "records":[0,null,1]               for each leaf, in that pytree's order, its record
//!  "offsets":[0,148]                  where each record begins, counted from the first record
//!  "block_len_bytes":4194304,
//!  "crc32c":[...]                     of each block of each record; no block spans two records
//!  "blobs":{"1":[8,3,2948238]}        leaves of bytes: offset from the trailer's first byte, length, crc32c
//!  "line":[62,123456]                 length and crc32c of the line in front of the leaves
//!  "metadata":...}                    the user's own
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::structure::Structure;
use regrow_base::bytes::Cursor;
use regrow_base::bytes::checksum::crc32c;
use regrow_base::error::{Error, Result};

pub use crate::npy::header::TRAILER_MAGIC;

/// The last bytes of every file with a trailer. They never change.
pub const TRAILER_END: [u8; 8] = *b"\nworger\xff";

/// The length of the footer: length of the JSON, its checksum, and the last bytes.
const FOOTER_LEN_BYTES: usize = size_of::<u64>() + size_of::<u32>() + TRAILER_END.len();

/// The version that this build writes, the only one so far.
const VERSION: u32 = 1;

/// Length of a block of a record, which has one checksum. Most records are one block.
pub const BLOCK_LEN_BYTES: u64 = 4 << 20;

/// The contents of the JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct Trailer {
    version: u32,
    /// The exact pytree.
    pub structure: Structure,
    /// For each leaf, the number of its record.
    pub records: Vec<Option<usize>>,
    /// The offset of each record, counted from the first record.
    pub offsets: Vec<u64>,
    /// Length of a block of a record.
    pub block_len_bytes: u64,
    /// The checksum of each block of each record.
    pub crc32c: Vec<u32>,
    /// For leaves without a record: offset from the trailer's first byte, length, crc32c.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blobs: BTreeMap<usize, (u64, u64, u32)>,
    /// Length and crc32c of the line before the leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<(u64, u32)>,
    /// The user's own metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// The help text for a damaged trailer, which Equinox itself ignores.
const COPY_AGAIN: &str = "copy the file again; Equinox, which needs no trailer, still reads the leaves";

impl Trailer {
    /// An index without checksums yet.
    pub fn new(structure: Structure, records: Vec<Option<usize>>, metadata: Option<Value>) -> Self {
        Self {
            version: VERSION,
            structure,
            records,
            offsets: Vec::new(),
            block_len_bytes: BLOCK_LEN_BYTES,
            crc32c: Vec::new(),
            blobs: BTreeMap::new(),
            line: None,
            metadata,
        }
    }

    /// Parses the bytes after the last record, up to the end of the file; `None` if they are not a
    /// trailer.
    ///
    /// # Errors
    /// `Corrupt` for a damaged trailer, `Unsupported` for a later version.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let is_begun = is_begun(bytes);
        if !is_begun && !bytes.ends_with(&TRAILER_END) {
            return Ok(None);
        }
        let footer_start = bytes.len().saturating_sub(FOOTER_LEN_BYTES);
        let (before, footer) = bytes.split_at_checked(footer_start).unwrap_or_default();
        let mut input = Cursor::new(footer);
        let (len, stored) = (input.u64le("the trailer's length")?, input.u32le("the trailer's checksum")?);
        if !is_begun || input.rest() != TRAILER_END {
            return Err(Error::corrupt("the beginning or the end of the trailer is missing")
                .expected(
                    "REGROW marks at both",
                    if is_begun { "no mark at the end" } else { "no mark at the beginning" },
                )
                .help(COPY_AGAIN));
        }
        let json = usize::try_from(len)
            .ok()
            .and_then(|len| before.len().checked_sub(len))
            .filter(|&start| start >= TRAILER_MAGIC.len())
            .and_then(|start| before.get(start..))
            .ok_or_else(|| {
                Error::corrupt("the trailer is longer than the bytes after the records")
                    .expected(format_args!("at most {} bytes", before.len()), len)
                    .help(COPY_AGAIN)
            })?;
        let found = crc32c(json);
        if found != stored {
            return Err(Error::corrupt("the trailer fails its crc32c")
                .expected(format_args!("{stored:08x}"), format_args!("{found:08x}"))
                .help(COPY_AGAIN));
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let bad = |error| Error::corrupt(format!("the trailer cannot be read: {error}"));
        let Version { version } = serde_json::from_slice(json).map_err(bad)?;
        if version != VERSION {
            return Err(Error::unsupported(format!("the trailer is of version {version}"))
                .expected(VERSION, version)
                .help("a newer regrow wrote it; the records can still be read"));
        }
        serde_json::from_slice(json).map(Some).map_err(bad)
    }

    /// The bytes of the trailer after the blobs.
    ///
    /// # Errors
    /// None in practice: JSON can store all its members.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = serde_json::to_vec(self)
            .map_err(|error| Error::invalid(format!("the trailer is not JSON: {error}")))?;
        let (len, checksum) = (out.len() as u64, crc32c(&out));
        out.extend(len.to_le_bytes());
        out.extend(checksum.to_le_bytes());
        out.extend(TRAILER_END);
        Ok(out)
    }
}

/// Whether these bytes are the start of a trailer. They may end within its magic.
pub(super) fn is_begun(bytes: &[u8]) -> bool {
    let len = bytes.len().min(TRAILER_MAGIC.len());
    len > 0 && bytes.get(..len) == TRAILER_MAGIC.get(..len)
}

/// The number of blocks of a record with this length.
pub fn block_count(record_len_bytes: u64, block_len_bytes: u64) -> u64 {
    record_len_bytes.div_ceil(block_len_bytes.max(1)).max(1)
}
