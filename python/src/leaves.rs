//! Turns Python's leaves into the engine's, and the engine's leaves into columns. `regrow/_leaves/`
//! has the other half.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyBytes, PyCapsule, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyList, PyString,
    PyTuple,
};
use regrow::array::{Array, Dtype, Region, Shape, Shard};
use regrow::sharding::Sharding;
use regrow::tree::{KeyPath, Leaf, LeafData, LeafInfo, LeafKind, Scalar, Tree};
use regrow::{Error, Result};

use crate::error::{OrRaise, to_py_err};
use crate::memory::{Shapes, Shown, borrow_one_of_many, take_tensor};
use crate::shards::HeldShards;

/// The names of the leaf kinds. The columns use their positions as numbers.
pub const LEAF_KINDS: [&str; 11] = [
    "numpy_array",
    "numpy_scalar",
    "jax_array",
    "prng_key",
    "scalar",
    "str",
    "bytes",
    "placeholder",
    "unknown",
    "numpy_other",
    "numpy_other_scalar",
];

/// Columns from Python: kinds, values (arrays, capsules of tensors, Python values), notes and
/// shardings.
pub type LeavesIn<'py> = (PyBackedBytes, Bound<'py, PyList>, HashMap<usize, String>, Bound<'py, PyDict>);

/// Columns for Python: kinds, values and notes.
pub type LeavesOut<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyDict>);

/// The leaves of `tree`. An error of the engine gets the key path of its leaf; an exception of
/// Python does not.
pub fn to_leaves(tree: &Tree<()>, columns: &LeavesIn<'_>) -> PyResult<Vec<Leaf>> {
    let (kinds, values, notes, shardings) = columns;
    let (mut dtypes, mut shapes) = (Dtypes::default(), Shapes::default());
    let mut sharding_of = Shardings::new(shardings);
    let mut leaves = Vec::with_capacity(kinds.len());
    for (at, (&kind, value)) in kinds.iter().zip(values.iter()).enumerate() {
        let mut leaf = match to_leaf(kind, &value, || notes.get(&at), &mut dtypes, &mut shapes) {
            Ok(leaf) => leaf?,
            Err(error) => {
                return Err(to_py_err(error.at_leaf(&tree.path_of(at))));
            }
        };
        leaf.sharding = sharding_of.get(at)?;
        leaves.push(leaf);
    }
    Ok(leaves)
}

/// Shardings as JSON, by the number of the leaf. Thousands of leaves share few shardings, most as
/// the same text object.
struct Shardings<'a, 'py> {
    texts: &'a Bound<'py, PyDict>,
    is_empty: bool,
    parsed: HashMap<PyBackedStr, Arc<Sharding>>,
}

impl<'a, 'py> Shardings<'a, 'py> {
    fn new(texts: &'a Bound<'py, PyDict>) -> Self {
        Self { texts, is_empty: texts.is_empty(), parsed: HashMap::new() }
    }

    fn get(&mut self, leaf: usize) -> PyResult<Option<Arc<Sharding>>> {
        if self.is_empty {
            return Ok(None);
        }
        let Some(text) = self.texts.get_item(leaf)? else { return Ok(None) };
        let text: PyBackedStr = text.extract()?;
        let parsed = self.parsed.entry(text);
        let parse = |text: &PyBackedStr| {
            Arc::new(Sharding::from_json(serde_json::from_str(text).unwrap_or(serde_json::Value::Null)))
        };
        Ok(Some(parsed.or_insert_with_key(parse).clone()))
    }
}

/// Converts one leaf. The outer error is of the engine and has no key path yet; the inner error is
/// an exception of Python.
fn to_leaf<'a>(
    kind: u8,
    value: &Bound<'_, PyAny>,
    note: impl FnOnce() -> Option<&'a String>,
    dtypes: &mut Dtypes,
    shapes: &mut Shapes,
) -> Result<PyResult<Leaf>> {
    match kind {
        4 => to_scalar(value),
        5 => to_text(value),
        6 => Ok(to_bytes(value)),
        7 => Ok(Ok(Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None })),
        _ => to_array(array_kind(kind, note)?, value, dtypes, shapes),
    }
}

