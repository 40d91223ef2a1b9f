//! A folder of steps over time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The steps of a folder, by number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSeries {
    /// The steps, sorted by number.
    pub steps: Vec<StepPoint>,
    /// The norms of parts of the pytree over the steps.
    pub norms: Vec<NormSeries>,
}

/// The data of one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// The number of the step.
    pub step: u64,
    /// The time when the step was written, in seconds since 1970.
    pub written_seconds: Option<f64>,
    /// The bytes of all files of the step.
    pub stored_bytes: Option<u64>,
    /// The duration of the save in seconds; `None` if it was not recorded.
    pub save_seconds: Option<f64>,
    /// The metrics of the step that are numbers.
    pub metrics: BTreeMap<String, f64>,
    /// Whether the step is damaged; `None` if this was not checked.
    pub is_damaged: Option<bool>,
    /// The damage of the step, or the reason why nothing is known; empty otherwise.
    pub note: String,
}

/// The L2 norm of a part of the pytree, step by step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NormSeries {
    /// The printed key path of the part.
    pub name: String,
    /// The norm in each step; `None` if a step has no such part or was not read.
    pub l2_norm: Vec<Option<f64>>,
}
