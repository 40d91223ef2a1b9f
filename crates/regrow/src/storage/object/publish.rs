//! A checkpoint without rename: claim, objects, marker. The module above tells the story.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::listing::Listing;
use super::marker::{
    CLAIM, Claim, MARKER, MOVED, Moved, OTHER_MARKER, is_bookkeeping, marker_bytes, marker_line, nonce,
    staged_folder,
};
use super::sink::ObjectSink;
use super::{Conditional, Object, Objects, Tag, key_of};
use crate::commit::CHECKPOINT_MARKERS;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::UNCOMMITTED_MARK;
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::storage::{Identity, Publication, PublishOptions, Target, no_such_file};
use crate::store::{Blob, FileWriter};
use crate::threads::for_each_parallel;

/// A claim whose writer cannot be asked is respected for so long.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(60 * 60);

/// Small files are gathered up to so many bytes, and then written at once.
const GATHERED_LEN_MAX_BYTES: usize = 16 << 20;

/// What is at a target before a save.
#[derive(Debug)]
pub(super) enum Before {
    /// Nothing.
    Nothing,
    /// What a writer has left that is gone: its objects.
    Leftovers(Vec<Object>),
    /// A checkpoint, or a file, that may be replaced.
    Old(Listing),
}

/// The key of a target whose name is one for a checkpoint.
pub(super) fn check_name(objects: &Arc<dyn Objects>, target: &Location) -> Result<String> {
    let key = key_of(objects, target.path())?;
    if key.is_empty() {
        return Err(Error::invalid("a bucket itself is no checkpoint")
            .in_file(target)
            .help("give the place of the checkpoint in it, such as `bucket/runs/a/step_100`"));
    }
    if target.name_text().contains(UNCOMMITTED_MARK) {
        return Err(Error::invalid(format!(
            "a name with {UNCOMMITTED_MARK} in it is that of a save that has not ended"
        ))
        .in_file(target)
        .help("no reader would open it; choose another name"));
    }
    Ok(key)
}

pub(super) fn exists_already(target: &Location) -> Error {
    Error::new(ErrorKind::AlreadyExists, "the target exists already")
        .in_file(target)
        .help("choose another path, or ask for it to be replaced (`overwrite`)")
}

/// Errs unless the target may be taken; what is there.
pub(super) fn check(
    objects: &Arc<dyn Objects>,
    target: &Location,
    options: PublishOptions<'_>,
) -> Result<Before> {
    let key = check_name(objects, target)?;
    let exists = || exists_already(target);
    let other =
        |what: &str| Error::invalid(what).in_file(target).help("choose another path, or remove it yourself");
    let single = match options.kind {
        Target::Siblings { suffixes } => {
            for suffix in suffixes {
                let sibling = target.with_suffix(suffix);
                if objects.head(&key_of(objects, sibling.path())?)?.is_some() {
                    return Err(if options.overwrite {
                        pair_stays(&sibling)
                    } else {
                        exists().in_file(&sibling)
                    });
                }
            }
            return Ok(Before::Nothing);
        }
        _ => objects.head(&key)?,
    };
    let below = Listing::of(objects, format!("{key}/"))?;
    match (options.kind, single.is_some(), below.is_empty()) {
        (_, false, true) => Ok(Before::Nothing),
        (Target::File, true, _) if options.overwrite => {
            options.may_replace.map_or(Ok(()), |may_replace| may_replace(target))?;
            Ok(Before::Nothing)
        }
        (Target::File, false, false) if options.overwrite => {
            Err(other("the target is no file, and this layout is one"))
        }
        (Target::Folder, true, _) if options.overwrite => {
            Err(other("the target is a file, and this layout is a folder"))
        }
        (Target::Folder, false, false) => {
            if let Some(left) = leftovers(objects, target, &below)? {
                return Ok(Before::Leftovers(left));
            }
            if !options.overwrite {
                return Err(exists());
            }
            check_replaceable(target, &below)?;
            Ok(Before::Old(below))
        }
        _ => Err(exists()),
    }
}

pub(super) fn pair_stays(file: &Location) -> Error {
    Error::unsupported(
        "files beside each other cannot be replaced in a bucket without a moment of neither or both",
    )
    .in_file(file)
    .help("save under another name, and remove the old files when the new ones are there")
}

