//! A checkpoint without rename: claim, objects, marker. The parent module describes the protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::copy::copy_within;
use super::listing::Listing;
use super::marker::{
    CLAIM, Claim, MARKER, MOVED, Moved, OTHER_MARKER, Running, claim_of_siblings, marker_bytes, marker_line,
    nonce, staged_folder, take_left,
};
use super::renewal::Renewal;
use super::settle::{Copies, Hold, settle, settle_moved, sweep};
use super::sink::ObjectSink;
use super::target::{Before, LOOKS_MAX, beside_without_last, check, claim_siblings, has_begun};
use super::{Conditional, Object, Objects, Tag, key_of};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::store::{Blob, FileWriter};
use crate::threads::{Task, for_each_parallel};
use crate::{
    BegunFolder, Identity, JoinedFolder, MergedFolder, NewFile, NewFolder, NewSiblings, Publication,
    PublishOptions, Target, TargetLock, no_such_file,
};

/// Small files are collected up to this length, and then written together.
const GATHERED_LEN_MAX_BYTES: usize = 16 << 20;

/// Begins a single file. It has no claim: it appears when it is complete.
pub(super) fn begin_file(
    objects: &Arc<dyn Objects>,
    target: &Location,
    options: PublishOptions<'_>,
) -> Result<NewObjects> {
    check(objects, target, &Target::File, options)?;
    let nonce = nonce()?;
    let running = Running::begin(&nonce);
    NewObjects::new(objects, target, &Target::File, options, nonce, Some(running))
}

/// Claims a folder: the target's own, or a new one beside the checkpoint that is there.
///
/// A [`NewObjects`] is made only after its claim. So an error before the claim removes nothing.
pub(super) fn begin_folder(
    objects: &Arc<dyn Objects>,
    target: &Location,
    options: PublishOptions<'_>,
) -> Result<NewObjects> {
    let before = check(objects, target, &Target::Folder, options)?;
    let nonce = nonce()?;
    let key = key_of(objects, target.path())?;
    let (folder, old) = match without_left(objects, target, options, before)? {
        Before::Nothing | Before::Leftovers(..) | Before::Others => (key, None),
        Before::Old(old) => {
            let old = settle_moved(objects, &key, old)?;
            // Objects that cannot be removed now are not a checkpoint. The next save removes them.
            let _ = sweep(objects, &key, Copies::Go);
            (staged_folder(&key, &nonce), Some(old))
        }
    };
    let (running, content) = (Running::begin(&nonce), Claim::new(&nonce));
    let claim = format!("{folder}/{CLAIM}");
    if let Conditional::Lost(..) = objects.create(&claim, content.to_bytes())? {
        return Err(has_begun(target));
    }
    if old.is_none() {
        check_alone(objects, target, &folder, &claim)?;
    }
    let mut new = NewObjects::new(objects, target, &Target::Folder, options, nonce, Some(running))?;
    (new.folder, new.old) = (folder, old);
    new.renewal = Some(Renewal::begin(objects, &claim, &content));
    Ok(new)
}

/// Takes the claim of several files of one stem.
pub(super) fn begin_siblings(
    objects: &Arc<dyn Objects>,
    target: &Location,
    suffixes: &[String],
    options: PublishOptions<'_>,
) -> Result<NewObjects> {
    let kind = Target::Siblings { suffixes: suffixes.to_vec() };
    let before = check(objects, target, &kind, options)?;
    let nonce = nonce()?;
    let key = key_of(objects, target.path())?;
    let vouched = if matches!(before, Before::Others) { &[][..] } else { suffixes };
    let (running, content) =
        (Running::begin(&nonce), Claim { suffixes: vouched.to_vec(), ..Claim::new(&nonce) });
    claim_siblings(objects, target, &key, &content)?;
    let claim = claim_of_siblings(&key);
    if let Err(error) = check_beside(objects, target, suffixes, options.overwrite, &before) {
        let _ = objects.delete(&[claim]);
        return Err(error);
    }
    let mut new = NewObjects::new(objects, target, &kind, options, nonce, Some(running))?;
    new.renewal = Some(Renewal::begin(objects, &claim, &content));
    Ok(new)
}

