//! Flax' forms in msgpack: the extensions, and arrays in chunks.
//!
//! ```text
//! ext 1   array          payload: msgpack [shape, dtype name, bytes in C order]
//! ext 2   complex        payload: msgpack [real, imaginary], two float 64
//! ext 3   NumPy scalar   payload as of ext 1, shape []
//! {"__msgpack_chunked_array__": true, "shape": {"0": …}, "chunks": {"0": ext 1, …}}   arrays over 1 GiB
//! ```
//!
//! Source: flax `serialization.py`.

use std::ops::Range;

use super::msgpack::{Scanner, Token};
use regrow_base::bytes::limits::RANK_MAX;
use regrow_base::error::{Error, Result};

/// Extension code of an array.
pub const EXT_NDARRAY: i8 = 1;
/// Extension code of a Python complex.
pub const EXT_COMPLEX: i8 = 2;
/// Extension code of a NumPy scalar.
pub const EXT_NUMPY_SCALAR: i8 = 3;

/// Extension code of msgpack's own timestamp. Codes below it are reserved.
pub const EXT_TIMESTAMP: i8 = -1;

/// The key that marks a map as an array in chunks. Its value is not used.
pub const CHUNKED_KEY: &str = "__msgpack_chunked_array__";
/// The key of the whole array's shape in a map with `CHUNKED_KEY`.
pub const SHAPE_KEY: &str = "shape";
/// The key of the chunks in a map with `CHUNKED_KEY`.
pub const CHUNKS_KEY: &str = "chunks";

pub use crate::options::CHUNK_LEN_MAX_BYTES;

/// An array as an extension stores it. The length of its data is not yet compared with its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredArray<'a> {
    /// The shape.
    pub dims: Vec<u64>,
    /// NumPy's name of the dtype.
    pub dtype_name: &'a str,
    /// The offset of the name.
    pub dtype_name_at: u64,
    /// The range of the data.
    pub data: Range<usize>,
}

/// Reads the payload of extension 1 or 3, which lies at `payload` in `bytes`.
///
/// # Errors
/// `Corrupt`, with the offset in `bytes`.
pub fn parse_array(bytes: &[u8], payload: Range<usize>) -> Result<StoredArray<'_>> {
    let mut scanner = Scanner::within(bytes, payload);
    let start = scanner.offset_bytes();
    let bad = |at: u64, what: &str| {
        Error::corrupt(what.to_owned()).at_byte(at).help("a msgpack array of shape, dtype name and data")
    };
    if scanner.next()? != Token::Array(3) {
        return Err(bad(start, "an array is not stored as shape, dtype and data"));
    }
    let at = scanner.offset_bytes();
    let rank = match scanner.next()? {
        Token::Array(rank) if rank <= RANK_MAX => rank,
        _ => return Err(bad(at, "the shape of an array is not a list of at most 64 numbers")),
    };
    let mut dims = Vec::with_capacity(rank);
    for _ in 0..rank {
        let at = scanner.offset_bytes();
        match scanner.next()? {
            Token::Int(dim) if dim >= 0 => dims.push(dim.unsigned_abs()),
            _ => return Err(bad(at, "a length in the shape of an array is not an integer of at least 0")),
        }
    }
    let dtype_name_at = scanner.offset_bytes();
    let dtype_name = match scanner.next()? {
        Token::Str(range) | Token::Bin(range) => scanner.text(&range)?,
        _ => return Err(bad(dtype_name_at, "the dtype of an array is not text")),
    };
    let at = scanner.offset_bytes();
    let data = match scanner.next()? {
        Token::Str(range) | Token::Bin(range) => range,
        _ => return Err(bad(at, "the data of an array is not bytes")),
    };
    scanner.finish("the data of an array")?;
    Ok(StoredArray { dims, dtype_name, dtype_name_at, data })
}

/// Reads the payload of extension 2.
///
/// # Errors
/// `Corrupt`, with the offset in `bytes`.
pub fn parse_complex(bytes: &[u8], payload: Range<usize>) -> Result<(f64, f64)> {
    let mut scanner = Scanner::within(bytes, payload);
    let start = scanner.offset_bytes();
    let (Token::Array(2), Token::Float(re), Token::Float(im)) =
        (scanner.next()?, scanner.next()?, scanner.next()?)
    else {
        return Err(Error::corrupt("a complex number is not stored as two floats").at_byte(start));
    };
    scanner.finish("a complex number")?;
    Ok((re, im))
}

/// Seconds and nanoseconds of a timestamp; `None` for a payload that is not a timestamp.
pub fn parse_timestamp(payload: &[u8]) -> Option<(i64, u32)> {
    let (seconds, nanoseconds) = if let Ok(seconds) = payload.try_into().map(u32::from_be_bytes) {
        (i64::from(seconds), 0)
    } else if let Ok(both) = payload.try_into().map(u64::from_be_bytes) {
        ((both & ((1 << 34) - 1)) as i64, (both >> 34) as u32)
    } else {
        let (nanoseconds, seconds) = payload.split_first_chunk::<4>()?;
        (i64::from_be_bytes(seconds.try_into().ok()?), u32::from_be_bytes(*nanoseconds))
    };
    (nanoseconds < NANOSECONDS).then_some((seconds, nanoseconds))
}

const NANOSECONDS: u32 = 1_000_000_000;

/// The error for a payload that [`parse_timestamp`] does not accept.
pub fn bad_timestamp() -> Error {
    Error::corrupt("a timestamp is not 4, 8 or 12 bytes with less than 1000000000 nanoseconds")
}

/// The error for an extension whose code msgpack reserves. msgpack's decoder refuses these codes,
/// and so does Flax.
pub fn reserved_code(code: i8) -> Error {
    Error::corrupt(format!("the extension code {code} is reserved by msgpack"))
        .expected("0 to 127, or -1 for a timestamp", code)
        .help("the file is damaged, or was not written by Flax")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_shape_dtype_and_data() {
        let bytes = [&[0xff, 0x93, 0x92, 2, 0, 0xa4][..], b"int8", &[0xc4, 0]].concat();
        let stored = parse_array(&bytes, 1..bytes.len()).unwrap();
        assert_eq!((&stored.dims[..], stored.dtype_name, stored.data.len()), (&[2, 0][..], "int8", 0));
    }

    #[test]
    fn says_where_a_payload_is_wrong() {
        let bytes = [&[0x93, 0x91, 0xff, 0xa4][..], b"int8", &[0xc4, 0]].concat();
        let error = parse_array(&bytes, 0..bytes.len()).unwrap_err();
        assert_eq!(error.place().offset_bytes, Some(2));
        assert!(parse_complex(&[0x91, 1], 0..2).is_err());
    }
}
