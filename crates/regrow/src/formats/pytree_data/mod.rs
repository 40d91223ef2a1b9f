//! Data and manifest: `STEM.data` with the arrays, `STEM.manifest` with a Python literal that says where they lie.

use std::path::Path;

use super::{Format, Reader, Target};
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

mod options;

pub use options::PytreeDataOptions;

/// Data and manifest: `STEM.data` with the arrays, `STEM.manifest` with a Python literal that says where they lie.
#[derive(Debug)]
pub struct PytreeData;

impl Format for PytreeData {
    fn name(&self) -> &'static str {
        "pytree_data"
    }

    fn recognise(&self, _path: &Path) -> Result<bool> {
        Ok(false)
    }

    fn open(&self, path: &Path, _options: &OpenOptions) -> Result<Box<dyn Reader>> {
        Err(Error::unsupported("pytree_data is being built").in_file(path))
    }

    fn target(&self, _path: &Path, _options: &SaveOptions) -> Target {
        Target::File
    }

    fn write(&self, _tree: &Tree<Leaf>, staged: &Staged, _options: &SaveOptions) -> Result<()> {
        Err(Error::unsupported("pytree_data is being built").in_file(staged.target()))
    }
}
