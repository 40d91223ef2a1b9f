//! The report of statistics.

use crate::array::Stats;
use crate::report::Finding;

/// How a leaf was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum LeafReading {
    /// The leaf was not read: it was not selected, or has no data.
    #[default]
    Nothing,
    /// Some elements of the leaf were read.
    Sample,
    /// The whole leaf was read, and all existing checksums match.
    Whole,
    /// The leaf cannot be read: see the findings.
    Failed,
    /// Only the program that wrote the leaf can read it. This is not damage, and a note names the
    /// leaf.
    Refused,
}

/// The statistics of a leaf.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LeafStatistics {
    /// How the leaf was read.
    pub reading: LeafReading,
    /// The statistics; `None` for a leaf without numbers, and for a leaf that was not read.
    pub stats: Option<Box<Stats>>,
}

/// The result of [`statistics`](super::statistics).
#[derive(Debug, Default)]
pub struct StatisticsReport {
    /// A row for each leaf of the checkpoint, in flatten order, including leaves that were not
    /// selected.
    pub leaves: Vec<LeafStatistics>,
    /// The damage: first outside of leaves, then in leaves in flatten order.
    pub findings: Vec<Finding>,
    /// Observations that need not be damage.
    pub notes: Vec<String>,
    /// Decoded bytes that were read.
    pub read_bytes: u64,
}
