//! Reads a slice from front to back. The cursor knows its position, so every error has an offset.

use crate::error::{Error, Result};
use crate::text::counted;

/// Reads a slice in file order. The error of each method tells what could not be read, and where.
///
/// ```
/// use regrow_base::bytes::Cursor;
/// let mut input = Cursor::new(&[7, 0x81, 0x01]);
/// assert_eq!(input.u8("height")?, 7);
/// assert_eq!(input.varint("count")?, 129);
/// assert_eq!(input.u8("more").unwrap_err().place().offset_bytes, Some(3));
/// # Ok::<(), regrow_base::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Bytes read so far.
    #[inline]
    pub fn offset_bytes(&self) -> u64 {
        self.offset as u64
    }

    /// Bytes not read yet.
    #[inline]
    pub fn remaining_bytes(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Whether everything has been read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.remaining_bytes() == 0
    }

    /// The remaining bytes. Does not move the cursor.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.offset..).unwrap_or_default()
    }

    /// The next `len_bytes` bytes.
    pub fn take(&mut self, len_bytes: usize, what: &str) -> Result<&'a [u8]> {
        let end = self.offset.checked_add(len_bytes);
        let part = end.and_then(|end| self.bytes.get(self.offset..end));
        let Some(part) = part else {
            return Err(self
                .corrupt(format!("the bytes end inside {what}"))
                .expected(format_args!("{len_bytes} bytes"), format_args!("{}", self.remaining_bytes())));
        };
        self.offset += len_bytes;
        Ok(part)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, what: &str) -> Result<u8> {
        Ok(self.array::<1>(what)?[0])
    }

    /// Four bytes, little endian.
    #[inline]
    pub fn u32le(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Four bytes, little endian, signed.
    #[inline]
    pub fn i32le(&mut self, what: &str) -> Result<i32> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }

    /// Eight bytes, little endian.
    #[inline]
    pub fn u64le(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// An unsigned LEB128 number of up to 64 bits. A longer form than necessary is an error.
    pub fn varint(&mut self, what: &str) -> Result<u64> {
        let start = self.offset;
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            let overflows = shift == 63 && bits > 1;
            let overlong = shift > 0 && byte == 0;
            if overflows || overlong {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.offset = start;
        Err(self.corrupt(format!("{what} is not a varint of at most 64 bits in its shortest form")))
    }

    /// An error of kind `Corrupt` at the current offset.
    #[inline]
    pub fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::corrupt(what).at_byte(self.offset as u64)
    }

    /// Returns an error unless all bytes have been read.
    pub fn finish(&self, what: &str) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        Err(self.corrupt(format!(
            "{} left over after {what}",
            counted(self.remaining_bytes(), "byte is", "bytes are")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_varints_that_overflow_or_are_overlong() {
        for bytes in [
            &[0x81, 0x00][..],
            &[0xff; 11],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
            &[0x80],
        ] {
            assert!(Cursor::new(bytes).varint("n").is_err(), "{bytes:x?}");
        }
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(Cursor::new(&max).varint("n").unwrap(), u64::MAX);
    }

    #[test]
    fn says_where_the_bytes_end() {
        let mut input = Cursor::new(&[1, 2, 3]);
        input.u8("first").unwrap();
        let error = input.u32le("checksum").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the bytes end inside checksum\n  at byte 1\n  expected 4 bytes, found 2"
        );
    }
}
