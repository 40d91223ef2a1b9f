//! Finds the kind of each leaf of a user's tree, as columns for the engine. This module recognises
//! NumPy's arrays and scalars with dtypes of the engine, Python's own types, and JAX arrays in this
//! machine's memory. `regrow/_leaves/` recognises all other leaves.
//!
//! JAX exports an array through DLPack. The export waits until the array is computed. While the
//! returned tensor exists, its memory does not change: if another thread donates the array, JAX
//! copies the array. An export takes one or two microseconds for any dtype. `np.asarray` takes ten
//! times as long for dtypes that buffers cannot describe (bfloat16, float8).

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use regrow::array::{Dtype, Shape};
use regrow::engine::TemplateLeaf;
use regrow::tree::LeafKind;

use crate::addresses::AddressMap;
use crate::error::OrRaise;
use crate::leaves::kind_number;
use crate::memory::tensor_host_device;
use crate::shards::Placements;

/// Functions and tables of Python: kinds by class, numbers by dtype, `other(leaf, at) -> (kind,
/// value, note, sharding)`, `exportable(class) -> bool`, `sharding(sharding) -> (text or None, is
/// plain)`. If JAX is imported, also the class of shardings on one device, `export(array) ->
/// capsule of a DLPack tensor`, and `placement(array)` of arrays on several devices.
type Hooks<'py> = (
    Bound<'py, PyDict>,
    Bound<'py, PyDict>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Option<JaxHooks<'py>>,
);

type JaxHooks<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Kinds, values, notes and shardings, as `leaves::LeavesIn` takes them.
type Columns<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyDict>, Bound<'py, PyDict>);

/// The leaves in columns, in the form that the engine reads.
#[pyfunction]
pub fn leaf_columns<'py>(
    py: Python<'py>,
    leaves: Bound<'py, PyList>,
    hooks: Hooks<'py>,
) -> PyResult<Columns<'py>> {
    let mut gather = Gather {
        py,
        dtypes: KnownDtypes::new(&hooks.1),
        hooks: &hooks,
        ways: AddressMap::default(),
        shardings: Vec::new(),
        shardings_by_value: PyDict::new(py),
        placements: hooks.5.as_ref().map(|(_, _, tell)| Placements::new(tell, &hooks.1)),
        devices: Vec::new(),
        jax: hooks.5.as_ref(),
        refused: Vec::new(),
    };
    let mut kinds = Vec::with_capacity(leaves.len());
    let mut values = Vec::with_capacity(leaves.len());
    let (notes, shardings) = (PyDict::new(py), PyDict::new(py));
    for (at, leaf) in leaves.iter().enumerate() {
        let (kind, value, sharding) = match gather.leaf(&leaf)? {
            Some(told) => told,
            None => {
                let (kind, value, note, sharding): (u8, _, Option<Bound<'py, PyAny>>, _) =
                    hooks.2.call1((leaf, at))?.extract()?;
                if let Some(note) = note {
                    notes.set_item(at, note)?;
                }
                (kind, value, sharding)
            }
        };
        kinds.push(kind);
        values.push(value);
        if let Some(sharding) = sharding {
            shardings.set_item(at, sharding)?;
        }
    }
    Ok((PyBytes::new(py, &kinds), PyList::new(py, values)?, notes, shardings))
}

/// The kind, the value and the sharding of a leaf.
type Told<'py> = (u8, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// How this module handles leaves of a class.
#[derive(Clone, Copy)]
enum Way {
    Array,
    Scalar,
    /// A JAX array whose class can export its memory.
    Jax,
    /// A leaf of this kind, passed on unchanged.
    Plain(u8),
    Other,
}

struct Gather<'a, 'py> {
    py: Python<'py>,
    hooks: &'a Hooks<'py>,
    dtypes: KnownDtypes<'a, 'py>,
    /// How to handle a class, by the address of the class. The leaves keep the class alive.
    ways: AddressMap<Way>,
    /// The last few shardings of JAX arrays, each with its text and whether it is plain.
    shardings: Vec<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, bool)>,
    /// Python's results for shardings, by value: equal arrays may have different sharding objects.
    shardings_by_value: Bound<'py, PyDict>,
    placements: Option<Placements<'a, 'py>>,
    /// The shardings of arrays on one device, as texts by the number of the device. Each array may
    /// have its own sharding object.
    devices: Vec<(i32, Option<Bound<'py, PyAny>>)>,
    /// The hooks for JAX arrays; `None` if JAX is not imported.
    jax: Option<&'a JaxHooks<'py>>,
    /// Descriptors of dtypes that JAX does not export.
    refused: Vec<Bound<'py, PyAny>>,
}

