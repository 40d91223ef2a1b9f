//! Common parts of all checkpoints that are being written to a local disk.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::leftovers::{OwnFolder, remove, sweep};
use super::target::no_name;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::local::folders::make_folders;
use crate::store::{DirectWriter, FileWriter, WriteOptions};
use crate::system::mode_of;

/// A checkpoint of one kind under its temporary name: what a commit and a copy need to know of it.
pub(super) trait Staged: Debug + Send + Sync {
    /// What all kinds share.
    fn staging(&self) -> &Staging;

    fn staging_mut(&mut self) -> &mut Staging;

    /// Where file number `at` of the checkpoint is written, which has this name in it.
    ///
    /// # Errors
    /// `InvalidArgument` if there are not that many, or the name leads out of the folder.
    fn path_of(&self, at: usize, name: &str) -> Result<PathBuf>;

    /// Gives what was written its name; what is to be removed afterwards, if anything.
    ///
    /// # Errors
    /// Those of a commit.
    fn take_name(&mut self) -> Result<Option<PathBuf>>;
}

/// Makes the temporary folder for a name in a folder. The flag sets mode 0700.
type MakeFolder = fn(&Path, &OsStr, bool) -> Result<OwnFolder>;

/// How a checkpoint is written.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// Whether what is at the target may be replaced.
    pub(super) overwrite: bool,
    /// Whether what a user has put there stays.
    pub(super) keeps_others: bool,
    /// Whether a link to a file is itself replaced.
    pub(super) replaces_links: bool,
    /// Whether the commit syncs.
    pub(super) durable: bool,
    pub(super) monitor: &'a Monitor,
    pub(super) own_folder: MakeFolder,
    /// The folder in the temporary one that gets the name of the target; without one, it is the
    /// temporary folder.
    pub(super) below: Option<&'static str>,
}

impl<'a> Terms<'a> {
    /// Those of a save: its temporary folder is new.
    pub(super) fn of_save(overwrite: bool, durable: bool, monitor: &'a Monitor) -> Self {
        let own_folder = OwnFolder::make;
        Self {
            overwrite,
            keeps_others: false,
            replaces_links: false,
            durable,
            monitor,
            own_folder,
            below: None,
        }
    }

    /// Those of a copy, which goes on in the folder of an earlier one and has its files `below`.
    pub(super) fn of_copy(overwrite: bool, durable: bool, monitor: &'a Monitor, below: &'static str) -> Self {
        Self {
            own_folder: OwnFolder::of_copy,
            below: Some(below),
            ..Self::of_save(overwrite, durable, monitor)
        }
    }
}

/// Where a checkpoint is to be.
pub(super) struct Place<'a> {
    /// As the caller gave it.
    pub(super) given: &'a Path,
    /// The path that the temporary folder is beside, and named after.
    pub(super) absolute: PathBuf,
    /// The names that the checkpoint will have.
    pub(super) targets: &'a [PathBuf],
    /// Errs unless one of them may be taken.
    pub(super) check: &'a dyn Fn(&Path) -> Result<()>,
}

/// The temporary folder of a checkpoint, with all that is known of its target. Dropped uncommitted,
/// it leaves no trace.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) own: OwnFolder,
    /// Where the files are written: the temporary folder, or one in it.
    pub(super) data: PathBuf,
    /// As the caller gave it, and as an absolute path.
    pub(super) target: Location,
    pub(super) absolute: PathBuf,
    pub(super) overwrite: bool,
    pub(super) keeps_others: bool,
    /// The mode of what was to be replaced when this began.
    pub(super) found_mode: Option<u32>,
    /// The mode that the checkpoint is to have, if that was said.
    pub(super) mode: OnceLock<u32>,
    pub(super) durable: bool,
    pub(super) made_parents: Vec<PathBuf>,
    /// Files that are not synced yet.
    pub(super) unsynced: Mutex<Vec<PathBuf>>,
    /// Which process may remove the folder: not a fork's child.
    pid: u32,
    pub(super) committed: bool,
    /// Whether what was written stays when this is dropped uncommitted.
    pub(super) stays: AtomicBool,
    pub(super) monitor: Monitor,
}

impl Staging {
    /// Makes the temporary folder beside the target, and the folders above it that are missing;
    /// removes what killed writers of the same target have left.
    pub(super) fn begin(place: Place<'_>, terms: &Terms<'_>) -> Result<Self> {
        let Place { given, absolute, targets, check } = place;
        let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(no_name(given));
        };
        let made_parents =
            make_folders(parent).map_err(|error| Error::io("cannot make the folder", parent, error))?;
        let undo = |error| {
            remove_made(&made_parents);
            error
        };
        sweep(parent, name);
        targets.iter().try_for_each(|target| check(target)).map_err(undo)?;
        let found_mode = targets.iter().find_map(|target| Some(mode_of(&fs::symlink_metadata(target).ok()?)));
        let own = (terms.own_folder)(parent, name, found_mode.is_some()).map_err(undo)?;
        Ok(Self {
            data: terms.below.map_or_else(|| own.path.clone(), |below| own.path.join(below)),
            stays: AtomicBool::new(own.has_beginning),
            own,
            target: Location::local(given),
            absolute,
            overwrite: terms.overwrite,
            keeps_others: terms.keeps_others,
            found_mode,
            mode: OnceLock::new(),
            durable: terms.durable,
            made_parents,
            unsynced: Mutex::default(),
            pid: std::process::id(),
            committed: false,
            monitor: terms.monitor.clone(),
        })
    }

    /// A [`DirectWriter`] of the file at `path`, as durable as the whole; the other arguments are
    /// those of [`DirectWriter::create`].
    pub(super) fn writer(
        &self,
        path: &Path,
        expected_len_bytes: u64,
        checksums_from: u64,
    ) -> Result<FileWriter> {
        let options = WriteOptions { expected_len_bytes, checksums_from, durable: self.durable };
        Ok(FileWriter::new(DirectWriter::create_with(path, &options)?.watched(&self.monitor)))
    }

    /// Has a file synced by the commit.
    pub(super) fn sync_later(&self, path: PathBuf) {
        if self.durable {
            self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).push(path);
        }
    }

    /// Bytes of all files.
    pub(super) fn stored_bytes(&self) -> Result<u64> {
        let mut total = 0;
        let mut folders = vec![self.own.path.clone()];
        while let Some(folder) = folders.pop() {
            let failed = |source| Error::io("cannot list", &folder, source);
            for entry in fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let metadata = entry.metadata().map_err(failed)?;
                if metadata.is_dir() {
                    folders.push(entry.path());
                } else {
                    total += metadata.len();
                }
            }
        }
        Ok(total)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed && !self.stays.load(Ordering::Relaxed) && self.pid == std::process::id() {
            remove(&self.own.path);
            remove_made(&self.made_parents);
        }
    }
}

/// Removes folders that were made in vain, unless they are in use.
fn remove_made(made: &[PathBuf]) {
    for folder in made.iter().rev() {
        let _ = fs::remove_dir(folder);
    }
}