/// The objects of a save that never ended, if that is what is there, and its writer is gone.
///
/// # Errors
/// `AlreadyExists` if the writer may still be at it.
fn leftovers(objects: &Arc<dyn Objects>, target: &Location, below: &Listing) -> Result<Option<Vec<Object>>> {
    if below.is_marked() || below.object(MOVED).is_some() {
        return Ok(None);
    }
    let Some(claim) = below.object(CLAIM) else { return Ok(None) };
    let Some((bytes, _)) = objects.get(&claim.key)? else { return Ok(None) };
    check_gone(target, Claim::parse(&bytes).as_ref())?;
    let (all, _) = objects.list(below.prefix(), false)?;
    Ok(Some(all))
}

/// Errs if the writer of a claim may still be at it.
pub(super) fn check_gone(target: &Location, claim: Option<&Claim>) -> Result<()> {
    let gone = match claim {
        Some(claim) if claim.is_of_the_dead() || claim.age() > CLAIM_TIME_MAX => Ok(()),
        Some(claim) => Err(format!(
            "process {} on {}, since {} s",
            claim.pid,
            claim.host.split(' ').next().unwrap_or_default(),
            claim.age().as_secs()
        )),
        None => Err("nobody that can be read".to_owned()),
    };
    match gone {
        Ok(()) => Ok(()),
        Err(writer) => Err(Error::new(ErrorKind::AlreadyExists, "another save to this target is under way")
            .in_file(target)
            .expected("no other writer", writer)
            .help(format!(
                "wait for it; if it was killed, remove the objects there, or wait for {} minutes",
                CLAIM_TIME_MAX.as_secs() / 60
            ))),
    }
}

/// Errs if a folder holds something that is no part of a checkpoint.
pub(super) fn check_replaceable(target: &Location, below: &Listing) -> Result<()> {
    let is_marked =
        below.is_marked() || CHECKPOINT_MARKERS.iter().any(|marker| below.object(marker).is_some());
    if is_marked || below.objects().all(|(name, _)| is_of_safetensors(name)) {
        return Ok(());
    }
    Err(Error::invalid("the target is a folder that holds something, but no checkpoint")
        .in_file(target)
        .help("overwriting would remove all of it; choose another path, or remove it yourself"))
}

/// Whether an object is one of those of a model of safetensors files alone, or bookkeeping.
pub(super) fn is_of_safetensors(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || is_bookkeeping(name)
}

/// Begins a checkpoint.
pub(super) fn begin(
    objects: &Arc<dyn Objects>,
    target: &Location,
    options: PublishOptions<'_>,
) -> Result<Box<dyn Publication>> {
    let before = check(objects, target, options)?;
    let key = key_of(objects, target.path())?;
    let nonce = nonce()?;
    let mut new = NewObjects {
        objects: Arc::clone(objects),
        target: target.clone(),
        folder: key.clone(),
        kind: options.kind.clone(),
        overwrite: options.overwrite,
        durable: options.durable,
        monitor: options.monitor.clone(),
        nonce: nonce.clone(),
        old: None,
        state: Arc::default(),
        reused_bytes: AtomicU64::new(0),
        pid: std::process::id(),
        is_over: false,
    };
    if *options.kind != Target::Folder {
        new.folder.clear();
        return Ok(Box::new(new));
    }
    match before {
        Before::Nothing => {}
        Before::Leftovers(left) => {
            // The claim goes last: until then it says what the others are.
            let (claim, others): (Vec<Object>, Vec<Object>) =
                left.into_iter().partition(|object| object.key.ends_with(CLAIM));
            for part in [others, claim] {
                objects.delete(&part.into_iter().map(|object| object.key).collect::<Vec<_>>())?;
            }
        }
        Before::Old(old) => {
            let old = settle_moved(objects, &key, old)?;
            new.folder = staged_folder(&key, &nonce);
            new.old = Some(old);
        }
    }
    let claim = format!("{}/{CLAIM}", new.folder);
    match objects.create(&claim, Claim::new(&nonce).to_bytes())? {
        Conditional::Done(tag) => {
            new.note(claim, 0, tag);
            Ok(Box::new(new))
        }
        Conditional::Lost(..) => {
            // Nothing here is this save's own.
            new.is_over = true;
            Err(Error::new(ErrorKind::AlreadyExists, "another save to this target has begun").in_file(target))
        }
    }
}

