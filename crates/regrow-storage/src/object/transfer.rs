//! A copy to a bucket, which continues an interrupted copy.
//!
//! The claim is the journal of the copy: the claim names each complete object, with the object's
//! tag. The copy rewrites the claim every few seconds, so that the claim also shows that the writer
//! lives. An object with its recorded tag is complete. All other objects are removed when the next
//! copy starts.
//!
//! ```text
//! a folder            T/regrow-writing.json, the objects below T; under an overwrite below T.orbax-checkpoint-tmp-copy
//! files of one stem   T.orbax-checkpoint-tmp-copy, one object: the claim; the files under their names. The last file
//!                     makes the checkpoint
//! one file            T.orbax-checkpoint-tmp-copy/, with the claim and the file; the commit copies the file to T within the
//!                     bucket. A file too long for a copy is written to T without a claim: it appears when it is complete
//! ```

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::Hash;

use super::copy::{copy_new_within, copy_within};
use super::keys::ObjectBlob;
use super::listing::Listing;
use super::marker::{
    CLAIM, COPY, Claim, Copied, MARKER, MOVED, Moved, OTHER_MARKER, Running, SETTLING, claim_at,
    claim_of_siblings, is_commit, marker_bytes, nonce, staged_folder,
};
use super::settle::{Hold, points_to, settle, settle_moved};
use super::sink::ObjectSink;
use super::target::{
    Before, check, check_gone, check_name, exists_already, left_beside, pair_stays, take_claim,
};
use super::{Conditional, Object, Objects, key_of};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::store::{Blob, FileWriter, missing};
use crate::{Identity, Left, Marker, Target, Transfer, TransferFile, TransferOptions, no_such_file};

/// The name of a single file before the commit.
const STAGED_FILE: &str = "file";

/// Interval of the writes of the claim during the upload of one long object.
const LIVE_EVERY: Duration = Duration::from_secs(60);

/// The longest object that every bucket copies in one request.
const COPIED_LEN_MAX_BYTES: u64 = 5_000_000_000;

/// Interval of the writes of the claim between objects.
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
    marker: Marker,
    overwrite: bool,
    /// The prefix of the checkpoint that this copy replaces.
    old_prefix: Option<String>,
    files: Vec<TransferFile>,
    keys: Vec<String>,
    left: Vec<Left>,
    monitor: Monitor,
    /// The key of the claim; `None` for a single file that is written directly to the target.
    claim_key: Option<String>,
    state: Mutex<State>,
    /// The process that may release the claim. A forked child must not.
    pid: u32,
    /// While this value exists, other threads of this process respect the claim.
    _running: Running,
}

#[derive(Debug)]
struct State {
    claim: Claim,
    /// Tags of written objects that are not in the claim yet.
    tags: BTreeMap<usize, String>,
    written: Instant,
    is_over: bool,
}

impl ObjectTransfer {
    /// Begins a copy, or continues an interrupted one.
    pub(super) fn begin(
        objects: &Arc<dyn Objects>,
        target: &Location,
        options: TransferOptions<'_>,
    ) -> Result<Self> {
        check_name(objects, target)?;
        match options.kind {
            Target::File => Self::begin_file(objects, target, options),
            Target::Siblings { .. } => Self::begin_siblings(objects, target, options),
            Target::Folder => match check(objects, target, options.kind, options.as_publish())? {
                Before::Nothing | Before::Others => Self::begin_folder(objects, target, options, Vec::new()),
                Before::Leftovers(_, left) => Self::begin_folder(objects, target, options, left),
                Before::Old(old) => Self::begin_overwrite(objects, target, options, old),
            },
        }
    }

    fn begin_file(
        objects: &Arc<dyn Objects>,
        target: &Location,
        options: TransferOptions<'_>,
    ) -> Result<Self> {
        let key = key_of(objects, target.path())?;
        check(objects, target, options.kind, options.as_publish())?;
        if options.files.iter().any(|file| file.len_bytes > COPIED_LEN_MAX_BYTES) {
            let mut new = Self::new(objects, target, options, key, None)?;
            new.left = vec![Left::Nothing; new.files.len()];
            return Ok(new);
        }
        let folder = staged_folder(&key, COPY);
        let there = objects.list(&format!("{folder}/"))?;
        let claim_key = format!("{folder}/{CLAIM}");
        let mut new = Self::new(objects, target, options, folder, Some(&claim_key))?;
        let copied = new.earlier(&claim_key)?.map(|claim| claim.copied).unwrap_or_default();
        new.take_claim(&claim_key, &copied)?;
        new.take_over(&claim_key, &copied, there)?;
        Ok(new)
    }

