//! TRAK result stores: folders of npy maps and small JSON files. Many processes work on one store
//! for days.
//!
//! TRAK attributes predictions to training examples. For each model checkpoint it keeps a projected
//! gradient for each training example, then features computed from all gradients, then a projected
//! gradient for each target of each experiment. At last it keeps one matrix of scores for each
//! experiment.
//!
//! ```text
//! metadata.json            sizes and the kind of projection, for all models
//! experiments.json         name -> number of targets, whether its scores are final
//! id_<ID>.json             whether all rows are done, whether the features are made
//! <ID>/grads.mmap          | npy header | N x P |  every .mmap file is an npy file of fixed size
//!      out_to_loss.mmap    | npy header | N x 1 |
//!      features.mmap       | npy header | N x P |
//!      _is_featurized.mmap | npy header | N x 1 |  int32: 1 for rows of grads and weights that are done
//!      <EXP>_grads.mmap    | npy header | T x P |
//!      _targets_<EXP>.mmap | npy header | T x 1 |  regrow's: 1 for targets that are done
//!      _checkpoint.json                            regrow's: the checkpoint of the rows
//! scores/<EXP>.mmap        | npy header | N x T |
//! .regrow.lock                                     regrow's: held while files or JSON change
//! ```
//!
//! A store is always on a local disk: it has live maps, and locks.
//!
//! Names, dtypes, headers and JSON are TRAK's to the byte, so that TRAK reads the stores of regrow
//! and the other way round. TRAK does not look at the files that are regrow's.
//!
//! | module | holds |
//! |---|---|
//! | `layout` | names, shapes, dtypes |
//! | `documents`, `catalog` | one JSON file; all JSON files of a folder |
//! | `array_file` | one array: made whole, opened with checks, rows in place |
//! | `rows` | rows and their mask: writes the data before the mask |
//! | `store`, `experiments` | [`TrakStore`]: models and flags; targets and scores |
//! | `survey` | a store as it lies on disk |
//! | `faults`, `arrays`, `repair` | each fault with its finding and its remedy; the faults of arrays; the repair |
//! | `finite` | numbers that are NaN or infinite |
//! | `reader`, `writer` | the store as a checkpoint |
//!
//! Source: traker 0.3.2, `trak/savers.py` and `trak/traker.py`.

// The row store opens, locks and writes local files itself.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use self::layout::{METADATA_FILE, PROJ_DIM_KEY, TRAIN_SET_SIZE_KEY, id_of_file};
use super::{Features, Fidelity, FileNames, Format, Loss, Reader, WriteAs};
use crate::options::{OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

mod array_file;
mod arrays;
mod catalog;
mod documents;
mod experiments;
mod faults;
mod finite;
mod layout;
mod reader;
mod repair;
mod rows;
mod store;
mod survey;
mod writer;

pub use self::array_file::ArrayFile;
pub use self::arrays::Repair;
pub use self::catalog::{Catalog, DamagedFile};
pub use self::documents::{Experiment, ModelFlags};
pub use self::experiments::ExperimentArrays;
pub use self::layout::{ArraySpec, ExperimentName, Parameters, Precision, TrainArray};
pub use self::repair::repair;
pub use self::rows::Rows;
pub use self::store::{Mode, ModelArrays, TrakStore};
pub use crate::options::TrakOptions;

/// The longest `metadata.json` that is read to recognise a store. The file of TRAK has three
/// members.
const RECOGNISED_LEN_MAX_BYTES: u64 = 1 << 20;

/// The name of the layout.
pub(crate) const NAME: &str = "trak";

/// TRAK result stores.
#[derive(Debug)]
pub struct Trak;

impl Format for Trak {
    fn name(&self) -> &'static str {
        NAME
    }

    fn file_names(&self) -> FileNames {
        FileNames {
            needs_local_disk: true,
            looked_for: &["the metadata.json of a TRAK store"],
            ..FileNames::NONE
        }
    }

    /// Recognises a folder with the flags and the mask of a model, and a folder with TRAK's keys in
    /// its metadata.
    fn recognise(&self, at: &Location) -> Result<bool> {
        let Some(path) = at.local_path().ok().filter(|path| path.is_dir()) else { return Ok(false) };
        let of_model = |file: &String| {
            id_of_file(file)
                .is_some_and(|id| path.join(id.to_string()).join(TrainArray::Mask.file_name()).is_file())
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
        super::refuse_arrays_only(self, at, options)?;
        super::refuse_uncommitted(at)?;
        super::refuse_step_and_item(at, options)?;
        Ok(Box::new(reader::TrakReader::open(at.local_path()?, options.salvage)?))
    }

    fn write_as(&self, _at: &Location, _options: &SaveOptions) -> WriteAs {
        WriteAs::Folder(|tree, new, _options| writer::write(tree, new))
    }

    fn check(&self, tree: &Tree<Leaf>, target: &Location, _options: &SaveOptions) -> Result<()> {
        writer::check(tree, target)
    }
}

impl Fidelity for Trak {
    fn losses(&self, tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], _options: &SaveOptions) -> Vec<Loss> {
        writer::losses(tree)
    }

    fn refusal(&self, _leaf: &LeafInfo, _options: &SaveOptions) -> Option<Error> {
        None
    }

    fn features<'o>(&self, _options: &'o SaveOptions) -> Features<'o> {
        Features::default()
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod lost_tests;
#[cfg(test)]
mod tests;
