//! Restoring by a [`Manager`]: the newest step that is good, in one process or in all of a job.
//!
//! In a job all take the same way: what one of them cannot restore, none does. While a step is
//! read, a lease keeps it.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::lease::Lease;
use super::newest::{PassedOver, Restored};
use super::saving::{DEFAULT_ITEM, Manager};
use super::steps::Step;
use crate::engine::{Checkpoint, LoadOptions, Retries, open, open_with, value};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::Pytree;

/// Why a process could not restore a step, on its way to the others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Refusal {
    /// Whether it is the step's own fault. What no other step would spare goes first.
    is_fault: bool,
    kind: String,
    what: String,
}

impl Manager {
    /// Loads the newest step that is good. Newer ones are of another history from now on, and may
    /// be saved again.
    ///
    /// # Errors
    /// As [`Steps::restore_newest`](super::Steps::restore_newest), of any process of a job.
    pub fn restore<P: Pytree>(&self, options: &LoadOptions) -> Result<Restored<P>> {
        self.restore_newest(|step| {
            refuse_lost_items(&open_with(&step.location, &options.open)?)?;
            load(step, options)
        })
    }

    /// Loads a step. Newer ones are of another history from now on, and may be saved again.
    ///
    /// # Errors
    /// As [`Steps::step`](super::Steps::step) and [`load`](crate::load()), of any process of a job.
    pub fn restore_step<P: Pytree>(&self, step: u64, options: &LoadOptions) -> Result<P> {
        self.restore_one(step, |step| load(step, options))
    }

    /// Restores several items of the newest step whose requested items are all good. `restore` is
    /// called with that step, opened, and takes the items: [`Checkpoint::item`] opens an item,
    /// [`Checkpoint::item_files`] returns its files. All are of one version of the step. Processes
    /// that respect leases do not delete it in between.
    ///
    /// `restore` is called again for an older step if one is skipped, and for the same step if it
    /// was replaced in between.
    ///
    /// ```
    /// use regrow::manager::{Manager, ManagerOptions, SaveStep};
    /// use regrow::{LoadOptions, tree::Pytree};
    /// # let folder = tempfile::tempdir()?;
    /// let manager = Manager::new(folder.path().join("run"), ManagerOptions::default())?;
    /// let (weights, average) = (vec![1_f32; 1000], vec![0_f32; 1000]);
    /// manager.save_items(7, &SaveStep::default(), |items| {
    ///     items.file("iterator", "process_0.json", b"{}")?;
    ///     let trees = [("default", &weights), ("average", &average)];
    ///     trees.into_iter().map(|(name, tree)| Ok((name.to_owned(), tree.to_tree()?.into_owned()))).collect()
    /// })?;
    ///
    /// let options = LoadOptions::default();
    /// let restored = manager.restore_items(|step| {
    ///     let weights: Vec<f32> = step.item("default")?.load_value(&options)?;
    ///     let average: Vec<f32> = step.item("average")?.load_value(&options)?;
    ///     Ok((weights, average, step.item_files("iterator")?))
    /// })?;
    /// assert_eq!(restored.step.number, 7);
    /// assert!(restored.passed_over.is_empty());
    /// let (weights, average, iterator) = restored.value;
    /// assert_eq!((weights[0], average[0], &iterator[0].1[..]), (1.0, 0.0, &b"{}"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`restore`](Self::restore). An item that a good step never had is an error at once, and
    /// no reason to take an older step: `NotFound`, with the items that are there.
    pub fn restore_items<T>(&self, mut restore: impl FnMut(&Checkpoint) -> Result<T>) -> Result<Restored<T>> {
        self.restore_newest(|step| {
            of_version(step, &mut |checkpoint| {
                refuse_lost_items(checkpoint).and_then(|()| restore(checkpoint))
            })
        })
    }

    /// The same of this step.
    ///
    /// # Errors
    /// As [`restore_step`](Self::restore_step); `NotFound` for an item that is not there.
    pub fn restore_step_items<T>(
        &self,
        step: u64,
        mut restore: impl FnMut(&Checkpoint) -> Result<T>,
    ) -> Result<T> {
        self.restore_one(step, |step| of_version(step, &mut restore))
    }

    fn restore_newest<T>(&self, mut restore: impl FnMut(&Step) -> Result<T>) -> Result<Restored<T>> {
        self.follower.wait();
        let began = Instant::now();
        let restored = self.steps.newest_of(
            || self.together.of_rank_0("manager-steps", || Ok(self.current_of(&self.steps.list()?))),
            |number| self.attempt(number, true, &mut restore),
        )?;
        self.restored(&restored, began)?;
        Ok(restored)
    }

