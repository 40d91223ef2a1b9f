//! The entries of a data file's manifest, for `regrow.pytree`. That module maps the data itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use regrow_layouts::pytree_data::{DATA_SUFFIX, Files, appears, entries_of};

use regrow::Result;
use regrow::location::Location;

use crate::error::released;

/// An entry: its path as a literal, type string, shape and offset.
type EntryOut<'py> = (String, String, Bound<'py, PyTuple>, u64);

/// Reads the manifest of a stem, and checks the manifest against its data file. With `verify`, also
/// checks the data. Returns the data file, the arrays, and the paths of empty dicts.
#[pyfunction]
pub fn pytree_entries<'py>(
    py: Python<'py>,
    stem: PathBuf,
    data_suffix: &str,
    manifest_suffix: &str,
    verify: bool,
) -> PyResult<(OsString, Vec<EntryOut<'py>>, Vec<String>)> {
    let entries = released(py, || {
        entries_of(&Files::named(&Location::parse(&stem)?, data_suffix, manifest_suffix), verify)
    })?;
    let arrays = entries.arrays.into_iter().map(|entry| -> PyResult<EntryOut<'py>> {
        Ok((entry.path, entry.dtype, PyTuple::new(py, entry.shape)?, entry.offset_bytes))
    });
    Ok((entries.data.into_os_string(), arrays.collect::<PyResult<_>>()?, entries.empty))
}

/// A text that differs between two manifests of a stem; `None` if there is no manifest. Also finds
/// the manifest of a killed save.
#[pyfunction]
pub fn pytree_identity(py: Python<'_>, stem: PathBuf, manifest_suffix: &str) -> PyResult<Option<String>> {
    released(py, || {
        let manifest = manifest_of(&stem, manifest_suffix)?.located().manifest;
        Ok(manifest.identity().map(|identity| format!("{identity:?}")))
    })
}

/// Whether the manifest of a stem exists, now or after commits in progress.
#[pyfunction]
pub fn pytree_appears(py: Python<'_>, stem: PathBuf, manifest_suffix: &str) -> PyResult<bool> {
    released(py, || Ok(appears(&manifest_of(&stem, manifest_suffix)?)))
}

/// The files of a stem, for a caller that reads only the manifest.
fn manifest_of(stem: &Path, manifest_suffix: &str) -> Result<Files> {
    Ok(Files::named(&Location::parse(stem)?, DATA_SUFFIX, manifest_suffix))
}
