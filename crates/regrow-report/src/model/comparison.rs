//! Another checkpoint, and the differences.

use regrow::Result;
use serde::{Deserialize, Serialize};

use super::columns::{KeyTree, Words};
use super::{Overview, check_len};

/// A checkpoint that the report's own is compared with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The other checkpoint. Its findings are those of the comparison.
    pub other: Overview,
    /// Whether nothing differs.
    pub is_equal: bool,
    /// The verdict in a sentence.
    pub words: String,
    /// Leaves of each status that there is: `values`, `only_a`. Also of those that are not listed.
    pub counts: Vec<(String, u64)>,
    /// Bytes of both that were read, decoded.
    pub read_bytes: u64,
    /// Containers that differ: key path, what it is here, what it is there; empty where it is not.
    pub containers: Vec<(String, String, String)>,
    /// The leaves that differ, the worst first.
    pub leaves: LeafDifferences,
}

/// Leaves that differ. Every column has a row for each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeafDifferences {
    /// Their key paths.
    pub keys: KeyTree,
    /// The node in `keys` of each.
    pub node: Vec<u32>,
    /// What came of it: `values`, `shape`, `only_b`, as `regrow diff` says it.
    pub status: Words,
    /// dtype and shape in the report's own checkpoint; empty if it has no such leaf.
    pub form_a: Words,
    /// dtype and shape in the other one.
    pub form_b: Words,
    /// Pairs of elements that were compared.
    pub count: Vec<u64>,
    /// Those that differ.
    pub differing_count: Vec<u64>,
    /// The largest distance.
    pub max_abs: Vec<Option<f64>>,
    /// The largest distance, relative to the other one's element.
    pub max_relative: Vec<Option<f64>>,
    /// The largest distance in values of the dtype.
    pub max_ulp: Vec<Option<u64>>,
    /// The cosine of the angle between both.
    pub cosine: Vec<Option<f64>>,
}

impl LeafDifferences {
    /// Errs if the columns do not fit together.
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