    fn restore_one<T>(&self, step: u64, restore: impl FnMut(&Step) -> Result<T>) -> Result<T> {
        self.follower.wait();
        let began = Instant::now();
        let (step, value) = self.attempt(step, false, restore)??;
        let restored = Restored { step, value, passed_over: Vec::new() };
        self.restored(&restored, began)?;
        Ok(restored.value)
    }

    /// Restores a step; the inner error is one for which an older step may be taken.
    fn attempt<T>(
        &self,
        number: u64,
        may_pass_over: bool,
        mut restore: impl FnMut(&Step) -> Result<T>,
    ) -> Result<Result<(Step, T)>> {
        let mut lease = None;
        let own = self.steps.step(number).and_then(|step| {
            lease = self.keep(&step)?;
            Ok((restore(&step)?, step))
        });
        let is_fault = match &own {
            // Where not even that can be found out, all end with the error.
            Err(error) if may_pass_over => self.steps.is_fault_of(number, error).unwrap_or(false),
            _ => false,
        };
        let refusal = own.as_ref().err().map(|error| Refusal {
            is_fault,
            kind: error.kind().name().to_owned(),
            what: error.what().to_owned(),
        });
        if own.as_ref().is_err_and(|error| is_damage(error, is_fault)) {
            self.follower.is_damaged(number);
        }
        // Other processes hear of it, and this one of theirs.
        let verdict = self.together.decide(&format!("manager-restore-{number}"), refusal, |all| {
            Ok(all.into_iter().flatten().min())
        })?;
        // Not before: now all processes have what they want of the step.
        drop(lease);
        match (own, verdict) {
            (Ok((value, step)), None) => Ok(Ok((step, value))),
            (Err(error), _) if is_fault => Ok(Err(error)),
            (Err(error), _) => Err(error),
            (Ok(_), Some(Refusal { is_fault, kind, what })) => {
                let kind = ErrorKind::from_name(&kind).unwrap_or(ErrorKind::Io);
                let error = Error::new(kind, format!("another process cannot restore step {number}: {what}"))
                    .in_file(self.steps.place(number));
                if is_fault { Ok(Err(error)) } else { Err(error) }
            }
        }
    }

    /// Keeps a step from being deleted, as far as that can be had; one process does it for all of a
    /// job.
    fn keep(&self, step: &Step) -> Result<Option<Lease>> {
        if !self.together.is_rank_0() {
            return Ok(None);
        }
        match self.steps.lease(step.number) {
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
                let told = json!({ "error": error.what() });
                self.log.add("unleased", step.number, &step.location.describe(), true, told)?;
                Ok(None)
            }
            leased => leased.map(Some),
        }
    }

    /// What follows a restore.
    fn restored<P>(&self, restored: &Restored<P>, began: Instant) -> Result<()> {
        let Restored { step, passed_over, .. } = restored;
        self.turn_to(step.number);
        let passed: Map<String, Value> = passed_over
            .iter()
            .map(|PassedOver { step, error }| (step.to_string(), json!(error.what())))
            .collect();
        let is_bad = !passed.is_empty();
        let told = json!({
            "seconds": began.elapsed().as_secs_f64(),
            "passed_over": is_bad.then_some(passed),
        });
        self.log.add("restore", step.number, &step.location.describe(), is_bad, told)
    }
}

/// Whether an error says that the step itself is damaged, and is not only gone or replaced.
fn is_damage(error: &Error, is_fault: bool) -> bool {
    use ErrorKind::{Corrupt, NotACheckpoint, NotFound};
    matches!(error.kind(), Corrupt | NotACheckpoint) || is_fault && error.kind() == NotFound
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

/// A step that has lost an item is not good, whichever items are asked for.
fn refuse_lost_items(checkpoint: &Checkpoint) -> Result<()> {
    match checkpoint.description().lost_items.first() {
        None => Ok(()),
        Some((_, why)) => Err(Error::new(ErrorKind::Corrupt, why.as_str())
            .in_file(checkpoint.path())
            .help("ask for this step by its number: its other items can be restored")),
    }
}

/// What `restore` takes of a step that is one version from the first item to the last.
fn of_version<T>(step: &Step, restore: &mut impl FnMut(&Checkpoint) -> Result<T>) -> Result<T> {
    Retries::until_unreplaced(|| restore(&open(&step.location)?))
}
