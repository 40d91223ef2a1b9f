//! A copy to a bucket, which continues an interrupted copy.
//!
//! A copy is a save whose state object lists the complete objects, with their tags. An object with
//! its listed tag is complete. The next copy deletes all other objects when it starts.
//!
//! ```text
//! a folder            below T; under an overwrite below T.orbax-checkpoint-tmp-copy
//! files of one stem   the files under their names. The last file makes the checkpoint
//! one file            in the folder T.orbax-checkpoint-tmp-copy; the commit copies the file to T within the bucket.
//!                     A file too long for a copy is written to T: it appears when it is complete
//! ```

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::Hash;

use super::commit::{commit_overwrite, lock_file, mark, written_in};
use super::copy::{copy_new_within, copy_within};
use super::held::Owned;
use super::keys::ObjectBlob;
use super::marker::{COPY, MARKER, OTHER_MARKER, marker_bytes, staged_folder};
use super::record::{Copied, Record};
use super::refusals::{exists_already, pair_exists, refused};
use super::remove::finish;
use super::run::{Doing, Place, Run};
use super::sink::ObjectSink;
use super::state::{Operation, Refusal, Step};
use super::target::{Before, check, check_name};
use super::{Object, Objects, key_of};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::store::{Blob, FileWriter, missing};
use crate::{
    Left, Marker, Publication, Target, TargetLock, Transfer, TransferFile, TransferOptions, no_such_file,
};

/// The name of a single file before the commit.
const STAGED_FILE: &str = "file";

/// The longest object that every bucket copies in one request.
const COPIED_LEN_MAX_BYTES: u64 = 5_000_000_000;

/// Interval of the writes of the state object between objects.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// A copy that has not ended.
#[derive(Debug)]
pub(super) struct ObjectTransfer {
    objects: Arc<dyn Objects>,
    target: Location,
    key: String,
    kind: Target,
    /// The folder for the files. A single file lies there until the commit.
    folder: String,
    /// Whether the folder is not the target.
    is_staged: bool,
    marker: Marker,
    overwrite: bool,
    doing: Doing,
    files: Vec<TransferFile>,
    keys: Vec<String>,
    left: Vec<Left>,
    monitor: Monitor,
    state: Mutex<State>,
    /// The process that may remove files. A forked child must not.
    pid: u32,
    /// The state object of the files; `None` for a single file that is written directly to the
    /// target, and after the commit.
    owned: Option<Owned>,
    /// Whether only the files of this copy are there, and those that it continues from.
    is_clean: bool,
}

#[derive(Debug)]
struct State {
    copied: BTreeMap<String, Copied>,
    /// Tags of written objects that are not listed yet.
    tags: BTreeMap<usize, String>,
    written: Instant,
}

impl ObjectTransfer {
    /// Begins a copy, or continues an interrupted one.
    pub(super) fn begin(
        objects: &Arc<dyn Objects>,
        target: &Location,
        options: TransferOptions<'_>,
    ) -> Result<Self> {
        let key = check_name(objects, target)?;
        let before = check(objects, target, options.kind, options.as_publish())?;
        let is_long = options.files.iter().any(|file| file.len_bytes > COPIED_LEN_MAX_BYTES);
        let is_staged = match options.kind {
            Target::Folder => before == Before::Old,
            Target::File => !is_long,
            Target::Siblings { .. } => false,
        };
        let folder = if is_staged { staged_folder(&key, COPY) } else { key.clone() };
        let mut new = Self {
            objects: Arc::clone(objects),
            target: target.clone(),
            key,
            kind: options.kind.clone(),
            folder,
            is_staged,
            marker: options.marker.clone(),
            overwrite: options.overwrite,
            doing: Doing::new("copy", options.wait, options.monitor),
            files: options.files.to_vec(),
            keys: Vec::new(),
            left: vec![Left::Nothing; options.files.len()],
            monitor: options.monitor.clone(),
            state: Mutex::new(State {
                copied: BTreeMap::new(),
                tags: BTreeMap::new(),
                written: Instant::now(),
            }),
            pid: std::process::id(),
            owned: None,
            is_clean: false,
        };
        new.keys = (0..new.files.len()).map(|at| new.key_of_file(at)).collect::<Result<_>>()?;
        if *options.kind != Target::File || !is_long {
            new.take()?;
        }
        Ok(new)
    }

