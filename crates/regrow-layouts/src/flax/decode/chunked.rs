//! An array that Flax has cut into chunks: a msgpack map with the key [`CHUNKED_KEY`], the shape
//! and the chunks.

use super::super::dtypes::Elements;
use super::super::layout::{CHUNKED_KEY, CHUNKS_KEY, EXT_NDARRAY, SHAPE_KEY, parse_array};
use super::super::msgpack::{Scanner, Token};
use super::leaves::elements_of;
use super::{Decoded, Decoder};
use regrow_base::error::{Error, Result};
use regrow_tree::tree::LeafKind;

impl Decoder<'_> {
    /// Whether the map that begins here is an array in chunks, by its first key.
    pub(super) fn is_chunked(&self, count: usize) -> bool {
        if count == 0 || self.open_lists > 0 {
            return false;
        }
        let mut ahead = self.scanner.clone();
        match ahead.next() {
            Ok(Token::Str(range)) => ahead.slice(&range) == CHUNKED_KEY.as_bytes(),
            _ => false,
        }
    }

    /// Reads the rest of an array in chunks, whose map began at `start`.
    pub(super) fn chunked(&mut self, count: usize, start: u64) -> Result<Decoded> {
        let broken = |what: &str| Error::corrupt(format!("an array in chunks {what}")).at_byte(start);
        if count != 3 {
            return Err(broken("does not have exactly a mark, a shape and chunks"));
        }
        self.scanner.next()?;
        if matches!(self.scanner.next()?, Token::Array(1..) | Token::Map(1..)) {
            return Err(broken("is marked by a container"));
        }
        let (mut dims, mut chunks) = (None, None);
        for _ in 0..2 {
            let at = self.scanner.offset_bytes();
            let name = match self.scanner.next()? {
                Token::Str(range) => self.scanner.text(&range)?,
                _ => "",
            };
            match name {
                SHAPE_KEY if dims.is_none() => {
                    dims = Some(self.numbered(|_, token| match token {
                        Token::Int(dim) => u64::try_from(dim).ok(),
                        _ => None,
                    })?);
                }
                CHUNKS_KEY if chunks.is_none() => {
                    chunks = Some(self.numbered(|_, token| match token {
                        Token::Ext(EXT_NDARRAY, payload) => Some(payload),
                        _ => None,
                    })?);
                }
                _ => {
                    return Err(broken("does not have exactly a mark, a shape and chunks").at_byte(at));
                }
            }
        }
        let dims = dims.ok_or_else(|| broken("lacks its shape"))?;
        let mut pieces = Vec::new();
        let mut name: Option<(&str, u64)> = None;
        let mut first_at = start;
        for payload in chunks.ok_or_else(|| broken("lacks its chunks"))? {
            let at = payload.start as u64;
            let stored = parse_array(self.bytes, payload)?;
            let (known, _) = *name.get_or_insert((stored.dtype_name, stored.dtype_name_at));
            if known != stored.dtype_name {
                return Err(broken("has chunks of several dtypes")
                    .at_byte(stored.dtype_name_at)
                    .expected(known, stored.dtype_name));
            }
            let size_bytes = match elements_of(known, at)? {
                Elements::Known(dtype) => dtype.size_bytes() as u64,
                Elements::Other(_, size_bytes) => size_bytes,
            };
            let [len] = stored.dims[..] else {
                return Err(broken("has a chunk with several axes").at_byte(at));
            };
            if len.checked_mul(size_bytes) != Some(stored.data.len() as u64) {
                return Err(broken("has a chunk of another size")
                    .at_byte(at)
                    .expected(format_args!("{len} elements"), format_args!("{} bytes", stored.data.len())));
            }
            if pieces.is_empty() {
                first_at = stored.data.start as u64;
            }
            pieces.push(self.bytes.slice(stored.data));
        }
        let (name, at) = name.ok_or_else(|| broken("has no chunk"))?;
        self.pieces(LeafKind::NumpyArray, elements_of(name, at)?, dims, pieces, first_at)
    }

    /// Reads a map `{"0": …, "1": …}` with its keys in this order.
    fn numbered<T>(&mut self, take: impl Fn(&Scanner<'_>, Token) -> Option<T>) -> Result<Vec<T>> {
        let at = self.scanner.offset_bytes();
        let bad = |at: u64| {
            Error::corrupt(
                "a chunked array stores its shape and chunks as maps with the keys \"0\", \"1\" \
                and so on",
            )
            .at_byte(at)
        };
        let Token::Map(count) = self.scanner.next()? else { return Err(bad(at)) };
        let mut values = Vec::new();
        for number in 0..count {
            let at = self.scanner.offset_bytes();
            let Token::Str(range) = self.scanner.next()? else { return Err(bad(at)) };
            if self.scanner.text(&range)? != number.to_string() {
                return Err(bad(at));
            }
            let token = self.scanner.next()?;
            values.push(take(&self.scanner, token).ok_or_else(|| bad(at))?);
        }
        Ok(values)
    }
}
