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
    /// All that is wrong; empty if the checkpoint is sound.
    pub findings: Vec<Finding>,
    /// Leaves read.
    pub leaf_count: usize,
    /// Bytes of data checked, decoded.
    pub checked_bytes: u64,
    /// Observations that need not be damage: a sound checkpoint can have notes.
    pub notes: Vec<String>,
    /// Whether checksums cover every data byte; otherwise damage to array data can go unseen.
    pub has_data_checksums: bool,
    /// Bytes of array data, decoded, that no checksum is over. A [seal](crate::seal()) puts them
    /// under one.
    pub unprotected_bytes: u64,
    /// The same by file; or the checkpoint, if the layout does not know the file: small arrays in
    /// the index of an OCDBT database have no file of their own.
    pub unprotected_files: Vec<UnprotectedFile>,
    /// The trusted key that has signed the checkpoint; `None` if no signature was asked for.
    pub signer: Option<PublicKey>,
    /// The step that was verified, of a folder of steps.
    pub step: Option<u64>,
    /// All committed steps of that folder.
    pub steps: Vec<u64>,
}

/// A file with array data that no checksum is over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnprotectedFile {
    /// The file.
    pub file: PathBuf,
    /// Bytes of such data in it, decoded.
    pub bytes: u64,
}

impl VerifyReport {
    /// Whether there are no findings.
    pub fn is_ok(&self) -> bool {
        self.findings.is_empty()
    }
}

/// The result of a save. As text it is a line, and a line for each stage:
///
/// ```text
/// step_100: 450 leaves, 1.0 GiB of data, 1.0 GiB on disk, in 0.52 s (2.06 GB/s); direct
///   prepare        0.004 s
///   copy           0.123 s   8.7 GB/s
///   wait_for_disk  0.371 s
///   write          0.488 s   2.2 GB/s  beside the others
///   sync           0.019 s
///   commit         0.003 s
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SaveReport {
    /// The path of the checkpoint.
    pub path: PathBuf,
    /// Bytes of all files.
    pub stored_bytes: u64,
    /// Leaves written.
    pub leaf_count: usize,
    /// Bytes of array data, after casts, before compression.
    pub data_bytes: u64,
    /// The duration of the whole save.
    pub seconds: f64,
    /// The duration of each stage. The stages of the calling thread (all but `read`, which is part
    /// of others, and `write`) add up to `seconds`, unless the layout writes with several threads.
    /// A save in the background begins with `wait_for_save` and `snapshot`, which are not part of
    /// `seconds`.
    pub stages: Vec<StageReport>,
    /// How the bytes were written to the disk.
    pub io_path: IoPath,
    /// Bytes that were not written because the [base](crate::options::SaveOptions::base) has them;
    /// they are part of `stored_bytes`, though they take no room of their own.
    pub reused_bytes: u64,
    /// Other observations, such as damage in the base.
    pub notes: Vec<String>,
    /// Values that the layout's tool does not read back as saved, the worst first.
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

    /// Array data saved, in 10^9 bytes a second.
    pub fn gb_per_s(&self) -> f64 {
        gb_per_s(self.data_bytes, self.seconds)
    }

    /// Takes the durations from the monitor; time without a stage counts as preparation.
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
