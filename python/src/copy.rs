//! Copies a checkpoint to another place, byte for byte.

use std::ffi::OsString;

use pyo3::prelude::*;
use regrow::location::ToLocation;
use regrow::{CopyOptions, CopyReport};

use crate::location::LocationIn;
use crate::watch::{WatchIn, watched};

/// Overwrite, durable, verify, budget.
pub type CopyIn = (bool, bool, bool, Option<u64>);

/// Path, files, bytes, bytes that were there already, seconds.
type CopyOut = (OsString, usize, u64, u64, f64);

/// Copies; gives the report.
#[pyfunction]
pub fn copy(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    options: CopyIn,
    watch: WatchIn,
) -> PyResult<CopyOut> {
    // The size is unknown until the source is open, so watch as if the work were long.
    let report = watched(py, watch, u64::MAX, |monitor| {
        let options = CopyOptions { monitor, ..copy_options(options) };
        regrow::copy(source.to_location()?, target.to_location()?, &options)
    })?;
    Ok(copy_report(report))
}

fn copy_options((overwrite, durable, verify, budget_bytes): CopyIn) -> CopyOptions {
    CopyOptions {
        overwrite,
        not_durable: !durable,
        unverified: !verify,
        budget_bytes,
        ..CopyOptions::default()
    }
}

fn copy_report(report: CopyReport) -> CopyOut {
    (report.path.into_os_string(), report.file_count, report.bytes, report.reused_bytes, report.seconds)
}