    /// Takes the state object of the files, and keeps the objects of an earlier copy.
    fn take(&mut self) -> Result<()> {
        let place = match &self.kind {
            Target::Siblings { suffixes } => {
                Place::Beside { key: self.key.clone(), suffixes: suffixes.clone() }
            }
            _ => Place::Folder(self.folder.clone()),
        };
        let save = Operation::Save { is_written: false, continues: true };
        let mut run = Run::new(&self.objects, &self.target, place.clone(), self.doing.clone());
        let mut step = run.advance(&save)?;
        if step == Step::Refuse(Refusal::Exists) && self.is_staged {
            // A dead overwrite has completed its checkpoint here. If it has committed it, the
            // checkpoint has to be moved first; in both cases the folder goes.
            finish(&self.objects, &self.target, &self.key, self.doing.clone())?;
            run = Run::new(&self.objects, &self.target, place, self.doing.clone());
            step = run.advance(&save)?;
        }
        match (step, &self.kind) {
            (Step::Write, _) => {}
            (_, Target::Siblings { suffixes }) => {
                return Err(pair_exists(&self.target, suffixes, self.overwrite));
            }
            (Step::Refuse(refusal), _) => return Err(refused(refusal, &self.target)),
            _ => return Err(exists_already(&self.target)),
        }
        let dead = run.dead.take();
        let owned = run.into_owned()?;
        let there = match self.there() {
            Err(error) => {
                owned.leave();
                return Err(error);
            }
            there => there?,
        };
        if let Some(foreign) = there.iter().find(|object| !self.is_left(object, dead.as_ref())) {
            let at = Location::new(Arc::clone(self.target.storage()), foreign.key.as_str());
            match dead.is_some_and(|dead| !dead.copied.is_empty()) {
                true => owned.leave(),
                false => owned.release()?,
            }
            return Err(match &self.kind {
                Target::Siblings { suffixes } => pair_exists(&self.target, suffixes, self.overwrite),
                _ => exists_already(&at),
            });
        }
        self.owned = Some(owned);
        self.keep(&dead.map(|dead| dead.copied).unwrap_or_default(), there)?;
        self.is_clean = true;
        Ok(())
    }

    /// The objects at the names of the files, or in their folder.
    fn there(&self) -> Result<Vec<Object>> {
        if !matches!(self.kind, Target::Siblings { .. }) {
            return self.objects.list(&format!("{}/", self.folder));
        }
        let mut there = Vec::new();
        for key in &self.keys {
            there.extend(self.objects.head(key)?);
        }
        Ok(there)
    }

