//! The result of one listing of a folder of objects: their names, lengths and tags.
//!
//! To open a checkpoint, regrow checks many names to find its layout and files. One listing answers
//! all of these checks. Every later read uses the version of the object in the listing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::held::{Found as State, state_at};
use super::marker::{MARKER, OLD_CLAIM, OLD_POINTER, OTHER_MARKER, STATE, is_bookkeeping, is_control};
use super::state::Phase;
use super::{Extent, Keys, Object, ObjectStorage, Objects, folder_key, key_of, keys, no_folder, old, split};
use crate::bytes::limits::work_space;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::names::names;
use crate::side_files::is_name_of_side_file;
use crate::store::Store;
use crate::{Capabilities, Document, Entry, EntryKind, Found, Identity, Reading, Storage};

/// The error text for a checkpoint that a save has begun.
const NEVER: &str = "this checkpoint was never committed";

/// The objects below a prefix.
#[derive(Debug, Clone)]
pub(super) struct Listing {
    prefix: String,
    /// The objects by the rest of their keys, after the prefix.
    objects: BTreeMap<String, Object>,
    /// Whether the list has all objects below the prefix.
    is_whole: bool,
    /// If set, the list has all objects whose names begin with this text.
    begins: Option<String>,
    /// The beginnings of the objects that were read so far.
    beginnings: Arc<Beginnings>,
}

impl Listing {
    /// Requests one page of the objects below `prefix`.
    pub(super) fn of(objects: &Arc<dyn Objects>, prefix: String) -> Result<Self> {
        Self::listed(objects, prefix, true)
    }

    /// Requests one page if `is_page` is set, otherwise all objects.
    fn listed(objects: &Arc<dyn Objects>, prefix: String, is_page: bool) -> Result<Self> {
        let extent = if is_page { Extent::Page } else { Extent::All };
        let Keys { objects: listed, is_whole, .. } = objects.keys(&prefix, extent)?;
        let mut below = BTreeMap::new();
        for object in listed {
            // Some programs write an empty object, whose name ends in a slash, to stand for a
            // folder.
            let name = object.key.get(prefix.len()..).unwrap_or_default().to_owned();
            if !name.is_empty() && !name.ends_with('/') {
                below.insert(name, object);
            }
        }
        Ok(Self { prefix, objects: below, is_whole, begins: None, beginnings: Arc::default() })
    }

    /// Lists the folder of a possible checkpoint. If the first page ends before the marker, the
    /// marker is requested by itself. A checkpoint is listed whole, so that all versions are of one
    /// moment. Another folder is not listed whole, because a folder of many checkpoints may hold
    /// millions of objects.
    pub(super) fn of_checkpoint(objects: &Arc<dyn Objects>, prefix: String) -> Result<Self> {
        let mut listing = Self::of(objects, prefix)?;
        if !listing.is_whole {
            for name in [STATE, MARKER, OTHER_MARKER, OLD_CLAIM, OLD_POINTER] {
                let found = match listing.objects.contains_key(name) {
                    true => None,
                    false => objects.head(&format!("{}{name}", listing.prefix))?,
                };
                listing.objects.extend(found.map(|object| (name.to_owned(), object)));
            }
            if listing.is_marked() {
                return Self::listed(objects, listing.prefix, false);
            }
        }
        Ok(listing)
    }

