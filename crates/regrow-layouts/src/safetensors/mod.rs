//! safetensors: one JSON header, then the tensors' bytes, raw, without gaps.
//!
//! ```text
//! | header length, u64le | {"__metadata__":{...},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}   | data |
//! ```
//!
//! Offsets count from the start of the data. The header may end in spaces. A file of regrow has its
//! exact pytree in `__metadata__` under `regrow`. Any other file loads as a flat dict of its
//! tensors. Several files have an index, `model.safetensors.index.json`.
//!
//! | module | holds |
//! |---|---|
//! | [`layout`], [`build`] | bytes to a [`layout::Header`], and back |
//! | [`index`] | `model.safetensors.index.json` and back |
//! | `metadata` | the entries of `__metadata__` |
//! | `parts` | the files of a checkpoint |
//! | `own_files` | the names of the layout's files |
//! | `other_checkpoints` | refuses a folder that also has files of other layouts |
//! | `pytree` | tensors to a pytree |
//! | `packed` | four-bit elements |
//! | `reader` | the reader of a checkpoint |
//! | `recover` | the index, made from the headers |
//! | `plan`, `writer` | a pytree to files, or to the bytes of one |
//! | `losses` | leaves that a load returns differently |
//!
//! The format has no checksums, so damage to the data is not detected. Source: safetensors 0.8, its
//! README.

use std::ffi::OsStr;

use bytes::Bytes;

use super::{Features, Fidelity, FileNames, Format, Loss, Preview, Reader, Roles, SingleFile, WriteAs};
use crate::options::{Layout, OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_base::system::not_found;
use regrow_storage::location::Location;
use regrow_store::reads::PrivateMaps;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

pub mod build;
pub mod index;
pub mod layout;
mod losses;
mod metadata;
mod other_checkpoints;
mod own_files;
mod packed;
mod parts;
mod plan;
mod pytree;
mod reader;
mod recover;
mod writer;

pub use crate::options::{ByteSize, SafetensorsOptions};
pub(crate) use parts::{MODEL_FILE_NAME, SUFFIX};
pub use pytree::TreeForm;
pub(crate) use reader::read_header;
pub use writer::FileImage;

pub(crate) const NAME: &str = "safetensors";

/// Plain safetensors files.
#[derive(Debug)]
pub struct Safetensors;

impl Format for Safetensors {
    fn name(&self) -> &'static str {
        NAME
    }

    fn file_names(&self) -> FileNames {
        own_files::FILE_NAMES
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        parts::are_at(at)
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_arrays_only(self, at, options)?;
        super::refuse_step_and_item(at, options)?;
        other_checkpoints::refuse(at)?;
        if options.salvage {
            refuse_absent(at)?;
            return Ok(Box::new(reader::SafetensorsReader::open_to_salvage(at)?));
        }
        open_as(at, &TreeForm::Kept)
    }

    fn write_as(&self, at: &Location, options: &SaveOptions) -> WriteAs {
        match writer::is_file(at, &SafetensorsOptions::of(options)) {
            true => WriteAs::File(writer::write_file),
            false => WriteAs::Folder(writer::write_folder),
        }
    }

    fn check(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<()> {
        writer::check(tree, target, options)
    }

    fn roles(&self) -> Roles<'_> {
        Roles { single_file: Some(self), recovery: Some(self), ..Roles::default() }
    }
}

impl SafetensorsOptions {
    /// The options of a save; the defaults if the save uses another layout.
    pub(crate) fn of(save: &SaveOptions) -> Self {
        match &save.layout {
            Layout::Safetensors(options) => options.clone(),
            _ => Self::default(),
        }
    }
}

impl Fidelity for Safetensors {
    fn losses(&self, tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], options: &SaveOptions) -> Vec<Loss> {
        losses::losses(tree, &SafetensorsOptions::of(options))
    }

    fn refusal(&self, leaf: &LeafInfo, options: &SaveOptions) -> Option<Error> {
        plan::refusal(leaf, &SafetensorsOptions::of(options))
    }

    fn features<'o>(&self, options: &'o SaveOptions) -> Features<'o> {
        // Without the structure, metadata can only be a map of texts.
        let is_text =
            || options.custom_metadata.as_ref().is_some_and(|custom| metadata::as_texts(custom).is_some());
        let metadata = SafetensorsOptions::of(options).structure || is_text();
        Features { metadata, ..Features::default() }
    }
}

impl SingleFile for Safetensors {
    fn claims_name(&self, name: &OsStr) -> bool {
        parts::is_named_so(name)
    }

    fn recognise_preview(&self, name: &OsStr, _preview: &Preview) -> bool {
        self.claims_name(name)
    }

    fn preview(&self, _tree: &Tree<Leaf>, _options: &SaveOptions) -> Result<Preview> {
        Ok(Preview::default())
    }

    fn suffix(&self) -> Option<&'static str> {
        None
    }
}

/// Opens the file, index or folder `at` a location, under any name; `form` chooses the form of the
/// pytree.
///
/// # Errors
/// `NotFound`, `Uncommitted`, `Corrupt`, `Unsupported`, `Limit`; `NameCollision` if two files hold
/// a tensor of the same name, or names cannot be nested.
pub fn open_as(at: &Location, form: &TreeForm) -> Result<Box<dyn Reader>> {
    refuse_absent(at)?;
    Ok(Box::new(reader::SafetensorsReader::open(at, form)?))
}

/// As [`open_as`], with private maps of the files: writes into this memory do not change the files.
/// `None` if the storage has no maps.
///
/// # Errors
/// As [`open_as`].
pub fn open_mapped(at: &Location, form: &TreeForm) -> Result<(Box<dyn Reader>, Option<PrivateMaps>)> {
    refuse_absent(at)?;
    let (reader, maps) = reader::SafetensorsReader::open_mapped(at, form)?;
    Ok((Box::new(reader), maps))
}

/// Whether a file of `file_len_bytes` with these first bytes may be a safetensors file, under any
/// name.
pub(super) fn begins_file(first: &[u8], file_len_bytes: u64) -> bool {
    layout::Header::begins_file(first, file_len_bytes)
}

fn refuse_absent(at: &Location) -> Result<()> {
    super::refuse_uncommitted(at)?;
    match at.look()? {
        Some(_) => Ok(()),
        None => Err(Error::io("cannot open", at, not_found())),
    }
}

/// Opens a file that is in memory.
///
/// # Errors
/// As [`open_as`].
pub fn open_bytes(file: Bytes, form: &TreeForm) -> Result<Box<dyn Reader>> {
    Ok(Box::new(reader::SafetensorsReader::of_bytes(file, form)?))
}

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod writer_tests;
