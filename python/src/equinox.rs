//! Equinox leaf files: the headers of records, and whole files of records.
//!
//! The Python half (`regrow/equinox/`) decides which leaf becomes which record. The bytes of a file
//! on disk never pass through Python.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use numpy::{PyReadwriteArray1, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};
use regrow::array::{Array, Dtype, Shape};
use regrow::location::ToLocation;
use regrow::tree::{LeafKind, Tree};
use regrow::{Error, Result};
use regrow_base::bytes::python_literal::{Literal, LiteralOptions, parse};
use regrow_layouts::equinox::trailer::Trailer;
use regrow_layouts::equinox::writer::{Contents, RecordOut, write};
use regrow_layouts::equinox::{LeafFile, as_leaf, jax_order, leaf_info};
use regrow_layouts::npy::descr::Descr;
use regrow_layouts::npy::header::Header;
use regrow_layouts::structure::Structure;
use regrow_storage::local;

use crate::columns::{StructureIn, print_paths};
use crate::error::{OrRaise, released};
use crate::memory::borrow_array;

/// A header from Python: the dtype as a Python literal, Fortran order, shape.
type HeaderIn = (String, bool, Vec<u64>);

type HeaderOut<'py> = (String, bool, Bound<'py, PyTuple>);

/// The structure; the kinds of the leaves; their values (the number of a record, text, bytes, or
/// nothing); the names of PRNG implementations by the number of the leaf; the names of dtypes that
/// a record cannot name, by the number of the leaf.
type TrailerIn<'py> =
    (StructureIn<'py>, PyBackedBytes, Vec<Option<LeafIn>>, HashMap<usize, String>, HashMap<usize, String>);

/// The value of a leaf, or the number of its record.
#[derive(FromPyObject)]
pub enum LeafIn {
    Record(usize),
    Text(String),
    Bytes(PyBackedBytes),
}

/// The bytes of a record before its data.
#[pyfunction]
pub fn npy_header<'py>(
    py: Python<'py>,
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &to_header((descr, fortran_order, shape)).or_raise()?.to_bytes()))
}

/// Parses the bytes of a record before its data.
#[pyfunction]
pub fn parse_npy_header<'py>(py: Python<'py>, prelude: PyBackedBytes) -> PyResult<HeaderOut<'py>> {
    let (header, _) = Header::parse(&prelude).or_raise()?;
    from_header(py, &header)
}

/// For each leaf in JAX' order, its position in the order of the tree.
#[pyfunction]
pub fn jax_leaf_order(structure: StructureIn<'_>) -> PyResult<Vec<usize>> {
    Ok(jax_order(structure.tree()))
}

