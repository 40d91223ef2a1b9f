//! A checkpoint under its temporary name: begun, committed, or removed.
//!
//! | kind | the files before the commit | the commit |
//! |---|---|---|
//! | a folder | in the temporary folder | renames the temporary folder, or exchanges it with the old one |
//! | one file | in the temporary folder, with its final name | moves the file, over the old one if there is one |
//! | several files | each in a folder of its own in the temporary folder | see `siblings` |
//!
//! A copy has its files one folder deeper (`transfer`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::files::{Files, InFolder};
use super::leftovers::{FILES, OwnFolder, remove, sweep};
use super::lock::lock_target;
use super::remove::stock;
use super::rename::{exchange, keep_owner_and_mode, rename_new, replace_in_two_steps};
use super::siblings::{Names, staged_path, take_names};
use super::target::Goal;
use super::temporary::{replaced_path, split};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::lock::TargetLock;
use crate::monitor::{Monitor, Stage};
use crate::store::FileWriter;
use crate::store::local::folders::{make_folders, sync_folder, sync_made};
use crate::system::{mode_of, set_mode, set_mode_or_less};
use crate::{
    BegunFolder, MergedFolder, NewFile, NewSiblings, Publication, PublishOptions, Target, no_such_file,
};

/// A checkpoint of any kind under its temporary name. If it is dropped uncommitted, it is removed.
#[derive(Debug)]
pub struct Staged {
    pub(super) goal: Goal,
    pub(super) own: OwnFolder,
    pub(super) files: Files,
    /// The requested mode of the new checkpoint, if any.
    mode: Option<u32>,
    /// The mode of the old checkpoint at the begin, in case another process removes it.
    found_mode: Option<u32>,
    wait: Option<Duration>,
    operation: &'static str,
    made_parents: Vec<PathBuf>,
    /// The process that may remove the folder. A forked child must not.
    pid: u32,
    /// Whether the temporary folder stays if this value is dropped.
    pub(super) stays: AtomicBool,
}

impl Staged {
    /// A checkpoint that is a folder. Makes the temporary folder beside `target`, and missing
    /// folders above it. Removes temporary files of killed writers of the same target. `overwrite`
    /// replaces a folder only after the [names](crate::names) of the layouts are known.
    ///
    /// # Errors
    /// `AlreadyExists` if the target exists and `overwrite` is not set. `InvalidArgument` if it is
    /// set and the target is a file, or a folder with other content than a checkpoint; also if the
    /// target's name is that of an unfinished save. `PermissionDenied` if the folder above cannot
    /// be written to. `Unsupported` for an [address](crate::location) instead of a path. After an
    /// error nothing that existed has changed.
    pub fn of_folder(target: &Path, overwrite: bool) -> Result<Self> {
        Self::new(target, &Target::Folder, overwrite)
    }

    /// A checkpoint that is one file, as [`of_folder`](Self::of_folder). The caller writes the file
    /// at [`single_file`](Self::single_file).
    ///
    /// # Errors
    /// The same as there; `InvalidArgument` if the target is a folder and `overwrite` is set.
    pub fn of_file(target: &Path, overwrite: bool) -> Result<Self> {
        Self::new(target, &Target::File, overwrite)
    }

    /// As [`of_file`](Self::of_file), but an overwrite also replaces a checkpoint that is a folder.
    /// It replaces a link itself, not the file that the link leads to.
    ///
    /// # Errors
    /// The same as there; `InvalidArgument` for a folder that is not a checkpoint.
    pub fn of_file_over_any(target: &Path, overwrite: bool) -> Result<Self> {
        let monitor = Monitor::new();
        let plain = PublishOptions::of_new(&monitor);
        let options = PublishOptions { overwrite, replaces_links: true, ..plain };
        let mut goal = Goal::of(&Location::parse(target)?, &Target::File, &options)?;
        goal.replaces_folders = true;
        Self::begin(goal, &options, false)
    }

    /// A checkpoint of several files, as [`of_folder`](Self::of_folder). The final name of each
    /// file is
    /// `target` with one of `suffixes` appended. The last file makes the checkpoint.
    ///
    /// # Errors
    /// The same as there, for each of the files; `InvalidArgument` also for a suffix with a `/` in
    /// it.
    pub fn of_siblings(target: &Path, suffixes: &[String], overwrite: bool) -> Result<Self> {
        Self::new(target, &Target::Siblings { suffixes: suffixes.to_vec() }, overwrite)
    }

    fn new(target: &Path, kind: &Target, overwrite: bool) -> Result<Self> {
        let monitor = Monitor::new();
        let options = PublishOptions { overwrite, ..PublishOptions::of_new(&monitor) };
        Self::begin(Goal::of(&Location::parse(target)?, kind, &options)?, &options, false)
    }

