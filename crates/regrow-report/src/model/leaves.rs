//! The leaves of a checkpoint in columns.

use regrow::{Error, Result};
use serde::{Deserialize, Serialize};

use super::check_len;
use super::columns::{KeyTree, Words};

/// The leaves of a checkpoint, in flatten order. Every column has a row for each leaf.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Leaves {
    /// The key paths of all leaves.
    pub keys: KeyTree,
    /// The node in `keys` of each leaf.
    pub node: Vec<u32>,
    /// The kind of the leaf: `jax_array`, `scalar`, `str`.
    pub kind: Words,
    /// The dtype; for text `str`, for bytes `bytes`.
    pub dtype: Words,
    /// The shape as text: `[64, 10]`.
    pub shape: Words,
    /// The number of elements; 0 for leaves that are not arrays.
    pub elements: Vec<u64>,
    /// Decoded bytes.
    pub bytes: Vec<u64>,
    /// The encoding of the bytes: `raw`, `zstd`.
    pub coding: Words,
    /// The shape of a chunk; empty if the leaf is not divided into chunks.
    pub chunk_shape: Words,
    /// The number of chunks; 1 if the leaf is not divided into chunks.
    pub chunk_count: Vec<u64>,
    /// The checksum that covers the bytes: `crc32c of blocks`; empty if there is none.
    pub checksum: Words,
    /// The result of checking the bytes.
    pub state: Vec<LeafState>,
    /// The file with the leaf's data, relative to the checkpoint; the first file if there are
    /// several; empty if there is none.
    pub file: Words,
    /// The leaf's sharding, as a position in [`Report::shardings`](super::Report::shardings).
    pub sharding: Vec<Option<u32>>,
    /// Statistics of the numbers; `None` if no data was read.
    pub statistics: Option<Statistics>,
}

/// The result of checking the bytes of a leaf.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafState {
    /// All bytes were read, and their checksums match.
    Verified,
    /// The bytes differ from what was written, or cannot be read. A finding has the error.
    Damaged,
    /// Some bytes were not read.
    #[default]
    NotRead,
    /// No checksum covers the bytes, so damage could be missed.
    Unprotected,
}

/// Statistics of the numbers in leaves, one row for each leaf. A leaf without numbers has zeros and
/// `None`.
///
/// Bounds, mean, deviation and norm are computed from the finite elements.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Elements that were read: all, or a sample if there are fewer than [`Leaves::elements`].
    pub count: Vec<u64>,
    /// Elements that are NaN.
    pub nan_count: Vec<u64>,
    /// Elements that are infinite.
    pub infinity_count: Vec<u64>,
    /// Elements that are zero.
    pub zero_count: Vec<u64>,
    /// The lowest finite element.
    pub min: Vec<Option<f64>>,
    /// The highest finite element.
    pub max: Vec<Option<f64>>,
    /// The mean.
    pub mean: Vec<Option<f64>>,
    /// The standard deviation.
    pub standard_deviation: Vec<Option<f64>>,
    /// The square root of the sum of squares.
    pub l2_norm: Vec<Option<f64>>,
    /// The distributions of the elements.
    pub histograms: Histograms,
}

/// A small histogram for each leaf. A leaf without finite numbers has no bins.
///
/// The bins of a leaf are the rows from its entry in `first` up to the next entry, in rising order.
/// There may be gaps between bins, in which there are no elements.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histograms {
    /// The first bin of each leaf, and at the end the number of all bins.
    pub first: Vec<u64>,
    /// The lower edge of each bin.
    pub lower: Vec<f64>,
    /// The upper edge of each bin.
    pub upper: Vec<f64>,
    /// The elements in each bin.
    pub count: Vec<u64>,
}

impl Leaves {
    pub(crate) fn words(&self) -> [(&'static str, &Words); 7] {
        [
            ("kind", &self.kind),
            ("dtype", &self.dtype),
            ("shape", &self.shape),
            ("coding", &self.coding),
            ("chunk_shape", &self.chunk_shape),
            ("checksum", &self.checksum),
            ("file", &self.file),
        ]
    }

    pub(super) fn check(&self, sharding_count: usize) -> Result<()> {
        let count = self.node.len();
        self.keys.check(&self.node)?;
        self.words().into_iter().try_for_each(|(name, words)| words.check(name, count))?;
        for (name, len) in [
            ("elements", self.elements.len()),
            ("bytes", self.bytes.len()),
            ("chunk_count", self.chunk_count.len()),
            ("state", self.state.len()),
            ("sharding", self.sharding.len()),
        ] {
            check_len(name, len, count)?;
        }
        if self.sharding.iter().flatten().any(|at| *at as usize >= sharding_count) {
            return Err(Error::invalid("a leaf of a report has an unknown sharding"));
        }
        self.statistics.as_ref().map_or(Ok(()), |statistics| statistics.check(count))
    }
}

impl Statistics {
    pub(crate) fn counts(&self) -> [(&'static str, &[u64]); 4] {
        [
            ("count", &self.count),
            ("nan_count", &self.nan_count),
            ("infinity_count", &self.infinity_count),
            ("zero_count", &self.zero_count),
        ]
    }

    pub(crate) fn values(&self) -> [(&'static str, &[Option<f64>]); 5] {
        [
            ("min", &self.min),
            ("max", &self.max),
            ("mean", &self.mean),
            ("standard_deviation", &self.standard_deviation),
            ("l2_norm", &self.l2_norm),
        ]
    }

    fn check(&self, count: usize) -> Result<()> {
        self.counts().into_iter().try_for_each(|(name, column)| check_len(name, column.len(), count))?;
        self.values().into_iter().try_for_each(|(name, column)| check_len(name, column.len(), count))?;
        let Histograms { first, lower, upper, count: counts } = &self.histograms;
        check_len("first of the histograms", first.len(), count + 1)?;
        check_len("upper of the histograms", upper.len(), lower.len())?;
        check_len("count of the histograms", counts.len(), lower.len())?;
        if first.is_sorted() && first.last() == Some(&(lower.len() as u64)) {
            return Ok(());
        }
        Err(Error::invalid("the histograms of a report lack the bins of a leaf"))
    }
}