/// What is written so far.
#[derive(Debug, Default)]
struct State {
    /// Every object of this save, by its key: its length and version.
    written: BTreeMap<String, (u64, Tag)>,
    /// Small files that wait to be written at once.
    gathered: Vec<(String, Bytes)>,
    gathered_bytes: usize,
    /// What the layout writes into the marker, which comes last; `None` if it has none.
    marker: Option<Vec<u8>>,
    names: BTreeSet<String>,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct NewObjects {
    objects: Arc<dyn Objects>,
    target: Location,
    /// Where the files of a folder are written; empty for other kinds.
    folder: String,
    kind: Target,
    overwrite: bool,
    durable: bool,
    monitor: Monitor,
    nonce: String,
    /// What this replaces.
    old: Option<Listing>,
    state: Arc<Mutex<State>>,
    reused_bytes: AtomicU64,
    /// Which process may remove the objects: not a fork's child.
    pid: u32,
    is_over: bool,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NewObjects {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn note(&self, key: String, len_bytes: u64, tag: Tag) {
        self.state().written.insert(key, (len_bytes, tag));
    }

    /// The key of a file of the folder, whose name is taken from now on.
    fn take_name(&self, name: &str) -> Result<String> {
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let file = || self.objects.url(&format!("{}/{name}", self.folder));
        if self.kind != Target::Folder {
            return Err(no_such_file("folder"));
        }
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

    fn sink(&self, key: String, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
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
        Ok(FileWriter::new(sink))
    }

    /// Writes the small files that were gathered, many at once.
    fn flush(&self) -> Result<()> {
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

    fn exists(&self) -> Error {
        Error::new(ErrorKind::AlreadyExists, "another save to this target was faster").in_file(&self.target)
    }

    /// The marker, created if nobody else has done so.
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
            Conditional::Lost(..) => Err(self.exists()),
        }
    }

    fn commit_folder(&mut self) -> Result<()> {
        self.flush()?;
        self.monitor.check()?;
        self.monitor.enter(Stage::Commit);
        self.check_claim()?;
        let claim = format!("{}/{CLAIM}", self.folder);
        match self.old.take() {
            None => {
                self.mark(&self.folder)?;
                self.is_over = true;
                // It says nothing any more; who finds it beside the marker knows that.
                let _ = self.objects.delete(&[claim]);
                Ok(())
            }
            Some(old) => {
                self.mark(&self.folder)?;
                let key = key_of(&self.objects, self.target.path())?;
                let moved = Moved { nonce: self.nonce.clone(), folder: self.folder.clone() };
                match self.objects.create(&format!("{key}/{MOVED}"), moved.to_bytes())? {
                    Conditional::Done(_) => self.is_over = true,
                    Conditional::Lost(..) => return Err(self.exists()),
                }
                // From here on the new checkpoint is there. What cannot be tidied up now, the next overwrite does.
                let _ = self.objects.delete(&[claim]);
                let _ = Listing::of(&self.objects, format!("{}/", self.folder))
                    .and_then(|_| settle(&self.objects, &key, &self.folder, old.prefix()));
                Ok(())
            }
        }
    }

    /// Errs if another writer has taken the place of this one, which it took for dead.
    fn check_claim(&self) -> Result<()> {
        let claim = format!("{}/{CLAIM}", self.folder);
        let found = self.objects.get(&claim)?.and_then(|(bytes, _)| Claim::parse(&bytes));
        if found.is_some_and(|found| found.nonce == self.nonce) { Ok(()) } else { Err(self.exists()) }
    }
}

/// Finishes an overwrite whose writer died: its checkpoint is where the pointer says.
pub(super) fn settle_moved(objects: &Arc<dyn Objects>, key: &str, old: Listing) -> Result<Listing> {
    let Some(pointer) = old.object(MOVED) else { return Ok(old) };
    let folder = super::marker::moved_to(objects, pointer)?;
    settle(objects, key, &folder, old.prefix())?;
    Listing::of(objects, format!("{key}/"))
}

/// Brings the checkpoint at `folder` to `key`, within the bucket. Whenever it stops, the pointer or the marker at `key`
/// leads to the whole of it.
pub(super) fn settle(objects: &Arc<dyn Objects>, key: &str, folder: &str, old_prefix: &str) -> Result<()> {
    let (staged, _) = objects.list(&format!("{folder}/"), false)?;
    let name_of = |object: &Object| object.key.get(folder.len() + 1..).unwrap_or_default().to_owned();
    let is_marker = |object: &Object| matches!(name_of(object).as_str(), MARKER | OTHER_MARKER);
    let (markers, files): (Vec<Object>, Vec<Object>) = staged
        .into_iter()
        .filter(|object| is_marker(object) || !is_bookkeeping(&name_of(object)))
        .partition(is_marker);
    let Some(marker) = markers.first() else {
        // Somebody else has settled it.
        return Ok(());
    };
    let (old, _) = objects.list(old_prefix, false)?;
    // Orbax is to see no checkpoint while it is half the one and half the other.
    objects.delete(&[format!("{key}/{MARKER}"), format!("{key}/{OTHER_MARKER}")])?;
    let names: BTreeSet<String> = files.iter().map(name_of).collect();
    let stale = old.into_iter().map(|object| object.key).filter(|old| {
        let name = old.get(old_prefix.len()..).unwrap_or_default();
        !names.contains(name) && !is_bookkeeping(name) && name != MARKER
    });
    let stale: Vec<String> = stale.collect();
    let threads = objects.suits().requests_max.min(files.len()).max(1);
    for_each_parallel(
        threads,
        &files,
        u64::MAX,
        |_| 0,
        |file| objects.copy(file, &format!("{key}/{}", name_of(file))).map(drop),
    )?;
    objects.delete(&stale)?;
    objects.copy(marker, &format!("{key}/{}", name_of(marker)))?;
    objects.delete(&[format!("{key}/{MOVED}"), format!("{key}/{CLAIM}")])?;
    // The marker goes last: what is left without one is nobody's checkpoint.
    objects.delete(&files.into_iter().map(|file| file.key).collect::<Vec<_>>())?;
    objects.delete(&[marker.key.clone(), format!("{folder}/{CLAIM}")])
}

impl Publication for NewObjects {
    fn target(&self) -> &Location {
        &self.target
    }

    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn is_durable(&self) -> bool {
        self.durable
    }

    fn marker_line(&self) -> Option<String> {
        Some(marker_line(&self.nonce))
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
        self.sink(key, expected_len_bytes, checksums_from)
    }

    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        if self.kind != Target::File {
            return Err(no_such_file("single file"));
        }
        let key = key_of(&self.objects, self.target.path())?;
        // The object appears when it is whole, and not before: that is the commit.
        self.sink(key, expected_len_bytes, checksums_from)
    }

    fn sibling_writer(&self, at: usize, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        let suffix = match &self.kind {
            Target::Siblings { suffixes } => suffixes.get(at),
            _ => None,
        };
        let suffix = suffix.ok_or_else(|| no_such_file("file of this number"))?;
        let key = key_of(&self.objects, self.target.with_suffix(suffix).path())?;
        self.sink(key, expected_len_bytes, checksums_from)
    }

    /// A copy within the bucket: each checkpoint has objects of its own, and stays whole when the other is deleted.
    fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        let Some((from, identity)) = opened.object() else { return Ok(false) };
        let is_here = source.describe().as_os_str() == self.objects.url(&from).as_str();
        let found = if is_here { self.objects.head(&from)? } else { None };
        let same = |object: &Object| {
            Identity::of_objects(object.tag.text()) == identity && object.len_bytes == opened.len_bytes()
        };
        let Some(object) = found.filter(same) else { return Ok(false) };
        let key = format!("{}/{name}", self.folder);
        match self.objects.copy(&object, &key) {
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

    fn stored_bytes(&self) -> Result<u64> {
        let state = self.state();
        let written: u64 = state.written.values().map(|(len_bytes, _)| *len_bytes).sum();
        Ok(written + state.gathered.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>())
    }

    fn commit(mut self: Box<Self>) -> Result<()> {
        let monitor = self.monitor.clone();
        monitor.timed(Stage::Commit, 0, || match self.kind {
            Target::Folder => self.commit_folder(),
            Target::File | Target::Siblings { .. } => {
                self.is_over = true;
                Ok(())
            }
        })
    }
}

impl Drop for NewObjects {
    fn drop(&mut self) {
        // A single file that is there by now is whole: its layout has finished it.
        if self.is_over || self.pid != std::process::id() || self.kind == Target::File && self.overwrite {
            return;
        }
        let keys: Vec<String> = self.state().written.keys().cloned().collect();
        let (claim, others): (Vec<String>, Vec<String>) =
            keys.into_iter().partition(|key| key.ends_with(CLAIM));
        let _ = self.objects.delete(&others).and_then(|()| self.objects.delete(&claim));
    }
}
