//! The rules of the format by name, so that a program can distinguish errors.
//!
//! Every error about stored OCDBT bytes ends its first line with the name of the rule in brackets:
//! `(E_CRC)`. [`Rule::of`] reads the name back. The format description and the fixtures use the
//! same names.

use std::fmt;

use crate::error::{Error, ErrorKind};

macro_rules! rules {
    ($($variant:ident = $name:literal, $doc:literal;)*) => {
        /// The rules of the format that stored bytes can break.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Rule {
            $(#[doc = $doc] $variant,)*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name of the rule in messages and fixtures, for example `E_CRC`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

rules! {
    NoManifest = "E_NO_MANIFEST", "There is no `manifest.ocdbt`.";
    Short = "E_SHORT", "Fewer bytes than the smallest structure has.";
    Magic = "E_MAGIC", "The magic number is another one than this place asks for.";
    Length = "E_LENGTH", "The length field differs from the bytes at hand.";
    Crc = "E_CRC", "The checksum differs.";
    Version = "E_VERSION", "A format version other than 0.";
    Compression = "E_COMPRESSION", "A compression format other than none and zstd.";
    Zstd = "E_ZSTD", "The zstd frame is damaged or cut.";
    Trailing = "E_TRAILING", "Bytes after the zstd frame or after the body.";
    Eof = "E_EOF", "The body ends inside a field, or a count cannot fit.";
    Varint = "E_VARINT", "A varint too large or too long.";
    Config = "E_CONFIG", "A configuration field out of range, or two configurations that differ.";
    Table = "E_TABLE", "A data file table that breaks its own rules.";
    Path = "E_PATH", "A file name that could lead out of the database.";
    FileId = "E_FILE_ID", "An index beyond the data file table.";
    Range = "E_RANGE", "A byte range that ends beyond 2^63 - 1.";
    VersionTree = "E_VERSION_TREE", "A version list, child list or version node that breaks the tree's rules.";
    Btree = "E_BTREE", "A B+tree node that breaks the tree's rules.";
    Ref = "E_REF", "A child that differs from what its parent says of it.";
    Stats = "E_STATS", "Statistics that differ from what they count.";
    FileMissing = "E_FILE_MISSING", "A data file is not there.";
    FileShort = "E_FILE_SHORT", "A byte range ends behind the end of its file.";
    Limit = "E_LIMIT", "Larger than this reader allows.";
}

impl Rule {
    /// The broken rule that `error` reports; `None` for other errors.
    pub fn of(error: &Error) -> Option<Self> {
        let (_, tail) = error.what().rsplit_once(" (")?;
        let name = tail.strip_suffix(')')?;
        Self::ALL.iter().copied().find(|rule| rule.name() == name)
    }

    pub(super) fn error(self, what: impl fmt::Display) -> Error {
        let error = Error::new(self.kind(), format!("{what} ({})", self.name()));
        match self.help() {
            Some(help) => error.help(help),
            None => error,
        }
    }

    /// Adds this rule to an error from outside this module (of the cursor or a store).
    pub(super) fn adopt(self, error: &Error) -> Error {
        copy_details(error, self.error(error.what()))
    }

    fn kind(self) -> ErrorKind {
        match self {
            Self::NoManifest => ErrorKind::NotFound,
            Self::Version | Self::Compression => ErrorKind::Unsupported,
            Self::Limit => ErrorKind::Limit,
            _ => ErrorKind::Corrupt,
        }
    }

    fn help(self) -> Option<&'static str> {
        match self {
            Self::FileMissing | Self::FileShort => {
                Some("copy the whole checkpoint again, with all its folders (ocdbt.process_* among them)")
            }
            Self::Crc | Self::Length | Self::Magic | Self::Zstd | Self::Short => {
                Some("the file was damaged or cut after it was written; copy it again")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Moves `error` to another byte and adds a remark to its first line, in front of its rule.
pub(super) fn relocate(error: Error, offset_bytes: u64, remark: impl fmt::Display) -> Error {
    let Some(rule) = Rule::of(&error) else { return error };
    let what = error.what().rsplit_once(" (").map_or(error.what(), |(what, _)| what);
    copy_details(&error, rule.error(format_args!("{what}, {remark}")).at_byte(offset_bytes))
}

fn copy_details(from: &Error, mut to: Error) -> Error {
    if let Some(file) = &from.place().file {
        to = to.in_file(file);
    }
    if let Some(offset_bytes) = from.place().offset_bytes {
        to = to.at_byte(offset_bytes);
    }
    if let Some((expected, found)) = from.expected_found() {
        to = to.expected(expected, found);
    }
    match from.help_text() {
        Some(help) => to.help(help),
        None => to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_read_back_from_its_error() {
        for &rule in Rule::ALL {
            let error = rule.error("something (odd) is wrong").at_byte(3).expected(1, 2);
            let error = relocate(error, 7, "at byte 3 of the body");
            assert_eq!(Rule::of(&error), Some(rule));
            assert!(error.what().starts_with("something (odd) is wrong, at byte 3 of the body ("), "{error}");
            assert_eq!(error.place().offset_bytes, Some(7));
            assert_eq!(error.expected_found(), Some(("1", "2")));
        }
        assert_eq!(Rule::of(&Error::corrupt("no rule (at all)")), None);
    }

    #[test]
    fn a_rule_says_what_kind_of_error_it_is_and_what_to_do() {
        let of = |rule: Rule| (rule.error("x").kind(), rule.error("x").help_text().map(str::to_owned));
        let advice = |rule| of(rule).1.unwrap_or_default();
        assert_eq!(of(Rule::NoManifest).0, ErrorKind::NotFound);
        assert_eq!(of(Rule::Version).0, ErrorKind::Unsupported);
        assert_eq!(of(Rule::Compression).0, ErrorKind::Unsupported);
        assert_eq!(of(Rule::Limit).0, ErrorKind::Limit);
        assert_eq!(of(Rule::Ref), (ErrorKind::Corrupt, None));
        for rule in [Rule::FileMissing, Rule::FileShort] {
            assert_eq!(of(rule).0, ErrorKind::Corrupt);
            assert!(advice(rule).contains("all its folders"), "{}", advice(rule));
        }
        for rule in [Rule::Crc, Rule::Length, Rule::Magic, Rule::Zstd, Rule::Short] {
            assert_eq!(of(rule).0, ErrorKind::Corrupt);
            assert!(advice(rule).contains("copy it again"), "{}", advice(rule));
        }
    }
}