    /// Lists the objects in the folder `prefix` whose names begin with `name`: a single file, or
    /// several files of one stem.
    fn of_names(objects: &Arc<dyn Objects>, prefix: String, name: &str) -> Result<Self> {
        let key = format!("{prefix}{name}");
        let (mut listed, is_whole) = objects.list_page(&key)?;
        if !is_whole && listed.iter().all(|object| object.key != key) {
            listed.extend(objects.head(&key)?);
        }
        let name_of = |object: &Object| object.key.get(prefix.len()..).unwrap_or_default().to_owned();
        let below = listed.into_iter().map(|object| (name_of(&object), object)).collect();
        let begins = is_whole.then(|| name.to_owned());
        Ok(Self { prefix, objects: below, is_whole: false, begins, beginnings: Arc::default() })
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Whether the state object is the only object.
    pub(super) fn has_only_state(&self) -> bool {
        self.objects.keys().all(|name| is_control(name))
    }

    /// Whether both listings have the same versions of the same objects.
    pub(super) fn has_objects_of(&self, other: &Self) -> bool {
        let versions = |listing: &Self| -> Vec<(String, String)> {
            listing.objects.iter().map(|(name, object)| (name.clone(), object.tag.to_string())).collect()
        };
        versions(self) == versions(other)
    }

    pub(super) fn beginnings(&self) -> Arc<Beginnings> {
        Arc::clone(&self.beginnings)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = (&str, &Object)> {
        self.objects.iter().map(|(name, object)| (name.as_str(), object))
    }

    /// The object of this name below the prefix; `None` if the list lacks it.
    pub(super) fn object(&self, name: &str) -> Option<&Object> {
        self.objects.get(name)
    }

    /// Whether a marker says that the checkpoint is complete.
    pub(super) fn is_marked(&self) -> bool {
        self.objects.contains_key(MARKER) || self.objects.contains_key(OTHER_MARKER)
    }

    /// The state of the target whose folder is listed.
    ///
    /// # Errors
    /// `Replaced` if the state object was deleted since the listing; errors of the bucket.
    pub(super) fn state(&self, objects: &Arc<dyn Objects>) -> Result<Option<State>> {
        let target = self.prefix.trim_end_matches('/');
        let Some(object) = self.object(STATE) else {
            return old::found_in(objects, target, self.is_marked(), |name| self.object(name));
        };
        match state_at(objects, target, &object.key)? {
            Some(found) => Ok(Some(found)),
            None => Err(Error::new(ErrorKind::Replaced, "the checkpoint was replaced while it was opened")
                .in_file(objects.url(&object.key))
                .help("open it again")),
        }
    }

    /// The names of all objects. Lists again if the listing has only one page.
    pub(super) fn names(&self, objects: &Arc<dyn Objects>) -> Result<Vec<String>> {
        let names = |listing: &Self| listing.objects.keys().cloned().collect();
        match self.is_whole {
            true => Ok(names(self)),
            false => Self::listed(objects, self.prefix.clone(), false).map(|whole| names(&whole)),
        }
    }

    /// The listing of the folder in which readers find the checkpoint of this folder.
    ///
    /// # Errors
    /// `Uncommitted` if a save began and did not commit, or if a removal began; `Replaced` if the
    /// checkpoint moves at this moment; errors of the bucket.
    pub(super) fn of_readers(self, objects: &Arc<dyn Objects>) -> Result<Self> {
        let is_begun = self.object(OLD_CLAIM).is_some() && !self.is_marked();
        if self.object(STATE).is_none() && self.object(OLD_POINTER).is_none() {
            return if is_begun { Err(self.uncommitted(objects, NEVER)) } else { Ok(self) };
        }
        match self.state(objects)?.map(|found| found.record.phase) {
            Some(Phase::Moved(folder)) => Self::of_checkpoint(objects, format!("{folder}/")),
            Some(Phase::Removing) => Err(self.uncommitted(objects, "a removal of this checkpoint has begun")),
            Some(Phase::Writing) if !self.is_marked() => Err(self.uncommitted(objects, NEVER)),
            _ => Ok(self),
        }
    }

    fn uncommitted(&self, objects: &Arc<dyn Objects>, what: &str) -> Error {
        Error::new(ErrorKind::Uncommitted, what)
            .in_file(objects.url(&self.prefix))
            .help("it is being written, or its writer was killed: open an earlier checkpoint, or save again")
    }

    /// Whether no object can exist under a name that the list has not shown: the list is complete
    /// for such names, or the name lies below an object.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.is_whole
            || self.begins.as_ref().is_some_and(|begins| name.starts_with(begins))
            || name
                .match_indices('/')
                .any(|(at, _)| self.objects.contains_key(name.get(..at).unwrap_or_default()))
    }

    fn has_below(&self, folder: &str) -> bool {
        let start = format!("{folder}/");
        self.objects.range(start.clone()..).next().is_some_and(|(name, _)| name.starts_with(&start))
    }

    /// Identifies these versions of these objects. As on a disk, side files do not change the
    /// identity. Neither does the state object.
    pub(super) fn identity(&self) -> Option<Identity> {
        let is_own = |name: &str| !is_name_of_side_file(name) && !is_control(name);
        let own = self.objects.iter().filter(|(name, _)| is_own(name));
        let objects: Vec<_> = own.map(|(name, object)| (name, object.tag.text())).collect();
        (!objects.is_empty()).then(|| Identity::of_objects(objects))
    }

    /// The listing of a folder below the prefix.
    pub(super) fn below(&self, objects: &Arc<dyn Objects>, folder: &str) -> Result<Self> {
        if folder.is_empty() {
            return Ok(self.clone());
        }
        let start = format!("{folder}/");
        let prefix = format!("{}{start}", self.prefix);
        if !self.knows(folder) {
            return Self::of_checkpoint(objects, prefix);
        }
        let below = self.objects.range(start.clone()..).take_while(|(name, _)| name.starts_with(&start));
        let below = below
            .map(|(name, object)| (name.get(start.len()..).unwrap_or_default().to_owned(), object.clone()));
        Ok(Self {
            prefix,
            objects: below.collect(),
            is_whole: true,
            begins: None,
            beginnings: Arc::clone(&self.beginnings),
        })
    }

    pub(super) fn entries(&self, objects: &Arc<dyn Objects>, folder: &str) -> Result<Vec<Entry>> {
        let start = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let prefix = format!("{}{start}", self.prefix);
        let mut names: BTreeSet<(String, bool)> = BTreeSet::new();
        if self.is_whole {
            let below = self.objects.range(start.clone()..).take_while(|(name, _)| name.starts_with(&start));
            for (name, _) in below {
                match name.get(start.len()..).unwrap_or_default().split_once('/') {
                    None => names.insert((name.get(start.len()..).unwrap_or_default().to_owned(), false)),
                    Some((folder, _)) => names.insert((folder.to_owned(), true)),
                };
            }
        } else {
            let Keys { objects: files, folders, .. } = objects.keys(&prefix, Extent::Level)?;
            for object in files {
                names.insert((object.key.get(prefix.len()..).unwrap_or_default().to_owned(), false));
            }
            names.extend(folders.into_iter().map(|folder| (folder, true)));
        }
        if names.is_empty() {
            return Err(no_folder(objects.url(&prefix).into()));
        }
        let entry = |(name, is_folder)| Entry {
            name: OsString::from(name),
            found: if is_folder { EntryKind::Folder } else { EntryKind::File },
            is_link: false,
        };
        let is_own = |(name, _): &(String, bool)| !name.is_empty() && !is_bookkeeping(name);
        Ok(names.into_iter().filter(is_own).map(entry).collect())
    }
}

/// The first bytes of some objects. Opening a checkpoint reads them several times, and each read
/// would be a request.
#[derive(Debug, Default)]
pub(super) struct Beginnings {
    kept: Mutex<VecDeque<(String, Bytes)>>,
    /// A whole object that was requested together with the list. The first reader takes it.
    ahead: Mutex<Option<(String, Bytes)>>,
}

impl Beginnings {
    /// Reads up to this offset are answered from the kept beginnings.
    const LEN_MAX_BYTES: u64 = 64 << 10;

