//! NumPy's arrays, scalars and dtypes in a pickle.
//!
//! ```text
//! dtype            numpy.dtype("f4", False, True), state (3, "<", None, None, None, -1, -1, 0)
//! array            numpy.core.multiarray._reconstruct(ndarray, (0,), b"b"), state (1, shape, dtype, is_fortran, bytes)
//! array, newer     numpy.core.numeric._frombuffer(bytes, dtype, shape, "C")
//! scalar           numpy.core.multiarray.scalar(dtype, bytes)
//! bytes            as they are, or in protocol 2 as _codecs.encode(text, "latin1")
//! of ml_dtypes     numpy.dtype(ml_dtypes.bfloat16, False, True), state (3, "<", None, None, None, 2, 2, 64)
//! of JAX           jax._src.array._reconstruct_array(_reconstruct, (ndarray, ...), state, {"weak_type": ...})
//! ```
//!
//! Source: NumPy `array_reduce`, `arraydescr_reduce` and `gentype_reduce` in
//! `_core/src/multiarray`.

use super::pickle::{Call, Id, Pickle, Span, Value};
use super::tensors::dims;
use crate::npy::descr::Descr;
use crate::npy::header::Header;
use crate::npy::record::Record;
use regrow_base::error::Result;
use regrow_tree::array::Shape;

/// The bytes of an array in a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Payload {
    Raw(Span),
    /// A text whose characters are one byte each.
    Latin1(Span),
    Empty,
}

/// An array or a scalar.
#[derive(Debug)]
pub(super) struct NumpyValue {
    pub record: Record,
    pub payload: Payload,
    pub is_scalar: bool,
    pub is_jax: bool,
}

/// The bytes of a value; `None` for a value that is not bytes.
pub(super) fn payload(pickle: &Pickle<'_>, id: Id) -> Option<Payload> {
    if let Value::Bytes(span) = pickle.value(id) {
        return Some(Payload::Raw(*span));
    }
    match pickle.call(id)? {
        (_, ("_codecs", "encode"), &[text, coding])
            if matches!(pickle.text(coding)?, "latin1" | "latin-1") =>
        {
            match pickle.value(text) {
                Value::Text(span) => Some(Payload::Latin1(*span)),
                _ => None,
            }
        }
        (_, ("__builtin__" | "builtins", "bytes" | "bytearray"), &[]) => Some(Payload::Empty),
        (_, ("__builtin__" | "builtins", "bytearray"), &[bytes]) => match pickle.value(bytes) {
            Value::Bytes(span) => Some(Payload::Raw(*span)),
            _ => payload(pickle, bytes).filter(|payload| matches!(payload, Payload::Latin1(_))),
        },
        (_, ("__builtin__" | "builtins", "bytearray"), &[text, coding])
            if matches!(pickle.text(coding)?, "latin1" | "latin-1") =>
        {
            match pickle.value(text) {
                Value::Text(span) => Some(Payload::Latin1(*span)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The array or scalar that a call would build; `None` for another value, or a dtype that regrow
/// does not read.
///
/// # Errors
/// `Corrupt`, `Limit` for impossible shapes.
pub(super) fn value(pickle: &Pickle<'_>, id: Id) -> Result<Option<NumpyValue>> {
    let Some((call, (module, name), args)) = pickle.call(id) else { return Ok(None) };
    // JAX wraps the parts of NumPy's call in its own call.
    let (module, name, state, is_jax) = match (module, name, args) {
        (
            "jax._src.array" | "jax._src.device_array",
            "_reconstruct_array" | "reconstruct_device_array",
            &[function, _, state, ..],
        ) => match pickle.global(function) {
            Some((module, name)) => (module, name, Some(state), true),
            None => return Ok(None),
        },
        _ => (module, name, call.state, false),
    };
    let parts = match (module, name, args) {
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar", &[dtype, data]) => {
            Some((dtype, Some(Vec::new()), data, false, true))
        }
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct", _) => {
            let state = state.and_then(|state| pickle.sequence(state)).unwrap_or_default();
            match state {
                &[_, shape, dtype, order, data] => {
                    let is_fortran = matches!(pickle.value(order), Value::Bool(true));
                    Some((dtype, dims(pickle, shape), data, is_fortran, false))
                }
                _ => None,
            }
        }
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer", &[data, dtype, shape, order]) => {
            Some((dtype, dims(pickle, shape), data, pickle.text(order) == Some("F"), false))
        }
        _ => None,
    };
    let Some((dtype, Some(dims), data, fortran_order, is_scalar)) = parts else { return Ok(None) };
    let (Some(descr), Some(payload)) = (descr(pickle, dtype), array_bytes(pickle, data)) else {
        return Ok(None);
    };
    let header = Header {
        descr,
        fortran_order,
        shape: Shape::new(dims).map_err(|error| error.at_byte(pickle.offset(id)))?,
    };
    let record = Record::of(&header).map_err(|error| error.at_byte(pickle.offset(id)))?;
    Ok(Some(NumpyValue { record, payload, is_scalar, is_jax }))
}

/// The bytes of an array. Python 2 wrote them as text, which may be UTF-8 by chance.
fn array_bytes(pickle: &Pickle<'_>, id: Id) -> Option<Payload> {
    match (pickle.value(id), pickle.opcode(id)) {
        (&Value::Text(span), Some(b'U' | b'T' | b'S')) => Some(Payload::Raw(span)),
        _ => payload(pickle, id),
    }
}

/// Whether a call would build an array or a scalar, also if [`value`] gives none because of its
/// dtype.
pub(super) fn is_array(module: &str, name: &str) -> bool {
    let module = module.strip_prefix("numpy.core").or_else(|| module.strip_prefix("numpy._core"));
    matches!(
        (module, name),
        (Some(".multiarray"), "scalar" | "_reconstruct") | (Some(".numeric"), "_frombuffer")
    )
}

/// The dtype that a call would build; `None` for records, objects and dtypes that are not NumPy's.
fn descr(pickle: &Pickle<'_>, id: Id) -> Option<Descr> {
    let (call, name, args): (&Call, _, _) = pickle.call(id)?;
    let (("numpy", "dtype"), &[code, ..]) = (name, args) else { return None };
    let state = call.state.and_then(|state| pickle.sequence(state)).unwrap_or_default();
    let order = state.get(1).and_then(|&order| pickle.text(order)).unwrap_or("|");
    // A dtype of numbers has no subarray, no names and no fields.
    let is_plain = state.iter().skip(2).take(3).all(|&part| matches!(pickle.value(part), Value::None));
    let order = if order == "=" { "<" } else { order };
    if let Some((module, name)) = pickle.global(code) {
        let is_known = module == "ml_dtypes" && matches!(order, "<" | "|") && is_plain;
        return Descr::from_text(name).ok().filter(|_| is_known);
    }
    let code = pickle.text(code)?;
    // The state of a dtype of dates has one more member: the unit.
    if !is_plain || state.len() > 8 || code.starts_with(['O', 'V', 'M', 'm']) {
        return None;
    }
    Descr::from_text(&format!("{order}{code}")).ok()
}
