//! A copy to a bucket, which continues an interrupted copy.
//!
//! A copy is a save whose state object lists the complete objects, with their tags. An object with
//! its listed tag is complete. The next copy deletes all other objects when it starts.
//!
//! ```text
//! a folder            below T; under an overwrite below T.orbax-checkpoint-tmp-copy
//! files of one stem   the files under their names. The last file makes the checkpoint
//! one file            in the folder T.orbax-checkpoint-tmp-copy; the commit copies the file to T
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::Hash;

use super::copy::{copy_new_within, copy_within};
use super::draft::Draft;
use super::held::Owned;
use super::keys::ObjectBlob;
use super::marker::{MARKER, OTHER_MARKER, marker_bytes};
use super::record::{Copied, Record};
use super::refusals::exists_already;
use super::{Object, Objects, key_of};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Stage;
use crate::store::{Blob, FileWriter, missing};
use crate::{
    Left, Marker, Publication, Target, TargetLock, Transfer, TransferFile, TransferOptions, no_such_file,
};

/// The name of a single file before the commit.
const STAGED_FILE: &str = "file";

/// Interval of the writes of the state object between objects.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// A copy that has not ended.
#[derive(Debug)]
pub(super) struct ObjectTransfer {
    draft: Draft,
    marker: Marker,
    files: Vec<TransferFile>,
    keys: Vec<String>,
    left: Vec<Left>,
    state: Mutex<State>,
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
        let mut draft = Draft::new(objects, target, options.kind, options.as_publish(), "copy")?;
        let dead = draft.begin(options.as_publish(), true)?;
        let (copied, tags, written) = (BTreeMap::new(), BTreeMap::new(), Instant::now());
        let mut new = Self {
            draft,
            marker: options.marker.clone(),
            files: options.files.to_vec(),
            keys: Vec::new(),
            left: vec![Left::Nothing; options.files.len()],
            state: Mutex::new(State { copied, tags, written }),
        };
        let has_files = dead.is_some();
        if let Err(error) = new.start(dead) {
            // Files of a dead copy may be there. Otherwise the drop deletes the state object.
            new.draft.uncommitted().filter(|_| has_files).into_iter().for_each(Owned::leave);
            return Err(error);
        }
        Ok(new)
    }

    fn start(&mut self, dead: Option<Record>) -> Result<()> {
        let Draft { objects, kind, folder, .. } = &self.draft;
        let key = |(at, file): (usize, &TransferFile)| match kind {
            Target::Folder => key_of(objects, format!("{folder}/{}", file.name).as_ref()),
            Target::File => Ok(format!("{folder}/{STAGED_FILE}")),
            Target::Siblings { .. } => self.draft.sibling_key(at),
        };
        self.keys = self.files.iter().enumerate().map(key).collect::<Result<_>>()?;
        dead.map_or(Ok(()), |dead| self.keep(&dead.copied))
    }

    /// The objects at the names of the files, or in their folder.
    fn there(&self) -> Result<Vec<Object>> {
        match &self.draft.kind {
            Target::Siblings { .. } => {
                let found = self.keys.iter().map(|key| self.draft.objects.head(key));
                Ok(found.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
            }
            _ => self.draft.objects.list(&format!("{}/", self.draft.folder)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the objects that an earlier copy lists, and removes all others.
    fn keep(&mut self, copied: &BTreeMap<String, Copied>) -> Result<()> {
        let there = self.there()?.into_iter();
        let mut stale: BTreeMap<String, Object> = there.map(|object| (object.key.clone(), object)).collect();
        self.draft.owned.iter().for_each(|owned| drop(stale.remove(owned.key())));
        let mut known = BTreeMap::new();
        for ((file, key), left) in self.files.iter().zip(&self.keys).zip(&mut self.left) {
            let (Some(copied), Some(object)) = (copied.get(&file.name), stale.get(key)) else { continue };
            let is_same = copied.version == file.version
                && [copied.len_bytes, object.len_bytes] == [file.len_bytes; 2]
                && copied.tag == object.tag.to_string();
            if let (true, Ok(digest)) = (is_same, Hash::from_hex(&copied.digest)) {
                *left = Left::Whole { digest, is_proven: copied.is_verified };
                known.insert(file.name.clone(), copied.clone());
                stale.remove(key);
            }
        }
        self.draft.bucket()?.delete(&stale.into_keys().collect::<Vec<_>>())?;
        self.state().copied = known;
        self.write_state()
    }

    /// Writes the list of complete objects into the state object.
    fn write_state(&self) -> Result<()> {
        let copied = {
            let mut state = self.state();
            state.written = Instant::now();
            state.copied.clone()
        };
        let owned = self.draft.owned.as_ref();
        owned.map_or(Ok(()), |owned| owned.set(|record| record.copied.clone_from(&copied)))
    }

    fn commit_folder(&mut self, lock: Option<&TargetLock>) -> Result<()> {
        let name = if matches!(self.marker, Marker::Own(_)) { MARKER } else { OTHER_MARKER };
        let bytes = match &self.marker {
            // Copy the marker unchanged: the layout may have a checksum of it.
            Marker::Own(text) if !text.is_empty() => text.clone().into(),
            _ => {
                let nonce = self.draft.owned.as_ref().map(|owned| owned.record().nonce);
                marker_bytes(b"", &self.draft.objects.url(&self.draft.folder), &nonce.unwrap_or_default())
            }
        };
        self.draft.commit_folder(name, bytes, lock, self.marker != Marker::OfSteps)
    }

    fn commit_file(&mut self, lock: Option<&TargetLock>) -> Result<()> {
        let (objects, target) = (&self.draft.objects, &self.draft.target);
        let key = self.key(0)?.to_owned();
        let staged = objects.head(&key)?.ok_or_else(|| missing(objects.url(&key).into()))?;
        self.draft.commit_file(lock, |check| match self.draft.overwrite {
            true => copy_within(objects, &staged, &self.draft.key, check).map(drop),
            // Another program may have written the target since the look.
            false => copy_new_within(objects, &staged, &self.draft.key, check)?
                .map(drop)
                .ok_or_else(|| exists_already(target)),
        })?;
        // If a deletion fails, the next copy to this target uses or deletes the objects.
        let deleted = self.draft.bucket().and_then(|bucket| bucket.delete(&[key]));
        match (deleted, self.draft.owned.take()) {
            (Ok(()), Some(owned)) => drop(owned.release()),
            (_, owned) => owned.into_iter().for_each(Owned::leave),
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
        self.draft.enter_commit()?;
        let monitor = self.draft.monitor.clone();
        monitor.timed(Stage::Commit, 0, || {
            self.draft.check()?;
            match self.draft.kind {
                Target::Folder => self.commit_folder(lock),
                Target::File => self.commit_file(lock),
                Target::Siblings { .. } => {
                    self.draft.release();
                    Ok(())
                }
            }
        })
    }

    fn has_lock(&self) -> bool {
        matches!(self.draft.kind, Target::Siblings { .. })
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
            return Err(
                Error::invalid("objects are written in one piece").in_file(self.draft.objects.url(key))
            );
        }
        let expected = self.files.get(at).map_or(0, |file| file.len_bytes);
        self.draft.sink(key, expected, 0, Box::new(|_| {})).map(FileWriter::new)
    }

    /// Records nothing: no copy can continue an interrupted upload.
    fn reached(&self, _at: usize, _offset_bytes: u64, _digest: Hash) -> Result<()> {
        self.draft.check()
    }

    fn written(&self, at: usize) -> Result<Arc<dyn Blob>> {
        let key = self.key(at)?;
        let object =
            self.draft.objects.head(key)?.ok_or_else(|| missing(self.draft.objects.url(key).into()))?;
        self.state().tags.insert(at, object.tag.to_string());
        Ok(Arc::new(ObjectBlob::new(Arc::clone(&self.draft.objects), object)))
    }

    fn finished(&self, at: usize, digest: Hash, is_verified: bool) -> Result<()> {
        let (Some(file), key) = (self.files.get(at), self.key(at)?) else { return Ok(()) };
        let noted = self.state().tags.remove(&at);
        let tag = match noted {
            Some(tag) => tag,
            None => match self.draft.objects.head(key)? {
                Some(object) => object.tag.to_string(),
                None => return Err(missing(self.draft.objects.url(key).into())),
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
        self.draft.bucket()?.delete(&[self.key(at)?.to_owned()])
    }
}

impl Drop for ObjectTransfer {
    fn drop(&mut self) {
        let Some(owned) = self.draft.uncommitted() else { return };
        let copied = self.state().copied.clone();
        let unfinished = self.files.iter().zip(&self.keys);
        let unfinished = unfinished.filter(|(file, _)| !copied.contains_key(&file.name));
        let mut unfinished: Vec<String> = unfinished.map(|(_, key)| key.clone()).collect();
        if self.draft.kind == Target::Folder {
            unfinished.extend(self.draft.markers());
        }
        if copied.is_empty() {
            return drop(self.draft.discard(owned, &unfinished));
        }
        if owned.set(|record| record.copied.clone_from(&copied)).is_ok() {
            let _ = owned.objects().and_then(|objects| objects.delete(&unfinished));
        }
        owned.leave();
    }
}
