//! Equinox leaf files, written by `equinox.tree_serialise_leaves` and read by
//! `tree_deserialise_leaves`.
//!
//! ```text
//! | {"depth": 2}\n |  npy record 0  |  npy record 1  | ... | trailer |
//!   hyperparameters   flatten order, nothing between         regrow's own
//!   (optional)                                               (optional, ignored by Equinox)
//! ```
//!
//! Equinox writes only the records: no names, no count, no checksums. A record has no key but its
//! position, in the order in which JAX flattens the pytree. The caller of Equinox supplies the
//! structure. regrow adds an index after the records, with the exact pytree, the position of each
//! leaf, and checksums. Without the index a file is a list of its leaves.
//!
//! | module | holds |
//! |---|---|
//! | [`layout`] | the first line, the walk from record to record |
//! | [`trailer`] | regrow's index: bytes to [`trailer::Trailer`] and back |
//! | `file` | [`LeafFile`]: a file with its records, read and checked |
//! | `pytree` | records to a pytree |
//! | `reader` | all of it as a checkpoint |
//! | `order` | [`jax_order`]: dicts by sorted keys |
//! | `plan`, [`writer`] | a pytree to records, records to a file |
//!
//! [`npy::header`](super::npy::header) describes the header of a record. Source: equinox 0.13
//! `_serialisation.py`; NumPy NEP 1.

use std::ffi::OsStr;

use super::npy::header::{MAGIC, TRAILER_MAGIC};
use super::npy::read_of;
use super::{Features, Fidelity, FileNames, Format, Loss, Preview, Reader, Roles, SingleFile, WriteAs};
use crate::item_files::ItemForm;
use crate::options::{Layout, OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::Found;
use regrow_storage::location::Location;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

mod file;
pub mod layout;
mod order;
mod plan;
mod pytree;
mod reader;
pub mod trailer;
pub mod writer;

pub use crate::options::EquinoxOptions;
pub use file::LeafFile;
pub use order::jax_order;
pub use plan::leaf_info;
pub use pytree::as_leaf;

/// The suffix of leaf files.
pub const SUFFIX: &str = "eqx";
const ENDING: &str = ".eqx";

const ITEM_FILE: &str = "checkpoint.eqx";

/// The number of bytes read to recognise a file with another suffix.
const LOOKED_AT_BYTES: u64 = 64 << 10;

pub(crate) const NAME: &str = "equinox";

/// Equinox leaf files: npy records one after another.
#[derive(Debug)]
pub struct Equinox;

impl Format for Equinox {
    fn name(&self) -> &'static str {
        NAME
    }

    fn file_names(&self) -> FileNames {
        FileNames {
            of_item_files: &[ITEM_FILE],
            item: Some(|layout, _| ItemForm::of_file(layout, ITEM_FILE)),
            step_name: Some(|_, plain, _| format!("{plain}{ENDING}")),
            suffixes: &[ENDING],
            looked_for: &["eqx files"],
            ..FileNames::NONE
        }
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        match at.look() {
            Ok(Some(Found::File { .. })) if self.claims_name(at.name()) => Ok(true),
            Ok(Some(Found::File { len_bytes })) => shows_records(read_of(at, len_bytes)),
            _ => Ok(false),
        }
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_uncommitted(at)?;
        super::refuse_step_and_item(at, options)?;
        Ok(Box::new(reader::EquinoxReader::open(at, options)?))
    }

    fn write_as(&self, _at: &Location, _options: &SaveOptions) -> WriteAs {
        WriteAs::File(|tree, new, options| {
            writer::write(new, &mut plan::plan(tree, &own_options(options), options)?)
        })
    }

    fn check(&self, tree: &Tree<Leaf>, _target: &Location, options: &SaveOptions) -> Result<()> {
        plan::plan(tree, &own_options(options), options).map(drop)
    }

    fn roles(&self) -> Roles<'_> {
        Roles { single_file: Some(self), ..Roles::default() }
    }
}

impl Fidelity for Equinox {
    fn losses(&self, tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], options: &SaveOptions) -> Vec<Loss> {
        plan::losses(tree, &own_options(options))
    }

    fn refusal(&self, leaf: &LeafInfo, options: &SaveOptions) -> Option<Error> {
        let tree = super::without_data(leaf);
        tree.and_then(|tree| plan::plan(&tree, &own_options(options), options).map(drop)).err()
    }

    fn features<'o>(&self, options: &'o SaveOptions) -> Features<'o> {
        let own = own_options(options);
        Features { metadata: own.trailer && own.hyperparameters.is_none(), ..Features::default() }
    }
}

impl SingleFile for Equinox {
    fn claims_name(&self, name: &OsStr) -> bool {
        let stem = name.as_encoded_bytes().strip_suffix(SUFFIX.as_bytes());
        stem.and_then(|stem| stem.strip_suffix(b".")).is_some_and(|stem| !stem.is_empty())
    }

    fn recognise_preview(&self, name: &OsStr, preview: &Preview) -> bool {
        let shows = shows_records(|offset_bytes, len_bytes| Ok(preview.read_at(offset_bytes, len_bytes)));
        self.claims_name(name) || shows.unwrap_or(false)
    }

    fn preview(&self, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Preview> {
        plan::plan(tree, &own_options(options), options)?.preview()
    }

    fn suffix(&self) -> Option<&'static str> {
        Some(ENDING)
    }
}

fn own_options(options: &SaveOptions) -> EquinoxOptions {
    match &options.layout {
        Layout::Equinox(own) => own.clone(),
        _ => EquinoxOptions::default(),
    }
}

/// Whether a file with another suffix has contents that no npy file has: a line of JSON and then a
/// record; or a record and then regrow's trailer or another record. `read_at(offset, len)` gives
/// `len` bytes from the offset on, or fewer at the end of the file.
pub(super) fn shows_records(read_at: impl Fn(u64, u64) -> Result<Vec<u8>>) -> Result<bool> {
    let start = read_at(0, LOOKED_AT_BYTES)?;
    if layout::is_line_and_record(&start) {
        return Ok(true);
    }
    let Some(end) = layout::first_record_end(&start) else { return Ok(false) };
    let next = read_at(end, TRAILER_MAGIC.len() as u64)?;
    Ok(next.starts_with(&MAGIC) || next == TRAILER_MAGIC)
}

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod tests;
