//! A manager for a training loop: asks the policy, saves in the background, and does what follows.
//!
//! ```text
//! save ── the policy ── snapshot ── [background: write, commit] ── [a thread of its own: verify, point, delete, record]
//! ```
//! The next save waits for the write before, and not for the work after it. The next call returns
//! an error of either.
//!
//! In a job every process has a manager and calls the same. Rank 0 looks at the storage, has the
//! lock, decides and deletes; of an earlier failure all hear at the same point, before the next
//! save begins.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::STEP_RECORD;
use super::event_log::EventLog;
use super::follow::{Begun, Follower, log_deletions};
use super::history::History;
use super::lock::WriterLock;
use super::names::StepNames;
use super::preemption::Preemption;
use super::steps::{StepList, Steps};
use super::tidy::{Tidied, TidyOptions};
use super::together::Together;
use super::when::{Moment, SaveWhen};
use crate::engine::{AsyncOptions, AsyncSaver, ItemsOptions, ItemsSave, SaveOptions, WhenBusy};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::orbax::steps::STEP_MAX;
use crate::location::{Location, ToLocation};
use crate::tree::{Leaf, Pytree, Tree};

/// The item that a state is saved as: Orbax' manager has the same.
pub const DEFAULT_ITEM: &str = "default";

/// How long to wait for an earlier save before looking again.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// How a manager saves and what it keeps.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// How steps are named; as those in the folder, if `None`.
    pub names: Option<StepNames>,
    /// When to save.
    pub save_when: SaveWhen,
    /// What to keep, and what else follows a save.
    pub tidy: TidyOptions,
    /// How to save, and with which processes: every process of [`SaveOptions::job`] makes the
    /// manager and calls the same. Overwriting, the base and metadata are for each save to say.
    pub save: SaveOptions,
    /// Hard-link data files that did not change since the step before.
    pub reuse: bool,
    /// Only read: no lock is taken.
    pub read_only: bool,
    /// When it is set, in any process, the next step is saved in any case, and
    /// [`save`](Manager::save) returns when it is committed.
    pub preemption: Option<Preemption>,
    /// How long that save may take before it is an error.
    pub grace: Duration,
    /// A local file to which each save, restore and deletion adds a line of JSON.
    pub log: Option<PathBuf>,
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
        }
    }
}

/// What is said of one save.
#[derive(Debug, Clone, Default)]
pub struct SaveStep {
    /// What the best step is chosen by.
    pub metrics: Map<String, Value>,
    /// The user's own metadata.
    pub metadata: Map<String, Value>,
    /// Whether the program was asked to end.
    pub is_preempted: bool,
    /// Save in any case.
    pub force: bool,
    /// Save it also if it is there already.
    pub overwrite: bool,
}

/// Saves and restores the steps in one folder, which it alone writes to.
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
///     manager.save(step, &weights, &SaveStep::default())?; // also says what went wrong with the one before
/// }
/// manager.wait()?;
/// assert_eq!(manager.steps().numbers()?, [20, 30]);
/// let restored = manager.restore::<Vec<f32>>(&regrow::engine::LoadOptions::default())?;
/// assert_eq!((restored.step.number, restored.value[0]), (30, 30.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Manager {
    pub(super) steps: Steps,
    pub(super) options: ManagerOptions,
    pub(super) together: Together,
    pub(super) log: EventLog,
    state: Mutex<State>,
    // Before the saver: it has a failure to tell, and each is told once.
    pub(super) follower: Follower,
    saver: AsyncSaver,
    lock: Option<Arc<WriterLock>>,
}

#[derive(Debug)]
struct State {
    history: History,
    last_save: Option<Instant>,
    /// Whether a step was saved since the program was asked to end.
    has_saved_preempted: bool,
}

/// What is to be done with a step, as all processes hear it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Asked {
    wants: bool,
    is_preempted: bool,
}

