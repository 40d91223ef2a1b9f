//! An object to a pytree: maps to dicts, arrays to leaves that know where their data lies.
//!
//! One pass over the file's bytes, which are never copied: after it the place of every leaf is known. What is read
//! is what Flax writes, nothing that merely looks like it: a key twice, `-1` in a shape, a NumPy scalar with axes
//! or chunks of several dtypes are errors, with the offset and the key path.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::dtypes::{Elements, from_name};
use super::layout::{
    CHUNKED_KEY, CHUNKS_KEY, EXT_COMPLEX, EXT_NDARRAY, EXT_NUMPY_SCALAR, EXT_TIMESTAMP, SHAPE_KEY,
    bad_timestamp, parse_array, parse_complex, parse_timestamp, reserved_code,
};
use super::msgpack::{DEPTH_MAX, Scanner, Token, too_deep};
use crate::array::{Dtype, Shape};
use crate::error::{Error, Result};
use crate::tree::{Key, KeyPath, LeafInfo, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};

/// How the bytes of all leaves are coded.
const CODING: &str = "msgpack";

/// A leaf of a decoded object.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// What is known of it.
    pub info: LeafInfo,
    /// Its data.
    pub data: Data,
}

/// Where the data of a leaf is.
#[derive(Debug)]
pub(crate) enum Data {
    /// In C order, in one piece of the file or in several.
    Pieces(Vec<Bytes>),
    /// Text.
    Text(Arc<str>),
    /// Nowhere: an extension that is not Flax'.
    Absent,
}

/// Reads one object that must fill `bytes`.
///
/// # Errors
/// `Corrupt`, `Unsupported` or `Limit`, with leaf and offset.
pub(crate) fn decode(bytes: &Bytes) -> Result<Tree<Decoded>> {
    let mut decoder = Decoder {
        bytes,
        scanner: Scanner::new(bytes),
        path: KeyPath::root(),
        open: Vec::new(),
        open_lists: 0,
        build: TreeBuilder::new(),
    };
    match decoder.object() {
        Ok(()) => decoder.build.finish(),
        Err(error) if decoder.path.is_root() => Err(error),
        Err(error) => Err(error.at_leaf(&decoder.path)),
    }
}

/// A container that is being read.
struct Open {
    left: usize,
    /// Keys so far, of a map; `None` for an array.
    keys: Option<HashSet<Key>>,
    next_index: usize,
}

struct Decoder<'a> {
    bytes: &'a Bytes,
    scanner: Scanner<'a>,
    /// Of the value that is being read; stays at the place of an error.
    path: KeyPath,
    open: Vec<Open>,
    /// Arrays among `open`: below one there are no chunks.
    open_lists: usize,
    build: TreeBuilder<Decoded>,
}

