//! orbax (stub).
use std::path::Path;

use super::{Format, Reader};
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

pub mod array_metadatas;
pub mod checkpoint_metadata;
mod json_text;
pub mod metadata;
pub mod rich;
pub mod sharding;
pub mod strings;
pub(crate) mod writer;

/// The orbax layout.
#[derive(Debug)]
pub struct Orbax;

impl Format for Orbax {
    fn name(&self) -> &'static str {
        "orbax"
    }
    fn recognise(&self, _path: &Path) -> Result<bool> {
        Ok(false)
    }
    fn open(&self, _path: &Path, _options: &OpenOptions) -> Result<Box<dyn Reader>> {
        Err(Error::unsupported("stub"))
    }
    fn write(&self, _tree: &Tree<Leaf>, _staged: &Staged, _options: &SaveOptions) -> Result<()> {
        Err(Error::unsupported("stub"))
    }
}
