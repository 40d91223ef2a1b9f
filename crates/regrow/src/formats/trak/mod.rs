//! TRAK result stores: a folder of npy maps and small JSON files.

use std::path::Path;

use super::{Format, Reader, Target};
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

mod options;

pub use options::TrakOptions;

/// TRAK result stores: a folder of npy maps and small JSON files.
#[derive(Debug)]
pub struct Trak;

impl Format for Trak {
    fn name(&self) -> &'static str {
        "trak"
    }

    fn recognise(&self, _path: &Path) -> Result<bool> {
        Ok(false)
    }

    fn open(&self, path: &Path, _options: &OpenOptions) -> Result<Box<dyn Reader>> {
        Err(Error::unsupported("trak is being built").in_file(path))
    }

    fn target(&self, _path: &Path, _options: &SaveOptions) -> Target {
        Target::Folder
    }

    fn write(&self, _tree: &Tree<Leaf>, staged: &Staged, _options: &SaveOptions) -> Result<()> {
        Err(Error::unsupported("trak is being built").in_file(staged.target()))
    }
}
