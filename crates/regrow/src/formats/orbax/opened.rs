//! A pytree that was opened, in whichever age's layout.

use serde_json::Value;

use super::slot::Slot;
use crate::location::Location;
use crate::tree::Tree;

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
    /// The folder of its database, if it has one.
    pub database: Option<Location>,
    /// The `regrow.json` that regrow wrote beside it, if that is gone.
    pub lost_manifest: Option<Location>,
}

impl Opened {
    /// A tree of which there is nothing more to say.
    pub fn new(tree: Tree<Slot>, variant: &str) -> Self {
        Self {
            tree,
            custom_metadata: None,
            variant: variant.to_owned(),
            notes: Vec::new(),
            warnings: Vec::new(),
            database: None,
            lost_manifest: None,
        }
    }
}
