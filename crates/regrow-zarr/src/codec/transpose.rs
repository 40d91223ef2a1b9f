//! The codec `transpose`: the axes of a chunk in another order.
//!
//! For each axis of the encoded chunk, `order` has the axis of the decoded chunk. `[1,0]` on a
//! matrix is column major, which zarr v2 calls `order` F. Source: zarr v3 codec `transpose`;
//! TensorStore also reads `"C"` and `"F"`.

use bytes::Bytes;
use serde_json::Value;

use crate::array::{Array, Dtype, Shape};
use crate::error::{Error, Result};
use crate::zarr::json::{Members, brief, integer};

/// A permutation of axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order(Vec<usize>);

impl Order {
    /// The reversed order of axes.
    pub fn reversed(rank: usize) -> Self {
        Self((0..rank).rev().collect())
    }

    /// Reads the configuration of the codec `transpose`.
    pub fn from_v3(mut configuration: Members, rank: usize) -> Result<Self> {
        let value = configuration.required("order")?;
        configuration.finish()?;
        let axes: Vec<usize> = match &value {
            Value::String(text) if text == "C" => (0..rank).collect(),
            Value::String(text) if text == "F" => (0..rank).rev().collect(),
            Value::Array(axes) => {
                axes.iter().map_while(|axis| integer(axis).and_then(|axis| axis.try_into().ok())).collect()
            }
            _ => Vec::new(),
        };
        let given = value.as_array().map_or(rank, Vec::len);
        let is_permutation =
            given == rank && axes.len() == rank && (0..rank).all(|axis| axes.contains(&axis));
        if !is_permutation {
            return Err(Error::corrupt(
                "the order of the codec \"transpose\" is not a permutation of the \
                axes",
            )
            .expected(format_args!("the numbers below {rank}, each once"), brief(&value)));
        }
        Ok(Self(axes))
    }

    /// The codec in a zarr v3 document.
    pub fn to_v3(&self) -> Value {
        serde_json::json!({"name": "transpose", "configuration": {"order": self.0}})
    }

    /// This order followed by another, as one order.
    pub fn then(&self, next: &Self) -> Self {
        Self(next.0.iter().filter_map(|&axis| self.0.get(axis).copied()).collect())
    }

    /// Whether no axis moves.
    pub fn is_identity(&self) -> bool {
        self.0.is_sorted()
    }

    /// Whether all axes are reversed.
    pub fn is_reversed(&self) -> bool {
        *self == Self::reversed(self.0.len())
    }

    /// The shape of the encoded chunk.
    pub fn encoded_shape(&self, decoded: &Shape) -> Result<Shape> {
        Shape::new(pick(&self.0, decoded.dims()))
    }

    /// Writes the decoded chunk of `shape` into `out`.
    pub fn decode_into(&self, dtype: Dtype, shape: &Shape, encoded: Vec<u8>, out: &mut [u8]) -> Result<()> {
        let encoded_strides = strides_bytes(&self.encoded_shape(shape)?, dtype);
        let mut strides = vec![0; shape.rank()];
        for (&axis, &stride) in self.0.iter().zip(&encoded_strides) {
            if let Some(slot) = strides.get_mut(axis) {
                *slot = stride;
            }
        }
        Array::with_strides(dtype, shape.clone(), strides, 0, encoded.into())?.copy_c_order(0, out)
    }

    /// Encodes a chunk.
    pub fn encode(&self, dtype: Dtype, shape: &Shape, decoded: &[u8]) -> Result<Vec<u8>> {
        let strides = pick(&self.0, &strides_bytes(shape, dtype));
        let data = Bytes::from(super::copied(decoded)?);
        let array = Array::with_strides(dtype, self.encoded_shape(shape)?, strides, 0, data)?;
        Ok(array.to_c_order()?.into())
    }
}

fn pick<T: Copy>(order: &[usize], from: &[T]) -> Vec<T> {
    order.iter().filter_map(|&axis| from.get(axis).copied()).collect()
}

fn strides_bytes(shape: &Shape, dtype: Dtype) -> Vec<i64> {
    shape.strides_elements().into_iter().map(|stride| stride as i64 * dtype.size_bytes() as i64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn order(value: Value, rank: usize) -> Result<Order> {
        Order::from_v3(Members::of(json!({"order": value}), "test").unwrap(), rank)
    }

    #[test]
    fn column_major_as_tensorstore_writes_it() {
        let shape = Shape::new([2, 3]).unwrap();
        for value in [json!([1, 0]), json!("F")] {
            let order = order(value, 2).unwrap();
            assert_eq!(order.encode(Dtype::UInt8, &shape, &[0, 1, 2, 3, 4, 5]).unwrap(), [0, 3, 1, 4, 2, 5]);
        }
        assert!(order(json!("C"), 2).unwrap().is_identity());
    }

    #[test]
    fn refuses_what_is_no_permutation() {
        for value in
            [json!([0]), json!([0, 0]), json!([0, 2]), json!([0, 1, 1]), json!([0, -1]), json!("K"), json!(1)]
        {
            assert!(order(value.clone(), 2).is_err(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn comes_back_and_composes(
            dims in proptest::collection::vec(1_u64..5, 3),
            first in Just(vec![0_usize, 1, 2]).prop_shuffle(),
            second in Just(vec![0_usize, 1, 2]).prop_shuffle(),
        ) {
            let shape = Shape::new(dims).unwrap();
            let (first, second) = (Order(first), Order(second));
            let bytes: Vec<u8> = (0..shape.len_elements() * 2).map(|i| i as u8).collect();
            let once = first.encode(Dtype::Int16, &shape, &bytes).unwrap();
            let twice = second.encode(Dtype::Int16, &first.encoded_shape(&shape).unwrap(), &once).unwrap();
            let both = first.then(&second);
            prop_assert_eq!(&both.encode(Dtype::Int16, &shape, &bytes).unwrap(), &twice);
            let mut back = vec![0; bytes.len()];
            both.decode_into(Dtype::Int16, &shape, twice, &mut back).unwrap();
            prop_assert_eq!(back, bytes);
        }
    }
}
