//! The header: bytes to [`Header`]. [`build`](super::build) is the other direction. No I/O.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserializer as _;
use serde::de::{Deserialize, MapAccess, Visitor};

use regrow_base::bytes::limits::SAFETENSORS_HEADER_LEN_MAX_BYTES;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Dtype, Shape};

pub use crate::options::LENGTH_LEN_BYTES;

/// Data begins at a multiple of this in the files that regrow writes: a page.
pub const DATA_ALIGNMENT_BYTES: usize = 4096;

pub(super) const METADATA: &str = "__metadata__";

/// safetensors' name of a dtype, the dtype, and the bits that an element takes in the file. Dtypes
/// of less than 8 bits are packed in the file. In memory an element takes a byte.
///
/// The rows have the order of safetensors' own list. The writer of safetensors puts tensors into a
/// file in the reverse order.
const DTYPES: [(&str, Dtype, u64); 22] = [
    ("BOOL", Dtype::Bool, 8),
    (F4, Dtype::Float4E2m1fn, 4),
    ("F6_E2M3", Dtype::Float6E2m3fn, 6),
    ("F6_E3M2", Dtype::Float6E3m2fn, 6),
    ("U8", Dtype::UInt8, 8),
    ("I8", Dtype::Int8, 8),
    ("F8_E5M2", Dtype::Float8E5m2, 8),
    ("F8_E4M3", Dtype::Float8E4m3fn, 8),
    ("F8_E8M0", Dtype::Float8E8m0fnu, 8),
    ("F8_E4M3FNUZ", Dtype::Float8E4m3fnuz, 8),
    ("F8_E5M2FNUZ", Dtype::Float8E5m2fnuz, 8),
    ("I16", Dtype::Int16, 16),
    ("U16", Dtype::UInt16, 16),
    ("F16", Dtype::Float16, 16),
    ("BF16", Dtype::BFloat16, 16),
    ("I32", Dtype::Int32, 32),
    ("U32", Dtype::UInt32, 32),
    ("F32", Dtype::Float32, 32),
    ("C64", Dtype::Complex64, 64),
    ("F64", Dtype::Float64, 64),
    ("I64", Dtype::Int64, 64),
    ("U64", Dtype::UInt64, 64),
];

/// The packed dtype that can be read and written: two elements in a byte.
pub const F4: &str = "F4";

/// One tensor of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The name of the tensor.
    pub name: Arc<str>,
    /// safetensors' name of its dtype.
    pub tag: &'static str,
    /// The dtype of the elements.
    pub dtype: Dtype,
    /// Bits that an element takes in the file: fewer than in memory for a packed dtype.
    pub element_bits: u64,
    /// Its shape, in elements.
    pub shape: Shape,
    /// The offset of its first byte, from the start of the file.
    pub offset_bytes: u64,
    /// Number of bytes in the file.
    pub len_bytes: u64,
}

impl Tensor {
    /// Whether several elements share a byte.
    pub fn is_packed(&self) -> bool {
        self.element_bits < 8
    }
}

/// A valid header: names differ, tensors follow each other without gaps and fill the file, and the
/// length of each fits its dtype and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The tensors, in the order of their bytes.
    pub tensors: Vec<Tensor>,
    /// The entries of `__metadata__`, if there is one. Their names differ.
    pub metadata: Option<Vec<(String, String)>>,
    /// The offset of the data in the file.
    pub data_offset: u64,
}

impl Header {
    /// The length of the header, from the first eight bytes of a file of `file_len_bytes`.
    ///
    /// # Errors
    /// `Corrupt` if the header does not fit in the file; `Limit` above safetensors' own 100 MB.
    pub fn len_bytes(first: [u8; LENGTH_LEN_BYTES], file_len_bytes: u64) -> Result<u64> {
        let len = u64::from_le_bytes(first);
        if len > SAFETENSORS_HEADER_LEN_MAX_BYTES {
            return Err(Error::new(
                ErrorKind::Limit,
                "the safetensors header is too long, or this is not a safetensors file",
            )
            .at_byte(0)
            .expected(format_args!("at most {SAFETENSORS_HEADER_LEN_MAX_BYTES} bytes"), len));
        }
        if len < 2 || len > file_len_bytes.saturating_sub(LENGTH_LEN_BYTES as u64) {
            return Err(Error::corrupt("the safetensors header does not fit in its file")
                .at_byte(0)
                .expected(
                    format_args!("2 to {} bytes", file_len_bytes.saturating_sub(LENGTH_LEN_BYTES as u64)),
                    len,
                )
                .help("the file was cut short; copy it again"));
        }
        Ok(len)
    }

