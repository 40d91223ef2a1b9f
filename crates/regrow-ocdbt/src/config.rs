//! The configuration at the head of every manifest. It says how to *write*. A reader uses three
//! fields: `manifest_kind` (where the versions are), `version_tree_arity_log2` (checks of the
//! version tree) and `max_decoded_node_bytes` (the largest node that it accepts).
//!
//! ```text
//! | uuid 16 bytes | manifest_kind u8 | max_inline_value_bytes | max_decoded_node_bytes | version_tree_arity_log2 u8 |
//! | compression_method | zstd level i32le, only where the method is 1 |
//! ```

use crate::bytes::limits::OCDBT_NODE_LEN_MAX_BYTES;
use crate::bytes::varint::write_varint;
use crate::error::{Error, Result};

use super::fields::Fields;
use super::rule::Rule;

const KIND_SINGLE: u8 = 0;
const KIND_NUMBERED: u8 = 1;
const METHOD_NONE: u32 = 0;
const METHOD_ZSTD: u32 = 1;
const ARITY_LOG2_MAX: u8 = 16;
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = -131_072..=22;

/// Readers accept nodes up to this size for every configuration.
const NODE_LEN_ALWAYS_READ_BYTES: u64 = 16 << 20;

/// How nodes and manifests are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OcdbtConfig {
    /// Values up to this size lie inside the nodes.
    pub max_inline_value_bytes: u32,
    /// Target size for splitting nodes.
    pub max_decoded_node_bytes: u32,
    /// zstd level of nodes and manifests; `None` for no compression.
    pub zstd_level: Option<i32>,
    /// Log2 of the version tree's arity, 1 to 16.
    pub version_tree_arity_log2: u8,
    /// Numbered manifests instead of a single one.
    pub numbered: bool,
}

impl Default for OcdbtConfig {
    /// TensorStore's defaults on a file system.
    fn default() -> Self {
        Self {
            max_inline_value_bytes: 100,
            max_decoded_node_bytes: 8 << 20,
            zstd_level: Some(0),
            version_tree_arity_log2: 4,
            numbered: false,
        }
    }
}

impl OcdbtConfig {
    /// The configuration of Orbax 0.12.8: up to several hundred thousand keys are one leaf.
    pub fn orbax() -> Self {
        Self { max_inline_value_bytes: 1024, max_decoded_node_bytes: 100_000_000, ..Self::default() }
    }

    /// The largest decoded node that a reader of this database accepts: twice the writer's target
    /// size.
    pub(super) fn node_len_max_bytes(&self) -> u64 {
        (2 * u64::from(self.max_decoded_node_bytes))
            .clamp(NODE_LEN_ALWAYS_READ_BYTES, OCDBT_NODE_LEN_MAX_BYTES)
    }

    /// Returns an error where a field is out of the format's range.
    pub(super) fn validate(&self) -> Result<()> {
        if !(1..=ARITY_LOG2_MAX).contains(&self.version_tree_arity_log2) {
            return Err(Error::invalid("version_tree_arity_log2 is out of range")
                .expected(format_args!("1 to {ARITY_LOG2_MAX}"), self.version_tree_arity_log2));
        }
        match self.zstd_level {
            Some(level) if !ZSTD_LEVELS.contains(&level) => {
                Err(Error::invalid("the zstd level is out of range").expected("-131072 to 22", level))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn read(input: &mut Fields<'_>) -> Result<([u8; 16], Self)> {
        let uuid = input.array("uuid")?;
        let kind = input.u8("manifest_kind")?;
        if kind > KIND_NUMBERED {
            return Err(input.fail(Rule::Config, "manifest_kind is unknown").expected("0 or 1", kind));
        }
        let max_inline_value_bytes = input.v32("max_inline_value_bytes")?;
        let max_decoded_node_bytes = input.v32("max_decoded_node_bytes")?;
        let version_tree_arity_log2 = read_arity(input)?;
        let zstd_level = match input.v32("compression_method")? {
            METHOD_NONE => None,
            METHOD_ZSTD => {
                let level = input.i32le("zstd level")?;
                if !ZSTD_LEVELS.contains(&level) {
                    let error = input.fail(Rule::Config, "the zstd level is out of range");
                    return Err(error.expected("-131072 to 22", level));
                }
                Some(level)
            }
            method => {
                let error = input.fail(Rule::Config, "compression_method is unknown");
                return Err(error.expected("0 (none) or 1 (zstd)", method));
            }
        };
        let numbered = kind == KIND_NUMBERED;
        let config = Self {
            max_inline_value_bytes,
            max_decoded_node_bytes,
            zstd_level,
            version_tree_arity_log2,
            numbered,
        };
        Ok((uuid, config))
    }

    pub(super) fn write(&self, uuid: &[u8; 16], out: &mut Vec<u8>) {
        out.extend_from_slice(uuid);
        out.push(if self.numbered { KIND_NUMBERED } else { KIND_SINGLE });
        write_varint(out, u64::from(self.max_inline_value_bytes));
        write_varint(out, u64::from(self.max_decoded_node_bytes));
        out.push(self.version_tree_arity_log2);
        match self.zstd_level {
            None => write_varint(out, u64::from(METHOD_NONE)),
            Some(level) => {
                write_varint(out, u64::from(METHOD_ZSTD));
                out.extend_from_slice(&level.to_le_bytes());
            }
        }
    }
}

/// Reads `version_tree_arity_log2`, in a configuration or in a version tree node.
pub(super) fn read_arity(input: &mut Fields<'_>) -> Result<u8> {
    let arity_log2 = input.u8("version_tree_arity_log2")?;
    if (1..=ARITY_LOG2_MAX).contains(&arity_log2) {
        return Ok(arity_log2);
    }
    let error = input.fail(Rule::Config, "version_tree_arity_log2 is out of range");
    Err(error.expected(format_args!("1 to {ARITY_LOG2_MAX}"), arity_log2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn nodes_may_be_twice_as_long_as_a_writer_aims_at() {
        for (aimed_at, most) in [
            (0, NODE_LEN_ALWAYS_READ_BYTES),
            (8 << 20, 16 << 20),
            (100_000_000, 200_000_000),
            (u32::MAX, OCDBT_NODE_LEN_MAX_BYTES),
        ] {
            let config = OcdbtConfig { max_decoded_node_bytes: aimed_at, ..OcdbtConfig::default() };
            assert_eq!(config.node_len_max_bytes(), most, "{aimed_at}");
        }
    }

    #[test]
    fn fields_are_in_their_ranges() {
        let zstd = |level| OcdbtConfig { zstd_level: level, ..OcdbtConfig::default() };
        let arity = |log2| OcdbtConfig { version_tree_arity_log2: log2, ..OcdbtConfig::default() };
        for good in [zstd(None), zstd(Some(-131_072)), zstd(Some(22)), arity(1), arity(ARITY_LOG2_MAX)] {
            good.validate().unwrap();
        }
        for bad in [zstd(Some(-131_073)), zstd(Some(23)), arity(0), arity(ARITY_LOG2_MAX + 1)] {
            assert_eq!(bad.validate().unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
    }
}
