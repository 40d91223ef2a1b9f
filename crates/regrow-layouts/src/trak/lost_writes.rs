//! Rows that a failed sync may have lost.
//!
//! If a disk cannot write a page, only one sync fails. The kernel then treats the page as written:
//! the next sync of the same file succeeds, and a read returns the new bytes, although the disk has
//! the old ones. So after a failed sync, no row of this file is trusted until it is written again.
//!
//! Clones share this state, so that a file that is opened again is not trusted either.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The rows written to each file since a sync of it failed.
#[derive(Debug, Clone, Default)]
pub(super) struct LostWrites(Arc<Mutex<HashMap<PathBuf, HashSet<u64>>>>);

impl LostWrites {
    /// A sync of the file failed.
    pub(super) fn sync_failed(&self, path: &Path) {
        self.known().insert(path.to_owned(), HashSet::new());
    }

    /// Rows were written, of a file that has `row_count`.
    pub(super) fn written(&self, path: &Path, rows: &[u64], row_count: u64) {
        let mut known = self.known();
        if let Some(written) = known.get_mut(path) {
            written.extend(rows);
            if written.len() as u64 >= row_count {
                known.remove(path);
            }
        }
    }

    /// The file was made again.
    pub(super) fn made_again(&self, path: &Path) {
        self.known().remove(path);
    }

    /// Whether any row of the file may be lost.
    pub(super) fn has_any(&self, path: &Path) -> bool {
        self.known().contains_key(path)
    }

    /// The first of `rows` that may be lost.
    pub(super) fn first_of(&self, path: &Path, rows: &[u64]) -> Option<u64> {
        let known = self.known();
        let written = known.get(path)?;
        rows.iter().copied().find(|row| !written.contains(row))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PathBuf, HashSet<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_trusted_once_it_is_written_again() {
        let (lost, path) = (LostWrites::default(), Path::new("a"));
        assert!(!lost.has_any(path) && lost.first_of(path, &[0, 1]).is_none());
        lost.sync_failed(path);
        let shared = lost.clone();
        shared.written(path, &[1], 3);
        assert_eq!(lost.first_of(path, &[1, 2]), Some(2));
        assert_eq!(lost.first_of(path, &[1]), None);
        // Another failure takes with it what was written since.
        lost.sync_failed(path);
        assert_eq!(lost.first_of(path, &[1]), Some(1));
        lost.written(path, &[0, 1, 2], 3);
        assert!(!lost.has_any(path));
        lost.sync_failed(path);
        lost.made_again(path);
        assert!(!lost.has_any(path));
    }
}
