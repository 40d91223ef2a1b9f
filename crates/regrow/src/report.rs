//! The reports of a save and of a verification.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::PublicKey;
pub use crate::formats::{Description, Finding, Loss, LossKind};
use crate::monitor::{IoPath, Monitor, Stage, StageReport, gb_per_s};
use crate::text::{counted, format_bytes, format_seconds, format_speed, printable};

/// The result of `verify`.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// All damage that was found; empty if the checkpoint is sound.
    pub findings: Vec<Finding>,
    /// The number of leaves of the checkpoint.
    pub leaf_count: usize,
    /// Decoded bytes that were checked.
    pub checked_bytes: u64,
    /// Observations that need not be damage: a sound checkpoint can have notes.
    pub notes: Vec<String>,
    /// Whether checksums cover every data byte; otherwise damage to array data can go unseen.
    pub has_data_checksums: bool,
    /// Decoded bytes of array data that no checksum covers. A [seal](crate::seal()) adds checksums
    /// for them.
    pub unprotected_bytes: u64,
    /// The files that hold these bytes. If the layout does not know the file, the checkpoint
    /// itself: small arrays in the index of an OCDBT database have no file of their own.
    pub unprotected_files: Vec<UnprotectedFile>,
    /// The trusted key that has signed the checkpoint; `None` if no signature was asked for.
    pub signer: Option<PublicKey>,
    /// The step that was verified, if this is a folder of steps.
    pub step: Option<u64>,
    /// All committed steps of the folder of steps.
    pub steps: Vec<u64>,
}

/// A file that has array data without a checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnprotectedFile {
    /// The path of the file.
    pub file: PathBuf,
    /// Decoded bytes in the file that no checksum covers.
    pub bytes: u64,
}

impl VerifyReport {
    /// Whether there are no findings.
    pub fn is_ok(&self) -> bool {
        self.findings.is_empty()
    }
}

/// The result of a save. Its text is one line, and a line for each stage:
///
/// ```text
/// step_100: 450 leaves, 1.0 GiB of data, 1.0 GiB on disk, in 0.52 s (2.06 GB/s)
///   prepare        0.004 s
///   copy           0.123 s   8.7 GB/s
///   wait_for_disk  0.371 s
///   write          0.488 s   2.2 GB/s  (while the other stages run)
///   sync           0.019 s
///   commit         0.003 s
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SaveReport {
    /// The path of the checkpoint.
    pub path: PathBuf,
    /// The bytes of all files.
    pub stored_bytes: u64,
    /// The number of leaves that were written.
    pub leaf_count: usize,
    /// Bytes of array data, after casts, before compression.
    pub data_bytes: u64,
    /// The duration of the save in seconds.
    pub seconds: f64,
    /// The duration of each stage. The stages of the calling thread add up to `seconds`, unless the
    /// layout writes with several threads. All stages are of the calling thread except `read`,
    /// which is part of other stages, and `write`. A background save begins with `wait_for_save`
    /// and `snapshot`, which are not part of `seconds`.
    pub stages: Vec<StageReport>,
    /// How the bytes were written to the disk.
    pub io_path: IoPath,
    /// Bytes that were not written because the [base](crate::options::SaveOptions::base) has them.
    /// They count in `stored_bytes`, but take no additional space.
    pub reused_bytes: u64,
    /// Other observations, such as damage in the base.
    pub notes: Vec<String>,
    /// Parts of the tree (containers, dtypes, values) that the layout's own tool, such as Orbax,
    /// does not read back as saved, the worst first. Losses of kind `Note` are left out.
    pub losses: Vec<Loss>,
}

impl SaveReport {
    pub(crate) fn new(path: PathBuf, stored_bytes: u64, leaf_count: usize, data_bytes: u64) -> Self {
        Self {
            path,
            stored_bytes,
            leaf_count,
            data_bytes,
            seconds: 0.0,
            stages: Vec::new(),
            io_path: IoPath::default(),
            reused_bytes: 0,
            notes: Vec::new(),
            losses: Vec::new(),
        }
    }

    /// The speed of the save in 10^9 bytes of array data a second.
    pub fn gb_per_s(&self) -> f64 {
        gb_per_s(self.data_bytes, self.seconds)
    }

    /// Takes the durations from the monitor. Time outside of all stages counts as preparation.
    pub(crate) fn take_stock(&mut self, monitor: &Monitor, time: Duration) {
        let own = [Stage::Compare, Stage::Copy, Stage::WaitForDisk, Stage::Sync, Stage::Commit];
        let stages = monitor.stages();
        let claimed = stages.iter().filter(|report| own.contains(&report.stage)).map(|report| report.seconds);
        let left = time.as_secs_f64() - claimed.sum::<f64>();
        monitor.add(Stage::Prepare, Duration::try_from_secs_f64(left).unwrap_or_default(), 0);
        self.seconds = time.as_secs_f64();
        self.stages = monitor.stages();
        self.io_path = monitor.io_path();
        self.notes = monitor.notes();
    }
}

impl fmt::Display for SaveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, {} of data, {} on disk, in {}",
            printable(&self.path.to_string_lossy()),
            counted(self.leaf_count, "leaf", "leaves"),
            format_bytes(self.data_bytes),
            format_bytes(self.stored_bytes),
            format_seconds(self.seconds),
        )?;
        if let Some(speed) = format_speed(self.data_bytes, self.gb_per_s()) {
            write!(f, " ({speed})")?;
        }
        if let IoPath::Buffered { .. } = self.io_path {
            write!(f, "; {}", self.io_path)?;
        }
        if self.reused_bytes > 0 {
            write!(f, "; {} reused", format_bytes(self.reused_bytes))?;
        }
        for note in &self.notes {
            write!(f, "\n  {}", printable(note))?;
        }
        let compares = self.stages.iter().any(|stage| stage.stage == Stage::Compare);
        for stage in &self.stages {
            write!(f, "\n  {:13} {:>9}", stage.stage.name(), format_seconds(stage.seconds))?;
            if let Some(speed) = format_speed(stage.bytes, stage.gb_per_s()) {
                write!(f, "  {speed:>10}")?;
            }
            match stage.stage {
                Stage::Write => f.write_str("  (while the other stages run)")?,
                Stage::Read if compares => f.write_str("  (part of compare and copy)")?,
                Stage::Read => f.write_str("  (part of copy)")?,
                Stage::WaitForSave | Stage::Snapshot => {
                    f.write_str("  (before the save; blocked the caller)")?
                }
                _ => {}
            }
        }
        Ok(())
    }
}