    /// Whether a file of `file_len_bytes` with these first bytes may be a safetensors file: the
    /// header fits in the file, and begins like a JSON object.
    pub(super) fn begins_file(first: &[u8], file_len_bytes: u64) -> bool {
        let Some((len, rest)) = first.split_first_chunk::<LENGTH_LEN_BYTES>() else { return false };
        let rest = rest.trim_ascii_start();
        let is_object = rest.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
        Self::len_bytes(*len, file_len_bytes).is_ok()
            && is_object.is_some_and(|rest| rest.starts_with(b"\"") || rest.starts_with(b"}"))
    }

    /// Parses the header `json` of a file of `file_len_bytes`.
    ///
    /// # Errors
    /// `Corrupt` if it breaks a rule of the format; `Unsupported` for a dtype that is not known.
    pub fn parse(json: &[u8], file_len_bytes: u64) -> Result<Self> {
        let header = Self::parse_alone(json)?;
        header.check_gaps()?;
        let last = header.tensors.last();
        let end = last.map_or(header.data_offset, |last| last.offset_bytes + last.len_bytes);
        if end != file_len_bytes {
            return Err(corrupt("the tensors do not fill the file")
                .expected(format_args!("{end} bytes"), file_len_bytes)
                .help("the file was cut short or extended: copy it again"));
        }
        Ok(header)
    }

    /// Parses the header of a file of any length, also with gaps between tensors. The tensors
    /// within the file can then be read.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_alone(json: &[u8]) -> Result<Self> {
        let data_offset = (LENGTH_LEN_BYTES + json.len()) as u64;
        // The format demands `{` first, but safetensors also accepts whitespace before it.
        if json.iter().find(|byte| !b" \t\n\r".contains(byte)) != Some(&b'{') {
            return Err(corrupt("the safetensors header does not begin with {"));
        }
        if json.ends_with(&[0]) {
            return Err(corrupt("the safetensors header is padded with NUL bytes, not with spaces")
                .help("report it to the authors of the writer: all other readers refuse the file too"));
        }
        let raw = std::str::from_utf8(json)
            .map_err(|error| corrupt("the safetensors header is not UTF-8").shift(error.valid_up_to() as u64))
            .and_then(|text| {
                let mut parser = serde_json::Deserializer::from_str(text);
                let raw = parser.deserialize_map(HeaderVisitor);
                raw.and_then(|raw| parser.end().map(|()| raw)).map_err(|error| {
                    json_error("the safetensors header cannot be read", json, LENGTH_LEN_BYTES, &error)
                })
            })?;
        let mut tensors = Vec::with_capacity(raw.tensors.len());
        for (name, tensor) in raw.tensors {
            tensors.push(tensor.check(name, data_offset)?);
        }
        tensors.sort_by_key(|tensor| (tensor.offset_bytes, tensor.len_bytes));
        let mut end = data_offset;
        for tensor in &tensors {
            if tensor.offset_bytes < end {
                return Err(misplaced(tensor, end, data_offset));
            }
            end = tensor.offset_bytes.checked_add(tensor.len_bytes).ok_or_else(|| {
                corrupt(&format!("tensor {:?} ends after the largest possible file", tensor.name))
            })?;
        }
        Ok(Self { tensors, metadata: raw.metadata, data_offset })
    }

    fn check_gaps(&self) -> Result<()> {
        let mut end = self.data_offset;
        for tensor in &self.tensors {
            if tensor.offset_bytes != end {
                return Err(misplaced(tensor, end, self.data_offset));
            }
            end = tensor.offset_bytes + tensor.len_bytes;
        }
        Ok(())
    }
}

fn misplaced(tensor: &Tensor, end: u64, data_offset: u64) -> Error {
    corrupt(&format!("tensor {:?} does not follow the one before it", tensor.name))
        .expected(format_args!("offset {}", end - data_offset), tensor.offset_bytes - data_offset)
}

/// The dtype and shape in the header for an array that is stored byte for byte as in memory. If
/// safetensors lacks the dtype, this is the nearest dtype of the same size. complex128 becomes F64
/// with a last axis of 2.
pub fn stored_as(dtype: Dtype, shape: &Shape) -> (&'static str, Vec<u64>) {
    let mut dims = shape.dims().to_vec();
    let raw_bits = 8 * dtype.size_bytes() as u64;
    match DTYPES.iter().find(|row| row.1 == dtype && row.2 == raw_bits) {
        Some((tag, ..)) => (tag, dims),
        None if dtype == Dtype::Complex128 => {
            dims.push(2);
            ("F64", dims)
        }
        None => ("U8", dims),
    }
}

/// Whether an array of this dtype and shape can be packed as F4: torch counts pairs along the last
/// axis.
pub fn can_be_packed(dtype: Dtype, shape: &Shape) -> bool {
    dtype == Dtype::Float4E2m1fn && shape.dims().last().is_some_and(|len| len.is_multiple_of(2))
}

