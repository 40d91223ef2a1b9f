//! The default layout: its files are an Orbax checkpoint and also safetensors files.
//!
//! An OCDBT B+tree may refer to any byte range of any file below its folder. If the only codec of a
//! zarr v3 array is `bytes`, the stored array is its plain bytes in C order. So the data file can
//! be a valid safetensors file: the OCDBT database in the same folder refers to the tensors in the
//! data file. A reader can map a leaf without a copy.
//!
//! ```text
//! step_100/
//!   _METADATA  _CHECKPOINT_METADATA  _sharding  _strings.json  array_metadatas/   as Orbax writes them
//!   commit_success.txt
//!   manifest.ocdbt  d/<hex>        NAME/zarr.json inline, NAME/c/0/0 in model.safetensors
//!   model.safetensors              header padded to a page, then the arrays, raw
//!   regrow.json                    the exact pytree, and checksums of all bytes of all other files
//! ```
//!
//! A compressed leaf is stored as zstd chunks, in a data file below `d/`. In a checkpoint of
//! several processes the chunks are in `regrow.process_<k>.zstd`.
//!
//! | module | holds |
//! |---|---|
//! | [`manifest`] | `regrow.json` |
//! | `part_columns` | the part of a record that a merge reads |
//! | `save` | a save, in four stages: plan, reuse, place, write |
//! | `reader` | a load |
//! | `checked` | the folder; bytes of its files are checked before they are returned |
//! | `data_file` | a file that is checked in blocks |
//! | `small_file` | a file that is checked as a whole |
//! | `recorded` | a data file, opened when it is needed |
//! | `recover` | makes lost files from the others |
//! | `views` | checks that all readers read the same data |
//!
//! `regrow.json` has the exact pytree in the form of [`structure`](super::structure). Source:
//! `docs/formats/regrow-layout.md`.

use super::orbax::Orbax;
use super::{
    Claims, Description, Features, Fidelity, FileNames, Format, Loss, ManyWriters, Reader, Roles, WriteAs,
    WriterRank,
};
use crate::options::{Layout, OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::location::{Location, StepFolder};
use regrow_storage::{Entry, Found};
use regrow_storage::{MergedFolder, NewFolder};
use regrow_tree::array::Dtype;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

mod checked;
mod data_file;
pub mod manifest;
mod own_files;
mod part_columns;
mod reader;
mod recorded;
mod recover;
mod save;
mod small_file;
mod views;

pub(crate) use small_file::{open_whole, summed_whole};

pub(crate) const NAME: &str = "regrow";

/// The default layout.
#[derive(Debug)]
pub struct Regrow;

impl Format for Regrow {
    fn name(&self) -> &'static str {
        NAME
    }

    fn file_names(&self) -> FileNames {
        own_files::FILE_NAMES
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        // Accept any kind of entry: a folder or a dangling link with this name is damage, so `open`
        // must report it.
        Ok(at.join(manifest::FILE_NAME).is_taken())
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        if !options.salvage {
            super::refuse_arrays_only(self, at, options)?;
        }
        super::refuse_uncommitted(at)?;
        super::refuse_unmarked(at)?;
        super::refuse_step_and_item(at, options)?;
        let opened = refuse_no_file(at).and_then(|()| reader::RegrowReader::open_as(at, options.salvage));
        match opened {
            // The salvage goes on with Orbax' documents, which have almost the same information.
            Err(error) if options.salvage && error.kind().is_damage() => {
                Orbax.open(at, options).map_err(|_| error)
            }
            opened => Ok(Box::new(opened?)),
        }
    }

    fn write_as(&self, _at: &Location, _options: &SaveOptions) -> WriteAs {
        WriteAs::Folder(save::save)
    }

    fn check(&self, tree: &Tree<Leaf>, _target: &Location, options: &SaveOptions) -> Result<()> {
        save::check(tree, options)
    }

    fn roles(&self) -> Roles<'_> {
        Roles { many_writers: Some(self), recovery: Some(self), ..Roles::default() }
    }
}

