//! A checkpoint that is one file, under its temporary name.
//!
//! The file is written into its own temporary folder, with its final name. The commit moves the
//! file to the target, over the old file if there is one, and removes the empty folder.
//!
//! By default the commit replaces any regular file. A writer can limit this to some files: drop-in
//! functions replace the same files as the originals.

use std::fs;
use std::path::{Path, PathBuf};

use super::naming::{self, replace_folder, take_name};
use super::staging::{Place, Staged, Staging, Terms};
use super::target::{check_file, check_file_or_checkpoint, check_name, resolve};
use crate::error::Result;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::FileWriter;
use crate::{NewFile, PublishOptions};

pub(super) type MayReplace = fn(&Location) -> Result<()>;

/// A checkpoint of one file, under its temporary name. If it is dropped uncommitted, it is removed.
#[derive(Debug)]
pub struct StagedFile {
    staging: Staging,
    /// A further check of the file that is to be replaced.
    may_replace: Option<MayReplace>,
    /// Whether an overwrite may also replace a checkpoint that is a folder.
    replaces_folders: bool,
}

impl StagedFile {
    /// Makes a temporary folder beside `target`, as
    /// [`StagedFolder::create`](super::StagedFolder::create) does. The caller writes the file at
    /// [`single_file`](Self::single_file), and the commit moves it to the target.
    ///
    /// # Errors
    /// The same as there; `InvalidArgument` if the target is a folder and `overwrite` is set.
    pub fn create(target: &Path, overwrite: bool) -> Result<Self> {
        let monitor = Monitor::new();
        let terms = Terms::of_save(overwrite, true, &monitor);
        Self::begin(Location::parse(target)?.local_path()?, &terms, None)
    }

    /// As [`create`](Self::create), but an overwrite also replaces a checkpoint that is a folder.
    /// It replaces a link itself, not the file that the link leads to.
    ///
    /// # Errors
    /// The same as for [`create`](Self::create); `InvalidArgument` for a folder that is not a
    /// checkpoint.
    pub fn create_over_any(target: &Path, overwrite: bool) -> Result<Self> {
        let monitor = Monitor::new();
        let terms = Terms { replaces_links: true, ..Terms::of_save(overwrite, true, &monitor) };
        Self::begin_over(Location::parse(target)?.local_path()?, &terms, None, true)
    }

    /// As `create`, with `may_replace` as a further check of the existing file, now and again in
    /// the commit.
    pub(super) fn begin(target: &Path, terms: &Terms<'_>, may_replace: Option<MayReplace>) -> Result<Self> {
        Self::begin_over(target, terms, may_replace, false)
    }

    fn begin_over(
        target: &Path,
        terms: &Terms<'_>,
        may_replace: Option<MayReplace>,
        replaces_folders: bool,
    ) -> Result<Self> {
        let absolute = place(target, terms.overwrite && !terms.replaces_links)?;
        let place = Place {
            given: target,
            targets: std::slice::from_ref(&absolute),
            absolute: absolute.clone(),
            check: &|target| check(target, terms.overwrite, replaces_folders),
        };
        let staging = Staging::begin(place, terms)?;
        let staged = Self { staging, may_replace, replaces_folders };
        staged.check_found()?;
        Ok(staged)
    }

    /// Returns an error if [`begin`](Self::begin) would refuse the target. Changes nothing.
    pub(super) fn may_begin(target: &Location, options: &PublishOptions<'_>) -> Result<()> {
        let (path, overwrite) = (target.local_path()?, options.overwrite);
        check_file(&place(path, overwrite && !options.replaces_links)?, overwrite)?;
        match options.may_replace {
            Some(may_replace) if overwrite && target.exists() => may_replace(target),
            _ => Ok(()),
        }
    }

    /// Sets whether `commit` syncs, so that the checkpoint survives a power cut. The default is
    /// true. Without a sync, a killed process still loses nothing.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.staging.durable = durable;
        self
    }

    /// The path at which the caller writes the file.
    pub fn single_file(&self) -> PathBuf {
        self.staging.data.join(self.staging.absolute.file_name().unwrap_or_default())
    }

    /// Makes `commit` sync the file. Needed if another program writes it without a sync.
    pub fn sync_later(&self) {
        self.staging.sync_later(self.single_file());
    }

    /// Syncs the folder of the file, and gives the file its name, as
    /// [`StagedFolder::commit`](super::StagedFolder::commit) does. The writer has already synced
    /// the file.
    ///
    /// # Errors
    /// The same as there.
    pub fn commit(self) -> Result<()> {
        naming::commit(Box::new(self))
    }

    fn check_found(&self) -> Result<()> {
        let target = &self.staging.absolute;
        match self.may_replace {
            Some(may_replace) if fs::symlink_metadata(target).is_ok() => {
                may_replace(&Location::local(target))
            }
            _ => Ok(()),
        }
    }
}

