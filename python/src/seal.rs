//! Sealing a checkpoint.

use std::ffi::OsString;

use pyo3::prelude::*;
use regrow::SealOptions;

use crate::location::LocationIn;
use crate::watch::{WatchIn, watched};

/// Path, files, bytes, whether anything has changed.
type SealOut = (OsString, usize, u64, bool);

/// Seals, or takes the seal away; gives the report.
#[pyfunction]
#[pyo3(signature = (path, step, remove, watch))]
pub fn seal(
    py: Python<'_>,
    path: LocationIn,
    step: Option<u64>,
    remove: bool,
    watch: WatchIn,
) -> PyResult<SealOut> {
    // How much there is to read shows only when it is open: it may be long.
    let report =
        watched(py, watch, u64::MAX, |monitor| regrow::seal(path, &SealOptions { step, remove, monitor }))?;
    Ok((report.path.into_os_string(), report.file_count, report.bytes, report.has_changed))
}
