//! The options of a manager, and the options of each save.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::hooks::Hooks;
use super::names::StepNames;
use super::preemption::Preemption;
use super::tidy::TidyOptions;
use super::when::SaveWhen;
use crate::engine::SaveOptions;

/// The options of a manager: when and how to save, and which steps to keep.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// The form of the names of steps; if `None`, the form of the existing names.
    pub names: Option<StepNames>,
    /// When to save.
    pub save_when: SaveWhen,
    /// Which steps to keep, and the other work after a save.
    pub tidy: TidyOptions,
    /// The options of each save, and the job. Every process of [`SaveOptions::job`] must make a
    /// manager and make the same calls. The manager sets overwriting, base and metadata itself.
    pub save: SaveOptions,
    /// Hard-link data files that have not changed since the previous step.
    pub reuse: bool,
    /// Only read. The manager then takes no lock.
    pub read_only: bool,
    /// If this flag is set in any process, the next step is always saved, and
    /// [`save`](super::Manager::save) returns only after its commit.
    pub preemption: Option<Preemption>,
    /// The time that the save after a preemption may take before it returns an error.
    pub grace: Duration,
    /// A local file. Each save, restore and deletion appends a line of JSON to it.
    pub log: Option<PathBuf>,
    /// A metric that every save must have, even if no policy uses it.
    pub metric: Option<String>,
    /// Functions of the program.
    pub hooks: Hooks,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            names: None,
            save_when: SaveWhen::Always,
            tidy: TidyOptions::default(),
            save: SaveOptions::default(),
            reuse: false,
            read_only: false,
            preemption: None,
            grace: Duration::from_secs(30),
            log: None,
            metric: None,
            hooks: Hooks::default(),
        }
    }
}

/// The options of one save.
#[derive(Debug, Clone, Default)]
pub struct SaveStep {
    /// The metrics of the step, with which policies rank steps.
    pub metrics: Map<String, Value>,
    /// The user's own metadata.
    pub metadata: Map<String, Value>,
    /// Whether the program has been asked to end.
    pub is_preempted: bool,
    /// Save the step even if no policy asks for it.
    pub force: bool,
    /// Replace the step if it exists.
    pub overwrite: bool,
}
