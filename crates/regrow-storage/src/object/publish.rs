//! A checkpoint without rename: state object, files, marker. The parent module describes the
//! protocol.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::copy::copy_within;
use super::draft::Draft;
use super::held::{state_at, swap};
use super::marker::{MARKER, OTHER_MARKER, STATE, marker_bytes, marker_line, nonce};
use super::refusals::exists_already;
use super::sink::{ObjectSink, Pending};
use super::target::check;
use super::{Conditional, Object, Objects, key_of};
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

/// Begins a folder, files of one stem, or a single file. A single file is locked only for the end
/// of its upload: it appears when it is complete.
pub(super) fn begin(
    objects: &Arc<dyn Objects>,
    target: &Location,
    kind: &Target,
    options: PublishOptions<'_>,
) -> Result<NewObjects> {
    let mut draft = Draft::new(objects, target, kind, options, "save")?;
    match kind {
        Target::File => drop(check(objects, target, kind, options)?),
        _ => drop(draft.begin(options, false)?),
    }
    let nonce = draft.owned.as_ref().map_or_else(nonce, |owned| Ok(owned.record().nonce))?;
    Ok(NewObjects::new(draft, options, nonce))
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
    let mut draft = Draft::new(objects, target, &Target::Folder, options, "save")?;
    folder.clone_into(&mut draft.folder);
    Ok(NewObjects::new(draft, options, nonce.to_owned()))
}

/// The objects that are written so far.
#[derive(Debug, Default)]
struct State {
    /// The length of every object of this save, by key; 0 until it is complete.
    written: BTreeMap<String, u64>,
    /// Small files that will be written together.
    gathered: Vec<(String, Bytes)>,
    gathered_bytes: usize,
    /// The layout's text for the marker, which is written last; `None` if the layout has no marker.
    marker: Option<Vec<u8>>,
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(super) struct NewObjects {
    draft: Draft,
    durable: bool,
    nonce: String,
    state: Arc<Mutex<State>>,
    /// Locked while a thread writes the collected files.
    flushing: Mutex<()>,
    reused_bytes: AtomicU64,
    /// The upload of a single file, which the commit ends.
    pending: Pending,
}

impl std::ops::Deref for NewObjects {
    type Target = Draft;
    fn deref(&self) -> &Draft {
        &self.draft
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NewObjects {
    fn new(draft: Draft, options: PublishOptions<'_>, nonce: String) -> Self {
        Self {
            draft,
            durable: options.durable,
            nonce,
            state: Arc::default(),
            flushing: Mutex::default(),
            reused_bytes: AtomicU64::new(0),
            pending: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn note(&self, key: String, len_bytes: u64) {
        self.state().written.insert(key, len_bytes);
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
        let key = format!("{}/{name}", self.folder);
        if self.state().written.insert(key.clone(), 0).is_some() {
            return Err(
                Error::new(ErrorKind::AlreadyExists, "the same file is written twice").in_file(file())
            );
        }
        Ok(key)
    }

    fn sink(&self, key: String, expected_len_bytes: u64, checksums_from: u64) -> Result<ObjectSink> {
        let (state, noted) = (Arc::clone(&self.state), key.clone());
        let on_finish = Box::new(move |len_bytes: u64| {
            locked(&state).written.insert(noted, len_bytes);
        });
        self.draft.sink(&key, expected_len_bytes, checksums_from, on_finish)
    }

    /// Writes the collected small files with many concurrent requests.
    ///
    /// All files exist when this returns, including those that another thread was writing.
    fn flush(&self) -> Result<()> {
        let _flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
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
                self.bucket()?.put(&key, bytes)?;
                self.note(key, len_bytes);
                self.monitor.advance(len_bytes)
            },
        )
    }

    fn commit_folder(&mut self, lock: Option<&TargetLock>) -> Result<()> {
        self.flush()?;
        self.enter_commit()?;
        let text = self.state().marker.clone();
        let name = if text.is_some() { MARKER } else { OTHER_MARKER };
        let bytes = marker_bytes(&text.unwrap_or_default(), &self.objects.url(&self.folder), &self.nonce);
        self.draft.commit_folder(name, bytes, lock, true)
    }

    fn commit_file(&self, lock: Option<&TargetLock>) -> Result<()> {
        let upload = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(upload) = upload else { return Err(no_such_file()) };
        self.enter_commit()?;
        self.draft.commit_file(lock, |check| {
            check()?;
            match self.overwrite {
                true => upload.finish().map(drop),
                false => {
                    upload.finish_in_place_of(None)?.map(drop).ok_or_else(|| exists_already(&self.target))
                }
            }
        })
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
                self.draft.release();
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
        let key = format!("{}/{name}", self.folder);
        match copy_within(&self.objects, &object, &key, &|| self.check()) {
            Ok(_) => {
                self.take_name(name)?;
                self.note(key, object.len_bytes);
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
        self.bucket()?.delete(&left)
    }

    fn withdraw(&self, name: &str) -> Result<()> {
        let key = format!("{}/{name}", self.folder);
        self.flush()?;
        self.bucket()?.delete(std::slice::from_ref(&key))?;
        self.state().written.remove(&key);
        Ok(())
    }
}

impl JoinedFolder for NewObjects {
    fn claim(&self, name: &str) -> Result<bool> {
        let sign = format!("{}/{name}", self.folder);
        Ok(matches!(swap(&*self.objects, &sign, None, nonce()?.into())?, Conditional::Done(_)))
    }

    fn share_len_bytes(&self) -> u64 {
        let state = self.state();
        state.written.values().sum::<u64>()
            + state.gathered.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>()
    }

    fn finish_share(&self) -> Result<()> {
        self.flush()?;
        self.monitor.check()
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
        let key = self.sibling_key(at)?;
        self.state().written.insert(key.clone(), 0);
        self.sink(key, expected_len_bytes, checksums_from).map(FileWriter::new)
    }
}

impl Drop for NewObjects {
    fn drop(&mut self) {
        let Some(owned) = self.draft.uncommitted() else { return };
        // Of files of one stem, the last one first: it makes the checkpoint.
        let keys: Vec<String> = self.state().written.keys().rev().cloned().collect();
        // Objects that cannot be removed now keep their state object, and the next save removes
        // them.
        let _ = self.draft.discard(owned, &keys);
    }
}
