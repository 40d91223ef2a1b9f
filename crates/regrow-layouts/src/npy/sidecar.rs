//! A record of the exact pytree and the user's own metadata, which npy files cannot store.
//!
//! ```text
//! {"made_by":"regrow npy","structure":{...},"metadata":...}
//! ```
//!
//! In a folder it is one more file. Its last field is the CRC-32 of all bytes before the comma of
//! this field:
//!
//! ```text
//! {"made_by":"regrow npy","structure":{...},"metadata":...,"crc32":"1b2e9a40"}
//! ```
//!
//! In an archive it is a member that the directory does not list. So `np.load` and other readers
//! see only the arrays. The archive's comment has the position of this member:
//!
//! ```text
//! regrow structure at 4096, 812 bytes, crc32 1b2e9a40
//! ```

use serde::{Deserialize, Serialize};

use super::zip::Crc32;
use crate::structure::{Regrown, Structure};
use regrow_base::error::{Error, Result};

/// The file in a folder, and the name of the member that is not listed.
pub(crate) const FILE_NAME: &str = "regrow-structure.json";

/// The prefix of the comment in an archive that regrow wrote.
const COMMENT_BEGINNING: &str = "regrow structure at ";

/// The value of `made_by`. It shows that regrow wrote the file.
const MADE_BY: &str = "regrow npy";

const WITHOUT_IT: &str = "copy the checkpoint again; numpy.load reads the arrays without it";

pub(super) const LEN_MAX_BYTES: u64 = regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;

/// The contents of the sidecar.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sidecar {
    made_by: String,
    structure: Structure,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<serde_json::Value>,
    /// The checksum, in a folder only. For an archive, the comment has the checksum.
    #[serde(default, skip_serializing)]
    crc32: Option<String>,
}

/// The last field of the file in a folder, around the eight digits of its checksum.
const SUM_BEGINNING: &[u8] = b",\"crc32\":\"";
const SUM_END: &[u8] = b"\"}";
const SUM_LEN_BYTES: usize = SUM_BEGINNING.len() + 8 + SUM_END.len();

/// JSON text with its checksum as one more field.
pub(super) fn with_sum(json: &[u8]) -> Vec<u8> {
    let mut out = json.strip_suffix(b"}").unwrap_or(json).to_vec();
    let sum = format!("{:08x}", crc32(&out));
    out.extend([SUM_BEGINNING, sum.as_bytes(), SUM_END].concat());
    out
}

/// Checks JSON text against its checksum, if it has one. Folders of earlier versions have none.
fn check_sum(json: &[u8], has_sum: bool) -> Result<()> {
    let before = json.get(..json.len().saturating_sub(SUM_LEN_BYTES)).unwrap_or_default();
    let end = json.get(before.len()..).unwrap_or_default();
    let sum = end.strip_prefix(SUM_BEGINNING).and_then(|end| end.strip_suffix(SUM_END));
    if sum.is_none() && !has_sum && !is_nearly_a_sum(end) {
        return Ok(());
    }
    let (expected, found) =
        (String::from_utf8_lossy(sum.unwrap_or(end)).into_owned(), format!("{:08x}", crc32(before)));
    match expected == found {
        true => Ok(()),
        false => Err(Error::corrupt("the stored pytree fails its CRC-32").expected(expected, found)),
    }
}

/// Whether the end of JSON text would be a checksum if one byte around its digits were repaired. A
/// damaged field name would hide the checksum from a JSON parser.
fn is_nearly_a_sum(end: &[u8]) -> bool {
    let digits = SUM_BEGINNING.len()..SUM_LEN_BYTES - SUM_END.len();
    let form = [SUM_BEGINNING, &[0; 8], SUM_END].concat();
    let pairs = end.iter().zip(&form).enumerate();
    end.len() == form.len() && pairs.filter(|(at, (a, b))| !digits.contains(at) && a != b).count() <= 1
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc32::new();
    crc.update(bytes);
    crc.value()
}

