//! safetensors: one JSON header, then the tensors' bytes, raw, without gaps.
//!
//! ```text
//! | header length, u64le | {"__metadata__":{...},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}   | data |
//! ```
//!
//! Offsets count from the start of the data. The header may end in spaces. A file that regrow wrote carries its
//! exact pytree in `__metadata__` under `regrow`; any other is a flat dict of its names.
//!
//! | room | holds |
//! |---|---|
//! | [`layout`] | bytes to [`layout::Header`] and back |
//! | [`index`] | `model.safetensors.index.json` and back |
//! | `parts` | which files make up a checkpoint |
//! | `pytree` | tensors to a pytree |
//! | `packed` | four-bit elements |
//! | `reader` | all of it as a checkpoint |
//!
//! Nothing in the format protects the data: damage to it goes unseen. Source: safetensors 0.8, its README.

use std::path::Path;

use super::{Format, Reader};
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

pub mod index;
pub mod layout;
mod options;
mod packed;
mod parts;
mod pytree;
mod reader;

pub use options::SafetensorsOptions;

/// Plain safetensors files.
#[derive(Debug)]
pub struct Safetensors;

impl Format for Safetensors {
    fn name(&self) -> &'static str {
        "safetensors"
    }

    fn recognise(&self, path: &Path) -> Result<bool> {
        parts::are_at(path)
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_uncommitted(path)?;
        super::refuse_step_and_item(path, options)?;
        Ok(Box::new(reader::SafetensorsReader::open(path)?))
    }

    fn write(&self, _tree: &Tree<Leaf>, _staged: &Staged, _options: &SaveOptions) -> Result<()> {
        Err(Error::unsupported("plain safetensors files cannot be written on their own yet")
            .help("save in the default layout: its model.safetensors is one"))
    }
}

#[cfg(test)]
mod fixture_tests;
