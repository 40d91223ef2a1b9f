//! The report of statistics.

use crate::array::Stats;
use crate::report::Finding;

/// What was read of a leaf.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum LeafReading {
    /// Nothing: it was not asked for, or it has no data.
    #[default]
    Nothing,
    /// Some of its elements.
    Sample,
    /// All of it, and all existing checksums match.
    Whole,
    /// It could not be read: there is a finding.
    Failed,
    /// What only the program that wrote it can read, and is as it should be: there is a note.
    Refused,
}

/// What the numbers of a leaf look like.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LeafStatistics {
    /// What was read of it.
    pub reading: LeafReading,
    /// `None` for what has no numbers, and where nothing was read.
    pub stats: Option<Box<Stats>>,
}

/// What [`statistics`](super::statistics) found.
#[derive(Debug, Default)]
pub struct StatisticsReport {
    /// A row for each leaf of the checkpoint, in flatten order; also for those that were not asked
    /// for.
    pub leaves: Vec<LeafStatistics>,
    /// What is wrong: first what is no leaf's, then that of the leaves, in flatten order.
    pub findings: Vec<Finding>,
    /// What may well be as it should, and may not.
    pub notes: Vec<String>,
    /// Bytes that were read, decoded.
    pub read_bytes: u64,
}
