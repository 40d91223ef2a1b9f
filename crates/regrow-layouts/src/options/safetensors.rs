//! Options of a save in the layout `safetensors`.

use std::fmt;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};

use regrow_base::error::{Error, Result};

/// The largest useful alignment: a huge page.
const ALIGN_MAX_BYTES: u64 = 2 << 20;

/// Bytes of the header's length before the header.
pub const LENGTH_LEN_BYTES: usize = size_of::<u64>();

/// Options of the layout `safetensors`. With `structure` off the defaults write byte for byte what
/// safetensors writes.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SafetensorsOptions {
    /// The text between the keys of a path in a tensor's name.
    pub separator: String,
    /// The entry `format` in `__metadata__`. With `structure`, `None` means `pt`: transformers
    /// before version 5 reads no other.
    pub format: Option<String>,
    /// Keep the exact pytree in `__metadata__` under `regrow`. Without it only tensors are written,
    /// and leaves that are not tensors, or have a dtype that safetensors lacks, are refused.
    pub structure: bool,
    /// The data begins at a multiple of this many bytes, a power of two from 8 on.
    pub align: u64,
    /// Begin another file once a file holds this many bytes (`"5GB"` or a number); for a folder
    /// only. A larger tensor gets its own file.
    pub max_shard_bytes: Option<ByteSize>,
    /// Write one file, for any name of the target; by default only for a target that ends in
    /// `.safetensors`.
    pub one_file: bool,
}

impl Default for SafetensorsOptions {
    fn default() -> Self {
        Self {
            separator: ".".to_owned(),
            format: None,
            structure: true,
            align: LENGTH_LEN_BYTES as u64,
            max_shard_bytes: None,
            one_file: false,
        }
    }
}

impl SafetensorsOptions {
    /// # Errors
    /// `InvalidArgument` if `align` is not a power of two, or out of bounds.
    pub(crate) fn alignment_bytes(&self) -> Result<usize> {
        let least = LENGTH_LEN_BYTES as u64;
        match self.align.is_power_of_two() && (least..=ALIGN_MAX_BYTES).contains(&self.align) {
            true => Ok(self.align as usize),
            false => Err(Error::invalid("the option `align` cannot be used")
                .expected(format_args!("a power of two from {least} to {ALIGN_MAX_BYTES}"), self.align)),
        }
    }
}

/// A number of bytes, from a number or from text such as `5GB` or `512 MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 10] = [
    ("KIB", 1 << 10),
    ("MIB", 1 << 20),
    ("GIB", 1 << 30),
    ("TIB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
    ("", 1),
];

impl ByteSize {
    fn parse(text: &str) -> Option<Self> {
        let capitals = text.trim().to_ascii_uppercase();
        let (digits, unit) =
            UNITS.iter().find_map(|(name, unit)| Some((capitals.strip_suffix(name)?, unit)))?;
        let digits = digits.trim_end();
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let bytes = digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(*unit)?;
        (bytes > 0).then_some(Self(bytes))
    }
}

impl std::str::FromStr for ByteSize {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument` for a text that is not a number of bytes, with or without a unit.
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text).ok_or_else(|| {
            Error::invalid("this is not a number of bytes")
                .expected("a number above 0, such as 5000000000 or 5GB", format_args!("{text:?}"))
        })
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes above 0, such as 5000000000 or \"5GB\"")
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> std::result::Result<ByteSize, E> {
                match bytes {
                    0 => Err(E::invalid_value(serde::de::Unexpected::Unsigned(0), &self)),
                    bytes => Ok(ByteSize(bytes)),
                }
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<ByteSize, E> {
                ByteSize::parse(text).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        from.deserialize_any(SizeVisitor).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_or_text() {
        let parse = |json: &str| serde_json::from_str::<ByteSize>(json).map(|size| size.0).ok();
        for (json, bytes) in [
            ("7", 7),
            ("\"7\"", 7),
            ("\"5GB\"", 5_000_000_000),
            ("\"5 gb\"", 5_000_000_000),
            ("\"200KiB\"", 200 << 10),
            ("\" 3B \"", 3),
            ("\"1TiB\"", 1 << 40),
        ] {
            assert_eq!(parse(json), Some(bytes), "{json}");
        }
        let bad = [
            "0",
            "-1",
            "1.5",
            "\"\"",
            "\"GB\"",
            "\"-5GB\"",
            "\"+5GB\"",
            "\"5XB\"",
            "\"99999999TB\"",
            "true",
            "\"0\"",
        ];
        for json in bad {
            assert_eq!(parse(json), None, "{json}");
        }
    }

    #[test]
    fn an_odd_alignment_is_refused() {
        let with = |align| SafetensorsOptions { align, ..SafetensorsOptions::default() }.alignment_bytes();
        assert_eq!(with(4096).unwrap(), 4096);
        for align in [0, 1, 4, 24, 4 << 20, u64::MAX] {
            assert!(with(align).is_err(), "{align}");
        }
    }
}