/// The kind of an array by its number in `_leaves`.
fn array_kind<'a>(kind: u8, note: impl FnOnce() -> Option<&'a String>) -> Result<LeafKind> {
    let name = if matches!(kind, 3 | 9 | 10) { note().map(|name| Arc::from(name.as_str())) } else { None };
    let lacks_dtype = || Error::invalid("a leaf of a NumPy-only dtype lacks the name of its dtype");
    Ok(match kind {
        0 => LeafKind::NumpyArray,
        1 => LeafKind::NumpyScalar,
        2 => LeafKind::JaxArray,
        3 => LeafKind::PrngKey(name),
        9 => LeafKind::NumpyOther(name.ok_or_else(lacks_dtype)?),
        10 => LeafKind::NumpyOtherScalar(name.ok_or_else(lacks_dtype)?),
        _ => return Err(Error::invalid(format!("leaf kind {kind} does not exist"))),
    })
}

/// The array of a capsule, of shards, or of NumPy. Its two errors are those of [`to_leaf`].
fn to_array(
    kind: LeafKind,
    value: &Bound<'_, PyAny>,
    dtypes: &mut Dtypes,
    shapes: &mut Shapes,
) -> Result<PyResult<Leaf>> {
    if value.is_exact_instance_of::<PyCapsule>() {
        return take_tensor(value, shapes).map(|array| Ok(of_array(kind, array)));
    }
    if let Ok(held) = value.cast_exact::<HeldShards>() {
        return held.get().to_array(value.py(), shapes).map(|array| Ok(of_array(kind, array)));
    }
    if let Ok(told) = value.cast::<PyTuple>() {
        return match told.extract::<ShardsIn<'_>>() {
            Ok(told) => Ok(Ok(of_array(kind, to_sharded(told, shapes)?))),
            Err(error) => Ok(Err(error)),
        };
    }
    let array = match value.cast::<PyUntypedArray>() {
        Ok(array) => array,
        Err(error) => return Ok(Err(error.into())),
    };
    let dtype = match dtypes.get(array) {
        Ok(dtype) => dtype?,
        Err(error) => return Ok(Err(error)),
    };
    Ok(Ok(of_array(kind, borrow_one_of_many(array, dtype, shapes)?)))
}

/// An array on several devices: its dtype, shape and chunk shape, whether every process has the
/// whole array, and the shards of this process, each with its start.
type ShardsIn<'py> = (String, Vec<u64>, Vec<u64>, bool, Vec<(Vec<u64>, Bound<'py, PyUntypedArray>)>);

fn to_sharded(told: ShardsIn<'_>, shapes: &mut Shapes) -> Result<Array> {
    let (dtype, shape, chunk_shape, is_replicated, shards) = told;
    let dtype: Dtype = dtype.parse()?;
    let shard = |(starts, array): (Vec<u64>, Bound<'_, PyUntypedArray>)| {
        let array = borrow_one_of_many(&array, dtype, shapes)?;
        Ok(Shard { region: Region::new(starts, array.shape().dims())?, array })
    };
    let shards = shards.into_iter().map(shard).collect::<Result<Vec<_>>>()?;
    Array::sharded(dtype, Shape::new(shape)?, Shape::new(chunk_shape)?, shards, is_replicated)
}

fn of_array(kind: LeafKind, array: Array) -> Leaf {
    Leaf { kind, data: LeafData::Array(array), sharding: None }
}

/// A Python number as a leaf. A bool is also an int, so bools are checked first.
fn to_scalar(value: &Bound<'_, PyAny>) -> Result<PyResult<Leaf>> {
    let scalar = if let Ok(value) = value.cast::<PyBool>() {
        Scalar::Bool(value.is_true())
    } else if let Ok(value) = value.cast::<PyInt>() {
        match (value.extract::<i64>(), value.extract::<u64>()) {
            (Ok(value), _) => Scalar::Int(value),
            (_, Ok(value)) => Scalar::UInt(value),
            _ => {
                return Err(Error::unsupported("an integer leaf needs more than 64 bits")
                    .help("store it as text, or as an array of smaller integers"));
            }
        }
    } else if let Ok(value) = value.cast::<PyFloat>() {
        Scalar::Float(value.value())
    } else {
        match value.cast::<PyComplex>() {
            Ok(value) => Scalar::Complex(value.real(), value.imag()),
            Err(error) => return Ok(Err(error.into())),
        }
    };
    Ok(Ok(Leaf::scalar(scalar)))
}

