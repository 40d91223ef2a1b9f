//! Seals and signs checkpoints.

use std::ffi::OsString;

use pyo3::prelude::*;
use regrow::{PrivateKey, PublicKey, SealOptions, SignOptions};

use crate::error::released;
use crate::location::LocationIn;
use crate::watch::{WatchIn, seconds, watched};

/// The report of sealing: path, number of files, bytes, whether anything has changed.
type SealOut = (OsString, usize, u64, bool);

/// Writes or removes a seal, and returns the report.
#[pyfunction]
#[pyo3(signature = (path, step, remove, wait, watch))]
pub fn seal(
    py: Python<'_>,
    path: LocationIn,
    step: Option<u64>,
    remove: bool,
    wait: f64,
    watch: WatchIn,
) -> PyResult<SealOut> {
    // The size is unknown until the checkpoint is open, so watch as if the work were long.
    let report = watched(py, watch, u64::MAX, |monitor| {
        regrow::seal(path, &SealOptions { step, remove, monitor, wait: seconds(wait) })
    })?;
    Ok((report.path.into_os_string(), report.file_count, report.bytes, report.has_changed))
}

/// The report of signing: path, number of files, bytes, public keys of all signers as hex digits.
type SignOut = (OsString, usize, u64, Vec<String>);

/// Signs with a private key, given as text or as the path of its file. Returns the report.
#[pyfunction]
#[pyo3(signature = (path, key, step, wait, watch))]
pub fn sign(
    py: Python<'_>,
    path: LocationIn,
    key: &str,
    step: Option<u64>,
    wait: f64,
    watch: WatchIn,
) -> PyResult<SignOut> {
    let report = watched(py, watch, u64::MAX, |monitor| {
        let key = if key.trim_start().starts_with("-----") {
            PrivateKey::parse(key)
        } else {
            PrivateKey::read(key)
        };
        regrow::sign(path, &key?, &SignOptions { step, monitor, wait: seconds(wait) })
    })?;
    let signers = report.signers.iter().map(ToString::to_string).collect();
    Ok((report.path.into_os_string(), report.file_count, report.bytes, signers))
}

/// The hex digits of a public key, given as text or as the path of its file.
#[pyfunction]
pub fn public_key(py: Python<'_>, text: &str) -> PyResult<String> {
    released(py, || PublicKey::parse_or_read(text)).map(|key| key.to_string())
}
