//! Parses the bytes before and between the records into a [`Scan`], without I/O. The bytes of the
//! trailer are in [`trailer`](super::trailer).

use serde_json::Value;

use crate::npy::header::{Header, MAGIC, PREFIX_LEN_BYTES};
use crate::orbax::json_text;
use regrow_base::error::{Error, ErrorKind, Result};

/// The longest line before the leaves that a reader accepts.
pub const LINE_LEN_MAX_BYTES: usize = 64 << 20;

/// The first bytes of a zip archive with files, and of an empty one.
const ZIP_MAGICS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// The line of hyperparameters before the leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Length of the line, with the newline.
    pub len_bytes: u64,
    /// The parsed JSON.
    pub value: Value,
}

/// One npy record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The npy header: dtype, order and shape.
    pub header: Header,
    /// The offset of the record in the file.
    pub offset_bytes: u64,
    /// The offset of the record's data in the file.
    pub data_offset_bytes: u64,
    /// Length of its data.
    pub data_len_bytes: u64,
}

impl Record {
    /// The offset of the byte after the record.
    pub fn end_bytes(&self) -> u64 {
        self.data_offset_bytes + self.data_len_bytes
    }
}

/// The result of a walk from header to header.
#[derive(Debug)]
pub struct Scan {
    /// The line of hyperparameters; `None` without one.
    pub line: Option<Line>,
    /// The records that are whole, in file order.
    pub records: Vec<Record>,
    /// The offset of the end of the last whole record.
    pub end_bytes: u64,
    /// The error of the broken record that begins at `end_bytes`; `None` if no record begins there.
    pub broken: Option<Error>,
}

impl Scan {
    /// Walks over `file`, a whole file. Reads only headers, no data.
    ///
    /// # Errors
    /// `Corrupt` if there is something in front of the leaves that is not a line of JSON.
    pub fn of(file: &[u8]) -> Result<Self> {
        let line = line_in_front(file)?;
        let mut end = line.as_ref().map_or(0, |line| line.len_bytes);
        let mut records = Vec::new();
        let mut broken = None;
        while let Some(rest) = usize::try_from(end).ok().and_then(|end| file.get(end..)) {
            if rest.is_empty() || !begins_record(rest) {
                break;
            }
            match record_at(rest, end) {
                Ok(record) => {
                    end = record.end_bytes();
                    records.push(record);
                }
                Err(error) => {
                    broken = Some(error.shift(end));
                    break;
                }
            }
        }
        Ok(Self { line, records, end_bytes: end, broken })
    }
}

fn record_at(rest: &[u8], offset_bytes: u64) -> Result<Record> {
    let (header, data_start) = Header::parse(rest)?;
    let data_len_bytes = header.data_len_bytes()?;
    let there = (rest.len() - data_start) as u64;
    if data_len_bytes > there {
        return Err(Error::corrupt("the data of a record is cut off")
            .at_byte(data_start as u64)
            .expected(format_args!("{data_len_bytes} bytes"), there)
            .help("the save or copy of the file did not finish"));
    }
    let data_offset_bytes = offset_bytes + data_start as u64;
    Ok(Record { header, offset_bytes, data_offset_bytes, data_len_bytes })
}

/// Whether these bytes are the start of a record. They may end within its magic.
pub fn begins_record(bytes: &[u8]) -> bool {
    let len = bytes.len().min(MAGIC.len());
    bytes.get(..len) == MAGIC.get(..len)
}

/// The error for bytes after the line, or at the start of a file, that are not the start of a
/// record.
pub fn no_record(bytes: &[u8]) -> Error {
    if ZIP_MAGICS.iter().any(|magic| bytes.starts_with(magic)) {
        return Error::unsupported("this is a zip archive, not a record")
            .help("NumPy's archives are of layout npy and end in .npz");
    }
    let found = bytes.get(..bytes.len().min(MAGIC.len())).unwrap_or_default();
    Error::corrupt("this is not an npy record")
        .expected(
            format_args!("{:?}", MAGIC.escape_ascii().to_string()),
            format_args!("{:?}", found.escape_ascii().to_string()),
        )
        .help("regrow never reads pickles")
}

