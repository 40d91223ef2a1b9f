//! Takes the shards that this process holds of JAX arrays on several devices, without a copy.
//!
//! The sharding and the shape of an array determine the regions of its shards. Thousands of leaves
//! share both, so Python (`regrow/_leaves/`) computes the regions once for each pair. This module
//! then takes the memory of each shard with two calls of JAX. Asking each array for its shards
//! would take four times as long.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use regrow::array::{Array, Dtype, Region, Shape, Shard};
use regrow::{Error, Result};

use crate::error::OrRaise;
use crate::memory::{Shapes, take_tensor, tensor_host_device};

/// A placement: the shape, the shape of a chunk, and whether every process has the whole array. For
/// each shard of this process: its number among these shards, the number of its device, its start
/// and its extent.
type PlacementIn = (Vec<u64>, Vec<u64>, bool, Vec<(usize, i32, Vec<u64>, Vec<u64>)>);

/// The regions of the shards of all arrays with one shape and one sharding.
#[pyclass(frozen, module = "regrow._native")]
struct Placement {
    shape: Shape,
    chunk_shape: Shape,
    is_replicated: bool,
    parts: Vec<Part>,
}

/// One shard of this process.
struct Part {
    number: usize,
    device: i32,
    region: Region,
}

impl Placement {
    fn new((shape, chunk_shape, is_replicated, parts): PlacementIn) -> Result<Self> {
        let part = |(number, device, starts, lens): (usize, i32, Vec<u64>, Vec<u64>)| {
            Ok(Part { number, device, region: Region::new(starts, lens)? })
        };
        let parts = parts.into_iter().map(part).collect::<Result<_>>()?;
        Ok(Self { shape: Shape::new(shape)?, chunk_shape: Shape::new(chunk_shape)?, is_replicated, parts })
    }
}

/// A cache of placements.
pub struct Placements<'a, 'py> {
    /// `placement(array)`: returns a `PlacementIn`, or `None` if Python handles the array.
    tell: &'a Bound<'py, PyAny>,
    dtypes: &'a Bound<'py, PyDict>,
    /// Placements by sharding and shape; the value is `None` if Python handles such arrays.
    known: Bound<'py, PyDict>,
}

impl<'a, 'py> Placements<'a, 'py> {
    pub fn new(tell: &'a Bound<'py, PyAny>, dtypes: &'a Bound<'py, PyDict>) -> Self {
        Self { tell, dtypes, known: PyDict::new(tell.py()) }
    }

    /// Takes the shards of an array; `None` if Python must handle the array, for example to raise
    /// an error.
    pub fn take(
        &self,
        array: &Bound<'py, PyAny>,
        sharding: &Bound<'py, PyAny>,
        export: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = array.py();
        let Some(placement) = self.of(array, sharding)? else { return Ok(None) };
        let parts = &placement.get().parts;
        let mut tensors = Vec::with_capacity(parts.len());
        for part in parts {
            let shard = array.call_method1(intern!(py, "addressable_data"), (part.number,));
            let Ok(tensor) = shard.and_then(|shard| export.call1((shard,))) else { return Ok(None) };
            if tensor_host_device(&tensor) != Some(part.device) {
                return Ok(None);
            }
            tensors.push(tensor.unbind());
        }
        let dtype = if tensors.is_empty() { self.dtype_of(array)? } else { None };
        if tensors.is_empty() && dtype.is_none() {
            return Ok(None);
        }
        let held = HeldShards { placement: placement.unbind(), tensors, dtype };
        Ok(Some(Bound::new(py, held)?.into_any()))
    }

    fn dtype_of(&self, array: &Bound<'py, PyAny>) -> PyResult<Option<Dtype>> {
        let number = self.dtypes.get_item(array.getattr(intern!(array.py(), "dtype"))?)?;
        let number: Option<usize> = number.map(|number| number.extract()).transpose()?;
        Ok(number.and_then(|number| Dtype::all().nth(number)))
    }

    fn of(
        &self,
        array: &Bound<'py, PyAny>,
        sharding: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, Placement>>> {
        let py = array.py();
        let key = PyTuple::new(py, [sharding, &array.getattr(intern!(py, "shape"))?])?;
        if let Some(known) = self.known.get_item(&key)? {
            return Ok(known.extract()?);
        }
        let told: Option<PlacementIn> = self.tell.call1((array,))?.extract()?;
        let placement = told.map(Placement::new).transpose().or_raise()?;
        let placement = placement.map(|placement| Bound::new(py, placement)).transpose()?;
        self.known.set_item(key, &placement)?;
        Ok(placement)
    }
}

/// The shards of one array, to be passed to the engine.
#[pyclass(frozen, module = "regrow._native")]
pub struct HeldShards {
    placement: Py<Placement>,
    tensors: Vec<Py<PyAny>>,
    /// The dtype of the array if this process has no shards.
    dtype: Option<Dtype>,
}

impl HeldShards {
    /// The array with these shards. Call it only once, because it takes the tensors.
    pub fn to_array(&self, py: Python<'_>, shapes: &mut Shapes) -> Result<Array> {
        let Placement { shape, chunk_shape, is_replicated, parts } = self.placement.get();
        let shard = |(part, tensor): (&Part, &Py<PyAny>)| {
            Ok(Shard { region: part.region.clone(), array: take_tensor(tensor.bind(py), shapes)? })
        };
        let shards = parts.iter().zip(&self.tensors).map(shard).collect::<Result<Vec<_>>>()?;
        let dtype = self.dtype.or_else(|| shards.first().map(|shard| shard.array.dtype()));
        let dtype = dtype.ok_or_else(|| Error::invalid("an array in shards has no dtype"))?;
        Array::sharded(dtype, shape.clone(), chunk_shape.clone(), shards, *is_replicated)
    }
}
