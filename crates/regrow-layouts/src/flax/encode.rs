//! Encodes values as msgpack in the forms that Flax writes: integers and lengths in the shortest
//! form, floats in 64 bits.
//!
//! An [`Encoder`] has the small bytes of an object, and the positions of the arrays' data between
//! them. So the size is known before any long array is read. The writer streams the data, or copies
//! it once into a buffer of exactly this size.
//!
//! ```text
//! bytes   | map, keys, head of array 0 |          | key, head of array 1 |          | … |
//! bulk                                 | data of 0 |                     | data of 1 |
//! ```

use std::ops::Range;

use super::layout::{CHUNKED_KEY, CHUNKS_KEY, EXT_COMPLEX, EXT_NDARRAY, SHAPE_KEY};
use crate::Preview;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::Array;

/// Array data up to this length is copied into the small bytes.
const INLINE_LEN_MAX_BYTES: u64 = 512;

/// The number of first bytes that show the kind of a file.
const START_LEN_BYTES: usize = 16;

/// An object being encoded.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
    bulk: Vec<Bulk>,
    bulk_len_bytes: u64,
}

/// Array data that the writer inserts into the encoded object.
#[derive(Debug)]
pub struct Bulk {
    /// The number of small bytes before the data.
    at: usize,
    /// The array.
    pub array: Array,
    /// The range of the array's C-order bytes.
    pub range: Range<u64>,
}

/// A part of an encoded object, in order.
#[derive(Debug)]
pub enum Part<'a> {
    /// Small bytes.
    Bytes(&'a [u8]),
    /// Data of an array.
    Bulk(&'a Bulk),
}

/// The head of an array in an extension, which stores `[shape, dtype name, data]`.
#[derive(Debug, Clone, Copy)]
pub struct ArrayHead<'a> {
    /// The extension code: [`EXT_NDARRAY`] or the code of a NumPy scalar.
    pub code: i8,
    /// The shape.
    pub dims: &'a [u64],
    /// NumPy's name of the dtype.
    pub dtype_name: &'a str,
    /// The bytes of an element.
    pub size_bytes: u64,
}

impl Encoder {
    /// An empty encoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `None`.
    pub fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    /// Appends a bool.
    pub fn bool(&mut self, value: bool) {
        self.bytes.push(0xc2 + u8::from(value));
    }

