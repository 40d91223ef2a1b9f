//! Compares two checkpoints, and returns the report in columns.

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use regrow::array::{Distance, Tolerance};
use regrow::engine::{LeafDiff, LeafStatus};
use regrow::tree::{LeafInfo, PathPattern};
use regrow::{DiffOptions, DiffReport, Result};

use crate::checkpoint::{Checkpoint, FindingOut, finding_out};
use crate::columns::StructureIn;
use crate::error::OrRaise;
use crate::gather::let_go;
use crate::leaves::{LeavesIn, to_leaves};
use crate::watch::{WatchIn, watched};

/// The options of a comparison, with the fields of `DiffRequest` in `regrow/_core/_requests.py`.
#[derive(FromPyObject)]
pub struct DiffIn {
    only: Vec<String>,
    atol: Option<f64>,
    rtol: Option<f64>,
    max_ulp: Option<u64>,
    ignore_dtype: bool,
    check_types: bool,
    equality_only: bool,
    list_equal: bool,
    budget_bytes: Option<u64>,
}

/// The form of a leaf: its kind, dtype and shape.
type FormOut<'py> = (&'static str, String, Bound<'py, PyTuple>);

/// A distance. Numbers of elements: all, different ones, ones outside the tolerance, ones without a
/// distance. NaNs and infinities on both sides. The largest absolute, relative and ULP distance,
/// and the cosine. The index of the worst pair, and the pair.
type DistanceOut<'py> = (
    (u64, u64, u64, u64),
    ([u64; 2], [u64; 2]),
    (Option<f64>, Option<f64>, Option<u64>, Option<f64>),
    Option<(Bound<'py, PyTuple>, [[f64; 2]; 2])>,
);

/// A leaf: its key path, status, form on both sides, whether both sides are one file, distance.
type LeafOut<'py> =
    (String, &'static str, Option<FormOut<'py>>, Option<FormOut<'py>>, bool, Option<DistanceOut<'py>>);

/// A report: paths; verdict; leaves, the worst first; counts by status; containers; the number of
/// equal leaves with different kinds; findings by side; bytes read; the report as text.
pub type DiffOut<'py> = (
    (OsString, OsString),
    bool,
    Vec<LeafOut<'py>>,
    Vec<(&'static str, u64)>,
    Vec<(String, Option<String>, Option<String>)>,
    u64,
    Vec<(&'static str, FindingOut)>,
    u64,
    String,
);

/// A pytree as a checkpoint in memory.
#[pyfunction]
pub fn held(structure: StructureIn<'_>, leaves: LeavesIn<'_>) -> PyResult<Checkpoint> {
    let leaves = to_leaves(structure.tree(), &leaves)?;
    let tree = structure.tree().with_leaves(leaves).or_raise()?;
    regrow::Checkpoint::of_tree(tree).or_raise().map(Checkpoint::new)
}

/// Compares two opened checkpoints.
#[pyfunction]
pub fn diff<'py>(
    py: Python<'py>,
    a: &Checkpoint,
    b: &Checkpoint,
    request: DiffIn,
    watch: WatchIn,
) -> PyResult<DiffOut<'py>> {
    let mut options = diff_options(&request).or_raise()?;
    let (a, b) = (a.opened(), b.opened());
    let report = watched(py, watch, u64::MAX, |monitor| {
        options.monitor = monitor;
        a.diff(b, &options)
    });
    let_go(py);
    report_out(py, &report?)
}

fn diff_options(request: &DiffIn) -> Result<DiffOptions> {
    let DiffIn { atol, rtol, max_ulp, .. } = *request;
    Ok(DiffOptions {
        only: request.only.iter().map(|glob| PathPattern::new(glob)).collect::<Result<_>>()?,
        tolerance: Tolerance { atol, rtol, max_ulp },
        ignore_dtype: request.ignore_dtype,
        check_types: request.check_types,
        equality_only: request.equality_only,
        list_equal: request.list_equal,
        budget_bytes: request.budget_bytes,
        ..DiffOptions::default()
    })
}

fn report_out<'py>(py: Python<'py>, report: &DiffReport) -> PyResult<DiffOut<'py>> {
    let leaves = report.worst_first().into_iter().map(|leaf| leaf_out(py, leaf)).collect::<PyResult<_>>()?;
    let counts = LeafStatus::ALL.into_iter().map(|status| (status.name(), report.counts.of(status)));
    let containers = report.containers.iter();
    let findings = report.findings.iter();
    Ok((
        (report.a.clone().into_os_string(), report.b.clone().into_os_string()),
        report.is_equal(),
        leaves,
        counts.collect(),
        containers.map(|one| (one.path.to_string(), one.a.clone(), one.b.clone())).collect(),
        report.other_kind_count,
        findings.map(|finding| (finding.side.name(), finding_out(&finding.error))).collect(),
        report.read_bytes,
        report.to_string(),
    ))
}

fn leaf_out<'py>(py: Python<'py>, leaf: &LeafDiff) -> PyResult<LeafOut<'py>> {
    let form = |info: &Option<LeafInfo>| -> PyResult<Option<FormOut<'py>>> {
        let Some(info) = info else { return Ok(None) };
        let shape = PyTuple::new(py, info.shape.dims())?;
        Ok(Some((info.kind.name(), info.dtype.name().to_owned(), shape)))
    };
    let distance = leaf.distance.as_ref().map(|distance| distance_out(py, leaf, distance)).transpose()?;
    let path = leaf.path.to_string();
    Ok((path, leaf.status.name(), form(&leaf.a)?, form(&leaf.b)?, leaf.is_same_file, distance))
}

fn distance_out<'py>(py: Python<'py>, leaf: &LeafDiff, distance: &Distance) -> PyResult<DistanceOut<'py>> {
    let worst = match leaf.worst() {
        Some((index, worst)) => Some((PyTuple::new(py, index)?, worst.values)),
        None => None,
    };
    Ok((
        (
            distance.count(),
            distance.differing_count(),
            distance.outside_count(),
            distance.incomparable_count(),
        ),
        (distance.nan_counts(), distance.infinity_counts()),
        (distance.max_abs(), distance.max_relative(), distance.max_ulp(), distance.cosine()),
        worst,
    ))
}
