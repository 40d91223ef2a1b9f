//! An opened pytree, in a layout of any age.

use serde_json::Value;

use super::slot::Slot;
use crate::options::OpenOptions;
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
use regrow_tree::tree::Tree;

/// How much of a checkpoint has to be there for it to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it.
    Whole,
    /// All of it but the tree, which the caller's template gives: arrays and texts by their names.
    Named,
    /// What is left: leaves and items that cannot be opened are lost, and what says nothing of
    /// leaves may be missing.
    Intact,
    /// The same where the tree is lost, too: arrays by their names.
    Arrays,
}

impl Wanted {
    /// What these options ask for.
    pub fn of(options: &OpenOptions) -> Self {
        match (options.salvage, options.arrays_only) {
            (false, _) if options.by_names => Self::Named,
            (false, _) => Self::Whole,
            (true, false) => Self::Intact,
            (true, true) => Self::Arrays,
        }
    }

    /// Whether a part that cannot be read is an error.
    pub fn is_strict(self) -> bool {
        matches!(self, Self::Whole | Self::Named)
    }

    /// The result, or the error if that is one that a part may be lost by.
    ///
    /// # Errors
    /// All other errors; every error if all is wanted.
    pub fn or_lost<T>(self, result: Result<T>) -> Result<std::result::Result<T, Error>> {
        match result {
            Ok(value) => Ok(Ok(value)),
            Err(error) if !self.is_strict() && error.kind().is_damage() => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }
}

/// An opened pytree.
#[derive(Debug)]
pub(super) struct Opened {
    pub tree: Tree<Slot>,
    pub custom_metadata: Option<Value>,
    /// How it is stored, in words.
    pub variant: String,
    pub notes: Vec<String>,
    /// What is missing of it, though it can be read.
    pub warnings: Vec<String>,
    /// The folders of its databases.
    pub databases: Vec<Location>,
    /// Whether the tree was made of the names of arrays.
    pub is_guessed: bool,
    /// The `regrow.json` that regrow wrote beside it, if that is gone.
    pub lost_manifest: Option<Location>,
}

impl Opened {
    /// A tree without more details.
    pub fn new(tree: Tree<Slot>, variant: &str) -> Self {
        Self {
            tree,
            custom_metadata: None,
            variant: variant.to_owned(),
            notes: Vec::new(),
            warnings: Vec::new(),
            databases: Vec::new(),
            is_guessed: false,
            lost_manifest: None,
        }
    }
}
