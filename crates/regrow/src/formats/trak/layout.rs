//! Names, shapes and dtypes: everything about the folder that can be said without opening a file.

use std::path::PathBuf;

use crate::array::{Dtype, Shape};
use crate::error::{Error, Result};

/// What all models of the folder share.
pub const METADATA_FILE: &str = "metadata.json";
/// Which experiments there are.
pub const EXPERIMENTS_FILE: &str = "experiments.json";
/// The folder of final scores.
pub const SCORES_FOLDER: &str = "scores";
/// Locked by the process that makes files or changes JSON; TRAK ignores it.
pub const LOCK_FILE: &str = ".regrow.lock";
/// In a model's folder: which checkpoint its rows were computed from.
pub const CHECKPOINT_FILE: &str = "_checkpoint.json";

/// The key of the projection dimension in `metadata.json`.
pub const PROJ_DIM_KEY: &str = "JL dimension";
/// The key of the kind of projection.
pub const MATRIX_TYPE_KEY: &str = "JL matrix type";
/// The key of the number of training examples.
pub const TRAIN_SET_SIZE_KEY: &str = "train set size";

/// How the mask of an experiment's targets begins; no experiment's own name may.
const TARGETS_PREFIX: &str = "_targets_";
/// How the file of every array ends.
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
    /// The dtype.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::Half => Dtype::Float16,
            Self::Single => Dtype::Float32,
        }
    }

    /// The precision of a dtype, if it is one of the two.
    pub fn of(dtype: Dtype) -> Option<Self> {
        [Self::Half, Self::Single].into_iter().find(|precision| precision.dtype() == dtype)
    }
}

/// What every array of a store follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// N: rows of everything about the train set.
    pub train_set_size: u64,
    /// P: columns of gradients and features.
    pub proj_dim: u64,
    /// The dtype of gradients, features and scores.
    pub precision: Precision,
}

impl Parameters {
    /// What an array of the train set looks like.
    pub fn train(&self, array: TrainArray) -> ArraySpec {
        let (dtype, columns) = match array {
            TrainArray::Grads | TrainArray::Features => (self.precision.dtype(), self.proj_dim),
            TrainArray::OutToLoss => (self.precision.dtype(), 1),
            TrainArray::Mask => (Dtype::Int32, 1),
        };
        ArraySpec { dtype, rows: self.train_set_size, columns }
    }

    /// What the gradients of an experiment's targets look like.
    pub fn target_grads(&self, num_targets: u64) -> ArraySpec {
        ArraySpec { dtype: self.precision.dtype(), rows: num_targets, columns: self.proj_dim }
    }

    /// What the mask of an experiment's targets looks like.
    pub fn target_mask(num_targets: u64) -> ArraySpec {
        ArraySpec { dtype: Dtype::Int32, rows: num_targets, columns: 1 }
    }

    /// What the scores of an experiment look like.
    pub fn scores(&self, num_targets: u64) -> ArraySpec {
        ArraySpec { dtype: self.precision.dtype(), rows: self.train_set_size, columns: num_targets }
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
    ///
    /// # Errors
    /// `Limit` beyond 2^63 elements.
    pub fn shape(&self) -> Result<Shape> {
        Shape::new(vec![self.rows, self.columns])
    }

    /// Bytes of its data.
    ///
    /// # Errors
    /// `Limit` beyond 2^63.
    pub fn len_bytes(&self) -> Result<u64> {
        self.shape()?.len_bytes(self.dtype)
    }
}

impl std::fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of shape [{},{}]", self.dtype, self.rows, self.columns)
    }
}

/// The four arrays about the train set that each model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrainArray {
    /// Projected gradients, a row a training example.
    Grads,
    /// One weight a training example.
    OutToLoss,
    /// What finalizing makes of all gradients.
    Features,
    /// Which rows of gradients and weights are done.
    Mask,
}

impl TrainArray {
    /// All four, in the order in which they are made.
    pub const ALL: [Self; 4] = [Self::Mask, Self::Grads, Self::OutToLoss, Self::Features];

    /// Its key in a tree, and in TRAK's `current_store`.
    pub fn key(self) -> &'static str {
        match self {
            Self::Grads => "grads",
            Self::OutToLoss => "out_to_loss",
            Self::Features => "features",
            Self::Mask => "is_featurized",
        }
    }

    /// Its file in the model's folder.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Grads => "grads.mmap",
            Self::OutToLoss => "out_to_loss.mmap",
            Self::Features => "features.mmap",
            Self::Mask => "_is_featurized.mmap",
        }
    }
}

