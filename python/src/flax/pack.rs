//! Turns Python objects into msgpack, with the same result as `msgpack.packb(strict_types=True)`
//! with Flax' extensions.
//!
//! There are two passes. The first walks the objects, writes everything small, and computes the
//! size. The second fills one buffer of exactly this size, and copies the data of arrays into it.
//! The first pass converts big-endian arrays.

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyList, PyMemoryView,
    PyString, PyType,
};
use regrow::Error;
use regrow::array::{Array, Dtype, Shape};
use regrow::tree::{Key, KeyPath};
use regrow_layouts::flax::encode::{ArrayHead, Encoder, Part};
use regrow_layouts::flax::layout::{EXT_NDARRAY, EXT_NUMPY_SCALAR, EXT_TIMESTAMP};
use regrow_layouts::flax::msgpack::DEPTH_MAX;

use super::TYPES;
use crate::error::{OrRaise, to_py_err};
use crate::memory::{Piece, borrow_elements, join};

/// The `num` of NumPy dtypes that are refused: object, bytes, str, void and records, variable-width
/// text.
const REFUSED_NUMS: [i32; 5] = [17, 18, 19, 20, 2056];

/// The bit in `type.__flags__` of a class that was made at run time. C code names such a class
/// without its module.
const HEAP_TYPE: u64 = 1 << 9;

/// Packs raw dicts, lists and leaves into one msgpack object. Arrays longer than `max_chunk_size`
/// bytes are cut into chunks if they are values of dicts, or the root.
#[pyfunction]
pub fn msgpack_pack<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    max_chunk_size: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut packer = Packer {
        encoder: Encoder::new(),
        open: Vec::new(),
        open_lists: 0,
        max_chunk_size,
        dtypes: Vec::new(),
        types: Types::new(py)?,
    };
    packer.pack(value)?;
    let encoder = packer.encoder;
    let pieces: Vec<Piece<'_>> = encoder
        .parts()
        .map(|part| match part {
            Part::Bytes(bytes) => Piece::Bytes(bytes),
            Part::Bulk(bulk) => Piece::Array(&bulk.array, bulk.range.clone()),
        })
        .collect();
    join(py, &pieces)
}

/// A container that is being written. The walk takes the members of a dict, and the length of a
/// list, when it reaches the container.
enum Open<'py> {
    Dict { keys: Bound<'py, PyList>, values: Bound<'py, PyList>, next: usize },
    List { items: Bound<'py, PyList>, len: usize, next: usize },
}

struct Packer<'py> {
    encoder: Encoder,
    open: Vec<Open<'py>>,
    /// The number of lists among `open`: arrays below a list are not divided into chunks.
    open_lists: usize,
    max_chunk_size: u64,
    /// Cached names of dtypes: computing a name is slow, and a tree has few dtypes.
    dtypes: Vec<(Bound<'py, PyArrayDescr>, String)>,
    types: Types<'py>,
}

/// Classes that are checked often.
struct Types<'py> {
    generic: Bound<'py, PyAny>,
    asarray: Bound<'py, PyAny>,
    /// The class of JAX arrays; `None` if the program has not imported JAX.
    jax_array: Option<Bound<'py, PyAny>>,
    ext: Bound<'py, PyAny>,
    timestamp: Bound<'py, PyAny>,
}

impl<'py> Types<'py> {
    fn new(py: Python<'py>) -> PyResult<Self> {
        let numpy = py.import("numpy")?;
        let types = py.import(TYPES)?;
        let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
        let jax = modules.get_item("jax")?;
        Ok(Self {
            generic: numpy.getattr("generic")?,
            asarray: numpy.getattr("asarray")?,
            jax_array: jax.and_then(|jax| jax.getattr("Array").ok()),
            ext: types.getattr("ExtType")?,
            timestamp: types.getattr("Timestamp")?,
        })
    }
}

impl<'py> Packer<'py> {
    fn pack(&mut self, root: &Bound<'py, PyAny>) -> PyResult<()> {
        self.value(root)?;
        while let Some(open) = self.open.last_mut() {
            let (key, value) = match open {
                Open::Dict { keys, values, next } if *next < keys.len() => {
                    *next += 1;
                    (Some(keys.get_item(*next - 1)?), values.get_item(*next - 1)?)
                }
                Open::List { items, len, next } if *next < *len => {
                    *next += 1;
                    (None, items.get_item(*next - 1)?)
                }
                Open::Dict { .. } => {
                    self.open.pop();
                    continue;
                }
                Open::List { .. } => {
                    self.open.pop();
                    self.open_lists -= 1;
                    continue;
                }
            };
            if let Some(key) = key
                && !self.plain(&key)?
            {
                self.other(&key, None)?;
            }
            self.value(&value)?;
        }
        Ok(())
    }