impl Manager {
    /// Of the steps in a folder, which is made when the first is saved.
    ///
    /// # Errors
    /// `AlreadyExists` if another one writes to the folder; `InvalidArgument` for a path that is
    /// none of steps, and for options that make no sense; what the storage says.
    pub fn new(root: impl ToLocation, options: ManagerOptions) -> Result<Self> {
        options.save_when.check()?;
        options.tidy.keep.check()?;
        options.tidy.delete.check()?;
        let root = root.to_location()?;
        let together = Together::new(options.save.job.as_ref(), &root);
        let steps = together.agree("manager-open", Steps::new(&root, options.names.clone()))?;
        let mut lock = None;
        let (names, history) = together.of_rank_0("manager-begin", || {
            if !options.read_only {
                lock = Some(Arc::new(steps.lock()?));
                steps.refresh()?;
            }
            Ok((steps.names().clone(), History::of(&steps.list()?.steps)?))
        })?;
        // All name steps as rank 0 does.
        let steps = Steps::new(&root, Some(names))?;
        let log = EventLog::new(options.log.clone());
        let follower = Follower::new(steps.clone(), options.tidy.clone(), lock.clone(), log.clone());
        Ok(Self {
            steps,
            options,
            together,
            log,
            state: Mutex::new(State { history, last_save: None, has_saved_preempted: false }),
            follower,
            saver: AsyncSaver::new(),
            lock,
        })
    }

    /// The folder, and what is in it.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Whether [`save`](Self::save) would save this step. Looks at nothing but memory; in a job
    /// whose processes might come to different answers (a clock, a function, a signal) rank 0
    /// decides, and all have to ask.
    ///
    /// # Errors
    /// In a job, that another process has gone.
    pub fn should_save(&self, step: u64, is_preempted: bool) -> Result<bool> {
        Ok(self.ask(&self.state(), step, is_preempted)?.wants)
    }

    fn ask(&self, state: &State, step: u64, is_preempted: bool) -> Result<Asked> {
        let flag = self.options.preemption.as_ref();
        let own = is_preempted || flag.is_some_and(Preemption::is_set);
        let decide = |is_preempted| Asked { wants: self.wants(state, step, is_preempted), is_preempted };
        let all_decide_the_same = self.options.save_when.is_regular() && flag.is_none();
        if !self.together.has_others() || all_decide_the_same {
            return Ok(decide(own));
        }
        let asked: Asked =
            self.together.decide("manager-ask", own, |all| Ok(decide(all.into_iter().any(|own| own))))?;
        if let Some(flag) = flag.filter(|_| asked.is_preempted) {
            flag.set();
        }
        Ok(asked)
    }

    fn wants(&self, state: &State, step: u64, is_preempted: bool) -> bool {
        let moment = Moment {
            step,
            latest: state.history.latest(),
            seconds_since_save: state.last_save.map(|last| last.elapsed().as_secs_f64()),
            is_preempted,
            is_saving: self.saver.is_busy(),
        };
        let is_last = self.options.preemption.is_some() && is_preempted && !state.has_saved_preempted;
        !state.history.knows(step) && (is_last || self.options.save_when.wants(&moment))
    }

    /// Saves a step in the background if the policy says so; whether it does. Waits for an earlier
    /// save.
    ///
    /// # Errors
    /// Why an earlier save, or what followed it, has failed: then nothing is saved now.
    /// `AlreadyExists` with [`force`](SaveStep::force) for a step that is there, and if another
    /// writer has taken the folder over. `TimedOut` for the save of a program that is asked to end,
    /// if it takes longer than [`grace`](ManagerOptions::grace): it goes on. `InvalidArgument` for
    /// a manager that only reads, and for a step without the metric by which steps are kept. What
    /// [`save`](crate::save()) refuses before it begins.
    pub fn save<P: Pytree>(&self, step: u64, value: &P, about: &SaveStep) -> Result<bool> {
        self.save_items(step, about, |_| Ok(vec![(DEFAULT_ITEM.to_owned(), value.to_tree()?.into_owned())]))
    }