    /// Appends an integer.
    pub fn int(&mut self, value: i64) {
        match value {
            0.. => self.uint(value.unsigned_abs()),
            -32.. => self.bytes.extend((value as i8).to_be_bytes()),
            -0x80.. => self.marked(0xd0, &(value as i8).to_be_bytes()),
            -0x8000.. => self.marked(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000.. => self.marked(0xd2, &(value as i32).to_be_bytes()),
            _ => self.marked(0xd3, &value.to_be_bytes()),
        }
    }

    /// Appends an integer that is not negative.
    pub fn uint(&mut self, value: u64) {
        match value {
            ..0x80 => self.bytes.push(value as u8),
            0x80..=0xff => self.marked(0xcc, &(value as u8).to_be_bytes()),
            0x100..=0xffff => self.marked(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.marked(0xce, &(value as u32).to_be_bytes()),
            _ => self.marked(0xcf, &value.to_be_bytes()),
        }
    }

    /// Appends a float of 64 bits.
    pub fn float(&mut self, value: f64) {
        self.marked(0xcb, &value.to_be_bytes());
    }

    /// Appends a complex number.
    pub fn complex(&mut self, re: f64, im: f64) {
        let mut payload = Self::new();
        payload.bytes.push(0x92);
        payload.float(re);
        payload.float(im);
        self.ext_head(EXT_COMPLEX, payload.bytes.len() as u64).unwrap_or_default();
        self.bytes.append(&mut payload.bytes);
    }

    /// Appends a text.
    ///
    /// # Errors
    /// `Unsupported` for 4 GiB and more.
    pub fn str(&mut self, text: &str) -> Result<()> {
        match u32_of(text.len() as u64, "a text")? {
            len @ 0..=31 => self.bytes.push(0xa0 | len as u8),
            len @ ..=0xff => self.marked(0xd9, &[len as u8]),
            len @ ..=0xffff => self.marked(0xda, &(len as u16).to_be_bytes()),
            len => self.marked(0xdb, &len.to_be_bytes()),
        }
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Appends the data of an array as a byte string.
    ///
    /// # Errors
    /// `Unsupported` for 4 GiB and more; for a deferred array, errors of reading.
    pub fn bin(&mut self, array: &Array) -> Result<()> {
        self.bin_head(array.len_bytes())?;
        self.data(array, 0..array.len_bytes())
    }

    /// Appends the head of a map: the number of pairs that follow.
    ///
    /// # Errors
    /// `Unsupported` for 2^32 and more.
    pub fn map(&mut self, count: usize) -> Result<()> {
        match u32_of(count as u64, "a map")? {
            count @ 0..=15 => self.bytes.push(0x80 | count as u8),
            count @ ..=0xffff => self.marked(0xde, &(count as u16).to_be_bytes()),
            count => self.marked(0xdf, &count.to_be_bytes()),
        }
        Ok(())
    }

    /// Appends the head of an array: the number of items that follow.
    ///
    /// # Errors
    /// `Unsupported` for 2^32 and more.
    pub fn array(&mut self, count: usize) -> Result<()> {
        match u32_of(count as u64, "an array")? {
            count @ 0..=15 => self.bytes.push(0x90 | count as u8),
            count @ ..=0xffff => self.marked(0xdc, &(count as u16).to_be_bytes()),
            count => self.marked(0xdd, &count.to_be_bytes()),
        }
        Ok(())
    }

    /// Appends an extension with its payload.
    ///
    /// # Errors
    /// `Unsupported` for 4 GiB and more.
    pub fn ext(&mut self, code: i8, payload: &[u8]) -> Result<()> {
        self.ext_head(code, payload.len() as u64)?;
        self.bytes.extend_from_slice(payload);
        Ok(())
    }

    /// Appends an array or a NumPy scalar; in chunks if its data is longer than `max_chunk_bytes`.
    ///
    /// # Errors
    /// `Unsupported` for a part of 4 GiB and more; for a deferred array, errors of reading.
    pub fn ndarray(
        &mut self,
        head: ArrayHead<'_>,
        array: &Array,
        max_chunk_bytes: Option<u64>,
    ) -> Result<()> {
        let len = array.len_bytes();
        match max_chunk_bytes {
            Some(max) if len > max => self.chunked(head, array, max),
            _ => self.extension(head, array, 0..len),
        }
    }

    fn chunked(&mut self, head: ArrayHead<'_>, array: &Array, max_chunk_bytes: u64) -> Result<()> {
        let chunk_len =
            (max_chunk_bytes / head.size_bytes.max(1)).max(1).saturating_mul(head.size_bytes.max(1));
        self.map(3)?;
        self.str(CHUNKED_KEY)?;
        self.bool(true);
        self.str(SHAPE_KEY)?;
        self.map(head.dims.len())?;
        for (axis, &dim) in head.dims.iter().enumerate() {
            self.str(&axis.to_string())?;
            self.uint(dim);
        }
        self.str(CHUNKS_KEY)?;
        let len = array.len_bytes();
        self.map(usize::try_from(len.div_ceil(chunk_len)).unwrap_or(usize::MAX))?;
        let (mut start, mut number) = (0, 0_u64);
        while start < len {
            let end = start.saturating_add(chunk_len).min(len);
            self.str(&number.to_string())?;
            let dims = [(end - start) / head.size_bytes.max(1)];
            self.extension(ArrayHead { code: EXT_NDARRAY, dims: &dims, ..head }, array, start..end)?;
            (start, number) = (end, number + 1);
        }
        Ok(())
    }

    fn extension(&mut self, head: ArrayHead<'_>, array: &Array, range: Range<u64>) -> Result<()> {
        let data_len = range.end - range.start;
        let mut payload = Self::new();
        payload.array(3)?;
        payload.array(head.dims.len())?;
        for &dim in head.dims {
            payload.uint(dim);
        }
        payload.str(head.dtype_name)?;
        payload.bin_head(data_len)?;
        self.ext_head(head.code, payload.bytes.len() as u64 + data_len)?;
        self.bytes.append(&mut payload.bytes);
        self.data(array, range)
    }

    fn data(&mut self, array: &Array, range: Range<u64>) -> Result<()> {
        let len = range.end - range.start;
        if len > INLINE_LEN_MAX_BYTES {
            self.bulk_len_bytes = self.bulk_len_bytes.saturating_add(len);
            self.bulk.push(Bulk { at: self.bytes.len(), array: array.clone(), range });
            return Ok(());
        }
        let at = self.bytes.len();
        self.bytes
            .try_reserve(len as usize)
            .map_err(|_| Error::new(ErrorKind::Limit, format!("there is no memory to encode {len} bytes")))?;
        self.bytes.resize(at + len as usize, 0);
        array.copy_c_order(range.start, self.bytes.get_mut(at..).unwrap_or_default())
    }

    fn bin_head(&mut self, len: u64) -> Result<()> {
        match u32_of(len, "a buffer")? {
            len @ 0..=0xff => self.marked(0xc4, &[len as u8]),
            len @ ..=0xffff => self.marked(0xc5, &(len as u16).to_be_bytes()),
            len => self.marked(0xc6, &len.to_be_bytes()),
        }
        Ok(())
    }

    fn ext_head(&mut self, code: i8, len: u64) -> Result<()> {
        match u32_of(len, "an extension")? {
            1 => self.bytes.push(0xd4),
            2 => self.bytes.push(0xd5),
            4 => self.bytes.push(0xd6),
            8 => self.bytes.push(0xd7),
            16 => self.bytes.push(0xd8),
            len @ ..=0xff => self.marked(0xc7, &[len as u8]),
            len @ ..=0xffff => self.marked(0xc8, &(len as u16).to_be_bytes()),
            len => self.marked(0xc9, &len.to_be_bytes()),
        }
        self.bytes.extend(code.to_be_bytes());
        Ok(())
    }

    fn marked(&mut self, mark: u8, value: &[u8]) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(value);
    }

    /// Length of the whole object.
    pub fn len_bytes(&self) -> u64 {
        self.bulk_len_bytes.saturating_add(self.bytes.len() as u64)
    }

    /// The parts of the object, in order.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let ends = self.bulk.iter().map(|bulk| bulk.at).chain([self.bytes.len()]);
        let mut start = 0;
        let mut bulk = self.bulk.iter();
        ends.flat_map(move |end| {
            let bytes = self.bytes.get(start..end).unwrap_or_default();
            start = end;
            [Some(Part::Bytes(bytes)), bulk.next().map(Part::Bulk)]
        })
        .flatten()
    }

    /// The bytes of the object.
    #[cfg(test)]
    pub(super) fn whole(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for part in self.parts() {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Bulk(bulk) => {
                    let at = out.len();
                    out.resize(at + (bulk.range.end - bulk.range.start) as usize, 0);
                    bulk.array.copy_c_order(bulk.range.start, &mut out[at..]).unwrap();
                }
            }
        }
        assert_eq!(out.len() as u64, self.len_bytes());
        out
    }

