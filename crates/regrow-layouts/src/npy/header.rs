//! The header before the data: bytes to [`Header`] and back. No I/O.
//!
//! ```text
//! 93 4E 55 4D 50 59 | major minor | length of the text, u16le (1.0) or u32le (2.0, 3.0) | text
//!
//! {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }........ \n
//! ```
//!
//! The text is a Python dict literal, in Latin-1 (1.0, 2.0) or UTF-8 (3.0). At its end there is
//! space for 21 digits of the first axis (the last in Fortran order), and then spaces and a newline
//! up to a multiple of 64 bytes, so that data is aligned in memory maps. Old NumPy (Python 2) wrote
//! longs as `2L`, and padded to 16.
//!
//! Source: NumPy NEP 1; `numpy.lib.format` of NumPy 1.23 and later for the padding.

use std::fmt::Write as _;

use super::descr::Descr;
use regrow_base::bytes::Cursor;
use regrow_base::bytes::python_literal::{Literal, LiteralOptions, parse};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Dtype, Shape};

/// First six bytes of every npy file.
pub const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// The first bytes of regrow's trailer after several records. They never change. A file with a
/// trailer is not one array but a stream of leaves: see [`equinox`](crate::equinox).
pub const TRAILER_MAGIC: [u8; 8] = *b"\xffregrow\n";

/// The number of bytes that show the length of the header. Every npy file has at least these.
pub const PREFIX_LEN_BYTES: usize = MAGIC.len() + 2 + size_of::<u32>();

/// Longest text of a header that is read. NumPy exceeds it only for records of many thousand
/// fields, and reads at most 10 000 bytes by default.
pub const HEADER_LEN_MAX_BYTES: usize = 1 << 20;

/// The data of a file begins at a multiple of this.
pub const ALIGNMENT_BYTES: usize = 64;

/// The number of digits for which the growing axis has room.
const GROWTH_DIGITS: usize = 21;

/// The contents of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The type of the elements.
    pub descr: Descr,
    /// Whether neighbours along the first axis are adjacent in memory.
    pub fortran_order: bool,
    /// The shape.
    pub shape: Shape,
}

impl Header {
    /// The header of a C-order array. With `named`, dtypes of ml_dtypes have their names; otherwise
    /// they are written as NumPy writes them.
    pub fn for_array(dtype: Dtype, shape: Shape, named: bool) -> Self {
        let descr = if named { Descr::named(dtype) } else { Descr::as_numpy_writes(dtype) };
        Self { descr, fortran_order: false, shape }
    }

    /// Length of all bytes before the data, from the first [`PREFIX_LEN_BYTES`] of a file. More
    /// bytes are ignored.
    ///
    /// # Errors
    /// `Corrupt` if this is not an npy file; `Unsupported` for another version; `Limit` for a
    /// header that is too long.
    pub fn len_bytes(prefix: &[u8]) -> Result<usize> {
        let mut input = Cursor::new(prefix);
        if input.array::<6>("the magic of an npy file")? != MAGIC {
            return Err(Error::corrupt("this is not an npy file").at_byte(0).expected(
                format_args!("{:?}", MAGIC.escape_ascii().to_string()),
                format_args!(
                    "{:?}",
                    prefix.get(..MAGIC.len()).unwrap_or_default().escape_ascii().to_string()
                ),
            ));
        }
        let version = input.array::<2>("the version of an npy file")?;
        let len = match version {
            [1, 0] => u16::from_le_bytes(input.array("the length of an npy header")?).into(),
            [2 | 3, 0] => u64::from(input.u32le("the length of an npy header")?),
            [major, minor] => {
                return Err(Error::unsupported(format!("npy version {major}.{minor} is not known"))
                    .at_byte(MAGIC.len() as u64)
                    .expected("1.0, 2.0 or 3.0", format_args!("{major}.{minor}")));
            }
        };
        if len > HEADER_LEN_MAX_BYTES as u64 {
            return Err(Error::new(ErrorKind::Limit, "the header of an npy file is too long")
                .at_byte((MAGIC.len() + 2) as u64)
                .expected(format_args!("at most {HEADER_LEN_MAX_BYTES} bytes"), len));
        }
        Ok(input.offset_bytes() as usize + len as usize)
    }

