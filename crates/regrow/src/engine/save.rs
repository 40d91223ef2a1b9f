//! Saving: stage, let the format write, commit.

use std::path::{Path, PathBuf};

use super::SaveOptions;
use crate::error::{Error, Result};
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

/// Saves `tree` at `path` in the default layout.
pub fn save(path: impl AsRef<Path>, tree: &Tree<Leaf>) -> Result<SaveReport> {
    save_with(path, tree, &SaveOptions::default())
}

/// Saves `tree` at `path`.
pub fn save_with(_path: impl AsRef<Path>, _tree: &Tree<Leaf>, _options: &SaveOptions) -> Result<SaveReport> {
    Err(Error::unsupported("stub"))
}
