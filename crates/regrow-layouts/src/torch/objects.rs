//! The meaning of each value of the pickle: a container, a leaf, or an unsupported value, which is
//! refused with its name.
//!
//! All supported names are here and in `tensors` and `numpy`.

use super::dtypes::of_name;
use super::numpy::{self, NumpyValue, Payload};
use super::pickle::{Call, Id, Pickle, Span, Value};
use super::tensors::{self, Built, StorageRef, Tensor, dims};
use regrow_base::error::{Error, Result};
use regrow_base::text::brief;
use regrow_tree::tree::{NodeKind, Scalar};

/// The longest integer that is converted to decimal.
const LONG_LEN_MAX_BYTES: usize = 128;

/// The meaning of a value.
#[derive(Debug)]
pub(super) enum Object<'p> {
    None,
    Number(Scalar),
    /// An integer beyond 64 bits, in decimal.
    BigInt(String),
    Text(Span),
    Bytes(Payload),
    /// A name of PyTorch: a dtype, a device, a layout.
    Name(String),
    Sequence(NodeKind, &'p [Id]),
    /// A set, in the order in which it was written.
    Set(&'p [Id]),
    Dict(NodeKind, &'p [(Id, Id)]),
    /// The numbers of a `torch.Size`.
    Size(Vec<u64>),
    Tensor(Tensor),
    Storage(StorageRef<'p>),
    Numpy(Box<NumpyValue>),
    Refused(Refusal),
}

/// A value that only Python could make, and the reason why regrow refuses it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub name: String,
    pub why: Error,
}

pub(super) fn object<'p>(pickle: &'p Pickle<'_>, id: Id) -> Result<Object<'p>> {
    Ok(match pickle.value(id) {
        Value::None => Object::None,
        Value::Bool(value) => Object::Number(Scalar::Bool(*value)),
        Value::Int(value) => Object::Number(Scalar::Int(*value)),
        Value::Float(value) => Object::Number(Scalar::Float(*value)),
        Value::Long(span) => long(pickle, id, pickle.span(*span)),
        Value::Text(span) => Object::Text(*span),
        Value::Bytes(span) => Object::Bytes(Payload::Raw(*span)),
        Value::List(items) => Object::Sequence(NodeKind::List, items),
        Value::Tuple(items) => Object::Sequence(NodeKind::Tuple, items),
        Value::Set(items) => Object::Set(items),
        Value::Dict(pairs) => Object::Dict(NodeKind::Dict, pairs),
        Value::Persistent(_) => match tensors::storage(pickle, id) {
            Ok(storage) => Object::Storage(storage),
            Err(error) if error.kind() == regrow_base::error::ErrorKind::Unsupported => {
                Object::Refused(Refusal { name: "a storage".to_owned(), why: error })
            }
            Err(error) => return Err(error),
        },
        Value::Global(module, name) => global(pickle, id, pickle.text_of(*module), pickle.text_of(*name)),
        Value::Call(call) => return called(pickle, id, call),
    })
}

fn long<'p>(pickle: &Pickle<'_>, id: Id, bytes: &[u8]) -> Object<'p> {
    let is_negative = bytes.last().is_some_and(|&high| high & 0x80 != 0);
    if bytes.len() > LONG_LEN_MAX_BYTES {
        let why = pickle.unsupported(id, format!("regrow does not read integers of {} bytes", bytes.len()));
        return Object::Refused(Refusal { name: "int".to_owned(), why });
    }
    // The magnitude, little endian. For a negative number, all bits are inverted, and one is added.
    let mut magnitude: Vec<u8> = bytes.to_vec();
    if is_negative {
        let mut carry = true;
        for byte in &mut magnitude {
            let (turned, over) = (!*byte).overflowing_add(u8::from(carry));
            (*byte, carry) = (turned, over);
        }
    }
    let high_is_zero = magnitude.get(8..).is_none_or(|high| high.iter().all(|&byte| byte == 0));
    if !is_negative && high_is_zero {
        let mut low = [0; 8];
        for (to, from) in low.iter_mut().zip(&magnitude) {
            *to = *from;
        }
        let value = u64::from_le_bytes(low);
        return Object::Number(i64::try_from(value).map_or(Scalar::UInt(value), Scalar::Int));
    }
    let digits = decimal(magnitude);
    Object::BigInt(if is_negative { format!("-{digits}") } else { digits })
}

/// The digits of a number that is given in bytes, the lowest first.
fn decimal(mut magnitude: Vec<u8>) -> String {
    let mut digits = Vec::new();
    while magnitude.iter().any(|&byte| byte != 0) {
        let mut rest = 0_u32;
        for byte in magnitude.iter_mut().rev() {
            let now = rest << 8 | u32::from(*byte);
            (*byte, rest) = ((now / 10) as u8, now % 10);
        }
        digits.push(b'0' + rest as u8);
    }
    if digits.is_empty() {
        digits.push(b'0');
    }
    digits.iter().rev().map(|&digit| char::from(digit)).collect()
}

