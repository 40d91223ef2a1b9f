//! Internals of regrow, without a stable API: one folder for each checkpoint layout, and the list
//! of all layouts.
//!
//! In each folder, `mod` explains the layout and `reader` reads it. In most folders, `writer`
//! writes the layout. Some folders have a file `layout`, which defines the bytes.
//!
//! A layout turns a file or folder into a tree of [`LeafInfo`], and gives the file and the byte
//! range of each leaf. The engine adds threads, memory budgets and templates. Only
//! [`commit`](regrow_storage::local) gives new files their names. The row store of the layout
//! `trak` is an exception: it changes the files of a store in place.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::sync::Arc;

use crate::options::{OpenOptions, SaveOptions};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_storage::COMMITTED_MARKER;
use regrow_storage::location::Location;
use regrow_tree::array::{Array, ArraySource, Region};
use regrow_tree::tree::{Key, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

pub mod container;
pub mod contents;
pub(crate) mod coverage;
pub mod equinox;
pub mod flax;
pub mod foreign;
mod format;
pub mod item_files;
pub mod item_folder;
pub mod items_record;
mod joined;
mod loss;
pub mod npy;
pub mod options;
pub mod orbax;
mod own_files;
mod path_tree;
pub(crate) mod pieces;
mod preview;
pub mod pytree_data;
mod reader;
mod recovery;
pub mod refusals;
pub mod regrow;
pub mod safetensors;
pub mod siblings;
pub(crate) mod spread;
pub(crate) mod stream;
pub mod structure;
pub mod suggestions;
pub mod torch;
pub mod trak;
mod whole_file;

pub use format::{
    Claims, Detected, Features, Fidelity, Format, FormatExt, ManyWriters, Roles, Siblings, SingleFile,
    WriteAs, WriteFile, WriteFolder, WriterRank,
};
pub use loss::{Loss, LossKind};
pub use options::list::{add_format, formats};
pub use own_files::{FileNames, OwnNames, tell_storage};
pub use own_files::{beginnings, checkpoint_markers, located};
pub use preview::Preview;
pub use reader::{Description, Finding, Reader, ReaderExt, Rest, Sparse, Standing};
pub use recovery::{Counterpart, RecoveredFile, Recovery, SummedFile};
pub use regrow_storage::COMMIT_MARKERS;
pub use regrow_storage::{Target, UNCOMMITTED_MARK};
pub use torch::pointer as object_pointer;

/// The file names that readers look for, as a list for error messages.
pub fn looked_for() -> String {
    let words: Vec<&str> = formats().flat_map(|format| format.file_names().looked_for).copied().collect();
    words.join(", ")
}

/// Whether another program may have written the file, although a layout recognises it.
pub fn may_be_anothers(file: &Location) -> bool {
    formats().any(|format| format.file_names().may_be_anothers.is_some_and(|may| may(file)))
}

/// The layout of this name, as [`Description::layout`] has it.
pub fn format_named(name: &str) -> Option<&'static dyn Format> {
    formats().find(|format| format.name() == name)
}

impl SaveOptions {
    /// The features of a save with these options.
    pub fn features(&self) -> Features<'_> {
        self.layout.format().features(self)
    }
}

/// A tree with one leaf like `leaf` but without data. A writer refuses this tree exactly when it
/// would refuse the leaf.
pub(crate) fn without_data(leaf: &LeafInfo) -> Result<Tree<Leaf>> {
    let data = match leaf.kind {
        LeafKind::Str => LeafData::Text(Arc::from("")),
        LeafKind::Placeholder | LeafKind::Unknown(_) => LeafData::Absent,
        _ => LeafData::Array(Array::deferred(leaf.dtype, leaf.shape.clone(), Arc::new(Zeros))?),
    };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    build.leaf(Key::dict("leaf"), Leaf { kind: leaf.kind.clone(), data, sharding: None })?;
    build.close()?;
    build.finish()
}

/// The array data of the leaf that `without_data` makes: all bytes are zero.
#[derive(Debug)]
struct Zeros;

impl ArraySource for Zeros {
    fn read_c_order(&self, _offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }

    fn read_region(&self, _region: &Region, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }
}

/// Refuses a folder that is still being written, or whose writer was killed.
pub fn refuse_uncommitted(at: &Location) -> Result<()> {
    let name = at.name_text();
    if !name.contains(UNCOMMITTED_MARK) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Uncommitted, "this checkpoint was never committed")
        .in_file(at)
        .help("it is being written, or its writer was killed: open an earlier checkpoint, or save again"))
}

/// Whether a folder in a bucket has a commit marker. An overwrite may have the marker, and the rest
/// of the checkpoint, in another folder for a moment.
pub(crate) fn is_marked(at: &Location) -> Result<bool> {
    let has_marker = |at: &Location| at.join(COMMITTED_MARKER).is_file();
    Ok(has_marker(at) || has_marker(&at.for_reading()?.location))
}

/// Refuses a folder in a bucket without a commit marker, for layouts that always write a marker.
pub fn refuse_unmarked(at: &Location) -> Result<()> {
    if !at.commits_by_marker() || is_marked(at)? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Uncommitted, "this checkpoint was never committed: its marker is missing")
        .in_file(at)
        .expected(COMMITTED_MARKER, "the object does not exist")
        .help(
            "it is being written, or its writer was killed; if you copied it from a disk, put an empty \
             commit_success.txt beside its files",
        ))
}

pub(crate) fn refuse_arrays_only(format: &dyn Format, at: &Location, options: &OpenOptions) -> Result<()> {
    match options.arrays_only {
        false => Ok(()),
        true => Err(Error::invalid("`arrays_only` is for npy, npz and Equinox files")
            .in_file(at)
            .expected("layout npy or equinox", format.name())),
    }
}

/// Refuses the options `step` and `item` for a layout that has no steps and no items.
pub(crate) fn refuse_step_and_item(at: &Location, options: &OpenOptions) -> Result<()> {
    let asked = match (options.step, &options.item) {
        (Some(step), _) => format!("step {step}"),
        (None, Some(item)) => format!("item {item:?}"),
        (None, None) => return Ok(()),
    };
    Err(Error::new(ErrorKind::NotFound, format!("this is a single checkpoint without {asked}"))
        .in_file(at)
        .help("leave it out, or open the folder that has the steps"))
}

/// The help text for a damaged pytree that is stored beside the arrays.
pub(crate) const ARRAYS_ONLY_HELP: &str = "copy it again; `arrays_only` reads the arrays without the pytree";
