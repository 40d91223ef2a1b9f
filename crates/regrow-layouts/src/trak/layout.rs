//! Names, shapes and dtypes: all facts about the folder that need no open file.

use std::path::{Path, PathBuf};

use regrow_base::error::{Error, Result};
use regrow_tree::array::{Dtype, Shape};

pub(super) const METADATA_FILE: &str = "metadata.json";
pub(super) const EXPERIMENTS_FILE: &str = "experiments.json";
pub(super) const SCORES_FOLDER: &str = "scores";
/// Locked by the process that makes files or changes JSON; TRAK ignores it.
pub(super) const LOCK_FILE: &str = ".regrow.lock";
/// In a model's folder: names the checkpoint that its rows were computed from.
pub(super) const CHECKPOINT_FILE: &str = "_checkpoint.json";

/// Keys of `metadata.json`.
pub(super) const PROJ_DIM_KEY: &str = "JL dimension";
pub(super) const MATRIX_TYPE_KEY: &str = "JL matrix type";
pub(super) const TRAIN_SET_SIZE_KEY: &str = "train set size";

/// Begins the file name of a mask of targets; no name of an experiment may begin so.
const TARGETS_PREFIX: &str = "_targets_";
pub(super) const ARRAY_SUFFIX: &str = ".mmap";
const GRADS_SUFFIX: &str = "_grads.mmap";
/// The longest name of a file, in bytes, on every file system in use.
const FILE_NAME_LEN_MAX_BYTES: usize = 255;

/// Half or single precision: the dtype of all arrays but the masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// float16, TRAK's default.
    Half,
    /// float32.
    Single,
}

impl Precision {
    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::Half => Dtype::Float16,
            Self::Single => Dtype::Float32,
        }
    }

    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        [Self::Half, Self::Single].into_iter().find(|precision| precision.dtype() == dtype)
    }
}

/// Determines the dtype and shape of every array of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// N: rows of all arrays about the train set.
    pub train_set_size: u64,
    /// P: columns of gradients and features.
    pub proj_dim: u64,
    /// The dtype of gradients, features and scores.
    pub precision: Precision,
}

impl Parameters {
    pub(super) fn train(&self, id: i64, array: TrainArray) -> Slot {
        let (dtype, columns) = match array {
            TrainArray::Grads | TrainArray::Features => (self.precision.dtype(), self.proj_dim),
            TrainArray::OutToLoss => (self.precision.dtype(), 1),
            TrainArray::Mask => (Dtype::Int32, 1),
        };
        Slot::new(format!("{id}/{}", array.file_name()), dtype, self.train_set_size, columns)
    }

    pub(super) fn target_grads(&self, id: i64, name: &ExperimentName, num_targets: u64) -> Slot {
        Slot::new(name.grads_file(id), self.precision.dtype(), num_targets, self.proj_dim)
    }

    pub(super) fn target_mask(&self, id: i64, name: &ExperimentName, num_targets: u64) -> Slot {
        Slot::new(name.targets_file(id), Dtype::Int32, num_targets, 1)
    }

    pub(super) fn scores(&self, name: &ExperimentName, num_targets: u64) -> Slot {
        Slot::new(name.scores_file(), self.precision.dtype(), self.train_set_size, num_targets)
    }
}

/// Dtype and extent of one array; all arrays of a store have two axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArraySpec {
    /// The type of its elements.
    pub dtype: Dtype,
    /// First axis.
    pub rows: u64,
    /// Second axis.
    pub columns: u64,
}

impl ArraySpec {
    /// Its shape.
    pub fn shape(&self) -> Result<Shape> {
        Shape::new(vec![self.rows, self.columns])
    }

    /// Bytes of its data.
    pub fn len_bytes(&self) -> Result<u64> {
        self.shape()?.len_bytes(self.dtype)
    }

    pub(super) fn row_len_bytes(&self) -> u64 {
        self.columns * self.dtype.size_bytes() as u64
    }
}

impl std::fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of shape [{},{}]", self.dtype, self.rows, self.columns)
    }
}

/// One array of a store: the file that holds it, below the store, and its dtype and extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) file: String,
    pub(super) spec: ArraySpec,
}

impl Slot {
    fn new(file: String, dtype: Dtype, rows: u64, columns: u64) -> Self {
        Self { file, spec: ArraySpec { dtype, rows, columns } }
    }

    pub(super) fn path(&self, root: &Path) -> PathBuf {
        root.join(&self.file)
    }

    /// The folder, below the store, and the file's name in it.
    pub(super) fn split(&self) -> (&str, &str) {
        self.file.rsplit_once('/').unwrap_or(("", &self.file))
    }
}

/// The four arrays about the train set that each model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrainArray {
    /// Projected gradients, a row a training example.
    Grads,
    /// One weight a training example.
    OutToLoss,
    /// Computed from all gradients when the model is finalized.
    Features,
    /// 1 for each row of gradients and weights that is done.
    Mask,
}

