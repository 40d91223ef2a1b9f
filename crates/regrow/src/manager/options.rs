//! What the program tells a manager: once, and for each save.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::hooks::Hooks;
use super::names::StepNames;
use super::preemption::Preemption;
use super::tidy::TidyOptions;
use super::when::SaveWhen;
use crate::engine::SaveOptions;

/// How a manager saves, and which steps it keeps.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// The names of steps; the form of the existing names if `None`.
    pub names: Option<StepNames>,
    /// When to save.
    pub save_when: SaveWhen,
    /// Which steps to keep, and the other work after a save.
    pub tidy: TidyOptions,
    /// How to save, and in which job: every process of [`SaveOptions::job`] makes the manager and
    /// makes the same calls. Overwriting, base and metadata are options of each save.
    pub save: SaveOptions,
    /// Hard-link data files that did not change since the step before.
    pub reuse: bool,
    /// Only read: no lock is taken.
    pub read_only: bool,
    /// When it is set, in any process, the next step is saved in any case, and
    /// [`save`](super::Manager::save) returns when it is committed.
    pub preemption: Option<Preemption>,
    /// How long this save may take before it returns an error.
    pub grace: Duration,
    /// A local file to which each save, restore and deletion adds a line of JSON.
    pub log: Option<PathBuf>,
    /// A metric that each save has to give, also where no policy ranks steps by it.
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
    /// Metrics, for choosing the best steps.
    pub metrics: Map<String, Value>,
    /// The user's own metadata.
    pub metadata: Map<String, Value>,
    /// Whether the program was asked to end.
    pub is_preempted: bool,
    /// Save in any case.
    pub force: bool,
    /// Replace the step if it exists.
    pub overwrite: bool,
}