/// Returns an error if another save has committed, and removed its claim, between the look at the
/// target and this claim. Later saves find this claim.
fn check_alone(objects: &Arc<dyn Objects>, target: &Location, folder: &str, claim: &str) -> Result<()> {
    let listed = objects.list_page(&format!("{folder}/"));
    if matches!(&listed, Ok((all, _)) if all.iter().all(|object| object.key == claim)) {
        return Ok(());
    }
    let _ = objects.delete(&[claim.to_owned()]);
    listed?;
    Err(finished_first(target))
}

/// Returns an error if another save has ended between the look at the files and the claim. Later
/// saves find the claim.
fn check_beside(
    objects: &Arc<dyn Objects>,
    target: &Location,
    suffixes: &[String],
    overwrite: bool,
    before: &Before,
) -> Result<()> {
    let there = beside_without_last(objects, target, suffixes, overwrite)?;
    match before {
        Before::Nothing if !there.is_empty() => Err(finished_first(target)),
        _ => Ok(()),
    }
}

fn finished_first(target: &Location) -> Error {
    Error::new(ErrorKind::AlreadyExists, "another save to this target finished first").in_file(target)
}

/// Removes the files of a dead writer in a folder. Returns the state of the target afterwards.
///
/// # Errors
/// `AlreadyExists` if another save has started there; errors of the bucket.
fn without_left(
    objects: &Arc<dyn Objects>,
    target: &Location,
    options: PublishOptions<'_>,
    mut before: Before,
) -> Result<Before> {
    for _ in 0..LOOKS_MAX {
        let Before::Leftovers(dead, left) = before else { return Ok(before) };
        // If several saves find the dead claim, only one takes it.
        if let Some(_swept) = take_left(objects, &dead)? {
            // Delete the claim last: it marks the other objects as those of a dead writer.
            let others = left.into_iter().map(|object| object.key).filter(|key| *key != dead.key);
            objects.delete(&others.collect::<Vec<_>>())?;
            objects.delete(&[dead.key])?;
            return Ok(Before::Nothing);
        }
        before = check(objects, target, &Target::Folder, options)?;
    }
    Err(has_begun(target))
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
    let mut joined = NewObjects::new(objects, target, &Target::Folder, options, nonce.to_owned(), None)?;
    folder.clone_into(&mut joined.folder);
    (joined.is_over, joined.is_joined, joined.make_way) = (true, true, None);
    joined.check_claim()?;
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
    /// The listing of the checkpoint that this save replaces.
    old: Option<Listing>,
    make_way: Option<fn(&Location) -> Result<()>>,
    /// The version of the file that the new file may replace; `None` for any file.
    in_place_of: Option<Option<Tag>>,
    state: Arc<Mutex<State>>,
    /// Locked while a thread writes the collected files.
    flushing: Mutex<()>,
    reused_bytes: AtomicU64,
    /// The process that may remove the objects. A forked child must not.
    pid: u32,
    is_over: bool,
    /// Whether another process has begun the checkpoint, and commits it.
    is_joined: bool,
    /// Renews the claim of this save until the claim is removed.
    renewal: Option<Renewal>,
    _running: Option<Running>,
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
        running: Option<Running>,
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
            old: None,
            make_way: options.make_way,
            in_place_of: None,
            state: Arc::default(),
            flushing: Mutex::default(),
            reused_bytes: AtomicU64::new(0),
            pid: std::process::id(),
            is_over: false,
            is_joined: false,
            renewal: None,
            _running: running,
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
        let (state, noted) = (Arc::clone(&self.state), key.clone());
        let on_finish = Box::new(move |len_bytes: u64, tag: Tag| {
            locked(&state).written.insert(noted, (len_bytes, tag));
        });
        ObjectSink::begin(&*self.objects, &key, expected_len_bytes, checksums_from, &self.monitor, on_finish)
    }

    /// Writes the collected small files with many concurrent requests.
    ///
    /// All files exist when this returns, including those that another thread was writing.
    fn flush(&self) -> Result<()> {
        let _flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
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

    fn claim_key(&self) -> String {
        match self.kind {
            Target::Folder => format!("{}/{CLAIM}", self.folder),
            Target::File | Target::Siblings { .. } => claim_of_siblings(&self.key),
        }
    }

    /// Returns an error if another save has overwritten an object of this save. This happens if
    /// both saves took over the claim of the same dead writer.
    fn check_written(&self) -> Result<()> {
        let listed = self.objects.list(&format!("{}/", self.folder))?;
        let state = self.state();
        let is_anothers = |object: &Object| match state.written.get(&object.key) {
            Some((_, tag)) => tag.is_known() && object.tag.is_known() && !tag.is_same(&object.tag),
            None => false,
        };
        if listed.iter().any(is_anothers) { Err(finished_first(&self.target)) } else { Ok(()) }
    }

    /// Creates the marker, unless another process has already created one.
    fn mark(&self, folder: &str) -> Result<()> {
        let text = self.state().marker.clone();
        let name = if text.is_some() { MARKER } else { OTHER_MARKER };
        let marker = format!("{folder}/{name}");
        let bytes = marker_bytes(&text.unwrap_or_default(), &self.objects.url(folder), &self.nonce);
        match self.objects.create(&marker, bytes)? {
            Conditional::Done(tag) => {
                self.note(marker, 0, tag);
                Ok(())
            }
            Conditional::Lost(..) => Err(finished_first(&self.target)),
        }
    }

    fn commit_folder(&mut self) -> Result<()> {
        self.flush()?;
        self.monitor.check()?;
        self.monitor.enter(Stage::Commit);
        self.renewal = None;
        // The two requests are independent, so they run at the same time.
        std::thread::scope(|scope| {
            let written = Task::begin(scope, "regrow-check", || match &self.old {
                None => self.check_written(),
                Some(_) => Ok(()),
            });
            self.check_claim().and(written.join())
        })?;
        let claim = self.claim_key();
        match self.old.take() {
            None => {
                let marked = self.mark(&self.folder);
                // If another writer's marker exists, these objects are a checkpoint and must stay.
                self.is_over = !matches!(&marked, Err(error) if error.kind() != ErrorKind::AlreadyExists);
                marked?;
                // Readers ignore a claim beside a marker, so the claim may stay if this fails.
                let _ = self.objects.delete(&[claim]);
                Ok(())
            }
            Some(old) => {
                self.mark(&self.folder)?;
                let key = self.key.clone();
                let moved = Moved { nonce: self.nonce.clone(), folder: self.folder.clone() };
                let _hold = Hold::take(&self.objects, &key)?;
                match self.objects.create(&format!("{key}/{MOVED}"), moved.to_bytes())? {
                    Conditional::Done(_) => self.is_over = true,
                    Conditional::Lost(..) => return Err(finished_first(&self.target)),
                }
                // The new checkpoint is committed. If the cleanup fails, the next overwrite repeats
                // it.
                let _ = self.objects.delete(&[claim]);
                let _ = settle(&self.objects, &key, &self.folder, old.prefix());
                Ok(())
            }
        }
    }

    /// Removes all objects in the folder, including those whose write had no answer. The claim is
    /// removed last, because it shows that the others are unfinished.
    fn remove_folder(&mut self) -> Result<()> {
        self.renewal = None;
        self.check_claim()?;
        let all = self.objects.list(&format!("{}/", self.folder))?;
        let mut keys: BTreeSet<String> = all.into_iter().map(|object| object.key).collect();
        // The list may miss the last writes. Without a claim, a file that stays would look like
        // part of a checkpoint.
        keys.extend(self.state().names.iter().map(|name| format!("{}/{name}", self.folder)));
        let (claim, others): (Vec<String>, Vec<String>) =
            keys.into_iter().partition(|key| key.ends_with(CLAIM));
        self.objects.delete(&others)?;
        self.objects.delete(&claim)
    }

    /// Returns an error if another writer has taken over the claim because it considered this save
    /// dead.
    fn check_claim(&self) -> Result<()> {
        let claim = self.claim_key();
        let found = self.objects.get(&claim)?.and_then(|(bytes, _)| Claim::parse(&bytes));
        match found.is_some_and(|found| found.nonce == self.nonce) {
            true => Ok(()),
            false if self.is_joined => {
                Err(Error::new(ErrorKind::NotFound, "the save that this process joined has already ended")
                    .in_file(&self.target)
                    .help("the process that started it gave up, or writes to another bucket"))
            }
            false => Err(finished_first(&self.target)),
        }
    }
}

