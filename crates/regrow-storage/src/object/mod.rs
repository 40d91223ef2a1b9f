//! Buckets and memory: storages of keys and objects, without folders and without rename.
//!
//! | module | does |
//! |---|---|
//! | `mod` | [`ObjectStorage`]: a bucket as a storage |
//! | `objects` | [`Objects`]: the requests of a bucket |
//! | `listing` | the result of one listing: names, lengths, tags |
//! | `keys` | a folder of objects as a [`Store`]; an object as a [`Blob`](crate::store::Blob) |
//! | `state` | the protocol: one function decides each step |
//! | `record` | the content of a state object |
//! | `held` | the state object of another process, or of this one, and its renewal |
//! | `run` | performs the steps of an operation |
//! | `target`, `refusals` | the allowed targets; the errors of the others |
//! | `draft` | a checkpoint that is being written, and its commit |
//! | `publish` | a save |
//! | `traces` | the locks and temporary folders at a target, for people |
//! | `transfer` | a copy, which can continue an interrupted copy |
//! | `remove` | the lock of a target; removals |
//! | `marker` | the names of markers and control objects |
//! | `old` | the control objects of earlier versions |
//! | `copy` | a copy of an object within the bucket |
//! | `sink` | one new object, part by part |
//! | `memory` | objects in memory |
//! | `cached` | the same objects with blocks kept on a local disk: the feature `cloud` |
//! | `cloud` | S3, Google Cloud Storage, Azure: the feature `cloud` |
//!
//! Each target has one state object while a process changes the target. The object says which
//! process this is, and how far the change is (`state`). Processes replace it only by
//! compare-and-swap.
//!
//! ```text
//! a folder            T/regrow-state.json
//! other targets       T.orbax-checkpoint-tmp-state.json
//! ```
//! A save writes the objects under their final names, and commits them with a marker:
//!
//! ```text
//! writing     T/regrow-state.json                          phase `writing`
//!             T/model.safetensors  T/regrow.json ...       under their final names
//! committed   T/commit_success.txt                         the marker: created if absent, with the nonce of the save
//! ```
//! A folder in this phase without a marker is not a checkpoint. Orbax uses the same marker. Layouts
//! that have no marker get `regrow-committed.txt`.
//!
//! An overwrite writes a complete new checkpoint into another folder, and takes the state object of
//! the target only for its commit:
//!
//! ```text
//! staged      T.orbax-checkpoint-tmp-<nonce>/...           all objects, with a state object and a marker of their own
//! locked      T/regrow-state.json                          phase `changing`
//! committed   T/regrow-state.json                          phase `moved`: "the checkpoint is in that folder"
//! settled     the objects copied to T within the bucket; phase `changing`; then the state object and the folder go
//! ```
//! In phase `moved`, readers of regrow read the folder that the state object names. Orbax sees the
//! old checkpoint until the copying begins, no checkpoint during it, and then the new one. If the
//! process dies, the checkpoint is complete, and the next operation copies it.
//!
//! A single file appears when its upload ends, so its save takes the state object only for that
//! request. Several files of one stem are never replaced. The last one makes the checkpoint.
//!
//! **Stores without conditional writes.** regrow then writes the state object after a look, without
//! a condition. Two processes that begin at the same moment can both have the state object, and the
//! promises about two writers do not hold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{
    BegunFile, BegunFolder, BegunSiblings, Capabilities, Document, Entry, Found, Identity, JoinedFolder,
    Publish, PublishOptions, Reading, Removal, Removed, Stock, Storage, StorageKind, StorageOptions, Target,
    TargetLock, Trace, Transfer, TransferOptions, Upkeep, Url, Writes,
};
#[cfg(feature = "cloud")]
use crate::Cacheable;
#[cfg(feature = "cloud")]
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::Store;

#[cfg(feature = "cloud")]
pub(super) mod cached;
#[cfg(feature = "cloud")]
pub(super) mod cloud;
mod copy;
mod draft;
mod held;
pub(super) mod keys;
mod listing;
mod marker;
mod memory;
mod objects;
mod old;
mod publish;
mod record;
mod refusals;
mod remove;
mod run;
mod sink;
mod state;
mod target;
#[cfg(test)]
mod tests;
mod traces;
mod transfer;