    /// Whether an object is the state object, or one that a dead process has left.
    fn is_left(&self, object: &Object, dead: Option<&Record>) -> bool {
        let Some(dead) = dead else { return object.key.ends_with(super::marker::STATE) };
        if !matches!(self.kind, Target::Siblings { .. }) {
            return true;
        }
        let is_copied = |(file, key): (&TransferFile, &String)| {
            let copied = dead.copied.get(&file.name);
            *key == object.key && copied.is_some_and(|copied| copied.tag == object.tag.to_string())
        };
        dead.suffixes.iter().any(|suffix| format!("{}{suffix}", self.key) == object.key)
            || self.files.iter().zip(&self.keys).any(is_copied)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key_of_file(&self, at: usize) -> Result<String> {
        match &self.kind {
            Target::Folder => {
                let name = self.files.get(at).map_or("", |file| &*file.name);
                key_of(&self.objects, format!("{}/{name}", self.folder).as_ref())
            }
            Target::File if self.is_staged => Ok(format!("{}/{STAGED_FILE}", self.folder)),
            Target::File => Ok(self.key.clone()),
            Target::Siblings { suffixes } => {
                let suffix = suffixes.get(at).ok_or_else(no_such_file)?;
                key_of(&self.objects, self.target.with_suffix(suffix).path())
            }
        }
    }

    /// Keeps the objects that an earlier copy lists, and removes all others.
    fn keep(&mut self, copied: &BTreeMap<String, Copied>, there: Vec<Object>) -> Result<()> {
        let by_key: BTreeMap<&str, &Object> = there.iter().map(|object| (&*object.key, object)).collect();
        let state_key = self.owned.as_ref().map(|owned| owned.key().to_owned()).unwrap_or_default();
        let mut kept = HashSet::from([&*state_key]);
        let mut known = BTreeMap::new();
        for (at, (file, key)) in self.files.iter().zip(&self.keys).enumerate() {
            let use_of = |copied: &Copied| {
                let object = by_key.get(key.as_str())?;
                let is_same = copied.version == file.version
                    && copied.len_bytes == file.len_bytes
                    && object.len_bytes == file.len_bytes
                    && copied.tag == object.tag.to_string();
                let digest = Hash::from_hex(&copied.digest).ok()?;
                is_same.then_some(Left::Whole { digest, is_proven: copied.is_verified })
            };
            let copied = copied.get(&file.name);
            if let (Some(copied), Some(left), Some(slot)) =
                (copied, copied.and_then(use_of), self.left.get_mut(at))
            {
                kept.insert(key);
                known.insert(file.name.clone(), copied.clone());
                *slot = left;
            }
        }
        let stale: Vec<String> = there
            .iter()
            .filter(|object| !kept.contains(&*object.key))
            .map(|object| object.key.clone())
            .collect();
        self.objects.delete(&stale)?;
        self.state().copied = known;
        self.write_state()
    }

    /// Writes the list of complete objects into the state object.
    fn write_state(&self) -> Result<()> {
        let Some(owned) = &self.owned else { return Ok(()) };
        let copied = {
            let mut state = self.state();
            state.written = Instant::now();
            state.copied.clone()
        };
        owned.set(|record| record.copied.clone_from(&copied))
    }

    /// Returns an error unless every object has the recorded tag.
    fn check_objects(&self, found: &[Object]) -> Result<()> {
        let tags: BTreeMap<&str, String> =
            found.iter().map(|object| (&*object.key, object.tag.to_string())).collect();
        let state = self.state();
        for (file, key) in self.files.iter().zip(&self.keys) {
            let copied = state.copied.get(&file.name);
            if copied.is_none_or(|copied| tags.get(key.as_str()) != Some(&copied.tag)) {
                return Err(Error::new(ErrorKind::AlreadyExists, "another writer changed the copied files")
                    .in_file(self.objects.url(key))
                    .help("stop other writers to this path, and copy again"));
            }
        }
        Ok(())
    }

    fn mark(&self, nonce: &str) -> Result<()> {
        let name = if matches!(self.marker, Marker::Own(_)) { MARKER } else { OTHER_MARKER };
        let bytes = match &self.marker {
            // Copy the marker unchanged: the layout may have a checksum of it.
            Marker::Own(text) if !text.is_empty() => text.clone().into(),
            _ => marker_bytes(b"", &self.objects.url(&self.folder), nonce),
        };
        mark(&self.objects, &self.target, &format!("{}/{name}", self.folder), bytes).map(drop)
    }

    fn commit_folder(&mut self) -> Result<()> {
        self.mark(&self.owned.as_ref().map(|owned| owned.record().nonce).unwrap_or_default())?;
        if self.is_staged {
            let run =
                Run::new(&self.objects, &self.target, Place::Folder(self.key.clone()), self.doing.clone());
            return commit_overwrite(&self.objects, run, &self.target, &mut self.owned);
        }
        // Readers ignore the state of a copy beside a marker, so it may stay if this fails.
        let released = self.owned.take().map_or(Ok(()), Owned::release);
        if self.marker == Marker::OfSteps && released.is_ok() {
            // With this marker the whole folder would be one checkpoint, and an overwrite would
            // replace all its steps.
            let _ = self.objects.delete(&[format!("{}/{OTHER_MARKER}", self.folder)]);
        }
        Ok(())
    }

    fn commit_file(&mut self, lock: Option<&TargetLock>) -> Result<()> {
        let key = self.key(0)?.to_owned();
        let staged = self.objects.head(&key)?.ok_or_else(|| missing(self.objects.url(&key).into()))?;
        let lock = match lock {
            None => Some(lock_file(&self.objects, &self.target, &self.key, self.doing.clone())?),
            Some(_) => None,
        };
        match self.overwrite {
            true => drop(copy_within(&self.objects, &staged, &self.key)?),
            // Another program may have written the target since the look.
            false => drop(
                copy_new_within(&self.objects, &staged, &self.key)?
                    .ok_or_else(|| exists_already(&self.target))?,
            ),
        }
        let _ = lock.map_or(Ok(()), Owned::release);
        if let Some(owned) = self.owned.take() {
            // If a deletion fails, the next copy to this target uses or deletes the objects.
            match self.objects.delete(&[key]) {
                Ok(()) => drop(owned.release()),
                Err(_) => owned.leave(),
            }
        }
        Ok(())
    }

    fn key(&self, at: usize) -> Result<&str> {
        self.keys.get(at).map(String::as_str).ok_or_else(no_such_file)
    }
}

impl Publication for ObjectTransfer {
    fn stored_bytes(&self) -> Result<u64> {
        Ok(self.files.iter().map(|file| file.len_bytes).sum())
    }