/// Writes a file of records, or replaces an existing file. After an error `path` is unchanged.
#[pyfunction]
#[pyo3(signature = (path, line, records, trailer, durable))]
pub fn write_equinox(
    py: Python<'_>,
    path: PathBuf,
    line: PyBackedBytes,
    records: Vec<(HeaderIn, Bound<'_, PyUntypedArray>)>,
    trailer: Option<TrailerIn<'_>>,
    durable: bool,
) -> PyResult<()> {
    let records: Result<Vec<RecordOut>> = records
        .into_iter()
        .map(|(header, array)| {
            let array = borrow_array(&array, Dtype::UInt8)?;
            Ok(RecordOut { header: to_header(header)?, array })
        })
        .collect();
    let records = records.or_raise()?;
    let trailer = trailer.map(|trailer| to_trailer(trailer, &records)).transpose()?;
    let mut contents = Contents { line: line.to_vec(), records, trailer };
    released(py, || {
        let staged = local::Staged::of_file(&path, true)?.durable(durable);
        write(&staged, &mut contents)?;
        staged.commit()
    })?;
    // Drop the records while this thread holds the interpreter: they own Python objects.
    drop(contents);
    Ok(())
}

fn to_trailer(trailer: TrailerIn<'_>, records: &[RecordOut]) -> PyResult<(Trailer, Vec<(usize, Array)>)> {
    let (structure, kinds, values, mut implementations, dtypes) = trailer;
    let tree = structure.tree();
    let mut blobs = Vec::new();
    let mut texts: Vec<Arc<str>> = vec![Arc::from(""); values.len()];
    let mut record_of = vec![None; values.len()];
    let mut infos = Vec::with_capacity(values.len());
    for (leaf, ((path, value), &kind)) in tree.paths().iter().zip(values).zip(kinds.iter()).enumerate() {
        let info = match value {
            Some(LeafIn::Record(at)) => {
                let header = records.get(at).map(|record| &record.header);
                let header =
                    header.ok_or_else(|| Error::invalid(format!("record {at} does not exist"))).or_raise()?;
                let (stored, dtype, shape) = as_leaf(header).or_raise()?;
                if let Some(slot) = record_of.get_mut(leaf) {
                    *slot = Some(at);
                }
                match (stored, dtypes.get(&leaf)) {
                    (LeafKind::NumpyOther(_), Some(name)) => {
                        let dtype = name.parse().or_raise()?;
                        leaf_info(array_kind(kind, None), dtype, header.shape.clone(), path)
                    }
                    (other @ LeafKind::NumpyOther(_), None) => leaf_info(other, dtype, shape, path),
                    _ => leaf_info(array_kind(kind, implementations.remove(&leaf)), dtype, shape, path),
                }
            }
            Some(LeafIn::Text(text)) => {
                let shape = Shape::new(vec![text.len() as u64]).or_raise()?;
                if let Some(slot) = texts.get_mut(leaf) {
                    *slot = Arc::from(text);
                }
                leaf_info(LeafKind::Str, Dtype::UInt8, shape, path)
            }
            Some(LeafIn::Bytes(bytes)) => {
                let shape = Shape::new(vec![bytes.len() as u64]).or_raise()?;
                let blob = Array::new(Dtype::UInt8, shape.clone(), Bytes::from_owner(bytes)).or_raise()?;
                blobs.push((leaf, blob));
                leaf_info(LeafKind::Bytes, Dtype::UInt8, shape, path)
            }
            None => leaf_info(LeafKind::Placeholder, Dtype::UInt8, Shape::scalar(), path),
        };
        infos.push(info);
    }
    let tree: Tree<_> = tree.with_leaves(infos).or_raise()?;
    let structure =
        Structure::of(&tree, |leaf| texts.get(leaf).cloned().unwrap_or_else(|| Arc::from(""))).or_raise()?;
    Ok((Trailer::new(structure, record_of, None), blobs))
}

fn array_kind(kind: u8, implementation: Option<String>) -> LeafKind {
    match kind {
        1 => LeafKind::NumpyScalar,
        2 => LeafKind::JaxArray,
        3 => LeafKind::PrngKey(implementation.map(Arc::from)),
        4 => LeafKind::Scalar,
        _ => LeafKind::NumpyArray,
    }
}

fn to_header((descr, fortran_order, shape): HeaderIn) -> Result<Header> {
    let descr = match parse(&descr, LiteralOptions::default())? {
        // NumPy writes this text for float8_e5m2, although the text normally means another dtype.
        Literal::Str(text) if text == "<f1" => Descr::as_numpy_writes(Dtype::Float8E5m2),
        literal => Descr::from_literal(&literal)?,
    };
    Ok(Header { descr, fortran_order, shape: Shape::new(shape)? })
}

fn from_header<'py>(py: Python<'py>, header: &Header) -> PyResult<HeaderOut<'py>> {
    Ok((header.descr.repr(), header.fortran_order, PyTuple::new(py, header.shape.dims())?))
}

/// An opened file of records. The headers are in memory, the data is on disk.
#[pyclass(frozen, module = "regrow._native")]
pub struct EquinoxFile(LeafFile);

/// Reads the headers of a file.
#[pyfunction]
pub fn open_equinox(py: Python<'_>, path: PathBuf) -> PyResult<EquinoxFile> {
    released(py, || LeafFile::open(&path.to_location()?)).map(EquinoxFile)
}

#[pymethods]
impl EquinoxFile {
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let headers: PyResult<Vec<_>> =
            self.0.records().iter().map(|record| from_header(py, &record.header)).collect();
        PyList::new(py, headers?)
    }

    #[getter]
    fn end(&self) -> u64 {
        self.0.end_bytes()
    }

    #[getter]
    fn is_broken(&self) -> bool {
        self.0.broken().is_some()
    }

    #[getter]
    fn trailing_len(&self) -> u64 {
        self.0.trailing_len_bytes()
    }

    #[getter]
    fn trailer_damage(&self) -> Option<String> {
        self.0.trailer_damage().map(ToString::to_string)
    }

    fn names(&self) -> PyResult<Option<Vec<String>>> {
        let Some(trailer) = self.0.trailer() else { return Ok(None) };
        let paths = print_paths(&trailer.structure.regrow().or_raise()?.tree.paths());
        let mut names = vec![String::new(); self.0.records().len()];
        for (path, record) in paths.into_iter().zip(&trailer.records) {
            if let Some(slot) = record.and_then(|at| names.get_mut(at)) {
                *slot = path;
            }
        }
        Ok(Some(names))
    }

    fn read(&self, py: Python<'_>, mut wanted: Vec<(usize, PyReadwriteArray1<'_, u8>)>) -> PyResult<()> {
        let mut outs = Vec::with_capacity(wanted.len());
        for (record, out) in &mut wanted {
            outs.push((*record, out.as_slice_mut()?));
        }
        released(py, || self.0.read(outs))
    }
}
