//! The commit: it syncs the files, gives them their final names, and syncs the folder above.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::leftovers::remove;
use super::lock::lock_target;
use super::rename::{exchange, keep_owner_and_mode, rename_new, replace_in_two_steps};
use super::staging::{Staged, Staging};
use super::temporary::replaced_path;
use crate::Publication;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::lock::TargetLock;
use crate::monitor::Stage;
use crate::store::local::folders::{sync_folder, sync_made};
use crate::system::{set_mode, set_mode_or_less, sync_at, sync_file_system};

/// From this many files and folders on, one sync of the file system is cheaper than one sync of
/// each, although it also flushes other data.
const SYNC_EACH_MAX: usize = 64;

impl<T: Staged> Publication for T {
    fn stored_bytes(&self) -> Result<u64> {
        self.staging().stored_bytes()
    }

    fn commit_under(self: Box<Self>, lock: Option<&TargetLock>) -> Result<()> {
        commit_after(self, lock, |_| Ok(()))
    }

    fn has_lock(&self) -> bool {
        false
    }

    fn made_folders(&self) -> Vec<Location> {
        self.staging().made_folders()
    }
}

pub(super) fn commit(staged: Box<dyn Staged>) -> Result<()> {
    commit_after(staged, None, |_| Ok(()))
}

/// As `commit`, but calls `last_step` after the syncs and before the checkpoint gets its name.
pub(super) fn commit_after(
    staged: Box<dyn Staged>,
    lock: Option<&TargetLock>,
    last_step: impl FnOnce(&Staging) -> Result<()>,
) -> Result<()> {
    let staging = staged.staging();
    let monitor = staging.monitor.clone();
    if staging.durable {
        monitor.enter(Stage::Sync);
        monitor.timed(Stage::Sync, 0, || staging.sync_tree())?;
    }
    monitor.check()?;
    monitor.enter(Stage::Commit);
    let lock = match lock {
        Some(_) => None,
        None => Some(lock_target(&staging.absolute, staging.operation, staging.wait, &monitor)?),
    };
    last_step(staging)?;
    monitor.timed(Stage::Commit, 0, || name_it(staged, lock))
}

fn name_it(mut staged: Box<dyn Staged>, lock: Option<TargetLock>) -> Result<()> {
    let replaced = staged.take_name()?;
    let staging = staged.staging_mut();
    staging.committed = true;
    let synced = if staging.durable { staging.sync_names() } else { Ok(()) };
    drop(lock);
    if let Some(old) = replaced {
        remove(&old);
    }
    if staging.data != staging.own.path {
        remove(&staging.own.path);
    }
    synced
}

/// Gives `source`, a file or a folder, the name of the target, whose lock the caller has. If the
/// name is taken, `check` decides whether it may be replaced, and `replace` replaces it. Returns
/// the path of the old checkpoint, which the caller removes.
pub(super) fn take_name(
    staging: &Staging,
    source: &Path,
    check: &dyn Fn() -> Result<()>,
    replace: &dyn Fn() -> io::Result<Option<PathBuf>>,
) -> Result<Option<PathBuf>> {
    let target = &staging.absolute;
    let cannot_commit = |error| Error::io("cannot give the checkpoint its name", target, error);
    let kept = match (keep_owner_and_mode(target, source), staging.found_mode) {
        // A private target stays private, also if it was removed during the save.
        (Err(error), Some(mode)) if error.kind() == io::ErrorKind::NotFound => {
            set_mode_or_less(source, mode & 0o777)
        }
        (Err(error), None) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        (kept, _) => kept,
    };
    kept.and_then(|()| staging.set_own_mode(source)).map_err(cannot_commit)?;
    match rename_new(source, target) {
        Ok(()) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check()?,
        Err(error) => return Err(cannot_commit(error)),
    }
    replace().map_err(cannot_commit)
}

/// Gives `source`, a file or a folder, the name of the target, which is a folder. Returns the path
/// of the old folder, which the caller removes.
pub(super) fn replace_folder(staging: &Staging, source: &Path) -> io::Result<Option<PathBuf>> {
    let Staging { own, absolute, .. } = staging;
    if exchange(source, absolute)? {
        return Ok(Some(own.path.clone()));
    }
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let aside = replaced_path(parent, name).map_err(|error| io::Error::other(error.to_string()))?;
    replace_in_two_steps(source, absolute, &aside)?;
    Ok(Some(aside))
}

impl Staging {
    fn set_own_mode(&self, source: &Path) -> io::Result<()> {
        match self.mode {
            Some(mode) => set_mode(source, mode),
            None => Ok(()),
        }
    }

    /// Syncs the folders in which the commit has changed names, so that the names survive a power
    /// cut.
    fn sync_names(&self) -> Result<()> {
        let parent = self.absolute.parent().unwrap_or(&self.absolute);
        sync_folder(parent).and_then(|()| sync_made(&self.made_parents)).map_err(|error| {
            Error::io("the checkpoint is saved, but syncing the folder above it failed", parent, error)
                .of_kind(ErrorKind::NotDurable)
                .help(
                    "the path has the complete new checkpoint, but a power cut may lose it: check the disk \
                     and save again",
                )
        })
    }

    pub(super) fn sync_tree(&self) -> Result<()> {
        sync_written(&self.own.path, &self.unsynced)
    }
}

/// Syncs the files that no writer has synced, and all folders from `top` on.
pub(super) fn sync_written(top: &Path, unsynced: &Mutex<Vec<PathBuf>>) -> Result<()> {
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
    let files = std::mem::take(&mut *unsynced.lock().unwrap_or_else(PoisonError::into_inner));
    if files.len() + folders.len() > SYNC_EACH_MAX
        && sync_file_system(top).map_err(|error| Error::io("cannot sync", top, error))?
    {
        return Ok(());
    }
    for file in &files {
        sync_at(file).map_err(|error| Error::io("cannot sync", file, error))?;
    }
    for folder in folders.iter().rev() {
        sync_folder(folder).map_err(|error| Error::io("cannot sync the folder", folder, error))?;
    }
    Ok(())
}
