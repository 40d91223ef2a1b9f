//! Reads a checkpoint with a lost marker as if the marker existed. So a repair finds other losses
//! before it restores the marker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Document, Entry, Found, Identity, Publication, PublishOptions, Storage};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::store::Store;

/// A bucket in which no checkpoint needs a marker. Nothing is written to it.
#[derive(Debug)]
pub struct Marked(Arc<dyn Storage>);

impl Marked {
    /// The same location, where no marker is needed.
    pub fn location(at: &Location) -> Location {
        Location::new(Arc::new(Self(Arc::clone(at.storage()))), at.path())
    }
}

impl Storage for Marked {
    fn describe(&self, path: &Path) -> PathBuf {
        self.0.describe(path)
    }

    fn absolute(&self, path: &Path) -> PathBuf {
        self.0.absolute(path)
    }

    fn canonical(&self, path: &Path) -> Option<PathBuf> {
        self.0.canonical(path)
    }

    fn look(&self, path: &Path) -> Result<Option<Found>> {
        self.0.look(path)
    }

    fn entries(&self, folder: &Path) -> Result<Vec<Entry>> {
        self.0.entries(folder)
    }

    fn has_listings(&self) -> bool {
        self.0.has_listings()
    }

    fn store(&self, folder: &Path) -> Arc<dyn Store> {
        self.0.store(folder)
    }

    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>> {
        self.0.opened(folder)
    }

    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        self.0.read_document(path, document)
    }

    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        self.0.read_beginning(path, len_max_bytes)
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        self.0.identity(path)
    }

    fn publish(&self, target: &Location, _options: PublishOptions<'_>) -> Result<Box<dyn Publication>> {
        Err(read_only(target))
    }

    fn check_publish(&self, target: &Location, _options: PublishOptions<'_>) -> Result<()> {
        Err(read_only(target))
    }
}

fn read_only(target: &Location) -> Error {
    Error::unsupported("a checkpoint that is read without its marker cannot be written").in_file(target)
}
