//! Checkpoints on web servers: `https://host/path` and `http://host/path`, read only, through
//! ranges.
//!
//! A web server returns files, but does not list them. So a path is a folder if it has a file with
//! which a checkpoint begins ([`Names`](crate::Names)). A layout can be opened on a web server if
//! its documents name all other files:
//!
//! | layout | opens |
//! |---|---|
//! | the default layout | by `regrow.json`, which names all files |
//! | Orbax | by `_METADATA` and the database, which name all files; `_CHECKPOINT_METADATA` names the items |
//! | safetensors | by `model.safetensors.index.json`, `model.safetensors`, or the name of the file |
//! | npz, npy, msgpack, Equinox, data and manifest | by the name of the file |
//! | a checkpoint in an archive | by its path in the archive, which has its own directory |
//! | folders of steps, of npy files, of zarr arrays alone | no: open a step by its own name |
//!
//! | module | does |
//! |---|---|
//! | `mod` | [`HttpStorage`]: finds checkpoints without lists |
//! | `server` | the requests: lengths, ranges, versions, tries |
//! | `address` | parses and builds URLs |
//! | `settings` | the storage options |
//!
//! Each file is read in the version that was found first. Only checksums connect the files of one
//! checkpoint. If a checkpoint is replaced during the opening, the tags of its first files show
//! this.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::cache::Cache;
use super::object::cached::cached;
use super::object::keys::{ObjectStore, read_beginning};
use super::object::{Objects, key_of, split};
use super::{
    Cacheable, Capabilities, Document, Entry, Found, Identity, ReadOnly, Reading, Storage, StorageKind,
    StorageOptions, Url,
};
use crate::error::Result;
use crate::location::Location;
use crate::names::names;
use crate::store::Store;
use crate::threads::for_each_parallel;

mod address;
mod server;
mod settings;

use address::Address;
use server::{no_listings, shared};
use settings::Settings;

pub(super) const KIND: StorageKind = StorageKind { schemes: &["https", "http"], locate };

fn locate(url: &Url<'_>, options: &StorageOptions) -> Result<Location> {
    let address = Address::parse(url.text)?;
    let path = address.path.clone();
    let storage = HttpStorage { server: shared(address, Settings::of(options)?), seen: None };
    Ok(Location::new(Arc::new(storage), path))
}

/// A web server as a storage of checkpoints.
#[derive(Debug, Clone)]
struct HttpStorage {
    server: Arc<dyn Objects>,
    /// The folder that was opened, with the versions of its files seen so far.
    seen: Option<(PathBuf, ObjectStore)>,
}

impl HttpStorage {
    /// The files below a folder. Files that were seen before keep the version that was seen.
    fn files(&self, folder: &Path) -> ObjectStore {
        match &self.seen {
            Some((_, store)) => store.in_folder(folder),
            None => ObjectStore::unlisted(Arc::clone(&self.server), folder),
        }
    }

    /// The length of the file at a path; `None` if there is none.
    fn file_len_bytes(&self, path: &Path) -> Result<Option<u64>> {
        let (folder, name) = split(path);
        match name.is_empty() {
            true => Ok(None),
            false => self.files(folder).len_bytes(name.as_bytes()),
        }
    }

    /// Whether the path may be a checkpoint: the folder that was opened, or a path whose name has
    /// no dot and does not begin with `_`.
    fn may_be_folder(&self, path: &Path) -> bool {
        let Some((root, _)) = &self.seen else { return true };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path == root || !name.starts_with('_') && !name.contains('.')
    }

    /// The files that show that a checkpoint is in the folder: only the most common one if it
    /// exists, and otherwise all others that exist.
    fn beginnings<T: Send>(
        &self,
        folder: &Path,
        look: impl Fn(&Path) -> Result<Option<T>> + Sync,
    ) -> Result<Vec<(&'static str, T)>> {
        let Some((&first, others)) = names().beginnings().split_first() else { return Ok(Vec::new()) };
        let at_first = look(&folder.join(first));
        if let Ok(Some(found)) = at_first {
            return Ok(vec![(first, found)]);
        }
        let seen = Mutex::new((Vec::new(), at_first.err()));
        // Some servers answer `forbidden` for a missing file, so the answer for one file does not
        // apply to the others.
        let look_for = |&name: &&'static str| {
            let looked = look(&folder.join(name));
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match looked {
                Ok(Some(found)) => seen.0.push((name, found)),
                Ok(None) => {}
                Err(error) => seen.1 = Some(error),
            }
            Ok(())
        };
        for_each_parallel(others.len(), others, u64::MAX, |_| 0, look_for)?;
        let (mut found, error) = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(name, _)| *name);
        match error {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }
}

impl Storage for HttpStorage {
    fn describe(&self, path: &Path) -> PathBuf {
        self.server.url(&path.to_string_lossy()).into()
    }

    fn look(&self, path: &Path) -> Result<Option<Found>> {
        let file = self.file_len_bytes(path);
        if let Ok(Some(len_bytes)) = file {
            return Ok(Some(Found::File { len_bytes }));
        }
        if !self.may_be_folder(path) {
            return file.map(|_| None);
        }
        // Many servers answer `forbidden` for a folder, so an error of the look does not end the
        // search.
        match self.beginnings(path, |path| self.file_len_bytes(path)) {
            Ok(found) if !found.is_empty() => Ok(Some(Found::Folder)),
            Ok(_) => file.map(|_| None),
            Err(error) => Err(file.err().unwrap_or(error)),
        }
    }

    fn entries(&self, folder: &Path) -> Result<Vec<Entry>> {
        Err(no_listings(&self.describe(folder)))
    }

    fn store(&self, folder: &Path) -> Arc<dyn Store> {
        Arc::new(self.files(folder))
    }

    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>> {
        Ok(self.store(folder))
    }

    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        let (folder, name) = split(path);
        self.files(folder).read_document(&name, document)
    }

    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let (folder, name) = split(path);
        read_beginning(&self.files(folder), &name, len_max_bytes)
    }

    /// The tag of a file. For a folder, the tag of the most common file that shows a checkpoint,
    /// or, without this file, the tags of all other such files. Each call sends new requests.
    fn identity(&self, path: &Path) -> Option<Identity> {
        let key = |path: &Path| key_of(&self.server, path);
        let tag = |path: &Path| Ok(self.server.head(&key(path)?)?.map(|object| object.tag.to_string()));
        let file = if path.as_os_str().is_empty() { None } else { tag(path).ok().flatten() };
        if let Some(tag) = file {
            return Some(Identity::of_objects(tag));
        }
        let found = self.beginnings(path, tag).ok()?;
        (!found.is_empty()).then(|| Identity::of_objects(found))
    }

    fn for_reading(&self, path: &Path) -> Result<Option<Reading>> {
        if self.seen.is_some() {
            return Ok(None);
        }
        let store = ObjectStore::unlisted(Arc::clone(&self.server), Path::new(""));
        let storage = Self { server: Arc::clone(&self.server), seen: Some((path.to_owned(), store)) };
        Ok(Some(Reading { location: Location::new(Arc::new(storage), path), identity: None }))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            is_local: false,
            has_listings: false,
            commits_by_marker: false,
            archive: None,
            writes: Err(ReadOnly {
                what: "web servers are read only",
                help: Some("save to a folder or a bucket, and serve that by https://"),
            }),
            cacheable: Some(self),
        }
    }
}

impl Cacheable for HttpStorage {
    fn cached(&self, cache: &Cache) -> Option<Arc<dyn Storage>> {
        Some(Arc::new(Self { server: cached(&self.server, cache)?, seen: None }))
    }
}