impl Publication for NewObjects {
    fn stored_bytes(&self) -> Result<u64> {
        Ok(self.share_len_bytes())
    }

    fn commit_under(mut self: Box<Self>, _lock: Option<&TargetLock>) -> Result<()> {
        let monitor = self.monitor.clone();
        monitor.timed(Stage::Commit, 0, || match self.kind {
            Target::Folder => self.commit_folder(),
            Target::File => {
                self.is_over = true;
                Ok(())
            }
            Target::Siblings { .. } => {
                self.renewal = None;
                // The last file is written, so the checkpoint is committed.
                self.is_over = true;
                let _ = self.objects.delete(&[self.claim_key()]);
                Ok(())
            }
        })
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
        self.check_written()
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
        // The object appears only when it is complete, so its last write is the commit.
        let sink = self.sink(self.key.clone(), expected_len_bytes, checksums_from)?;
        let sink = match &self.in_place_of {
            Some(before) => sink.in_place_of(&self.target, before.clone()),
            None if self.overwrite => sink,
            None => sink.only_new(&self.target),
        };
        let (monitor, make_way, target) = (self.monitor.clone(), self.make_way, self.target.clone());
        Ok(FileWriter::new(sink.before_end(Box::new(move || {
            // Call the monitor while the save can still be cancelled.
            monitor.finish()?;
            make_way.map_or(Ok(()), |make_way| make_way(&target))
        }))))
    }

