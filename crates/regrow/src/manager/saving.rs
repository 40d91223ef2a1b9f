//! A manager for a training loop: asks the policy, saves in the background, and does what follows.
//!
//! ```text
//! save ── the policy ── snapshot ── [background: write, commit] ── [a thread of its own: verify, point, delete]
//! ```
//! Whoever saves next waits for the write before, and not for what follows it. A failure of either is the next call's to
//! say.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use serde_json::{Map, Value};

use super::lock::WriterLock;
use super::names::StepNames;
use super::newest::Restored;
use super::steps::{Step, Steps};
use super::tidy::{Tidied, TidyOptions};
use super::when::{Moment, SaveWhen};
use crate::engine::{
    AsyncOptions, AsyncSaver, ItemsOptions, ItemsSave, LoadOptions, SaveHandle, SaveOptions, WhenBusy,
    open_with, value,
};
use crate::error::{Error, ErrorKind, Result};
use crate::location::{Location, ToLocation};
use crate::tree::Pytree;

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
    /// How to save. Overwriting, the base and metadata are for each save to say.
    pub save: SaveOptions,
    /// Hard-link data files that did not change since the step before.
    pub reuse: bool,
    /// Only read: no lock is taken.
    pub read_only: bool,
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
    /// Save whatever the policy says.
    pub force: bool,
    /// Save it also if it is there already.
    pub overwrite: bool,
}

/// Saves and restores the steps in one folder, which it alone writes to. Of one process: in a job of several, each has to come
/// to the same decisions.
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
    steps: Steps,
    options: ManagerOptions,
    state: Mutex<State>,
    saver: AsyncSaver,
    followed: Arc<Followed>,
    /// Ends the thread that follows saves when it is dropped.
    follow: Mutex<Option<Sender<(u64, SaveHandle)>>>,
    _lock: Option<WriterLock>,
}

#[derive(Debug, Default)]
struct State {
    /// Steps of this history that were there or have begun.
    known: BTreeSet<u64>,
    /// Steps that are there, of another history.
    other: BTreeSet<u64>,
    last_save: Option<Instant>,
}

/// What the thread that follows saves tells.
#[derive(Debug, Default)]
struct Followed {
    state: Mutex<FollowedState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct FollowedState {
    pending: usize,
    failures: Vec<Error>,
    failed: Vec<u64>,
    tidied: Vec<(u64, Tidied)>,
}

impl Followed {
    fn lock(&self) -> MutexGuard<'_, FollowedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> MutexGuard<'_, FollowedState> {
        let waited = self.changed.wait_while(self.lock(), |state| state.pending > 0);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Manager {
    /// Of the steps in a folder, which is made when the first is saved.
    ///
    /// # Errors
    /// `AlreadyExists` if another one writes to the folder; `InvalidArgument` for a path that is none of steps, and for
    /// options that make no sense; what the storage says.
    pub fn new(root: impl ToLocation, options: ManagerOptions) -> Result<Self> {
        options.save_when.check()?;
        options.tidy.keep.check()?;
        options.tidy.delete.check()?;
        if options.save.job.as_ref().is_some_and(|job| job.has_others()) {
            return Err(Error::unsupported("this manager is of one process")
                .help("decide on one rank, and save the step with `ItemsSave` on all of them"));
        }
        let steps = Steps::new(root, options.names.clone())?;
        let lock = match options.read_only {
            true => None,
            false => {
                let lock = steps.lock()?;
                steps.refresh()?;
                Some(lock)
            }
        };
        let known = steps.numbers()?.into_iter().collect();
        Ok(Self {
            steps,
            options,
            state: Mutex::new(State { known, ..State::default() }),
            saver: AsyncSaver::new(),
            followed: Arc::default(),
            follow: Mutex::new(None),
            _lock: lock,
        })
    }

    /// The folder, and what is in it.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Whether [`save`](Self::save) would save this step. Looks at nothing but memory.
    pub fn should_save(&self, step: u64, is_preempted: bool) -> bool {
        self.wants(&self.state(), step, is_preempted)
    }

    fn wants(&self, state: &State, step: u64, is_preempted: bool) -> bool {
        let moment = Moment {
            step,
            latest: state.known.last().copied(),
            seconds_since_save: state.last_save.map(|last| last.elapsed().as_secs_f64()),
            is_preempted,
            is_saving: self.saver.is_busy(),
        };
        !state.known.contains(&step) && self.options.save_when.wants(&moment)
    }

    /// Saves a step in the background if the policy says so; whether it does. Waits for an earlier save.
    ///
    /// # Errors
    /// Why an earlier save, or what followed it, has failed: then nothing is saved now. `AlreadyExists` with
    /// [`force`](SaveStep::force) for a step that is there. `InvalidArgument` for a manager that only reads. What
    /// [`save`](crate::save()) refuses before it begins.
    pub fn save<P: Pytree>(&self, step: u64, value: &P, about: &SaveStep) -> Result<bool> {
        if self.options.read_only {
            return Err(Error::invalid("this manager only reads").in_file(self.steps.root()));
        }
        self.raise()?;
        let mut state = self.state();
        let is_there = state.known.contains(&step);
        if !(about.force || about.overwrite && is_there || self.wants(&state, step, about.is_preempted)) {
            return Ok(false);
        }
        if is_there && !about.overwrite {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("step {step} is there already"))
                .in_file(self.steps.root())
                .help("overwrite it on purpose, or save another"));
        }
        while !self.saver.wait_for_room(WhenBusy::Wait, LOOK_EVERY)? {}
        let overwrite = is_there || state.other.contains(&step);
        let items = ItemsOptions {
            overwrite,
            not_durable: self.options.save.not_durable,
            custom_metadata: about.metadata.clone(),
            monitor: self.options.save.monitor.clone(),
            ..ItemsOptions::default()
        };
        let items = ItemsSave::begin(self.steps.place(step), items)?;
        if !about.metrics.is_empty() {
            items.metrics(&Value::Object(about.metrics.clone()))?;
        }
        let save = SaveOptions { base: self.base(&state, step)?, ..self.options.save.clone() };
        let trees = vec![(DEFAULT_ITEM.to_owned(), value.to_tree()?.into_owned(), save)];
        let handle = self.saver.save_items(items, trees, &AsyncOptions::default())?;
        state.known.insert(step);
        state.other.remove(&step);
        state.last_save = Some(Instant::now());
        drop(state);
        self.follow(step, handle);
        Ok(true)
    }