    /// The part of the object from which layouts recognise a file.
    pub(super) fn preview(&self) -> Preview {
        let start = self.bytes.get(..START_LEN_BYTES).unwrap_or(&self.bytes);
        let mut preview = Preview::default();
        preview.bytes(start);
        preview.data(self.len_bytes().saturating_sub(start.len() as u64));
        preview
    }
}

fn u32_of(len: u64, what: &str) -> Result<u32> {
    u32::try_from(len).map_err(|_| {
        Error::new(ErrorKind::Unsupported, format!("{what} is too long for msgpack"))
            .expected("at most 4294967295", len)
            .help("put the array into a dict: values of dicts can have any size")
    })
}

#[cfg(test)]
mod tests {
    use super::super::msgpack::{Scanner, Token};
    use super::*;
    use proptest::prelude::*;
    use regrow_tree::array::{Dtype, Shape};

    #[test]
    fn a_numpy_scalar_is_the_example_of_the_specification() {
        let array =
            Array::new(Dtype::Float32, Shape::scalar(), 1.5_f32.to_le_bytes().to_vec().into()).unwrap();
        let mut encoder = Encoder::new();
        let head = ArrayHead { code: 3, dims: &[], dtype_name: "float32", size_bytes: 4 };
        encoder.ndarray(head, &array, None).unwrap();
        let expected = [&[0xd8, 3, 0x93, 0x90, 0xa7][..], b"float32", &[0xc4, 4, 0, 0, 0xc0, 0x3f]].concat();
        assert_eq!(encoder.whole(), expected);
    }

