//! The pointer: a small file with the newest step of the current history, written after each save.
//!
//! The committed steps in the storage have priority: the step of the pointer must exist. If a list
//! of the folder costs one or two requests, the list is used. The pointer is used only in a bucket
//! with more steps than one request lists. There its writer reads the list when it begins, and so
//! keeps the pointer right.

use serde::{Deserialize, Serialize};

use super::records;
use crate::error::Result;
use crate::location::Location;

/// The file.
const NAME: &str = "latest.json";

/// From so many steps on a list takes several requests: S3, GCS and Azure give 1,000 to 5,000 names
/// at once.
const LISTED_AT_ONCE: usize = 1000;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pointer {
    /// The newest step.
    pub step: u64,
    /// The name in the folder.
    pub name: String,
    /// The number of steps at that time.
    pub step_count: usize,
    /// The turn of the current history, if its newest step has a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
}

impl Pointer {
    /// Reads the pointer of a folder; `None` if there is none.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(super) fn read(root: &Location) -> Result<Option<Self>> {
        records::read(root, NAME)
    }

    /// Makes it the pointer of a folder.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(super) fn write(&self, root: &Location) -> Result<()> {
        records::write(root, NAME, self)
    }

    /// Removes the pointer of a folder that has no step any more.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(super) fn remove(root: &Location) -> Result<()> {
        records::remove(root, NAME)
    }

    /// Whether the pointer avoids a list that takes several requests.
    pub(super) fn spares_a_list(&self, root: &Location) -> bool {
        root.commits_by_marker() && self.step_count >= LISTED_AT_ONCE
    }
}
