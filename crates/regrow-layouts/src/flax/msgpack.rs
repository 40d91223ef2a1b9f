//! Reads msgpack front to back: bytes to [`Token`]s, each with its position.
//!
//! ```text
//! 00..7f  int        80..8f  map 0..15      c0  nil         c4 c5 c6  bin 8 16 32     d0..d3     int 8..64
//! e0..ff  int -32..  90..9f  array 0..15    c2 c3  bool     c7 c8 c9  ext 8 16 32     d4..d8     fixext 1..16
//!                    a0..bf  str 0..31      ca cb  float    cc..cf    uint 8..64      d9 da db   str 8 16 32
//!                                           c1  never used                            dc..df     array, map 16 32
//! ```
//!
//! There are no copies and no recursion: a string, a buffer or an extension is a range. A length or
//! count larger than the remaining bytes is refused before any allocation.
//!
//! Source: msgpack `spec.md`.

use std::ops::Range;

use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::text::counted;

/// The most nested containers, the limit of Flax' own decoder.
pub const DEPTH_MAX: usize = 1024;

/// One token of an object: a scalar, a range of bytes, or the number of items that follow.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    /// `None`.
    Nil,
    /// A bool.
    Bool(bool),
    /// An integer below 2^63.
    Int(i64),
    /// An integer from 2^63 on.
    UInt(u64),
    /// A float; 32 bits are widened.
    Float(f64),
    /// Text, not yet known to be UTF-8.
    Str(Range<usize>),
    /// Bytes.
    Bin(Range<usize>),
    /// An array: this many items follow.
    Array(usize),
    /// A map: this many pairs of key and value follow.
    Map(usize),
    /// An extension: its code and the range of its payload.
    Ext(i8, Range<usize>),
}

/// Reads tokens. Offsets count from the start of the bytes, also when only a part of them is read.
#[derive(Debug, Clone)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The length of all bytes; `bytes` may have only the first of them.
    len: usize,
}

