//! A checkpoint that a save or a copy writes: its files, its state object, and its commit.

use std::sync::Arc;

use bytes::Bytes;

use super::copy::Check;
use super::held::{Held, Owned, of_ticket, swap};
use super::marker::{COPY, MARKER, OTHER_MARKER, nonce, staged_folder};
use super::record::Record;
use super::refusals::{finished_first, pair_exists, refused};
use super::remove::{finish, lock_place};
use super::run::{Doing, LOOKS_MAX, Place, Run, delete_staged};
use super::sink::{ObjectSink, OnFinish};
use super::state::{Operation, Phase, Refusal, Step};
use super::target::{Before, check, check_name};
use super::{Conditional, Objects, key_of};
use crate::error::Result;
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::{PublishOptions, Target, TargetLock, no_such_file};

/// A checkpoint that is being written.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) objects: Arc<dyn Objects>,
    pub(super) target: Location,
    pub(super) kind: Target,
    pub(super) overwrite: bool,
    pub(super) monitor: Monitor,
    doing: Doing,
    /// The key of the target.
    pub(super) key: String,
    /// The folder for the files. The single file of a copy lies there until the commit.
    pub(super) folder: String,
    /// Whether the folder is not the target.
    is_staged: bool,
    /// The state object of the files. None before the save of a single file, after the commit, and
    /// in a process that has joined a save.
    pub(super) owned: Option<Owned>,
    /// The process that may remove the files. A forked child must not.
    pid: u32,
}

impl Draft {
    /// A draft without a state object.
    pub(super) fn new(
        objects: &Arc<dyn Objects>,
        target: &Location,
        kind: &Target,
        options: PublishOptions<'_>,
        operation: &'static str,
    ) -> Result<Self> {
        let key = check_name(objects, target)?;
        Ok(Self {
            objects: Arc::clone(objects),
            target: target.clone(),
            kind: kind.clone(),
            overwrite: options.overwrite,
            monitor: options.monitor.clone(),
            doing: Doing::new(operation, options.wait, options.monitor),
            folder: key.clone(),
            key,
            is_staged: false,
            owned: None,
            pid: std::process::id(),
        })
    }

    /// Takes the state object of the files. An overwrite writes into a folder beside the target.
    /// With `is_copy`, continues a copy of a dead process, and returns its state.
    pub(super) fn begin(&mut self, options: PublishOptions<'_>, is_copy: bool) -> Result<Option<Record>> {
        let save = Operation::Save { is_written: false, continues: is_copy };
        let (objects, target) = (Arc::clone(&self.objects), self.target.clone());
        let mut is_finished = false;
        for _ in 0..LOOKS_MAX {
            let before = check(&objects, &target, &self.kind, options)?;
            self.is_staged = match self.kind {
                Target::Folder => before == Before::Old,
                Target::File => true,
                Target::Siblings { .. } => false,
            };
            if self.is_staged {
                let end = if is_copy { COPY.to_owned() } else { nonce()? };
                self.folder = staged_folder(&self.key, &end);
            } else {
                self.folder.clone_from(&self.key);
            }
            let place = match &self.kind {
                Target::Siblings { suffixes } => {
                    Place::Beside { key: self.key.clone(), suffixes: suffixes.clone() }
                }
                _ => Place::Folder(self.folder.clone()),
            };
            let mut run = Run::new(&objects, &target, place, self.doing.clone());
            if !is_copy && (before == Before::Nothing || self.is_staged) {
                // Nothing is there, or no other process knows the name of the folder.
                run.take(Phase::Writing, None)?;
            }
            match (run.advance(&save)?, &self.kind) {
                (Step::Write, _) => {
                    let dead = run.dead.take();
                    self.owned = Some(run.into_owned()?);
                    return Ok(dead);
                }
                (_, Target::Siblings { suffixes }) => {
                    return Err(pair_exists(&target, suffixes, options.overwrite));
                }
                // A dead copy has completed this folder, and perhaps committed it.
                (Step::Refuse(Refusal::Exists), _) if self.is_staged && !is_finished => {
                    is_finished = true;
                    finish(&objects, &target, &self.key, self.doing.clone())?;
                }
                // Another process has committed since the look. An overwrite replaces its
                // checkpoint.
                (Step::Refuse(Refusal::Exists), _) if options.overwrite && !self.is_staged => {}
                _ => break,
            }
        }
        Err(finished_first(&target))
    }

