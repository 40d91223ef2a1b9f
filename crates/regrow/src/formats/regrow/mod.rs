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
//! | module | holds |
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

use std::path::{Path, PathBuf};

use super::{Description, Format, Reader};
use crate::array::Dtype;
use crate::commit::Staged;
use crate::engine::{OpenOptions, SaveOptions};
use crate::error::{Error, Result};
use crate::store::StepFolder;
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
        // Whatever it is: a folder or a dangling link of this name is damage, and no reason to read the rest without it.
        Ok(path.join(manifest::FILE_NAME).symlink_metadata().is_ok())
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_uncommitted(path)?;
        super::refuse_step_and_item(path, options)?;
        refuse_no_file(path)?;
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
    let folder = StepFolder::at(path);
    let open = || {
        refuse_no_file(path)?;
        reader::RegrowReader::open(path)
    };
    let reader = open().map_err(|error| folder.blame(error))?;
    Ok(Box::new(reader.into_step(about, folder)))
}

/// Refuses a `regrow.json` that is a folder, a pipe, or a link to nothing.
fn refuse_no_file(path: &Path) -> Result<()> {
    let file = path.join(manifest::FILE_NAME);
    let found = match std::fs::metadata(&file) {
        Ok(found) if found.is_file() => return Ok(()),
        Ok(found) if found.is_dir() => "a folder",
        Ok(_) => "a pipe, a socket or a device",
        Err(_) => "a link that cannot be followed",
    };
    Err(Error::corrupt("regrow.json, which says what the checkpoint holds, is no file")
        .in_file(file)
        .expected("a file", found)
        .help("copy the checkpoint again, all of it"))
}

/// What is said of a checkpoint without `regrow.json` that still can be read, as Orbax reads it.
pub(super) const MANIFEST_LOST: &str =
    "regrow.json is missing: regrow wrote this checkpoint, and its checksums are gone";

/// The path of the `regrow.json` that a folder has lost; `None` if it is there or never was. That there was one is
/// known from `_METADATA` (`is_said`), or, of earlier versions, from the name of a data file.
pub(super) fn lost_manifest(folder: &Path, is_said: bool) -> Result<Option<PathBuf>> {
    let file = folder.join(manifest::FILE_NAME);
    if file.symlink_metadata().is_ok() {
        return Ok(None);
    }
    let has_data_file = || {
        let entries = std::fs::read_dir(folder).map_err(|source| Error::io("cannot list", folder, source))?;
        Ok::<_, Error>(entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("model") && name.ends_with(".safetensors")
        }))
    };
    Ok((is_said || has_data_file()?).then_some(file))
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
