//! The default layout: one set of bytes that is an Orbax checkpoint and safetensors files at once.
//!
//! An OCDBT B+tree may point at any byte range of any file below its folder, and a zarr v3 array whose only
//! codec is `bytes` is stored as its plain C-order bytes. So the data file is a valid safetensors file, the
//! OCDBT database beside it refers to the tensors inside it, and a leaf can be mapped without a copy.
//!
//! ```text
//! step_100/
//!   _METADATA  _CHECKPOINT_METADATA  _sharding  _strings.json  array_metadatas/   as Orbax writes them
//!   commit_success.txt
//!   manifest.ocdbt  d/<hex>        NAME/zarr.json inline, NAME/c/0/0 by reference into
//!   model.safetensors              header padded to a page, then the arrays, raw
//!   regrow.json                    the exact pytree, and a crc32c for every byte of every other file
//! ```
//!
//! Compressed leaves, when asked for, lie as zstd chunks in data files under `d/` instead.
//!
//! | room | holds |
//! |---|---|
//! | [`structure`] | the exact pytree in column form |
//! | [`manifest`] | `regrow.json` |
//! | `plan` | names, order and offsets of a save |
//! | `index` | what the database says of raw leaves |
//! | `writer`, `reader` | the two directions |
//! | `base` | data files of an earlier checkpoint that are linked instead of written |
//! | `digest` | by what the next save knows leaves that rest |
//! | `checked` | data files whose blocks are checked before they are handed out |
//! | `passes` | many blocks at once: checked, or read into the caller's memory |
//!
//! Source: `docs/formats/regrow-layout.md`.

use std::path::Path;

use super::{Description, Format, Reader};
use crate::array::Dtype;
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Tree};

mod base;
mod checked;
mod digest;
mod index;
pub mod manifest;
mod passes;
mod plan;
mod reader;
pub mod structure;
mod writer;

/// The default layout.
#[derive(Debug)]
pub struct Regrow;

impl Format for Regrow {
    fn name(&self) -> &'static str {
        "regrow"
    }

    fn recognise(&self, path: &Path) -> Result<bool> {
        Ok(path.join(manifest::FILE_NAME).is_file())
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_uncommitted(path)?;
        super::refuse_step_and_item(path, options)?;
        Ok(Box::new(reader::RegrowReader::open(path)?))
    }

    fn holds_metadata(&self, _options: &SaveOptions) -> bool {
        true
    }

    fn check(&self, tree: &Tree<Leaf>, _target: &Path, options: &SaveOptions) -> Result<()> {
        writer::check(tree, options)
    }

    fn write(&self, tree: &Tree<Leaf>, staged: &Staged, options: &SaveOptions) -> Result<()> {
        writer::write(tree, staged, options)
    }
}

/// Opens a step of a folder of steps; `about` says which, and which others there are.
pub(super) fn open_step(path: &Path, options: &OpenOptions, about: Description) -> Result<Box<dyn Reader>> {
    super::refuse_step_and_item(path, options)?;
    Ok(Box::new(reader::RegrowReader::open(path)?.into_step(about)))
}

/// Whether a folder holds a checkpoint that was written in the default layout, but has no `regrow.json` any more.
pub(super) fn has_lost_its_manifest(folder: &Path) -> Result<bool> {
    if folder.join(manifest::FILE_NAME).exists() {
        return Ok(false);
    }
    let entries = std::fs::read_dir(folder).map_err(|source| Error::io("cannot list", folder, source))?;
    Ok(entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("model") && name.ends_with(".safetensors")
    }))
}

/// The database key of an array's part: a bare leaf has the empty name and no `/`.
fn zarr_key(name: &str, part: &str) -> String {
    if name.is_empty() { part.to_owned() } else { format!("{name}/{part}") }
}

/// The dtype that zarr and Orbax are told: the nearest of the same size where TensorStore lacks the real one.
fn stored_dtype(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::UInt2 | Dtype::UInt4 | Dtype::Float6E2m3fn | Dtype::Float6E3m2fn | Dtype::Float8E4m3 => {
            Dtype::UInt8
        }
        other => other,
    }
}