    /// Saves several items as one step, if the policy says so; whether it does. `fill` is called
    /// then: it adds JSON and files, which are written before it returns, and gives the trees,
    /// which are the background's. What was saved so is restored by
    /// [`restore_items`](Self::restore_items), one item alone also by [`restore`](Self::restore)
    /// with [`OpenOptions::item`](crate::OpenOptions::item).
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
    /// As [`save`](Self::save); what `fill` says. Nothing is left of the step then.
    pub fn save_items(
        &self,
        step: u64,
        about: &SaveStep,
        fill: impl FnOnce(&ItemsSave) -> Result<Vec<(String, Tree<Leaf>)>>,
    ) -> Result<bool> {
        self.check_may_write()?;
        if !self.together.has_others() {
            self.raise()?;
        }
        let mut state = self.state();
        let asked = self.ask(&state, step, about.is_preempted)?;
        let may_replace = about.overwrite && state.history.knows(step);
        if !(about.force || may_replace || asked.wants) {
            return Ok(false);
        }
        check_number(step)?;
        self.check_metadata(about)?;
        self.settle(&mut state, || match asked.is_preempted {
            // The last save of a program that is to end is worth more than its rank.
            true => Ok(()),
            false => self.options.tidy.keep.check_metrics(&about.metrics),
        })?;
        let is_there = state.history.knows(step);
        if is_there && !about.overwrite {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("step {step} is there already"))
                .in_file(self.steps.root())
                .help("pass `overwrite` to replace it, or save another step"));
        }
        while !self.saver.wait_for_room(WhenBusy::Wait, LOOK_EVERY)? {}
        let base = self.base(&state, step)?;
        // What fails before the save has begun changes nothing.
        let mut history = state.history.clone();
        let overwrite = history.is_taken(step);
        let mut custom_metadata = about.metadata.clone();
        custom_metadata.insert(STEP_RECORD.to_owned(), json!(history.begin(step)));
        let items = ItemsOptions {
            // An empty folder is no step.
            overwrite: overwrite || self.steps.is_empty_folder(step),
            not_durable: self.options.save.not_durable,
            custom_metadata,
            monitor: self.options.save.monitor.clone(),
            job: self.options.save.job.clone(),
            base,
            ..ItemsOptions::default()
        };
        let items = ItemsSave::begin(self.steps.place(step), items)?;
        if !about.metrics.is_empty() {
            items.metrics(&Value::Object(about.metrics.clone()))?;
        }
        let trees =
            fill(&items)?.into_iter().map(|(name, tree)| (name, tree, self.options.save.clone())).collect();
        let handle = self.saver.save_items(items, trees, &AsyncOptions::default())?;
        state.history = history;
        self.follower.is_good(step);
        state.last_save = Some(Instant::now());
        state.has_saved_preempted |= asked.is_preempted;
        drop(state);
        let (metrics, is_preempted) = (about.metrics.clone(), asked.is_preempted);
        self.follower.add(Begun { step, handle, metrics, is_preempted });
        if let Some(flag) = self.options.preemption.as_ref().filter(|_| is_preempted) {
            self.wait_for_grace(step, flag)?;
        }
        Ok(true)
    }

    /// Waits until all saves are done, and what follows them.
    ///
    /// # Errors
    /// Why one of them has failed; call again for more.
    pub fn wait(&self) -> Result<()> {
        self.follower.wait();
        self.raise()
    }

    /// What was done after saves since the last call. In a job, on rank 0.
    pub fn tidied(&self) -> Vec<(u64, Tidied)> {
        self.follower.tidied()
    }

    /// Deletes a step, or moves it aside as the options say, when all saves are done.
    ///
    /// # Errors
    /// `NotFound` if it does not exist. `InvalidArgument` if it is the last one or has a reader,
    /// without `force`, or if it holds files that are not part of a checkpoint: then it is
    /// unchanged.
    pub fn delete(&self, step: u64, force: bool) -> Result<()> {
        self.check_may_write()?;
        let mut state = self.state();
        self.follower.wait();
        self.settle(&mut state, || Ok(()))?;
        self.together.of_rank_0("manager-delete", || {
            self.steps.step(step)?;
            if !force && self.steps.numbers()? == [step] {
                return Err(Error::invalid(format!("step {step} is the last one"))
                    .in_file(self.steps.root())
                    .help("pass `force` to delete it"));
            }
            self.delete_now(step, force)
        })?;
        state.history.forget(step);
        Ok(())
    }

    /// Deletes the steps of abandoned histories; their numbers.
    ///
    /// # Errors
    /// Why one of them could not be deleted: those that are older are gone.
    pub fn delete_abandoned(&self) -> Result<Vec<u64>> {
        self.check_may_write()?;
        let mut state = self.state();
        self.follower.wait();
        self.settle(&mut state, || Ok(()))?;
        let deleted = self.together.of_rank_0("manager-delete-abandoned", || {
            let abandoned: Vec<u64> = self.steps.list()?.abandoned().map(|step| step.number).collect();
            abandoned.iter().try_for_each(|step| self.delete_now(*step, false))?;
            Ok(abandoned)
        })?;
        deleted.iter().for_each(|step| state.history.forget(*step));
        Ok(deleted)
    }

    /// Deletes all steps that are newer than this one, the newest first: another history follows.
    ///
    /// # Errors
    /// `NotFound` if the step is not there; why a newer one could not be deleted: those that are
    /// newer than that are gone.
    pub fn roll_back(&self, step: u64) -> Result<()> {
        self.check_may_write()?;
        let mut state = self.state();
        self.follower.wait();
        self.settle(&mut state, || Ok(()))?;
        self.together.of_rank_0("manager-roll-back", || {
            self.steps.step(step)?;
            let newer = self.steps.numbers()?.into_iter().rev().filter(|number| *number > step);
            newer.into_iter().try_for_each(|number| self.delete_now(number, false))
        })?;
        state.history.roll_back(step);
        Ok(())
    }

    fn delete_now(&self, step: u64, also_leased: bool) -> Result<()> {
        let options = super::DeleteOptions { also_leased, ..self.options.tidy.delete.clone() };
        let deletions = self.steps.delete(&[step], &options)?;
        log_deletions(&self.log, &self.steps, &deletions)?;
        for deletion in deletions {
            if deletion.outcome? == super::Deleted::Leased {
                return Err(Error::invalid(format!("step {step} is being read"))
                    .in_file(self.steps.root())
                    .help("wait for its reader, or pass `force`"));
            }
        }
        self.steps.refresh()
    }

    /// From now on newer steps are of another history.
    pub(super) fn turn_to(&self, step: u64) {
        let mut state = self.state();
        self.forget_failed(&mut state);
        state.history.turn_to(step);
        self.follower.is_good(step);
    }

    /// The newest committed step of the current history: after the restore of an older step, of
    /// that one's.
    ///
    /// # Errors
    /// What the storage says, in every process of a job.
    pub fn latest(&self) -> Result<Option<u64>> {
        self.together.of_rank_0("manager-latest", || Ok(self.current_of(&self.steps.list()?).pop()))
    }

    /// The committed steps of the current history. One that only reads goes by the records of the
    /// steps.
    pub(super) fn current_of(&self, list: &StepList) -> Vec<u64> {
        match self.options.read_only {
            true => list.current().map(|step| step.number).collect(),
            false => self.state().history.of_list(list),
        }
    }

    /// The record of a step has its place among the user's own metadata.
    fn check_metadata(&self, about: &SaveStep) -> Result<()> {
        match about.metadata.contains_key(STEP_RECORD) {
            true => {
                Err(Error::invalid(format!("the manager itself writes {STEP_RECORD:?} into the metadata"))
                    .in_file(self.steps.root())
                    .help("give your own member another name"))
            }
            false => Ok(()),
        }
    }

    fn check_may_write(&self) -> Result<()> {
        match self.options.read_only {
            true => Err(Error::invalid("this manager only reads").in_file(self.steps.root())),
            false => Ok(()),
        }
    }

    /// Before something is written: errs if an earlier save has failed, or another writer has the
    /// folder. In a job all hear of it here, whichever of them has waited for it longer.
    fn settle(&self, state: &mut State, check: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.together.has_others() {
            self.follower.wait();
        }
        self.forget_failed(state);
        let failure = self.follower.failure();
        let checked = failure.and_then(|()| self.lock.as_ref().map_or(Ok(()), |lock| lock.check()));
        let checked = checked.and_then(|()| if self.together.is_rank_0() { check() } else { Ok(()) });
        self.together.agree("manager-settle", checked)
    }

    /// The first error that no call has returned yet.
    fn raise(&self) -> Result<()> {
        if !self.together.has_others() {
            self.forget_failed(&mut self.state());
        }
        self.follower.failure()
    }

    /// A save that has failed is no step.
    fn forget_failed(&self, state: &mut State) {
        self.follower.failed().into_iter().for_each(|step| state.history.forget(step));
    }

    fn wait_for_grace(&self, step: u64, flag: &Preemption) -> Result<()> {
        if self.follower.wait_for(flag.left_of(self.options.grace)) {
            return self.raise();
        }
        let (grace, path) = (self.options.grace.as_secs_f64(), self.steps.place(step).describe());
        self.log.add("late", step, &path, true, json!({ "grace_seconds": grace }))?;
        Err(Error::new(ErrorKind::TimedOut, format!("step {step} was not saved within the grace period"))
            .in_file(path)
            .expected(format_args!("at most {grace} s after the program was asked to end"), "more")
            .help("it is still being saved: wait for it, if the system lets you"))
    }

    /// The step before, whose files are linked where they are the same.
    fn base(&self, state: &State, step: u64) -> Result<Option<Location>> {
        let earlier = state.history.latest_but(step).filter(|_| self.options.reuse);
        let found = earlier.map(|earlier| self.steps.find(earlier)).transpose()?.flatten();
        Ok(found.map(|found| found.location))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Errs for a number that no step can have.
fn check_number(step: u64) -> Result<()> {
    match step <= STEP_MAX {
        true => Ok(()),
        false => {
            Err(Error::invalid("no step has such a number")
                .expected(format_args!("at most {STEP_MAX}"), step))
        }
    }
}
