//! The data of a report, without its presentation. `regrow report --json` prints it.
//!
//! Single values are structs. Values for each leaf are columns: a `Vec` with one element for each
//! leaf, so that a million leaves need some dozen allocations. Texts are unchanged texts of the
//! files; the page escapes them.
//!
//! | module | holds |
//! |---|---|
//! | [`columns`] | key paths as a tree of nodes, and texts that repeat |
//! | [`leaves`] | the leaves of the checkpoint, and their statistics |
//! | [`sharding`] | how arrays lie on devices, part by part |
//! | [`comparison`] | another checkpoint, and what differs |
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

/// All that a report says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What the page is called: the last part of the path, or what the caller says.
    pub title: String,
    /// The version of regrow that wrote it.
    pub version: String,
    /// When it was made, in seconds since 1970.
    pub written_seconds: f64,
    /// The command or the call that made it.
    pub command: String,
    /// The checkpoint that it is about; of a folder of steps the one that was opened.
    pub checkpoint: Overview,
    /// Its leaves, in flatten order.
    pub leaves: Leaves,
    /// How its arrays lie on devices: each way once. Leaves refer to them by position.
    pub shardings: Vec<ShardingUse>,
    /// The checkpoints that it is compared with, each with what differs.
    pub comparisons: Vec<Comparison>,
    /// The steps of the folder, if it is about one.
    pub steps: Option<StepSeries>,
}

impl Report {
    /// Whether nothing that was looked at is damaged: neither the checkpoint nor those it is
    /// compared with, nor a step.
    pub fn is_sound(&self) -> bool {
        let others = self.comparisons.iter().map(|comparison| &comparison.other);
        let mut steps = self.steps.iter().flat_map(|series| &series.steps);
        std::iter::once(&self.checkpoint).chain(others).all(|one| one.findings.is_empty())
            && steps.all(|step| step.is_damaged != Some(true))
    }
}

/// A checkpoint in numbers and words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Its path or URL; empty for a pytree in memory.
    pub location: String,
    /// The layout: `regrow`, `orbax`, `safetensors`.
    pub layout: String,
    /// The variant in words: `ocdbt, zarr v3`; empty if the layout has one alone.
    pub variant: String,
    /// The step, of a folder of steps.
    pub step: Option<u64>,
    /// Named parts: name and kind.
    pub items: Vec<(String, String)>,
    /// The user's own metadata.
    pub custom_metadata: Option<Value>,
    /// The metrics that were saved with it.
    pub metrics: Option<Value>,
    /// The number of all leaves.
    pub leaf_count: u64,
    /// Leaves with array data behind them.
    pub array_count: u64,
    /// Elements of these arrays.
    pub element_count: u64,
    /// Bytes of the leaves, decoded.
    pub data_bytes: u64,
    /// Bytes of all files; `None` if unknown.
    pub stored_bytes: Option<u64>,
    /// What checksums protect.
    pub protection: Protection,
    /// What was read to make the report.
    pub reading: Reading,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What is missing of a checkpoint that can still be read.
    pub warnings: Vec<String>,
    /// What a reader should know, though nothing is wrong.
    pub notes: Vec<String>,
}

/// How much of a checkpoint is under checksums.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Protection {
    /// Bytes of array data under a checksum, decoded.
    pub protected_bytes: u64,
    /// Bytes of array data that no checksum protects.
    pub unprotected_bytes: u64,
    /// The same in a sentence or two: what protects the data, and what nothing protects.
    pub words: String,
}

/// What was read to make a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Metadata alone: there are no statistics, and damage to data is not seen.
    #[default]
    Metadata,
    /// Some elements of each array.
    Sample,
    /// Every byte.
    Whole,
}

/// One thing that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The leaf, by its position in [`Leaves`]; `None` for what is no leaf's, and for findings of
    /// other checkpoints.
    pub leaf: Option<u64>,
    /// The key path as people read it.
    pub key_path: Option<String>,
    /// The file, relative to the checkpoint where it lies below it.
    pub file: Option<String>,
    /// Where in the file.
    pub offset_bytes: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// What should be there.
    pub expected: Option<String>,
    /// What is there.
    pub found: Option<String>,
    /// What to do.
    pub help: Option<String>,
}

impl Report {
    /// Errs if the columns do not fit together: one is not as long as the others, or names what is
    /// not there.
    ///
    /// # Errors
    /// `InvalidArgument`, with the name of the column.
    pub fn check(&self) -> Result<()> {
        self.leaves.check(self.shardings.len())?;
        self.comparisons.iter().try_for_each(|comparison| comparison.leaves.check())
    }
}

/// Errs if a column is not as long as it has to be.
fn check_len(name: &str, len: usize, expected: usize) -> Result<()> {
    if len == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("the column {name} of a report is not as long as the others"))
        .expected(expected, len))
}