    /// The key of a file of several files of one stem.
    pub(super) fn sibling_key(&self, at: usize) -> Result<String> {
        let suffix = match &self.kind {
            Target::Siblings { suffixes } => suffixes.get(at),
            _ => None,
        };
        key_of(&self.objects, self.target.with_suffix(suffix.ok_or_else(no_such_file)?).path())
    }

    /// Shows that the files still belong to this process.
    pub(super) fn check(&self) -> Result<()> {
        self.owned.as_ref().map_or(Ok(()), |owned| owned.check())
    }

    /// The bucket, for the next request that writes files.
    pub(super) fn bucket(&self) -> Result<&Arc<dyn Objects>> {
        self.check().map(|()| &self.objects)
    }

    /// Begins to write the object `key`.
    pub(super) fn sink(
        &self,
        key: &str,
        expected_len_bytes: u64,
        checksums_from: u64,
        on_finish: OnFinish,
    ) -> Result<ObjectSink> {
        self.check()?;
        let owned = self.owned.as_deref().cloned();
        let (objects, monitor) = (&*self.objects, &self.monitor);
        ObjectSink::begin(objects, key, expected_len_bytes, checksums_from, monitor, owned, on_finish)
    }

    /// Begins the commit.
    pub(super) fn enter_commit(&self) -> Result<()> {
        self.monitor.check()?;
        self.monitor.enter(Stage::Commit);
        Ok(())
    }

    /// Creates the marker of the folder. Moves the folder to the target if it is another one.
    /// Deletes the marker at the end if `is_marked` is not set.
    pub(super) fn commit_folder(
        &mut self,
        marker: &str,
        bytes: Bytes,
        lock: Option<&TargetLock>,
        is_marked: bool,
    ) -> Result<()> {
        let owned = self.owned.as_ref().ok_or_else(|| finished_first(&self.target))?;
        if !self.is_staged {
            // Another process may have taken this one for dead.
            owned.set(|_| {})?;
        }
        let marker = format!("{}/{marker}", self.folder);
        match swap(&**self.bucket()?, &marker, None, bytes.clone())? {
            Conditional::Done(_) => {}
            // The marker of a copy has no nonce.
            Conditional::Lost(found, _) if found == bytes => {}
            Conditional::Lost(..) => return Err(finished_first(&self.target)),
        }
        if self.is_staged {
            return self.commit_overwrite(lock, is_marked);
        }
        if let Some(owned) = self.owned.as_ref().filter(|_| !is_marked) {
            // The checkpoint is committed. After an error, the marker stays.
            let _ = unmark(owned, &self.key);
        }
        self.release();
        Ok(())
    }

