//! A checkpoint without rename: state object, files, marker. The parent module describes the
//! protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::commit::{commit_overwrite, lock_file, mark, written_in};
use super::copy::copy_within;
use super::found::state_at;
use super::held::{Owned, of_ticket};
use super::marker::{MARKER, OTHER_MARKER, STATE, marker_bytes, marker_line, nonce, staged_folder};
use super::refusals::{finished_first, pair_exists, refused};
use super::run::{Doing, Place, Run, delete_staged};
use super::sink::{ObjectSink, Pending, end};
use super::state::{Operation, Phase, Refusal, Step};
use super::target::{Before, LOOKS_MAX, check};
use super::{Conditional, Object, Objects, Tag, key_of};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::store::{Blob, FileWriter};
use crate::threads::for_each_parallel;
use crate::{
    BegunFolder, Identity, JoinedFolder, MergedFolder, NewFile, NewFolder, NewSiblings, Publication,
    PublishOptions, Target, TargetLock, no_such_file,
};

/// Small files are collected up to this length, and then written together.
const GATHERED_LEN_MAX_BYTES: usize = 16 << 20;

/// Begins a single file. It is locked only for the end of its upload: it appears when it is
/// complete.
pub(super) fn begin_file(
    objects: &Arc<dyn Objects>,
    target: &Location,
    options: PublishOptions<'_>,
) -> Result<NewObjects> {
    check(objects, target, &Target::File, options)?;
    NewObjects::new(objects, target, &Target::File, options, nonce()?)
}

/// Begins a folder: the target's own, or a new one beside the checkpoint that is there.
pub(super) fn begin_folder(
    objects: &Arc<dyn Objects>,
    target: &Location,
    options: PublishOptions<'_>,
) -> Result<NewObjects> {
    let key = key_of(objects, target.path())?;
    for _ in 0..LOOKS_MAX {
        let before = check(objects, target, &Target::Folder, options)?;
        let is_staged = before == Before::Old;
        let folder = if is_staged { staged_folder(&key, &nonce()?) } else { key.clone() };
        let mut run = Run::new(objects, target, Place::Folder(folder.clone()), doing(options));
        if before != Before::Unfinished {
            // Nothing is there, or no other process knows the name of the folder.
            run.take(Phase::Writing, None)?;
        }
        let save = Operation::Save { is_written: false, continues: false };
        match if is_staged { Step::Write } else { run.advance(&save)? } {
            Step::Write => {}
            // Another process has committed since the look. An overwrite replaces its checkpoint.
            Step::Refuse(Refusal::Exists) if options.overwrite => continue,
            Step::Refuse(Refusal::Foreign) => return Err(finished_first(target)),
            Step::Refuse(refusal) => return Err(refused(refusal, target)),
            _ => return Err(finished_first(target)),
        }
        let owned = run.into_owned()?;
        let nonce = owned.record().nonce;
        let mut new = NewObjects::new(objects, target, &Target::Folder, options, nonce)?;
        (new.folder, new.is_staged, new.owned) = (folder, is_staged, Some(owned));
        return Ok(new);
    }
    Err(finished_first(target))
}

/// Begins several files of one stem.
pub(super) fn begin_siblings(
    objects: &Arc<dyn Objects>,
    target: &Location,
    suffixes: &[String],
    options: PublishOptions<'_>,
) -> Result<NewObjects> {
    let kind = Target::Siblings { suffixes: suffixes.to_vec() };
    check(objects, target, &kind, options)?;
    let place = Place::Beside { key: key_of(objects, target.path())?, suffixes: suffixes.to_vec() };
    let mut run = Run::new(objects, target, place, doing(options));
    run.replaces_others = options.overwrite;
    match run.advance(&Operation::Save { is_written: false, continues: false })? {
        Step::Write => {}
        _ => return Err(pair_exists(target, suffixes, options.overwrite)),
    }
    let owned = run.into_owned()?;
    let nonce = owned.record().nonce;
    let mut new = NewObjects::new(objects, target, &kind, options, nonce)?;
    new.owned = Some(owned);
    Ok(new)
}