    fn begin_siblings(
        objects: &Arc<dyn Objects>,
        target: &Location,
        options: TransferOptions<'_>,
    ) -> Result<Self> {
        let key = key_of(objects, target.path())?;
        let claim_key = claim_of_siblings(&key);
        let mut new = Self::new(objects, target, options, key, Some(&claim_key))?;
        if let Target::Siblings { suffixes } = options.kind {
            new.state().claim.suffixes.clone_from(suffixes);
        }
        let earlier = new.earlier(&claim_key)?;
        new.siblings_there(earlier.as_ref(), options.overwrite)?;
        let copied = earlier.as_ref().map(|claim| claim.copied.clone()).unwrap_or_default();
        new.take_claim(&claim_key, &copied)?;
        // A save may have ended between the look and the claim.
        let there = new
            .siblings_there(earlier.as_ref(), options.overwrite)
            .inspect_err(|_| new.give_back(&claim_key, !copied.is_empty()))?;
        new.take_over(&claim_key, &copied, there)?;
        Ok(new)
    }

    /// Begins in a folder without a checkpoint, where an earlier copy may have left objects.
    fn begin_folder(
        objects: &Arc<dyn Objects>,
        target: &Location,
        options: TransferOptions<'_>,
        there: Vec<Object>,
    ) -> Result<Self> {
        let key = key_of(objects, target.path())?;
        let claim_key = format!("{key}/{CLAIM}");
        let mut new = Self::new(objects, target, options, key, Some(&claim_key))?;
        let copied = new.earlier(&claim_key)?.map(|claim| claim.copied).unwrap_or_default();
        new.take_claim(&claim_key, &copied)?;
        new.check_alone(&claim_key, &there)?;
        new.take_over(&claim_key, &copied, there)?;
        Ok(new)
    }

    /// Begins beside the checkpoint that the copy replaces.
    fn begin_overwrite(
        objects: &Arc<dyn Objects>,
        target: &Location,
        options: TransferOptions<'_>,
        old: Listing,
    ) -> Result<Self> {
        let key = key_of(objects, target.path())?;
        let old = settle_moved(objects, &key, old)?;
        let folder = staged_folder(&key, COPY);
        let claim_key = format!("{folder}/{CLAIM}");
        let mut new = Self::new(objects, target, options, folder, Some(&claim_key))?;
        new.old_prefix = Some(old.prefix().to_owned());
        let copied = new.earlier(&claim_key)?.map(|claim| claim.copied).unwrap_or_default();
        new.check_settled()?;
        new.take_claim(&claim_key, &copied)?;
        // Another copy may have committed this folder between the look and the claim.
        new.check_settled().inspect_err(|_| new.give_back(&claim_key, !copied.is_empty()))?;
        let there = objects.list(&format!("{}/", new.folder))?;
        new.take_over(&claim_key, &copied, there)?;
        Ok(new)
    }

    fn new(
        objects: &Arc<dyn Objects>,
        target: &Location,
        options: TransferOptions<'_>,
        folder: String,
        claim_key: Option<&str>,
    ) -> Result<Self> {
        let nonce = nonce()?;
        let claim = Claim::new(&nonce);
        let mut new = Self {
            objects: Arc::clone(objects),
            target: target.clone(),
            folder,
            key: key_of(objects, target.path())?,
            kind: options.kind.clone(),
            marker: options.marker.clone(),
            overwrite: options.overwrite,
            old_prefix: None,
            files: options.files.to_vec(),
            keys: Vec::new(),
            left: Vec::new(),
            monitor: options.monitor.clone(),
            claim_key: claim_key.map(str::to_owned),
            state: Mutex::new(State { claim, tags: BTreeMap::new(), written: Instant::now(), is_over: true }),
            pid: std::process::id(),
            _running: Running::begin(&nonce),
        };
        new.keys = (0..new.files.len()).map(|at| new.key_of_file(at)).collect::<Result<_>>()?;
        Ok(new)
    }

