//! Files of another checkpoint under a name of the new one: the same bytes on disk, counted twice, stored once.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::StagedFolder;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::storage::Storage;
use crate::storage::local::LocalDisk;
use crate::store::Blob;

impl StagedFolder {
    /// Makes `name`, below the temporary folder, another name of the regular file at `source`, which is `opened`.
    /// Nothing is written into it, and its owner and mode stay. `commit` syncs it, in case that its own writer did not.
    ///
    /// False, with nothing left, where the system cannot do it (another file system, one without hard links, too many
    /// of them, somebody else's file), or `source` leads to something else by now.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder; `Cancelled`.
    pub(crate) fn link(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        let path = self.file(name)?;
        // Without links on the way, for what is a link itself cannot be given another name.
        let Some(source) = source.local_path().ok().and_then(|source| fs::canonicalize(source).ok()) else {
            return Ok(false);
        };
        if fs::hard_link(source, &path).is_err() {
            return Ok(false);
        }
        let Ok(linked) = fs::symlink_metadata(&path) else { return remove(&path) };
        let is_same = linked.is_file()
            && linked.len() == opened.len_bytes()
            && LocalDisk.identity(&path).is_some_and(|identity| opened.identity() == Some(identity));
        if !is_same {
            return remove(&path);
        }
        self.staging.sync_later(path);
        self.linked_bytes.fetch_add(linked.len(), Ordering::Relaxed);
        self.staging.monitor.advance(linked.len())?;
        Ok(true)
    }

    /// Bytes of the files that were linked.
    pub(crate) fn linked_bytes(&self) -> u64 {
        self.linked_bytes.load(Ordering::Relaxed)
    }
}

fn remove(path: &Path) -> Result<bool> {
    fs::remove_file(path).map_err(|error| Error::io("cannot remove", path, error))?;
    Ok(false)
}
