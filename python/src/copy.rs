//! Copying: a checkpoint to another place, byte for byte; also a share at a time, by several
//! processes.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use regrow::engine::{self, CopiedFile, CopiedShare, CopyShare};
use regrow::location::ToLocation;
use regrow::{CopyOptions, CopyReport, Error, Monitor};

use crate::error::{OrRaise, released};
use crate::location::LocationIn;
use crate::watch::{WatchIn, cancellable, watched};

/// Overwrite, durable, verify, budget.
pub type CopyIn = (bool, bool, bool, Option<u64>);

/// Path, files, bytes, bytes that were there already, seconds.
type CopyOut = (OsString, usize, u64, u64, f64);

/// Name and length of a file.
type FileIn = (String, u64);

/// The files of a share, with the bytes of all of them.
type ShareIn = (Vec<FileIn>, u64);

/// The files that a share has brought: name, by what they are found, digest, whether read back. And
/// bytes that were there already.
type ShareOut = (Vec<(String, String, String, bool)>, u64);

/// Copies; gives the report.
#[pyfunction]
pub fn copy(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    options: CopyIn,
    watch: WatchIn,
) -> PyResult<CopyOut> {
    // How much there is to copy shows only when the source is open: it may be long.
    let report = watched(py, watch, u64::MAX, |monitor| {
        let options = CopyOptions { monitor, ..copy_options(options) };
        regrow::copy(source.to_location()?, target.to_location()?, &options)
    })?;
    Ok(copy_report(report))
}

/// A copy by several processes, which this one has begun.
#[pyclass(frozen, module = "regrow._native")]
pub struct SharedCopy {
    begun: Mutex<Option<engine::SharedCopy>>,
    monitor: Monitor,
}

#[pymethods]
impl SharedCopy {
    #[new]
    fn new(
        py: Python<'_>,
        source: LocationIn,
        target: LocationIn,
        options: CopyIn,
        gets_signals: bool,
    ) -> PyResult<Self> {
        let options = copy_options(options);
        let monitor = options.monitor.clone();
        let begin = || engine::SharedCopy::begin(source.to_location()?, target.to_location()?, &options);
        let begun = cancellable(py, gets_signals, &monitor, begin)?;
        Ok(Self { begun: Mutex::new(Some(begun)), monitor })
    }

    /// By what workers join; and the files of each of at most `count` shares, with the bytes of all
    /// of them.
    fn about(&self, count: u32) -> PyResult<(String, Vec<ShareIn>)> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = begun.as_ref().ok_or_else(ended).or_raise()?;
        let shares = begun.shares(count).into_iter().map(|share| (share.files, share.len_bytes));
        Ok((begun.ticket().to_owned(), shares.collect()))
    }

    /// Takes over what a worker has brought.
    fn take(&self, py: Python<'_>, share: ShareOut) -> PyResult<()> {
        let (files, reused_bytes) = share;
        let file = |(name, by, digest, is_verified)| CopiedFile { name, by, digest, is_verified };
        let share = CopiedShare { files: files.into_iter().map(file).collect(), reused_bytes };
        released(py, || {
            let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            begun.as_ref().ok_or_else(ended)?.take(&share)
        })
    }

    /// Copies the rest, and makes it a checkpoint.
    fn finish(&self, py: Python<'_>, gets_signals: bool) -> PyResult<CopyOut> {
        let begun = self.taken().ok_or_else(ended).or_raise()?;
        Ok(copy_report(cancellable(py, gets_signals, &self.monitor, || begun.finish())?))
    }

    /// Ends it, unless it is finished; what was taken over stays for the next copy.
    fn give_up(&self, py: Python<'_>) {
        let begun = self.taken();
        py.detach(|| drop(begun));
    }
}

impl SharedCopy {
    fn taken(&self) -> Option<engine::SharedCopy> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn ended() -> Error {
    Error::invalid("this copy has ended")
}

/// Brings one share of a copy that another process has begun.
#[pyfunction]
pub fn copy_share(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    options: CopyIn,
    share: (String, Vec<FileIn>),
    watch: WatchIn,
) -> PyResult<ShareOut> {
    let (ticket, files) = share;
    let brought = watched(py, watch, u64::MAX, |monitor| {
        let options = CopyOptions { monitor, ..copy_options(options) };
        let share = CopyShare { ticket: &ticket, files: &files };
        engine::copy_share(source.to_location()?, target.to_location()?, &options, &share)
    })?;
    let file = |file: CopiedFile| (file.name, file.by, file.digest, file.is_verified);
    Ok((brought.files.into_iter().map(file).collect(), brought.reused_bytes))
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
