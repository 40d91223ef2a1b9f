//! Writes parity beside a checkpoint, and repairs checkpoints.

use std::ffi::OsString;

use pyo3::prelude::*;
use regrow::location::ToLocation;
use regrow::{Error, ParityOptions, RepairOptions, Verdict};

use crate::checkpoint::{FindingOut, finding_out, in_python};
use crate::location::LocationIn;
use crate::watch::{WatchIn, seconds, watched};

/// The report: path, number of files, bytes, bytes of parity, whether anything has changed.
type ParityOut = (OsString, usize, u64, u64, bool);

/// Writes or removes parity, and returns the report.
#[pyfunction]
#[pyo3(signature = (path, ratio, step, remove, wait, watch))]
pub fn add_parity(
    py: Python<'_>,
    path: LocationIn,
    ratio: &str,
    step: Option<u64>,
    remove: bool,
    wait: f64,
    watch: WatchIn,
) -> PyResult<ParityOut> {
    let report = watched(py, watch, u64::MAX, |monitor| {
        let ratio = ratio.parse()?;
        regrow::add_parity(path, &ParityOptions { ratio, step, remove, monitor, wait: seconds(wait) })
    })?;
    let path = report.path.into_os_string();
    Ok((path, report.file_count, report.bytes, report.parity_bytes, report.has_changed))
}

/// A rebuilt file: path, length, source, whether the content is unproved.
type RecoveredOut = (OsString, u64, String, bool);

/// A repair report: path, bytes, repaired files with their bytes, rebuilt files, losses, findings
/// of the verification, notes, whether the parity was damaged, whether the call only checked, the
/// report as text, the verdict, the proof.
type RepairOut = (
    OsString,
    u64,
    Vec<(OsString, u64)>,
    Vec<RecoveredOut>,
    Vec<FindingOut>,
    Vec<FindingOut>,
    Vec<String>,
    bool,
    bool,
    String,
    &'static str,
    Option<&'static str>,
);

/// Repairs a checkpoint, and returns the report.
#[pyfunction]
#[pyo3(signature = (path, from_, step, check, wait, watch))]
pub fn repair(
    py: Python<'_>,
    path: LocationIn,
    from_: Option<LocationIn>,
    step: Option<u64>,
    check: bool,
    wait: f64,
    watch: WatchIn,
) -> PyResult<RepairOut> {
    let report = watched(py, watch, u64::MAX, |monitor| {
        let from = from_.as_ref().map(ToLocation::to_location).transpose()?;
        regrow::repair(path, &RepairOptions { step, from, check, monitor, wait: seconds(wait) })
    })?;
    let text = report.to_string();
    let findings = |errors: &[Error]| errors.iter().map(finding_out).collect();
    let healed = report.healed.iter().map(|file| (file.path.clone().into_os_string(), file.bytes)).collect();
    let (lost, found) = (findings(&report.lost), findings(&report.findings));
    let recovered = report.recovered.into_iter();
    let recovered =
        recovered.map(|file| (file.path.into_os_string(), file.bytes, file.how, file.is_guess)).collect();
    let (path, notes) = (report.path.into_os_string(), in_python(&report.notes));
    let (was_damaged, is_check) = (report.is_parity_damaged, report.is_check);
    let proved_by = match report.verdict {
        Verdict::Whole(by) => Some(by.name()),
        Verdict::NotKnown | Verdict::Damaged => None,
    };
    let verdict = report.verdict.name();
    Ok((
        path,
        report.bytes,
        healed,
        recovered,
        lost,
        found,
        notes,
        was_damaged,
        is_check,
        text,
        verdict,
        proved_by,
    ))
}
