//! Tensors: the calls that would build them, as records.
//!
//! ```text
//! _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata])
//! _rebuild_tensor_v3(untyped storage, offset, size, stride, requires_grad, hooks,
//!                    dtype[, metadata])
//! _rebuild_parameter(tensor, requires_grad, hooks)
//! _rebuild_from_type_v2(one of these, its class, its arguments, its attributes)
//!
//! storage = PERSISTENT ("storage", class, key, device, number of elements)
//! ```
//!
//! Source: PyTorch `torch/_utils.py`, `torch/_tensor.py`, `torch/serialization.py`.

use super::dtypes::{self, Element, STORAGE_MODULES};
use super::pickle::{Id, Pickle, Value};
use regrow_base::bytes::limits::RANK_MAX;
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Dtype, Shape};

/// The most wrapper calls around a tensor. A parameter with its own class has two.
const WRAPPINGS_MAX: usize = 8;

/// A reference to a storage in the pickle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StorageRef<'p> {
    pub key: &'p str,
    /// The type of the elements, from the class.
    pub element: Element,
    pub class: &'p str,
    pub len_elements: u64,
    /// The value in the pickle that refers to the storage.
    pub at: Id,
}

impl StorageRef<'_> {
    pub(super) fn len_bytes(&self) -> Option<u64> {
        self.len_elements.checked_mul(self.element.size_bytes())
    }
}

/// A view of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    /// The value in the pickle that refers to the storage.
    pub storage: Id,
    pub dtype: Dtype,
    pub shape: Shape,
    /// The distance between neighbouring elements on each axis.
    pub strides_elements: Vec<u64>,
    pub offset_elements: u64,
    pub requires_grad: bool,
    pub is_parameter: bool,
}

/// The result of a call.
#[derive(Debug)]
pub(super) enum Built {
    Tensor(Tensor),
    Other,
    /// A tensor that cannot be an array.
    Refused(Error),
}

pub(super) fn storage<'p>(pickle: &'p Pickle<'_>, id: Id) -> Result<StorageRef<'p>> {
    let Value::Persistent(tuple) = pickle.value(id) else {
        return Err(pickle.corrupt(id, "a tensor of the pickle has no storage"));
    };
    let parts = pickle.sequence(*tuple).unwrap_or_default();
    let kind = parts.first().and_then(|&kind| pickle.text(kind));
    if kind == Some("module") {
        return Err(pickle
            .unsupported(id, "the file has the source code of a module")
            .help("load it with the PyTorch that wrote it, and save the state_dict"));
    }
    let bad = || pickle.corrupt(id, "a storage of the pickle differs from those of torch.save");
    let &[_, class, key, _device, len, ref view @ ..] = parts else { return Err(bad()) };
    if kind != Some("storage") {
        return Err(bad());
    }
    if view.iter().any(|&view| !matches!(pickle.value(view), Value::None)) {
        return Err(pickle
            .unsupported(id, "a storage is a view of another one")
            .help("only PyTorch before 0.4 wrote such files: load it with torch.load and save it again"));
    }
    let (module, class) = pickle.global(class).ok_or_else(bad)?;
    let element = dtypes::of_storage(class).filter(|_| STORAGE_MODULES.contains(&module));
    let element = element
        .ok_or_else(|| pickle.unsupported(id, format!("the storage {module}.{class} is not known")))?;
    let key = pickle.text(key).ok_or_else(bad)?;
    let len_elements = pickle.int(len).and_then(|len| u64::try_from(len).ok()).ok_or_else(bad)?;
    Ok(StorageRef { key, element, class, len_elements, at: id })
}