impl<'a> Scanner<'a> {
    /// Reads `bytes` from start to end.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, len: bytes.len() }
    }

    /// Reads a range of `bytes`, such as the payload of an extension.
    pub fn within(bytes: &'a [u8], range: Range<usize>) -> Self {
        let bytes = bytes.get(..range.end).unwrap_or(bytes);
        Self { bytes, at: range.start, len: bytes.len() }
    }

    /// The offset of the next token.
    pub fn offset_bytes(&self) -> u64 {
        self.at as u64
    }

    /// The bytes of a token's range.
    pub fn slice(&self, range: &Range<usize>) -> &'a [u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    /// The text of a token's range.
    ///
    /// # Errors
    /// `Corrupt`, at the first byte that is not UTF-8.
    pub fn text(&self, range: &Range<usize>) -> Result<&'a str> {
        std::str::from_utf8(self.slice(range)).map_err(|error| {
            Error::corrupt("a text is not UTF-8").at_byte((range.start + error.valid_up_to()) as u64)
        })
    }

    /// The next token.
    ///
    /// # Errors
    /// `Corrupt` with the offset: the bytes end, a count does not fit in the remaining bytes, or
    /// the byte is never used.
    #[expect(clippy::should_implement_trait, reason = "an iterator would not stop at the end of the object")]
    pub fn next(&mut self) -> Result<Token> {
        let start = self.at;
        let token = self.token().map_err(|error| error.at_byte(start as u64));
        if token.is_err() {
            self.at = start;
        }
        token
    }

    fn token(&mut self) -> Result<Token> {
        let [first] = self.array()?;
        Ok(match first {
            0x00..=0x7f => Token::Int(i64::from(first)),
            0x80..=0x8f => self.map(usize::from(first & 0x0f))?,
            0x90..=0x9f => self.items(usize::from(first & 0x0f))?,
            0xa0..=0xbf => Token::Str(self.range(usize::from(first & 0x1f))?),
            0xc0 => Token::Nil,
            0xc1 => {
                return Err(Error::corrupt("msgpack never uses the byte 0xc1").help("the file is damaged"));
            }
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4..=0xc6 => {
                let len = self.len(first - 0xc4)?;
                Token::Bin(self.range(len)?)
            }
            0xc7..=0xc9 => {
                let len = self.len(first - 0xc7)?;
                self.ext(len)?
            }
            0xca => Token::Float(f64::from(f32::from_be_bytes(self.array()?))),
            0xcb => Token::Float(f64::from_be_bytes(self.array()?)),
            0xcc => Token::Int(i64::from(u8::from_be_bytes(self.array()?))),
            0xcd => Token::Int(i64::from(u16::from_be_bytes(self.array()?))),
            0xce => Token::Int(i64::from(u32::from_be_bytes(self.array()?))),
            0xcf => {
                let value = u64::from_be_bytes(self.array()?);
                i64::try_from(value).map_or(Token::UInt(value), Token::Int)
            }
            0xd0 => Token::Int(i64::from(i8::from_be_bytes(self.array()?))),
            0xd1 => Token::Int(i64::from(i16::from_be_bytes(self.array()?))),
            0xd2 => Token::Int(i64::from(i32::from_be_bytes(self.array()?))),
            0xd3 => Token::Int(i64::from_be_bytes(self.array()?)),
            0xd4..=0xd8 => self.ext(1 << (first - 0xd4))?,
            0xd9..=0xdb => {
                let len = self.len(first - 0xd9)?;
                Token::Str(self.range(len)?)
            }
            0xdc | 0xdd => {
                let count = self.len(first - 0xdc + 1)?;
                self.items(count)?
            }
            0xde | 0xdf => {
                let count = self.len(first - 0xde + 1)?;
                self.map(count)?
            }
            0xe0..=0xff => Token::Int(i64::from(i8::from_be_bytes([first]))),
        })
    }

    fn len(&mut self, width: u8) -> Result<usize> {
        Ok(match width {
            0 => usize::from(u8::from_be_bytes(self.array()?)),
            1 => usize::from(u16::from_be_bytes(self.array()?)),
            _ => u32::from_be_bytes(self.array()?) as usize,
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let range = self.range(N)?;
        let mut out = [0; N];
        out.copy_from_slice(self.slice(&range));
        Ok(out)
    }

    fn range(&mut self, len: usize) -> Result<Range<usize>> {
        let left = self.left();
        if len > left {
            return Err(Error::corrupt("the msgpack ends inside an object")
                .expected(format_args!("{len} bytes more"), left)
                .help("the file is cut short or damaged; copy it again"));
        }
        let range = self.at..self.at + len;
        self.at = range.end;
        Ok(range)
    }

    fn ext(&mut self, len: usize) -> Result<Token> {
        let code = i8::from_be_bytes(self.array()?);
        Ok(Token::Ext(code, self.range(len)?))
    }

    fn items(&self, count: usize) -> Result<Token> {
        self.check_count(count, 1, "items").map(Token::Array)
    }

    fn map(&self, count: usize) -> Result<Token> {
        self.check_count(count, 2, "entries").map(Token::Map)
    }

    /// Returns `count`, or an error if the remaining bytes are too few: each item takes at least
    /// `each_bytes`.
    fn check_count(&self, count: usize, each_bytes: usize, what: &str) -> Result<usize> {
        let fits = self.left() / each_bytes;
        if count > fits {
            return Err(Error::corrupt(format!("the file is too short for its number of {what}"))
                .expected(format_args!("at most {fits}"), count)
                .help("the file is cut short or damaged; copy it again"));
        }
        Ok(count)
    }

    fn left(&self) -> usize {
        self.len.saturating_sub(self.at)
    }

    /// Returns an error if bytes remain.
    ///
    /// # Errors
    /// `Corrupt`, at the first byte after `what`.
    pub fn finish(&self, what: &str) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(Error::corrupt(format!(
                "{} left over after {what}",
                counted(left, "byte is", "bytes are")
            ))
            .at_byte(self.offset_bytes())),
        }
    }
}

pub(crate) fn too_deep() -> Error {
    Error::new(ErrorKind::Limit, format!("the msgpack is nested deeper than {DEPTH_MAX} levels"))
        .help("Flax itself cannot read more levels")
}

pub(crate) fn begins_map(first: u8) -> bool {
    matches!(first, 0x80..=0x8f | 0xde | 0xdf)
}

/// Whether an object that begins with this byte is a map, an array or an extension. Flax' files
/// begin like this, and no text does.
pub(crate) fn begins_tree(first: u8) -> bool {
    begins_map(first) || matches!(first, 0x90..=0x9f | 0xc7..=0xc9 | 0xd4..=0xd8 | 0xdc | 0xdd)
}

/// The longest token, without its text, buffer or payload.
const TOKEN_LEN_MAX_BYTES: usize = 9;

/// Whether `bytes` are exactly one object, by their structure alone. Also true if the first
/// `tokens_max` tokens are valid: the rest is not read.
pub(crate) fn is_one_object(bytes: &[u8], tokens_max: usize) -> bool {
    begins_one_object(bytes, bytes.len() as u64, tokens_max)
}

