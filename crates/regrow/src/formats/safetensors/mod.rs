//! safetensors (stub).
pub mod layout;
use std::path::Path;

use super::{Format, Reader};
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

/// The safetensors layout.
#[derive(Debug)]
pub struct Safetensors;

impl Format for Safetensors {
    fn name(&self) -> &'static str {
        "safetensors"
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
