//! Performs the steps that [`next`] returns, until an operation has to act itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::found::{Found, state_at};
use super::held::{Held, Owned};
use super::listing::Listing;
use super::marker::{
    MARKER, OTHER_MARKER, STATE, is_bookkeeping, is_control, is_marker, nonce, staged_prefix, state_beside,
};
use super::record::Record;
use super::settle::bring;
use super::state::{Operation, Owner, Phase, Seen, Step, next};
use super::{Object, Objects, old};
use crate::error::{Error, ErrorKind, Result};
use crate::local::are_of_one;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::{Removed, WAIT_DEFAULT};

/// Number of looks at a target that keeps changing.
const LOOKS_MAX: usize = 100;

/// Where the files of a target are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Below this key.
    Folder(String),
    /// At this key with each of the suffixes appended. The last file makes the checkpoint.
    Beside { key: String, suffixes: Vec<String> },
}

impl Place {
    pub(super) fn key(&self) -> &str {
        match self {
            Self::Folder(key) | Self::Beside { key, .. } => key,
        }
    }

    fn state_key(&self) -> String {
        match self {
            Self::Folder(key) => format!("{key}/{STATE}"),
            Self::Beside { key, .. } => state_beside(key),
        }
    }
}

/// A target, as an operation sees it.
struct Look {
    seen: Seen,
    found: Option<Found>,
    /// For files of one stem: the files that the state object names.
    vouched: Vec<String>,
}

/// How an operation takes a state object.
#[derive(Debug, Clone)]
pub(super) struct Doing {
    /// The name of the operation, for other processes.
    name: &'static str,
    /// How long it waits for another process.
    wait: Duration,
    /// Cancels the wait.
    monitor: Monitor,
}

impl Doing {
    pub(super) fn new(name: &'static str, wait: Option<Duration>, monitor: &Monitor) -> Self {
        Self { name, wait: wait.unwrap_or(WAIT_DEFAULT), monitor: monitor.clone() }
    }

    /// Removes files of dead processes, and does not wait.
    pub(super) fn cleanup() -> Self {
        Self::new("cleanup", Some(Duration::ZERO), &Monitor::new())
    }
}

/// An operation on a target.
pub(super) struct Run<'r> {
    objects: &'r Arc<dyn Objects>,
    target: &'r Location,
    place: Place,
    doing: Doing,
    /// Whether files of unknown origin may be replaced (files of one stem).
    pub(super) replaces_others: bool,
    /// Whether to take living owners for dead.
    pub(super) is_forced: bool,
    /// The state object that this run has taken.
    owned: Option<Owned>,
    /// The state object that the caller has taken.
    lent: Option<Arc<Held>>,
    /// The state of the dead process that this run has taken over.
    pub(super) dead: Option<Record>,
    /// Whether control objects of an earlier version show that state.
    is_of_old: bool,
    /// The files that were deleted.
    pub(super) removed: Removed,
}

impl<'r> Run<'r> {
    pub(super) fn new(
        objects: &'r Arc<dyn Objects>,
        target: &'r Location,
        place: Place,
        doing: Doing,
    ) -> Self {
        Self {
            objects,
            target,
            place,
            doing,
            replaces_others: false,
            is_forced: false,
            owned: None,
            lent: None,
            dead: None,
            is_of_old: false,
            removed: Removed::default(),
        }
    }

    /// A run with a state object that the caller has taken, and releases.
    pub(super) fn with(mut self, lent: Option<Arc<Held>>) -> Self {
        self.lent = lent;
        self
    }

    pub(super) fn held(&self) -> Option<&Arc<Held>> {
        self.lent.as_ref().or(self.owned.as_deref())
    }

    /// The state object that this run has taken.
    ///
    /// # Errors
    /// `Internal` if it has taken none.
    pub(super) fn into_owned(self) -> Result<Owned> {
        self.owned.ok_or_else(|| Error::new(ErrorKind::Internal, "a step without a state object"))
    }