use listing::Listing;
pub use marker::{COMMIT_MARKERS, is_bookkeeping};
pub(crate) use memory::MemoryObjects;
pub(crate) use objects::{Conditional, Extent, Facts, Keys, Object, ObjectWrites, Objects, Tag, Upload};

/// `memory://name/path`: buckets that live as long as the process.
pub(super) const MEMORY: StorageKind = StorageKind { schemes: &["memory"], locate: locate_in_memory };

fn locate_in_memory(url: &Url<'_>, _options: &StorageOptions) -> Result<Location> {
    static BUCKETS: Mutex<BTreeMap<String, Arc<MemoryObjects>>> = Mutex::new(BTreeMap::new());
    let (name, path) = url.rest.split_once('/').unwrap_or((url.rest, ""));
    let mut buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    let bucket = buckets.entry(name.to_owned()).or_insert_with(|| Arc::new(MemoryObjects::new(name)));
    let storage = ObjectStorage::new(Arc::clone(bucket) as Arc<dyn Objects>);
    Ok(Location::new(Arc::new(storage), path.trim_end_matches('/')))
}

/// A location in memory that no other code can find. Its memory is freed with the last reference.
pub fn private_memory() -> Location {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new("private"));
    Location::new(Arc::new(ObjectStorage::new(objects)), "")
}

/// A bucket as a storage. Its paths are keys.
#[derive(Debug, Clone)]
pub(crate) struct ObjectStorage {
    objects: Arc<dyn Objects>,
}

impl ObjectStorage {
    pub(crate) fn new(objects: Arc<dyn Objects>) -> Self {
        Self { objects }
    }

    /// One page of the objects in a folder. The rest is requested when it is needed.
    fn listing(&self, folder: &Path) -> Result<Listing> {
        Listing::of(&self.objects, folder_key(&self.objects, folder)?)
    }
}

/// The key for a path.
///
/// # Errors
/// `InvalidArgument` if the path cannot be a key.
pub(super) fn key_of(objects: &Arc<dyn Objects>, path: &Path) -> Result<String> {
    let refused = || {
        Error::invalid("a key in a bucket is text without empty, `.` or `..` parts")
            .in_file(objects.url(&path.to_string_lossy()))
    };
    let text = path.to_str().ok_or_else(refused)?.trim_matches('/');
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if text.is_empty() || text.split('/').all(is_part) { Ok(text.to_owned()) } else { Err(refused()) }
}

/// The prefix of all keys below a folder.
pub(super) fn folder_key(objects: &Arc<dyn Objects>, path: &Path) -> Result<String> {
    let mut key = key_of(objects, path)?;
    if !key.is_empty() {
        key.push('/');
    }
    Ok(key)
}

impl Storage for ObjectStorage {
    fn describe(&self, path: &Path) -> PathBuf {
        self.objects.url(&path.to_string_lossy()).into()
    }

    fn look(&self, path: &Path) -> Result<Option<Found>> {
        let key = key_of(&self.objects, path)?;
        // List first: a server that keeps objects in a file system may fail when asked for a folder
        // as an object.
        let (below, _) = self.objects.list_page(&folder_key(&self.objects, path)?)?;
        if !below.is_empty() {
            return Ok(Some(Found::Folder));
        }
        let object = if key.is_empty() { None } else { self.objects.head(&key)? };
        Ok(object.map(|object| Found::File { len_bytes: object.len_bytes }))
    }

    fn entries(&self, folder: &Path) -> Result<Vec<Entry>> {
        self.listing(folder)?.entries(&self.objects, "")
    }

    fn store(&self, folder: &Path) -> Arc<dyn Store> {
        Arc::new(keys::ObjectStore::unlisted(Arc::clone(&self.objects), folder))
    }

    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>> {
        let listing = self.listing(folder)?;
        if listing.is_empty() {
            return Err(no_folder(self.describe(folder)));
        }
        Ok(Arc::new(keys::ObjectStore::listed(Arc::clone(&self.objects), listing)))
    }

    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        let (folder, name) = split(path);
        self.store(folder).read_document(&name, document)
    }

    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let (folder, name) = split(path);
        keys::read_beginning(&*self.store(folder), &name, len_max_bytes)
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        let listing = Listing::of_checkpoint(&self.objects, folder_key(&self.objects, path).ok()?).ok()?;
        let listing = listing.of_readers(&self.objects).ok()?;
        if !listing.has_only_state() {
            return listing.identity();
        }
        let object = self.objects.head(&key_of(&self.objects, path).ok()?).ok()??;
        Some(Identity::of_objects(object.tag.text()))
    }

    fn for_reading(&self, path: &Path) -> Result<Option<Reading>> {
        listing::for_reading(&self.objects, path).map(Some)
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            is_local: false,
            has_listings: true,
            commits_by_marker: true,
            archive: None,
            writes: Ok(Writes::of(self)),
            #[cfg(feature = "cloud")]
            cacheable: Some(self),
        }
    }
}

