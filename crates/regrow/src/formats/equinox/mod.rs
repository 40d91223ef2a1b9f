//! Equinox leaf files: npy records one after another.

use std::path::Path;

use super::{Format, Reader, Target};
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

mod options;

pub use options::EquinoxOptions;

/// Equinox leaf files: npy records one after another.
#[derive(Debug)]
pub struct Equinox;

impl Format for Equinox {
    fn name(&self) -> &'static str {
        "equinox"
    }

    fn recognise(&self, _path: &Path) -> Result<bool> {
        Ok(false)
    }

    fn open(&self, path: &Path, _options: &OpenOptions) -> Result<Box<dyn Reader>> {
        Err(Error::unsupported("equinox is being built").in_file(path))
    }

    fn target(&self, _path: &Path, _options: &SaveOptions) -> Target {
        Target::File
    }

    fn write(&self, _tree: &Tree<Leaf>, staged: &Staged, _options: &SaveOptions) -> Result<()> {
        Err(Error::unsupported("equinox is being built").in_file(staged.target()))
    }
}
