//! Computes statistics of every leaf in one pass over the bytes, and checks the bytes.
//!
//! ```text
//! plan      leaves by kind; long leaves as several jobs, samples as blocks     metadata alone
//! read      pieces of a leaf: bounds, moments, counts, histogram               a few threads, one byte budget
//! report    a row for each leaf, damaged leaves, refused leaves
//! ```
//!
//! Arrays of numbers have statistics. Texts, bytes, PRNG keys and elements that the engine treats
//! as bytes are read and checked like other leaves, but have no statistics. A damaged leaf is a
//! finding that names its file, and the pass continues.

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

/// The options of statistics.
#[derive(Debug, Clone, Default)]
pub struct StatisticsOptions {
    /// The options to open the checkpoint.
    pub open: OpenOptions,
    /// Read only leaves that match one of these patterns; all leaves if empty. A pattern that
    /// matches nothing is an error.
    pub only: Vec<PathPattern>,
    /// Sample about this many bytes of each longer array, in evenly spread blocks; everything if
    /// `None`. A leaf under one checksum is always read whole.
    pub sample_bytes: Option<u64>,
    /// Make histograms only of this many leaves with the most elements; of all leaves if `None`.
    pub histogram_leaves_max: Option<usize>,
    /// Extra memory in bytes; 64 MiB if `None`. The report needs more memory: about 400 bytes for a
    /// leaf with a histogram, 150 bytes for others.
    pub budget_bytes: Option<u64>,
    /// Watches the work, and can cancel it.
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
/// The errors of [`Checkpoint::statistics`] and of [`open`](super::open).
pub fn statistics(path: impl ToLocation) -> Result<StatisticsReport> {
    statistics_with(path, &StatisticsOptions::default())
}

/// Like [`statistics`], with options: a step, an item, some of the leaves, a sample.
///
/// # Errors
/// The errors of [`statistics`]. If the checkpoint is replaced during the read, the work starts
/// again with the new one.
pub fn statistics_with(path: impl ToLocation, options: &StatisticsOptions) -> Result<StatisticsReport> {
    let at = located(path)?;
    Retries::until_unreplaced(|| super::open_with(&at, &options.open)?.statistics(options))
}

impl Checkpoint {
    /// Reads all leaves once. Reports statistics of their numbers, and damage. Also checks data
    /// outside of leaves. Needs memory for the budget and the report.
    ///
    /// # Errors
    /// `NotFound` for patterns that match nothing; `Replaced` if another checkpoint took the path
    /// during the read; `Cancelled`. Leaves that cannot be read are findings.
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
