//! Saving: stage, let the format write, commit.

use std::path::{Path, PathBuf};

use super::SaveOptions;
use crate::commit::Staged;
use crate::error::{Error, Result};
use crate::formats::Target;
use crate::tree::{Leaf, Pytree, Tree};

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

/// Saves a value at `path` in the default layout: all of it or nothing, synced to disk.
///
/// A [`Tree<Leaf>`](Tree) is written as it is. Of any other [`Pytree`] a tree is made first, with a copy of the
/// data of those leaves that cannot be shared: see [`tree::pytree`](crate::tree::pytree).
///
/// # Errors
/// `AlreadyExists`, `PermissionDenied`, `StorageFull`, `Unsupported` or `NameCollision` with key paths. Whatever
/// the error, nothing that was there before has changed and no temporary file is left.
pub fn save<P: Pytree>(path: impl AsRef<Path>, value: &P) -> Result<SaveReport> {
    save_with(path, value, &SaveOptions::default())
}

/// Saves a value at `path`.
///
/// # Errors
/// As [`save`].
pub fn save_with<P: Pytree>(path: impl AsRef<Path>, value: &P, options: &SaveOptions) -> Result<SaveReport> {
    save_tree(path.as_ref(), &*value.to_tree()?, options)
}

fn save_tree(path: &Path, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<SaveReport> {
    let format = options.layout.format();
    let staged = match format.target(path, options) {
        Target::Folder => Staged::create(path, options.overwrite)?,
        Target::File => Staged::for_file(path, options.overwrite)?,
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
