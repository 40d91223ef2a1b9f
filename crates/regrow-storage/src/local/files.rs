//! The files of a new checkpoint, which one process writes into a temporary folder.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::SYNC_LATER_LEN_MAX_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::local::LocalDisk;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::local::folders::{make_folders, relative_path, sync_folder};
use crate::store::{Blob, DirectWriter, FileWriter, WriteOptions};
use crate::system::{sync_at, sync_file_system};
use crate::{FilesInMemory, NewFolder, PublishOptions, Storage};

/// From this many files and folders on, one sync of the file system is cheaper than one sync of
/// each, although it also flushes other data.
const SYNC_EACH_MAX: usize = 64;

/// The folder for the files, and the list of files that still need a sync.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    /// The location that the checkpoint will have.
    pub(super) target: Location,
    pub(super) durable: bool,
    keep_cached: bool,
    in_memory: Option<FilesInMemory>,
    pub(super) monitor: Monitor,
    /// Files that no writer has synced yet.
    pub(super) unsynced: Mutex<Vec<PathBuf>>,
    linked_bytes: AtomicU64,
}

/// A new folder on a local disk: begun by this process, or by another one.
pub(super) trait InFolder: Debug + Send + Sync {
    fn files(&self) -> &Files;
}

impl<T: InFolder> NewFolder for T {
    fn target(&self) -> &Location {
        &self.files().target
    }

    fn monitor(&self) -> &Monitor {
        &self.files().monitor
    }

    fn is_durable(&self) -> bool {
        self.files().durable
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.files().write(name, bytes)
    }

    fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.files().writer(self.files().path(name)?, expected_len_bytes, checksums_from)
    }

    fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        self.files().link(name, source, opened)
    }

    fn reused_bytes(&self) -> u64 {
        self.files().linked_bytes.load(Ordering::Relaxed)
    }

    fn written(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.files().path(name)?;
        fs::read(&path).map_err(|error| Error::io("cannot read the files of another process", &path, error))
    }

    fn marker_line(&self) -> Option<String> {
        None
    }

    fn local_folder(&self) -> Option<&Path> {
        Some(&self.files().folder)
    }
}

impl Files {
    pub(super) fn new(folder: PathBuf, target: &Location, options: &PublishOptions<'_>) -> Self {
        Self {
            folder,
            target: target.clone(),
            durable: options.durable,
            keep_cached: options.keep_cached,
            in_memory: options.in_memory.cloned(),
            monitor: options.monitor.clone(),
            unsynced: Mutex::default(),
            linked_bytes: AtomicU64::new(0),
        }
    }

    /// The path of `name` below the folder.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder.
    pub(super) fn path(&self, name: &str) -> Result<PathBuf> {
        Ok(self.folder.join(relative_path(name.as_bytes())?))
    }

