//! Data and manifest: the pair of files of gemma.cpp's Python tools.
//!
//! ```text
//! STEM.data       | array | pad | array | pad | ...     C order, in the order of the tree; each array begins at a
//!                                                       multiple of byte_align (8)
//! STEM.manifest   [{'dtype': '<f4',                     a Python literal; one entry for each array
//!                   'nbytes': 24,
//!                   'offset': 0,
//!                   'path': ('layer', 'w'),
//!                   'shape': (2, 3)},
//!                  ...]
//! ```
//! The path of the checkpoint is the stem of both files. The original knows only dicts of arrays.
//! regrow stores other containers, the kinds of leaves and checksums in keys that the original
//! ignores: see `manifest`. The whole manifest is checked before any data is read.
//!
//! | module | does |
//! |---|---|
//! | `files` | the two files of a path |
//! | `manifest`, `pprint` | text to entries and back |
//! | `paths` | an entry's path as a key path and back |
//! | `check` | entries against the data file |
//! | `tree` | entries to a pytree |
//! | `plan`, `writer` | a pytree to both files |
//! | `reader` | both files as a checkpoint |
//!
//! The two files get their names one after the other. Readers also find the files of a killed save:
//! see [`commit`](regrow_storage::local).
//!
//! Source: google/gemma.cpp, `compression/python/pytree`, removed in September 2025.

use std::path::PathBuf;

use super::{Features, Fidelity, FileNames, Format, Loss, Reader, Roles, Siblings, WriteAs};
use crate::options::{Layout, OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

mod check;
mod files;
mod manifest;
mod paths;
mod plan;
mod pprint;
mod reader;
mod tree;
mod writer;

pub use crate::options::PytreeDataOptions;
pub use files::{DATA_SUFFIX, Files, MANIFEST_SUFFIX, appears};

pub(crate) const NAME: &str = "pytree_data";

/// Data and manifest: `STEM.data` with the arrays, `STEM.manifest` with a Python literal that says
/// where they lie.
#[derive(Debug)]
pub struct PytreeData;

impl Format for PytreeData {
    fn name(&self) -> &'static str {
        NAME
    }

    fn file_names(&self) -> FileNames {
        FileNames {
            pair_suffixes: &[DATA_SUFFIX, MANIFEST_SUFFIX],
            looked_for: &["files .data and .manifest"],
            ..FileNames::NONE
        }
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        Files::are_at(at)
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_arrays_only(self, at, options)?;
        super::refuse_step_and_item(at, options)?;
        Ok(Box::new(reader::PytreeDataReader::open(&Files::of(at).located(), options.salvage)?))
    }

    fn write_as(&self, _at: &Location, options: &SaveOptions) -> WriteAs {
        WriteAs::Siblings {
            suffixes: writer::suffixes(&options_of(options)),
            write: |tree, new, options| writer::write(tree, new, &options_of(options)),
        }
    }

    fn check(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<()> {
        writer::plan(tree, target, &options_of(options)).map(drop)
    }

    fn roles(&self) -> Roles<'_> {
        Roles { siblings: Some(self), ..Roles::default() }
    }
}

impl Siblings for PytreeData {
    fn files(&self, at: &Location) -> Vec<Location> {
        let Files { data, manifest, .. } = Files::of(at);
        vec![data, manifest]
    }

    fn files_now(&self, at: &Location) -> Vec<Location> {
        let Files { data, manifest, .. } = Files::of(at).located();
        vec![data, manifest]
    }

    fn other_name(&self, at: &Location) -> Result<Option<String>> {
        reader::other_data_file(&Files::of(at).located())
    }

    fn appear(&self, at: &Location) -> bool {
        files::appears_at(at)
    }

    fn unfinished(&self, at: &Location) -> Option<Error> {
        files::unfinished(at)
    }
}

impl Fidelity for PytreeData {
    fn losses(&self, tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], options: &SaveOptions) -> Vec<Loss> {
        plan::losses(tree, &options_of(options))
    }

    fn refusal(&self, leaf: &LeafInfo, options: &SaveOptions) -> Option<Error> {
        let own = PytreeDataOptions { paths: None, ..options_of(options) };
        super::without_data(leaf).and_then(|tree| plan::Plan::of(&tree, &own).map(drop)).err()
    }

    fn features<'o>(&self, _options: &'o SaveOptions) -> Features<'o> {
        Features::default()
    }
}

fn options_of(options: &SaveOptions) -> PytreeDataOptions {
    match &options.layout {
        Layout::PytreeData(options) => options.clone(),
        _ => PytreeDataOptions::default(),
    }
}

/// An array of a manifest, as it lies in the data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayEntry {
    /// The keys from the root, as a tuple of Python: `('layer', 'w')`.
    pub path: String,
    /// NumPy's type string: `<f4`, `>i2`, `<U8`; for dtypes of ml_dtypes their name.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<u64>,
    /// First byte in the data file.
    pub offset_bytes: u64,
}

/// A manifest, checked against its data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries {
    /// The data file: the one that was given, or the one that the manifest names.
    pub data: PathBuf,
    /// The arrays, in the order of the manifest.
    pub arrays: Vec<ArrayEntry>,
    /// Paths of empty dicts, as tuples of Python.
    pub empty: Vec<String>,
}

/// Reads a manifest for a caller that maps the data file itself; with `verify`, checks the data
/// too.
///
/// # Errors
/// `Corrupt` for a manifest that does not fit the data, or for data that fails its checksum;
/// `NotFound` if one of the files is missing; `Unsupported` for files that are on no local disk.
pub fn entries_of(files: &Files, verify: bool) -> Result<Entries> {
    files.manifest.local_path()?;
    let (manifest, data) = reader::DataFile::open(&files.clone().located(), false)?;
    if verify {
        data.check_all()?;
    }
    let arrays = data.entries.iter().map(|entry| ArrayEntry {
        path: paths::path_text(&entry.path),
        dtype: entry.descr.text(),
        shape: entry.shape.dims().to_vec(),
        offset_bytes: entry.offset_bytes,
    });
    let empty = manifest.extra.as_ref().map(|extra| extra.empty.as_slice()).unwrap_or_default();
    Ok(Entries {
        data: data.path(),
        arrays: arrays.collect(),
        empty: empty.iter().map(|path| paths::path_text(path)).collect(),
    })
}

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod tests;
