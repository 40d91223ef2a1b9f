//! Saving: stage, let the format write, commit.

use std::path::{Path, PathBuf};

use super::SaveOptions;
use crate::commit::Staged;
use crate::error::{Error, Result};
use crate::formats::Target;
use crate::tree::{Leaf, Tree};

/// What a save did.
#[derive(Debug, Clone)]
pub struct SaveReport {
    /// Where the checkpoint now is.
    pub path: PathBuf,
    /// Bytes of all files.
    pub stored_bytes: u64,
    /// Leaves written.
    pub leaf_count: usize,
}

/// Saves `tree` at `path` in the default layout: all of it or nothing, synced to disk.
///
/// # Errors
/// `AlreadyExists`, `PermissionDenied`, `StorageFull`, `Unsupported` or `NameCollision` with key paths. Whatever
/// the error, nothing that was there before has changed and no temporary file is left.
pub fn save(path: impl AsRef<Path>, tree: &Tree<Leaf>) -> Result<SaveReport> {
    save_with(path, tree, &SaveOptions::default())
}

/// Saves `tree` at `path`.
///
/// # Errors
/// As [`save`].
pub fn save_with(path: impl AsRef<Path>, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<SaveReport> {
    let path = path.as_ref();
    let format = options.layout.format();
    let staged = match format.target(path, options) {
        Target::Folder => Staged::create(path, options.overwrite)?,
        Target::File => Staged::for_file(path, options.overwrite)?,
        Target::Siblings { suffixes } => Staged::for_siblings(path, &suffixes, options.overwrite)?,
    };
    let staged = staged.durable(!options.not_durable);
    format.write(tree, &staged, options)?;
    let stored_bytes = folder_len_bytes(staged.folder())?;
    let path = staged.commit()?;
    Ok(SaveReport { path, stored_bytes, leaf_count: tree.len() })
}

fn folder_len_bytes(folder: &Path) -> Result<u64> {
    let mut total = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |source| Error::io("cannot list", &folder, source);
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let metadata = entry.metadata().map_err(failed)?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                total += metadata.len();
            }
        }
    }
    Ok(total)
}
