//! A new file in a folder that is in use: written and synced under a temporary name before it gets
//! its final name.
//!
//! Several processes write to such a folder for days, so it cannot be staged as a whole: its files
//! are added one at a time. A writer holds the folder's own lock. A temporary name that the writer
//! finds while it holds the lock belongs to a dead process.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::rename::rename_new;
use super::sync_folder;
use crate::error::{Error, ErrorKind, Result};
use crate::store::local::folders::{LOCK_SUFFIX, random_name};
use crate::system;

const TEMPORARY: &str = ".regrow-tmp-";

/// A file that has no final name yet. If it is dropped before it gets one, it is removed.
#[derive(Debug)]
pub struct NewFile {
    folder: PathBuf,
    temporary: PathBuf,
    file: File,
    is_named: bool,
}

impl NewFile {
    /// Makes an empty file in `folder`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(folder: &Path) -> Result<Self> {
        let temporary = folder.join(format!("{TEMPORARY}{}", random_name()?));
        let file = File::options().read(true).write(true).create_new(true).open(&temporary);
        let file = file.map_err(|error| Error::io("cannot make a file", &temporary, error))?;
        Ok(Self { folder: folder.to_owned(), temporary, file, is_named: false })
    }

    /// The open file, for the caller to write.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the file and gives it its final name. With `replace`, it replaces an existing file.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken and `replace` is false.
    pub fn give_name(self, name: &str, replace: bool) -> Result<()> {
        let folder = self.folder.clone();
        self.sync()?.give_name_unsynced(name, replace)?;
        sync_folder(&folder)
    }

    /// Syncs the file. After that it can get its name.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn sync(self) -> Result<Self> {
        system::sync(&self.file).map_err(|error| Error::io("cannot sync", &self.temporary, error))?;
        Ok(self)
    }

    /// Gives the file its name. The caller syncs the folder, once for all its new files.
    ///
    /// # Errors
    /// The same as for [`give_name`](Self::give_name).
    pub fn give_name_unsynced(mut self, name: &str, replace: bool) -> Result<()> {
        let path = self.folder.join(name);
        let named = match replace {
            true => fs::rename(&self.temporary, &path),
            false => rename_new(&self.temporary, &path),
        };
        named.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::new(ErrorKind::AlreadyExists, "the file already exists").in_file(&path)
            }
            _ => Error::io("cannot give a file its name", &path, error),
        })?;
        self.is_named = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_named {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Whether a name is a temporary name of regrow: of a `NewFile`, or of a value that a `LocalStore`
/// was writing.
fn is_new_file(name: &str) -> bool {
    let is_put = |name: &str| {
        let random = name.strip_prefix('.')?.strip_suffix(LOCK_SUFFIX)?;
        Some(random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    name.starts_with(TEMPORARY) || is_put(name) == Some(true)
}

/// Removes files of killed processes in `folder`. The caller holds the lock under
/// which these files are made.
pub fn sweep_new_files(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(is_new_file) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_or_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        drop(NewFile::create(folder.path()).unwrap());
        assert!(names(folder.path()).is_empty());
        NewFile::create(folder.path()).unwrap().give_name("a", false).unwrap();
        let error = NewFile::create(folder.path()).unwrap().give_name("a", false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        let second = NewFile::create(folder.path()).unwrap();
        io::Write::write_all(&mut second.file(), b"second").unwrap();
        second.give_name("a", true).unwrap();
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"second");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn sweeps_only_what_never_got_a_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".regrow-tmp-0123"), b"").unwrap();
        fs::write(folder.path().join(".0123456789abcdef.__lock"), b"").unwrap();
        for kept in [
            "kept",
            "kept.__lock",
            ".regrow.lock",
            ".array.__lock",
            ".not_hexadecimal_.__lock",
            ".0123.__lock",
        ] {
            fs::write(folder.path().join(kept), b"").unwrap();
        }
        sweep_new_files(folder.path());
        assert_eq!(
            names(folder.path()),
            [
                ".0123.__lock",
                ".array.__lock",
                ".not_hexadecimal_.__lock",
                ".regrow.lock",
                "kept",
                "kept.__lock"
            ]
        );
    }
}
