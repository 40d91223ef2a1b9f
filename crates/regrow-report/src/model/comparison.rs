//! Another checkpoint, and the differences.

use regrow::Result;
use serde::{Deserialize, Serialize};

use super::columns::{KeyTree, Words};
use super::{Overview, check_len};

/// The comparison of the report's checkpoint with another one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The other checkpoint. Its findings are the findings of the comparison.
    pub other: Overview,
    /// Whether nothing differs.
    pub is_equal: bool,
    /// The verdict as a sentence.
    pub words: String,
    /// The number of leaves of each status that occurs (`values`, `only_a`), including unlisted
    /// leaves.
    pub counts: Vec<(String, u64)>,
    /// Decoded bytes that were read, of both checkpoints.
    pub read_bytes: u64,
    /// Containers that differ: key path, kind here, kind there; empty if one side has no such
    /// container.
    pub containers: Vec<(String, String, String)>,
    /// The leaves that differ, the worst first.
    pub leaves: LeafDifferences,
}

/// Leaves that differ. Every column has a row for each of these leaves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeafDifferences {
    /// The key paths of these leaves.
    pub keys: KeyTree,
    /// The node in `keys` of each leaf.
    pub node: Vec<u32>,
    /// The status, as in `regrow diff`: `values`, `shape`, `only_b`.
    pub status: Words,
    /// dtype and shape in the report's checkpoint; empty if the leaf is not in it.
    pub form_a: Words,
    /// dtype and shape in the other checkpoint; empty if the leaf is not in it.
    pub form_b: Words,
    /// Pairs of elements that were compared.
    pub count: Vec<u64>,
    /// Pairs of elements that differ.
    pub differing_count: Vec<u64>,
    /// The largest absolute distance.
    pub max_abs: Vec<Option<f64>>,
    /// The largest distance, relative to the element of the other checkpoint.
    pub max_relative: Vec<Option<f64>>,
    /// The largest distance in representable values of the dtype.
    pub max_ulp: Vec<Option<u64>>,
    /// The cosine of the angle between both arrays.
    pub cosine: Vec<Option<f64>>,
}

impl LeafDifferences {
    pub(super) fn check(&self) -> Result<()> {
        let count = self.node.len();
        self.keys.check(&self.node)?;
        self.status.check("status", count)?;
        self.form_a.check("form_a", count)?;
        self.form_b.check("form_b", count)?;
        for (name, len) in [
            ("count", self.count.len()),
            ("differing_count", self.differing_count.len()),
            ("max_abs", self.max_abs.len()),
            ("max_relative", self.max_relative.len()),
            ("max_ulp", self.max_ulp.len()),
            ("cosine", self.cosine.len()),
        ] {
            check_len(name, len, count)?;
        }
        Ok(())
    }
}