impl Publish for ObjectStorage {
    fn check_publish(&self, target: &Location, kind: &Target, options: PublishOptions<'_>) -> Result<()> {
        target::check(&self.objects, target, kind, options).map(drop)
    }

    fn publish_folder(&self, target: &Location, options: PublishOptions<'_>) -> Result<Box<dyn BegunFolder>> {
        Ok(Box::new(publish::begin(&self.objects, target, &Target::Folder, options)?))
    }

    fn publish_file(&self, target: &Location, options: PublishOptions<'_>) -> Result<Box<dyn BegunFile>> {
        Ok(Box::new(publish::begin(&self.objects, target, &Target::File, options)?))
    }

    fn publish_siblings(
        &self,
        target: &Location,
        suffixes: &[String],
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn BegunSiblings>> {
        let kind = Target::Siblings { suffixes: suffixes.to_vec() };
        Ok(Box::new(publish::begin(&self.objects, target, &kind, options)?))
    }

    fn join(
        &self,
        target: &Location,
        ticket: &str,
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn JoinedFolder>> {
        Ok(Box::new(publish::join(&self.objects, target, ticket, options)?))
    }

    fn transfer(&self, target: &Location, options: TransferOptions<'_>) -> Result<Box<dyn Transfer>> {
        Ok(Box::new(transfer::ObjectTransfer::begin(&self.objects, target, options)?))
    }
}

impl Upkeep for ObjectStorage {
    fn traces(&self, at: &Location) -> Result<Vec<Trace>> {
        traces::traces(&self.objects, at)
    }

    fn lock(
        &self,
        at: &Location,
        operation: &'static str,
        wait: Option<Duration>,
        monitor: &Monitor,
    ) -> Result<TargetLock> {
        let owned = remove::lock(&self.objects, at, run::Doing::new(operation, wait, monitor))?;
        let is_beside = owned.is_beside();
        let mut lock = TargetLock::new(owned.record().nonce, true, owned);
        lock.is_beside = is_beside;
        Ok(lock)
    }

    fn remove(&self, at: &Location, what: &Removal, lock: &TargetLock) -> Result<Removed> {
        remove::remove(&self.objects, at, what, lock)
    }

    fn remove_unfinished(&self, at: &Location, force: bool) -> Result<Removed> {
        remove::remove_unfinished(&self.objects, at, force)
    }

    fn check_finished(&self, at: &Location) -> Result<()> {
        remove::check_finished(&self.objects, at)
    }

    fn finish_unfinished(&self, at: &Location) -> Result<bool> {
        remove::finish_unfinished(&self.objects, at)
    }

    fn stock(&self, path: &Path) -> Result<Option<Stock>> {
        let key = key_of(&self.objects, path)?;
        let mut found = self.objects.list(&folder_key(&self.objects, path)?)?;
        if found.is_empty() && !key.is_empty() {
            found.extend(self.objects.head(&key)?);
        }
        found.retain(|object| !is_bookkeeping(object.key.rsplit('/').next().unwrap_or_default()));
        Ok(Some(Stock {
            file_count: found.len(),
            bytes: found.iter().map(|object| object.len_bytes).fold(0, u64::saturating_add),
            modified: found.iter().map(|object| object.modified).max(),
        }))
    }
}

#[cfg(feature = "cloud")]
impl Cacheable for ObjectStorage {
    fn cached(&self, cache: &Cache) -> Option<Arc<dyn Storage>> {
        Some(Arc::new(Self::new(cached::cached(&self.objects, cache)?)))
    }
}

/// Splits a path into its folder and its last name.
pub(super) fn split(path: &Path) -> (&Path, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (path.parent().unwrap_or(Path::new("")), name)
}

pub(super) fn no_folder(name: PathBuf) -> Error {
    Error::new(crate::error::ErrorKind::NotFound, "no object has a key below this one").in_file(name)
}