    fn is_named_by_write(&self) -> bool {
        true
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
        // Another process may have taken over the claim of a save that seemed dead.
        self.check_claim()?;
        let key = key_of(&self.objects, self.target.with_suffix(suffix).path())?;
        self.sink(key, expected_len_bytes, checksums_from).map(FileWriter::new)
    }
}

impl Drop for NewObjects {
    fn drop(&mut self) {
        // A single file that exists by now is complete, because its layout has finished it.
        if self.is_over || self.pid != std::process::id() || self.kind == Target::File && self.overwrite {
            return;
        }
        if self.kind == Target::Folder {
            // Objects that cannot be removed now keep their claim, and the next save removes them.
            let _ = self.remove_folder();
        } else {
            // Another save may have written the same names since, so delete only objects with this
            // save's tags.
            let is_own = |(key, (_, tag)): (&String, &(u64, Tag))| {
                let found = self.objects.head(key).ok().flatten();
                found.filter(|found| found.tag.is_same(tag)).map(|found| found.key)
            };
            let keys: Vec<String> = self.state().written.iter().filter_map(is_own).collect();
            let gone = self.objects.delete(&keys);
            self.renewal = None;
            // Delete the claim last: it marks the other objects as those of a dead writer.
            if gone.is_ok() && self.kind != Target::File && self.check_claim().is_ok() {
                let _ = self.objects.delete(&[self.claim_key()]);
            }
        }
    }
}
