//! The files of a folder checkpoint, which one process writes into its temporary folder.

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
use crate::store::local::folders::{make_folders, relative_path};
use crate::store::{Blob, DirectWriter, FileWriter, WriteOptions};
use crate::{NewFolder, Storage};

/// The temporary folder, and the list of its files that still need a sync.
#[derive(Clone, Copy)]
pub(super) struct FolderFiles<'a> {
    pub(super) folder: &'a Path,
    /// The location that the folder will have.
    pub(super) target: &'a Location,
    pub(super) durable: bool,
    pub(super) monitor: &'a Monitor,
    /// Files that no writer has synced yet.
    pub(super) unsynced: &'a Mutex<Vec<PathBuf>>,
    pub(super) linked_bytes: &'a AtomicU64,
}

/// A new folder on a local disk: begun by this process, or by another one.
pub(super) trait InFolder: Debug + Send + Sync {
    fn files(&self) -> FolderFiles<'_>;
}

impl<T: InFolder> NewFolder for T {
    fn target(&self) -> &Location {
        self.files().target
    }

    fn monitor(&self) -> &Monitor {
        self.files().monitor
    }

    fn is_durable(&self) -> bool {
        self.files().durable
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.files().write(name, bytes)
    }

    fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.files().writer(name, expected_len_bytes, checksums_from)
    }

    fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        let linked = self.files().link(name, source, opened)?;
        self.files().linked_bytes.fetch_add(linked.unwrap_or(0), Ordering::Relaxed);
        Ok(linked.is_some())
    }

    fn reused_bytes(&self) -> u64 {
        self.files().linked_bytes.load(Ordering::Relaxed)
    }

    fn written(&self, name: &str) -> Result<Vec<u8>> {
        self.files().read(name)
    }

    fn marker_line(&self) -> Option<String> {
        None
    }

    fn local_folder(&self) -> Option<&Path> {
        Some(self.files().folder)
    }
}

impl FolderFiles<'_> {
    /// The path of `name` below the folder. Makes the folders on the way. The caller writes and
    /// syncs the file.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder.
    pub(super) fn path(self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(relative_path(name.as_bytes())?);
        if let Some(folder) = path.parent().filter(|folder| *folder != self.folder) {
            make_folders(folder).map_err(|error| Error::io("cannot make the folder", folder, error))?;
        }
        Ok(path)
    }

    pub(super) fn write(self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name)?;
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

    pub(super) fn writer(
        self,
        name: &str,
        expected_len_bytes: u64,
        checksums_from: u64,
    ) -> Result<FileWriter> {
        let path = self.path(name)?;
        let small = (1..SYNC_LATER_LEN_MAX_BYTES).contains(&expected_len_bytes);
        let durable = self.durable && !small;
        let writer =
            DirectWriter::create_with(&path, &WriteOptions { expected_len_bytes, checksums_from, durable })?;
        if small {
            self.sync_later(path);
        }
        Ok(FileWriter::new(writer.watched(self.monitor)))
    }

    /// Makes `name` a hard link to the regular file at `source`, opened as `opened`, and returns
    /// its length. Returns `None`, and leaves nothing, if the system cannot link the file (another
    /// file system, another owner, too many links) or if `source` is another file by now. The
    /// file's content, owner and mode stay.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder; `Cancelled`.
    pub(super) fn link(self, name: &str, source: &Location, opened: &dyn Blob) -> Result<Option<u64>> {
        let path = self.path(name)?;
        // A hard link to a symbolic link would not be a second name of the file, so resolve links
        // first.
        let Some(source) = source.local_path().ok().and_then(|source| fs::canonicalize(source).ok()) else {
            return Ok(None);
        };
        if fs::hard_link(source, &path).is_err() {
            return Ok(None);
        }
        let linked = fs::symlink_metadata(&path).ok().filter(|linked| {
            linked.is_file()
                && linked.len() == opened.len_bytes()
                && LocalDisk.identity(&path).is_some_and(|identity| opened.identity() == Some(identity))
        });
        let Some(linked) = linked else {
            fs::remove_file(&path).map_err(|error| Error::io("cannot remove", &path, error))?;
            return Ok(None);
        };
        // The writer of the linked file may not have synced it.
        self.sync_later(path);
        self.monitor.advance(linked.len())?;
        Ok(Some(linked.len()))
    }

    /// Makes an empty file. Returns `false` if the file already exists.
    pub(super) fn claim(self, name: &str) -> Result<bool> {
        let path = self.path(name)?;
        match File::create_new(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(Error::io("cannot write", &path, error)),
        }
    }

    /// Removes the files directly in a folder for whose names `is_left` returns true.
    pub(super) fn sweep(self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        let folder = match below.is_empty() {
            true => self.folder.to_owned(),
            false => self.folder.join(relative_path(below.as_bytes())?),
        };
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

    /// The bytes of a small file that this or another process has written to the folder.
    pub(super) fn read(self, name: &str) -> Result<Vec<u8>> {
        let path = self.folder.join(relative_path(name.as_bytes())?);
        fs::read(&path).map_err(|error| Error::io("cannot read the files of another process", &path, error))
    }

    /// Removes a small file that this or another process has written to the folder.
    pub(super) fn withdraw(self, name: &str) -> Result<()> {
        let path = self.folder.join(relative_path(name.as_bytes())?);
        fs::remove_file(&path).map_err(|error| Error::io("cannot remove", &path, error))?;
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).retain(|unsynced| *unsynced != path);
        Ok(())
    }

    fn sync_later(self, path: PathBuf) {
        if self.durable {
            self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).push(path);
        }
    }
}
