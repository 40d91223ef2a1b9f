//! The manager for a training loop: it asks the policy, saves in the background, and does the work
//! after a save.
//!
//! ```text
//! save ── policy ── snapshot ── [background: write, commit]
//!      ── [another thread: verify, write the pointer, delete, record]
//! ```
//! The next save waits for the previous write, but not for the work after the write. In a job, the
//! next save waits for both. If the write or the work fails, the next call returns the error.
//! [`TrainingRun`] does all work that does not need the values.

use std::ops::Deref;
use std::time::Duration;

use serde_json::{Value, json};

use super::STEP_RECORD;
use super::follow::Begun;
use super::options::{ManagerOptions, SaveStep};
use super::run::{DueStep, TrainingRun};
use crate::engine::{AsyncOptions, AsyncSaver, ItemsOptions, ItemsSave, SaveHandle, WhenBusy};
use crate::error::{Error, Result};
use crate::location::ToLocation;
use crate::tree::{Leaf, Pytree, Tree};

/// The name of the item for a state that is saved alone, as in Orbax' manager.
pub const DEFAULT_ITEM: &str = "default";

const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// Saves and restores the steps in a folder. No other process may write to the folder.
///
/// ```
/// use regrow::manager::{Keep, Manager, ManagerOptions, SaveStep, SaveWhen, TidyOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("run");
/// let tidy = TidyOptions { keep: Keep::Latest(2), ..TidyOptions::default() };
/// let options = ManagerOptions { save_when: SaveWhen::Every(10), tidy, ..ManagerOptions::default() };
/// let manager = Manager::new(&path, options)?;
/// let mut weights = vec![0_f32; 1000];
/// for step in 0..40 {
///     weights[0] = step as f32;
///     manager.save(step, &weights, &SaveStep::default())?; // also returns an error of the save before
/// }
/// manager.wait()?;
/// assert_eq!(manager.steps().numbers()?, [20, 30]);
/// let restored = manager.restore::<Vec<f32>>(&regrow::engine::LoadOptions::default())?;
/// assert_eq!((restored.step.number, restored.value[0]), (30, 30.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Manager {
    // Drop order: the run reports a failed save first, and each failure is reported once.
    pub(super) run: TrainingRun,
    saver: AsyncSaver,
}

impl Manager {
    /// Manages the steps in a folder. Makes the folder if it does not exist, unless `options` allow
    /// only reads.
    ///
    /// # Errors
    /// The errors of [`TrainingRun::new`].
    pub fn new(root: impl ToLocation, options: ManagerOptions) -> Result<Self> {
        Ok(Self { run: TrainingRun::new(root, options)?, saver: AsyncSaver::new() })
    }

    /// Saves a step in the background if the policy says so. Returns whether it does. Waits for an
    /// earlier save.
    ///
    /// # Errors
    /// The error of an earlier save, or of its follow-up work; then this step is not saved.
    /// `AlreadyExists` with [`force`](SaveStep::force) if the step exists, and if another writer
    /// has taken over the folder. `TimedOut` if the save of a program that is asked to end takes
    /// longer than [`grace`](ManagerOptions::grace); the save continues. `InvalidArgument` for a
    /// read-only manager, and for a step without the metric by which steps are kept. The errors of
    /// [`save`](crate::save()) before it begins.
    pub fn save<P: Pytree>(&self, step: u64, value: &P, about: &SaveStep) -> Result<bool> {
        self.save_items(step, about, |_| Ok(vec![(DEFAULT_ITEM.to_owned(), value.to_tree()?.into_owned())]))
    }

