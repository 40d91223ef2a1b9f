//! The data of a report, without its presentation. `regrow report --json` prints it.
//!
//! Single values are structs. Values for each leaf are columns: a `Vec` with one element for each
//! leaf, so that a million leaves need some dozen allocations. Texts are unchanged texts of the
//! files; the page escapes them.
//!
//! | module | has |
//! |---|---|
//! | [`columns`] | key paths as a tree of nodes, and texts that repeat |
//! | [`leaves`] | the leaves of the checkpoint, and their statistics |
//! | [`sharding`] | the shardings of arrays on devices, part by part |
//! | [`comparison`] | another checkpoint, and the differences |
//! | [`steps`] | a folder of steps over time |

pub mod columns;
pub mod comparison;
pub mod leaves;
pub mod sharding;
pub mod steps;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use regrow::{Error, Result};

use comparison::Comparison;
use leaves::Leaves;
use sharding::ShardingUse;
use steps::StepSeries;

/// All data of a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The title of the page: the caller's title, or the last part of the path.
    pub title: String,
    /// The version of regrow that made the report.
    pub version: String,
    /// The time when the report was made, in seconds since 1970.
    pub written_seconds: f64,
    /// The command or the call that made the report.
    pub command: String,
    /// The checkpoint that the report describes. For a folder of steps, the opened step.
    pub checkpoint: Overview,
    /// The leaves of the checkpoint, in flatten order.
    pub leaves: Leaves,
    /// The distinct shardings of its arrays. Leaves refer to them by position.
    pub shardings: Vec<ShardingUse>,
    /// The comparisons with other checkpoints.
    pub comparisons: Vec<Comparison>,
    /// The steps of the folder; `None` if the checkpoint is not a step.
    pub steps: Option<StepSeries>,
}

impl Report {
    /// Whether no damage was found: in the checkpoint, in the checkpoints that it is compared with,
    /// or in the steps that were read.
    pub fn is_sound(&self) -> bool {
        let others = self.comparisons.iter().map(|comparison| &comparison.other);
        let mut steps = self.steps.iter().flat_map(|series| &series.steps);
        std::iter::once(&self.checkpoint).chain(others).all(|one| one.findings.is_empty())
            && steps.all(|step| step.is_damaged != Some(true))
    }
}

/// The properties of a checkpoint, as numbers and texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// The path or URL of the checkpoint; empty for a pytree in memory.
    pub location: String,
    /// The layout: `regrow`, `orbax`, `safetensors`.
    pub layout: String,
    /// The variant of the layout as text: `ocdbt, zarr v3`; empty if the layout has only one.
    pub variant: String,
    /// The step; `None` if the checkpoint is not a step of a folder.
    pub step: Option<u64>,
    /// The name and the kind of each item.
    pub items: Vec<(String, String)>,
    /// The user's own metadata.
    pub custom_metadata: Option<Value>,
    /// The metrics that were saved with the checkpoint.
    pub metrics: Option<Value>,
    /// The number of all leaves.
    pub leaf_count: u64,
    /// The number of leaves that are arrays.
    pub array_count: u64,
    /// The number of elements in all arrays.
    pub element_count: u64,
    /// Decoded bytes of all leaves.
    pub data_bytes: u64,
    /// Bytes of all files; `None` if unknown.
    pub stored_bytes: Option<u64>,
    /// How much of the data checksums cover.
    pub protection: Protection,
    /// The part of the data that was read to make the report.
    pub reading: Reading,
    /// The damage that was found.
    pub findings: Vec<Finding>,
    /// Missing parts of a checkpoint that can still be read.
    pub warnings: Vec<String>,
    /// Notes about the checkpoint that are not damage.
    pub notes: Vec<String>,
}

/// How much of a checkpoint's data checksums cover.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Protection {
    /// Decoded bytes of array data that a checksum covers.
    pub protected_bytes: u64,
    /// Decoded bytes of array data that no checksum covers.
    pub unprotected_bytes: u64,
    /// A sentence or two about the data that checksums cover, and the data that none covers.
    pub words: String,
}

/// The part of the data that was read to make a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Only metadata. There are no statistics, and damage to data is not found.
    #[default]
    Metadata,
    /// Some elements of each array.
    Sample,
    /// Every byte.
    Whole,
}

/// One error that was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The leaf, as a position in [`Leaves`]; `None` for errors outside of leaves, and for findings
    /// of other checkpoints.
    pub leaf: Option<u64>,
    /// The printed key path.
    pub key_path: Option<String>,
    /// The file. A file in the checkpoint has its relative path.
    pub file: Option<String>,
    /// The offset in the file.
    pub offset_bytes: Option<u64>,
    /// What failed.
    pub what: String,
    /// The expected value.
    pub expected: Option<String>,
    /// The value that was found.
    pub found: Option<String>,
    /// The advice for the user.
    pub help: Option<String>,
}

impl Report {
    /// Returns an error if the columns do not fit together: a column has another length than the
    /// others, or refers to a row that does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of the column.
    pub fn check(&self) -> Result<()> {
        self.leaves.check(self.shardings.len())?;
        self.comparisons.iter().try_for_each(|comparison| comparison.leaves.check())
    }
}

fn check_len(name: &str, len: usize, expected: usize) -> Result<()> {
    if len == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("the column {name} of a report is not as long as the others"))
        .expected(expected, len))
}