pub(super) fn tensor(pickle: &Pickle<'_>, id: Id) -> Result<Built> {
    let (mut at, mut is_parameter, mut requires_grad) = (id, false, false);
    for _ in 0..WRAPPINGS_MAX {
        let Some((_, (module, name), args)) = pickle.call(at) else { return Ok(Built::Other) };
        match (module, name, args) {
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state", &[data, grad, ..]) => {
                (at, is_parameter) = (data, true);
                requires_grad = matches!(pickle.value(grad), Value::Bool(true));
            }
            ("torch._tensor", "_rebuild_from_type_v2", &[function, class, args, _state]) => {
                if !matches!(
                    pickle.global(class),
                    Some(("torch", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer"))
                ) {
                    return Ok(Built::Refused(refused_class(pickle, class)));
                }
                let args = pickle.sequence(args).unwrap_or_default();
                let Some((module, name)) = pickle.global(function) else { return Ok(Built::Other) };
                let built = rebuilt(pickle, at, (module, name), args)?;
                return Ok(as_parameter(built, is_parameter, requires_grad));
            }
            (module, name, args) => {
                let built = rebuilt(pickle, at, (module, name), args)?;
                return Ok(as_parameter(built, is_parameter, requires_grad));
            }
        }
    }
    Err(pickle.corrupt(id, "a tensor of the pickle is wrapped too often"))
}

fn as_parameter(built: Built, is_parameter: bool, requires_grad: bool) -> Built {
    match built {
        Built::Tensor(tensor) if is_parameter => {
            Built::Tensor(Tensor { is_parameter, requires_grad, ..tensor })
        }
        built => built,
    }
}

fn refused_class(pickle: &Pickle<'_>, class: Id) -> Error {
    let name = pickle.global(class).map_or("a class".to_owned(), |(module, name)| format!("{module}.{name}"));
    pickle
        .unsupported(class, format!("regrow does not read tensors of class {name}"))
        .help("save its content as plain tensors")
}

fn rebuilt(pickle: &Pickle<'_>, id: Id, name: (&str, &str), args: &[Id]) -> Result<Built> {
    let (storage, offset, size, stride, rest, dtype) = match (name, args) {
        (("torch._utils", "_rebuild_tensor"), &[storage, offset, size, stride]) => {
            (storage, offset, size, stride, &[][..], None)
        }
        (("torch._utils", "_rebuild_tensor_v2"), &[storage, offset, size, stride, ref rest @ ..]) => {
            (storage, offset, size, stride, rest, None)
        }
        (
            ("torch._utils", "_rebuild_tensor_v3"),
            &[storage, offset, size, stride, grad, hooks, dtype, ref metadata @ ..],
        ) => {
            let mut rest = vec![grad, hooks];
            rest.extend(metadata);
            return view(pickle, id, (storage, offset, size, stride), &rest, Some(dtype));
        }
        (("torch._utils", "_rebuild_meta_tensor_no_storage"), &[dtype, size, ..]) => {
            let dtype = pickle.global(dtype).map_or("?", |(_, name)| name);
            let dims = dims(pickle, size).ok_or_else(|| bad(pickle, id))?;
            let what = format!(
                "a tensor is on the device meta, without data ({dtype}, shape {})",
                Shape::new(dims)?
            );
            let help = "read the other leaves with `only`, or save the model after to_empty(device=...)";
            return Ok(Built::Refused(pickle.unsupported(id, what).help(help)));
        }
        _ => return Ok(Built::Other),
    };
    view(pickle, id, (storage, offset, size, stride), rest, dtype)
}

fn bad(pickle: &Pickle<'_>, id: Id) -> Error {
    pickle.corrupt(id, "a tensor of the pickle differs from those of torch.save")
}

/// The tensor of these arguments. `rest` is a list: whether the tensor needs a gradient, its hooks,
/// and its metadata.
fn view(
    pickle: &Pickle<'_>,
    id: Id,
    (storage_at, offset, size, stride): (Id, Id, Id, Id),
    rest: &[Id],
    dtype: Option<Id>,
) -> Result<Built> {
    let storage = match storage(pickle, storage_at) {
        Err(error) if error.kind() == regrow_base::error::ErrorKind::Unsupported => {
            return Ok(Built::Refused(error));
        }
        storage => storage?,
    };
    let element = match dtype.map(|dtype| (dtype, pickle.global(dtype))) {
        None => storage.element,
        Some((_, Some(("torch", name)))) if dtypes::of_name(name).is_some() => {
            dtypes::of_name(name).unwrap_or(storage.element)
        }
        Some((dtype, _)) => {
            return Ok(Built::Refused(pickle.unsupported(dtype, "the dtype of a tensor is not known")));
        }
    };
    let Element::Known(dtype) = element else {
        let name = dtype.and_then(|dtype| pickle.global(dtype)).map_or(storage.class, |(_, name)| name);
        return Ok(Built::Refused(
            pickle.unsupported(id, format!("regrow does not read tensors of {name}")).help(
                "convert the tensor to a plain dtype: no other layout has quantized numbers or parts \
                    of bytes",
            ),
        ));
    };
    if let Some(&metadata) = rest.get(2)
        && let Value::Dict(pairs) = pickle.value(metadata)
        && pairs.iter().any(|&(_, value)| matches!(pickle.value(value), Value::Bool(true)))
    {
        return Ok(Built::Refused(
            pickle
                .unsupported(id, "regrow does not read conjugate or negative views")
                .help("save tensor.resolve_conj().resolve_neg()"),
        ));
    }
    let dims = dims(pickle, size).ok_or_else(|| bad(pickle, id))?;
    let strides = self::dims(pickle, stride).filter(|strides| strides.len() == dims.len());
    let strides_elements = strides.ok_or_else(|| bad(pickle, id))?;
    let offset = pickle.int(offset).and_then(|offset| u64::try_from(offset).ok());
    let offset_elements = offset.ok_or_else(|| bad(pickle, id))?;
    let requires_grad = rest.first().is_some_and(|&grad| matches!(pickle.value(grad), Value::Bool(true)));
    let shape = Shape::new(dims).map_err(|error| error.at_byte(pickle.offset(id)))?;
    shape.len_bytes(dtype).map_err(|error| error.at_byte(pickle.offset(id)))?;
    let tensor = Tensor {
        storage: storage_at,
        dtype,
        shape,
        strides_elements,
        offset_elements,
        requires_grad,
        is_parameter: false,
    };
    let end_bytes = tensor.end_bytes();
    if end_bytes.is_none_or(|end| storage.len_bytes().is_none_or(|len| end > len)) {
        return Err(pickle.corrupt(id, "a tensor of the pickle is outside its storage").expected(
            format_args!("at most {} elements of {}", storage.len_elements, storage.class),
            format_args!(
                "shape {} with strides {:?} from {offset_elements} on",
                tensor.shape, tensor.strides_elements
            ),
        ));
    }
    Ok(Built::Tensor(tensor))
}

impl Tensor {
    /// The end of the view in its storage, in bytes; `None` if it overflows.
    fn end_bytes(&self) -> Option<u64> {
        let size = self.dtype.size_bytes() as u64;
        if self.shape.is_empty() {
            return Some(0);
        }
        let mut last = self.offset_elements;
        for (&dim, &stride) in self.shape.dims().iter().zip(&self.strides_elements) {
            last = last.checked_add(dim.checked_sub(1)?.checked_mul(stride)?)?;
        }
        last.checked_add(1)?.checked_mul(size)
    }
}

/// Numbers of a `torch.Size` or a tuple, none of them negative; `None` for anything else.
pub(super) fn dims(pickle: &Pickle<'_>, id: Id) -> Option<Vec<u64>> {
    let items = match pickle.call(id) {
        Some((_, ("torch", "Size"), &[items])) => items,
        _ => id,
    };
    let items = pickle.sequence(items).filter(|items| items.len() <= RANK_MAX)?;
    items.iter().map(|&item| u64::try_from(pickle.int(item)?).ok()).collect()
}
