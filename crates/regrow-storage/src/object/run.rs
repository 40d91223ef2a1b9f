//! Performs the steps that [`next`] returns, until an operation has to act itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::copy::copy_within;
use super::held::{Found, Held, Owned, state_at};
use super::listing::Listing;
use super::marker::{
    MARKER, OTHER_MARKER, STATE, is_bookkeeping, is_control, is_marker, nonce, staged_prefix, state_beside,
};
use super::record::Record;
use super::state::{Operation, Owner, Phase, Seen, Step, next};
use super::{Object, Objects, old};
use crate::error::{Error, ErrorKind, Result};
use crate::local::are_of_one;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::threads::for_each_parallel;
use crate::{Removed, WAIT_DEFAULT};

/// Number of looks at a target that keeps changing.
pub(super) const LOOKS_MAX: usize = 100;

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

type OwnerAndPhase = Option<(Owner, Phase)>;

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

    fn owner(&self) -> Result<Arc<Held>> {
        self.held().cloned().ok_or_else(without_state)
    }

    /// The state object that this run has taken.
    ///
    /// # Errors
    /// `Internal` if it has taken none.
    pub(super) fn into_owned(self) -> Result<Owned> {
        let mut owned = self.owned.ok_or_else(without_state)?;
        owned.is_of_dead = false;
        Ok(owned)
    }

    /// Performs steps until the operation has to write, to mark, to move or to end, or is refused.
    ///
    /// # Errors
    /// `Busy` if another process changes the target for longer than the wait; `Replaced` if another
    /// process has taken this one for dead; errors of the bucket.
    pub(super) fn advance(&mut self, operation: &Operation) -> Result<Step> {
        let save = Operation::Save { is_written: false, continues: false };
        let began = Instant::now();
        let mut pause = Duration::from_millis(20);
        let mut looks = 0;
        while looks < LOOKS_MAX {
            looks += 1;
            // A copy continues only what a dead save or copy was writing. Other files that are
            // there now are those of another program.
            let is_writing = |dead: &Record| dead.phase == Phase::Writing;
            let operation = match operation {
                Operation::Save { continues: true, .. }
                    if self.held().is_some() && !self.dead.as_ref().is_some_and(is_writing) =>
                {
                    &save
                }
                operation => operation,
            };
            let look = self.look(operation)?;
            match next(&look.seen, operation) {
                Step::Take(Phase::Moved(folder)) if self.is_commit(&folder, operation) => {
                    return Ok(Step::Take(Phase::Moved(folder)));
                }
                Step::Take(phase) => self.take(phase, look.found)?,
                Step::Clear => self.clear(&look.vouched)?,
                Step::Settle(folder) => {
                    bring(&*self.owner()?, self.place.key(), &folder)?;
                    self.take(Phase::Changing, None)?;
                    if self.is_of_old {
                        // Earlier versions left no state object in the folder.
                        sweep_folder(self.objects, self.target, folder)?;
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

    /// Whether a save would find no checkpoint and no files, except those of an operation that has
    /// not ended.
    pub(super) fn finds_nothing(mut self) -> Result<bool> {
        self.is_forced = true;
        let save = Operation::Save { is_written: false, continues: false };
        Ok(!matches!(next(&self.look(&save)?.seen, &save), Step::Refuse(_)))
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
            Place::Beside { suffixes, .. } => suffixes.clone(),
            Place::Folder(_) => Vec::new(),
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
        if let (Some(owned), Some(found)) = (&mut self.owned, found) {
            owned.is_of_dead = true;
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
        for _ in 0..LOOKS_MAX {
            let look = match &self.place {
                Place::Folder(key) => self.look_in(key, operation),
                Place::Beside { key, suffixes } => self.look_beside(key, suffixes, operation),
            };
            // Otherwise the state object was deleted between two requests.
            if !matches!(&look, Err(error) if error.kind() == ErrorKind::Replaced && self.held().is_none()) {
                return look;
            }
        }
        Err(self.restless())
    }

    /// The state object of this run, or the one that `find` finds.
    fn state(&self, find: impl FnOnce() -> Result<Option<Found>>) -> Result<(OwnerAndPhase, Option<Found>)> {
        if let Some(held) = self.held() {
            held.check()?;
            return Ok((Some((Owner::Us, held.record().phase)), None));
        }
        let found = find()?;
        let owner = |found: &Found| if self.is_forced { Owner::Dead } else { found.owner };
        Ok((found.as_ref().map(|found| (owner(found), found.record.phase.clone())), found))
    }

    fn look_in(&self, key: &str, operation: &Operation) -> Result<Look> {
        let prefix = format!("{key}/");
        let mut below = Listing::of_checkpoint(self.objects, prefix.clone())?;
        let (state, found) = self.state(|| below.state(self.objects))?;
        if matches!(state, Some((Owner::Dead, _))) {
            // The owner may have committed since the listing, and died then. A dead owner writes
            // nothing more, so this listing is final.
            below = Listing::of_checkpoint(self.objects, prefix)?;
        }
        let is_file = |name: &str| !is_bookkeeping(name) && !is_marker(name);
        let has_files = below.objects().any(|(name, _)| is_file(name));
        let is_unfinished = matches!(state, Some((_, Phase::Writing | Phase::Removing)));
        // Some layouts have no marker.
        let is_marked = below.is_marked()
            || has_files
                && !is_unfinished
                && match operation {
                    // A repair brings a lost marker back.
                    Operation::Change { .. } => true,
                    // A save is refused in any case.
                    Operation::Save { .. } if state.is_none() => false,
                    _ => is_one_checkpoint(self.objects, &below)?,
                };
        Ok(Look { seen: Seen { state, is_marked, has_files }, found, vouched: Vec::new() })
    }

    fn look_beside(&self, key: &str, suffixes: &[String], operation: &Operation) -> Result<Look> {
        let (state, found) = self.state(|| match state_at(self.objects, key, &self.place.state_key())? {
            None if suffixes.first().is_none_or(|first| !first.is_empty()) => {
                old::claim_at(self.objects, key, &old::claim_of_siblings(key), Phase::Writing)
            }
            found => Ok(found),
        })?;
        let record =
            self.held().map(|held| held.record()).or(found.as_ref().map(|found| found.record.clone()));
        let mut named = record.map(|record| record.suffixes).unwrap_or_default();
        if named.iter().any(|suffix| suffix.contains('/')) {
            // regrow never writes such a suffix.
            named.clear();
        }
        let (mut is_marked, mut has_files) = (true, true);
        // A change without names: the caller compares the identity of the files.
        if !(matches!(operation, Operation::Change { .. }) && named.is_empty()) {
            let mut there = BTreeSet::new();
            for suffix in suffixes.iter().chain(&named).collect::<BTreeSet<_>>() {
                if self.objects.head(&format!("{key}{suffix}"))?.is_some() {
                    there.insert(suffix);
                }
            }
            let has = |suffix: Option<&String>| suffix.is_some_and(|suffix| there.contains(suffix));
            let is_removing = matches!(state, Some((_, Phase::Removing)));
            let continues = matches!(operation, Operation::Save { continues: true, .. });
            // A copy continues only with files that the state object names.
            let is_foreign = continues && there.iter().any(|suffix| !named.contains(suffix));
            is_marked = has(named.last()) || is_foreign || !is_removing && has(suffixes.last());
            let own = if is_removing { &named } else { suffixes };
            has_files = own.iter().any(|suffix| there.contains(suffix));
        }
        Ok(Look { seen: Seen { state, is_marked, has_files }, found, vouched: named })
    }

    /// Deletes the marker, and then all other objects except the state object.
    fn clear(&mut self, vouched: &[String]) -> Result<()> {
        let held = self.owner()?;
        let (markers, mut all) = match &self.place {
            Place::Folder(key) => (
                [MARKER, OTHER_MARKER].map(|name| format!("{key}/{name}")).to_vec(),
                self.objects.list(&format!("{key}/"))?,
            ),
            Place::Beside { key, .. } => {
                let keys: Vec<String> = vouched.iter().map(|suffix| format!("{key}{suffix}")).collect();
                let all = keys.iter().map(|key| self.objects.head(key)).collect::<Result<Vec<_>>>()?;
                // The last file makes the checkpoint.
                (keys.last().cloned().into_iter().collect(), all.into_iter().flatten().collect())
            }
        };
        held.objects()?.delete(&markers)?;
        all.retain(|object| object.key != held.key());
        let files = all.iter().map(|object| object.key.clone()).filter(|key| !markers.contains(key));
        held.objects()?.delete(&files.collect::<Vec<_>>())?;
        let is_own = |object: &&Object| !is_bookkeeping(object.key.rsplit('/').next().unwrap_or_default());
        all.iter().filter(is_own).for_each(|object| self.removed.add(object.len_bytes));
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

fn without_state() -> Error {
    Error::new(ErrorKind::Internal, "a step without a state object")
}

/// Whether the objects of a folder without a marker are one checkpoint.
fn is_one_checkpoint(objects: &Arc<dyn Objects>, below: &Listing) -> Result<bool> {
    let names = below.names(objects)?;
    Ok(are_of_one(&names.iter().map(String::as_str).filter(|name| !is_bookkeeping(name)).collect::<Vec<_>>()))
}

/// The folders whose names begin with `prefix`, and whether each has a control object.
pub(super) fn staged_folders(objects: &Arc<dyn Objects>, prefix: &str) -> Result<BTreeMap<String, bool>> {
    Ok(folders_in(&objects.list(prefix)?, prefix))
}

fn folders_in(listed: &[Object], prefix: &str) -> BTreeMap<String, bool> {
    let mut folders = BTreeMap::new();
    for object in listed {
        if let Some((folder, name)) = object.key.get(prefix.len()..).and_then(|name| name.split_once('/')) {
            *folders.entry(format!("{prefix}{folder}")).or_default() |= is_control(name);
        }
    }
    folders
}

/// Deletes the folders of dead overwrites, and the state object of files that a dead process left.
/// The caller has the state object of the target, in a phase other than `moved`: so no process
/// points to such a folder.
fn sweep(objects: &Arc<dyn Objects>, target: &Location, key: &str, own: Option<&str>) -> Result<()> {
    let prefix = staged_prefix(key);
    let listed = objects.list(&prefix)?;
    if listed.iter().any(|object| object.key == state_beside(key)) {
        let place = Place::Beside { key: key.to_owned(), suffixes: Vec::new() };
        unless_busy(end_dead(objects, target, place, &Operation::Clean, false))?;
    }
    for (folder, is_ours) in folders_in(&listed, &prefix) {
        // A folder without a state object belongs to another program.
        if is_ours && own != Some(&*folder) {
            sweep_folder(objects, target, folder)?;
        }
    }
    Ok(())
}

/// Deletes the folder of an overwrite if its owner is dead.
fn sweep_folder(objects: &Arc<dyn Objects>, target: &Location, folder: String) -> Result<()> {
    unless_busy(end_dead(objects, target, Place::Folder(folder), &Operation::Remove, false))
}

fn unless_busy<T>(ended: Result<T>) -> Result<()> {
    match ended {
        Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
        ended => ended.map(drop),
    }
}

/// Ends the operation of a dead process with `operation`, or, with `is_forced`, of any process.
/// Returns the removed files; `None` if there is no such operation.
pub(super) fn end_dead(
    objects: &Arc<dyn Objects>,
    target: &Location,
    place: Place,
    operation: &Operation,
    is_forced: bool,
) -> Result<Option<Removed>> {
    let mut run = Run::new(objects, target, place, Doing::cleanup());
    run.is_forced = is_forced;
    match run.advance(operation)? {
        Step::End => {
            let removed = run.removed;
            run.into_owned()?.release()?;
            Ok(Some(removed))
        }
        _ => Ok(None),
    }
}

/// Deletes the folder of the caller's own overwrite.
pub(super) fn delete_staged(objects: &Arc<dyn Objects>, mut owned: Owned) -> Result<()> {
    // After an error the state object stays with the files. Without it, they would count as files
    // of another program.
    owned.is_of_dead = true;
    let prefix = format!("{}/", owned.record().target);
    let mut keys: Vec<String> = objects.list(&prefix)?.into_iter().map(|object| object.key).collect();
    keys.retain(|key| key != owned.key());
    owned.objects()?.delete(&keys)?;
    owned.release()
}

/// Copies the checkpoint in `folder` to `key`, and deletes all other objects there except the state
/// object. The caller has the state object `held`, which names the folder, so readers read the
/// folder. Another process can repeat this from any moment on.
fn bring(held: &Held, key: &str, folder: &str) -> Result<()> {
    let objects = held.objects()?;
    let staged = objects.list(&format!("{folder}/"))?;
    let name_of = |object: &Object| object.key.get(folder.len() + 1..).unwrap_or_default().to_owned();
    let (markers, files): (Vec<Object>, Vec<Object>) = staged
        .into_iter()
        .filter(|object| is_marker(&name_of(object)) || !is_bookkeeping(&name_of(object)))
        .partition(|object| is_marker(&name_of(object)));
    let marker = markers.first().ok_or_else(|| {
        Error::corrupt("the folder that the state object names has no complete checkpoint")
            .in_file(objects.url(folder))
    })?;
    let old = objects.list(&format!("{key}/"))?;
    // Without markers, Orbax sees no checkpoint while files of the old and the new checkpoint are
    // mixed.
    held.objects()?.delete(&[format!("{key}/{MARKER}"), format!("{key}/{OTHER_MARKER}")])?;
    let names: BTreeSet<String> = files.iter().map(name_of).collect();
    let stale = old.into_iter().map(|object| object.key).filter(|old| {
        let name = old.get(key.len() + 1..).unwrap_or_default();
        !names.contains(name) && name != STATE && !is_marker(name)
    });
    let stale: Vec<String> = stale.collect();
    let threads = objects.suits().requests_max.min(files.len()).max(1);
    let copy = |object: &Object| {
        copy_within(objects, object, &format!("{key}/{}", name_of(object)), &|| held.check()).map(drop)
    };
    for_each_parallel(threads, &files, u64::MAX, |_| 0, copy)?;
    held.objects()?.delete(&stale)?;
    copy(marker)
}
