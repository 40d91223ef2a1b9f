//! Single numbers: 0-d leaves.
//!
//! A number of Python has no width, and a whole number has the same value in every integer type. So
//! a field accepts every number that it can hold exactly:
//!
//! | stored | field | taken |
//! |---|---|---|
//! | any dtype | the same dtype | yes |
//! | an integer | another integer | if it is in range |
//! | a Python int or float | a float | if the value is the same: 1 or 0.5 as `f32`, 0.1 not |
//! | anything else | | with `Fit::cast` only |

use super::element::Element;
use super::{NodeRef, Restore};
use crate::array::{Array, Dtype, DtypeClass, Shape, cast_bytes};
use crate::tree::{Leaf, LeafKind, Scalar};

/// The leaf for a number. If Python has such a number, a Python scalar.
pub(super) fn leaf<T: Element>(value: T, python: Option<Scalar>) -> Leaf {
    if let Some(scalar) = python {
        return Leaf::scalar(scalar);
    }
    let mut bytes = vec![0; T::DTYPE.size_bytes()];
    (T::packed().encode)(&[value], &mut bytes);
    let array = Array::from_parts(T::DTYPE, Shape::scalar(), bytes.into());
    Leaf { kind: LeafKind::NumpyScalar, ..Leaf::array(array) }
}

/// Restores a number from a leaf, by the table of this module.
pub(super) fn regrow<T: Element>(node: NodeRef<'_>, restore: &mut Restore) -> Option<T> {
    let leaf = node.leaf().filter(|leaf| is_numeric(&leaf.kind));
    let Some((leaf, array)) = leaf.and_then(|leaf| Some((leaf, leaf.as_array()?))) else {
        restore.wrong_kind(node, format_args!("a number ({})", T::DTYPE));
        return None;
    };
    if array.shape().rank() != 0 {
        restore.differs("shape", Shape::scalar(), array.shape());
        return None;
    }
    let bytes = match array.to_c_order() {
        Ok(bytes) => bytes,
        Err(error) => {
            restore.fail(error);
            return None;
        }
    };
    let stored = array.dtype();
    let packing = T::packed();
    let mut out = [(packing.zero)()];
    if stored == T::DTYPE {
        (packing.decode)(&bytes, &mut out);
        return Some(out[0]);
    }
    let mut cast = vec![0; T::DTYPE.size_bytes()];
    if restore.fit().cast {
        if let Err(error) = restore.fit().casting.cast(&bytes, stored, T::DTYPE, &mut cast) {
            restore.fail(error);
            return None;
        }
        (packing.decode)(&cast, &mut out);
        return Some(out[0]);
    }
    cast_bytes(&bytes, stored, T::DTYPE, &mut cast).ok()?;
    let exact = match (whole(&bytes, stored), is_integer(T::DTYPE)) {
        // An integer cast wraps, and a cast back wraps again, so compare the values.
        (Some(value), true) => whole(&cast, T::DTYPE) == Some(value),
        (None, true) => false,
        (_, false) => {
            let mut back = vec![0; stored.size_bytes()];
            leaf.kind == LeafKind::Scalar
                && stored != Dtype::Bool
                && T::DTYPE != Dtype::Bool
                && cast_bytes(&cast, T::DTYPE, stored, &mut back).is_ok()
                && back[..] == bytes[..]
        }
    };
    if !exact {
        let (what, text) = match whole(&bytes, stored).filter(|_| is_integer(T::DTYPE)) {
            Some(value) => ("value", format!("{stored} {value}")),
            None => ("dtype", stored.to_string()),
        };
        restore.differs(what, T::DTYPE, text);
        return None;
    }
    (packing.decode)(&cast, &mut out);
    Some(out[0])
}

/// Whether leaves of this kind are arrays of numbers in every library.
pub(super) fn is_numeric(kind: &LeafKind) -> bool {
    matches!(
        kind,
        LeafKind::NumpyArray
            | LeafKind::NumpyScalar
            | LeafKind::JaxArray
            | LeafKind::Scalar
            | LeafKind::PrngKey(_)
    )
}

fn is_integer(dtype: Dtype) -> bool {
    matches!(dtype.class(), DtypeClass::Signed | DtypeClass::Unsigned)
}

fn whole(bytes: &[u8], dtype: Dtype) -> Option<i128> {
    let mut wide = [0; 8];
    match dtype.class() {
        DtypeClass::Signed => {
            cast_bytes(bytes, dtype, Dtype::Int64, &mut wide).ok()?;
            Some(i64::from_le_bytes(wide).into())
        }
        DtypeClass::Unsigned => {
            cast_bytes(bytes, dtype, Dtype::UInt64, &mut wide).ok()?;
            Some(u64::from_le_bytes(wide).into())
        }
        _ => None,
    }
}