    /// The claim of an earlier copy.
    fn earlier(&self, claim_key: &str) -> Result<Option<Claim>> {
        let Some((claim, _)) = claim_at(&self.objects, claim_key)? else { return Ok(None) };
        check_gone(&self.target, claim.as_ref())?;
        Ok(claim)
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
            Target::File => match self.claim_key {
                Some(_) => Ok(format!("{}/{STAGED_FILE}", self.folder)),
                None => Ok(self.key.clone()),
            },
            Target::Siblings { suffixes } => {
                let suffix = suffixes.get(at).ok_or_else(no_such_file)?;
                key_of(&self.objects, self.target.with_suffix(suffix).path())
            }
        }
    }

    /// The files of one stem that already exist: written by the owner of an earlier claim, or by an
    /// earlier copy.
    fn siblings_there(&self, earlier: Option<&Claim>, overwrite: bool) -> Result<Vec<Object>> {
        let left = left_beside(&self.objects, &self.key, earlier)?;
        let left: Vec<String> = left.iter().map(|suffix| format!("{}{suffix}", self.key)).collect();
        let is_copied = |name: &str, object: &Object| {
            let copied = earlier.and_then(|claim| claim.copied.get(name));
            copied.is_some_and(|copied| copied.tag == object.tag.to_string())
        };
        let mut there = Vec::new();
        for (file, key) in self.files.iter().zip(&self.keys) {
            let Some(object) = self.objects.head(key)? else { continue };
            if !left.contains(key) && !is_copied(&file.name, &object) {
                let at = Location::new(Arc::clone(self.target.storage()), key.as_str());
                return Err(if overwrite { pair_stays(&at) } else { exists_already(&at) });
            }
            there.push(object);
        }
        Ok(there)
    }

    /// Takes the claim. The claim keeps the list of copied files: a kill now must not lose the
    /// list.
    fn take_claim(&self, claim_key: &str, copied: &BTreeMap<String, Copied>) -> Result<()> {
        self.state().claim.copied.clone_from(copied);
        let claim = self.state().claim.clone();
        if !take_claim(&self.objects, &self.target, claim_key, &claim)? {
            return Err(Error::new(ErrorKind::AlreadyExists, "another copy to this target has begun")
                .in_file(&self.target));
        }
        self.state().is_over = false;
        Ok(())
    }

    /// Returns an error if another copy has committed since the look at the target. The other copy
    /// used the same folder, and its settling removes the files from this folder. A pointer to the
    /// folder, or the lock of a living process that settles, shows this.
    fn check_settled(&self) -> Result<()> {
        let settling = format!("{}/{SETTLING}", self.folder);
        let is_faster = points_to(&self.objects, &self.key)?.as_ref() == Some(&self.folder);
        let settles = claim_at(&self.objects, &settling)?.map(|(claim, _)| claim);
        if is_faster
            || settles.as_ref().is_some_and(|claim| check_gone(&self.target, claim.as_ref()).is_err())
        {
            return Err(Error::new(ErrorKind::AlreadyExists, "another copy to this target finished first")
                .in_file(&self.target));
        }
        Ok(())
    }

    /// Returns an error if another writer has put an object here, and perhaps committed it, between
    /// the look at the target and this claim. Later writers find this claim.
    fn check_alone(&self, claim_key: &str, there: &[Object]) -> Result<()> {
        let listed = self.objects.list(&format!("{}/", self.folder))?;
        let is_known = |object: &Object| {
            object.key == claim_key
                || there.iter().any(|known| known.key == object.key && known.tag.is_same(&object.tag))
        };
        if listed.iter().all(is_known) {
            return Ok(());
        }
        let is_marker = |object: &Object| {
            object
                .key
                .strip_prefix(&*self.folder)
                .and_then(|name| name.strip_prefix('/'))
                .is_some_and(is_commit)
        };
        self.give_back(claim_key, !there.is_empty() && !listed.iter().any(is_marker));
        Err(self.was_taken())
    }

    /// Gives up the claim, and removes no files. If an earlier copy has left files, the claim stays
    /// in the bucket, because it lists them.
    fn give_back(&self, claim_key: &str, has_earlier: bool) {
        self.state().is_over = true;
        let _ = match has_earlier {
            false => self.objects.delete(&[claim_key.to_owned()]),
            true => {
                self.state().claim.is_released = true;
                self.write_claim()
            }
        };
    }

    fn has_claim(&self, claim_key: &str) -> Result<bool> {
        let found = self.objects.get(claim_key)?.and_then(|(bytes, _)| Claim::parse(&bytes));
        Ok(found.is_some_and(|found| found.nonce == self.state().claim.nonce))
    }

    /// Returns an error if another writer has taken over the claim because it considered this copy
    /// dead.
    fn check_claim(&self) -> Result<()> {
        match &self.claim_key {
            Some(claim_key) if !self.has_claim(claim_key)? => {
                self.state().is_over = true;
                Err(self.was_taken())
            }
            _ => Ok(()),
        }
    }

    fn was_taken(&self) -> Error {
        Error::new(ErrorKind::AlreadyExists, "another writer has taken over this target")
            .in_file(&self.target)
    }

    /// Keeps the objects that the claim of an earlier copy lists, and removes all others.
    fn take_over(
        &mut self,
        claim_key: &str,
        copied: &BTreeMap<String, Copied>,
        there: Vec<Object>,
    ) -> Result<()> {
        let by_key: BTreeMap<&str, &Object> = there.iter().map(|object| (&*object.key, object)).collect();
        let mut kept = HashSet::from([claim_key]);
        let mut known = BTreeMap::new();
        for (file, key) in self.files.iter().zip(&self.keys) {
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
            let left = copied.and_then(use_of).unwrap_or(Left::Nothing);
            if let (Some(copied), true) = (copied, left != Left::Nothing) {
                kept.insert(key);
                known.insert(file.name.clone(), copied.clone());
            }
            self.left.push(left);
        }
        let stale: Vec<String> = there
            .iter()
            .filter(|object| !kept.contains(&*object.key))
            .map(|object| object.key.clone())
            .collect();
        self.objects.delete(&stale)?;
        self.state().claim.copied = known;
        self.write_claim()
    }

    fn write_claim(&self) -> Result<()> {
        let Some(claim_key) = &self.claim_key else { return Ok(()) };
        self.check_claim()?;
        let claim = {
            let mut state = self.state();
            state.written = Instant::now();
            let since = Claim::new("").since;
            state.claim.since = since;
            state.claim.clone()
        };
        self.objects.put(claim_key, claim.to_bytes()).map(drop)
    }

    /// Returns an error unless every object has the recorded tag.
    fn check_objects(&self) -> Result<()> {
        if matches!(self.kind, Target::Siblings { .. }) {
            return Ok(());
        }
        let found = self.objects.list(&format!("{}/", self.folder))?;
        let tags: BTreeMap<&str, String> =
            found.iter().map(|object| (&*object.key, object.tag.to_string())).collect();
        let state = self.state();
        for (file, key) in self.files.iter().zip(&self.keys) {
            let copied = state.claim.copied.get(&file.name);
            if copied.is_none_or(|copied| tags.get(key.as_str()) != Some(&copied.tag)) {
                return Err(Error::new(ErrorKind::AlreadyExists, "another writer changed the copied files")
                    .in_file(self.objects.url(key))
                    .help("stop other writers to this path, and copy again"));
            }
        }
        Ok(())
    }

    fn mark(&self) -> Result<()> {
        let name = if matches!(self.marker, Marker::Own(_)) { MARKER } else { OTHER_MARKER };
        let key = format!("{}/{name}", self.folder);
        let bytes = match &self.marker {
            // Copy the marker unchanged: the layout may have a checksum of it.
            Marker::Own(text) if !text.is_empty() => text.clone().into(),
            _ => marker_bytes(b"", &self.objects.url(&self.folder), &self.state().claim.nonce),
        };
        match self.objects.create(&key, bytes.clone())? {
            Conditional::Done(_) => Ok(()),
            Conditional::Lost(found, _) if found == bytes => Ok(()),
            Conditional::Lost(..) => Err(self.was_taken()),
        }
    }

    fn commit_folder(&self, claim_key: &str) -> Result<()> {
        self.mark()?;
        let Some(old_prefix) = &self.old_prefix else {
            self.state().is_over = true;
            // Readers ignore a claim beside a marker, so the claim may stay if this fails.
            let unclaimed = self.objects.delete(&[claim_key.to_owned()]);
            if self.marker == Marker::OfSteps && unclaimed.is_ok() {
                // With this marker the whole folder would be one checkpoint, and an overwrite would
                // replace all its steps.
                let _ = self.objects.delete(&[format!("{}/{OTHER_MARKER}", self.folder)]);
            }
            return Ok(());
        };
        let moved = Moved { nonce: COPY.to_owned(), folder: self.folder.clone() };
        let _hold = Hold::take(&self.objects, &self.key)?;
        match self.objects.create(&format!("{}/{MOVED}", self.key), moved.to_bytes())? {
            Conditional::Done(_) => self.state().is_over = true,
            Conditional::Lost(..) => return Err(self.was_taken()),
        }
        // The new checkpoint is committed. If the cleanup fails, the next overwrite repeats it.
        let _ = self.objects.delete(&[claim_key.to_owned()]);
        let _ = settle(&self.objects, &self.key, &self.folder, old_prefix);
        Ok(())
    }

    fn commit_file(&self, claim_key: &str) -> Result<Identity> {
        let key = self.key(0)?;
        let staged = self.objects.head(key)?.ok_or_else(|| missing(self.objects.url(key).into()))?;
        let tag = match self.overwrite {
            true => copy_within(&self.objects, &staged, &self.key)?,
            // A save that does not know this claim may have written the target since the look.
            false => copy_new_within(&self.objects, &staged, &self.key)?
                .ok_or_else(|| exists_already(&self.target))?,
        };
        self.state().is_over = true;
        // Delete the claim after the staged object, which it describes. If a deletion fails, the
        // next copy to this target uses or deletes the remaining objects.
        let _ = self
            .objects
            .delete(&[key.to_owned()])
            .and_then(|()| self.objects.delete(&[claim_key.to_owned()]));
        Ok(Identity::of_objects(tag.text()))
    }

    fn key(&self, at: usize) -> Result<&str> {
        self.keys.get(at).map(String::as_str).ok_or_else(no_such_file)
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
        let is_place = self.claim_key.is_none();
        Ok(FileWriter::new(if is_place && !self.overwrite { sink.only_new(&self.target) } else { sink }))
    }

    /// Only renews the claim: no copy can continue an interrupted upload.
    fn reached(&self, _at: usize, _offset_bytes: u64, _digest: Hash) -> Result<()> {
        let is_due = self.state().written.elapsed() >= LIVE_EVERY;
        if is_due { self.write_claim() } else { Ok(()) }
    }

    fn written(&self, at: usize) -> Result<Arc<dyn Blob>> {
        let key = self.key(at)?;
        let object = self.objects.head(key)?.ok_or_else(|| missing(self.objects.url(key).into()))?;
        self.state().tags.insert(at, object.tag.to_string());
        Ok(Arc::new(ObjectBlob::new(Arc::clone(&self.objects), object)))
    }

    fn finished(&self, at: usize, digest: Hash, is_verified: bool) -> Result<()> {
        let (Some(file), key) = (self.files.get(at), self.key(at)?) else { return Ok(()) };
        if self.claim_key.is_none() {
            self.state().is_over = true;
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
            state.claim.copied.insert(file.name.clone(), copied);
            state.written.elapsed() >= WRITE_EVERY
        };
        if is_due { self.write_claim() } else { Ok(()) }
    }

    fn discard(&self, at: usize) -> Result<()> {
        self.objects.delete(&[self.key(at)?.to_owned()])
    }

    fn commit(self: Box<Self>) -> Result<Option<Identity>> {
        self.monitor.check()?;
        self.monitor.enter(Stage::Commit);
        self.monitor.timed(Stage::Commit, 0, || {
            // A file too long for a copy within the store has no claim: its last part has committed
            // it.
            let Some(claim_key) = &self.claim_key else { return Ok(None) };
            self.check_claim()?;
            self.check_objects()?;
            match self.kind {
                Target::Folder => self.commit_folder(claim_key).map(|()| None),
                Target::File => self.commit_file(claim_key).map(Some),
                Target::Siblings { .. } => {
                    let mut state = self.state();
                    state.is_over = true;
                    let last = self.files.last().and_then(|file| state.claim.copied.get(&file.name));
                    let identity = last.map(|last| Identity::of_objects(&*last.tag));
                    drop(state);
                    let _ = self.objects.delete(std::slice::from_ref(claim_key));
                    Ok(identity)
                }
            }
        })
    }
}

impl Drop for ObjectTransfer {
    fn drop(&mut self) {
        let (is_over, copied) = {
            let mut state = self.state();
            state.claim.is_released = true;
            (state.is_over, state.claim.copied.clone())
        };
        let Some(claim_key) = self.claim_key.as_ref().filter(|_| !is_over && self.pid == std::process::id())
        else {
            return;
        };
        if !matches!(self.has_claim(claim_key), Ok(true)) {
            return;
        }
        // Delete unfinished files. Of files beside each other, delete the last one first, because
        // it makes the checkpoint.
        let unfinished = self.files.iter().zip(&self.keys).rev();
        let unfinished = unfinished.filter(|(file, _)| !copied.contains_key(&file.name));
        let gone = self.objects.delete(&unfinished.map(|(_, key)| key.clone()).collect::<Vec<_>>());
        let _ = match copied.is_empty() {
            true => gone.and_then(|()| self.objects.delete(std::slice::from_ref(claim_key))),
            false => self.write_claim(),
        };
    }
}
