//! NumPy files: one array (`.npy`), an archive of arrays (`.npz`), or a folder tree of them.
//!
//! ```text
//! x.npy      | 93 N U M P Y | version | header length | {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n | data |
//!
//! x.npz      | params/kernel.npy | params/bias.npy | the exact pytree, not listed | directory | end |      (zip)
//!
//! x/         params/kernel.npy   params/bias.npy   regrow-structure.json
//! ```
//!
//! `np.load` opens the files of regrow, and regrow reads the files of NumPy, except pickled
//! objects. In an archive, names are flat (`params/kernel`); in a folder, keys are folders and
//! files. NumPy cannot describe containers, scalars, text and PRNG keys. A separate record
//! describes them, so that regrow restores the exact tree. Without the record the tree is dicts of
//! names.
//!
//! | module | holds |
//! |---|---|
//! | [`header`], [`descr`] | the header: bytes to [`header::Header`] and back |
//! | `record` | a header as a leaf: Fortran order, big-endian numbers, dtypes that only NumPy has |
//! | `zip` | archives |
//! | `names`, `walk` | key paths to names and back; the files of a folder |
//! | `sidecar` | the record with the exact pytree |
//! | `source`, `pytree`, `reader` | reading |
//! | `plan`, `writer`, `losses` | writing |
//! | `detect`, `own_files` | recognising files by their contents and names |
//!
//! A member of an archive has one CRC-32 for header and data, so regrow checks the whole member
//! before it returns a part. Only `open` reads unchecked headers. Single files have no checksum.
//! Source: NumPy NEP 1 and `numpy.lib.format`; `numpy.savez`.

use std::ffi::OsStr;

use super::{Features, Fidelity, FileNames, Format, Loss, Preview, Reader, Roles, SingleFile, WriteAs};
use crate::options::{Layout, OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

pub mod descr;
mod detect;
pub mod header;
mod losses;
mod names;
mod own_files;
mod plan;
mod pytree;
mod reader;
pub(crate) mod record;
mod sidecar;
mod source;
mod walk;
mod writer;
mod zip;

pub use crate::options::{Form, NpyOptions};
pub(super) use detect::read_of;
pub(super) use names::SUFFIX;

pub(crate) const NAME: &str = "npy";

/// NumPy files: one `.npy`, an archive of them (`.npz`), or a folder tree of them.
#[derive(Debug)]
pub struct Npy;

impl Format for Npy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn file_names(&self) -> FileNames {
        own_files::FILE_NAMES
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        detect::is_one(at)
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_uncommitted(at)?;
        super::refuse_step_and_item(at, options)?;
        Ok(Box::new(reader::NpyReader::open(at, options)?))
    }

    fn write_as(&self, at: &Location, options: &SaveOptions) -> WriteAs {
        match form_at(at, &own(options)) {
            Form::Npy => WriteAs::File(writer::write_array),
            Form::Npz => WriteAs::File(writer::write_archive),
            Form::Folder => WriteAs::Folder(writer::write_folder),
        }
    }

    fn check(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<()> {
        let own = own(options);
        writer::plan(tree, target, form_at(target, &own), &own, options).map(drop)
    }

    fn roles(&self) -> Roles<'_> {
        Roles { single_file: Some(self), ..Roles::default() }
    }
}

impl Fidelity for Npy {
    fn losses(&self, tree: &Tree<LeafInfo>, texts: &[(usize, &str)], options: &SaveOptions) -> Vec<Loss> {
        let own = own(options);
        let is_one_array = tree.nodes().len() == 1;
        // The target is not known here, so without an option assume the form that stores least.
        let form = own.form.unwrap_or(if is_one_array { Form::Npy } else { Form::Npz });
        losses::losses(tree, texts, form, &own)
    }

    fn refusal(&self, leaf: &LeafInfo, options: &SaveOptions) -> Option<Error> {
        let own = own(options);
        // All forms refuse the same arrays.
        let form = own.form.filter(|form| *form != Form::Npy).unwrap_or(Form::Npz);
        let tree = super::without_data(leaf);
        tree.and_then(|tree| plan::Plan::new(&tree, form, &own, options).map(drop)).err()
    }

    fn features<'o>(&self, options: &'o SaveOptions) -> Features<'o> {
        let own = own(options);
        Features { metadata: own.structure && own.form != Some(Form::Npy), ..Features::default() }
    }
}

impl SingleFile for Npy {
    fn claims_name(&self, name: &OsStr) -> bool {
        Form::of_name(name) != Form::Folder
    }

    fn recognise_preview(&self, name: &OsStr, preview: &Preview) -> bool {
        detect::is_preview_of_one(name, preview)
    }

    fn preview(&self, _tree: &Tree<Leaf>, _options: &SaveOptions) -> Result<Preview> {
        Ok(Preview::default())
    }

    fn suffix(&self) -> Option<&'static str> {
        None
    }
}

fn form_at(at: &Location, own: &NpyOptions) -> Form {
    own.form.unwrap_or(Form::of_name(at.name()))
}

fn own(options: &SaveOptions) -> NpyOptions {
    match &options.layout {
        Layout::Npy(own) => own.clone(),
        _ => NpyOptions::default(),
    }
}

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod tests;
