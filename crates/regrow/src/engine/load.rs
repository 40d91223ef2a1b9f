//! Loading: all of it, or a selection.

use std::path::Path;

use super::LoadOptions;
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

/// Loads the whole checkpoint at `path`, every block checked.
pub fn load(path: impl AsRef<Path>) -> Result<Tree<Leaf>> {
    load_with(path, &LoadOptions::default())
}

/// Loads what `options` select.
pub fn load_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Tree<Leaf>> {
    super::open_with(path, &options.open)?.load(options)
}

impl super::Checkpoint {
    /// Loads what `options` select.
    pub fn load(&self, _options: &LoadOptions) -> Result<Tree<Leaf>> {
        Err(Error::unsupported("stub"))
    }
}
