//! The entries of a data file's manifest, for `regrow.pytree`, which maps the data by itself.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use regrow::formats::pytree_data::{Files, appears, entries_of};

use crate::error::released;

/// Path as a literal, type string, shape, offset.
type EntryOut<'py> = (String, String, Bound<'py, PyTuple>, u64);

/// Reads a manifest and checks it against its data file, with `verify` the data too; gives the data file, the
/// arrays, and the paths of empty dicts.
#[pyfunction]
pub fn pytree_entries(
    py: Python<'_>,
    manifest: PathBuf,
    data: PathBuf,
    verify: bool,
) -> PyResult<(OsString, Vec<EntryOut<'_>>, Vec<String>)> {
    let files = Files { manifest, data };
    let entries = released(py, || entries_of(&files, verify))?;
    let arrays = entries.arrays.into_iter().map(|entry| -> PyResult<EntryOut<'_>> {
        Ok((entry.path, entry.dtype, PyTuple::new(py, entry.shape)?, entry.offset_bytes))
    });
    Ok((entries.data.into_os_string(), arrays.collect::<PyResult<_>>()?, entries.empty))
}

/// Whether a manifest is there, now or after the commits that are under way.
#[pyfunction]
pub fn pytree_appears(py: Python<'_>, manifest: PathBuf) -> bool {
    py.detach(|| appears(&manifest))
}