/// As `is_one_object`, for an object of `len_bytes` bytes that begins with `start`. Also true if
/// all tokens in `start` are valid.
pub(crate) fn begins_one_object(start: &[u8], len_bytes: u64, tokens_max: usize) -> bool {
    let len_bytes = usize::try_from(len_bytes).unwrap_or(usize::MAX);
    let mut scanner = Scanner { bytes: start, at: 0, len: len_bytes };
    // The number of values to come in each open container.
    let mut open: Vec<usize> = Vec::new();
    for _ in 0..tokens_max {
        if len_bytes > start.len() && scanner.at.saturating_add(TOKEN_LEN_MAX_BYTES) > start.len() {
            return true;
        }
        let values = match scanner.next() {
            Ok(Token::Array(count)) => count,
            Ok(Token::Map(count)) => 2 * count,
            Ok(_) => 0,
            Err(_) => return false,
        };
        if values > 0 {
            open.push(values);
            if open.len() > DEPTH_MAX {
                return false;
            }
            continue;
        }
        // The value is complete, and so are all containers whose last value it is.
        while let Some(left) = open.last_mut() {
            *left -= 1;
            if *left > 0 {
                break;
            }
            open.pop();
        }
        if open.is_empty() {
            return scanner.left() == 0;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: &[u8]) -> Token {
        let mut scanner = Scanner::new(bytes);
        let token = scanner.next().unwrap();
        scanner.finish("it").unwrap();
        token
    }

    #[test]
    fn numbers_of_every_width() {
        for (bytes, value) in [
            (&[0x7f][..], 127),
            (&[0xff], -1),
            (&[0xe0], -32),
            (&[0xcc, 0x80], 128),
            (&[0xcd, 1, 0], 256),
            (&[0xce, 0, 1, 0, 0], 65536),
            (&[0xd0, 0x80], -128),
            (&[0xd1, 0x80, 0], -32768),
            (&[0xd2, 0x80, 0, 0, 0], i64::from(i32::MIN)),
            (&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], i64::MIN),
            (&[0xcf, 0, 0, 0, 0, 0, 0, 0, 9], 9),
        ] {
            assert_eq!(one(bytes), Token::Int(value), "{bytes:x?}");
        }
        assert_eq!(one(&[0xcf; 9]), Token::UInt(0xcfcf_cfcf_cfcf_cfcf));
        assert_eq!(one(&[0xca, 0x3f, 0xc0, 0, 0]), Token::Float(1.5));
    }

    #[test]
    fn ranges_are_places() {
        assert_eq!(one(&[0xa2, b'a', b'b']), Token::Str(1..3));
        assert_eq!(one(&[0xc4, 1, 9]), Token::Bin(2..3));
        assert_eq!(one(&[0xd5, 0xff, 1, 2]), Token::Ext(-1, 2..4));
        assert_eq!(one(&[0xc7, 0, 5]), Token::Ext(5, 3..3));
        let mut inner = Scanner::within(&[9, 9, 0xa1, b'x', 9], 2..4);
        assert_eq!(inner.next().unwrap(), Token::Str(3..4));
        inner.finish("the payload").unwrap();
    }

    #[test]
    fn refuses_what_cannot_be_there() {
        for bytes in [
            &[][..],
            &[0xc1],
            &[0xa2, b'a'],
            &[0x91],
            &[0x81, 1],
            &[0xdd, 0xff, 0xff, 0xff, 0xff, 1],
            &[0xdf, 0x80, 0, 0, 0, 1, 1],
            &[0xc6, 0xff, 0xff, 0xff, 0xff, 1],
            &[0xc9, 0xff, 0xff, 0xff, 0xff, 1, 1],
            &[0xd8, 1, 0],
        ] {
            let error = Scanner::new(bytes).next().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{bytes:x?}");
            assert_eq!(error.place().offset_bytes, Some(0), "{bytes:x?}");
        }
    }

    #[test]
    fn tells_one_object_from_others() {
        for bytes in [&[0x80][..], &[0x92, 0x81, 1, 0x90, 0xc0], &[0x07], &[0x91, 0x91, 0x80]] {
            assert!(is_one_object(bytes, 100), "{bytes:x?}");
        }
        for bytes in [&[][..], &[0x80, 0x80], &[0x92, 1], b"\x89PNG\r\n\x1a\n", &[0x91; 5000]] {
            assert!(!is_one_object(bytes, 10_000), "{bytes:x?}");
        }
    }

    #[test]
    fn the_beginning_of_one_object_is_told_from_others() {
        let data = [&[0x81, 0xa1, b'a', 0xc5, 1, 0][..], &[7; 256]].concat();
        for len in 0..=data.len() {
            assert!(begins_one_object(&data[..len], data.len() as u64, 100), "{len}");
        }
        // One byte follows the object. The function sees this when it has read the last token.
        for len in [20, data.len()] {
            assert!(!begins_one_object(&data[..len], data.len() as u64 + 1, 100), "{len}");
        }
        assert!(begins_one_object(&data[..10], data.len() as u64 + 1, 100));
        assert!(!begins_one_object(&data[..20], 100, 100));
    }
}
