//! Turns tokens that are not containers into leaves.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::super::dtypes::{Elements, from_name};
use super::super::layout::{
    EXT_COMPLEX, EXT_NDARRAY, EXT_NUMPY_SCALAR, EXT_TIMESTAMP, bad_timestamp, parse_array, parse_complex,
    parse_timestamp, reserved_code,
};
use super::super::msgpack::Token;
use super::super::specs;
use super::{Data, Decoded, Decoder};
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{LeafInfo, LeafKind, Scalar};

const CODING: &str = "msgpack";

impl Decoded {
    /// A spec instead of an array, whose dtype and shape are not yet known.
    pub(in super::super) fn spec(name: &str, spec: Value) -> Self {
        let kind = LeafKind::Unknown("TensorStore spec".into());
        Self { info: LeafInfo::without_data(kind, name, CODING), data: Data::Spec(spec) }
    }
}

impl Decoder<'_> {
    pub(super) fn scalar(&self, token: Token) -> Result<Decoded> {
        match token {
            Token::Bool(value) => Ok(self.number(Scalar::Bool(value))),
            Token::Int(number) => Ok(self.number(Scalar::Int(number))),
            Token::UInt(number) => Ok(self.number(Scalar::UInt(number))),
            Token::Float(number) => Ok(self.number(Scalar::Float(number))),
            Token::Str(range) => {
                let text: Arc<str> = self.scanner.text(&range)?.into();
                if let Some(spec) = specs::in_text(&text) {
                    return Ok(Decoded::spec(&self.path.join("."), spec));
                }
                let shape = Shape::new(vec![text.len() as u64])?;
                Ok(Decoded { info: self.info(LeafKind::Str, Dtype::UInt8, shape), data: Data::Text(text) })
            }
            Token::Bin(range) => {
                let shape = Shape::new(vec![range.len() as u64])?;
                let info = self.info(LeafKind::Bytes, Dtype::UInt8, shape);
                Ok(Decoded { info, data: Data::Pieces(vec![self.bytes.slice(range)]) })
            }
            Token::Ext(code, payload) => self.extension(code, payload),
            Token::Nil | Token::Array(_) | Token::Map(_) => Err(Error::corrupt("a container is not a leaf")),
        }
    }

    fn extension(&self, code: i8, payload: Range<usize>) -> Result<Decoded> {
        let at = payload.start as u64;
        match code {
            EXT_NDARRAY => self.array(LeafKind::NumpyArray, payload),
            EXT_NUMPY_SCALAR => {
                let leaf = self.array(LeafKind::NumpyScalar, payload)?;
                let is_scalar = match leaf.info.kind {
                    // The only axis is the bytes of the element.
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
            EXT_COMPLEX => {
                let (re, im) = parse_complex(self.bytes, payload)?;
                Ok(self.number(Scalar::Complex(re, im)))
            }
            EXT_TIMESTAMP => match parse_timestamp(self.scanner.slice(&payload)) {
                Some(_) => self.unknown(EXT_TIMESTAMP),
                None => Err(bad_timestamp().at_byte(at)),
            },
            code if code < 0 => Err(reserved_code(code).at_byte(at)),
            code => self.unknown(code),
        }
    }

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
    pub(super) fn pieces(
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
                "the size of an array does not fit its shape {shape} and dtype {dtype}"
            ))
            .at_byte(at)
            .expected(format_args!("{expected} bytes"), found));
        }
        Ok(Decoded { info: self.info(kind, dtype, shape), data: Data::Pieces(pieces) })
    }

    pub(super) fn info(&self, kind: LeafKind, dtype: Dtype, shape: Shape) -> LeafInfo {
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

/// The elements of a dtype with this name. `at` is the offset of the name, for errors.
pub(super) fn elements_of(name: &str, at: u64) -> Result<Elements> {
    from_name(name).ok_or_else(|| {
        Error::corrupt(format!("an array has the unknown dtype {name:?}"))
            .at_byte(at)
            .help("the file is damaged, or was written by a newer NumPy or ml_dtypes")
    })
}
