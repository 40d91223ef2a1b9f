//! Flax msgpack: one msgpack object, arrays as extension 1.

use std::path::Path;

use super::{Format, Reader, Target};
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

pub mod encode;
pub mod layout;
pub mod msgpack;
mod options;

pub use options::FlaxOptions;

/// Flax msgpack: one msgpack object, arrays as extension 1.
#[derive(Debug)]
pub struct Flax;

impl Format for Flax {
    fn name(&self) -> &'static str {
        "flax"
    }

    fn recognise(&self, _path: &Path) -> Result<bool> {
        Ok(false)
    }

    fn open(&self, path: &Path, _options: &OpenOptions) -> Result<Box<dyn Reader>> {
        Err(Error::unsupported("flax is being built").in_file(path))
    }

    fn target(&self, _path: &Path, _options: &SaveOptions) -> Target {
        Target::File
    }

    fn write(&self, _tree: &Tree<Leaf>, staged: &Staged, _options: &SaveOptions) -> Result<()> {
        Err(Error::unsupported("flax is being built").in_file(staged.target()))
    }
}