    /// Largest number of objects whose beginning is kept.
    const KEPT_MAX: usize = 64;

    /// The bytes of an object if they lie in its kept beginning; `None` if the caller must request
    /// them.
    pub(super) fn read(
        &self,
        objects: &dyn Objects,
        object: &Object,
        part: Range<u64>,
    ) -> Result<Option<Bytes>> {
        if part == (0..object.len_bytes) {
            let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, bytes)) = ahead.take_if(|(key, _)| *key == object.key) {
                return Ok(Some(bytes));
            }
        }
        if part.end > Self::LEN_MAX_BYTES || part.end > object.len_bytes {
            return Ok(None);
        }
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept().iter().find(|(key, _)| *key == object.key).map(|(_, bytes)| bytes.clone());
        let bytes = match found {
            Some(bytes) => bytes,
            None => {
                let mut bytes = work_space(object.len_bytes.min(Self::LEN_MAX_BYTES))?;
                objects.read(object, 0, &mut bytes)?;
                let bytes = Bytes::from(bytes);
                let mut kept = kept();
                if kept.len() >= Self::KEPT_MAX {
                    kept.pop_front();
                }
                kept.push_back((object.key.clone(), bytes.clone()));
                bytes
            }
        };
        Ok(Some(bytes.slice(part.start as usize..part.end as usize)))
    }
}

/// Lists a folder that may be a checkpoint. At the same time it requests the file with which most
/// checkpoints begin, which saves one round trip.
fn list_and_look_ahead(objects: &Arc<dyn Objects>, prefix: String) -> Result<Listing> {
    let first = names().beginnings().first().filter(|_| !prefix.is_empty() && objects.suits().is_far());
    let Some(first) = first else { return Listing::of_checkpoint(objects, prefix) };
    let record = format!("{prefix}{first}");
    let (listing, ahead) = std::thread::scope(|scope| {
        let look = || objects.get_ahead(&record);
        // If no thread starts, the caller gets the record later, when it needs it.
        let ahead = std::thread::Builder::new().name("regrow-ahead".to_owned()).spawn_scoped(scope, look);
        let listing = Listing::of_checkpoint(objects, prefix);
        (listing, ahead.ok().and_then(|ahead| ahead.join().ok().flatten()))
    });
    let listing = listing?;
    if let (Some((bytes, found)), Some(listed)) = (ahead, listing.object(first))
        && listed.tag.is_same(&found.tag)
        && listed.len_bytes == bytes.len() as u64
    {
        let mut ahead = listing.beginnings.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead = Some((record, bytes));
    }
    Ok(listing)
}

