//! Functions of the program that a [`TrainingRun`](super::TrainingRun) calls.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::steps::Steps;
use crate::engine::SaveReport;
use crate::error::Result;

/// The time between two calls of [`Hooks::while_waiting`].
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

type AlsoSaves = dyn Fn(u64) -> Result<bool> + Send + Sync;
type AlsoKeeps = dyn Fn(&Steps) -> Result<BTreeSet<u64>> + Send + Sync;
type OnRecord = dyn Fn(&Map<String, Value>, bool) -> Result<()> + Send + Sync;
type OnSaved = dyn Fn(u64, &SaveReport) -> Result<()> + Send + Sync;
type WhileWaiting = dyn Fn() -> Result<()> + Send + Sync;

/// Functions of the program, each optional. If a function returns an error, the run returns this
/// error with its source.
///
/// The run does not hold the lock of its state while it calls a function.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Whether to save a step that the policy does not save. In a job rank 0 calls it.
    pub also_saves: Option<Arc<AlsoSaves>>,
    /// The steps to keep in addition to the policy. Called after a step is committed, on the thread
    /// that deletes.
    pub also_keeps: Option<Arc<AlsoKeeps>>,
    /// Receives each record of the event log, and whether it is a warning. The crate `log` then
    /// does not get the records.
    pub on_record: Option<Arc<OnRecord>>,
    /// Receives the number and the report of each committed step, after older steps are deleted.
    pub on_saved: Option<Arc<OnSaved>>,
    /// Called ten times a second while a call waits for saves or for a new step. An error of this
    /// function ends the wait.
    pub while_waiting: Option<Arc<WhileWaiting>>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}
