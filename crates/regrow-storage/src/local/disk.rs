//! The local file system as a storage.

use std::fs::{self, FileType};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::joined_folder::SharedFolder;
use super::lock::lock_target;
use super::target::Goal;
use super::{
    Hold, LocalTransfer, Staged, finish_unfinished, hold, move_folder, remove_checkpoint, remove_files,
    remove_unfinished, stock, traces,
};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::local::read_beginning;
use crate::store::local::regular::name_of;
use crate::store::{LocalStore, Store, read_document};
use crate::system::id_at;
use crate::{
    BegunFile, BegunFolder, BegunSiblings, Capabilities, Document, Entry, EntryKind, Found, Identity,
    JoinedFolder, Publish, PublishOptions, Reading, Removal, Removed, Stock, Storage, StorageKind,
    StorageOptions, Target, TargetLock, Trace, Transfer, TransferOptions, Upkeep, Url, Writes,
};

pub(crate) const KIND: StorageKind = StorageKind { schemes: &["file"], locate };

fn locate(url: &Url<'_>, _options: &StorageOptions) -> Result<Location> {
    match url.rest.strip_prefix('/') {
        Some(path) => Ok(Location::local(format!("/{}", path.trim_start_matches('/')))),
        None => Err(Error::unsupported("a file:// URL cannot have a host")
            .in_file(url.text)
            .help(format!("file:///{}", url.rest))),
    }
}

/// The local file system as a storage. Its paths are paths of the system.
#[derive(Debug, Clone, Copy)]
pub struct LocalDisk;

/// Methods that only the local file system has, or that are faster there.
impl Location {
    /// The location of a path of the local file system. The path is not parsed as a URL.
    pub fn local(path: impl Into<PathBuf>) -> Self {
        Self::new(Arc::new(LocalDisk), path)
    }

    /// The path, if the storage is the local file system.
    ///
    /// # Errors
    /// `Unsupported` if it is another storage.
    pub fn local_path(&self) -> Result<&Path> {
        self.on_disk().ok_or_else(|| {
            Error::unsupported("this needs a path on a local disk")
                .in_file(self)
                .help("copy the files to a local disk")
        })
    }

    pub(crate) fn on_disk(&self) -> Option<&Path> {
        self.capabilities().is_local.then_some(self.path())
    }

    /// The same location with an absolute path.
    #[must_use]
    pub fn absolute(&self) -> Self {
        match self.on_disk().map(std::path::absolute) {
            Some(Ok(path)) => Self::local(path),
            _ => self.clone(),
        }
    }

    /// Whether something exists under this name, even a link to a missing file.
    pub fn is_taken(&self) -> bool {
        match self.on_disk() {
            Some(path) => fs::symlink_metadata(path).is_ok(),
            None => matches!(self.look(), Ok(Some(_))),
        }
    }

    /// Whether a link is at the path, also one to a missing file. A slash at the end of the path
    /// has no meaning.
    pub fn is_link(&self) -> bool {
        self.on_disk().is_some_and(|path| path.components().as_path().is_symlink())
    }

    /// The first of these names that is a file in the folder.
    pub fn first_file(&self, names: &[&'static str]) -> Option<&'static str> {
        let Some(folder) = self.on_disk() else {
            let is_file = |name: &&&str| matches!(self.join(name).look(), Ok(Some(Found::File { .. })));
            return names.iter().find(is_file).copied();
        };
        let mut path = folder.to_owned();
        names.iter().copied().find(|name| {
            path.push(name);
            let is_file = fs::metadata(&path).is_ok_and(|found| found.is_file());
            path.pop();
            is_file
        })
    }

    /// Removes the folder if it is empty. Does nothing on storages without folders.
    pub fn remove_if_empty(&self) {
        let _ = self.on_disk().map(fs::remove_dir);
    }

    /// Renames a folder, and makes the parent of the new name if necessary. Returns `false`, with
    /// nothing changed, if the storage cannot rename. The new name is synced.
    ///
    /// # Errors
    /// `AlreadyExists` if something already has the new name; errors of the storage.
    pub fn move_folder(&self, to: &Self) -> Result<bool> {
        match self.on_disk() {
            Some(path) => move_folder(path, to.local_path()?).map(|()| true),
            None => Ok(false),
        }
    }

    /// Locks this path until the returned value is dropped or the process ends; `None` if the
    /// storage has no locks. Makes the folder of the path if it is missing.
    ///
    /// # Errors
    /// `AlreadyExists` if this or another process already has the lock; errors of the storage.
    pub fn hold(&self) -> Result<Option<Hold>> {
        self.on_disk().map_or(Ok(None), hold)
    }
}

impl Storage for LocalDisk {
    fn describe(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    fn look(&self, path: &Path) -> Result<Option<Found>> {
        match fs::metadata(path) {
            Ok(found) if found.is_file() => Ok(Some(Found::File { len_bytes: found.len() })),
            Ok(found) if found.is_dir() => Ok(Some(Found::Folder)),
            Ok(found) => Ok(Some(Found::Other(name_of(found.file_type())))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("cannot open", path, error)),
        }
    }

    fn entries(&self, folder: &Path) -> Result<Vec<Entry>> {
        let cannot_list = |error| Error::io("cannot list", folder, error);
        let mut entries = Vec::new();
        for entry in fs::read_dir(as_system_takes_it(folder)).map_err(cannot_list)? {
            let entry = entry.map_err(cannot_list)?;
            let kind = entry.file_type().map_err(cannot_list)?;
            let found = match kind.is_symlink() {
                true => {
                    fs::metadata(entry.path()).map_or(EntryKind::Other, |found| kind_of(found.file_type()))
                }
                false => kind_of(kind),
            };
            entries.push(Entry { name: entry.file_name(), found, is_link: kind.is_symlink() });
        }
        Ok(entries)
    }

    fn store(&self, folder: &Path) -> Arc<dyn Store> {
        Arc::new(LocalStore::new(as_system_takes_it(folder)))
    }

    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(LocalStore::anchored(as_system_takes_it(folder))?))
    }

    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        read_document(path, document.what, document.language, document.len_max_bytes)
    }

    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        read_beginning(path, len_max_bytes)
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        let look = || -> io::Result<Identity> {
            let (found, id) = (fs::metadata(path)?, id_at(path)?);
            Ok(Identity::Inode(id.device, id.number, found.created().ok()))
        };
        // One failed look does not mean that the file was replaced, so look twice.
        look().or_else(|_| look()).ok()
    }

    fn for_reading(&self, _path: &Path) -> Result<Option<Reading>> {
        Ok(None)
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            is_local: true,
            has_listings: true,
            commits_by_marker: false,
            archive: None,
            writes: Ok(Writes::of(self)),
            #[cfg(feature = "cloud")]
            cacheable: None,
        }
    }
}

