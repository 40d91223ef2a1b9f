//! The storage of a sealed checkpoint, as its layout reads it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{Governed, Seal};
use super::store::SealedStore;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::storage::{
    Document, Entry, Found, Identity, Publication, PublishOptions, Reading, Stock, Storage,
};
use crate::store::{ByteRange, Store};

/// Another storage, of which nothing that is sealed is read unchecked. Nothing is written to it.
#[derive(Debug)]
pub(super) struct SealedStorage {
    storage: Arc<dyn Storage>,
    seal: Arc<Seal>,
}

impl SealedStorage {
    pub fn new(storage: Arc<dyn Storage>, seal: Arc<Seal>) -> Self {
        Self { storage, seal }
    }

    /// The keys beside a path, and the key of the path, if the seal has something to say of it.
    fn sealed<'p>(&self, path: &'p Path) -> Option<(SealedStore, &'p str)> {
        if matches!(self.seal.governs(path), Governed::Free) {
            return None;
        }
        let folder = self.seal.place.folder.path();
        let (folder, key) = match path.strip_prefix(folder) {
            Ok(key) => (folder, key),
            Err(_) => (path.parent()?, Path::new(path.file_name()?)),
        };
        let store = SealedStore::new(self.storage.store(folder), Arc::clone(&self.seal), folder.to_owned());
        Some((store, key.to_str()?))
    }
}

impl Storage for SealedStorage {
    fn describe(&self, path: &Path) -> PathBuf {
        self.storage.describe(path)
    }

    fn absolute(&self, path: &Path) -> PathBuf {
        self.storage.absolute(path)
    }

    fn canonical(&self, path: &Path) -> Option<PathBuf> {
        self.storage.canonical(path)
    }

    fn look(&self, path: &Path) -> Result<Option<Found>> {
        self.storage.look(path)
    }

    fn is_taken(&self, path: &Path) -> bool {
        self.storage.is_taken(path)
    }

    fn first_file(&self, folder: &Path, names: &[&'static str]) -> Option<&'static str> {
        self.storage.first_file(folder, names)
    }

    /// Those of the folder without its seal and its signature.
    fn entries(&self, folder: &Path) -> Result<Vec<Entry>> {
        let mut entries = self.storage.entries(folder)?;
        entries.retain(|entry| !self.seal.is_side_file(&folder.join(&entry.name)));
        Ok(entries)
    }

    fn has_listings(&self) -> bool {
        self.storage.has_listings()
    }

    fn store(&self, folder: &Path) -> Arc<dyn Store> {
        let store = self.storage.store(folder);
        Arc::new(SealedStore::new(store, Arc::clone(&self.seal), folder.to_owned()))
    }

    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>> {
        let store = self.storage.opened(folder)?;
        Ok(Arc::new(SealedStore::new(store, Arc::clone(&self.seal), folder.to_owned())))
    }

    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        match self.sealed(path) {
            Some((store, key)) => store.read_document(key, document),
            None => self.storage.read_document(path, document),
        }
    }

    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let Some((store, key)) = self.sealed(path) else {
            return self.storage.read_beginning(path, len_max_bytes);
        };
        let Some(Found::File { len_bytes }) = self.look(path)? else { return Ok(None) };
        let span = ByteRange::Span { offset_bytes: 0, len_bytes: len_bytes.min(len_max_bytes) };
        Ok(store.get(key.as_bytes(), span)?.map(Into::into))
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        self.storage.identity(path)
    }

    fn for_reading(&self, path: &Path) -> Result<Option<Reading>> {
        let reading = self.storage.for_reading(path)?;
        Ok(reading.map(|Reading { location, identity }| Reading {
            location: self.seal.location(&location),
            identity,
        }))
    }

    fn stands_for(&self, path: &Path) -> Option<PathBuf> {
        self.storage.stands_for(path)
    }

    fn is_written_in_place(&self) -> bool {
        self.storage.is_written_in_place()
    }

    fn publish(&self, target: &Location, _options: PublishOptions<'_>) -> Result<Box<dyn Publication>> {
        Err(read_only(target))
    }

    fn check_publish(&self, target: &Location, _options: PublishOptions<'_>) -> Result<()> {
        Err(read_only(target))
    }

    fn stock(&self, path: &Path) -> Result<Option<Stock>> {
        self.storage.stock(path)
    }

    fn local_path<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        self.storage.local_path(path)
    }

    fn commits_by_marker(&self) -> bool {
        self.storage.commits_by_marker()
    }
}

fn read_only(target: &Location) -> Error {
    Error::unsupported("an opened checkpoint is read only").in_file(target)
}