/// Finds the checkpoint at a path, at its own key or at the key that its pointer gives, and lists
/// it.
///
/// # Errors
/// `Uncommitted` if a save is writing the checkpoint; errors of the bucket.
pub(super) fn for_reading(objects: &Arc<dyn Objects>, path: &Path) -> Result<Reading> {
    read_as_listed(objects, path, true)
}

fn read_as_listed(objects: &Arc<dyn Objects>, path: &Path, may_look_again: bool) -> Result<Reading> {
    let listing = list_and_look_ahead(objects, folder_key(objects, path)?)?;
    let listing = listing.of_readers(objects)?;
    if listing.has_only_state() {
        let (folder, name) = split(path);
        let unlisted: Arc<dyn Storage> = Arc::new(ObjectStorage::new(Arc::clone(objects)));
        if name.is_empty() {
            return Ok(Reading { location: Location::new(unlisted, path), identity: None });
        }
        let root = folder_key(objects, folder)?;
        let listing = Listing::of_names(objects, root.clone(), &name)?;
        if may_look_again && listing.has_below(&name) {
            // A writer has begun a folder of this name since the look. A second look tells whether
            // it is a checkpoint.
            return read_as_listed(objects, path, false);
        }
        let identity = listing.object(&name).map(|object| Identity::of_objects(object.tag.text()));
        return Ok(Reading { location: listed(objects, listing, root, path), identity });
    }
    let identity = listing.identity();
    // Show the listing under the target's name: the name of an overwrite's folder is that of an
    // unfinished save.
    Ok(Reading { location: listed(objects, listing, folder_key(objects, path)?, path), identity })
}

fn listed(objects: &Arc<dyn Objects>, listing: Listing, root: String, path: &Path) -> Location {
    let storage = ObjectStorage::new(Arc::clone(objects));
    Location::new(Arc::new(ListedStorage { storage, root, listing }), path)
}

/// A bucket with the listing of one folder. The listed objects are not looked up again.
#[derive(Debug)]
struct ListedStorage {
    storage: ObjectStorage,
    /// The path under which the listing is shown. It differs from the prefix of the listing if the
    /// checkpoint is still in the folder of an overwrite.
    root: String,
    listing: Listing,
}

impl ListedStorage {
    /// The name below the root for a path; `None` if the path is outside the root.
    fn below(&self, path: &Path) -> Result<Option<String>> {
        let key = key_of(&self.storage.objects, path)?;
        if format!("{key}/") == self.root || key.is_empty() && self.root.is_empty() {
            return Ok(Some(String::new()));
        }
        Ok(key.strip_prefix(&self.root).map(str::to_owned))
    }
}

impl Storage for ListedStorage {
    fn describe(&self, path: &Path) -> PathBuf {
        self.storage.describe(path)
    }

    fn look(&self, path: &Path) -> Result<Option<Found>> {
        let Some(name) = self.below(path)? else { return self.storage.look(path) };
        if let Some(object) = self.listing.object(&name) {
            return Ok(Some(Found::File { len_bytes: object.len_bytes }));
        }
        if name.is_empty() || self.listing.has_below(&name) {
            return Ok(Some(Found::Folder));
        }
        if self.listing.knows(&name) { Ok(None) } else { self.storage.look(path) }
    }

    fn entries(&self, folder: &Path) -> Result<Vec<Entry>> {
        match self.below(folder)? {
            Some(name) => self.listing.entries(&self.storage.objects, &name),
            None => self.storage.entries(folder),
        }
    }

    fn store(&self, folder: &Path) -> Arc<dyn Store> {
        self.opened(folder).unwrap_or_else(|_| self.storage.store(folder))
    }

    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>> {
        let Some(name) = self.below(folder)? else { return self.storage.opened(folder) };
        let listing = self.listing.below(&self.storage.objects, &name)?;
        if listing.is_empty() {
            return Err(no_folder(self.describe(folder)));
        }
        Ok(Arc::new(keys::ObjectStore::listed(Arc::clone(&self.storage.objects), listing)))
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
        let name = self.below(path).ok()??;
        if let Some(object) = self.listing.object(&name) {
            return Some(Identity::of_objects(object.tag.text()));
        }
        self.listing.below(&self.storage.objects, &name).ok()?.identity()
    }

    fn for_reading(&self, path: &Path) -> Result<Option<Reading>> {
        let Some(name) = self.below(path)? else { return self.storage.for_reading(path) };
        if self.listing.object(&name).is_some() {
            let storage = Arc::new(Self {
                storage: self.storage.clone(),
                root: self.root.clone(),
                listing: self.listing.clone(),
            });
            return Ok(Some(Reading {
                location: Location::new(storage, path),
                identity: self.identity(path),
            }));
        }
        for_reading(&self.storage.objects, path).map(Some)
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            #[cfg(feature = "cloud")]
            cacheable: None,
            ..self.storage.capabilities()
        }
    }
}