fn doing(options: PublishOptions<'_>) -> Doing {
    Doing::new("save", options.wait, options.monitor)
}

/// Joins the checkpoint that another process has begun. The ticket contains the nonce and the
/// folder.
pub(super) fn join(
    objects: &Arc<dyn Objects>,
    target: &Location,
    ticket: &str,
    options: PublishOptions<'_>,
) -> Result<NewObjects> {
    let Some((nonce, folder)) = ticket.split_once(' ') else {
        return Err(Error::invalid(format!("{ticket:?} is not the ticket of a save")).in_file(target));
    };
    // The process that began the save decides how long the save counts as running, and removes
    // objects that are not committed.
    let state = state_at(objects, folder, &format!("{folder}/{STATE}"))?;
    if state.is_none_or(|state| state.record.nonce != nonce) {
        return Err(Error::new(ErrorKind::NotFound, "the save that this process joined has already ended")
            .in_file(target)
            .help("the process that started it gave up, or writes to another bucket"));
    }
    let mut joined = NewObjects::new(objects, target, &Target::Folder, options, nonce.to_owned())?;
    folder.clone_into(&mut joined.folder);
    joined.is_over = true;
    Ok(joined)
}

/// The objects that are written so far.
#[derive(Debug, Default)]
struct State {
    /// Length and version of every object of this save, by key.
    written: BTreeMap<String, (u64, Tag)>,
    /// Small files that will be written together.
    gathered: Vec<(String, Bytes)>,
    gathered_bytes: usize,
    /// The layout's text for the marker, which is written last; `None` if the layout has no marker.
    marker: Option<Vec<u8>>,
    names: BTreeSet<String>,
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(super) struct NewObjects {
    objects: Arc<dyn Objects>,
    target: Location,
    key: String,
    /// The folder for the files; empty if the checkpoint is not a folder.
    folder: String,
    kind: Target,
    overwrite: bool,
    durable: bool,
    monitor: Monitor,
    nonce: String,
    /// Whether the folder is one beside the checkpoint that this save replaces.
    is_staged: bool,
    doing: Doing,
    state: Arc<Mutex<State>>,
    /// Locked while a thread writes the collected files.
    flushing: Mutex<()>,
    reused_bytes: AtomicU64,
    /// The process that may remove the objects. A forked child must not.
    pid: u32,
    is_over: bool,
    /// The state object of the folder, or of the files of one stem; `None` in a process that has
    /// joined the save.
    owned: Option<Owned>,
    /// The upload of a single file, which the commit ends.
    pending: Pending,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NewObjects {
    fn new(
        objects: &Arc<dyn Objects>,
        target: &Location,
        kind: &Target,
        options: PublishOptions<'_>,
        nonce: String,
    ) -> Result<Self> {
        Ok(Self {
            objects: Arc::clone(objects),
            target: target.clone(),
            key: key_of(objects, target.path())?,
            folder: String::new(),
            kind: kind.clone(),
            overwrite: options.overwrite,
            durable: options.durable,
            monitor: options.monitor.clone(),
            nonce,
            is_staged: false,
            doing: doing(options),
            state: Arc::default(),
            flushing: Mutex::default(),
            reused_bytes: AtomicU64::new(0),
            pid: std::process::id(),
            is_over: false,
            owned: None,
            pending: Arc::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn note(&self, key: String, len_bytes: u64, tag: Tag) {
        self.state().written.insert(key, (len_bytes, tag));
    }

    /// The key for a file of the folder. Reserves the name, so that no other file gets it.
    fn take_name(&self, name: &str) -> Result<String> {
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let file = || self.objects.url(&format!("{}/{name}", self.folder));
        if !name.split('/').all(is_part) {
            return Err(
                Error::invalid("a name in a checkpoint has no empty, `.` or `..` parts").in_file(file())
            );
        }
        if !self.state().names.insert(name.to_owned()) {
            return Err(
                Error::new(ErrorKind::AlreadyExists, "the same file is written twice").in_file(file())
            );
        }
        Ok(format!("{}/{name}", self.folder))
    }

    fn sink(&self, key: String, expected_len_bytes: u64, checksums_from: u64) -> Result<ObjectSink> {
        self.check_owned()?;
        let (state, noted) = (Arc::clone(&self.state), key.clone());
        let on_finish = Box::new(move |len_bytes: u64, tag: Tag| {
            locked(&state).written.insert(noted, (len_bytes, tag));
        });
        let sink = ObjectSink::begin(
            &*self.objects,
            &key,
            expected_len_bytes,
            checksums_from,
            &self.monitor,
            on_finish,
        )?;
        Ok(match &self.owned {
            Some(owned) => sink.owned_by(owned),
            None => sink,
        })
    }

    /// Writes the collected small files with many concurrent requests.
    ///
    /// All files exist when this returns, including those that another thread was writing.
    fn flush(&self) -> Result<()> {
        let _flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_owned()?;
        let gathered = {
            let mut state = self.state();
            state.gathered_bytes = 0;
            std::mem::take(&mut state.gathered)
        };
        let threads = self.objects.suits().requests_max.min(gathered.len()).max(1);
        for_each_parallel(
            threads,
            gathered,
            u64::MAX,
            |_| 0,
            |(key, bytes)| {
                let len_bytes = bytes.len() as u64;
                let tag = self.objects.put(&key, bytes)?;
                self.note(key, len_bytes, tag);
                self.monitor.advance(len_bytes)
            },
        )
    }

    /// Shows that the files of this save are still its own.
    fn check_owned(&self) -> Result<()> {
        self.owned.as_ref().map_or(Ok(()), |owned| owned.check())
    }

    /// Returns an error if another save has overwritten an object of this save, because it took
    /// this process for dead.
    fn check_written(&self, listed: &[Object]) -> Result<()> {
        let state = self.state();
        let is_anothers = |object: &Object| match state.written.get(&object.key) {
            Some((_, tag)) => tag.is_known() && object.tag.is_known() && !tag.is_same(&object.tag),
            None => false,
        };
        if listed.iter().any(is_anothers) { Err(finished_first(&self.target)) } else { Ok(()) }
    }

    /// Creates the marker of the folder, unless there is one.
    fn mark(&self) -> Result<()> {
        let text = self.state().marker.clone();
        let name = if text.is_some() { MARKER } else { OTHER_MARKER };
        let marker = format!("{}/{name}", self.folder);
        let bytes = marker_bytes(&text.unwrap_or_default(), &self.objects.url(&self.folder), &self.nonce);
        let tag = mark(&self.objects, &self.target, &marker, bytes)?;
        self.note(marker, 0, tag);
        Ok(())
    }

    fn commit_folder(&mut self, lock: Option<&TargetLock>) -> Result<()> {
        self.flush()?;
        self.monitor.check()?;
        self.monitor.enter(Stage::Commit);
        if self.is_staged {
            self.mark()?;
            let place = Place::Folder(self.key.clone());
            let run = Run::new(&self.objects, &self.target, place, self.doing.clone());
            let run = run.with(lock.and_then(|lock| of_ticket(&lock.nonce)));
            return commit_overwrite(&self.objects, run, &self.target, &mut self.owned);
        }
        let Some(owned) = &self.owned else { return Err(finished_first(&self.target)) };
        self.check_written(&written_in(&self.objects, &self.target, &self.folder, owned)?)?;
        self.mark()?;
        // Readers ignore the state of a save beside a marker, so it may stay if this fails.
        let _ = self.owned.take().map_or(Ok(()), Owned::release);
        Ok(())
    }

    fn commit_file(&mut self, lock: Option<&TargetLock>) -> Result<()> {
        let upload = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(upload) = upload else { return Err(no_such_file()) };
        self.monitor.check()?;
        self.monitor.enter(Stage::Commit);
        let lock = match lock {
            None => Some(lock_file(&self.objects, &self.target, &self.key, self.doing.clone())?),
            Some(_) => None,
        };
        end(upload, (!self.overwrite).then_some(&self.target))?;
        self.is_over = true;
        // The file is committed, and a lock that stays is that of a dead process.
        let _ = lock.map_or(Ok(()), Owned::release);
        Ok(())
    }

    /// Removes all objects in the folder, including those whose write had no answer.
    fn remove_folder(&self, owned: Owned) -> Result<()> {
        // The marker may exist, if its creation had no answer.
        owned.set(|record| record.phase = Phase::Removing)?;
        // The list may miss the last writes.
        let names = [MARKER, OTHER_MARKER].map(str::to_owned).into_iter().chain(self.state().names.clone());
        self.objects.delete(&names.map(|name| format!("{}/{name}", self.folder)).collect::<Vec<_>>())?;
        delete_staged(&self.objects, owned)
    }

    /// Removes the files of one stem, or the file, of this save.
    fn remove_files(&self) -> Result<()> {
        // Another save may have written the same names since, so delete only objects with this
        // save's tags.
        let is_own = |(key, (_, tag)): (&String, &(u64, Tag))| {
            let found = self.objects.head(key).ok().flatten();
            found.filter(|found| found.tag.is_same(tag)).map(|found| found.key)
        };
        let keys: Vec<String> = self.state().written.iter().filter_map(is_own).collect();
        self.objects.delete(&keys)
    }
}

impl Publication for NewObjects {
    fn stored_bytes(&self) -> Result<u64> {
        Ok(self.share_len_bytes())
    }

    fn commit_under(mut self: Box<Self>, lock: Option<&TargetLock>) -> Result<()> {
        let monitor = self.monitor.clone();
        monitor.timed(Stage::Commit, 0, || match self.kind {
            Target::Folder => self.commit_folder(lock),
            Target::File => self.commit_file(lock),
            Target::Siblings { .. } => {
                // The last file is written, so the checkpoint is committed.
                self.is_over = true;
                let _ = self.owned.take().map_or(Ok(()), Owned::release);
                Ok(())
            }
        })
    }

    fn has_lock(&self) -> bool {
        matches!(self.kind, Target::Siblings { .. })
    }

    fn made_folders(&self) -> Vec<Location> {
        Vec::new()
    }
}

impl NewFolder for NewObjects {
    fn target(&self) -> &Location {
        &self.target
    }

    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn is_durable(&self) -> bool {
        self.durable
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let key = self.take_name(name)?;
        if name == MARKER {
            self.state().marker = Some(bytes.to_vec());
            return Ok(());
        }
        let is_full = {
            let mut state = self.state();
            state.gathered_bytes += bytes.len();
            state.gathered.push((key, Bytes::copy_from_slice(bytes)));
            state.gathered_bytes >= GATHERED_LEN_MAX_BYTES
        };
        if is_full { self.flush() } else { Ok(()) }
    }

    fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        let key = self.take_name(name)?;
        self.sink(key, expected_len_bytes, checksums_from).map(FileWriter::new)
    }

    /// Copies the object within the bucket. Each checkpoint has its own objects, so deleting one
    /// checkpoint does not damage the other.
    fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        let Some((from, identity)) = opened.object() else { return Ok(false) };
        let is_here = source.describe().as_os_str() == self.objects.url(&from).as_str();
        let found = if is_here { self.objects.head(&from)? } else { None };
        let same = |object: &Object| {
            Identity::of_objects(object.tag.text()) == identity && object.len_bytes == opened.len_bytes()
        };
        let Some(object) = found.filter(same) else { return Ok(false) };
        self.check_owned()?;
        let key = format!("{}/{name}", self.folder);
        match copy_within(&self.objects, &object, &key) {
            Ok(tag) => {
                self.take_name(name)?;
                self.note(key, object.len_bytes, tag);
                self.reused_bytes.fetch_add(object.len_bytes, Ordering::Relaxed);
                self.monitor.advance(object.len_bytes)?;
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Replaced) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn reused_bytes(&self) -> u64 {
        self.reused_bytes.load(Ordering::Relaxed)
    }

    fn written(&self, name: &str) -> Result<Vec<u8>> {
        let key = format!("{}/{name}", self.folder);
        self.flush()?;
        match self.objects.get(&key)? {
            Some((bytes, _)) => Ok(bytes.to_vec()),
            None => Err(Error::new(ErrorKind::NotFound, "the files of another process are missing")
                .in_file(self.objects.url(&key))),
        }
    }

    fn marker_line(&self) -> Option<String> {
        Some(marker_line(&self.nonce))
    }

    fn local_folder(&self) -> Option<&Path> {
        None
    }
}

impl BegunFolder for NewObjects {
    fn ticket(&self) -> Result<String> {
        Ok(format!("{} {}", self.nonce, self.folder))
    }
}

impl MergedFolder for NewObjects {
    fn sweep(&self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        let prefix = match below.is_empty() {
            true => format!("{}/", self.folder),
            false => format!("{}/{below}/", self.folder),
        };
        let all = self.objects.list(&prefix)?;
        let keys = all.into_iter().map(|object| object.key);
        let left: Vec<String> = keys.filter(|key| key.strip_prefix(&prefix).is_some_and(is_left)).collect();
        self.objects.delete(&left)
    }

    fn withdraw(&self, name: &str) -> Result<()> {
        let key = format!("{}/{name}", self.folder);
        self.flush()?;
        self.objects.delete(std::slice::from_ref(&key))?;
        self.state().written.remove(&key);
        Ok(())
    }
}

impl JoinedFolder for NewObjects {
    fn claim(&self, name: &str) -> Result<bool> {
        let sign = format!("{}/{name}", self.folder);
        Ok(matches!(self.objects.create(&sign, nonce()?.into())?, Conditional::Done(_)))
    }

    fn share_len_bytes(&self) -> u64 {
        let state = self.state();
        let written: u64 = state.written.values().map(|(len_bytes, _)| *len_bytes).sum();
        written + state.gathered.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>()
    }

    fn finish_share(&self) -> Result<()> {
        self.flush()?;
        self.monitor.check()?;
        self.check_written(&self.objects.list(&format!("{}/", self.folder))?)
    }

    /// Looks for the nonce in the marker of the target or of the folder: an overwrite moves the
    /// objects.
    fn is_published(&self) -> Result<bool> {
        let settled = key_of(&self.objects, self.target.path())?;
        let nonce = marker_line(&self.nonce);
        for folder in [&self.folder, &settled] {
            for name in [MARKER, OTHER_MARKER] {
                let found = self.objects.get(&format!("{folder}/{name}"))?;
                let has = |bytes: &[u8]| bytes.windows(nonce.len()).any(|part| part == nonce.as_bytes());
                if found.is_some_and(|(bytes, _)| has(&bytes)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl NewFile for NewObjects {
    fn target(&self) -> &Location {
        &self.target
    }

    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        // The object appears when its upload ends, so the commit ends it.
        let pending = Arc::clone(&self.pending);
        let sink = self.sink(self.key.clone(), expected_len_bytes, checksums_from)?;
        Ok(FileWriter::new(sink.leave_end_to(pending)))
    }
}

impl NewSiblings for NewObjects {
    fn target(&self) -> &Location {
        &self.target
    }

    fn sibling_writer(&self, at: usize, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        let suffix = match &self.kind {
            Target::Siblings { suffixes } => suffixes.get(at),
            _ => None,
        };
        let suffix = suffix.ok_or_else(no_such_file)?;
        // Another process may have taken over the files of a save that seemed dead.
        self.owned.as_ref().map_or(Ok(()), |owned| owned.set(|_| {}))?;
        let key = key_of(&self.objects, self.target.with_suffix(suffix).path())?;
        self.sink(key, expected_len_bytes, checksums_from).map(FileWriter::new)
    }
}

impl Drop for NewObjects {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        // Objects that cannot be removed now keep their state object, and the next save removes
        // them.
        match (self.owned.take(), &self.kind) {
            (Some(owned), Target::Folder) => drop(self.remove_folder(owned)),
            (Some(owned), _) => match owned.check().and_then(|()| self.remove_files()) {
                Ok(()) => drop(owned.release()),
                Err(_) => owned.leave(),
            },
            (None, _) => {}
        }
    }
}