/// Whether safetensors has this dtype with an element in whole bytes.
pub fn has_dtype(dtype: Dtype) -> bool {
    DTYPES.iter().any(|row| row.1 == dtype && row.2 >= 8)
}

/// safetensors' name of a dtype.
pub fn tag_of(dtype: Dtype) -> Option<&'static str> {
    DTYPES.iter().find(|row| row.1 == dtype).map(|row| row.0)
}

/// The position of a dtype in the order in which safetensors' writer stores tensors. The lowest
/// comes first.
pub fn writing_rank(tag: &str) -> usize {
    DTYPES.iter().rev().position(|row| row.0 == tag).unwrap_or(DTYPES.len())
}

/// An error at the start of the header.
fn corrupt(what: &str) -> Error {
    Error::corrupt(what).at_byte(LENGTH_LEN_BYTES as u64)
}

/// The error for JSON `text` that cannot be parsed, with the offset of the problem. `text` begins
/// at byte `base` of its file.
pub(super) fn json_error(what: &str, text: &[u8], base: usize, error: &serde_json::Error) -> Error {
    let line_start = match error.line().checked_sub(2) {
        Some(lines) => {
            text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(lines).map_or(0, |(at, _)| at + 1)
        }
        None => 0,
    };
    let why = error.to_string();
    let why = why.split(" at line ").next().unwrap_or_default();
    Error::corrupt(format!("{what}: {why}")).at_byte((base + line_start + error.column()) as u64)
}

struct RawHeader {
    tensors: Vec<(Arc<str>, RawTensor)>,
    metadata: Option<Vec<(String, String)>>,
}

#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: Tag,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl RawTensor {
    fn check(self, name: Arc<str>, data_offset: u64) -> Result<Tensor> {
        let (tag, dtype, element_bits) = self.dtype.0.map_err(|tag| {
            Error::unsupported(format!("tensor {name:?} has the unknown dtype {tag:?}"))
                .at_byte(LENGTH_LEN_BYTES as u64)
        })?;
        let (start, end) = self.data_offsets;
        let shape = Shape::new(self.shape).map_err(|error| error.at_byte(LENGTH_LEN_BYTES as u64))?;
        let len_bits = shape.len_elements().checked_mul(element_bits).filter(|bits| bits.is_multiple_of(8));
        let len_bytes = end.checked_sub(start);
        let offset_bytes = start.checked_add(data_offset);
        match (len_bits, len_bytes, offset_bytes) {
            (Some(bits), Some(len_bytes), Some(offset_bytes)) if bits / 8 == len_bytes => {
                Ok(Tensor { name, tag, dtype, element_bits, shape, offset_bytes, len_bytes })
            }
            _ => {
                let expected = match len_bits {
                    Some(bits) => format!("{} bytes", bits / 8),
                    None => "a size in whole bytes, below 2^64 bits".to_owned(),
                };
                Err(corrupt(&format!("tensor {name:?} of dtype {tag} and shape {shape} has other offsets"))
                    .expected(expected, format_args!("{start} to {end}")))
            }
        }
    }
}

/// A row of [`DTYPES`], or an unknown dtype name.
struct Tag(Result<(&'static str, Dtype, u64), String>);

impl<'de> Deserialize<'de> for Tag {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TagVisitor;
        impl Visitor<'_> for TagVisitor {
            type Value = Tag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a dtype")
            }

            fn visit_str<E>(self, tag: &str) -> Result<Tag, E> {
                Ok(Tag(DTYPES.iter().find(|row| row.0 == tag).copied().ok_or_else(|| tag.to_owned())))
            }
        }
        from.deserialize_str(TagVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let (mut tensors, mut metadata) = (Vec::new(), None);
        // Find repeated names here, before a million tensors with one name are in memory.
        let mut names: HashSet<Arc<str>> = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name != METADATA {
                let name: Arc<str> = Arc::from(name);
                if !names.insert(name.clone()) {
                    return Err(serde::de::Error::custom(format_args!("it names tensor {name:?} twice")));
                }
                tensors.push((name, map.next_value()?));
                continue;
            }
            let strings: Option<Strings> = map.next_value()?;
            if metadata.replace(strings).is_some() {
                return Err(serde::de::Error::duplicate_field(METADATA));
            }
        }
        let metadata = metadata.flatten().map(|Strings(entries)| entries);
        Ok(RawHeader { tensors, metadata })
    }
}