    /// Performs steps until the operation has to write, to mark, to move or to end, or is refused.
    ///
    /// # Errors
    /// `Busy` if another process changes the target for longer than the wait; `Replaced` if another
    /// process has taken this one for dead; errors of the bucket.
    pub(super) fn advance(&mut self, operation: &Operation) -> Result<Step> {
        let step = self.perform(operation);
        if step.is_err()
            && self.dead.is_some()
            && let Some(owned) = self.owned.take()
        {
            // Files of the dead process are there. Without the state object they would count as
            // files of another program.
            owned.leave();
        }
        step
    }

    fn perform(&mut self, operation: &Operation) -> Result<Step> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(20);
        let mut looks = 0;
        while looks < LOOKS_MAX {
            looks += 1;
            let look = match self.look(operation) {
                // The state object was deleted between two requests.
                Err(error) if error.kind() == ErrorKind::Replaced && self.held().is_none() => continue,
                look => look?,
            };
            match next(&look.seen, operation) {
                Step::Take(Phase::Moved(folder)) if self.is_commit(&folder, operation) => {
                    return Ok(Step::Take(Phase::Moved(folder)));
                }
                Step::Take(phase) => self.take(phase, look.found)?,
                Step::Clear => self.clear(&look.vouched)?,
                Step::Settle(folder) => {
                    bring(self.objects, self.place.key(), &folder)?;
                    self.take(Phase::Changing, None)?;
                    if self.is_of_old {
                        // Earlier versions left no state object in the folder.
                        remove_staged(self.objects, self.target, folder, false)?;
                    }
                }
                Step::GiveUp(refusal) => {
                    self.owned.take().map_or(Ok(()), Owned::release)?;
                    return Ok(Step::Refuse(refusal));
                }
                Step::Wait => {
                    let left = self.doing.wait.saturating_sub(began.elapsed());
                    if left.is_zero() {
                        let busy = look.found.map(|found| found.record.busy(self.target));
                        return Err(busy.unwrap_or_else(|| self.restless()));
                    }
                    self.doing.monitor.check()?;
                    std::thread::sleep(pause.min(left));
                    pause = (pause * 2).min(Duration::from_secs(1));
                    looks = 0;
                }
                step => return Ok(step),
            }
        }
        Err(self.restless())
    }

    fn restless(&self) -> Error {
        Error::new(ErrorKind::Busy, "other processes keep changing this checkpoint").in_file(self.target)
    }

    /// Whether this step commits the overwrite of this run.
    fn is_commit(&self, folder: &str, operation: &Operation) -> bool {
        self.held().is_some_and(|held| held.record().phase == Phase::Changing)
            && matches!(operation, Operation::Overwrite { staged, .. } if staged == folder)
    }

    /// Sets the phase of the state object that this run owns, or takes the state object.
    pub(super) fn take(&mut self, phase: Phase, found: Option<Found>) -> Result<()> {
        let own = match &self.place {
            Place::Beside { suffixes, .. } if !self.replaces_others => suffixes.clone(),
            _ => Vec::new(),
        };
        if let Some(held) = self.held() {
            return held.set(|record| {
                if phase == Phase::Writing {
                    record.suffixes.clone_from(&own);
                }
                record.phase = phase.clone();
            });
        }
        let mut record = Record::new(self.place.key(), &nonce()?, self.doing.name, phase);
        if let Some(found) = &found {
            (record.suffixes, record.copied) = (found.record.suffixes.clone(), found.record.copied.clone());
        }
        if record.phase == Phase::Writing {
            record.suffixes = own;
        }
        let dead = found.as_ref().and_then(|found| Some(&found.object.as_ref()?.tag));
        self.owned = Owned::take(self.objects, self.place.state_key(), record, dead)?;
        if let (Some(owned), Some(found)) = (&self.owned, found) {
            self.is_of_old = found.object.is_none();
            if self.is_of_old {
                owned.add_old(match &self.place {
                    Place::Folder(key) => old::keys_in(key),
                    Place::Beside { key, .. } => vec![old::claim_of_siblings(key)],
                });
            }
            self.dead = Some(found.record);
        }
        Ok(())
    }

    fn look(&self, operation: &Operation) -> Result<Look> {
        match &self.place {
            Place::Folder(key) => self.look_in(key, operation),
            Place::Beside { key, suffixes } => self.look_beside(key, suffixes, operation),
        }
    }

    /// The state object of this run, for [`next`].
    fn ours(&self) -> Option<(Owner, Phase)> {
        self.held().map(|held| (Owner::Us, held.record().phase))
    }

    fn theirs(&self, found: Option<&Found>) -> Option<(Owner, Phase)> {
        let owner = |found: &Found| if self.is_forced { Owner::Dead } else { found.owner };
        found.map(|found| (owner(found), found.record.phase.clone()))
    }

    fn look_in(&self, key: &str, operation: &Operation) -> Result<Look> {
        let prefix = format!("{key}/");
        let mut below = Listing::of_checkpoint(self.objects, prefix.clone())?;
        let (mut state, mut found) = (self.ours(), None);
        match self.held() {
            Some(held) => held.check_listed(below.object(STATE))?,
            None => {
                found = below.state(self.objects)?;
                state = self.theirs(found.as_ref());
            }
        }
        if matches!(state, Some((Owner::Dead, _))) {
            // The owner may have committed since the listing, and died then. A dead owner writes
            // nothing more, so this listing is final.
            below = Listing::of_checkpoint(self.objects, prefix)?;
        }
        let is_file = |name: &str| !is_bookkeeping(name) && !is_marker(name);
        let has_files = below.objects().any(|(name, _)| is_file(name));
        let is_unfinished = matches!(state, Some((_, Phase::Writing | Phase::Removing)));
        let is_marked = below.is_marked()
            || has_files
                && !is_unfinished
                // Some layouts have no marker, and a repair brings a lost marker back.
                && (matches!(operation, Operation::Change { .. }) || is_one_checkpoint(self.objects, &below)?);
        Ok(Look { seen: Seen { state, is_marked, has_files }, found, vouched: Vec::new() })
    }

    fn look_beside(&self, key: &str, suffixes: &[String], operation: &Operation) -> Result<Look> {
        let (mut state, mut found) = (self.ours(), None);
        if state.is_none() {
            found = state_at(self.objects, key, &self.place.state_key())?;
            if found.is_none() && suffixes.first().is_none_or(|first| !first.is_empty()) {
                found = old::claim_at(self.objects, key, &old::claim_of_siblings(key), Phase::Writing)?;
            }
            state = self.theirs(found.as_ref());
        }
        let record =
            self.held().map(|held| held.record()).or(found.as_ref().map(|found| found.record.clone()));
        // regrow never writes a suffix with a slash.
        let named = record.map(|record| record.suffixes).unwrap_or_default();
        let named = if named.iter().any(|suffix| suffix.contains('/')) { Vec::new() } else { named };
        if matches!(operation, Operation::Change { .. }) && named.is_empty() {
            // The caller compares the identity of the files.
            return Ok(Look {
                seen: Seen { state, is_marked: true, has_files: true },
                found,
                vouched: Vec::new(),
            });
        }
        let all: BTreeSet<&String> = suffixes.iter().chain(&named).collect();
        let mut there = BTreeSet::new();
        for suffix in all {
            if self.objects.head(&format!("{key}{suffix}"))?.is_some() {
                there.insert(suffix);
            }
        }
        let has = |suffix: Option<&String>| suffix.is_some_and(|suffix| there.contains(suffix));
        let is_removing = matches!(state, Some((_, Phase::Removing)));
        let is_marked = has(named.last()) || !is_removing && has(suffixes.last());
        let has_files = match is_removing {
            true => named.iter().any(|suffix| there.contains(suffix)),
            false => !self.replaces_others && suffixes.iter().any(|suffix| there.contains(suffix)),
        };
        Ok(Look { seen: Seen { state, is_marked, has_files }, found, vouched: named })
    }

    /// Deletes the marker, and then all other objects except the state object.
    fn clear(&mut self, vouched: &[String]) -> Result<()> {
        let held = self.held().map(Arc::clone);
        let held = held.ok_or_else(|| Error::new(ErrorKind::Internal, "a removal without a state object"))?;
        let all = match &self.place {
            Place::Folder(key) => {
                let markers = [MARKER, OTHER_MARKER].map(|name| format!("{key}/{name}"));
                let mut all = self.objects.list(&format!("{key}/"))?;
                let marked = all.iter().filter(|object| markers.contains(&object.key));
                self.removed = count(self.removed, marked);
                self.objects.delete(&markers)?;
                all.retain(|object| object.key != held.key() && !markers.contains(&object.key));
                all
            }
            Place::Beside { key, .. } => {
                let mut all = Vec::new();
                for suffix in vouched.iter().rev() {
                    all.extend(self.objects.head(&format!("{key}{suffix}"))?);
                }
                // The last file makes the checkpoint.
                if let Some(last) = all.first() {
                    self.objects.delete(std::slice::from_ref(&last.key))?;
                }
                all
            }
        };
        held.check()?;
        self.objects.delete(&all.iter().map(|object| object.key.clone()).collect::<Vec<_>>())?;
        self.removed = count(self.removed, all.iter());
        Ok(())
    }

    /// Ends an overwrite or a removal: deletes the folders of dead overwrites, and releases the
    /// state object, unless the caller has taken it. The folder `own` is that of the caller.
    pub(super) fn end(mut self, own: Option<&str>) -> Result<Removed> {
        let swept = sweep(self.objects, self.target, self.place.key(), own);
        self.owned.take().map_or(Ok(()), Owned::release)?;
        swept.map(|()| self.removed)
    }
}