impl Publish for LocalDisk {
    fn check_publish(&self, target: &Location, kind: &Target, options: PublishOptions<'_>) -> Result<()> {
        Goal::of(target, kind, &options)?.check()
    }

    fn publish_folder(&self, target: &Location, options: PublishOptions<'_>) -> Result<Box<dyn BegunFolder>> {
        Ok(Box::new(Staged::begin(Goal::of(target, &Target::Folder, &options)?, &options, false)?))
    }

    fn publish_file(&self, target: &Location, options: PublishOptions<'_>) -> Result<Box<dyn BegunFile>> {
        Ok(Box::new(Staged::begin(Goal::of(target, &Target::File, &options)?, &options, false)?))
    }

    fn publish_siblings(
        &self,
        target: &Location,
        suffixes: &[String],
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn BegunSiblings>> {
        let kind = Target::Siblings { suffixes: suffixes.to_vec() };
        Ok(Box::new(Staged::begin(Goal::of(target, &kind, &options)?, &options, false)?))
    }

    fn join(
        &self,
        target: &Location,
        ticket: &str,
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn JoinedFolder>> {
        Ok(Box::new(SharedFolder::join(target, ticket, options)?))
    }

    fn transfer(&self, target: &Location, options: TransferOptions<'_>) -> Result<Box<dyn Transfer>> {
        Ok(Box::new(LocalTransfer::begin(target, options)?))
    }
}

impl Upkeep for LocalDisk {
    // A local checkpoint gets its name only when it is complete, so there is nothing to check.
    fn check_finished(&self, _at: &Location) -> Result<()> {
        Ok(())
    }

    fn traces(&self, at: &Location) -> Result<Vec<Trace>> {
        Ok(traces(at.local_path()?))
    }

    fn lock(
        &self,
        at: &Location,
        operation: &'static str,
        wait: Option<Duration>,
        monitor: &Monitor,
    ) -> Result<TargetLock> {
        let lock = lock_target(at.local_path()?, operation, wait, monitor)?;
        finish_unfinished(at.local_path()?, Some(&lock))?;
        Ok(lock)
    }

    fn remove(&self, at: &Location, what: &Removal, _lock: &TargetLock) -> Result<Removed> {
        match what {
            Removal::Folder => remove_checkpoint(at.local_path()?),
            Removal::Files { files, beside } => {
                let paths = |files: &[Location]| -> Result<Vec<PathBuf>> {
                    files.iter().map(|file| Ok(file.local_path()?.to_owned())).collect()
                };
                remove_files(at.local_path()?, &paths(files)?, &paths(beside)?)
            }
        }
    }

    fn remove_unfinished(&self, at: &Location, force: bool) -> Result<Removed> {
        remove_unfinished(at.local_path()?, force)
    }

    fn finish_unfinished(&self, at: &Location) -> Result<bool> {
        finish_unfinished(at.local_path()?, None)
    }

    fn stock(&self, path: &Path) -> Result<Option<Stock>> {
        let found = fs::metadata(path).map_err(|error| Error::io("cannot look at", path, error))?;
        let (removed, modified) = match found.is_dir() {
            true => stock(path)?,
            false => {
                (Removed { file_count: 1, bytes: found.len(), ..Removed::default() }, found.modified().ok())
            }
        };
        Ok(Some(Stock { file_count: removed.file_count, bytes: removed.bytes, modified }))
    }
}

/// The path that the system takes for a folder: an empty path means the working folder.
fn as_system_takes_it(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

fn kind_of(kind: FileType) -> EntryKind {
    if kind.is_file() {
        EntryKind::File
    } else if kind.is_dir() {
        EntryKind::Folder
    } else {
        EntryKind::Other
    }
}
