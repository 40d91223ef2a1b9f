//! The part of a `regrow.process_<k>.json` that a merge reads: the columns, which come first.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};

use super::manifest::{Pieces, check_sum};
use regrow_base::error::{Error, Result};

/// The part of a record that a merge reads.
#[derive(Debug, Default)]
pub(super) struct PartColumns {
    pub pieces: Pieces,
    pub data_files: Vec<DataFileName>,
    pub leaf_files: Vec<i32>,
    pub leaf_offsets: Vec<u64>,
}

/// The name of a data file. A merge needs no other fields.
#[derive(Debug, Deserialize)]
pub(super) struct DataFileName {
    pub name: String,
}

impl PartColumns {
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        check_sum(bytes)?;
        let (mut parsed, mut missing) = (Self::default(), PART_COLUMNS);
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let read = reader.deserialize_map(ColumnsOfPart { columns: &mut parsed, missing: &mut missing });
        // The visitor stops when it has all columns, and the deserializer then returns an error.
        // The checksum covers the rest of the file.
        if let (Err(error), 1..) = (read, missing) {
            return Err(Error::corrupt(format!("the report of a process cannot be read: {error}")));
        }
        let count = parsed.pieces.leaves.len();
        let lens = [parsed.pieces.chunks.len(), parsed.leaf_files.len(), parsed.leaf_offsets.len()];
        let lens_differ = lens.iter().find(|&&len| len != count);
        if let Some(coded) = &parsed.pieces.coded {
            let count = coded.pieces.len();
            let lens = [coded.offsets.len(), coded.lens.len()];
            if let Some(len) = lens.iter().find(|&&len| len != count) {
                return Err(Error::corrupt(
                    "the columns of the compressed pieces of a part differ in length",
                )
                .expected(count, len));
            }
        }
        match lens_differ {
            Some(len) => Err(Error::corrupt("the columns of a part differ in length").expected(count, len)),
            None => Ok(parsed),
        }
    }
}

const PART_COLUMNS: usize = 4;

/// Reads a record until it has all columns.
struct ColumnsOfPart<'c> {
    columns: &'c mut PartColumns,
    missing: &'c mut usize,
}

impl<'de> Visitor<'de> for ColumnsOfPart<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with pieces, leaf_files, leaf_offsets and data_files")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> std::result::Result<(), M::Error> {
        while *self.missing > 0 {
            let Some(name) = members.next_key::<Cow<'de, str>>()? else {
                return Err(M::Error::custom("a column is missing"));
            };
            match &*name {
                "pieces" => self.columns.pieces = members.next_value()?,
                "leaf_files" => self.columns.leaf_files = members.next_value()?,
                "leaf_offsets" => self.columns.leaf_offsets = members.next_value()?,
                "data_files" => self.columns.data_files = members.next_value()?,
                _ => {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
            }
            *self.missing -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_base::bytes::checksum::crc32c;

    fn sealed(members: &str) -> Vec<u8> {
        format!("{{\"crc32c\":\"{:08x}\",{members}}}", crc32c(format!("{members}}}").as_bytes())).into()
    }

    const PIECES: &str = r#""pieces":{"leaves":[0,2],"chunks":[1,0]}"#;
    const REST: &str =
        r#""data_files":[{"name":"a","len_bytes":1}],"leaf_files":[0,0],"leaf_offsets":[4096,8192]"#;

    #[test]
    fn nothing_is_read_behind_the_columns() {
        let columns = PartColumns::parse(&sealed(&format!("{PIECES},{REST},\"structure\":no JSON"))).unwrap();
        assert_eq!((columns.pieces.leaves, columns.pieces.chunks), (vec![0, 2], vec![1, 0]));
        assert_eq!((columns.leaf_files, columns.leaf_offsets), (vec![0, 0], vec![4096, 8192]));
        assert_eq!(columns.data_files.iter().map(|file| &*file.name).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn compressed_pieces_have_columns_of_their_own() {
        let coded = |lens: &str| {
            let coded = format!(r#","coded":{{"file":1,"pieces":[1],"offsets":[90],"lens":{lens}}}}}"#);
            PartColumns::parse(&sealed(&format!("{}{coded},{REST}", PIECES.trim_end_matches('}'))))
        };
        let pieces = coded("[80]").unwrap().pieces.coded.unwrap();
        assert_eq!(
            (pieces.file, pieces.pieces, pieces.offsets, pieces.lens),
            (1, vec![1], vec![90], vec![80])
        );
        for wrong in ["[]", "[80,80]"] {
            assert_eq!(coded(wrong).unwrap_err().kind(), regrow_base::error::ErrorKind::Corrupt, "{wrong}");
        }
    }

    #[test]
    fn other_members_may_come_first_and_missing_ones_are_told() {
        PartColumns::parse(&sealed(&format!("\"later\":[{{}}],{REST},\"structure\":{{}},{PIECES}"))).unwrap();
        for wrong in [
            REST.to_owned(),
            format!("\"structure\":no JSON,{REST},{PIECES}"),
            format!("{PIECES},{}", REST.replace("[0,0]", "[0]")),
        ] {
            let error = PartColumns::parse(&sealed(&wrong)).unwrap_err();
            assert_eq!(error.kind(), regrow_base::error::ErrorKind::Corrupt, "{wrong}");
        }
    }
}