/// The name of an experiment that can be the name of a file: not empty, no `/`, no NUL, not too
/// long, and not one of ours (`_targets_...`, `.regrow...`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExperimentName(String);

impl ExperimentName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// `InvalidArgument` with the reason.
    pub fn new(name: &str) -> Result<Self> {
        let longest = TARGETS_PREFIX.len() + name.len() + ARRAY_SUFFIX.len();
        let reason = if name.is_empty() {
            "it is empty"
        } else if name.contains(['/', '\0']) {
            "no file name can hold `/` or NUL"
        } else if name.starts_with(TARGETS_PREFIX) || name.starts_with(".regrow") {
            "names that begin so are taken"
        } else if longest > FILE_NAME_LEN_MAX_BYTES {
            "it is too long for the name of a file"
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(Error::invalid(format!("{name:?} cannot be the name of an experiment: {reason}"))
            .help("its arrays are files of that name; choose another one"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The targets' gradients, in a model's folder.
    pub fn grads_file(&self) -> String {
        format!("{}{GRADS_SUFFIX}", self.0)
    }

    /// Which targets are done, in a model's folder.
    pub fn targets_file(&self) -> String {
        format!("{TARGETS_PREFIX}{}{ARRAY_SUFFIX}", self.0)
    }

    /// The scores, below the store.
    pub fn scores_file(&self) -> String {
        format!("{SCORES_FOLDER}/{}{ARRAY_SUFFIX}", self.0)
    }

    /// The experiment whose targets' gradients a file of a model's folder holds.
    pub fn of_grads_file(file_name: &str) -> Option<Self> {
        Self::new(file_name.strip_suffix(GRADS_SUFFIX)?).ok()
    }

    /// The experiment of whose targets a file of a model's folder says which are done.
    pub fn of_targets_file(file_name: &str) -> Option<Self> {
        Self::new(file_name.strip_prefix(TARGETS_PREFIX)?.strip_suffix(ARRAY_SUFFIX)?).ok()
    }

    /// The experiment whose scores a file of `scores/` holds.
    pub fn of_scores_file(file_name: &str) -> Option<Self> {
        Self::new(file_name.strip_suffix(ARRAY_SUFFIX)?).ok()
    }
}

/// The file of a model's flags.
pub fn id_file(id: i64) -> String {
    format!("id_{id}.json")
}

/// The model's folder, and a file in it, below the store.
pub fn model_file(id: i64, file_name: &str) -> PathBuf {
    PathBuf::from(id.to_string()).join(file_name)
}

/// The model whose folder has this name: the ID as it is printed, and nothing else.
pub fn model_folder_id(name: &str) -> Option<i64> {
    name.parse().ok().filter(|id: &i64| id.to_string() == name)
}

/// What stands for the ID in the name of a file of flags, whether it is a number or not.
pub fn id_text(file_name: &str) -> Option<&str> {
    file_name.strip_prefix("id_")?.strip_suffix(".json")
}

/// An ID in decimal, as Python's `int()` reads it: blanks around it and leading zeros do no harm.
pub fn parse_id(text: &str) -> Option<i64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_experiments_are_names_of_files() {
        for name in ["val", "a b", "exp.v2", "ü", "..", "x_grads", "-1"] {
            let name = ExperimentName::new(name).unwrap();
            assert_eq!(ExperimentName::of_grads_file(&name.grads_file()), Some(name.clone()));
            assert_eq!(ExperimentName::of_targets_file(&name.targets_file()), Some(name.clone()));
            let scores = name.scores_file();
            assert_eq!(ExperimentName::of_scores_file(scores.strip_prefix("scores/").unwrap()), Some(name));
        }
        for name in ["", "no/dir", "../x", "a\0b", "_targets_a", ".regrow-tmp-1", &"x".repeat(242)] {
            let error = ExperimentName::new(name).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument, "{name:?}");
        }
        // Otherwise the mask of `a_grads` would be the gradients of `_targets_a`.
        let mask = ExperimentName::new("a_grads").unwrap().targets_file();
        assert_eq!(ExperimentName::of_grads_file(&mask), None);
    }

    #[test]
    fn ids_are_integers() {
        for (text, id) in [("-1", -1), ("1000000000000", 1_000_000_000_000), (" 007 ", 7), ("+3", 3)] {
            assert_eq!(parse_id(text), Some(id));
        }
        for text in ["", "x", "1.0", "0x1", "99999999999999999999"] {
            assert_eq!(parse_id(text), None);
        }
        assert_eq!(id_text(&id_file(-1)), Some("-1"));
    }
}
