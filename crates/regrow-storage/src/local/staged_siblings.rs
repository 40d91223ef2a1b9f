//! A checkpoint of several files, under its temporary name.
//!
//! Each file is written into its own numbered folder inside the temporary folder. The last file
//! makes the checkpoint: it gets its name last, and an overwrite removes it first. `siblings`
//! describes the order of the renames, and how a reader finds the files during a commit.

use std::path::{Path, PathBuf};

use super::naming;
use super::siblings::{self, Failed, staged_path, take_names, take_names_until};
use super::staging::{Place, Staged, Staging, Terms};
use super::target::{check_file, resolve};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::FileWriter;
use crate::store::local::folders::make_folders;
use crate::{NewSiblings, no_such_file};

/// A checkpoint of several files, under temporary names. If it is dropped uncommitted, they are
/// removed.
#[derive(Debug)]
pub struct StagedSiblings {
    pub(super) staging: Staging,
    /// The final paths of the files. The last file makes the checkpoint.
    pub(super) targets: Vec<PathBuf>,
}

impl StagedSiblings {
    /// Makes a temporary folder beside `target`, as
    /// [`StagedFolder::create`](super::StagedFolder::create) does. The final name of each file is
    /// `target` with one of `suffixes` appended.
    ///
    /// # Errors
    /// The same as there, for each of the files; `InvalidArgument` also for a suffix with a `/` in
    /// it.
    pub fn create(target: &Path, suffixes: &[String], overwrite: bool) -> Result<Self> {
        let monitor = Monitor::new();
        let terms = Terms::of_save(overwrite, true, &monitor);
        Self::begin(Location::parse(target)?.local_path()?, suffixes, &terms)
    }

    pub(super) fn begin(target: &Path, suffixes: &[String], terms: &Terms<'_>) -> Result<Self> {
        let (absolute, targets) = place(target, suffixes)?;
        let place = Place {
            given: target,
            absolute,
            targets: &targets,
            check: &|target| check_file(target, terms.overwrite),
        };
        // These files always get a temporary folder of their own.
        let staging = Staging::begin(place, &Terms { below: None, ..*terms })?;
        Ok(Self { staging, targets })
    }

    /// Returns an error if [`create`](Self::create) would refuse the target. Changes nothing.
    pub(super) fn may_begin(target: &Path, suffixes: &[String], overwrite: bool) -> Result<()> {
        let (_, targets) = place(target, suffixes)?;
        targets.iter().try_for_each(|target| check_file(target, overwrite))
    }

    /// Sets whether `commit` syncs, so that the checkpoint survives a power cut. The default is
    /// true. Without a sync, a killed process still loses nothing.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.staging.durable = durable;
        self
    }

    /// Syncs, and gives the files their names, the last one last; see
    /// [`StagedFolder::commit`](super::StagedFolder::commit).
    ///
    /// # Errors
    /// The same as there. `NotDurable` also if a step failed and could not be undone: the new
    /// checkpoint is complete then, but some of its files do not have their names yet.
    pub fn commit(self) -> Result<()> {
        naming::commit(Box::new(self))
    }

    /// For tests: ends after `moves` steps of the commit, as if the process had died.
    #[doc(hidden)]
    pub fn die_after(&mut self, moves: usize) -> Result<()> {
        self.staging.sync_tree()?;
        let Staging { own, durable, .. } = &self.staging;
        let taken = take_names_until(&own.path, &self.targets, *durable, &|| Ok(()), moves);
        self.staging.committed = true;
        taken.map_err(|failed| failed.error)
    }

    /// Keeps the temporary folder if it holds files that could not be moved back.
    fn left_with(&mut self, failed: Failed) -> Error {
        self.staging.committed |= failed.keep;
        failed.error
    }
}

/// The absolute path of the stem, and the paths of the files. Anything may exist at the stem
/// itself: the save does not touch it.
fn place(target: &Path, suffixes: &[String]) -> Result<(PathBuf, Vec<PathBuf>)> {
    let absolute = resolve(target, false)?;
    let targets = siblings::targets(&absolute, suffixes)?;
    Ok((absolute, targets))
}

impl Staged for StagedSiblings {
    fn staging(&self) -> &Staging {
        &self.staging
    }

    fn staging_mut(&mut self) -> &mut Staging {
        &mut self.staging
    }

    fn path_of(&self, at: usize, _name: &str) -> Result<PathBuf> {
        let target = self.targets.get(at).ok_or_else(no_such_file)?;
        Ok(staged_path(&self.staging.own.path, at, target))
    }

    fn take_name(&mut self) -> Result<Option<PathBuf>> {
        let Staging { own, durable, overwrite, .. } = &self.staging;
        let check = || self.targets.iter().try_for_each(|target| check_file(target, *overwrite));
        match take_names(&own.path, &self.targets, *durable, &check) {
            Ok(()) => Ok(Some(own.path.clone())),
            Err(failed) => Err(self.left_with(failed)),
        }
    }
}

impl NewSiblings for StagedSiblings {
    fn target(&self) -> &Location {
        &self.staging.target
    }

    fn sibling_writer(&self, at: usize, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        let path = self.path_of(at, "")?;
        let folder = path.parent().unwrap_or(&path);
        make_folders(folder).map_err(|error| Error::io("cannot make the folder", folder, error))?;
        self.staging.writer(&path, expected_len_bytes, checksums_from)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Publication;

    #[test]
    fn what_waits_for_its_name_stays_and_all_else_goes() {
        let folder = tempfile::tempdir().unwrap();
        for keep in [false, true] {
            let suffixes = [".data".to_owned(), ".manifest".to_owned()];
            let mut staged = StagedSiblings::create(&folder.path().join("x"), &suffixes, false).unwrap();
            let own = staged.staging.own.path.clone();
            let mut writer = staged.sibling_writer(0, 3, 0).unwrap();
            writer.write(b"new").unwrap();
            writer.finish().unwrap();
            assert_eq!(staged.stored_bytes().unwrap(), 3);
            staged.left_with(Failed { error: Error::invalid("it failed"), keep });
            drop(staged);
            assert_eq!(own.join(".regrow-0/x.data").exists(), keep);
            assert_eq!(own.exists(), keep);
            let _ = fs::remove_dir_all(own);
        }
    }
}