fn count<'o>(mut removed: Removed, objects: impl Iterator<Item = &'o Object>) -> Removed {
    let is_own = |object: &&Object| !is_bookkeeping(object.key.rsplit('/').next().unwrap_or_default());
    objects.filter(is_own).for_each(|object| removed.add(object.len_bytes));
    removed
}

/// Whether the objects of a folder without a marker are one checkpoint.
fn is_one_checkpoint(objects: &Arc<dyn Objects>, below: &Listing) -> Result<bool> {
    let names = below.names(objects)?;
    Ok(are_of_one(&names.iter().map(String::as_str).filter(|name| !is_bookkeeping(name)).collect::<Vec<_>>()))
}

/// Deletes the folders of dead overwrites. The caller has the state object of the target, in a
/// phase other than `moved`: so no process points to such a folder.
fn sweep(objects: &Arc<dyn Objects>, target: &Location, key: &str, own: Option<&str>) -> Result<()> {
    let prefix = staged_prefix(key);
    let staged = objects.list(&prefix)?;
    let folder_of = |object: &Object| {
        let (name, _) = object.key.get(prefix.len()..)?.split_once('/')?;
        Some(format!("{prefix}{name}"))
    };
    for folder in staged.iter().filter_map(folder_of).collect::<BTreeSet<_>>() {
        let is_control = |object: &Object| {
            let name = object.key.strip_prefix(&folder).and_then(|name| name.strip_prefix('/'));
            name.is_some_and(is_control)
        };
        // A folder without a state object belongs to another program.
        if own != Some(&*folder) && staged.iter().any(is_control) {
            remove_staged(objects, target, folder, false)?;
        }
    }
    Ok(())
}

/// Deletes the folder of an overwrite if its owner is dead, or, with `is_forced`, in any case.
/// Returns the removed files; `None` if the folder stays.
pub(super) fn remove_staged(
    objects: &Arc<dyn Objects>,
    target: &Location,
    folder: String,
    is_forced: bool,
) -> Result<Option<Removed>> {
    let mut run = Run::new(objects, target, Place::Folder(folder), Doing::cleanup());
    run.is_forced = is_forced;
    match run.advance(&Operation::Remove) {
        Ok(Step::End) => {
            let removed = run.removed;
            run.into_owned()?.release()?;
            Ok(Some(removed))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes the folder of the caller's own overwrite.
pub(super) fn delete_staged(objects: &Arc<dyn Objects>, owned: Owned) -> Result<()> {
    let prefix = format!("{}/", owned.record().target);
    let mut keys: Vec<String> = objects.list(&prefix)?.into_iter().map(|object| object.key).collect();
    keys.retain(|key| key != owned.key());
    owned.check()?;
    objects.delete(&keys)?;
    owned.release()
}
