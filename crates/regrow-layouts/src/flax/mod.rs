//! Flax msgpack: one msgpack object and nothing else; no magic, no version, no checksum, no index.
//!
//! ```text
//! | map 2 | "params" | map 1 | "w" | ext 1 | array 3 | shape | "float32" | bin | data | "step" | 7 |
//!                                  '------------- a leaf: its data is raw, in C order -'
//! ```
//!
//! Flax writes *state dicts*: lists and tuples become maps `"0"`, `"1"`, …, and named tuples and
//! dataclasses become maps of their fields. So a file has only dicts and leaves, without the
//! original types.
//!
//! | module | holds |
//! |---|---|
//! | [`msgpack`] | bytes to tokens, each with its position |
//! | [`encode`] | values to bytes; sizes first, array data last |
//! | [`layout`] | Flax' extensions, and arrays in chunks |
//! | `dtypes` | names of dtypes, in both directions |
//! | `decode` | an object to a pytree |
//! | `streamed` | EasyLM's files: a record for each leaf |
//! | `specs` | TensorStore specs instead of arrays |
//! | `files`, `steps`, `step_names`, `gda` | single files, folders of steps, the names in them, arrays of several processes |
//! | `reader` | all of it as a checkpoint |
//! | `writer`, `convert`, `losses` | a pytree to a file, and the losses |
//!
//! Opening scans the file once and skips the data of arrays. After that, an array is a view of the
//! file. Files that Orbax wrote before 2023 have the same form, and the module `orbax` reads them
//! with `decode`.
//!
//! Source: flax 0.12.8 `serialization.py` and `training/checkpoints.py`; msgpack `spec.md`.

use std::ffi::OsStr;

use super::joined::{Joined, Names};
use super::{Features, Fidelity, FileNames, Format, Loss, Preview, Reader, Roles, SingleFile, WriteAs};
use crate::item_files::ItemForm;
use crate::options::{Layout, OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::Found;
use regrow_storage::location::Location;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

mod convert;
pub mod decode;
mod dtypes;
pub mod encode;
mod files;
mod gda;
pub mod layout;
mod losses;
pub mod msgpack;
mod reader;
pub(crate) mod specs;
pub mod step_names;
pub mod steps;
mod streamed;
pub mod writer;

pub use crate::options::FlaxOptions;
pub(super) use files::holds_one_object;

/// The names of the files of a model that transformers has split.
const INDEXED: Names = Names { index: "flax_model.msgpack.index.json", suffix: files::ENDING, nests: true };

const ITEM_FILE: &str = "checkpoint.msgpack";

pub(crate) const NAME: &str = "flax";

/// Flax msgpack: one msgpack object, arrays as extension 1.
#[derive(Debug)]
pub struct Flax;

impl Format for Flax {
    fn name(&self) -> &'static str {
        NAME
    }

    fn file_names(&self) -> FileNames {
        FileNames {
            of_item_files: &[ITEM_FILE],
            item: Some(|layout, _| ItemForm::of_file(layout, ITEM_FILE)),
            step_name: Some(|number, _, _| format!("{}{number}", step_names::PREFIX)),
            is_part: Some(|file| file.with_suffix(steps::ARRAYS_SUFFIX).is_folder()),
            may_be_step: Some(|name| step_names::split(name).is_some()),
            suffixes: &[files::ENDING],
            looked_for: &["msgpack files"],
            ..FileNames::NONE
        }
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        match at.look() {
            Ok(Some(Found::Folder)) => Ok(INDEXED.find(at)?.is_some() || steps::are_in(at)?),
            Ok(Some(Found::File { .. })) => Ok(INDEXED.find(at)?.is_some() || files::is_flax_file(at)),
            _ => Ok(false),
        }
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_arrays_only(self, at, options)?;
        super::refuse_uncommitted(at)?;
        if let Some(index) = INDEXED.find(at)? {
            super::refuse_step_and_item(at, options)?;
            let own = OpenOptions { salvage: options.salvage, ..OpenOptions::default() };
            let joined = Joined::open(&index, INDEXED, options.salvage, |part| {
                Ok(Box::new(reader::FlaxReader::open(part, &own)?))
            });
            return Ok(Box::new(joined?));
        }
        Ok(Box::new(reader::FlaxReader::open(at, options)?))
    }

    fn write_as(&self, _at: &Location, _options: &SaveOptions) -> WriteAs {
        WriteAs::File(|tree, new, options| writer::write(tree, new, options, &own_options(options)))
    }

    fn check(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<()> {
        writer::plan(tree, target, options, &own_options(options)).map(drop)
    }

    fn roles(&self) -> Roles<'_> {
        Roles { single_file: Some(self), ..Roles::default() }
    }
}

impl Fidelity for Flax {
    fn losses(&self, tree: &Tree<LeafInfo>, texts: &[(usize, &str)], options: &SaveOptions) -> Vec<Loss> {
        let mut losses = losses::losses(tree, &own_options(options));
        let of_text = |&(leaf, text): &(usize, &str)| {
            losses::of_text(text).map(|(kind, what)| Loss { kind, path: tree.path_of(leaf), what })
        };
        losses.extend(texts.iter().filter_map(of_text));
        losses
    }

    fn refusal(&self, leaf: &LeafInfo, options: &SaveOptions) -> Option<Error> {
        let tree = super::without_data(leaf);
        tree.and_then(|tree| writer::encode(&tree, &own_options(options)).map(drop)).err()
    }

    fn features<'o>(&self, _options: &'o SaveOptions) -> Features<'o> {
        Features { numpy_scalars: true, ..Features::default() }
    }
}

impl SingleFile for Flax {
    fn claims_name(&self, name: &OsStr) -> bool {
        files::is_named_so(name)
    }

    fn recognise_preview(&self, name: &OsStr, preview: &Preview) -> bool {
        self.claims_name(name) || files::shows_one_object(preview)
    }

    fn preview(&self, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Preview> {
        Ok(writer::encode(tree, &own_options(options))?.preview())
    }

    fn suffix(&self) -> Option<&'static str> {
        Some(files::ENDING)
    }
}

fn own_options(options: &SaveOptions) -> FlaxOptions {
    match &options.layout {
        Layout::Flax(flax) => flax.clone(),
        _ => FlaxOptions::default(),
    }
}

#[cfg(test)]
mod fixture_tests;
