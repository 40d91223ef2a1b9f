//! Orbax checkpoints, as written since 2022: pytrees, items, steps.
//!
//! ```text
//! step_100/                        a step of a manager's folder, or a checkpoint alone
//!   _CHECKPOINT_METADATA           items, handlers, times, the user's metadata
//!   default/  (or state/, …)       an item; a checkpoint without items has these files at the top
//!     _METADATA                    the tree: key paths, kinds of leaves
//!     manifest.ocdbt  d/  ocdbt.process_0/     zarr arrays in a database …
//!     params.kernel/.zarray 0.0    … or in a folder each
//!     _strings.json                text leaves
//!     _sharding  array_metadatas/  shardings; types of PRNG keys
//! ```
//!
//! A leaf's data is the zarr array (v2 or v3) under its *param name*, the keys joined by dots. No
//! checksum covers array data: Orbax has none. Local saves are committed by a rename, so a
//! temporary name means "not committed".
//!
//! | file | is |
//! |---|---|
//! | `metadata`, `rich`, `strings`, `sharding`, `array_metadatas`, `checkpoint_metadata` | the JSON documents, in both directions |
//! | `entry` | a leaf or an empty container in `_METADATA` |
//! | `json_text`, `python_repr` | JSON and `repr` as Python writes them |
//! | `steps`, `history`, `items`, `detect` | finding the layout, the step, the item |
//! | `composite` | items in several layouts, as one tree |
//! | `items_reader` | the reader of a checkpoint of items, with the checks of their files |
//! | `structure`, `pytree`, `arrays`, `stored_array`, `slot`, `opened` | from the documents to a tree of leaves |
//! | `losses` | the losses of a tree in this layout |
//! | [`marker_files`] | files whose names show the kind of a folder |
//! | `legacy`, `bare`, `jax_tree` | layouts before `_METADATA`; layouts of T5X, Levanter and JAX, which use the same tools |
//! | `open`, `reader` | from a location to one tree; from its leaves to bytes |
//! | `recover`, `left` | lost files that other files replace; the readable part of a database |
//! | `writer` | the writer, a folder of modules |
//!
//! Opening costs one pass over the metadata and the database's index, and one look-up a leaf; no
//! array data is read.
//!
//! Source: orbax-checkpoint 0.12.8, `docs/formats`.

use std::borrow::Cow;

use super::{
    Detected, Features, Fidelity, FileNames, Format, Loss, ManyWriters, Reader, Roles, WriteAs, WriterRank,
};
use crate::options::{Layout, OpenOptions, OrbaxOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
use regrow_storage::{MergedFolder, NewFolder};
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

pub mod array_metadatas;
mod arrays;
mod bare;
pub mod checkpoint_metadata;
mod composite;
mod detect;
pub mod entry;
mod files;
pub mod history;
pub mod items;
mod items_reader;
mod jax_tree;
pub mod json_text;
mod left;
mod legacy;
mod losses;
pub mod marker_files;
pub mod metadata;
pub(crate) mod metadata_text;
mod open;
mod opened;
pub mod own_files;
pub(crate) mod python_repr;
mod pytree;
mod reader;
mod recover;
pub mod rich;
pub mod sharding;
mod slot;
pub mod steps;
mod stored_array;
pub mod strings;
pub mod structure;
pub mod writer;

pub use left::PROCESS_PREFIX;
use opened::Wanted;

/// The committed steps at a location; `None` if it is not a folder of steps.
///
/// # Errors
/// Errors of the storage.
pub fn steps_in(at: &Location) -> Result<Option<Vec<steps::Step>>> {
    match detect::detect(at, Wanted::Intact)? {
        detect::Found::Steps(steps) => Ok(Some(steps.committed)),
        _ => Ok(None),
    }
}

/// The name of the layout. A checkpoint of several items has this layout, too, even if its items
/// have other layouts.
pub(crate) const NAME: &str = "orbax";

/// The Orbax layout, of all versions since 2022.
#[derive(Debug)]
pub struct Orbax;

impl Format for Orbax {
    fn name(&self) -> &'static str {
        NAME
    }

    fn file_names(&self) -> FileNames {
        own_files::FILE_NAMES
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        // `open` reports damage to the documents.
        Ok(!matches!(detect::detect(at, Wanted::Intact)?, detect::Found::Nothing(_)))
    }

    fn detect(&self, at: &Location, options: &OpenOptions) -> Result<Option<Detected<'_>>> {
        let found = match detect::detect(at, Wanted::of(options)) {
            Ok(detect::Found::Nothing(_)) => return Ok(None),
            // `open` reports damage to the documents.
            Err(error) if !self.recognise(at)? => return Err(error),
            found => found,
        };
        Ok(Some(Box::new(|at, options| self.open_found(found, at, options))))
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        self.open_found(detect::detect(at, Wanted::of(options)), at, options)
    }

    fn write_as(&self, _at: &Location, _options: &SaveOptions) -> WriteAs {
        WriteAs::Folder(|tree, new, options| writer::write(tree, new, options, &own_options(options)))
    }

    fn check(&self, tree: &Tree<Leaf>, _target: &Location, options: &SaveOptions) -> Result<()> {
        writer::check(tree, options, &own_options(options))
    }

    fn roles(&self) -> Roles<'_> {
        Roles { many_writers: Some(self), recovery: Some(self), ..Roles::default() }
    }
}

