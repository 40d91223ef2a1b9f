//! Side files that a save writes: the seal and parity.

use std::time::Duration;

use super::SaveOptions;
use super::locked::{Change, take_away};
use super::open::identity;
use super::parity::ParityOfSave;
use super::seal::SealOfSave;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::seal::side_files_of;
use crate::storage::{MergedFolder, Publication, PublishOptions, TargetLock};

/// The side files of a save. The side files of a folder on a disk are written before the commit,
/// all other side files directly after the commit.
#[derive(Debug)]
pub(super) struct SideFiles {
    seal: SealOfSave,
    parity: ParityOfSave,
    is_overwrite: bool,
    wait: Option<Duration>,
}

impl SideFiles {
    pub fn of(options: &SaveOptions) -> Self {
        let (seal, parity) = (SealOfSave::of(options), ParityOfSave::of(options));
        Self { seal, parity, is_overwrite: options.overwrite, wait: options.wait }
    }

    pub fn wanted(options: &SaveOptions) -> Option<Self> {
        Some(Self::of(options)).filter(|files| files.seal.is_wanted() || files.parity.is_wanted())
    }

    /// The side files of a checkpoint of items, from the options of one item; `None` if the options
    /// request no side file.
    pub fn of_items(options: &SaveOptions) -> Option<Self> {
        let files = Self { seal: SealOfSave::of_items(options), ..Self::of(options) };
        Some(files).filter(|files| files.seal.is_wanted() || files.parity.is_wanted())
    }

    /// The options of a publication, which then notes the files whose bytes are in memory.
    pub fn noted<'a>(&'a self, how: PublishOptions<'a>) -> PublishOptions<'a> {
        PublishOptions { in_memory: self.parity.in_memory(), ..how }
    }

    /// Before the commit of a folder: writes its side files, if it is on a disk.
    pub fn before(&mut self, folder: &dyn MergedFolder) -> Result<()> {
        self.seal.before(folder)?;
        self.parity.before(folder)?;
        // The folder may replace a file.
        if self.is_overwrite { take_from_files(folder.target()) } else { Ok(()) }
    }

    /// After the commit of a folder: writes the side files that `before` could not write.
    pub fn after(self, at: &Location) -> Result<()> {
        if !self.seal.is_wanted() && !self.parity.is_wanted() {
            return Ok(());
        }
        let monitor = Monitor::new();
        let change = Change { name: "save", wait: self.wait, monitor: &monitor };
        let lock = change.lock(at).map_err(is_committed)?;
        // Another process may have removed the checkpoint.
        if identity(at).is_some() { self.put(at, &lock) } else { Ok(()) }
    }

    /// Commits single files, and writes their side files under the same lock.
    pub fn commit(self, at: &Location, files: Box<dyn Publication>, monitor: &Monitor) -> Result<()> {
        let change = Change { name: "save", wait: self.wait, monitor };
        let overwrite = self.is_overwrite;
        let is_wanted = self.seal.is_wanted() || self.parity.is_wanted();
        let put = |lock: &TargetLock| self.put(at, lock);
        commit_files(&change, at, files, overwrite, is_wanted.then_some(put))
    }

    fn put(self, at: &Location, lock: &TargetLock) -> Result<()> {
        self.seal.after(at)?;
        self.parity.after(at, lock)
    }
}

/// Commits single files at a target under its lock. Removes the side files of the old files before,
/// and calls `put_side_files` after.
pub(super) fn commit_files(
    change: &Change<'_>,
    target: &Location,
    files: Box<dyn Publication>,
    overwrite: bool,
    put_side_files: Option<impl FnOnce(&TargetLock) -> Result<()>>,
) -> Result<()> {
    // No process seals a file that does not exist yet.
    if !overwrite && put_side_files.is_none() && !side_files_of(target).any(|file| file.is_file()) {
        return files.commit();
    }
    let is_locked = files.has_lock();
    let lock = if is_locked { None } else { Some(change.lock(target)?) };
    // The side files of a removed file stay beside its name. A publication that has the lock
    // replaces no files, so side files belong to removed ones, too.
    if overwrite || is_locked || identity(target).is_none() {
        take_from_files(target)?;
    }
    let made = files.made_folders();
    if let Err(error) = files.commit_under(lock.as_ref()) {
        drop(lock);
        made.iter().rev().for_each(Location::remove_if_empty);
        return Err(error);
    }
    let Some(put_side_files) = put_side_files else { return Ok(()) };
    let lock = lock.map_or_else(|| change.lock(target).map_err(is_committed), Ok)?;
    put_side_files(&lock)
}

/// Says that only the side files are missing.
fn is_committed(error: Error) -> Error {
    error.help(
        "the checkpoint was written without its side files: make them with `regrow seal` or `regrow parity`",
    )
}

/// Removes side files of single files before the files are replaced. Side files in a folder are
/// replaced with the folder.
pub(super) fn take_from_files(at: &Location) -> Result<()> {
    if at.is_folder() {
        return Ok(());
    }
    let files: Vec<Location> = side_files_of(at).filter(Location::is_file).collect();
    take_away(&files)
}
