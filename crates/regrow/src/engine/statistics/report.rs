//! The report of statistics.

use crate::array::Stats;
use crate::report::Finding;

/// How a leaf was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum LeafReading {
    /// Nothing: it was not asked for, or it has no data.
    #[default]
    Nothing,
    /// Some of its elements.
    Sample,
    /// All of it, and all existing checksums match.
    Whole,
    /// The leaf cannot be read: see the findings.
    Failed,
    /// Only the program that wrote the leaf can read it; this is no damage. See the notes.
    Refused,
}

/// The statistics of a leaf.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LeafStatistics {
    /// How the leaf was read.
    pub reading: LeafReading,
    /// `None` for a leaf without numbers, and for a leaf that was not read.
    pub stats: Option<Box<Stats>>,
}

/// The result of [`statistics`](super::statistics).
#[derive(Debug, Default)]
pub struct StatisticsReport {
    /// A row for each leaf of the checkpoint, in flatten order, including leaves not asked for.
    pub leaves: Vec<LeafStatistics>,
    /// The damage: first outside of leaves, then in leaves, in flatten order.
    pub findings: Vec<Finding>,
    /// Observations that need not be damage.
    pub notes: Vec<String>,
    /// Bytes that were read, decoded.
    pub read_bytes: u64,
}
