//! An opened pytree, in the layout of any Orbax version.

use serde_json::Value;

use super::slot::Slot;
use crate::options::OpenOptions;
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
use regrow_tree::tree::Tree;

/// The parts of a checkpoint that must be readable when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    /// All parts. But if `_METADATA` is missing, the caller's template gives the tree, and arrays
    /// and texts are opened by their names.
    Named,
    /// The tree. Leaves and items that cannot be opened count as lost. Other documents may be
    /// missing.
    Intact,
    /// Nothing but arrays, by their names: the tree may be lost, too.
    Arrays,
}

impl Wanted {
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

    /// The value, or the inner error of a part that may be lost.
    ///
    /// # Errors
    /// All other errors; every error if all parts are required.
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
    pub variant: String,
    pub notes: Vec<String>,
    /// Warnings about missing parts of a readable pytree.
    pub warnings: Vec<String>,
    pub databases: Vec<Location>,
    /// Whether the tree was built from the names of arrays.
    pub is_guessed: bool,
    /// The path of the `regrow.json` that regrow wrote beside the pytree, if it is missing.
    pub lost_manifest: Option<Location>,
}

impl Opened {
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
