//! Changes a checkpoint under its lock: repair, seal, signature, parity, removal.
//!
//! While an operation has the lock, no other process of regrow changes the checkpoint. So the
//! operation compares the checkpoint once with the one that it opened, and does not look again.

use std::time::Duration;

use super::{Checkpoint, Retries};
use crate::error::Result;
use crate::formats::container;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::storage::TargetLock;
use crate::store::StoreExt;

/// An operation that changes a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change<'m> {
    /// The name of the operation, for other processes.
    pub name: &'static str,
    /// How long to wait for the lock.
    pub wait: Option<Duration>,
    pub monitor: &'m Monitor,
}

impl Change<'_> {
    /// Takes the lock of a checkpoint. An item has the lock of its checkpoint.
    ///
    /// # Errors
    /// `Busy` if another process keeps the lock; `Unsupported` for a storage that is read only.
    pub fn lock(&self, at: &Location) -> Result<TargetLock> {
        let around = at.parent();
        let target = if at.is_folder() && container::has_items(&around) { &around } else { at };
        target.lock(self.name, self.wait, self.monitor)
    }

    /// Opens a checkpoint, locks it, and calls `change` with the checkpoint, its location and its
    /// lock. In a folder of steps, this is the opened step.
    ///
    /// # Errors
    /// Those of `open`, of [`lock`](Self::lock) and of `change`.
    pub fn opened<T>(
        &self,
        at: &Location,
        open: impl Fn() -> Result<Checkpoint>,
        change: impl Fn(&Checkpoint, &Location, &TargetLock) -> Result<T>,
    ) -> Result<T> {
        Retries::until_unreplaced(|| {
            let checkpoint = open()?;
            let part = part_of(at, &checkpoint);
            // A killed save may lack only its last rename.
            let is_finished = part.finish_unfinished()?;
            let lock = self.lock(&part)?;
            match is_finished || checkpoint.is_replaced() {
                true => Err(checkpoint.was_replaced()),
                false => change(&checkpoint, &part, &lock),
            }
        })
    }
}

/// The location of an opened checkpoint. For a folder of steps, the location is the step.
pub(super) fn part_of(at: &Location, checkpoint: &Checkpoint) -> Location {
    let step = checkpoint.reader().standing().step_folder;
    step.map_or_else(|| at.clone(), |step| at.join(step.location().below(at)))
}

/// Removes side files of a checkpoint, in one folder, and syncs the folder: after a power cut, old
/// side files must not reappear beside the next checkpoint.
pub(super) fn take_away<'f>(files: impl IntoIterator<Item = &'f Location>) -> Result<()> {
    let files: Vec<&Location> = files.into_iter().collect();
    let Some(first) = files.first() else { return Ok(()) };
    let names: Vec<&[u8]> = files.iter().map(|file| file.name().as_encoded_bytes()).collect();
    first.parent().store().delete_durably(&names)
}