impl Decoder<'_> {
    fn object(&mut self) -> Result<()> {
        self.value(Key::Index(0))?;
        while let Some(open) = self.open.last_mut() {
            if open.left == 0 {
                if open.keys.is_none() {
                    self.open_lists -= 1;
                }
                self.open.pop();
                self.build.close()?;
                self.path.pop();
                continue;
            }
            open.left -= 1;
            let key = match &open.keys {
                None => {
                    open.next_index += 1;
                    Key::Index(open.next_index - 1)
                }
                Some(_) => self.key()?,
            };
            self.path.push(key.clone());
            self.value(key)?;
        }
        self.scanner.finish("the msgpack object")
    }

    fn key(&mut self) -> Result<Key> {
        let at = self.scanner.offset_bytes();
        let key = match self.scanner.next()? {
            Token::Str(range) => Key::dict(self.scanner.text(&range)?),
            Token::Int(number) => Key::DictInt(number),
            Token::Array(_) | Token::Map(_) => {
                return Err(Error::corrupt("a key is an array or a map").at_byte(at));
            }
            _ => {
                return Err(Error::unsupported("a key is neither text nor an integer")
                    .at_byte(at)
                    .help("read the file with regrow.flax.msgpack_restore, which keeps keys of every kind"));
            }
        };
        if let Some(keys) = self.open.last_mut().and_then(|open| open.keys.as_mut())
            && !keys.insert(key.clone())
        {
            self.path.push(key);
            return Err(Error::corrupt("a key is there twice").at_byte(at).help(
                "Flax would take the last one without a word; regrow.flax.msgpack_restore does the same",
            ));
        }
        if key.text() == CHUNKED_KEY && self.open_lists == 0 {
            return Err(Error::corrupt("the key that marks an array in chunks is not the first of its map")
                .at_byte(at));
        }
        Ok(key)
    }

    /// Reads a value up to its first child.
    fn value(&mut self, key: Key) -> Result<()> {
        let at = self.scanner.offset_bytes();
        match self.scanner.next()? {
            Token::Map(count) => {
                if self.is_chunked(count) {
                    let leaf = self.chunked(count, at)?;
                    return self.leaf(key, leaf);
                }
                self.enter(key, NodeKind::Dict, count, at)
            }
            Token::Array(count) => self.enter(key, NodeKind::List, count, at),
            Token::Nil => {
                self.build.open(key, NodeKind::None)?;
                self.build.close()?;
                self.path.pop();
                Ok(())
            }
            token => {
                let leaf = self.scalar(token)?;
                self.leaf(key, leaf)
            }
        }
    }

    fn enter(&mut self, key: Key, kind: NodeKind, count: usize, at: u64) -> Result<()> {
        if self.open.len() >= DEPTH_MAX {
            return Err(too_deep().at_byte(at));
        }
        let keys = (kind == NodeKind::Dict).then(HashSet::new);
        if keys.is_none() {
            self.open_lists += 1;
        }
        self.build.open(key, kind)?;
        self.open.push(Open { left: count, keys, next_index: 0 });
        Ok(())
    }

    fn leaf(&mut self, key: Key, leaf: Decoded) -> Result<()> {
        self.build.leaf(key, leaf)?;
        self.path.pop();
        Ok(())
    }

    fn scalar(&self, token: Token) -> Result<Decoded> {
        match token {
            Token::Bool(value) => Ok(self.number(Scalar::Bool(value))),
            Token::Int(number) => Ok(self.number(Scalar::Int(number))),
            Token::UInt(number) => Ok(self.number(Scalar::UInt(number))),
            Token::Float(number) => Ok(self.number(Scalar::Float(number))),
            Token::Str(range) => {
                let text: Arc<str> = self.scanner.text(&range)?.into();
                let shape = Shape::new(vec![text.len() as u64])?;
                Ok(Decoded { info: self.info(LeafKind::Str, Dtype::UInt8, shape), data: Data::Text(text) })
            }
            Token::Bin(range) => {
                let shape = Shape::new(vec![range.len() as u64])?;
                let info = self.info(LeafKind::Bytes, Dtype::UInt8, shape);
                Ok(Decoded { info, data: Data::Pieces(vec![self.bytes.slice(range)]) })
            }
            Token::Ext(EXT_NDARRAY, payload) => self.array(LeafKind::NumpyArray, payload),
            Token::Ext(EXT_NUMPY_SCALAR, payload) => {
                let at = payload.start as u64;
                let leaf = self.array(LeafKind::NumpyScalar, payload)?;
                let is_scalar = match leaf.info.kind {
                    // Its one axis is that of the element's bytes.
                    LeafKind::NumpyOtherScalar(_) => leaf.info.shape.rank() == 1,
                    _ => leaf.info.shape.rank() == 0,
                };
                match is_scalar {
                    true => Ok(leaf),
                    false => Err(Error::corrupt("a NumPy scalar has axes")
                        .at_byte(at)
                        .expected("shape []", &leaf.info.shape)),
                }
            }
            Token::Ext(EXT_COMPLEX, payload) => {
                let (re, im) = parse_complex(self.bytes, payload)?;
                Ok(self.number(Scalar::Complex(re, im)))
            }
            Token::Ext(EXT_TIMESTAMP, payload) => {
                let at = payload.start as u64;
                match parse_timestamp(self.scanner.slice(&payload)) {
                    Some(_) => self.unknown(EXT_TIMESTAMP),
                    None => Err(bad_timestamp().at_byte(at)),
                }
            }
            Token::Ext(code, payload) if code < 0 => Err(reserved_code(code).at_byte(payload.start as u64)),
            Token::Ext(code, _) => self.unknown(code),
            Token::Nil | Token::Array(_) | Token::Map(_) => Err(Error::corrupt("a container is no leaf")),
        }
    }

    /// An extension that is not Flax'.
    fn unknown(&self, code: i8) -> Result<Decoded> {
        let kind = LeafKind::Unknown(format!("msgpack ext {code}").into());
        let info = self.info(kind, Dtype::UInt8, Shape::new(vec![0])?);
        Ok(Decoded { info, data: Data::Absent })
    }

    fn number(&self, value: Scalar) -> Decoded {
        let (dtype, bytes) = value.to_element();
        let info = self.info(LeafKind::Scalar, dtype, Shape::scalar());
        Decoded { info, data: Data::Pieces(vec![bytes.into()]) }
    }

    fn array(&self, kind: LeafKind, payload: Range<usize>) -> Result<Decoded> {
        let stored = parse_array(self.bytes, payload)?;
        let elements = elements_of(stored.dtype_name, stored.dtype_name_at)?;
        let pieces = vec![self.bytes.slice(stored.data.clone())];
        self.pieces(kind, elements, stored.dims, pieces, stored.data.start as u64)
    }

    /// An array whose data lies in `pieces`, the first of them at `at`.
    fn pieces(
        &self,
        kind: LeafKind,
        elements: Elements,
        mut dims: Vec<u64>,
        pieces: Vec<Bytes>,
        at: u64,
    ) -> Result<Decoded> {
        let (kind, dtype) = match elements {
            Elements::Known(dtype) => (kind, dtype),
            Elements::Other(descr, size_bytes) => {
                dims.push(size_bytes);
                let descr = descr.into();
                let kind = match kind {
                    LeafKind::NumpyScalar => LeafKind::NumpyOtherScalar(descr),
                    _ => LeafKind::NumpyOther(descr),
                };
                (kind, Dtype::UInt8)
            }
        };
        let shape = Shape::new(dims).map_err(|error| error.at_byte(at))?;
        let expected = shape.len_bytes(dtype).map_err(|error| error.at_byte(at))?;
        let found: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if found != expected {
            return Err(Error::corrupt(format!(
                "an array of shape {shape} and dtype {dtype} has another size"
            ))
            .at_byte(at)
            .expected(format_args!("{expected} bytes"), found));
        }
        Ok(Decoded { info: self.info(kind, dtype, shape), data: Data::Pieces(pieces) })
    }

    /// Whether the map that begins here is an array in chunks: its first key says so.
    fn is_chunked(&self, count: usize) -> bool {
        if count == 0 || self.open_lists > 0 {
            return false;
        }
        let mut ahead = self.scanner.clone();
        match ahead.next() {
            Ok(Token::Str(range)) => ahead.slice(&range) == CHUNKED_KEY.as_bytes(),
            _ => false,
        }
    }

    /// Reads the rest of such a map, which began at `start`.
    fn chunked(&mut self, count: usize, start: u64) -> Result<Decoded> {
        let broken = |what: &str| Error::corrupt(format!("an array in chunks {what}")).at_byte(start);
        if count != 3 {
            return Err(broken("has not exactly a mark, a shape and chunks"));
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
                    return Err(broken("has not exactly a mark, a shape and chunks").at_byte(at));
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

    /// Reads a map `{"0": …, "1": …}`, in this order.
    fn numbered<T>(&mut self, take: impl Fn(&Scanner<'_>, Token) -> Option<T>) -> Result<Vec<T>> {
        let at = self.scanner.offset_bytes();
        let bad = |at: u64| {
            Error::corrupt("the shape and the chunks of an array in chunks are maps of numbers from \"0\" on")
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

    fn info(&self, kind: LeafKind, dtype: Dtype, shape: Shape) -> LeafInfo {
        LeafInfo {
            kind,
            dtype,
            shape,
            name: self.path.join(".").into(),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: CODING.into(),
        }
    }
}

fn elements_of(name: &str, at: u64) -> Result<Elements> {
    from_name(name).ok_or_else(|| {
        Error::corrupt(format!("an array has dtype {name:?}, which is no name of one"))
            .at_byte(at)
            .help("the file is damaged, or was written by a newer NumPy or ml_dtypes")
    })
}

#[cfg(test)]
mod tests {
    use super::super::encode::{ArrayHead, Encoder, Part};
    use super::*;
    use crate::array::Array;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn whole(encoder: &Encoder) -> Bytes {
        let mut out = Vec::new();
        for part in encoder.parts() {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Bulk(bulk) => {
                    let mut data = vec![0; (bulk.range.end - bulk.range.start) as usize];
                    bulk.array.copy_c_order(bulk.range.start, &mut data).unwrap();
                    out.extend(data);
                }
            }
        }
        out.into()
    }

    fn array(encoder: &mut Encoder, code: i8, dims: &[u64], name: &str, data: &[u8], max: Option<u64>) {
        let shape = Shape::new(vec![data.len() as u64]).unwrap();
        let array = Array::new(Dtype::UInt8, shape, Bytes::copy_from_slice(data)).unwrap();
        let size_bytes = match from_name(name) {
            Some(Elements::Known(dtype)) => dtype.size_bytes() as u64,
            Some(Elements::Other(_, size_bytes)) => size_bytes,
            None => 1,
        };
        encoder.ndarray(ArrayHead { code, dims, dtype_name: name, size_bytes }, &array, max).unwrap();
    }

    fn one(encode: impl FnOnce(&mut Encoder)) -> Result<Tree<Decoded>> {
        let mut encoder = Encoder::new();
        encoder.map(1).unwrap();
        encoder.str("p").unwrap();
        encode(&mut encoder);
        decode(&whole(&encoder))
    }

    #[test]
    fn keeps_what_each_leaf_was() {
        let mut encoder = Encoder::new();
        encoder.map(9).unwrap();
        for (name, encode) in [
            ("a", &(|e: &mut Encoder| array(e, 1, &[], "bfloat16", &[1, 2], None)) as &dyn Fn(&mut Encoder)),
            ("b", &|e| array(e, 3, &[], "bool", &[1], None)),
            ("c", &|e| e.complex(1.0, 2.0)),
            ("d", &|e| e.uint(u64::MAX)),
            ("f", &|e| {
                e.array(2).unwrap();
                e.float(1.5);
                e.nil();
            }),
            ("g", &|e| array(e, 1, &[1], "str96", &[0; 12], None)),
            ("h", &|e| e.ext(9, &[]).unwrap()),
            ("i", &|e| array(e, 1, &[2], "datetime64[s]", &[0; 16], None)),
            ("j", &|e| array(e, 1, &[3, 1], "int16", &[1, 2, 3, 4, 5, 6], Some(4))),
        ] {
            encoder.str(name).unwrap();
            encode(&mut encoder);
        }
        let tree = decode(&whole(&encoder)).unwrap();
        let kinds: Vec<String> = tree
            .iter()
            .map(|(path, Decoded { info: LeafInfo { kind, dtype, shape, .. }, .. })| {
                format!("{path}:{}:{dtype}{shape}", kind.name())
            })
            .collect();
        assert_eq!(
            kinds,
            [
                "a:numpy_array:bfloat16[]",
                "b:numpy_scalar:bool[]",
                "c:scalar:complex128[]",
                "d:scalar:uint64[]",
                "f/0:scalar:float64[]",
                "g:numpy_other:uint8[1,12]",
                "h:unknown:uint8[0]",
                "i:numpy_other:uint8[2,8]",
                "j:numpy_array:int16[3,1]",
            ]
        );
        let Data::Pieces(pieces) = &tree.leaves()[8].data else { panic!() };
        assert_eq!(pieces.iter().map(|piece| &piece[..]).collect::<Vec<_>>(), [&[1, 2, 3, 4][..], &[5, 6]]);
    }

    #[test]
    fn names_the_leaf_that_is_broken() {
        type Encode<'a> = &'a dyn Fn(&mut Encoder);
        let broken: [(Encode<'_>, ErrorKind); 6] = [
            (&|e| array(e, 1, &[3], "int16", &[0; 4], None), ErrorKind::Corrupt),
            (&|e| array(e, 1, &[1 << 40, 1 << 40], "int16", &[], None), ErrorKind::Limit),
            (&|e| array(e, 3, &[2], "int8", &[0; 2], None), ErrorKind::Corrupt),
            (&|e| array(e, 1, &[2], ">f4", &[0; 8], None), ErrorKind::Corrupt),
            (&|e| e.ext(1, &[0x93]).unwrap(), ErrorKind::Corrupt),
            (&|e| e.ext(2, &[0x92, 1, 2]).unwrap(), ErrorKind::Corrupt),
        ];
        for (encode, kind) in broken {
            let error = one(encode).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "p", "{error}");
            assert!(error.place().offset_bytes.is_some(), "{error}");
        }
    }

    #[test]
    fn codes_that_msgpack_keeps_are_refused_but_for_timestamps() {
        for code in [-128, -2] {
            let error = one(|e| e.ext(code, &[7]).unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{code}");
            assert!(error.to_string().contains(&code.to_string()), "{error}");
        }
        let kind = |payload: &[u8]| {
            one(|e| e.ext(-1, payload).unwrap()).map(|tree| tree.leaves()[0].info.kind.clone())
        };
        assert_eq!(kind(&[0, 0, 0, 1]).unwrap(), LeafKind::Unknown("msgpack ext -1".into()));
        // No second has 2^30 - 1 nanoseconds, and no timestamp five bytes.
        for payload in [&[0xff; 8][..], &[0; 5]] {
            assert_eq!(kind(payload).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn scalars_of_numpys_own_dtypes_are_no_arrays() {
        for (code, kind) in
            [(1, LeafKind::NumpyOther("int1".into())), (3, LeafKind::NumpyOtherScalar("int1".into()))]
        {
            let tree = one(|e| array(e, code, &[], "int1", &[1], None)).unwrap();
            assert_eq!(tree.leaves()[0].info.kind, kind);
        }
    }

    #[test]
    fn a_key_twice_is_named() {
        let error = decode(&Bytes::from_static(&[0x81, 0xa1, b'p', 0x82, 0, 1, 0, 2])).unwrap_err();
        assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "p/0");
        assert_eq!(error.place().offset_bytes, Some(6));
        assert!(decode(&Bytes::from_static(&[0x82, 0, 1, 0xa1, b'0', 2])).is_ok());
    }

    #[test]
    fn depth_has_an_end() {
        let nested = |levels: usize| {
            let mut bytes = vec![0x91; levels];
            bytes.push(0xc0);
            Bytes::from(bytes)
        };
        assert_eq!(decode(&nested(DEPTH_MAX)).unwrap().len(), 0);
        assert_eq!(decode(&nested(DEPTH_MAX + 1)).unwrap_err().kind(), ErrorKind::Limit);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_tree_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes.into());
        }

        #[test]
        fn chunks_of_any_size_are_the_array(
            data in proptest::collection::vec(any::<u8>(), 1..60), max in 1_u64..70,
        ) {
            let tree = one(|e| array(e, 1, &[data.len() as u64], "int8", &data, Some(max))).unwrap();
            let Data::Pieces(pieces) = &tree.leaves()[0].data else { panic!() };
            prop_assert_eq!(pieces.concat(), data.clone());
            prop_assert_eq!(pieces.len() as u64, if data.len() as u64 > max { (data.len() as u64).div_ceil(max) } else { 1 });
        }
    }
}