impl ManyWriters for Regrow {
    fn write_share(
        &self,
        tree: &Tree<Leaf>,
        writer: WriterRank,
        publication: &dyn NewFolder,
        options: &SaveOptions,
    ) -> Result<()> {
        save::write_share(tree, writer, publication, options)
    }

    fn merge(
        &self,
        tree: &Tree<Leaf>,
        writers: &[u32],
        publication: &dyn MergedFolder,
        options: &SaveOptions,
    ) -> Result<()> {
        save::merge_shares(tree, writers, publication, options)
    }

    fn claims(&self) -> Option<Claims> {
        Some(Claims { name: manifest::claim_name, is_name: manifest::is_claim_name })
    }
}

impl Fidelity for Regrow {
    fn losses(&self, _tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], _options: &SaveOptions) -> Vec<Loss> {
        Vec::new()
    }

    fn refusal(&self, _leaf: &LeafInfo, _options: &SaveOptions) -> Option<Error> {
        None
    }

    fn features<'o>(&self, options: &'o SaveOptions) -> Features<'o> {
        let per_leaf = match &options.layout {
            Layout::Regrow(regrow) => regrow.per_leaf.as_slice(),
            _ => &[],
        };
        Features {
            is_exact: true,
            casts: true,
            base: true,
            about: true,
            compression: true,
            metadata: true,
            numpy_scalars: false,
            per_leaf,
        }
    }
}

/// Opens the step at `at` of a folder of steps. `about` has the number of the step and the list of
/// all steps.
pub(super) fn open_step(
    at: &Location,
    options: &OpenOptions,
    about: Description,
    folder: StepFolder,
) -> Result<Box<dyn Reader>> {
    super::refuse_step_and_item(at, options)?;
    let open = || {
        refuse_no_file(at)?;
        reader::RegrowReader::open_as(at, options.salvage)
    };
    let reader = open().map_err(|error| folder.blame(error))?;
    Ok(Box::new(reader.into_step(about, folder)))
}

/// Returns an error if `regrow.json` is a folder, a pipe, or a link to nothing.
fn refuse_no_file(at: &Location) -> Result<()> {
    let file = at.join(manifest::FILE_NAME);
    let found = match file.look() {
        Ok(Some(Found::File { .. })) => return Ok(()),
        Ok(Some(Found::Folder)) => "a folder",
        Ok(Some(Found::Other(_))) => "a pipe, a socket or a device",
        Ok(None) | Err(_) => "a broken link",
    };
    Err(Error::corrupt("regrow.json is not a file")
        .in_file(file)
        .expected("a file", found)
        .help("copy the whole checkpoint again"))
}

/// The warning for a checkpoint that is read through Orbax' files, because `regrow.json` is
/// missing.
pub(super) const MANIFEST_LOST: &str = "regrow.json is missing: the checkpoint is read without its checksums";

/// The path of a `regrow.json` that a folder has lost; `None` if the file exists or never existed.
/// `_METADATA` shows that it existed (`is_said`); for earlier versions, the name of a data file
/// does.
pub(super) fn lost_manifest(folder: &Location, is_said: bool) -> Result<Option<Location>> {
    let file = folder.join(manifest::FILE_NAME);
    if file.is_taken() {
        return Ok(None);
    }
    let is_data_file = |entry: &Entry| manifest::looks_like_data_name(&entry.name.to_string_lossy());
    let is_lost = is_said || folder.has_listings() && folder.entries()?.iter().any(is_data_file);
    Ok(is_lost.then_some(file))
}

/// The database key of a part of an array. A pytree that is one leaf has the empty name, and its
/// keys have no `/`.
fn zarr_key(name: &str, part: &str) -> String {
    if name.is_empty() { part.to_owned() } else { format!("{name}/{part}") }
}

/// The dtype in the zarr and Orbax documents. If TensorStore lacks the real dtype, this is the
/// nearest one of the same size.
fn stored_dtype(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::UInt2 | Dtype::UInt4 | Dtype::Float6E2m3fn | Dtype::Float6E3m2fn | Dtype::Float8E4m3 => {
            Dtype::UInt8
        }
        other => other,
    }
}
