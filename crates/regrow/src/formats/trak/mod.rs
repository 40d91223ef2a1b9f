//! TRAK result stores: a folder of npy maps and small JSON files that many processes work on for
//! days.
//!
//! TRAK attributes predictions to training examples. For each model checkpoint it keeps a projected
//! gradient a training example, then features made of all of them, then a projected gradient a
//! target of each experiment, and at last one matrix of scores an experiment.
//!
//! ```text
//! metadata.json            sizes and the kind of projection, for all models
//! experiments.json         name -> number of targets, whether its scores are final
//! id_<ID>.json             whether all rows are done, whether the features are made
//! <ID>/grads.mmap          | npy header | N x P |     every .mmap file is an npy file of fixed size
//!      out_to_loss.mmap    | npy header | N x 1 |
//!      features.mmap       | npy header | N x P |
//!      _is_featurized.mmap | npy header | N x 1 |     int32: which rows of grads and out_to_loss are done
//!      <EXP>_grads.mmap    | npy header | T x P |
//!      _targets_<EXP>.mmap | npy header | T x 1 |     ours: which targets are done
//!      _checkpoint.json                               ours: which checkpoint the rows were computed from
//! scores/<EXP>.mmap        | npy header | N x T |
//! .regrow.lock                                        ours: held while files are made or JSON is changed
//! ```
//!
//! A store is always on a local disk: it has live maps, and locks.
//!
//! Names, dtypes, headers and JSON are TRAK's to the byte, so that it reads what we write and the
//! other way round. What is ours has names that it does not look at.
//!
//! | module | holds |
//! |---|---|
//! | [`layout`] | names, shapes, dtypes |
//! | [`documents`] | the JSON files |
//! | [`array_file`] | one array: made whole, opened with checks, rows in place |
//! | [`rows`] | data before mask |
//! | `lost_writes` | what a failed sync may have lost |
//! | [`catalog`] | what a folder says of itself |
//! | [`store`] | [`TrakStore`]: registering, flags |
//! | [`experiments`] | [`TrakStore`]: targets and scores |
//! | `check`, `finite` | contradictions; numbers that are none |
//! | [`mod@repair`] | the way out of them |
//! | `reader`, `writer` | the store as a checkpoint |
//!
//! Source: traker 0.3.2, `trak/savers.py` and `trak/traker.py`.

// The row store is live maps of local files, by nature.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use self::layout::{
    METADATA_FILE, PROJ_DIM_KEY, TRAIN_SET_SIZE_KEY, TrainArray, id_text, model_file, parse_id,
};
use super::{Fidelity, Format, Loss, ManyWriters, Reader, SingleFile, Target};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::options::{OpenOptions, SaveOptions};
use crate::storage::Publication;
use crate::tree::{Leaf, LeafInfo, Tree};

pub mod array_file;
pub mod catalog;
mod check;
pub mod documents;
pub mod experiments;
mod finite;
pub mod layout;
mod lost_writes;
mod reader;
pub mod repair;
pub mod rows;
pub mod store;
mod writer;

pub use crate::options::TrakOptions;
pub use experiments::ExperimentArrays;
pub use repair::{Repair, repair};
pub use store::{Mode, ModelArrays, TrakStore};

/// The longest `metadata.json` that is read to tell whether a folder is a store: TRAK's have three
/// members.
const RECOGNISED_LEN_MAX_BYTES: u64 = 1 << 20;

/// TRAK result stores.
#[derive(Debug)]
pub struct Trak;

impl Format for Trak {
    fn name(&self) -> &'static str {
        "trak"
    }

    /// A folder that has the flags of a model beside the model's mask, or whose metadata have
    /// TRAK's keys.
    fn recognise(&self, at: &Location) -> Result<bool> {
        let Some(path) = at.local_path().ok().filter(|path| path.is_dir()) else { return Ok(false) };
        let of_model = |file: &String| {
            let id = id_text(file).and_then(parse_id);
            id.is_some_and(|id| path.join(model_file(id, TrainArray::Mask.file_name())).is_file())
        };
        if catalog::id_files(path)?.iter().any(of_model) {
            return Ok(true);
        }
        let metadata = documents::read_object_up_to(&path.join(METADATA_FILE), RECOGNISED_LEN_MAX_BYTES);
        Ok(metadata.ok().flatten().is_some_and(|metadata| {
            metadata.contains_key(PROJ_DIM_KEY) && metadata.contains_key(TRAIN_SET_SIZE_KEY)
        }))
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_bare(self, at, options)?;
        super::refuse_uncommitted(at)?;
        super::refuse_step_and_item(at, options)?;
        Ok(Box::new(reader::TrakReader::open(at.local_path()?, options.salvage)?))
    }

    fn target(&self, _at: &Location, _options: &SaveOptions) -> Target {
        Target::Folder
    }

    fn single_file(&self) -> Option<&dyn SingleFile> {
        None
    }

    fn check(&self, tree: &Tree<Leaf>, target: &Location, _options: &SaveOptions) -> Result<()> {
        writer::check(tree, target)
    }

    fn write(&self, tree: &Tree<Leaf>, staged: &dyn Publication, _options: &SaveOptions) -> Result<()> {
        writer::write(tree, staged)
    }

    fn many_writers(&self) -> Option<&dyn ManyWriters> {
        None
    }
}

impl Fidelity for Trak {
    fn losses(&self, tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], _options: &SaveOptions) -> Vec<Loss> {
        writer::losses(tree)
    }

    fn refusal(&self, _leaf: &LeafInfo, _options: &SaveOptions) -> Option<Error> {
        None
    }

    fn holds_metadata(&self, _options: &SaveOptions) -> bool {
        false
    }
}

#[cfg(test)]
mod advice_tests;
#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod lost_tests;
#[cfg(test)]
mod tests;