fn global<'p>(pickle: &Pickle<'_>, id: Id, module: &str, name: &str) -> Object<'p> {
    let is_constant =
        matches!(name, "strided" | "sparse_coo" | "contiguous_format" | "channels_last" | "preserve_format");
    match module {
        "torch" if of_name(name).is_some() || is_constant => Object::Name(format!("torch.{name}")),
        _ => refused(pickle, id, module, name),
    }
}

fn refused<'p>(pickle: &Pickle<'_>, id: Id, module: &str, name: &str) -> Object<'p> {
    let name = brief(&format!("{module}.{name}")).to_string();
    let why = pickle
        .unsupported(id, format!("regrow does not read {name} of a pickle, and never calls it"))
        .help("save plain containers, numbers, texts and tensors in its place, or read the other leaves with `only`");
    Object::Refused(Refusal { name, why })
}

fn called<'p>(pickle: &'p Pickle<'_>, id: Id, call: &'p Call) -> Result<Object<'p>> {
    match tensors::tensor(pickle, id)? {
        Built::Tensor(tensor) => return Ok(Object::Tensor(tensor)),
        Built::Refused(why) => {
            return Ok(Object::Refused(Refusal { name: "torch.Tensor".to_owned(), why }));
        }
        Built::Other => {}
    }
    if let Some(payload) = numpy::payload(pickle, id) {
        return Ok(Object::Bytes(payload));
    }
    if let Some(value) = numpy::value(pickle, id)? {
        return Ok(Object::Numpy(Box::new(value)));
    }
    let Some((_, (module, name), args)) = pickle.call(id) else {
        let why = pickle.unsupported(
            id,
            "a pickle calls the result of a call, and regrow never calls objects of a pickle",
        );
        return Ok(Object::Refused(Refusal { name: "a call".to_owned(), why }));
    };
    if let Some(container) = container(pickle, call, (module, name), args) {
        return Ok(container);
    }
    if let Some(value) = plain_value(pickle, id, (module, name), args)? {
        return Ok(value);
    }
    Ok(match (module, name, args) {
        // The form in which protocols 0 and 1 write objects of any class.
        ("copy_reg" | "copyreg", "_reconstructor", &[class, ..]) if pickle.global(class).is_some() => {
            let (module, name) = pickle.global(class).unwrap_or_default();
            refused(pickle, class, module, name)
        }
        (module, name, _) if numpy::is_array(module, name) => refused_array(pickle, id, module, name),
        _ => refused(pickle, call.callee, module, name),
    })
}

/// A container that Python's or Flax' pickles write as a call.
fn container<'p>(
    pickle: &'p Pickle<'_>,
    call: &'p Call,
    function: (&str, &str),
    args: &'p [Id],
) -> Option<Object<'p>> {
    match (function, args) {
        (("collections", "OrderedDict"), []) => Some(Object::Dict(NodeKind::OrderedDict, &call.pairs)),
        (("collections", "defaultdict"), [_] | []) => Some(Object::Dict(NodeKind::DefaultDict, &call.pairs)),
        (("collections", "Counter") | ("flax.core.frozen_dict", "FrozenDict"), [inner]) => {
            match pickle.value(*inner) {
                Value::Dict(pairs) => Some(Object::Dict(NodeKind::Dict, pairs)),
                _ => None,
            }
        }
        // Protocols up to 3 write a set as a call with the list of its items.
        (("__builtin__" | "builtins", "set" | "frozenset"), [items]) => {
            pickle.sequence(*items).map(Object::Set)
        }
        _ => None,
    }
}

/// A number, or an object that is shown as a name or a shape.
fn plain_value<'p>(
    pickle: &'p Pickle<'_>,
    id: Id,
    function: (&str, &str),
    args: &[Id],
) -> Result<Option<Object<'p>>> {
    Ok(Some(match (function, args) {
        (("__builtin__" | "builtins", "complex"), &[re, im]) => match (pickle.value(re), pickle.value(im)) {
            (&Value::Float(re), &Value::Float(im)) => Object::Number(Scalar::Complex(re, im)),
            _ => return Err(pickle.corrupt(id, "a complex number does not have two floats")),
        },
        (("torch", "Size"), &[items]) => match dims(pickle, items) {
            Some(dims) => Object::Size(dims),
            None => return Err(pickle.corrupt(id, "a torch.Size does not have integers")),
        },
        (("torch", "device"), &[kind, ref index @ ..]) => {
            let kind = pickle.text(kind).ok_or_else(|| pickle.corrupt(id, "a torch.device has no type"))?;
            match index.first().and_then(|&index| pickle.int(index)) {
                Some(index) => Object::Name(format!("{kind}:{index}")),
                None => Object::Name(kind.to_owned()),
            }
        }
        (("torch.serialization", "_get_layout"), &[layout]) => match pickle.text(layout) {
            Some(layout) => Object::Name(layout.to_owned()),
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

fn refused_array<'p>(pickle: &Pickle<'_>, id: Id, module: &str, name: &str) -> Object<'p> {
    let what = "a NumPy array has Python objects, dates or records, which regrow does not read";
    let why =
        pickle.unsupported(id, what).help("save it as numbers or text, or read the other leaves with `only`");
    Object::Refused(Refusal { name: format!("{module}.{name}"), why })
}
