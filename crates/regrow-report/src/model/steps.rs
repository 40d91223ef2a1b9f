//! A folder of steps over time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The steps of a folder, by number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSeries {
    /// The steps.
    pub steps: Vec<StepPoint>,
    /// The norms of parts of the pytree over these steps.
    pub norms: Vec<NormSeries>,
}

/// One step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// Its number.
    pub step: u64,
    /// When it was written, in seconds since 1970.
    pub written_seconds: Option<f64>,
    /// Bytes of all its files.
    pub stored_bytes: Option<u64>,
    /// What the save took, in seconds, where that was recorded.
    pub save_seconds: Option<f64>,
    /// The metrics that are numbers.
    pub metrics: BTreeMap<String, f64>,
    /// Whether it is damaged; `None` if that was not looked at.
    pub is_damaged: Option<bool>,
    /// What is wrong with it, or why nothing is known.
    pub note: String,
}

/// The L2 norm of what lies below one key, step by step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NormSeries {
    /// The key path as people read it.
    pub name: String,
    /// A norm for each of the steps; `None` where a step has no such part, or it was not read.
    pub l2_norm: Vec<Option<f64>>,
}