/// The absolute path of the target, if a checkpoint can have this name. With `follow`, a link is
/// replaced by its target.
fn place(target: &Path, follow: bool) -> Result<PathBuf> {
    let absolute = resolve(target, follow)?;
    check_name(target)?;
    Ok(absolute)
}

/// Returns an error unless a file may be saved to the target.
fn check(target: &Path, overwrite: bool, replaces_folders: bool) -> Result<()> {
    let check = if replaces_folders { check_file_or_checkpoint } else { check_file };
    check(target, overwrite)
}

impl Staged for StagedFile {
    fn staging(&self) -> &Staging {
        &self.staging
    }

    fn staging_mut(&mut self) -> &mut Staging {
        &mut self.staging
    }

    fn path_of(&self, _at: usize, _name: &str) -> Result<PathBuf> {
        Ok(self.single_file())
    }

    fn take_name(&mut self) -> Result<Option<PathBuf>> {
        let (source, target) = (self.single_file(), &self.staging.absolute);
        let check = || {
            check(target, self.staging.overwrite, self.replaces_folders)?;
            self.check_found()
        };
        let replace = || match fs::symlink_metadata(target)?.is_dir() {
            true => replace_folder(&self.staging, &source),
            false => fs::rename(&source, target).map(|()| None),
        };
        let own = &self.staging.own.path;
        let replaced = take_name(&self.staging, &source, &check, &replace)?;
        // The temporary folder is empty now, unless it holds the replaced folder.
        let aside = replaced.filter(|replaced| replaced != own);
        if aside.is_some() {
            let _ = fs::remove_dir(own);
        }
        Ok(aside.or_else(|| Some(own.clone())))
    }
}

impl NewFile for StagedFile {
    fn target(&self) -> &Location {
        &self.staging.target
    }

    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.staging.writer(&self.single_file(), expected_len_bytes, checksums_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    #[test]
    fn a_file_is_asked_about_only_if_it_is_there() {
        let root = tempfile::tempdir().unwrap();
        let monitor = Monitor::new();
        let refuse = |_: &Location| Err(Error::invalid("it may not be replaced"));
        for (name, is_there) in [("new", false), ("old", true)] {
            let path = root.path().join(name);
            let terms = Terms::of_save(true, true, &monitor);
            let staged = StagedFile::begin(&path, &terms, Some(refuse));
            if !is_there {
                let staged = staged.unwrap();
                fs::write(staged.single_file(), b"new").unwrap();
                staged.commit().unwrap();
                continue;
            }
            fs::write(&path, b"precious").unwrap();
            // The check happens at the start or at the commit.
            let refused = staged.and_then(|staged| {
                fs::write(staged.single_file(), b"new").unwrap();
                staged.commit()
            });
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
            assert_eq!(fs::read(&path).unwrap(), b"precious");
        }
    }

    #[test]
    fn a_file_replaces_a_checkpoint_folder_and_no_other_folder() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        let save = |text: &str| {
            let staged = StagedFile::create_over_any(&path, true)?;
            fs::write(staged.single_file(), text).unwrap();
            staged.sync_later();
            staged.commit()
        };
        fs::create_dir(&path).unwrap();
        fs::write(path.join("_METADATA"), b"{}").unwrap();
        fs::write(path.join("thesis.tex"), b"...").unwrap();
        assert_eq!(save("new").unwrap_err().kind(), ErrorKind::InvalidArgument);
        fs::remove_file(path.join("thesis.tex")).unwrap();
        // A plain staged file refuses every folder.
        assert_eq!(StagedFile::create(&path, true).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(StagedFile::create_over_any(&path, false).is_err());
        save("new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(crate::system::mode_of(&fs::metadata(&path).unwrap()) & 0o111, 0, "no program");
        std::os::unix::fs::symlink("x", root.path().join("link")).unwrap();
        let staged = StagedFile::create_over_any(&root.path().join("link"), true).unwrap();
        fs::write(staged.single_file(), "other").unwrap();
        staged.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(!fs::symlink_metadata(root.path().join("link")).unwrap().is_symlink());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "nothing is left");
    }
}
