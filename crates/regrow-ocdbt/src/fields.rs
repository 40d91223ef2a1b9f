//! The fields that OCDBT structures are made of: a [`Cursor`] whose errors carry the format's
//! rules.
//!
//! Varints come in three widths, *v64*, *v32* and *v16*, that differ only in their upper bound.
//! Arrays are stored by column: [`Fields::column`] reads all values of one field.

use crate::bytes::Cursor;
use crate::error::{Error, Result};

use super::rule::Rule;

/// Reads one body front to back.
#[derive(Debug)]
pub(super) struct Fields<'a>(Cursor<'a>);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(Cursor::new(bytes))
    }

    pub(super) fn v64(&mut self, what: &str) -> Result<u64> {
        self.0.varint(what).map_err(|error| {
            // If bytes run out, the cursor is at the end. After a bad varint, the cursor is at the
            // start of the varint.
            if self.0.is_empty() { Rule::Eof.adopt(&error) } else { Rule::Varint.adopt(&error) }
        })
    }

    pub(super) fn v32(&mut self, what: &str) -> Result<u32> {
        let at = self.offset_bytes();
        let value = self.v64(what)?;
        u32::try_from(value).map_err(|_| too_wide(what, value, u64::from(u32::MAX), at))
    }

    pub(super) fn v16(&mut self, what: &str) -> Result<u16> {
        let at = self.offset_bytes();
        let value = self.v64(what)?;
        u16::try_from(value).map_err(|_| too_wide(what, value, u64::from(u16::MAX), at))
    }

    pub(super) fn u8(&mut self, what: &str) -> Result<u8> {
        self.0.u8(what).map_err(|error| Rule::Eof.adopt(&error))
    }

    pub(super) fn i32le(&mut self, what: &str) -> Result<i32> {
        self.0.i32le(what).map_err(|error| Rule::Eof.adopt(&error))
    }

    pub(super) fn u64le(&mut self, what: &str) -> Result<u64> {
        self.0.u64le(what).map_err(|error| Rule::Eof.adopt(&error))
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        self.0.array(what).map_err(|error| Rule::Eof.adopt(&error))
    }

    pub(super) fn take(&mut self, len_bytes: usize, what: &str) -> Result<&'a [u8]> {
        self.0.take(len_bytes, what).map_err(|error| Rule::Eof.adopt(&error))
    }

    /// `count` values of one field. The caller has checked the count with [`Fields::fits`].
    pub(super) fn column<T>(
        &mut self,
        count: usize,
        what: &str,
        read: impl Fn(&mut Self, &str) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(read(self, what)?);
        }
        Ok(values)
    }

    /// Returns an error unless the remaining bytes can have `count` items of at least `each_bytes`
    /// each.
    pub(super) fn fits(&self, count: u64, each_bytes: u64, what: &str) -> Result<usize> {
        let most = self.0.remaining_bytes() as u64 / each_bytes.max(1);
        match usize::try_from(count) {
            Ok(small) if count <= most => Ok(small),
            _ => Err(self
                .fail(Rule::Eof, format_args!("{what} does not fit in the remaining bytes"))
                .expected(format_args!("at most {most}"), count)),
        }
    }

    pub(super) fn offset_bytes(&self) -> u64 {
        self.0.offset_bytes()
    }

    pub(super) fn fail(&self, rule: Rule, what: impl std::fmt::Display) -> Error {
        rule.error(what).at_byte(self.offset_bytes())
    }

    /// Returns an error unless the body has been read to its end.
    pub(super) fn end(&self) -> Result<()> {
        self.0.finish("the body").map_err(|error| Rule::Trailing.adopt(&error))
    }
}

fn too_wide(what: &str, value: u64, max: u64, at: u64) -> Error {
    Rule::Varint
        .error(format_args!("{what} is too large"))
        .at_byte(at)
        .expected(format_args!("at most {max}"), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_fit_as_there_are_bytes_for() {
        let fields = Fields::new(&[0; 10]);
        for (count, each_bytes, fits) in
            [(10, 1, true), (11, 1, false), (3, 3, true), (4, 3, false), (10, 0, true)]
        {
            let found = fields.fits(count, each_bytes, "things");
            assert_eq!(found.is_ok(), fits, "{count} of {each_bytes}");
        }
        let error = fields.fits(u64::MAX, 4, "things").unwrap_err();
        assert_eq!(error.expected_found().unwrap(), ("at most 2", "18446744073709551615"));
    }
}