    /// Saves several items as one step if the policy says so. Returns whether it does. Calls
    /// `fill`. `fill` adds JSON and files directly, and returns the trees to save in the
    /// background. To restore such a step, use [`restore_items`](Self::restore_items), or for one
    /// item [`restore`](Self::restore) with [`OpenOptions::item`](crate::OpenOptions::item).
    ///
    /// ```
    /// use regrow::manager::{Manager, ManagerOptions, SaveStep};
    /// use regrow::tree::Pytree;
    /// # let folder = tempfile::tempdir()?;
    /// let manager = Manager::new(folder.path().join("run"), ManagerOptions::default())?;
    /// let (weights, average) = (vec![1_f32; 1000], vec![0_f32; 1000]);
    /// manager.save_items(7, &SaveStep::default(), |items| {
    ///     items.json("config", &serde_json::json!({"width": 1000}))?;
    ///     items.file("iterator", "process_0.json", b"{}")?;
    ///     let trees = [("default", &weights), ("average", &average)];
    ///     trees.into_iter().map(|(name, tree)| Ok((name.to_owned(), tree.to_tree()?.into_owned()))).collect()
    /// })?;
    /// let mut options = regrow::engine::LoadOptions::default();
    /// options.open.item = Some("average".to_owned());
    /// assert_eq!(manager.restore::<Vec<f32>>(&options)?.value, average);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`save`](Self::save); the error of `fill`. After an error no files of the save
    /// remain.
    pub fn save_items(
        &self,
        step: u64,
        about: &SaveStep,
        fill: impl FnOnce(&ItemsSave) -> Result<Vec<(String, Tree<Leaf>)>>,
    ) -> Result<bool> {
        let _writing = self.writing();
        let Some(due) = self.run.begin(step, about, self.check_metadata(about))? else { return Ok(false) };
        while !self.saver.wait_for_room(WhenBusy::Wait, LOOK_EVERY)? {}
        let handle = self.begin(&due, about, fill)?;
        let (path, blocked_seconds) = (handle.path().to_owned(), handle.blocked().seconds);
        let is_preempted = due.is_preempted && self.run.options.preemption.is_some();
        self.run.follow(due, Begun { path, blocked_seconds, end: Box::new(move || handle.wait()) });
        if is_preempted {
            self.run.wait_for_grace(step)?;
        }
        Ok(true)
    }

    fn begin(
        &self,
        due: &DueStep,
        about: &SaveStep,
        fill: impl FnOnce(&ItemsSave) -> Result<Vec<(String, Tree<Leaf>)>>,
    ) -> Result<SaveHandle> {
        let save = &self.run.options.save;
        let mut custom_metadata = about.metadata.clone();
        custom_metadata.insert(STEP_RECORD.to_owned(), json!(due.record));
        let items = ItemsOptions {
            overwrite: self.run.may_replace(due),
            not_durable: save.not_durable,
            keep_cached: save.keep_cached,
            custom_metadata,
            monitor: save.monitor.clone(),
            job: save.job.clone(),
            base: self.run.base(due)?.map(|step| step.location),
            ..ItemsOptions::default()
        };
        let items = ItemsSave::begin(self.steps().place(due.number), items)?;
        if !about.metrics.is_empty() {
            items.metrics(&Value::Object(about.metrics.clone()))?;
        }
        let trees = fill(&items)?.into_iter().map(|(name, tree)| (name, tree, save.clone())).collect();
        self.saver.save_items(items, trees, &AsyncOptions::default())
    }

    /// Waits for all saves and the work after them.
    ///
    /// # Errors
    /// The error of a save, or of the work after it. Call again to get the next error.
    pub fn wait(&self) -> Result<()> {
        self.run.wait_for(Duration::MAX)?;
        self.run.failure()
    }

    /// Returns an error if the user's own metadata uses the key of the step's record.
    fn check_metadata(&self, about: &SaveStep) -> Result<()> {
        match about.metadata.contains_key(STEP_RECORD) {
            true => {
                Err(Error::invalid(format!("the manager itself writes {STEP_RECORD:?} into the metadata"))
                    .in_file(self.steps().root())
                    .help("rename your member"))
            }
            false => Ok(()),
        }
    }
}

/// A manager has all methods of its run, for example to ask, delete and roll back.
impl Deref for Manager {
    type Target = TrainingRun;

    fn deref(&self) -> &TrainingRun {
        &self.run
    }
}
