//! NumPy files: one `.npy`, an archive of them (`.npz`), or a folder tree of them.

use std::path::Path;

use super::{Format, Reader, Target};
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

pub mod descr;
pub mod header;
mod options;

pub use options::NpyOptions;

/// NumPy files: one `.npy`, an archive of them (`.npz`), or a folder tree of them.
#[derive(Debug)]
pub struct Npy;

impl Format for Npy {
    fn name(&self) -> &'static str {
        "npy"
    }

    fn recognise(&self, _path: &Path) -> Result<bool> {
        Ok(false)
    }

    fn open(&self, path: &Path, _options: &OpenOptions) -> Result<Box<dyn Reader>> {
        Err(Error::unsupported("npy is being built").in_file(path))
    }

    fn target(&self, _path: &Path, _options: &SaveOptions) -> Target {
        Target::File
    }

    fn write(&self, _tree: &Tree<Leaf>, staged: &Staged, _options: &SaveOptions) -> Result<()> {
        Err(Error::unsupported("npy is being built").in_file(staged.target()))
    }
}