/// A map of strings to strings, in order. If a name is repeated, its last entry counts, as in
/// safetensors.
struct Strings(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct StringsVisitor;
        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = Strings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                let mut out: Vec<(String, String)> = Vec::new();
                let mut positions: HashMap<String, usize> = HashMap::new();
                while let Some((name, text)) = map.next_entry::<String, String>()? {
                    match positions.get(&name).and_then(|&at| out.get_mut(at)) {
                        Some(entry) => entry.1 = text,
                        None => {
                            positions.insert(name.clone(), out.len());
                            out.push((name, text));
                        }
                    }
                }
                Ok(Strings(out))
            }
        }
        from.deserialize_map(StringsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str, data_len: u64) -> Result<Header> {
        Header::parse(json.as_bytes(), LENGTH_LEN_BYTES as u64 + json.len() as u64 + data_len)
    }

    #[test]
    fn every_rule_of_the_format_is_kept() {
        let tensor = |dtype: &str, shape: &str, start: u64, end: u64| {
            format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
        };
        let one = tensor("F32", "[2]", 0, 8);
        assert!(parse(&format!("{{\"a\":{one}}}"), 8).is_ok());
        assert!(parse(&format!("{{\"a\":{one}}}  "), 8).is_ok(), "spaces at the end");
        let ahead = parse(&format!(" \n\r\t{{\"a\":{one}}}"), 8).unwrap();
        assert_eq!(
            (ahead.tensors[0].offset_bytes, ahead.data_offset),
            (ahead.data_offset, 8 + 4 + 6 + one.len() as u64)
        );
        let packed = parse(&format!("{{\"a\":{}}}", tensor("F4", "[4]", 0, 2)), 2).unwrap();
        assert!(packed.tensors[0].is_packed());
        let bad = [
            (format!("\u{b}{{\"a\":{one}}}"), 8, "does not begin"),
            ("  ".to_owned(), 0, "does not begin"),
            (format!("{{\"a\":{one}}}x"), 8, "cannot be read"),
            (format!("{{\"a\":{one}}}"), 9, "fill the file"),
            (format!("{{\"a\":{one}}}"), 7, "fill the file"),
            (format!("{{\"a\":{one},\"a\":{}}}", tensor("F32", "[2]", 8, 16)), 16, "twice"),
            (format!("{{\"a\":{one},\"b\":{}}}", tensor("F32", "[2]", 9, 17)), 17, "follow"),
            (format!("{{\"a\":{one},\"b\":{}}}", tensor("F32", "[2]", 4, 12)), 12, "follow"),
            (format!("{{\"a\":{}}}", tensor("F32", "[3]", 0, 8)), 8, "other offsets"),
            (format!("{{\"a\":{}}}", tensor("F32", "[2]", 8, 0)), 8, "other offsets"),
            (format!("{{\"a\":{}}}", tensor("F4", "[3]", 0, 1)), 1, "other offsets"),
            (format!("{{\"a\":{}}}", tensor("F31", "[2]", 0, 8)), 8, "unknown dtype"),
            (format!("{{\"a\":{}}}", tensor("F32", "[18446744073709551615,2]", 0, 8)), 8, "2^63"),
            (format!("{{\"a\":{}}}", tensor("F32", "[-1]", 0, 8)), 8, "cannot be read"),
            ("{\"__metadata__\":{\"a\":1}}".to_owned(), 0, "cannot be read"),
            ("{\"__metadata__\":{},\"__metadata__\":{}}".to_owned(), 0, "cannot be read"),
        ];
        for (json, data_len, why) in bad {
            let error = parse(&json, data_len).unwrap_err().to_string();
            assert!(error.contains(why), "{json}: {error}");
        }
    }

    #[test]
    fn the_last_of_equal_metadata_counts_and_none_is_not_empty() {
        let metadata = |json: &str| parse(json, 0).unwrap().metadata;
        let entry = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let twice = "{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\",\"a\":\"3\"}}";
        assert_eq!(metadata(twice), Some(vec![entry("a", "3"), entry("b", "2")]));
        assert_eq!(metadata("{\"__metadata__\":{}}"), Some(vec![]));
        assert_eq!(metadata("{\"__metadata__\":null}"), None);
        assert_eq!(metadata("{}"), None);
    }

    #[test]
    fn an_error_names_its_byte() {
        let error = parse("{\"a\":\n{\"dtype\":3}}", 0).unwrap_err();
        assert_eq!(error.place().offset_bytes, Some(8 + 6 + 10), "{error}");
        assert!(!error.to_string().contains("line"), "{error}");
    }

    #[test]
    fn a_length_from_nowhere_is_refused() {
        for (len, file_len) in [(u64::MAX, 100), (200_000_000, 1 << 40), (93, 100), (0, 100)] {
            assert!(Header::len_bytes(u64::to_le_bytes(len), file_len).is_err(), "{len} of {file_len}");
        }
    }
}
