//! The common members of side documents: seals, signatures, the index of parity.
//!
//! ```text
//! "format":"regrow-seal", "version":1, "writer":"regrow 0.1.0", "created_unix_ns":...,
//! "names":[...], "len_bytes":[...]          the files, by their paths below the folder
//! ```

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// The lengths of blocks that seals and signatures may have.
const BLOCK_LEN_RANGE_BYTES: RangeInclusive<u64> = 4 << 10..=1 << 20;

/// A kind of side documents, and the texts of its errors.
pub struct SideDocument {
    /// The name in messages: "the seal".
    pub what: &'static str,
    /// The value of the member `format`.
    pub format: &'static str,
    /// The only version that this build reads and writes.
    pub version: u32,
    /// The help text for a document of another version.
    pub help_if_newer: &'static str,
    /// Makes the error for an invalid document, with a help text.
    pub error: fn(String) -> Error,
}

impl SideDocument {
    /// Parses a document. The version is checked first, because this build may not be able to parse
    /// another version.
    ///
    /// # Errors
    /// `Unsupported` for another version; otherwise `error` of this kind.
    pub fn parse<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T> {
        #[derive(Deserialize)]
        struct Kind {
            format: String,
            version: u32,
        }
        let unreadable =
            |error: serde_json::Error| (self.error)(format!("{} cannot be read: {error}", self.what));
        let Kind { format, version } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format != self.format {
            return Err(
                (self.error)(format!("{} is of another format", self.what)).expected(self.format, format)
            );
        }
        if version != self.version {
            return Err(Error::unsupported(format!("{} is of version {version}", self.what))
                .expected(format_args!("version {}", self.version), version)
                .help(self.help_if_newer));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }

    /// The error for a document that contradicts itself.
    #[inline]
    pub fn contradiction(&self, what: &str) -> Error {
        (self.error)(format!("{} contradicts itself: {what}", self.what))
    }

    /// Returns an error unless the block length is valid, and each block of the files has one of
    /// the `count` checksums, which messages call `checksums`.
    pub fn check_blocks(
        &self,
        (names, len_bytes): (&[String], &[u64]),
        block_len_bytes: u64,
        count: usize,
        checksums: &str,
    ) -> Result<()> {
        if !BLOCK_LEN_RANGE_BYTES.contains(&block_len_bytes) {
            return Err(self.contradiction("the block length is not valid").expected(
                format_args!("{} to {} bytes", BLOCK_LEN_RANGE_BYTES.start(), BLOCK_LEN_RANGE_BYTES.end()),
                block_len_bytes,
            ));
        }
        self.check_files(names, len_bytes)?;
        let blocks = len_bytes.iter().map(|len| len.div_ceil(block_len_bytes));
        let blocks = blocks.fold(0_u64, u64::saturating_add);
        if blocks != count as u64 {
            let what = format!("the number of {checksums} does not fit the number of blocks");
            return Err(self.contradiction(&what).expected(blocks, count));
        }
        Ok(())
    }

    /// Returns an error unless each file has a length, and is listed once, with a path below its
    /// folder.
    pub fn check_files(&self, names: &[String], len_bytes: &[u64]) -> Result<()> {
        if names.len() != len_bytes.len() {
            return Err(self
                .contradiction("the number of lengths does not fit the number of files")
                .expected(names.len(), len_bytes.len()));
        }
        let leaves = |name: &&String| {
            name.contains('\0') || name.split('/').any(|part| matches!(part, "" | "." | ".."))
        };
        if let Some(name) = names.iter().find(leaves) {
            return Err(self
                .contradiction("it names a file outside its folder")
                .expected("a path below it", name));
        }
        let mut known = HashSet::with_capacity(names.len());
        match names.iter().find(|name| !known.insert(name.as_str())) {
            Some(name) => Err(self.contradiction("it names a file twice").expected("each once", name)),
            None => Ok(()),
        }
    }
}

/// The program and version that a new document gets as its writer.
#[inline]
pub fn writer() -> String {
    concat!("regrow ", env!("CARGO_PKG_VERSION")).to_owned()
}

/// Nanoseconds since 1970-01-01 UTC.
pub fn now_unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