fn to_text(value: &Bound<'_, PyAny>) -> Result<PyResult<Leaf>> {
    match value.cast::<PyString>() {
        Ok(text) => match text.to_str() {
            Ok(text) => Ok(Ok(Leaf::text(text))),
            Err(_) => Err(Error::unsupported("a text leaf is not valid Unicode")
                .help("store it as bytes: text.encode(errors=\"surrogateescape\")")),
        },
        Err(error) => Ok(Err(error.into())),
    }
}

fn to_bytes(value: &Bound<'_, PyAny>) -> PyResult<Leaf> {
    let data = Bytes::from_owner(value.extract::<PyBackedBytes>().map_err(PyErr::from)?);
    let shape = Shape::new(vec![data.len() as u64]).or_raise()?;
    let array = Array::new(Dtype::UInt8, shape, data).or_raise()?;
    Ok(Leaf { kind: LeafKind::Bytes, data: LeafData::Array(array), sharding: None })
}

/// Cached dtypes of NumPy's descriptors: a name is slow to compute, and a tree has few dtypes.
#[derive(Default)]
struct Dtypes(Vec<(Py<PyAny>, Dtype)>);

impl Dtypes {
    fn get(&mut self, array: &Bound<'_, PyUntypedArray>) -> PyResult<Result<Dtype>> {
        let descriptor = array.dtype().into_any();
        if let Some((_, dtype)) = self.0.iter().find(|(known, _)| known.is(&descriptor)) {
            return Ok(Ok(*dtype));
        }
        let name: String = descriptor.getattr("name")?.extract()?;
        Ok(name.parse().inspect(|&dtype| {
            // Bound the cache, because each array may have a dtype object of its own.
            if self.0.len() < 64 {
                self.0.push((descriptor.unbind(), dtype));
            }
        }))
    }
}

pub fn kind_number(kind: &LeafKind) -> u8 {
    match kind {
        LeafKind::NumpyArray => 0,
        LeafKind::NumpyScalar => 1,
        LeafKind::JaxArray => 2,
        LeafKind::PrngKey(_) => 3,
        LeafKind::Scalar => 4,
        LeafKind::Str => 5,
        LeafKind::Bytes => 6,
        LeafKind::Placeholder => 7,
        LeafKind::NumpyOther(_) => 9,
        LeafKind::NumpyOtherScalar(_) => 10,
        // The enum may grow: a leaf of an unknown kind has no value in Python.
        _ => 8,
    }
}

fn note_of(kind: &LeafKind) -> Option<&str> {
    match kind {
        LeafKind::PrngKey(implementation) => implementation.as_deref(),
        LeafKind::Unknown(type_name) => Some(type_name),
        LeafKind::NumpyOther(dtype) | LeafKind::NumpyOtherScalar(dtype) => Some(dtype),
        _ => None,
    }
}

/// The columns of loaded leaves. Arrays are views of the engine's bytes. `path_of` returns the key
/// path of a leaf, for errors.
pub fn from_leaves<'py>(
    py: Python<'py>,
    leaves: Vec<Leaf>,
    path_of: impl Fn(usize) -> KeyPath,
) -> PyResult<LeavesOut<'py>> {
    let mut kinds = Vec::with_capacity(leaves.len());
    let mut values = Vec::with_capacity(leaves.len());
    let notes = PyDict::new(py);
    let mut shown = Shown::new(py);
    for (at, leaf) in leaves.into_iter().enumerate() {
        kinds.push(kind_number(&leaf.kind));
        if let Some(note) = note_of(&leaf.kind) {
            notes.set_item(at, note)?;
        }
        values.push(match leaf.data {
            LeafData::Array(array) => shown
                .show(descriptor(py, array.dtype())?, &array)
                .map_err(|error| cannot_show(py, error, array.shape(), &path_of(at)))?,
            LeafData::Text(text) => PyString::new(py, &text).into_any(),
            LeafData::Absent => py.None().into_bound(py),
        });
    }
    Ok((PyBytes::new(py, &kinds), PyList::new(py, values)?, notes))
}