impl TrainArray {
    /// All four, in the order in which they are made: the mask first.
    pub const ALL: [Self; 4] = [Self::Mask, Self::Grads, Self::OutToLoss, Self::Features];

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Grads => ("grads", "grads.mmap"),
            Self::OutToLoss => ("out_to_loss", "out_to_loss.mmap"),
            Self::Features => ("features", "features.mmap"),
            Self::Mask => ("is_featurized", "_is_featurized.mmap"),
        }
    }

    /// Its key in a tree, and in TRAK's `current_store`.
    pub fn key(self) -> &'static str {
        self.names().0
    }

    /// Its file in the model's folder.
    pub fn file_name(self) -> &'static str {
        self.names().1
    }
}

/// The name of an experiment that can be the name of a file: not empty, no `/`, no NUL, not too
/// long, and not one of regrow's own (`_targets_...`, `.regrow...`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExperimentName(String);

impl ExperimentName {
    /// Checks and takes a name.
    pub fn new(name: &str) -> Result<Self> {
        let longest = TARGETS_PREFIX.len() + name.len() + ARRAY_SUFFIX.len();
        let reason = if name.is_empty() {
            "it is empty"
        } else if name.contains(['/', '\0']) {
            "file names cannot contain `/` or NUL"
        } else if name.starts_with(TARGETS_PREFIX) || name.starts_with(".regrow") {
            "names that begin like this are reserved"
        } else if longest > FILE_NAME_LEN_MAX_BYTES {
            "it is too long for the name of a file"
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(Error::invalid(format!("{name:?} cannot be the name of an experiment: {reason}"))
            .help("choose another name: the arrays are files of that name"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn grads_file(&self, id: i64) -> String {
        format!("{id}/{}{GRADS_SUFFIX}", self.0)
    }

    pub(super) fn targets_file(&self, id: i64) -> String {
        format!("{id}/{TARGETS_PREFIX}{}{ARRAY_SUFFIX}", self.0)
    }

    pub(super) fn scores_file(&self) -> String {
        format!("{SCORES_FOLDER}/{}{ARRAY_SUFFIX}", self.0)
    }

    /// The experiment of a file of target gradients in a model's folder.
    pub(super) fn of_grads_file(file_name: &str) -> Option<Self> {
        Self::new(file_name.strip_suffix(GRADS_SUFFIX)?).ok()
    }

    /// The experiment of a mask of targets in a model's folder.
    pub(super) fn of_targets_file(file_name: &str) -> Option<Self> {
        Self::new(file_name.strip_prefix(TARGETS_PREFIX)?.strip_suffix(ARRAY_SUFFIX)?).ok()
    }

    /// The experiment of a file in `scores/`.
    pub(super) fn of_scores_file(file_name: &str) -> Option<Self> {
        Self::new(file_name.strip_suffix(ARRAY_SUFFIX)?).ok()
    }
}

/// The file of a model's flags.
pub(super) fn id_file(id: i64) -> String {
    format!("id_{id}.json")
}

/// The model of a folder of this name: the ID in decimal, and nothing else.
pub(super) fn model_folder_id(name: &str) -> Option<i64> {
    name.parse().ok().filter(|id: &i64| id.to_string() == name)
}

/// The text in the place of the ID in the name of a file of flags.
pub(super) fn id_text(file_name: &str) -> Option<&str> {
    file_name.strip_prefix("id_")?.strip_suffix(".json")
}

/// The model of a file of flags; `None` if there is no ID in its name.
pub(super) fn id_of_file(file_name: &str) -> Option<i64> {
    model_folder_id(id_text(file_name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_experiments_are_names_of_files() {
        for name in ["val", "a b", "exp.v2", "ü", "..", "x_grads", "-1"] {
            let name = ExperimentName::new(name).unwrap();
            let file_of = |path: String| path.split_once('/').unwrap().1.to_owned();
            assert_eq!(ExperimentName::of_grads_file(&file_of(name.grads_file(0))), Some(name.clone()));
            assert_eq!(ExperimentName::of_targets_file(&file_of(name.targets_file(0))), Some(name.clone()));
            assert_eq!(ExperimentName::of_scores_file(&file_of(name.scores_file())), Some(name));
        }
        for name in ["", "no/dir", "../x", "a\0b", "_targets_a", ".regrow-tmp-1", &"x".repeat(242)] {
            let error = ExperimentName::new(name).unwrap_err();
            assert_eq!(error.kind(), regrow_base::error::ErrorKind::InvalidArgument, "{name:?}");
        }
        // Otherwise the mask of `a_grads` would be the gradients of `_targets_a`.
        let mask = ExperimentName::new("a_grads").unwrap().targets_file(0);
        assert_eq!(ExperimentName::of_grads_file(mask.strip_prefix("0/").unwrap()), None);
    }

    #[test]
    fn ids_are_integers() {
        for id in [-1, 0, 1_000_000_000_000] {
            assert_eq!(id_of_file(&id_file(id)), Some(id));
        }
        for text in ["", "x", "1.0", "0x1", "007", "+3", " 1", "99999999999999999999"] {
            assert_eq!(id_of_file(&format!("id_{text}.json")), None);
        }
    }
}