    /// Commits the checkpoint in the folder, which is complete, and moves it to the target.
    fn commit_overwrite(&mut self, lock: Option<&TargetLock>, is_marked: bool) -> Result<()> {
        let (objects, target) = (Arc::clone(&self.objects), self.target.clone());
        let place = Place::Folder(self.key.clone());
        let mut run = Run::new(&objects, &target, place, self.doing.clone())
            .with(lock.and_then(|lock| of_ticket(&lock.nonce)));
        let folder = self.folder.clone();
        let operation = |is_committed| Operation::Overwrite { staged: folder.clone(), is_committed };
        let mut moved = match run.advance(&operation(false))? {
            Step::Take(phase) => {
                // Another owner of the target may have deleted the folder. It cannot do so now.
                self.owned.as_ref().map_or(Ok(()), |owned| owned.set(|_| {}))?;
                run.take(phase, None)
            }
            Step::Refuse(refusal) => return Err(refused(refusal, &target)),
            _ => return Err(finished_first(&target)),
        };
        if moved.is_err() {
            // A renewal may have found out by now what the write has done.
            let phase = Phase::Moved(folder.clone());
            match run.held().and_then(|held| held.has_phase(&phase)) {
                Some(true) => moved = Ok(()),
                Some(false) => return moved,
                None => {}
            }
        }
        let Some(owned) = self.owned.take() else { return moved };
        // The new checkpoint is committed, or may be. If the cleanup fails, the next operation
        // repeats it.
        let is_settled = moved.is_ok() && run.advance(&operation(true)).is_ok_and(|step| step == Step::End);
        if let Some(held) = run.held().filter(|_| is_settled && !is_marked) {
            let _ = unmark(held, &self.key);
        }
        match is_settled && run.end(Some(&folder)).is_ok() {
            true => drop(delete_staged(&objects, owned)),
            false => owned.leave(),
        }
        moved
    }

    /// Writes a single file with `write`, under the lock of the target. `write` checks the lock
    /// before each request that writes.
    pub(super) fn commit_file(
        &self,
        lock: Option<&TargetLock>,
        write: impl FnOnce(Check<'_>) -> Result<()>,
    ) -> Result<()> {
        let place = || Place::Beside { key: self.key.clone(), suffixes: vec![String::new()] };
        let (own, lent) = match lock {
            None => (Some(lock_place(&self.objects, &self.target, place(), self.doing.clone())?), None),
            Some(lock) => (None, of_ticket(&lock.nonce)),
        };
        let held = own.as_deref().or(lent.as_ref());
        write(&|| held.map_or(Ok(()), |held| held.check()))?;
        // The file is committed, and a lock that stays is that of a dead process.
        let _ = own.map_or(Ok(()), Owned::release);
        Ok(())
    }

    /// Deletes the state object, if the checkpoint is committed. After an error the object stays:
    /// readers ignore the state of a save beside a marker.
    pub(super) fn release(&mut self) {
        let _ = self.owned.take().map(Owned::release);
    }

    /// The state object, if the checkpoint is not committed, and if this process may remove it.
    pub(super) fn uncommitted(&mut self) -> Option<Owned> {
        self.owned.take().filter(|_| self.pid == std::process::id())
    }

    /// The keys of the markers of the folder.
    pub(super) fn markers(&self) -> impl Iterator<Item = String> {
        [MARKER, OTHER_MARKER].into_iter().map(|name| format!("{}/{name}", self.folder))
    }

    /// Deletes the files `keys`, the whole folder, and the state object. If this fails, the next
    /// operation repeats it.
    pub(super) fn discard(&self, mut owned: Owned, keys: &[String]) -> Result<()> {
        // After an error the state object stays with the files.
        owned.is_of_dead = true;
        owned.set(|record| record.phase = Phase::Removing)?;
        if self.kind == Target::Folder {
            // Other programs must find no marker while files are missing. It exists if the answer
            // to its creation was lost.
            owned.objects()?.delete(&self.markers().collect::<Vec<_>>())?;
        }
        // The list may miss the last writes.
        owned.objects()?.delete(keys)?;
        match self.kind {
            Target::Siblings { .. } => owned.release(),
            _ => delete_staged(&self.objects, owned),
        }
    }
}

/// Deletes the marker of a folder of steps. With the marker the whole folder would be one
/// checkpoint, and an overwrite would replace all its steps.
fn unmark(held: &Held, folder: &str) -> Result<()> {
    // In phase `writing`, files without a marker are not a checkpoint.
    held.set(|record| record.phase = Phase::Changing)?;
    held.objects()?.delete(&[format!("{folder}/{OTHER_MARKER}")])
}
