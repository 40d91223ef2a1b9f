//! Restores values with a [`Manager`]. A lease protects the step from deletion during the read.

use super::lease::Lease;
use super::newest::Restored;
use super::saving::{DEFAULT_ITEM, Manager};
use super::steps::Step;
use crate::engine::{Checkpoint, LoadOptions, Retries, open, open_with, value};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::Pytree;

impl Manager {
    /// Loads the newest good step. Newer steps then belong to an abandoned history, and their
    /// numbers may be saved again.
    ///
    /// # Errors
    /// The errors of [`Steps::restore_newest`](super::Steps::restore_newest), of any process of a
    /// job.
    pub fn restore<P: Pytree>(&self, options: &LoadOptions) -> Result<Restored<P>> {
        self.restore_newest(|step| {
            refuse_lost_items(&open_with(&step.location, &options.open)?)?;
            load(step, options)
        })
    }

    /// Loads a step. Newer steps then belong to an abandoned history, and may be saved again.
    ///
    /// # Errors
    /// The errors of [`Steps::step`](super::Steps::step) and [`load`](crate::load()), of any
    /// process of a job.
    pub fn restore_step<P: Pytree>(&self, step: u64, options: &LoadOptions) -> Result<P> {
        self.restore_one(step, |step| load(step, options))
    }

    /// Restores several items of the newest step in which all requested items are good. Calls
    /// `restore` with the opened step. `restore` reads the items: [`Checkpoint::item`] opens an
    /// item, and [`Checkpoint::item_files`] returns the files of an item. All items belong to one
    /// version of the step. Processes that respect leases do not delete the step during the read.
    ///
    /// If a step is skipped, `restore` is called again with an older step. If the step was replaced
    /// during the read, `restore` is called again with the same step.
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
    /// The errors of [`restore`](Self::restore). If a good step never had a requested item, the
    /// result is `NotFound` with the names of the existing items, and no older step is tried.
    pub fn restore_items<T>(&self, mut restore: impl FnMut(&Checkpoint) -> Result<T>) -> Result<Restored<T>> {
        self.restore_newest(|step| {
            of_version(step, &mut |checkpoint| {
                refuse_lost_items(checkpoint).and_then(|()| restore(checkpoint))
            })
        })
    }

    /// Like `restore_items`, but restores this step.
    ///
    /// # Errors
    /// The errors of [`restore_step`](Self::restore_step); `NotFound` for an item that does not
    /// exist.
    pub fn restore_step_items<T>(
        &self,
        step: u64,
        mut restore: impl FnMut(&Checkpoint) -> Result<T>,
    ) -> Result<T> {
        self.restore_one(step, |step| of_version(step, &mut restore))
    }

    fn restore_newest<P>(&self, mut restore: impl FnMut(&Step) -> Result<P>) -> Result<Restored<P>> {
        let restored = self.run.restore_newest(|step| self.leased(step, &mut restore))?;
        let Restored { step, value: (value, _lease), passed_over } = restored;
        Ok(Restored { step, value, passed_over })
    }

    fn restore_one<P>(&self, step: u64, mut restore: impl FnMut(&Step) -> Result<P>) -> Result<P> {
        Ok(self.run.restore_one(step, |step| self.leased(step, &mut restore))?.value.0)
    }

    /// Restores a step under a lease, which lasts until all processes have restored it. Rank 0
    /// takes the lease for all.
    fn leased<P>(
        &self,
        step: &Step,
        restore: &mut impl FnMut(&Step) -> Result<P>,
    ) -> Result<(P, Option<Lease>)> {
        let is_first = self.run.together.is_rank_0();
        let lease = is_first.then(|| self.run.lease(step)).transpose()?.flatten();
        Ok((restore(step)?, lease))
    }
}

/// Loads the state of a step: the default item, or the whole step if it has no items.
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

/// Returns an error for a step that has lost an item, even if other items are requested.
pub fn refuse_lost_items(checkpoint: &Checkpoint) -> Result<()> {
    match checkpoint.description().lost_items.first() {
        None => Ok(()),
        Some((_, why)) => Err(Error::new(ErrorKind::Corrupt, why.as_str())
            .in_file(checkpoint.path())
            .help("give the number of this step: its other items can be restored")),
    }
}

/// Calls `restore` with the opened step, and again if the step was replaced, so that all items
/// belong to one version.
fn of_version<T>(step: &Step, restore: &mut impl FnMut(&Checkpoint) -> Result<T>) -> Result<T> {
    Retries::until_unreplaced(|| restore(&open(&step.location)?))
}
