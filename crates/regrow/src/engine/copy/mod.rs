//! Copies a checkpoint byte for byte: disk to bucket, bucket to disk, or within either.
//!
//! ```text
//! open the source -> list its files with their versions
//!   -> for each file: read, hash, write, read back, compare -> commit
//! ```
//! Large files are read in pieces, many at once. Small files are copied many at once. Data that is
//! read but not yet written stays within the budget. The target counts as a checkpoint only after
//! the commit, when it is complete.
//!
//! After an interruption, the copied files stay under a temporary name (on a disk) or under the
//! claim (in a bucket). The next copy of the same source to the same target reuses each file whose
//! version is that of the source and whose digest is unchanged: see [`Transfer`]. On a disk, that
//! copy also reuses the beginning of a large file.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use super::convert::refuse_target_inside;
use super::locked::Change;
use super::side_files::{commit_files, take_from_files};
use super::{SaveOptions, format_bytes, replace};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::located;
use crate::location::{Location, ToLocation};
use crate::monitor::{Monitor, gb_per_s};
use crate::storage::Retries;
use crate::storage::{Target, TargetLock, Transfer, TransferFile, TransferOptions};
use crate::text::{counted, format_seconds, format_speed, printable};

mod beside;
mod plan;
mod read;
mod work;

use beside::Beside;
use plan::Plan;
use work::Copying;

/// The options of a copy.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// Replace an existing checkpoint, under the rules of [`SaveOptions::overwrite`].
    pub overwrite: bool,
    /// Do not read back the written bytes.
    pub unverified: bool,
    /// Do not sync to disk. This is faster, but the copy may be lost in a power cut.
    pub not_durable: bool,
    /// About the most bytes that are read and not yet written; 64 MiB if `None`.
    pub budget_bytes: Option<u64>,
    /// Requests at once, at most 8. If `None`, one for each hardware thread.
    pub threads: Option<usize>,
    /// How long to wait for another process that changes the checkpoint, before the error `Busy`; a
    /// minute if `None`.
    pub wait: Option<Duration>,
    /// Watches the copy, and can cancel it.
    pub monitor: Monitor,
}

/// The result of a copy.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CopyReport {
    /// The path of the copy.
    pub path: PathBuf,
    /// The number of copied files.
    pub file_count: usize,
    /// Bytes of all copied files.
    pub bytes: u64,
    /// Bytes that an earlier, interrupted copy had already written; included in `bytes`.
    pub reused_bytes: u64,
    /// The duration of the copy in seconds.
    pub seconds: f64,
}

impl CopyReport {
    /// The speed of the copy in 10^9 bytes a second, without the reused bytes.
    pub fn gb_per_s(&self) -> f64 {
        gb_per_s(self.bytes.saturating_sub(self.reused_bytes), self.seconds)
    }
}

impl fmt::Display for CopyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, {} in {}",
            printable(&self.path.to_string_lossy()),
            counted(self.file_count, "file", "files"),
            format_bytes(self.bytes),
            format_seconds(self.seconds),
        )?;
        if let Some(speed) = format_speed(self.bytes, self.gb_per_s()) {
            write!(f, " ({speed})")?;
        }
        match self.reused_bytes {
            0 => Ok(()),
            reused => write!(f, "; {} already copied", format_bytes(reused)),
        }
    }
}

/// Copies the checkpoint at `source` to `target`, byte for byte, in any layout: one checkpoint, or
/// a folder with all committed steps. Signatures are copied too. Each file is read back and
/// compared by its BLAKE3 before the target becomes a checkpoint.
///
/// Continues an interrupted copy to the same target.
///
/// # Errors
/// The errors of opening the source; `AlreadyExists` if the target exists and may not be replaced,
/// or if another copy to it is in progress; `InvalidArgument` if the source is inside the target,
/// or the target inside the source; `Unsupported` for a checkpoint that could not be opened at the
/// target; `Corrupt` if the bytes read back differ from those written; `Replaced` if other
/// processes keep changing the source; `Cancelled`; errors of the storages. After an error the
/// copied files keep their temporary name, and the target is unchanged. Exception: after an error
/// of kind `NotDurable` the copy is committed.
pub fn copy(source: impl ToLocation, target: impl ToLocation, options: &CopyOptions) -> Result<CopyReport> {
    let (source, target) = (located(source)?, located(target)?);
    let monitor = &options.monitor;
    let began = Instant::now();
    let report = monitor.begin().and_then(|_running| {
        let mut report = Retries::until_unreplaced(|| copy_once(&source, &target, options))?;
        report.seconds = began.elapsed().as_secs_f64();
        Ok(report)
    });
    monitor.conclude(report)
}