    #[test]
    fn chunks_cover_the_array_once() {
        let data: Vec<u8> = (0..20_u8).collect();
        let array = Array::new(Dtype::UInt16, Shape::new(vec![5, 2]).unwrap(), data.into()).unwrap();
        let mut encoder = Encoder::new();
        let head = ArrayHead { code: 1, dims: &[5, 2], dtype_name: "uint16", size_bytes: 2 };
        encoder.ndarray(head, &array, Some(7)).unwrap();
        let bytes = encoder.whole();
        // Three items a chunk: 6 + 6 + 6 + 2 bytes.
        let mut found = Vec::new();
        let mut scanner = Scanner::new(&bytes);
        while scanner.offset_bytes() < bytes.len() as u64 {
            if let Token::Ext(1, payload) = scanner.next().unwrap() {
                found.push(payload.len());
            }
        }
        let head_len = [1, 1 + 1, 7, 2].iter().sum::<usize>();
        assert_eq!(found, [head_len + 6, head_len + 6, head_len + 6, head_len + 2]);
        let mut short = Encoder::new();
        short.ndarray(head, &array, Some(20)).unwrap();
        assert!(matches!(Scanner::new(&short.whole()).next().unwrap(), Token::Ext(1, _)));
    }

    proptest! {
        #[test]
        fn integers_come_back_in_their_shortest_form(value: i64, shift in 0_u32..64) {
            let value = value >> shift;
            let mut encoder = Encoder::new();
            encoder.int(value);
            let bytes = encoder.whole();
            prop_assert_eq!(Scanner::new(&bytes).next().unwrap(), Token::Int(value));
            let widths: &[(i64, i64, usize)] = &[
                (-32, 127, 1), (-128, 255, 2), (-32768, 65535, 3), (-(1 << 31), (1 << 32) - 1, 5),
            ];
            let expected = widths.iter().find(|(low, high, _)| (*low..=*high).contains(&value)).map_or(9, |w| w.2);
            prop_assert_eq!(bytes.len(), expected);
        }

        #[test]
        fn lengths_come_back_in_their_shortest_form(len in prop_oneof![0_usize..40, 200_usize..300, 65500_usize..65600]) {
            let mut encoder = Encoder::new();
            encoder.str(&"x".repeat(len)).unwrap();
            encoder.map(len).unwrap();
            encoder.array(len).unwrap();
            encoder.ext(7, &vec![0; len]).unwrap();
            let mut bytes = encoder.whole();
            bytes.resize(bytes.len() + 2 * len, 0);
            let mut scanner = Scanner::new(&bytes);
            let Token::Str(range) = scanner.next().unwrap() else { panic!() };
            prop_assert_eq!(range.len(), len);
            prop_assert_eq!(range.start, match len { 0..=31 => 1, 32..=255 => 2, 256..=65535 => 3, _ => 5 });
            prop_assert_eq!(scanner.next().unwrap(), Token::Map(len));
            prop_assert_eq!(scanner.next().unwrap(), Token::Array(len));
            let Token::Ext(7, range) = scanner.next().unwrap() else { panic!() };
            prop_assert_eq!(range.len(), len);
        }
    }
}