    fn commit_under(mut self: Box<Self>, lock: Option<&TargetLock>) -> Result<()> {
        self.monitor.check()?;
        self.monitor.enter(Stage::Commit);
        let monitor = self.monitor.clone();
        monitor.timed(Stage::Commit, 0, || {
            // A file too long for a copy within the store has no state object: its last part has
            // committed it.
            let Some(owned) = &self.owned else { return Ok(()) };
            if let Target::Siblings { .. } = self.kind {
                owned.check()?;
                let _ = self.owned.take().map_or(Ok(()), Owned::release);
                return Ok(());
            }
            self.check_objects(&written_in(&self.objects, &self.target, &self.folder, owned)?)?;
            match self.kind {
                Target::File => self.commit_file(lock),
                _ => self.commit_folder(),
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

impl Transfer for ObjectTransfer {
    fn left(&self, at: usize) -> Left {
        self.left.get(at).cloned().unwrap_or(Left::Nothing)
    }

    fn writer(&self, at: usize, offset_bytes: u64) -> Result<FileWriter> {
        let key = self.key(at)?;
        if offset_bytes > 0 {
            return Err(Error::invalid("objects are written in one piece").in_file(self.objects.url(key)));
        }
        let expected = self.files.get(at).map_or(0, |file| file.len_bytes);
        let objects = Arc::clone(&self.objects);
        let sink = ObjectSink::begin(&*objects, key, expected, 0, &self.monitor, Box::new(|_, _| {}))?;
        let Some(owned) = &self.owned else {
            return Ok(FileWriter::new(if self.overwrite { sink } else { sink.only_new(&self.target) }));
        };
        Ok(FileWriter::new(sink.owned_by(owned)))
    }

    /// Records nothing: no copy can continue an interrupted upload.
    fn reached(&self, _at: usize, _offset_bytes: u64, _digest: Hash) -> Result<()> {
        self.owned.as_ref().map_or(Ok(()), |owned| owned.check())
    }

    fn written(&self, at: usize) -> Result<Arc<dyn Blob>> {
        let key = self.key(at)?;
        let object = self.objects.head(key)?.ok_or_else(|| missing(self.objects.url(key).into()))?;
        self.state().tags.insert(at, object.tag.to_string());
        Ok(Arc::new(ObjectBlob::new(Arc::clone(&self.objects), object)))
    }

    fn finished(&self, at: usize, digest: Hash, is_verified: bool) -> Result<()> {
        let (Some(file), key) = (self.files.get(at), self.key(at)?) else { return Ok(()) };
        if self.owned.is_none() {
            return Ok(());
        }
        let noted = self.state().tags.remove(&at);
        let tag = match noted {
            Some(tag) => tag,
            None => match self.objects.head(key)? {
                Some(object) => object.tag.to_string(),
                None => return Err(missing(self.objects.url(key).into())),
            },
        };
        let copied = Copied {
            version: file.version.clone(),
            len_bytes: file.len_bytes,
            digest: digest.to_hex().to_string(),
            is_verified,
            tag,
        };
        let is_due = {
            let mut state = self.state();
            state.copied.insert(file.name.clone(), copied);
            state.written.elapsed() >= WRITE_EVERY
        };
        if is_due { self.write_state() } else { Ok(()) }
    }

    fn discard(&self, at: usize) -> Result<()> {
        self.objects.delete(&[self.key(at)?.to_owned()])
    }
}

impl Drop for ObjectTransfer {
    fn drop(&mut self) {
        let Some(owned) = self.owned.take().filter(|_| self.pid == std::process::id()) else { return };
        let copied = self.state().copied.clone();
        if owned.set(|record| record.copied.clone_from(&copied)).is_err() {
            return owned.leave();
        }
        // Delete the marker and unfinished files. Of files beside each other, delete the last one
        // first, because it makes the checkpoint.
        let markers = [MARKER, OTHER_MARKER].map(|name| format!("{}/{name}", self.folder));
        let unfinished = self.files.iter().zip(&self.keys).rev();
        let unfinished = unfinished.filter(|(file, _)| !copied.contains_key(&file.name));
        let unfinished = markers.into_iter().chain(unfinished.map(|(_, key)| key.clone()));
        let gone = self.objects.delete(&unfinished.collect::<Vec<_>>());
        match self.is_clean && copied.is_empty() && gone.is_ok() {
            true => drop(owned.release()),
            false => owned.leave(),
        }
    }
}
