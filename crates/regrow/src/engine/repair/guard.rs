//! The state of the files at the start of a repair. If another process replaces a file after that,
//! the repair does not write to the path of the file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::storage::{Identity, TargetLock};
use crate::store::{StoreExt, Version};

/// A folder and some of its files, in their state at the start.
#[derive(Debug)]
pub(super) struct Guard<'g> {
    folder: &'g Location,
    /// The guard of the checkpoint that contains this item. If that checkpoint is replaced, the
    /// item is replaced too.
    around: Option<&'g Guard<'g>>,
    before: Arc<Mutex<Option<Identity>>>,
    files: HashMap<String, Seen>,
    /// The lock of the checkpoint; `None` for a check, which writes nothing.
    lock: Option<&'g TargetLock>,
}

/// A file in its state at the start; the value is `None` if the file did not exist.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// A file on a disk, identified by its inode. A new link to the file changes only its times.
    File(Option<Identity>),
    /// An object in a bucket, known only by its version.
    Object(Option<Version>),
}

impl Seen {
    /// The states of the files with these names. In a bucket all come from one list request,
    /// because a list and a single request may describe an object differently.
    fn of(folder: &Location, names: impl IntoIterator<Item = String>) -> Result<HashMap<String, Self>> {
        let names = names.into_iter();
        if folder.local_path().is_ok() {
            let file = |name: String| (name.clone(), Self::File(folder.join(name).identity()));
            return Ok(names.map(file).collect());
        }
        let store = folder.opened()?;
        names.map(|name| Ok((name.clone(), Self::Object(store.version(name.as_bytes())?)))).collect()
    }
}

impl<'g> Guard<'g> {
    /// A folder into which another process writes is an error (`AlreadyExists`): a mix of two
    /// checkpoints would look like damage.
    pub fn of(folder: &'g Location, lock: Option<&'g TargetLock>) -> Result<Self> {
        let before = Arc::new(Mutex::new(folder.holder()?));
        Ok(Self { folder, around: None, before, files: HashMap::new(), lock })
    }

    /// A guard for another folder, such as an item, and for its files with these names, in their
    /// current state.
    pub fn over<'h>(
        &'h self,
        folder: &'h Location,
        names: impl IntoIterator<Item = String>,
    ) -> Result<Guard<'h>> {
        let around = folder.parent().is_same(self.folder).then_some(self);
        let before = match folder.is_same(self.folder) {
            true => Arc::clone(&self.before),
            false => Arc::new(Mutex::new(folder.holder()?)),
        };
        Ok(Guard { folder, around, before, files: Seen::of(folder, names)?, lock: self.lock })
    }

    /// Returns an error if another folder has replaced this folder, or if another process writes to
    /// the folder that a repair writes to.
    pub fn check_folder(&self) -> Result<()> {
        if let Some(around) = self.around {
            around.check_folder()?;
        }
        let before = *self.before.lock().unwrap_or_else(PoisonError::into_inner);
        if before.is_some() && self.folder.holder()? != before {
            return Err(replaced(self.folder));
        }
        Ok(())
    }

    pub fn lock(&self) -> Option<&'g TargetLock> {
        self.lock
    }

    /// Checks the folder and one of its files. Call it when the new content is written beside the
    /// file. If the folder is replaced after that, the new content moves away with the old folder.
    pub fn check(&self, name: &str) -> Result<()> {
        self.check_folder()?;
        match self.files.get(name) {
            Some(before) if Seen::of(self.folder, [name.to_owned()])?.get(name) != Some(before) => {
                Err(replaced(&self.folder.join(name)))
            }
            _ => Ok(()),
        }
    }

    /// Re-reads the identity of the checkpoint, which the repair's own write may have changed.
    pub fn has_written(&self) -> Result<()> {
        if !self.folder.commits_by_marker() {
            return Ok(());
        }
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = self.folder.holder()?;
        Ok(())
    }
}

pub(super) fn replaced(at: &Location) -> Error {
    Error::new(ErrorKind::Replaced, "the checkpoint was replaced while it was being repaired")
        .in_file(at)
        .help("another process saves to this path: repair it again if the new checkpoint is damaged")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_change_of_a_path_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        let make = |text: &str| {
            fs::create_dir(&path).unwrap();
            for name in ["a", "b"] {
                fs::write(path.join(name), text).unwrap();
            }
        };
        make("old");
        let folder = Location::local(&path);
        let outer = Guard::of(&folder, None).unwrap();
        let guard = outer.over(&folder, ["a".to_owned(), "gone".to_owned()]).unwrap();
        guard.check("a").unwrap();
        guard.check("gone").unwrap();
        // A file whose state was not recorded.
        fs::write(path.join("new"), "b").unwrap();
        fs::rename(path.join("new"), path.join("b")).unwrap();
        guard.check("b").unwrap();
        fs::write(path.join("new"), "other").unwrap();
        fs::rename(path.join("new"), path.join("a")).unwrap();
        assert_eq!(guard.check("a").unwrap_err().kind(), ErrorKind::Replaced);
        fs::write(path.join("gone"), "there").unwrap();
        assert_eq!(guard.check("gone").unwrap_err().kind(), ErrorKind::Replaced);
        guard.check_folder().unwrap();
        fs::create_dir(path.join("item")).unwrap();
        let item = folder.join("item");
        let of_item = outer.over(&item, []).unwrap();
        of_item.check_folder().unwrap();
        fs::rename(&path, root.path().join("aside")).unwrap();
        make("new");
        fs::rename(root.path().join("aside").join("item"), path.join("item")).unwrap();
        assert_eq!(of_item.check_folder().unwrap_err().kind(), ErrorKind::Replaced);
        assert_eq!(outer.over(&item, []).unwrap().check_folder().unwrap_err().kind(), ErrorKind::Replaced);
        assert_eq!(guard.check_folder().unwrap_err().kind(), ErrorKind::Replaced);
        assert_eq!(guard.check("b").unwrap_err().kind(), ErrorKind::Replaced);
    }
}
