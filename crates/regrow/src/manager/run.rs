//! The steps of a training loop without their values: when a step is due, the work after a save,
//! and the current history. The caller saves and restores the values.
//!
//! ```text
//! begin: returns earlier errors, asks the policy ── the caller saves ── follow
//!        ── a thread: verify, write `latest.json` (the newest step), delete, record
//! ```
//! In a job every process has a run and makes the same calls. Rank 0 reads the storage, has the
//! lock and deletes. Rank 0 also makes each decision that may differ between processes. All
//! processes learn of an earlier failure at the same point: before the next save begins.
//!
//! The run does not hold the lock of its state while it calls a function of the caller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::event_log::EventLog;
use super::follow::{About, Begun, Followed, Follower, log_deletions};
use super::history::History;
use super::keep::{BestMode, best, check_metric};
use super::lease::Lease;
use super::lock::RunLock;
use super::options::{ManagerOptions, SaveStep};
use super::preemption::Preemption;
use super::steps::{Step, StepList, Steps};
use super::together::Together;
use super::when::Moment;
use super::{DeleteOptions, Deleted, StepRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::container::STEP_MAX;
use crate::formats::located;
use crate::location::ToLocation;

/// Manages the steps of a folder. No other process may write to the folder.
#[derive(Debug)]
pub struct TrainingRun {
    pub(super) steps: Steps,
    pub(super) options: ManagerOptions,
    pub(super) together: Together,
    pub(super) log: EventLog,
    pub(super) follower: Follower,
    state: Mutex<State>,
    lock: Option<Arc<RunLock>>,
    /// The lease of the step that [`wait_for_new`](Self::wait_for_new) returned last.
    pub(super) lease: Mutex<Option<Lease>>,
    /// Allows one save or deletion at a time.
    writing: Mutex<()>,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct State {
    history: History,
    last_save: Option<Instant>,
    /// Whether a step was saved after the program was asked to end.
    has_saved_preempted: bool,
}

/// The decision about a step, which all processes share.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Asked {
    wants: bool,
    is_preempted: bool,
}

/// A step that must be saved now.
#[derive(Debug)]
pub struct DueStep {
    /// The number of the step.
    pub number: u64,
    /// The record to store in the step's metadata, as [`STEP_RECORD`](super::STEP_RECORD).
    pub record: StepRecord,
    /// Whether the program has been asked to end.
    pub is_preempted: bool,
    was_taken: bool,
    metrics: serde_json::Map<String, serde_json::Value>,
    history: History,
}

impl TrainingRun {
    /// Manages the steps in a folder. Makes the folder if it does not exist, unless `options` allow
    /// only reads.
    ///
    /// # Errors
    /// `AlreadyExists` if the folder has another writer; `InvalidArgument` for a path that is not a
    /// folder of steps, and for options that contradict each other; errors of the storage.
    #[doc(hidden)]
    pub fn new(root: impl ToLocation, options: ManagerOptions) -> Result<Self> {
        options.save_when.check()?;
        options.tidy.keep.check()?;
        options.tidy.delete.check()?;
        let root = located(root)?;
        let together = Together::new(options.save.job.as_ref(), &root);
        let steps = Steps::new(&root, options.names.clone());
        // Check the name of the folder for deleted steps now, before there are steps to delete.
        let steps = steps.and_then(|steps| steps.delete(&[], &options.tidy.delete).map(|_| steps));
        let steps = together.agree("manager-open", steps)?;
        let mut lock = None;
        let (names, history) = together.of_rank_0("manager-begin", || {
            if !options.read_only {
                lock = Some(Arc::new(RunLock::new(steps.lock()?)));
                steps.refresh()?;
            }
            Ok((steps.names().clone(), History::of(&steps.list()?.steps)?))
        })?;
        // All processes use the names of rank 0.
        let steps = Steps::new(&root, Some(names))?;
        let log = EventLog::new(options.log.clone(), options.hooks.clone());
        let (tidy, hooks) = (options.tidy.clone(), options.hooks.clone());
        let follower = Follower::new(steps.clone(), tidy, hooks, lock.clone(), log.clone());
        Ok(Self {
            steps,
            options,
            together,
            log,
            follower,
            state: Mutex::new(State { history, last_save: None, has_saved_preempted: false }),
            lock,
            lease: Mutex::new(None),
            writing: Mutex::new(()),
            is_closed: AtomicBool::new(false),
        })
    }

    /// The folder and its steps.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Whether [`begin`](Self::begin) would begin this step. Does no I/O. If processes of a job
    /// might decide differently (a clock, a function, a signal), rank 0 decides, and all processes
    /// must call this.
    ///
    /// # Errors
    /// In a job, an error if another process has ended; errors of a hook.
    pub fn should_save(&self, step: u64, is_preempted: bool) -> Result<bool> {
        let may_write = !self.options.read_only && !self.is_closed.load(Ordering::Acquire);
        Ok(may_write && self.ask(step, is_preempted)?.wants)
    }

    fn ask(&self, step: u64, is_preempted: bool) -> Result<Asked> {
        if !self.together.has_others() {
            self.forget_failed();
        }
        let flag = self.options.preemption.as_ref();
        let own = is_preempted || flag.is_some_and(Preemption::is_set);
        let decide = |is_preempted| -> Result<Asked> {
            Ok(Asked { wants: self.wants(step, is_preempted)?, is_preempted })
        };
        let all_decide_the_same = self.options.save_when.is_regular()
            && self.options.hooks.also_saves.is_none()
            && !flag.is_some_and(Preemption::is_asked);
        if !self.together.has_others() || all_decide_the_same {
            return decide(own);
        }
        let any = |all: Vec<bool>| all.into_iter().any(|own| own);
        let asked: Asked = self.together.decide("manager-ask", own, |all| decide(any(all)))?;
        if let Some(flag) = flag.filter(|_| asked.is_preempted) {
            flag.set();
        }
        Ok(asked)
    }

    fn wants(&self, step: u64, is_preempted: bool) -> Result<bool> {
        let (moment, is_last) = {
            let state = self.state();
            if state.history.knows(step) {
                return Ok(false);
            }
            let moment = Moment {
                step,
                latest: state.history.latest(),
                seconds_since_save: state.last_save.map(|last| last.elapsed().as_secs_f64()),
                is_preempted,
                is_saving: self.is_busy(),
            };
            (moment, self.options.preemption.is_some() && is_preempted && !state.has_saved_preempted)
        };
        if is_last || self.options.save_when.wants(&moment) {
            return Ok(true);
        }
        self.options.hooks.also_saves.as_ref().map_or(Ok(false), |also_saves| also_saves(step))
    }

    /// Begins a step if the policy says so; `None` if the step is not due. Does not wait in a
    /// single process. `own` is an error of this process, which all processes then return.
    ///
    /// # Errors
    /// The error of an earlier save, or of the work after it; this step is then not saved.
    /// `AlreadyExists` with [`force`](SaveStep::force) for a step that exists, and if another
    /// writer has taken over the folder. `InvalidArgument` for a read-only run, and for a step
    /// without the metric by which steps are kept.
    #[doc(hidden)]
    pub fn begin(&self, step: u64, about: &SaveStep, own: Result<()>) -> Result<Option<DueStep>> {
        self.check_may_write()?;
        if !self.together.has_others() {
            self.failure()?;
        }
        let Asked { wants, is_preempted } = self.ask(step, about.is_preempted)?;
        let may_replace = about.overwrite && self.state().history.knows(step);
        if !(about.force || may_replace || wants) {
            return Ok(None);
        }
        check_number(step)?;
        self.settle(own, || match is_preempted {
            // The last save before the end is needed, even without the metric that ranks steps.
            true => Ok(()),
            false => self.check_metrics(about),
        })?;
        let mut history = self.state().history.clone();
        if history.knows(step) && !about.overwrite {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("step {step} already exists"))
                .in_file(self.steps.root())
                .help("pass `overwrite` to replace it"));
        }
        // Change a copy: if the save fails before it begins, the history stays unchanged.
        let was_taken = history.is_taken(step);
        let record = history.begin(step);
        let metrics = about.metrics.clone();
        Ok(Some(DueStep { number: step, record, is_preempted, was_taken, metrics, history }))
    }

    fn check_metrics(&self, about: &SaveStep) -> Result<()> {
        if let Some(metric) = &self.options.metric {
            check_metric(metric, &about.metrics)?;
        }
        self.options.tidy.keep.check_metrics(&about.metrics)
    }

    /// Whether the save of the step replaces the files at its path.
    #[doc(hidden)]
    pub fn may_replace(&self, due: &DueStep) -> bool {
        // An empty folder is not a step, but it occupies the path.
        due.was_taken || self.steps.is_empty_folder(due.number)
    }

    /// The previous step, whose unchanged files the save links; `None` without `reuse`.
    ///
    /// # Errors
    /// Errors of the storage.
    #[doc(hidden)]
    pub fn base(&self, due: &DueStep) -> Result<Option<Step>> {
        let earlier = self.state().history.latest_but(due.number).filter(|_| self.options.reuse);
        Ok(earlier.map(|earlier| self.steps.find(earlier)).transpose()?.flatten())
    }

    /// Takes a started save, and does the work after it.
    #[doc(hidden)]
    pub fn follow(&self, due: DueStep, begun: Begun) -> Followed {
        let DueStep { number, is_preempted, metrics, history, .. } = due;
        let mut state = self.state();
        state.history = history;
        state.last_save = Some(Instant::now());
        state.has_saved_preempted |= is_preempted;
        drop(state);
        self.follower.is_good(number);
        self.follower.add(About { step: number, metrics, is_preempted }, begun)
    }

    /// After the program was asked to end: waits for the save of a step, for at most
    /// [`grace`](ManagerOptions::grace).
    ///
    /// # Errors
    /// `TimedOut` if the save takes longer; the save continues. The error of the save.
    #[doc(hidden)]
    pub fn wait_for_grace(&self, step: u64) -> Result<()> {
        let grace = self.options.grace;
        let left = self.options.preemption.as_ref().map_or(grace, |flag| flag.left_of(grace));
        if self.follower.wait_for(left)? {
            return self.failure();
        }
        let (grace, path) = (grace.as_secs_f64(), self.steps.place(step).describe());
        self.log.add("late", step, &path, true, json!({ "grace_seconds": grace }))?;
        Err(Error::new(ErrorKind::TimedOut, format!("step {step} was not saved within the grace period"))
            .in_file(path)
            .expected(format_args!("at most {grace} s after the program was asked to end"), "more")
            .help("the save still runs: wait for it if you have time"))
    }

    /// Waits for all saves and the work after them. Returns false if they have not ended within
    /// `timeout`.
    ///
    /// # Errors
    /// The error of [`Hooks::while_waiting`](super::Hooks::while_waiting).
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        self.follower.wait_for(timeout)
    }

    /// Returns the first error of a save, or of the work after it, that no call has returned yet.
    ///
    /// # Errors
    /// The error of the save.
    #[doc(hidden)]
    pub fn failure(&self) -> Result<()> {
        if !self.together.has_others() {
            self.forget_failed();
        }
        self.follower.failure()
    }

    /// The steps whose saves have not ended, in the order of the saves.
    pub fn pending(&self) -> Vec<u64> {
        self.follower.pending()
    }

    /// Whether a save or the work after it is running.
    #[doc(hidden)]
    pub fn is_busy(&self) -> bool {
        !self.pending().is_empty()
    }

    /// Deletes a step, or moves it aside if the options say so, after all saves have ended.
    ///
    /// # Errors
    /// `NotFound` if the step does not exist. Without `force`, `InvalidArgument` if it is the last
    /// step or has a reader. `InvalidArgument` if its folder has files that are not part of a
    /// checkpoint. After an error the step is unchanged.
    pub fn delete(&self, step: u64, force: bool) -> Result<()> {
        let _writing = self.writing();
        self.before_deletions()?;
        self.together.of_rank_0("manager-delete", || {
            self.steps.step(step)?;
            if !force && self.steps.numbers()? == [step] {
                return Err(Error::invalid(format!("step {step} is the last one"))
                    .in_file(self.steps.root())
                    .help("pass `force` to delete it"));
            }
            self.delete_now(step, force)
        })?;
        self.state().history.forget(step);
        Ok(())
    }

    /// Deletes the steps of abandoned histories. Returns their numbers.
    ///
    /// # Errors
    /// The first error of a deletion. Older abandoned steps are then already deleted.
    pub fn delete_abandoned(&self) -> Result<Vec<u64>> {
        let _writing = self.writing();
        self.before_deletions()?;
        let deleted = self.together.of_rank_0("manager-delete-abandoned", || {
            let abandoned = self.own_abandoned()?;
            abandoned.iter().try_for_each(|step| self.delete_now(*step, false))?;
            Ok(abandoned)
        })?;
        deleted.iter().for_each(|step| self.state().history.forget(*step));
        Ok(deleted)
    }

    /// Deletes all steps that are newer than this one, the newest first. A new history then begins.
    ///
    /// # Errors
    /// `NotFound` if the step does not exist; the error of a deletion. Steps newer than the failed
    /// one are then already deleted.
    pub fn roll_back(&self, step: u64) -> Result<()> {
        let _writing = self.writing();
        self.before_deletions()?;
        self.together.of_rank_0("manager-roll-back", || {
            self.steps.step(step)?;
            let newer = self.steps.numbers()?.into_iter().rev().filter(|number| *number > step);
            newer.into_iter().try_for_each(|number| self.delete_now(number, false))
        })?;
        self.state().history.roll_back(step);
        Ok(())
    }

    fn before_deletions(&self) -> Result<()> {
        self.check_may_write()?;
        self.follower.wait()?;
        self.settle(Ok(()), || Ok(()))
    }

    fn delete_now(&self, step: u64, also_leased: bool) -> Result<()> {
        let options = DeleteOptions { also_leased, ..self.options.tidy.delete.clone() };
        let deletions = self.steps.delete(&[step], &options)?;
        log_deletions(&self.log, &self.steps, &deletions)?;
        for deletion in deletions {
            if deletion.outcome? == Deleted::Leased {
                return Err(Error::invalid(format!("step {step} is being read"))
                    .in_file(self.steps.root())
                    .help("wait until it is closed, or pass `force`"));
            }
        }
        self.steps.refresh()
    }

    /// The committed steps of any history.
    ///
    /// # Errors
    /// Errors of the storage, in every process of a job.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        self.together.of_rank_0("manager-steps", || self.steps.numbers())
    }

    /// The newest committed step of the current history. After a restore of an older step, this is
    /// the history of that step.
    ///
    /// # Errors
    /// The errors of [`numbers`](Self::numbers).
    pub fn latest(&self) -> Result<Option<u64>> {
        self.together.of_rank_0("manager-latest", || match self.options.read_only {
            // A read-only manager uses the pointer, which avoids a list of the steps.
            true => Ok(self.steps.latest()?.map(|step| step.number)),
            false => Ok(self.current_of(&self.steps.list()?).pop()),
        })
    }

    /// The committed steps of abandoned histories.
    ///
    /// # Errors
    /// The errors of [`numbers`](Self::numbers).
    pub fn abandoned(&self) -> Result<Vec<u64>> {
        self.together.of_rank_0("manager-abandoned", || self.own_abandoned())
    }

    fn own_abandoned(&self) -> Result<Vec<u64>> {
        Ok(self.steps.list()?.abandoned().map(|step| step.number).collect())
    }

    /// The best committed step of the current history by a metric.
    ///
    /// # Errors
    /// The errors of [`numbers`](Self::numbers).
    pub fn best(&self, metric: &str, mode: BestMode) -> Result<Option<u64>> {
        self.together.of_rank_0("manager-best", || {
            let list = self.steps.list()?;
            let current = self.current_of(&list);
            let mut facts = list.facts(&[], &Default::default(), true);
            facts.iter_mut().for_each(|step| step.is_other = !current.contains(&step.number));
            Ok(best(&facts, metric, mode).map(|step| step.number))
        })
    }

    /// The committed steps of the current history. A read-only manager finds the history in the
    /// records of the steps.
    pub(super) fn current_of(&self, list: &StepList) -> Vec<u64> {
        match self.options.read_only {
            true => list.current().map(|step| step.number).collect(),
            false => self.state().history.of_list(list),
        }
    }

    /// From now on newer steps belong to an abandoned history.
    pub(super) fn turn_to(&self, step: u64) {
        self.forget_failed();
        self.state().history.turn_to(step);
        self.follower.is_good(step);
    }

    /// Waits for all saves, and releases the folder. Later saves are errors.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.follower.end();
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.lock.iter().for_each(|lock| lock.release());
    }

    fn check_may_write(&self) -> Result<()> {
        let root = self.steps.root();
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::invalid(format!("the manager of {root} is closed: make another one")));
        }
        if self.options.read_only {
            let why = "it was made with `read_only`";
            return Err(Error::invalid(format!("the manager of {root} cannot write: {why}")));
        }
        if self.follower.is_forked() {
            let whose = "belongs to the parent process";
            return Err(Error::invalid(format!("the manager of {root} {whose}"))
                .help("save in the process that made it"));
        }
        Ok(())
    }

    /// Before a write: returns an error if an earlier save has failed, or if the folder has another
    /// writer. In a job all processes return the error.
    fn settle(&self, own: Result<()>, check: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.together.has_others() {
            self.follower.wait()?;
        }
        self.forget_failed();
        let own = own.and_then(|()| self.follower.failure());
        let checked = own.and_then(|()| self.lock.as_ref().map_or(Ok(()), |lock| lock.check()));
        let checked = checked.and_then(|()| if self.together.is_rank_0() { check() } else { Ok(()) });
        self.together.agree("manager-settle", checked)
    }

    fn forget_failed(&self) {
        let failed = self.follower.failed();
        let mut state = self.state();
        failed.into_iter().for_each(|step| state.history.forget(step));
    }

    pub(super) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TrainingRun {
    fn drop(&mut self) {
        self.close();
    }
}

fn check_number(step: u64) -> Result<()> {
    match step <= STEP_MAX {
        true => Ok(()),
        false => {
            Err(Error::invalid("the step number is not valid")
                .expected(format_args!("at most {STEP_MAX}"), step))
        }
    }
}