impl Sidecar {
    pub fn new(structure: Structure, metadata: Option<serde_json::Value>) -> Self {
        Self { made_by: MADE_BY.to_owned(), structure, metadata, crc32: None }
    }

    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::invalid(format!(
                "the structure is not JSON: \
            {error}"
            ))
        })
    }

    pub fn read(json: &[u8]) -> Result<(Regrown, Option<serde_json::Value>)> {
        let sidecar: Self = serde_json::from_slice(json).map_err(|error| {
            Error::corrupt(format!("the stored pytree cannot be read: {error}")).help(WITHOUT_IT)
        })?;
        if sidecar.made_by != MADE_BY {
            return Err(Error::corrupt("the stored pytree is not from regrow")
                .expected(MADE_BY, sidecar.made_by)
                .help(WITHOUT_IT));
        }
        check_sum(json, sidecar.crc32.is_some())?;
        Ok((sidecar.structure.regrow()?, sidecar.metadata))
    }
}

/// The position of the sidecar in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pointer {
    /// The offset of the JSON, not of its local header.
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub crc32: u32,
}

impl Pointer {
    pub fn to_comment(self) -> String {
        let Self { offset_bytes, len_bytes, crc32 } = self;
        format!("{COMMENT_BEGINNING}{offset_bytes}, {len_bytes} bytes, crc32 {crc32:08x}")
    }

    /// Parses an archive's comment; `None` for a comment of another program.
    ///
    /// # Errors
    /// `Corrupt` for a comment that begins like regrow's but cannot be parsed.
    pub fn from_comment(comment: &[u8]) -> Result<Option<Self>> {
        let Some(text) = comment.strip_prefix(COMMENT_BEGINNING.as_bytes()) else { return Ok(None) };
        let parse = || {
            let (offset, text) = std::str::from_utf8(text).ok()?.split_once(", ")?;
            let (len, crc32) = text.split_once(" bytes, crc32 ")?;
            Some(Self {
                offset_bytes: offset.parse().ok()?,
                len_bytes: len.parse().ok()?,
                crc32: u32::from_str_radix(crc32, 16).ok()?,
            })
        };
        parse().map(Some).ok_or_else(|| {
            let example = Self { offset_bytes: 4096, len_bytes: 812, crc32: 0x1b2e_9a40 };
            Error::corrupt(
                "the comment of the archive, which has the position of its pytree, cannot be \
                read",
            )
            .expected(
                format_args!("such as {:?}", example.to_comment()),
                format_args!("\"{}\"", comment.escape_ascii()),
            )
        })
    }

    pub fn check(&self, json: &[u8]) -> Result<()> {
        match crc32(json) {
            found if found == self.crc32 => Ok(()),
            found => Err(Error::corrupt("the stored pytree fails its CRC-32")
                .at_byte(self.offset_bytes)
                .expected(format_args!("{:08x}", self.crc32), format_args!("{found:08x}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::array::{Dtype, Shape};
    use regrow_tree::tree::{LeafInfo, LeafKind, Tree};

    #[test]
    fn every_flipped_bit_of_the_file_in_a_folder_is_seen() {
        let info = LeafInfo {
            kind: LeafKind::NumpyArray,
            dtype: Dtype::Float32,
            shape: Shape::new([3]).unwrap(),
            name: "w".into(),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: "".into(),
        };
        let structure = Structure::of(&Tree::single(info), |_| "".into()).unwrap();
        let metadata = Some(serde_json::json!({"lr": 0.5, "crc32": "0123abcd"}));
        let json = Sidecar::new(structure, metadata).to_json().unwrap();
        // Folders of earlier versions have no checksum.
        assert!(Sidecar::read(&json).is_ok());
        let good = with_sum(&json);
        assert!(Sidecar::read(&good).is_ok());
        for bit in 0..good.len() * 8 {
            let mut damaged = good.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Sidecar::read(&damaged).is_err(), "{}", String::from_utf8_lossy(&damaged));
        }
        for len in 0..good.len() {
            assert!(Sidecar::read(&good[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn a_comment_points_to_it() {
        let pointer = Pointer { offset_bytes: 4096, len_bytes: 812, crc32: 0x0b2e_9a40 };
        assert_eq!(pointer.to_comment(), "regrow structure at 4096, 812 bytes, crc32 0b2e9a40");
        assert_eq!(Pointer::from_comment(pointer.to_comment().as_bytes()).unwrap(), Some(pointer));
        for other in ["", "a comment", "regrow"] {
            assert_eq!(Pointer::from_comment(other.as_bytes()).unwrap(), None);
        }
        for bad in [
            "regrow structure at -1, 2 bytes, crc32 0",
            "regrow structure at 1",
            "regrow structure at \u{ff}",
        ] {
            assert!(Pointer::from_comment(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