fn begins_line(file: &[u8]) -> bool {
    matches!(file.first(), Some(b'{' | b'['))
}

fn line_in_front(file: &[u8]) -> Result<Option<Line>> {
    if !begins_line(file) {
        return Ok(None);
    }
    let bad = || Error::corrupt("the line in front of the leaves is not JSON").at_byte(0);
    let searched = file.get(..file.len().min(LINE_LEN_MAX_BYTES)).unwrap_or_default();
    let Some(len) = searched.iter().position(|&byte| byte == b'\n') else {
        if file.len() <= LINE_LEN_MAX_BYTES {
            return Err(bad().expected("a newline before the end of the file", "none"));
        }
        return Err(Error::new(ErrorKind::Limit, "the line in front of the leaves is too long")
            .expected(format_args!("at most {LINE_LEN_MAX_BYTES} bytes"), "more"));
    };
    let value = json_text::parse(searched.get(..len).unwrap_or_default())
        .map_err(|error| bad().expected("JSON", error.what()))?;
    Ok(Some(Line { len_bytes: len as u64 + 1, value }))
}

/// Whether `start`, the first bytes of a file, shows a line of JSON and then a record.
pub fn is_line_and_record(start: &[u8]) -> bool {
    begins_line(start)
        && start
            .iter()
            .position(|&byte| byte == b'\n')
            .and_then(|newline| start.get(newline + 1..))
            .is_some_and(|rest| rest.starts_with(&MAGIC))
}

/// The offset of the end of a file's first record, from the file's first bytes; `None` if these
/// bytes are too few.
pub fn first_record_end(start: &[u8]) -> Option<u64> {
    if start.len() < PREFIX_LEN_BYTES {
        return None;
    }
    let (header, data_start) = Header::parse(start).ok()?;
    header.data_len_bytes().ok()?.checked_add(data_start as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::array::{Dtype, Shape};

    fn record(value: f32) -> Vec<u8> {
        let mut bytes = Header::for_array(Dtype::Float32, Shape::scalar(), true).to_bytes();
        bytes.extend(value.to_le_bytes());
        bytes
    }

    #[test]
    fn records_follow_each_other() {
        let file = [record(1.0), record(2.0)].concat();
        let scan = Scan::of(&file).unwrap();
        let places: Vec<_> =
            scan.records.iter().map(|record| (record.offset_bytes, record.data_offset_bytes)).collect();
        assert_eq!(places, [(0, 128), (132, 260)]);
        assert!(scan.broken.is_none() && scan.end_bytes == 264 && scan.line.is_none());
    }

    #[test]
    fn a_line_stands_in_front() {
        let file = [b"{\"depth\": 2}\n".to_vec(), record(1.0)].concat();
        assert!(is_line_and_record(&file));
        let scan = Scan::of(&file).unwrap();
        assert_eq!(scan.line.unwrap().value, serde_json::json!({"depth": 2}));
        assert_eq!(scan.records[0].offset_bytes, 13);
        assert!(Scan::of(b"{\"depth\": 2}").is_err());
        assert!(Scan::of(b"{depth}\n").is_err());
    }

    #[test]
    fn a_record_that_is_cut_off_is_broken_and_other_bytes_are_none() {
        let file = [record(1.0), record(2.0)].concat();
        for len in 133..264 {
            let scan = Scan::of(&file[..len]).unwrap();
            assert_eq!(scan.records.len(), 1, "{len}");
            assert!(scan.broken.unwrap().place().offset_bytes.unwrap() >= 132, "{len}");
        }
        let scan = Scan::of(&[&record(1.0)[..], b"junk"].concat()).unwrap();
        assert!(scan.broken.is_none() && scan.end_bytes == 132);
    }
}
