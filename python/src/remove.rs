//! Removes one checkpoint, or the temporary files of an unfinished save.

use std::ffi::OsString;

use pyo3::prelude::*;
use regrow::RemoveOptions;
use regrow::location::ToLocation;

use crate::error::released;
use crate::location::LocationIn;
use crate::watch::seconds;

/// The report of a removal: path, number of files, bytes.
type RemoveOut = (OsString, usize, u64);

/// Removes a checkpoint, and returns the report.
#[pyfunction]
pub fn remove(
    py: Python<'_>,
    path: LocationIn,
    unfinished: bool,
    force: bool,
    wait: f64,
) -> PyResult<RemoveOut> {
    let options = RemoveOptions { unfinished, force, wait: seconds(wait) };
    let report = released(py, || regrow::remove(path.to_location()?, &options))?;
    Ok((report.path.into_os_string(), report.file_count, report.bytes))
}
