//! Statistics of every leaf, in one pass over the bytes, which also checks them.
//!
//! ```text
//! plan      leaves by kind; long ones in jobs, sampled ones in blocks       metadata alone
//! read      pieces of a leaf, their bounds, moments, counts, histogram      a few threads, one byte budget
//! report    a row for each leaf, what is damaged, what is refused
//! ```
//!
//! Arrays have statistics. Texts, bytes, PRNG keys and elements that are only bytes for the engine
//! are read and checked like other leaves, but have no numbers. A damaged leaf is a finding with
//! its file, and the pass continues.

mod plan;
mod read;
mod report;

use super::{Checkpoint, OpenOptions};
use crate::error::Result;
use crate::formats::located;
use crate::location::ToLocation;
use crate::monitor::{Monitor, Stage};
use crate::storage::Retries;
use crate::tree::PathPattern;
pub use report::{LeafReading, LeafStatistics, StatisticsReport};

/// How to look at numbers.
#[derive(Debug, Clone, Default)]
pub struct StatisticsOptions {
    /// How to open the checkpoint.
    pub open: OpenOptions,
    /// Read only leaves that match one of these; all leaves if empty. A pattern without a match is
    /// an error.
    pub only: Vec<PathPattern>,
    /// Sample about this many bytes of each longer array, in evenly spread blocks. A leaf under one
    /// checksum is still read whole. `None`: read everything.
    pub sample_bytes: Option<u64>,
    /// Make histograms of so many leaves, those with the most elements; of all if `None`.
    pub histogram_leaves_max: Option<usize>,
    /// Extra memory in bytes; 64 MiB if `None`. The report is not part of it: some 400 bytes a leaf
    /// with a histogram, 150 without.
    pub budget_bytes: Option<u64>,
    /// Watches the work, and stops it.
    pub monitor: Monitor,
}

/// Statistics of all leaves of the checkpoint at a path or URL.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("step_100");
/// regrow::save(&path, &vec![1.0_f32, 2.0, f32::NAN])?;
/// let report = regrow::statistics(&path)?;
/// let stats = report.leaves[0].stats.as_ref().ok_or("an array has numbers")?;
/// assert_eq!((stats.count(), stats.nan_count(), stats.mean()), (3, 1, Some(1.5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As of [`Checkpoint::statistics`], and of [`open`](super::open).
pub fn statistics(path: impl ToLocation) -> Result<StatisticsReport> {
    statistics_with(path, &StatisticsOptions::default())
}

/// As [`statistics`], of a step or an item, of some leaves, of a sample.
///
/// # Errors
/// The errors of [`statistics`]. If the checkpoint is replaced in between, the work starts again
/// with the new one.
pub fn statistics_with(path: impl ToLocation, options: &StatisticsOptions) -> Result<StatisticsReport> {
    let at = located(path)?;
    Retries::until_unreplaced(|| super::open_with(&at, &options.open)?.statistics(options))
}

impl Checkpoint {
    /// Reads all leaves once; reports the statistics of their numbers, and damage. Also checks the
    /// data beside the leaves. Memory is the budget and the report.
    ///
    /// # Errors
    /// `NotFound` for patterns that match nothing; `Replaced` if another checkpoint took the path
    /// in between; `Cancelled`. Leaves that cannot be read are findings.
    pub fn statistics(&self, options: &StatisticsOptions) -> Result<StatisticsReport> {
        let monitor = &options.monitor;
        let _running = monitor.begin()?;
        let jobs = plan::jobs(self, options)?;
        monitor.enter(Stage::Read);
        let report = monitor.timed(Stage::Read, 0, || read::run(self, jobs, options));
        let report = report.and_then(|report| {
            self.unless_missing(!report.findings.is_empty())?;
            monitor.finish().map(|()| report)
        });
        monitor.conclude(report)
    }
}
