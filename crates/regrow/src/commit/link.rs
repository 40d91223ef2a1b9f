//! Files of another checkpoint under a name of the new one: the same bytes on disk, counted twice, stored once.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::Staged;
use crate::error::{Error, Result};

impl Staged {
    /// Makes `name`, below the temporary folder, another name of the regular file at `source`, which is `opened`.
    /// Nothing is written into it, and its owner and mode stay. `commit` syncs it, in case that its own writer did not.
    ///
    /// False, with nothing left, where the system cannot do it (another file system, one without hard links, too many
    /// of them, somebody else's file), or `source` leads to something else by now.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder; `Cancelled`.
    pub(crate) fn link(&self, name: &str, source: &Path, opened: &File) -> Result<bool> {
        let path = self.file(name)?;
        if fs::hard_link(source, &path).is_err() {
            return Ok(false);
        }
        let (Ok(linked), Ok(expected)) = (fs::symlink_metadata(&path), opened.metadata()) else {
            return remove(&path);
        };
        let identity = |file: &fs::Metadata| (file.is_file(), file.dev(), file.ino(), file.len());
        if identity(&linked) != identity(&expected) {
            return remove(&path);
        }
        self.sync_later(path);
        self.linked_bytes.fetch_add(linked.len(), Ordering::Relaxed);
        self.monitor.advance(linked.len())?;
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
