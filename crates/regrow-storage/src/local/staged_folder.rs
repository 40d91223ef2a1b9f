//! A checkpoint that is a folder of files, under its temporary name.
//!
//! The files are written into the temporary folder, with their final names. The commit renames this
//! folder. An overwrite exchanges the two folders in one step, so the target always exists. If the
//! file system cannot do this, there are two renames.
//!
//! An overwrite replaces only a checkpoint, and only a folder without files of the user: see
//! `target`.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::folder_files::{FolderFiles, InFolder};
use super::naming::{self, replace_folder, take_name};
use super::staging::{Place, Staged, Staging, Terms};
use super::target::{check_folder, check_name, resolve};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::local::folders::relative_path;
use crate::{BegunFolder, MergedFolder};

/// A checkpoint that is a folder, under its temporary name. If it is dropped uncommitted, it is
/// removed.
#[derive(Debug)]
pub struct StagedFolder {
    pub(super) staging: Staging,
    linked_bytes: AtomicU64,
}

impl StagedFolder {
    /// Makes the temporary folder beside `target`, and missing folders above it. Removes temporary
    /// files of killed writers of the same target. `overwrite` replaces a folder only after the
    /// [names](crate::names) of the layouts are known.
    ///
    /// # Errors
    /// `AlreadyExists` if the target exists and `overwrite` is not set. `InvalidArgument` if it is
    /// set and the target is a file, or a folder with other content than a checkpoint; also if the
    /// target's name is that of an unfinished save. `PermissionDenied` if the folder above cannot
    /// be written to. `Unsupported` for an [address](crate::location) instead of a path. After an
    /// error nothing that existed has changed.
    pub fn create(target: &Path, overwrite: bool) -> Result<Self> {
        let monitor = Monitor::new();
        let terms = Terms::of_save(overwrite, true, &monitor);
        Self::begin(Location::parse(target)?.local_path()?, &terms)
    }

    pub(super) fn begin(target: &Path, terms: &Terms<'_>) -> Result<Self> {
        let absolute = place(target, terms.overwrite)?;
        let place = Place {
            given: target,
            targets: std::slice::from_ref(&absolute),
            absolute: absolute.clone(),
            check: &|target| check_folder(target, terms.overwrite, terms.keeps_others),
        };
        Ok(Self { staging: Staging::begin(place, terms)?, linked_bytes: AtomicU64::new(0) })
    }

    /// Returns an error if [`create`](Self::create) would refuse the target. Changes nothing.
    pub(super) fn may_begin(target: &Path, overwrite: bool, keeps_others: bool) -> Result<()> {
        check_folder(&place(target, overwrite)?, overwrite, keeps_others)
    }

    /// Sets whether `commit` syncs, so that the checkpoint survives a power cut. The default is
    /// true. Without a sync, a killed process still loses nothing.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.staging.durable = durable;
        self
    }

    /// The temporary folder.
    pub fn folder(&self) -> &Path {
        &self.staging.own.path
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
    /// of the folder above failed after the rename.
    pub fn commit(self) -> Result<()> {
        naming::commit(Box::new(self))
    }
}

/// The absolute path of the target, if a checkpoint can have this name.
fn place(target: &Path, overwrite: bool) -> Result<PathBuf> {
    let absolute = resolve(target, overwrite)?;
    check_name(target)?;
    Ok(absolute)
}

impl Staged for StagedFolder {
    fn staging(&self) -> &Staging {
        &self.staging
    }

    fn staging_mut(&mut self) -> &mut Staging {
        &mut self.staging
    }

    fn path_of(&self, _at: usize, name: &str) -> Result<PathBuf> {
        Ok(self.staging.data.join(relative_path(name.as_bytes())?))
    }

    fn take_name(&mut self) -> Result<Option<PathBuf>> {
        let Staging { data, absolute, overwrite, keeps_others, .. } = &self.staging;
        let check = || check_folder(absolute, *overwrite, *keeps_others);
        take_name(&self.staging, data, &check, &|| replace_folder(&self.staging, data))
    }
}

impl InFolder for StagedFolder {
    fn files(&self) -> FolderFiles<'_> {
        let Staging { target, durable, monitor, unsynced, .. } = &self.staging;
        let linked_bytes = &self.linked_bytes;
        FolderFiles { folder: self.folder(), target, durable: *durable, monitor, unsynced, linked_bytes }
    }
}

impl MergedFolder for StagedFolder {
    fn sweep(&self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        self.files().sweep(below, is_left)
    }

    fn withdraw(&self, name: &str) -> Result<()> {
        self.files().withdraw(name)
    }
}

impl BegunFolder for StagedFolder {
    fn ticket(&self) -> Result<String> {
        let name = self.folder().file_name().and_then(|name| name.to_str());
        name.map(str::to_owned).ok_or_else(|| {
            Error::invalid("the name of the target is not UTF-8, so other processes cannot use it")
                .in_file(&self.staging.absolute)
        })
    }
}