    /// Loads the newest step that is good.
    ///
    /// # Errors
    /// As [`Steps::restore_newest`].
    pub fn restore<P: Pytree>(&self, options: &LoadOptions) -> Result<Restored<P>> {
        drop(self.followed.wait());
        let restored = self.steps.restore_newest(|step| load(step, options))?;
        self.turn_to(restored.step.number);
        Ok(restored)
    }

    /// Loads a step. Newer ones are of another history from now on, and may be saved again.
    ///
    /// # Errors
    /// As [`Steps::step`] and [`load`](crate::load()).
    pub fn restore_step<P: Pytree>(&self, step: u64, options: &LoadOptions) -> Result<P> {
        drop(self.followed.wait());
        let value = load(&self.steps.step(step)?, options)?;
        self.turn_to(step);
        Ok(value)
    }

    /// Waits until all saves are done, and what follows them.
    ///
    /// # Errors
    /// Why one of them has failed; call again for more.
    pub fn wait(&self) -> Result<()> {
        drop(self.followed.wait());
        self.raise()
    }

    /// What was done after saves since the last call.
    pub fn tidied(&self) -> Vec<(u64, Tidied)> {
        std::mem::take(&mut self.followed.lock().tidied)
    }

    /// The first failure that nobody was told of.
    fn raise(&self) -> Result<()> {
        let mut followed = self.followed.lock();
        let failed = std::mem::take(&mut followed.failed);
        let failure = (!followed.failures.is_empty()).then(|| followed.failures.remove(0));
        drop(followed);
        let mut state = self.state();
        // A save that has failed is no step.
        state.known.retain(|known| !failed.contains(known));
        match failure {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn turn_to(&self, step: u64) {
        let mut state = self.state();
        if let Some(after) = step.checked_add(1) {
            let newer = state.known.split_off(&after);
            state.other.extend(newer);
        }
    }

    /// The item of the step before, whose files are linked where they are the same.
    fn base(&self, state: &State, step: u64) -> Result<Option<Location>> {
        let earlier = state.known.iter().rev().find(|known| **known != step).filter(|_| self.options.reuse);
        let Some(found) = earlier.map(|earlier| self.steps.find(*earlier)).transpose()?.flatten() else {
            return Ok(None);
        };
        let base = found.location.join(DEFAULT_ITEM);
        Ok(base.exists().then_some(base))
    }

    /// Hands a save to the thread that follows them, which lives as long as the manager.
    fn follow(&self, step: u64, handle: SaveHandle) {
        self.followed.lock().pending += 1;
        let mut follow = self.follow.lock().unwrap_or_else(PoisonError::into_inner);
        let follow = follow.get_or_insert_with(|| {
            let (sender, receiver) = crossbeam_channel::unbounded::<(u64, SaveHandle)>();
            let (steps, tidy, followed) =
                (self.steps.clone(), self.options.tidy.clone(), Arc::clone(&self.followed));
            let run = move || {
                receiver.iter().for_each(|(step, handle)| ended(&steps, &tidy, &followed, step, &handle))
            };
            // Where the system has no thread to give, the receiver is gone, and the caller does it below.
            let _ = std::thread::Builder::new().name("regrow-manager".to_owned()).spawn(run);
            sender
        });
        if let Err(refused) = follow.send((step, handle)) {
            let (step, handle) = refused.into_inner();
            ended(&self.steps, &self.options.tidy, &self.followed, step, &handle);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Manager {
    /// Waits for all saves, before others may write.
    fn drop(&mut self) {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner).take();
        let failures = std::mem::take(&mut self.followed.wait().failures);
        for failure in failures {
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("regrow: {failure}\n"));
        }
    }
}

/// What follows a save, when it has ended.
fn ended(steps: &Steps, tidy: &TidyOptions, followed: &Followed, step: u64, handle: &SaveHandle) {
    let saved = handle.wait();
    let has_failed = saved.is_err();
    let outcome = saved.and_then(|_| steps.tidy(step, tidy));
    let mut state = followed.lock();
    if has_failed {
        state.failed.push(step);
    }
    match outcome {
        Ok(tidied) => state.tidied.push((step, tidied)),
        Err(error) => state.failures.push(error),
    }
    state.pending -= 1;
    followed.changed.notify_all();
}

/// Loads the state of a step, whether it is an item of several or all there is.
fn load<P: Pytree>(step: &Step, options: &LoadOptions) -> Result<P> {
    let checkpoint = open_with(&step.location, &options.open)?;
    let has_default = checkpoint.description().items.iter().any(|(name, _)| name == DEFAULT_ITEM);
    if options.open.item.is_none() && has_default {
        let mut own = options.clone();
        own.open.item = Some(DEFAULT_ITEM.to_owned());
        return value::load_with(&step.location, &own);
    }
    checkpoint.load_value(options)
}