fn copy_once(source: &Location, target: &Location, options: &CopyOptions) -> Result<CopyReport> {
    let (plan, transfer) = begin(source, target, options)?;
    let bytes = plan.len_bytes();
    options.monitor.expect(bytes.saturating_mul(passes(options)));
    let copying = Copying::new(&*transfer, options);
    copying.all(&plan).map_err(|error| stays(error, options))?;
    let reused_bytes = copying.reused_bytes.load(Ordering::Relaxed);
    options.monitor.finish()?;
    commit(source, target, &plan.kind, transfer, options)?;
    Ok(CopyReport {
        path: target.describe(),
        file_count: plan.files.len(),
        bytes,
        reused_bytes,
        seconds: 0.0,
    })
}

fn commit(
    source: &Location,
    target: &Location,
    kind: &Target,
    transfer: Box<dyn Transfer>,
    options: &CopyOptions,
) -> Result<()> {
    if *kind == Target::Folder {
        if options.overwrite {
            take_from_files(target)?;
        }
        return transfer.commit();
    }
    let beside = Beside::of(source, target)?;
    let change = Change { name: "copy", wait: options.wait, monitor: &options.monitor };
    let has_any = !beside.is_empty();
    let put = |_: &TargetLock| beside.put(target);
    commit_files(&change, target, transfer, options.overwrite, has_any.then_some(put))
}

fn passes(options: &CopyOptions) -> u64 {
    if options.unverified { 1 } else { 2 }
}

fn begin(source: &Location, target: &Location, options: &CopyOptions) -> Result<(Plan, Box<dyn Transfer>)> {
    check_apart(source, target)?;
    replace::check_place(target, &SaveOptions::default())?;
    let checkpoint = super::open(source)?;
    let plan = Plan::of(&checkpoint, target)?;
    let has_steps = plan.kind == Target::Folder && !checkpoint.description().steps.is_empty();
    drop(checkpoint);
    if has_steps && options.overwrite && target.is_folder() && target.for_reading().is_ok() {
        return Err(Error::invalid("a folder of steps is not replaced as a whole").in_file(target).help(
            "steps that only the target has would be lost: copy step by step, or choose another path",
        ));
    }
    let files = plan.transfer_files();
    let transfer = target.transfer(transfer_options(&plan, &files, options))?;
    Ok((plan, transfer))
}

fn transfer_options<'a>(
    plan: &'a Plan,
    files: &'a [TransferFile],
    options: &'a CopyOptions,
) -> TransferOptions<'a> {
    TransferOptions {
        kind: &plan.kind,
        files,
        marker: &plan.marker,
        overwrite: options.overwrite,
        may_replace: Some(replace::check_file),
        durable: !options.not_durable,
        wait: options.wait,
        monitor: &options.monitor,
    }
}
/// Adds help to an error of the storage: the copy can be continued.
fn stays(error: Error, options: &CopyOptions) -> Error {
    let is_of_storage = matches!(error.kind(), ErrorKind::Io | ErrorKind::StorageFull);
    match is_of_storage && error.help_text().is_none() && !options.monitor.is_cancelled() {
        true => error.help("run the same copy again to continue it"),
        false => error,
    }
}

fn check_apart(source: &Location, target: &Location) -> Result<()> {
    if source.leads_to(target) || source.is_same(target) {
        return Err(Error::invalid("the source and the target are the same").in_file(target));
    }
    refuse_target_inside(source, target)?;
    match source.folders_above().any(|folder| folder.leads_to(target)) {
        true => Err(Error::invalid("the source is inside the target").in_file(source)),
        false => Ok(()),
    }
}