    /// Makes the folders between the folder and a file.
    pub(super) fn make_folders_to(&self, path: &Path) -> Result<()> {
        match path.parent().filter(|folder| *folder != self.folder) {
            Some(folder) => make_folders(folder)
                .map(drop)
                .map_err(|error| Error::io("cannot make the folder", folder, error)),
            None => Ok(()),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name)?;
        self.make_folders_to(&path)?;
        let written = File::create_new(&path).and_then(|mut file| file.write_all(bytes));
        written.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::new(ErrorKind::AlreadyExists, "the same file is written twice").in_file(&path)
            }
            _ => Error::io("cannot write", &path, error),
        })?;
        self.sync_later(path);
        self.monitor.advance(bytes.len() as u64)
    }

    /// A writer of the file at `path`. The other arguments are those of [`DirectWriter::create`].
    pub(super) fn writer(
        &self,
        path: PathBuf,
        expected_len_bytes: u64,
        checksums_from: u64,
    ) -> Result<FileWriter> {
        self.make_folders_to(&path)?;
        let small = (1..SYNC_LATER_LEN_MAX_BYTES).contains(&expected_len_bytes);
        let options = WriteOptions {
            expected_len_bytes,
            checksums_from,
            durable: self.durable && !small,
            keep_cached: self.keep_cached,
        };
        let writer = DirectWriter::create_with(&path, &options)?.watched(&self.monitor);
        if small {
            self.sync_later(path);
            return Ok(FileWriter::new(writer));
        }
        Ok(match &self.in_memory {
            Some(files) => files.note(path, checksums_from, writer),
            None => FileWriter::new(writer),
        })
    }

    /// Makes `name` a hard link to the regular file at `source`, opened as `opened`. Returns
    /// `false`, and leaves nothing, if the system cannot link the file (another file system,
    /// another owner, too many links) or if `source` is another file by now. The file's content,
    /// owner and mode stay.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder; `Cancelled`.
    fn link(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        let path = self.path(name)?;
        self.make_folders_to(&path)?;
        // A hard link to a symbolic link would not be a second name of the file, so resolve links
        // first.
        let source = source.local_path().ok().and_then(|source| fs::canonicalize(source).ok());
        if source.is_none_or(|source| fs::hard_link(source, &path).is_err()) {
            return Ok(false);
        }
        let len_bytes = opened.len_bytes();
        let is_it = fs::symlink_metadata(&path)
            .is_ok_and(|linked| linked.is_file() && linked.len() == len_bytes)
            && LocalDisk.identity(&path).is_some_and(|identity| opened.identity() == Some(identity));
        if !is_it {
            fs::remove_file(&path).map_err(|error| Error::io("cannot remove", &path, error))?;
            return Ok(false);
        }
        // The writer of the linked file may not have synced it.
        self.sync_later(path);
        self.monitor.advance(len_bytes)?;
        self.linked_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        Ok(true)
    }

    /// Makes an empty file. Returns `false` if the file already exists.
    pub(super) fn claim(&self, name: &str) -> Result<bool> {
        let path = self.path(name)?;
        self.make_folders_to(&path)?;
        match File::create_new(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(Error::io("cannot write", &path, error)),
        }
    }

    /// Removes the files directly in a folder for whose names `is_left` returns true.
    pub(super) fn sweep(&self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        let folder = if below.is_empty() { self.folder.clone() } else { self.path(below)? };
        let cannot_list = |error| Error::io("cannot list", &folder, error);
        for entry in fs::read_dir(&folder).map_err(cannot_list)? {
            let entry = entry.map_err(cannot_list)?;
            if entry.file_name().to_str().is_some_and(is_left) {
                let path = entry.path();
                fs::remove_file(&path).map_err(|error| Error::io("cannot remove", &path, error))?;
            }
        }
        Ok(())
    }

    /// Removes a small file that this or another process has written to the folder.
    pub(super) fn withdraw(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        fs::remove_file(&path).map_err(|error| Error::io("cannot remove", &path, error))?;
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).retain(|unsynced| *unsynced != path);
        Ok(())
    }

    pub(super) fn sync_later(&self, path: PathBuf) {
        if self.durable {
            self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).push(path);
        }
    }

    /// Syncs the files that no writer has synced, and all folders from `top` on.
    pub(super) fn sync(&self, top: &Path) -> Result<()> {
        let mut folders = vec![top.to_owned()];
        let mut next = 0;
        while let Some(folder) = folders.get(next).cloned() {
            let cannot_list = |error| Error::io("cannot list", &folder, error);
            for entry in fs::read_dir(&folder).map_err(cannot_list)? {
                let entry = entry.map_err(cannot_list)?;
                if entry.file_type().map_err(cannot_list)?.is_dir() {
                    folders.push(entry.path());
                }
            }
            next += 1;
        }
        let files = std::mem::take(&mut *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner));
        let cannot_sync = |path: &Path, error| Error::io("cannot sync", path, error);
        if files.len() + folders.len() > SYNC_EACH_MAX
            && sync_file_system(top).map_err(|error| cannot_sync(top, error))?
        {
            return Ok(());
        }
        files.iter().try_for_each(|file| sync_at(file).map_err(|error| cannot_sync(file, error)))?;
        let mut folders = folders.iter().rev();
        folders.try_for_each(|folder| sync_folder(folder).map_err(|error| cannot_sync(folder, error)))
    }
}