    /// Parses the header at the start of `bytes`, and returns it with the offset of the data. A
    /// prefix of [`len_bytes`](Self::len_bytes) is enough.
    ///
    /// # Errors
    /// `Corrupt` at a byte; `Unsupported` for another version, or a dtype that cannot be read;
    /// `Limit`.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize)> {
        let len = Self::len_bytes(bytes)?;
        let mut input = Cursor::new(bytes);
        let prefix = input.take(MAGIC.len() + 2, "the version")?;
        let major = prefix.last_chunk::<2>().map_or(0, |version| version[0]);
        let start = MAGIC.len() + 2 + if major == 1 { size_of::<u16>() } else { size_of::<u32>() };
        input.take(start - prefix.len(), "the length of an npy header")?;
        let raw = input.take(len - start, "an npy header")?;
        let text = if major == 3 {
            std::str::from_utf8(raw)
                .map_err(|error| {
                    Error::corrupt("an npy header is not UTF-8").at_byte((start + error.valid_up_to()) as u64)
                })?
                .to_owned()
        } else {
            raw.iter().map(|&byte| char::from(byte)).collect()
        };
        let header = Self::from_text(&text, major < 3).map_err(|error| error.shift(start as u64))?;
        Ok((header, len))
    }

    fn from_text(text: &str, python2_longs: bool) -> Result<Self> {
        let literal = parse(text, LiteralOptions { python2_longs, numpy_ints: false })?;
        let not_a_header = |found: &str| {
            Error::corrupt("an npy header is not a dict of descr, fortran_order and shape")
                .at_byte(0)
                .expected("these three keys, each once", found)
        };
        let Literal::Dict(entries) = literal else { return Err(not_a_header(literal.type_name())) };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        for (key, value) in entries {
            let place = match &key {
                Literal::Str(key) if key == "descr" => &mut descr,
                Literal::Str(key) if key == "fortran_order" => &mut fortran_order,
                Literal::Str(key) if key == "shape" => &mut shape,
                _ => return Err(not_a_header(&key.repr())),
            };
            if place.replace(value).is_some() {
                return Err(not_a_header(&format!("{} twice", key.repr())));
            }
        }
        let (Some(descr), Some(fortran_order), Some(shape)) = (descr, fortran_order, shape) else {
            return Err(not_a_header("fewer"));
        };
        let Literal::Bool(fortran_order) = fortran_order else {
            return Err(Error::corrupt("fortran_order is not a bool")
                .at_byte(0)
                .expected("True or False", fortran_order.repr()));
        };
        let header = Self {
            descr: Descr::from_literal(&descr).map_err(|error| error.at_byte(0))?,
            fortran_order,
            shape: shape_of(&shape).map_err(|error| error.at_byte(0))?,
        };
        header.data_len_bytes().map_err(|error| error.at_byte(0))?;
        Ok(header)
    }

    /// Length of the data.
    ///
    /// # Errors
    /// `Limit` if it does not fit in 63 bits.
    pub fn data_len_bytes(&self) -> Result<u64> {
        let len = self.shape.len_elements().checked_mul(self.descr.item_len_bytes());
        len.filter(|&len| len <= i64::MAX as u64).ok_or_else(|| {
            let dtype = self.descr.text();
            Error::new(
                ErrorKind::Limit,
                format!("an array of shape {} and dtype {dtype} passes 2^63 bytes", self.shape),
            )
        })
    }

    /// All bytes before the data, byte for byte as NumPy (1.23 and later) writes them.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = format!(
            "{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}",
            self.descr.repr(),
            if self.fortran_order { "True" } else { "False" },
            repr_shape(&self.shape),
        );
        let dims = self.shape.dims();
        if let Some(grows) = if self.fortran_order { dims.last() } else { dims.first() } {
            let room = GROWTH_DIGITS.saturating_sub(grows.to_string().len());
            text.extend(std::iter::repeat_n(' ', room));
        }
        let latin1: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
        let (major, text) = match latin1 {
            Some(latin1) => (1, latin1),
            None => (3, text.into_bytes()),
        };
        // At least one space, then the newline.
        let padded_len = |length_len: usize| {
            let before = MAGIC.len() + 2 + length_len;
            (before + text.len() + 2).next_multiple_of(ALIGNMENT_BYTES) - before
        };
        let short = u16::try_from(padded_len(size_of::<u16>())).ok().filter(|_| major == 1);
        let mut out = MAGIC.to_vec();
        let len = match short {
            Some(len) => {
                out.extend([1, 0]);
                out.extend(len.to_le_bytes());
                usize::from(len)
            }
            None => {
                let len = padded_len(size_of::<u32>());
                out.extend([major.max(2), 0]);
                out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
                len
            }
        };
        let end = out.len() + len;
        out.extend(text);
        out.resize(end - 1, b' ');
        out.push(b'\n');
        out
    }
}

fn shape_of(shape: &Literal) -> Result<Shape> {
    let bad = || {
        Error::corrupt("the shape of an npy header is not a tuple of sizes")
            .expected("such as (3, 4)", shape.repr())
    };
    let Literal::Tuple(dims) = shape else { return Err(bad()) };
    let dims: Option<Vec<u64>> = dims
        .iter()
        .map(|dim| match dim {
            Literal::Int(dim) => u64::try_from(*dim).ok(),
            _ => None,
        })
        .collect();
    Shape::new(dims.ok_or_else(bad)?)
}

/// Python's `repr` of the shape as a tuple.
pub fn repr_shape(shape: &Shape) -> String {
    let mut out = "(".to_owned();
    for (i, dim) in shape.dims().iter().enumerate() {
        let _ = write!(out, "{}{dim}", if i > 0 { ", " } else { "" });
    }
    out.push_str(if shape.rank() == 1 { ",)" } else { ")" });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numpy_would_write_the_same() {
        let header = Header::for_array(Dtype::Float32, Shape::new(vec![3, 4]).unwrap(), true);
        let bytes = header.to_bytes();
        let mut expected =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }".to_vec();
        expected.resize(127, b' ');
        expected.push(b'\n');
        assert_eq!(bytes, expected);
        assert_eq!(Header::parse(&bytes).unwrap(), (header, 128));
    }
}
