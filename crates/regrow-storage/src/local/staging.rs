//! Common parts of all checkpoints that are being written to a local disk.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::leftovers::{OwnFolder, remove, sweep};
use super::target::no_name;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::local::folders::make_folders;
use crate::store::{DirectWriter, FileWriter, WriteOptions};
use crate::system::mode_of;
use crate::{PublishOptions, TransferOptions};

/// A checkpoint of any kind under its temporary name, as commits and copies see it.
pub(super) trait Staged: Debug + Send + Sync + 'static {
    fn staging(&self) -> &Staging;

    fn staging_mut(&mut self) -> &mut Staging;

    /// The path at which file number `at` of the checkpoint is written. `name` is its name in the
    /// checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no file of this number, or if the name leads out of the
    /// folder.
    fn path_of(&self, at: usize, name: &str) -> Result<PathBuf>;

    /// Gives the files their final names. Returns the path that the caller then removes, if any.
    fn take_name(&mut self) -> Result<Option<PathBuf>>;
}

/// A function that makes the temporary folder for a name in a folder. The flag sets mode 0700.
type MakeFolder = fn(&Path, &OsStr, bool) -> Result<OwnFolder>;

/// The options of a save or copy.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// Whether an existing checkpoint may be replaced.
    pub(super) overwrite: bool,
    /// Whether files of a user in the old checkpoint's folder are kept.
    pub(super) keeps_others: bool,
    /// Whether a link to a file is replaced itself, instead of the file.
    pub(super) replaces_links: bool,
    /// The requested mode of a new folder, if any.
    pub(super) mode: Option<u32>,
    pub(super) durable: bool,
    /// How long the commit waits for another process that has the lock.
    pub(super) wait: Option<Duration>,
    /// The operation, as errors of other processes name it.
    pub(super) operation: &'static str,
    pub(super) monitor: &'a Monitor,
    pub(super) own_folder: MakeFolder,
    /// The folder inside the temporary folder that gets the target's name; `None` if the temporary
    /// folder itself gets it.
    pub(super) below: Option<&'static str>,
}

impl<'a> Terms<'a> {
    /// The terms of a save, which makes a new temporary folder.
    pub(super) fn of_save(overwrite: bool, durable: bool, monitor: &'a Monitor) -> Self {
        let own_folder = OwnFolder::make;
        Self {
            overwrite,
            keeps_others: false,
            replaces_links: false,
            mode: None,
            durable,
            wait: None,
            operation: "save",
            monitor,
            own_folder,
            below: None,
        }
    }

    /// The terms of a save with these options.
    pub(super) fn of(options: &PublishOptions<'a>) -> Self {
        Self {
            keeps_others: options.keeps_others,
            replaces_links: options.replaces_links,
            mode: options.mode,
            wait: options.wait,
            ..Self::of_save(options.overwrite, options.durable, options.monitor)
        }
    }

    /// The terms of a copy, which continues in the folder of an earlier copy. Its files are in the
    /// folder `below`.
    pub(super) fn of_copy(options: &TransferOptions<'a>, below: &'static str) -> Self {
        Self {
            own_folder: OwnFolder::of_copy,
            below: Some(below),
            wait: options.wait,
            operation: "copy",
            ..Self::of_save(options.overwrite, options.durable, options.monitor)
        }
    }
}

/// The target of a save, in its different forms.
pub(super) struct Place<'a> {
    /// The path as the caller gave it.
    pub(super) given: &'a Path,
    /// The absolute path. The temporary folder lies beside it and is named after it.
    pub(super) absolute: PathBuf,
    /// The final paths of the checkpoint's files or folder.
    pub(super) targets: &'a [PathBuf],
    /// Returns an error unless a path in `targets` may be taken.
    pub(super) check: &'a dyn Fn(&Path) -> Result<()>,
}

/// The temporary folder of a checkpoint, with the facts about its target. If it is dropped
/// uncommitted, the folder is removed.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) own: OwnFolder,
    /// The folder for the files: the temporary folder, or a folder in it.
    pub(super) data: PathBuf,
    /// The target as the caller gave it.
    pub(super) target: Location,
    pub(super) absolute: PathBuf,
    pub(super) overwrite: bool,
    pub(super) keeps_others: bool,
    /// The mode of the old checkpoint at the start of the save.
    pub(super) found_mode: Option<u32>,
    /// The requested mode of the new checkpoint, if any.
    pub(super) mode: Option<u32>,
    pub(super) durable: bool,
    pub(super) wait: Option<Duration>,
    pub(super) operation: &'static str,
    pub(super) made_parents: Vec<PathBuf>,
    /// Files that no writer has synced yet.
    pub(super) unsynced: Mutex<Vec<PathBuf>>,
    /// The process that may remove the folder. A forked child must not.
    pid: u32,
    pub(super) committed: bool,
    /// Whether the files stay if this value is dropped uncommitted.
    pub(super) stays: AtomicBool,
    pub(super) monitor: Monitor,
}

impl Staging {
    /// Makes the temporary folder beside the target, and missing folders above it. Removes
    /// temporary files of killed writers of the same target.
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
            mode: terms.mode,
            durable: terms.durable,
            wait: terms.wait,
            operation: terms.operation,
            made_parents,
            unsynced: Mutex::default(),
            pid: std::process::id(),
            committed: false,
            monitor: terms.monitor.clone(),
        })
    }

    /// Makes a [`DirectWriter`] of the file at `path`, as durable as the checkpoint. The other
    /// arguments are those of [`DirectWriter::create`].
    pub(super) fn writer(
        &self,
        path: &Path,
        expected_len_bytes: u64,
        checksums_from: u64,
    ) -> Result<FileWriter> {
        let options = WriteOptions { expected_len_bytes, checksums_from, durable: self.durable };
        Ok(FileWriter::new(DirectWriter::create_with(path, &options)?.watched(&self.monitor)))
    }

    pub(super) fn made_folders(&self) -> Vec<Location> {
        self.made_parents.iter().map(Location::local).collect()
    }

    pub(super) fn sync_later(&self, path: PathBuf) {
        if self.durable {
            self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).push(path);
        }
    }

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

/// Removes folders that a failed save made, unless they are in use.
fn remove_made(made: &[PathBuf]) {
    for folder in made.iter().rev() {
        let _ = fs::remove_dir(folder);
    }
}
