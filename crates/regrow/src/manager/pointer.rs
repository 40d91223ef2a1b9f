//! The pointer: a small file with the newest step of the current history, written after each save.
//!
//! The committed steps in the storage have priority: the step in the pointer must exist. On a disk
//! readers list the folder. In a bucket with more steps than one request can list, the pointer
//! replaces the list. In a bucket with fewer steps, a reader lists the names and reads the highest
//! step. If this step and the pointer have the same turn, the reader reads no other step. A writer
//! lists the folder when it starts, and then corrects the pointer.

use serde::{Deserialize, Serialize};

use super::records;
use crate::error::Result;
use crate::location::Location;

const NAME: &str = "latest.json";

/// With this many steps a list takes several requests: S3, GCS and Azure return 1,000 to 5,000
/// names at once.
const LISTED_AT_ONCE: usize = 1000;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pointer {
    pub step: u64,
    pub name: String,
    /// The number of steps when the pointer was written.
    pub step_count: usize,
    /// The turn of the current history, if its newest step has a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
}

impl Pointer {
    /// Reads the pointer of a folder; `None` if there is none.
    pub(super) fn read(root: &Location) -> Result<Option<Self>> {
        records::read(root, NAME)
    }

    pub(super) fn write(&self, root: &Location) -> Result<()> {
        records::write(root, NAME, self)
    }

    /// Removes the pointer of a folder that has no steps any more.
    pub(super) fn remove(root: &Location) -> Result<()> {
        records::remove(root, NAME)
    }

    /// Whether the pointer avoids a list that takes several requests.
    pub(super) fn spares_a_list(&self, root: &Location) -> bool {
        root.commits_by_marker() && self.step_count >= LISTED_AT_ONCE
    }
}