    /// As the functions above. A copy continues in the folder of an earlier copy.
    pub(super) fn begin(goal: Goal, options: &PublishOptions<'_>, is_copy: bool) -> Result<Self> {
        let (parent, name) = split(&goal.absolute)?;
        let made_parents =
            make_folders(parent).map_err(|error| Error::io("cannot make the folder", parent, error))?;
        sweep(parent, name);
        let found_mode = fs::metadata(&goal.absolute).ok().map(|found| mode_of(&found));
        let make = || OwnFolder::make(parent, name, goal.has_taken_name(), is_copy);
        let own = goal.check().and_then(|()| make()).inspect_err(|_| remove_made(&made_parents))?;
        let data = match goal.is_siblings() || !is_copy {
            true => own.path.clone(),
            false => own.path.join(FILES),
        };
        Ok(Self {
            stays: AtomicBool::new(own.has_beginning),
            files: Files::new(data, &goal.target, options),
            mode: options.mode,
            found_mode,
            wait: options.wait,
            operation: if is_copy { "copy" } else { "save" },
            pid: std::process::id(),
            made_parents,
            goal,
            own,
        })
    }

    /// Sets whether `commit` syncs, so that the checkpoint survives a power cut. The default is
    /// true. Without a sync, a killed process still loses nothing.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.files.durable = durable;
        self
    }

    /// The temporary folder, in which the caller writes the files.
    pub fn folder(&self) -> &Path {
        &self.files.folder
    }

    /// The path at which the caller writes a single file.
    pub fn single_file(&self) -> PathBuf {
        self.files.folder.join(self.goal.absolute.file_name().unwrap_or_default())
    }

    /// Makes `commit` sync the single file. Needed if another program writes it without a sync.
    pub fn sync_later(&self) {
        self.files.sync_later(self.single_file());
    }

    /// The path at which file number `at` of the checkpoint is written. `name` is its name in the
    /// checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no file of this number, or if the name leads out of the
    /// folder.
    pub(super) fn path_of(&self, at: usize, name: &str) -> Result<PathBuf> {
        if self.goal.is_siblings() {
            let target = self.goal.targets.get(at).ok_or_else(no_such_file)?;
            return Ok(staged_path(&self.own.path, at, target));
        }
        if self.goal.is_folder { self.files.path(name) } else { Ok(self.single_file()) }
    }

    /// Syncs, renames to the final name, and syncs the parent folder: a reader sees the complete
    /// checkpoint or none. The checkpoint that it replaces is removed; parts that cannot be removed
    /// keep a temporary name.
    ///
    /// # Errors
    /// `AlreadyExists` if another writer was faster and `overwrite` is not set; `InvalidArgument`
    /// if the target has become something that may not be replaced; `Cancelled` if the monitor was
    /// cancelled before the rename. After these errors the target is unchanged and the staged
    /// checkpoint is removed. Only after `NotDurable` is the new checkpoint at the target: the sync
    /// of the folder above failed after the rename, or some of several files could not be moved.
    pub fn commit(self) -> Result<()> {
        self.commit_after(None, |_| Ok(()))
    }

    /// As `commit`, but calls `last_step` after the syncs and before the checkpoint gets its name.
    pub(super) fn commit_after(
        self,
        lock: Option<&TargetLock>,
        last_step: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        let monitor = self.files.monitor.clone();
        if self.files.durable {
            monitor.enter(Stage::Sync);
            monitor.timed(Stage::Sync, 0, || self.files.sync(&self.own.path))?;
        }
        monitor.check()?;
        monitor.enter(Stage::Commit);
        let lock = match lock {
            Some(_) => None,
            None => Some(lock_target(&self.goal.absolute, self.operation, self.wait, &monitor)?),
        };
        last_step(&self)?;
        monitor.timed(Stage::Commit, 0, || self.name_it(lock))
    }

    fn name_it(self, lock: Option<TargetLock>) -> Result<()> {
        let replaced = match self.goal.is_siblings() {
            true => self.take_names(usize::MAX).map(|()| None)?,
            false => self.take_name()?,
        };
        self.stays.store(true, Ordering::Relaxed);
        let synced = if self.files.durable { self.sync_names() } else { Ok(()) };
        drop(lock);
        // After an exchange, the temporary folder has the old checkpoint.
        replaced.iter().chain([&self.own.path]).for_each(|old| remove(old));
        synced
    }

    /// Gives several files their names.
    pub(super) fn take_names(&self, moves_max: usize) -> Result<()> {
        self.goal.check()?;
        let names = Names {
            folder: &self.own.path,
            absolute: &self.goal.absolute,
            targets: &self.goal.targets,
            is_durable: self.files.durable,
            has_old: self.goal.has_taken_name(),
        };
        take_names(&names, moves_max).inspect_err(|error| {
            if error.kind() == ErrorKind::NotDurable {
                self.stays.store(true, Ordering::Relaxed);
            }
        })
    }

    /// Gives the folder or file its name. If the name is taken, the goal decides whether it may be
    /// replaced. Returns the path of the old checkpoint, if it is not in the temporary folder.
    fn take_name(&self) -> Result<Option<PathBuf>> {
        let target = &self.goal.absolute;
        let source = if self.goal.is_folder { self.files.folder.clone() } else { self.single_file() };
        let cannot_commit = |error| Error::io("cannot give the checkpoint its name", target, error);
        let kept = match keep_owner_and_mode(target, &source) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let allowed = if self.goal.is_folder { 0o777 } else { 0o666 };
                self.found_mode.map_or(Ok(()), |mode| set_mode_or_less(&source, mode & allowed))
            }
            kept => kept,
        };
        let set_own_mode = || self.mode.map_or(Ok(()), |mode| set_mode(&source, mode));
        kept.and_then(|()| set_own_mode()).map_err(cannot_commit)?;
        match rename_new(&source, target) {
            Ok(()) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.goal.check()?,
            Err(error) => return Err(cannot_commit(error)),
        }
        self.replace(&source).map_err(cannot_commit)
    }

    fn replace(&self, source: &Path) -> io::Result<Option<PathBuf>> {
        let target = &self.goal.absolute;
        if !fs::symlink_metadata(target)?.is_dir() {
            return fs::rename(source, target).map(|()| None);
        }
        if exchange(source, target)? {
            return Ok(None);
        }
        let aside = split(target).and_then(|(parent, name)| replaced_path(parent, name));
        let aside = aside.map_err(|error| io::Error::other(error.to_string()))?;
        replace_in_two_steps(source, target, &aside).map(|()| Some(aside))
    }

    /// Syncs the folders in which the commit has changed names, so that the names survive a power
    /// cut.
    fn sync_names(&self) -> Result<()> {
        let parent = self.goal.absolute.parent().unwrap_or(&self.goal.absolute);
        sync_folder(parent).and_then(|()| sync_made(&self.made_parents)).map_err(|error| {
            Error::io("the checkpoint is saved, but syncing the folder above it failed", parent, error)
                .of_kind(ErrorKind::NotDurable)
                .help(
                    "the path has the complete new checkpoint, but a power cut may lose it: check the disk \
                     and save again",
                )
        })
    }

    /// For tests of several files: ends after `moves` steps of the commit, as if the process had
    /// died.
    #[doc(hidden)]
    pub fn die_after(&mut self, moves: usize) -> Result<()> {
        self.files.sync(&self.own.path)?;
        self.stays.store(true, Ordering::Relaxed);
        self.take_names(moves)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.stays.load(Ordering::Relaxed) && self.pid == std::process::id() {
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

impl Publication for Staged {
    fn stored_bytes(&self) -> Result<u64> {
        Ok(stock(&self.own.path)?.0.bytes)
    }

    fn commit_under(self: Box<Self>, lock: Option<&TargetLock>) -> Result<()> {
        self.commit_after(lock, |_| Ok(()))
    }

    fn has_lock(&self) -> bool {
        false
    }

    fn made_folders(&self) -> Vec<Location> {
        self.made_parents.iter().map(Location::local).collect()
    }
}

impl InFolder for Staged {
    fn files(&self) -> &Files {
        &self.files
    }
}

impl MergedFolder for Staged {
    fn sweep(&self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        self.files.sweep(below, is_left)
    }

    fn withdraw(&self, name: &str) -> Result<()> {
        self.files.withdraw(name)
    }
}

impl BegunFolder for Staged {
    fn ticket(&self) -> Result<String> {
        let name = self.own.path.file_name().and_then(|name| name.to_str());
        name.map(str::to_owned).ok_or_else(|| {
            Error::invalid("the name of the target is not UTF-8, so other processes cannot use it")
                .in_file(&self.goal.absolute)
        })
    }
}

impl NewFile for Staged {
    fn target(&self) -> &Location {
        &self.files.target
    }

    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.files.writer(self.single_file(), expected_len_bytes, checksums_from)
    }
}

impl NewSiblings for Staged {
    fn target(&self) -> &Location {
        &self.files.target
    }

    fn sibling_writer(&self, at: usize, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.files.writer(self.path_of(at, "")?, expected_len_bytes, checksums_from)
    }
}
