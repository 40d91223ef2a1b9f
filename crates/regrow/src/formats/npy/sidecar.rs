//! What npy files cannot say, kept beside them: the exact pytree, and the user's own metadata.
//!
//! ```text
//! {"made_by":"regrow npy","structure":{...},"metadata":...}
//! ```
//!
//! In a folder it is one more file. In an archive it is a member that the directory does not list: `np.load` and
//! every other reader see the arrays alone, and only the archive's comment says where it is:
//!
//! ```text
//! regrow structure at 4096, 812 bytes, crc32 1b2e9a40
//! ```

use serde::{Deserialize, Serialize};

use super::zip::Crc32;
use crate::error::{Error, Result};
use crate::formats::regrow::structure::{Regrown, Structure};

/// The file in a folder, and the name of the member that is not listed.
pub(super) const FILE_NAME: &str = "regrow-structure.json";

/// Says that a file of that name is ours.
const MADE_BY: &str = "regrow npy";

/// What to do about a damaged one.
const WITHOUT_IT: &str = "copy the checkpoint again; numpy.load reads the arrays without it";

/// Longest sidecar that is read.
pub(super) const LEN_MAX_BYTES: u64 = crate::bytes::limits::JSON_LEN_MAX_BYTES;

/// What is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sidecar {
    made_by: String,
    structure: Structure,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<serde_json::Value>,
}

impl Sidecar {
    pub fn new(structure: Structure, metadata: Option<serde_json::Value>) -> Self {
        Self { made_by: MADE_BY.to_owned(), structure, metadata }
    }

    /// As JSON.
    ///
    /// # Errors
    /// None in practice: there is nothing in it that JSON cannot say.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| Error::invalid(format!("the structure is no JSON: {error}")))
    }

    /// The pytree and the metadata that JSON text keeps.
    ///
    /// # Errors
    /// `Corrupt`, or `Unsupported` for a later version.
    pub fn read(json: &[u8]) -> Result<(Regrown, Option<serde_json::Value>)> {
        let sidecar: Self = serde_json::from_slice(json).map_err(|error| {
            Error::corrupt(format!("the kept pytree cannot be read: {error}")).help(WITHOUT_IT)
        })?;
        if sidecar.made_by != MADE_BY {
            return Err(Error::corrupt("the kept pytree is not one of regrow's")
                .expected(MADE_BY, sidecar.made_by)
                .help(WITHOUT_IT));
        }
        Ok((sidecar.structure.regrow()?, sidecar.metadata))
    }
}

/// Where an archive keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pointer {
    /// Of the JSON, not of its local header.
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub crc32: u32,
}

impl Pointer {
    pub fn to_comment(self) -> String {
        let Self { offset_bytes, len_bytes, crc32 } = self;
        format!("regrow structure at {offset_bytes}, {len_bytes} bytes, crc32 {crc32:08x}")
    }

    /// From an archive's comment; `None` if it is anything else.
    pub fn from_comment(comment: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(comment).ok()?.strip_prefix("regrow structure at ")?;
        let (offset, text) = text.split_once(", ")?;
        let (len, crc32) = text.split_once(" bytes, crc32 ")?;
        Some(Self {
            offset_bytes: offset.parse().ok()?,
            len_bytes: len.parse().ok()?,
            crc32: u32::from_str_radix(crc32, 16).ok()?,
        })
    }

    /// Checks what lies there.
    ///
    /// # Errors
    /// `Corrupt` if it fails its checksum.
    pub fn check(&self, json: &[u8]) -> Result<()> {
        let mut crc = Crc32::new();
        crc.update(json);
        match crc.value() {
            found if found == self.crc32 => Ok(()),
            found => Err(Error::corrupt("the kept pytree fails its CRC-32")
                .at_byte(self.offset_bytes)
                .expected(format_args!("{:08x}", self.crc32), format_args!("{found:08x}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_points_to_it() {
        let pointer = Pointer { offset_bytes: 4096, len_bytes: 812, crc32: 0x0b2e_9a40 };
        assert_eq!(pointer.to_comment(), "regrow structure at 4096, 812 bytes, crc32 0b2e9a40");
        assert_eq!(Pointer::from_comment(pointer.to_comment().as_bytes()), Some(pointer));
        for other in ["", "a comment", "regrow structure at -1, 2 bytes, crc32 0"] {
            assert_eq!(Pointer::from_comment(other.as_bytes()), None);
        }
    }
}