impl Orbax {
    fn open_found(
        &self,
        found: Result<detect::Found>,
        at: &Location,
        options: &OpenOptions,
    ) -> Result<Box<dyn Reader>> {
        if !options.salvage {
            super::refuse_arrays_only(self, at, options)?;
        }
        let found = found?;
        if matches!(found, detect::Found::FlaxSteps) {
            return super::flax::Flax.open(at, options);
        }
        // In a folder of steps each step has its own marker.
        if !matches!(found, detect::Found::Steps(_)) && at.commits_by_marker() && has_documents(at) {
            super::refuse_unmarked(at)?;
        }
        open::open(found, at, options)
    }
}

impl ManyWriters for Orbax {
    fn write_share(
        &self,
        tree: &Tree<Leaf>,
        writer: WriterRank,
        publication: &dyn NewFolder,
        options: &SaveOptions,
    ) -> Result<()> {
        writer::write_share(tree, writer, publication, options, &own_options(options))
    }

    fn merge(
        &self,
        tree: &Tree<Leaf>,
        writers: &[u32],
        publication: &dyn MergedFolder,
        options: &SaveOptions,
    ) -> Result<()> {
        writer::merge(tree, writers, publication, options, &own_options(options))
    }
}

impl Fidelity for Orbax {
    fn losses(&self, tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], options: &SaveOptions) -> Vec<Loss> {
        losses::losses(tree, &own_options(options))
    }

    fn refusal(&self, leaf: &LeafInfo, _options: &SaveOptions) -> Option<Error> {
        match leaf.kind.is_array() {
            true => writer::plan::check_leaf(&leaf.kind, leaf.dtype, &leaf.shape).err(),
            false => None,
        }
    }

    fn features<'o>(&self, options: &'o SaveOptions) -> Features<'o> {
        let per_leaf = match &options.layout {
            Layout::Orbax(orbax) => orbax.per_leaf.as_slice(),
            _ => &[],
        };
        Features {
            casts: true,
            about: true,
            compression: true,
            metadata: true,
            per_leaf,
            ..Features::default()
        }
    }
}

/// Whether a checkpoint has one of Orbax' documents. Arrays without any document come from
/// TensorStore, which writes no marker.
pub fn has_documents(at: &Location) -> bool {
    let documents = [
        metadata::METADATA_FILE,
        checkpoint_metadata::CHECKPOINT_METADATA_FILE,
        marker_files::V1_MARKER_FILE,
    ];
    documents.iter().any(|document| at.join(document).is_file())
}

fn own_options(options: &SaveOptions) -> Cow<'_, OrbaxOptions> {
    match &options.layout {
        Layout::Orbax(orbax) => Cow::Borrowed(orbax),
        _ => Cow::Owned(OrbaxOptions::default()),
    }
}