/// Arrays as NumPy arrays, which are views of the engine's bytes. `path_of` returns the key path of
/// an array, for errors.
pub fn show_arrays<'py>(
    py: Python<'py>,
    arrays: &[Array],
    path_of: impl Fn(usize) -> KeyPath,
) -> PyResult<Bound<'py, PyList>> {
    let mut shown = Shown::new(py);
    let mut values = Vec::with_capacity(arrays.len());
    for (at, array) in arrays.iter().enumerate() {
        let value = shown.show(descriptor(py, array.dtype())?, array);
        values.push(value.map_err(|error| cannot_show(py, error, array.shape(), &path_of(at)))?);
    }
    PyList::new(py, values)
}

/// The error if NumPy refuses a shape with too many axes or elements, with the key path of the
/// leaf.
fn cannot_show(py: Python<'_>, error: PyErr, shape: &Shape, path: &KeyPath) -> PyErr {
    if !error.is_instance_of::<PyValueError>(py) {
        return error;
    }
    let why = error.value(py);
    let error = Error::unsupported(format!("NumPy cannot hold an array of this shape: {why}"))
        .expected("a shape that NumPy has", shape)
        .help("load the other leaves with `only=`, or give this one another shape with `regrow convert --reshape`");
    to_py_err(error.at_leaf(path))
}

fn descriptor<'py>(py: Python<'py>, dtype: Dtype) -> PyResult<&'py Bound<'py, PyArrayDescr>> {
    static ALL: PyOnceLock<Vec<PyOnceLock<Py<PyArrayDescr>>>> = PyOnceLock::new();
    let all = ALL.get_or_init(py, || Dtype::all().map(|_| PyOnceLock::new()).collect());
    let known = all.get(dtype as usize);
    let known = known.ok_or_else(|| Error::unsupported(format!("NumPy has no dtype {dtype}"))).or_raise()?;
    // The first of some dtypes imports ml_dtypes.
    let found = || Ok(py.import("regrow._leaves")?.getattr("DTYPES")?.get_item(dtype as usize)?.extract()?);
    known.get_or_try_init(py, found).map(|descriptor| descriptor.bind(py))
}

/// Metadata of leaves: their kinds, dtypes, shapes and stored names.
pub type InfosOut<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>);

pub fn from_infos<'py>(py: Python<'py>, infos: &[LeafInfo]) -> PyResult<InfosOut<'py>> {
    let mut shapes = ShapeTuples::default();
    let kinds: Vec<u8> = infos.iter().map(|info| kind_number(&info.kind)).collect();
    let dtypes: Vec<u8> = infos.iter().map(|info| info.dtype as u8).collect();
    let shapes: PyResult<Vec<_>> = infos.iter().map(|info| shapes.get(py, &info.shape)).collect();
    Ok((
        PyBytes::new(py, &kinds),
        PyBytes::new(py, &dtypes),
        PyList::new(py, shapes?)?,
        PyList::new(py, infos.iter().map(|info| &*info.name))?,
    ))
}

pub fn shape_tuples<'a, 'py>(
    py: Python<'py>,
    shapes: impl Iterator<Item = Option<&'a Shape>>,
) -> PyResult<Bound<'py, PyList>> {
    let mut tuples = ShapeTuples::default();
    let tuple = |shape: Option<&Shape>| shape.map(|shape| tuples.get(py, shape)).transpose();
    PyList::new(py, shapes.map(tuple).collect::<PyResult<Vec<_>>>()?)
}

/// Python tuples of shapes. All leaves of the same shape share one tuple.
#[derive(Default)]
struct ShapeTuples<'py>(HashMap<Shape, Bound<'py, PyTuple>>);

impl<'py> ShapeTuples<'py> {
    fn get(&mut self, py: Python<'py>, shape: &Shape) -> PyResult<Bound<'py, PyTuple>> {
        if let Some(tuple) = self.0.get(shape) {
            return Ok(tuple.clone());
        }
        let tuple = PyTuple::new(py, shape.dims())?;
        self.0.insert(shape.clone(), tuple.clone());
        Ok(tuple)
    }
}
