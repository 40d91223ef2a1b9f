//! Copies a checkpoint to another location, byte for byte.

use std::ffi::OsString;

use pyo3::prelude::*;
use regrow::location::ToLocation;
use regrow::{CopyOptions, CopyReport};

use crate::location::LocationIn;
use crate::watch::{WatchIn, seconds, watched};

/// The options of a copy, with the fields of `CopyRequest` in `regrow/_core/_requests.py`.
#[derive(FromPyObject)]
pub struct CopyIn {
    overwrite: bool,
    durable: bool,
    verify: bool,
    wait: f64,
    budget_bytes: Option<u64>,
}

/// The report of a copy: path, number of files, bytes, reused bytes, seconds.
type CopyOut = (OsString, usize, u64, u64, f64);

/// Copies a checkpoint, and returns the report.
#[pyfunction]
pub fn copy(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    request: CopyIn,
    watch: WatchIn,
) -> PyResult<CopyOut> {
    // The size is unknown until the source is open, so watch as if the work were long.
    let report = watched(py, watch, u64::MAX, |monitor| {
        let options = CopyOptions { monitor, ..copy_options(&request) };
        regrow::copy(source.to_location()?, target.to_location()?, &options)
    })?;
    Ok(copy_report(report))
}

fn copy_options(request: &CopyIn) -> CopyOptions {
    CopyOptions {
        overwrite: request.overwrite,
        not_durable: !request.durable,
        unverified: !request.verify,
        wait: seconds(request.wait),
        budget_bytes: request.budget_bytes,
        ..CopyOptions::default()
    }
}

fn copy_report(report: CopyReport) -> CopyOut {
    (report.path.into_os_string(), report.file_count, report.bytes, report.reused_bytes, report.seconds)
}