    fn value(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        if self.plain(value)? {
            return Ok(());
        }
        if let Ok(dict) = value.cast_exact::<PyDict>() {
            let (keys, values) = (dict.keys(), dict.values());
            self.encoder.map(keys.len()).or_raise()?;
            return self.enter(Open::Dict { keys, values, next: 0 });
        }
        if let Ok(items) = value.cast_exact::<PyList>() {
            let len = items.len();
            self.encoder.array(len).or_raise()?;
            self.open_lists += 1;
            return self.enter(Open::List { items: items.clone(), len, next: 0 });
        }
        self.other(value, (self.open_lists == 0).then_some(self.max_chunk_size))
    }

    fn enter(&mut self, open: Open<'py>) -> PyResult<()> {
        if self.open.len() >= DEPTH_MAX {
            return Err(self.raise(
                Error::invalid(format!("the value is nested deeper than {DEPTH_MAX} levels"))
                    .help("Flax cannot read more levels; a list or dict that contains itself never ends"),
            ));
        }
        self.open.push(open);
        Ok(())
    }

    /// Writes a value of a type that msgpack itself has, except containers. Returns false for
    /// others.
    fn plain(&mut self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        if let Ok(text) = value.cast_exact::<PyString>() {
            self.encoder.str(text.to_str()?).map_err(|error| self.raise(error))?;
        } else if value.is_none() {
            self.encoder.nil();
        } else if let Ok(value) = value.cast_exact::<PyBool>() {
            self.encoder.bool(value.is_true());
        } else if let Ok(number) = value.cast_exact::<PyInt>() {
            match (number.extract::<i64>(), number.extract::<u64>()) {
                (Ok(number), _) => self.encoder.int(number),
                (_, Ok(number)) => self.encoder.uint(number),
                _ => {
                    let place = self.place();
                    return Err(PyOverflowError::new_err(format!("Integer value out of range{place}")));
                }
            }
        } else if let Ok(number) = value.cast_exact::<PyFloat>() {
            self.encoder.float(number.value());
        } else if value.is_exact_instance_of::<PyBytes>() || value.is_exact_instance_of::<PyByteArray>() {
            self.bytes(value)?;
        } else if value.is_instance_of::<PyMemoryView>() {
            self.bytes(&value.call_method0("tobytes")?)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn bytes(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        let data = bytes::Bytes::from_owner(value.extract::<PyBackedBytes>().map_err(PyErr::from)?);
        let written = Shape::new(vec![data.len() as u64])
            .and_then(|shape| Array::new(Dtype::UInt8, shape, data))
            .and_then(|array| self.encoder.bin(&array));
        written.map_err(|error| self.raise(error))
    }

    fn other(&mut self, value: &Bound<'py, PyAny>, max_chunk_size: Option<u64>) -> PyResult<()> {
        if let Ok(array) = value.cast::<PyUntypedArray>() {
            return self.ndarray(EXT_NDARRAY, array, max_chunk_size);
        }
        if value.is_instance(&self.types.generic)? {
            return self.asarray(EXT_NUMPY_SCALAR, value, None);
        }
        if let Ok(number) = value.cast::<PyComplex>() {
            self.encoder.complex(number.real(), number.imag());
            return Ok(());
        }
        if let Some(jax_array) = &self.types.jax_array
            && value.is_instance(jax_array)?
        {
            return self.asarray(EXT_NDARRAY, value, max_chunk_size);
        }
        if let Some((code, payload)) = self.ext_of(value)? {
            return self.encoder.ext(code, &payload).map_err(|error| self.raise(error));
        }
        let error = PyTypeError::new_err(format!(
            "can not serialize '{}' object{}",
            type_name(&value.get_type())?,
            self.place()
        ));
        Err(error)
    }

    /// The code and the payload of an extension object. Its class is in `TYPES` or in the msgpack
    /// package. `None` for any other object.
    fn ext_of(&self, value: &Bound<'py, PyAny>) -> PyResult<Option<(i8, Vec<u8>)>> {
        let class = value.get_type();
        let is_msgpacks = |name: &str| -> PyResult<bool> {
            Ok(class.name()?.to_str()? == name && class.module()?.to_str()?.starts_with("msgpack"))
        };
        if class.is(&self.types.ext) || is_msgpacks("ExtType")? {
            let code = value.getattr("code")?.extract()?;
            return Ok(Some((code, value.getattr("data")?.extract()?)));
        }
        if class.is(&self.types.timestamp) || is_msgpacks("Timestamp")? {
            let seconds: i64 = value.getattr("seconds")?.extract()?;
            let nanoseconds: u32 = value.getattr("nanoseconds")?.extract()?;
            if nanoseconds > 999_999_999 {
                return Err(self.raise(
                    Error::invalid("the nanoseconds of a timestamp are out of range")
                        .expected("at most 999999999", nanoseconds),
                ));
            }
            return Ok(Some((EXT_TIMESTAMP, timestamp(seconds, nanoseconds))));
        }
        Ok(None)
    }

    fn asarray(&mut self, code: i8, value: &Bound<'py, PyAny>, max: Option<u64>) -> PyResult<()> {
        let array = self.types.asarray.call1((value,))?;
        self.ndarray(code, array.cast::<PyUntypedArray>()?, max)
    }

    fn ndarray(&mut self, code: i8, array: &Bound<'py, PyUntypedArray>, max: Option<u64>) -> PyResult<()> {
        let dtype = array.dtype();
        if dtype.has_object() || REFUSED_NUMS.contains(&dtype.num()) {
            return Err(self.refuse_dtype(&dtype));
        }
        let array = match dtype.byteorder() {
            b'>' => {
                let little = dtype.call_method1("newbyteorder", ("<",))?;
                array.call_method1("astype", (little,))?.cast_into::<PyUntypedArray>()?
            }
            _ => array.clone(),
        };
        let dims: Vec<u64> = array.shape().iter().map(|&dim| dim as u64).collect();
        let at = self.dtype_name(dtype.clone())?;
        let elements = borrow_elements(&array).map_err(|error| self.raise(error))?;
        let name = self.dtypes.get(at).map_or("", |(_, name)| name.as_str());
        let head = ArrayHead { code, dims: &dims, dtype_name: name, size_bytes: dtype.itemsize() as u64 };
        self.encoder.ndarray(head, &elements, max).map_err(|error| self.raise(error))
    }

    fn dtype_name(&mut self, dtype: Bound<'py, PyArrayDescr>) -> PyResult<usize> {
        if let Some(at) = self.dtypes.iter().position(|(known, _)| known.is(&dtype)) {
            return Ok(at);
        }
        let name = dtype.getattr("name")?.extract()?;
        // Bound the cache, because each array may have a dtype object of its own.
        if self.dtypes.len() >= 64 {
            self.dtypes.clear();
        }
        self.dtypes.push((dtype, name));
        Ok(self.dtypes.len() - 1)
    }

    fn refuse_dtype(&self, dtype: &Bound<'py, PyArrayDescr>) -> PyErr {
        let error = if dtype.has_object() || dtype.has_fields() {
            Error::invalid("Object and structured dtypes not supported for serialization of ndarrays.")
        } else {
            Error::invalid(format!("Flax writes arrays of dtype {dtype}, but cannot read them"))
        };
        self.raise(error.help("convert the array to numbers, or store text as str and bytes as bytes"))
    }

    fn raise(&self, error: Error) -> PyErr {
        let path = self.path();
        to_py_err(if path.is_root() { error } else { error.at_leaf(&path) })
    }

    /// The key path, for the end of a message of Python's own exceptions.
    fn place(&self) -> String {
        match self.path() {
            path if path.is_root() => String::new(),
            path => format!("\n  leaf {path}"),
        }
    }

    fn path(&self) -> KeyPath {
        self.open
            .iter()
            .map(|open| match open {
                Open::Dict { keys, next, .. } => {
                    let key = keys.get_item(next.saturating_sub(1)).and_then(|key| key.str());
                    Key::dict(key.map(|key| key.to_string_lossy().into_owned()).unwrap_or_default())
                }
                Open::List { next, .. } => Key::Index(next.saturating_sub(1)),
            })
            .collect()
    }
}

/// The name that C code uses for a class: with its module, unless it is a built-in or was made at
/// run time.
fn type_name(class: &Bound<'_, PyType>) -> PyResult<String> {
    let name = class.name()?.to_string();
    let module = class.module()?.to_string();
    let flags: u64 = class.getattr("__flags__")?.extract()?;
    Ok(match flags & HEAP_TYPE == 0 && module != "builtins" {
        true => format!("{module}.{name}"),
        false => name,
    })
}

/// The payload of a timestamp, in the shortest of the three forms.
fn timestamp(seconds: i64, nanoseconds: u32) -> Vec<u8> {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds >> 34 == 0 => match u32::try_from(seconds) {
            Ok(seconds) if nanoseconds == 0 => seconds.to_be_bytes().to_vec(),
            _ => (u64::from(nanoseconds) << 34 | seconds).to_be_bytes().to_vec(),
        },
        _ => [&nanoseconds.to_be_bytes()[..], &seconds.to_be_bytes()].concat(),
    }
}