impl<'a, 'py> Gather<'a, 'py> {
    /// The kind, value and sharding of a leaf; `None` if Python must handle the leaf.
    fn leaf(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Option<Told<'py>>> {
        match self.way_of(leaf)? {
            Way::Plain(kind) => Ok(Some((kind, leaf.clone(), None))),
            Way::Array => self.array(&LeafKind::NumpyArray, leaf.clone()),
            Way::Scalar => {
                let array = numpy_asarray(self.py)?.call1((leaf,))?;
                self.array(&LeafKind::NumpyScalar, array)
            }
            Way::Jax => self.jax_array(leaf),
            Way::Other => Ok(None),
        }
    }

    fn array(&mut self, kind: &LeafKind, value: Bound<'py, PyAny>) -> PyResult<Option<Told<'py>>> {
        let is_known = self.dtypes.get(value.cast::<PyUntypedArray>()?)?.is_some();
        Ok(is_known.then(|| (kind_number(kind), value, None)))
    }

    /// Borrows the memory of an array that is contiguous and on this machine. Python handles all
    /// other arrays, including arrays that are errors.
    fn jax_array(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Option<Told<'py>>> {
        let py = self.py;
        let Some((one_device, export, _)) = self.jax else { return Ok(None) };
        let sharding = leaf.getattr(intern!(py, "sharding"))?;
        let known = if sharding.get_type().is(one_device) {
            None
        } else {
            match self.sharding(sharding.clone())? {
                (text, true) => Some(text),
                (text, false) => {
                    if self.is_refused(leaf)? {
                        return Ok(None);
                    }
                    let Some(placements) = &self.placements else { return Ok(None) };
                    let held = placements.take(leaf, &sharding, export)?;
                    return Ok(held.map(|held| (kind_number(&LeafKind::JaxArray), held, text)));
                }
            }
        };
        if self.is_refused(leaf)? {
            return Ok(None);
        }
        // Python's own path reports the reason: a deleted array, a failed computation, or a dtype
        // that DLPack lacks.
        let capsule = export.call1((leaf,)).ok();
        let Some((capsule, device)) = capsule.and_then(|capsule| {
            let device = tensor_host_device(&capsule)?;
            Some((capsule, device))
        }) else {
            if self.refused.len() < KNOWN_MAX {
                self.refused.push(leaf.getattr(intern!(py, "dtype"))?);
            }
            return Ok(None);
        };
        let text = match known {
            Some(text) => text,
            None => self.text_of_device(device, sharding)?,
        };
        Ok(Some((kind_number(&LeafKind::JaxArray), capsule, text)))
    }

    /// Whether JAX does not export arrays of this dtype.
    fn is_refused(&self, leaf: &Bound<'py, PyAny>) -> PyResult<bool> {
        if self.refused.is_empty() {
            return Ok(false);
        }
        let dtype = leaf.getattr(intern!(self.py, "dtype"))?;
        Ok(self.refused.iter().any(|refused| refused.is(&dtype)))
    }

    fn text_of_device(
        &mut self,
        device: i32,
        sharding: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if let Some((_, text)) = self.devices.iter().find(|(known, _)| *known == device) {
            return Ok(text.clone());
        }
        let (text, _) = self.sharding(sharding)?;
        self.devices.push((device, text.clone()));
        Ok(text)
    }

    fn sharding(&mut self, sharding: Bound<'py, PyAny>) -> PyResult<(Option<Bound<'py, PyAny>>, bool)> {
        if let Some((_, text, is_plain)) = self.shardings.iter().find(|(known, ..)| known.is(&sharding)) {
            return Ok((text.clone(), *is_plain));
        }
        let told = match self.shardings_by_value.get_item(&sharding)? {
            Some(told) => told,
            None => {
                let told = self.hooks.4.call1((&sharding,))?;
                self.shardings_by_value.set_item(&sharding, &told)?;
                told
            }
        };
        let (text, is_plain): (Option<Bound<'py, PyAny>>, bool) = told.extract()?;
        if self.shardings.len() >= KNOWN_MAX {
            self.shardings.clear();
        }
        self.shardings.push((sharding, text.clone(), is_plain));
        Ok((text, is_plain))
    }

    fn way_of(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Way> {
        let class = leaf.get_type();
        let address = class.as_ptr().addr();
        if let Some(&way) = self.ways.get(&address) {
            return Ok(way);
        }
        let way = match self.hooks.0.get_item(&class)? {
            Some(kind) => match kind.extract::<u8>()? {
                kind if kind == kind_number(&LeafKind::NumpyArray) => Way::Array,
                kind => Way::Plain(kind),
            },
            None if class.is_subclass(&numpy_generic(self.py)?)? => Way::Scalar,
            None if self.hooks.3.call1((&class,))?.extract()? => Way::Jax,
            None => Way::Other,
        };
        self.ways.insert(address, way);
        Ok(way)
    }
}

/// Makes JAX release the arrays whose tensors were dropped. JAX does this in its next call, but
/// there may be no next call.
pub fn let_go(py: Python<'_>) {
    let collect = || {
        let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
        modules.get_item(intern!(py, "jaxlib._jax"))?.call_method0(intern!(py, "collect_garbage"))
    };
    // Nothing to do if JAX is missing, or has another name for the function.
    let _: PyResult<_> = collect();
}

/// The number of objects in a cache. A search among more objects would take longer than asking
/// Python again.
const KNOWN_MAX: usize = 32;

fn numpy_asarray(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static ASARRAY: pyo3::sync::PyOnceLock<Py<PyAny>> = pyo3::sync::PyOnceLock::new();
    ASARRAY.import(py, "numpy", "asarray").cloned()
}

fn numpy_generic(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GENERIC: pyo3::sync::PyOnceLock<Py<PyAny>> = pyo3::sync::PyOnceLock::new();
    GENERIC.import(py, "numpy", "generic").cloned()
}

/// The engine's dtypes by descriptor object: most arrays share one descriptor for each dtype.
struct KnownDtypes<'a, 'py> {
    numbers: &'a Bound<'py, PyDict>,
    known: Vec<(Bound<'py, PyAny>, Option<Dtype>)>,
}

impl<'a, 'py> KnownDtypes<'a, 'py> {
    fn new(numbers: &'a Bound<'py, PyDict>) -> Self {
        Self { numbers, known: Vec::new() }
    }

    /// The dtype of an array; `None` if the engine has no such dtype in this byte order.
    fn get(&mut self, array: &Bound<'py, PyUntypedArray>) -> PyResult<Option<Dtype>> {
        let descriptor = array.dtype().into_any();
        if let Some((_, dtype)) = self.known.iter().find(|(known, _)| known.is(&descriptor)) {
            return Ok(*dtype);
        }
        let number: Option<usize> =
            self.numbers.get_item(&descriptor)?.map(|number| number.extract()).transpose()?;
        let dtype = number.and_then(|number| Dtype::all().nth(number));
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.push((descriptor, dtype));
        Ok(dtype)
    }
}

/// The requirements of the leaves of a template.
#[pyclass(frozen, module = "regrow._native")]
pub struct TemplateLeaves(Vec<TemplateLeaf>);

impl TemplateLeaves {
    /// The requirements of all leaves. A leaf with 1 in `skips` is skipped; a leaf with 2 may have
    /// any shape.
    pub fn leaves(&self, skips: &[u8]) -> Vec<TemplateLeaf> {
        let mut leaves = self.0.clone();
        for (leaf, &skip) in leaves.iter_mut().zip(skips) {
            match skip {
                0 => {}
                2 => leaf.shape = None,
                _ => leaf.skip = true,
            }
        }
        leaves
    }
}

/// Returns the requirements of the leaves of a template. A plain array requires its own dtype and
/// shape. For any other leaf, `wanted(leaf, at)` returns dtype, shape and the kind to make, or
/// `None`. The second result has the results of `wanted` by the number of the leaf.
#[pyfunction]
pub fn template_leaves<'py>(
    leaves: Bound<'py, PyList>,
    numbers: Bound<'py, PyDict>,
    wanted: Bound<'py, PyAny>,
) -> PyResult<(TemplateLeaves, Bound<'py, PyDict>)> {
    let others = PyDict::new(leaves.py());
    let mut dtypes = KnownDtypes::new(&numbers);
    let mut made = Vec::with_capacity(leaves.len());
    for (at, leaf) in leaves.iter().enumerate() {
        if let Ok(array) = leaf.cast_exact::<PyUntypedArray>()
            && let Some(dtype) = dtypes.get(array)?
        {
            let dims: Vec<u64> = array.shape().iter().map(|&dim| dim as u64).collect();
            let shape = Some(Shape::new(dims).or_raise()?);
            made.push(TemplateLeaf { dtype: Some(dtype), shape, skip: false });
            continue;
        }
        let want = wanted.call1((leaf, at))?;
        type Want<'py> = (Option<usize>, Option<Vec<u64>>, Bound<'py, PyAny>);
        let (dtype, shape, _): Want<'py> = want.extract::<Option<_>>()?.unwrap_or((None, None, want.clone()));
        let dtype = dtype.and_then(|number| Dtype::all().nth(number));
        let shape = shape.map(Shape::new).transpose().or_raise()?;
        made.push(TemplateLeaf { dtype, shape, skip: want.is_none() });
        others.set_item(at, want)?;
    }
    Ok((TemplateLeaves(made), others))
}
