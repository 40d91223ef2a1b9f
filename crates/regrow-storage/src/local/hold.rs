//! A long-lived lock, which the writer of a folder of steps holds.
//!
//! Staged folders are locked by `flock`. A forked child also holds such a lock, even after its
//! parent has ended. A training loop forks workers, which may run longer than the loop. So this
//! module uses a record lock (`fcntl`), which belongs only to the process. A record lock does not
//! exclude the process itself, so this module also keeps a list of the process's locks.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, ErrorKind, Result};
use crate::store::local::folders::make_folders;
use crate::system::{RecordLock, lock_record};

static HELD: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A lock, released when it is dropped.
#[derive(Debug)]
pub struct Hold {
    path: PathBuf,
    _file: File,
    /// The process that took the lock. A forked child does not have it.
    pid: u32,
}

/// Locks a file, and makes the file if necessary; `None` if the file system has no locks.
///
/// # Errors
/// `AlreadyExists` if this or another process already has the lock; errors of the file system.
pub(crate) fn hold(path: &Path) -> Result<Option<Hold>> {
    let cannot = |error| Error::io("cannot lock", path, error);
    let folder = path.parent().ok_or_else(|| Error::invalid("the lock needs another name").in_file(path))?;
    make_folders(folder).map_err(cannot)?;
    let path = folder.canonicalize().map_err(cannot)?.join(path.file_name().unwrap_or_default());
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    // Check before the file is opened: closing a second descriptor would release the lock of the
    // first.
    if held.contains(&path) {
        return Err(taken(&path));
    }
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(|error| Error::io("cannot lock", &path, error))?;
    match lock_record(&file).map_err(|error| Error::io("cannot lock", &path, error))? {
        RecordLock::Ours => {}
        RecordLock::Theirs => return Err(taken(&path)),
        RecordLock::Missing => return Ok(None),
    }
    held.insert(path.clone());
    Ok(Some(Hold { path, _file: file, pid: std::process::id() }))
}

fn taken(path: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, "another process holds the lock").in_file(path)
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            HELD.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_exclusive_while_held_and_shared_after() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/lock");
        let held = hold(&path).unwrap();
        assert!(held.is_some(), "this file system has locks");
        assert_eq!(hold(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        // Another name of the folder leads to the same lock.
        std::os::unix::fs::symlink("a", root.path().join("c")).unwrap();
        assert_eq!(hold(&root.path().join("c/b/lock")).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let other = hold(&root.path().join("a/b/other")).unwrap();
        drop(held);
        assert!(hold(&path).unwrap().is_some());
        drop(other);
    }
}
