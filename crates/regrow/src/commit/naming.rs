//! The commit itself: what is written is synced, gets its name, and the folder above is synced.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::PoisonError;

use super::leftovers::{Lock, lock, remove, replaced_path};
use super::rename::{exchange, keep_owner_and_mode, rename_new, replace_in_two_steps};
use super::{Kind, Staged, siblings};
use crate::error::{Error, ErrorKind, Result};
use crate::store::local::folders::{sync_folder, sync_made};

/// From this many files and folders on, one `syncfs` is cheaper than syncing each, whatever else it flushes.
const SYNC_EACH_MAX: usize = 64;

/// How often the target may change under an overwrite before it gives up.
const TRIES: usize = 64;

impl Staged {
    pub(super) fn name_it(mut self) -> Result<()> {
        let replaced = self.take_name()?;
        self.committed = true;
        let synced = if self.durable { self.sync_names() } else { Ok(()) };
        if let Some(old) = replaced {
            remove(&old);
        }
        if self.data != self.own.path {
            remove(&self.own.path);
        }
        synced
    }

    /// Syncs the folders, so that the names that the commit has given survive a power cut.
    fn sync_names(&self) -> Result<()> {
        let parent = self.absolute.parent().unwrap_or(&self.absolute);
        sync_folder(parent).and_then(|()| sync_made(&self.made_parents)).map_err(|error| {
            Error::io("the checkpoint is saved, but the folder above it cannot be synced", parent, error)
                .of_kind(ErrorKind::NotDurable)
                .help(
                    "the path holds the new checkpoint, whole; whether it would survive a power cut is not known: \
                     look at the disk, and save again",
                )
        })
    }

    /// Gives the target its name; what is to be removed afterwards, if anything.
    fn take_name(&mut self) -> Result<Option<PathBuf>> {
        if self.kind == Kind::Siblings {
            let check = || self.siblings.iter().try_for_each(|target| self.check(target));
            return match siblings::take_names(&self.own.path, &self.siblings, self.durable, &check) {
                Ok(()) => Ok(Some(self.own.path.clone())),
                Err(failed) => {
                    // Then it is not ours to remove any more.
                    self.committed |= failed.keep;
                    Err(failed.error)
                }
            };
        }
        let target = &self.absolute;
        let cannot_commit = |error| Error::io("cannot give the checkpoint its name", target, error);
        let source = match self.kind {
            Kind::Folder => self.data.clone(),
            Kind::File | Kind::Siblings => self.single_file(),
        };
        let emptied = (self.kind == Kind::File).then(|| self.own.path.clone());
        if let Some(mode) = self.found_mode {
            // Also if it is gone by now: what was private stays so.
            let kept = match keep_owner_and_mode(target, &source) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && source.exists() => {
                    fs::set_permissions(&source, fs::Permissions::from_mode(mode & 0o777))
                }
                other => other,
            };
            kept.map_err(cannot_commit)?;
        }
        for _ in 0..TRIES {
            match rename_new(&source, target) {
                Ok(()) => return Ok(emptied),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(cannot_commit(error));
                }
                Err(_) => self.check(target)?,
            }
            match keep_owner_and_mode(target, &source) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot_commit(error)),
                _ => {}
            }
            let replaced = match self.kind {
                Kind::File | Kind::Siblings => fs::rename(&source, target).map(|()| emptied.clone()),
                Kind::Folder => self.replace_folder(),
            };
            match replaced {
                Ok(to_remove) => return Ok(to_remove),
                // Somebody took it away in between; the name is free now.
                Err(error) if error.kind() == io::ErrorKind::NotFound && source.exists() => {}
                Err(error) => return Err(cannot_commit(error)),
            }
        }
        Err(Error::new(ErrorKind::Io, "other writers keep changing the target").in_file(target))
    }

    fn replace_folder(&self) -> io::Result<Option<PathBuf>> {
        if exchange(&self.data, &self.absolute)? {
            return Ok(Some(self.own.path.clone()));
        }
        let (Some(parent), Some(name)) = (self.absolute.parent(), self.absolute.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let aside = replaced_path(parent, name).map_err(|error| io::Error::other(error.to_string()))?;
        // Held so that nobody takes it for a leftover while it lies aside.
        let _lock: Lock = lock(&self.absolute)?;
        replace_in_two_steps(&self.data, &self.absolute, &aside)?;
        Ok(Some(aside))
    }

    pub(super) fn sync_tree(&self) -> Result<()> {
        let mut folders = vec![self.own.path.clone()];
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
        if files.len() + folders.len() > SYNC_EACH_MAX {
            let flush = || -> io::Result<()> { Ok(rustix::fs::syncfs(File::open(&self.own.path)?)?) };
            return flush().map_err(|error| Error::io("cannot sync", &self.own.path, error));
        }
        for file in &files {
            let synced = File::open(file).and_then(|file| file.sync_all());
            synced.map_err(|error| Error::io("cannot sync", file, error))?;
        }
        for folder in folders.iter().rev() {
            sync_folder(folder).map_err(|error| Error::io("cannot sync the folder", folder, error))?;
        }
        Ok(())
    }
}
