//! Replaces `archive` in a build without the feature. A `.tar` or `.zip` is an ordinary file, and
//! no path leads through it.

use crate::error::Result;
use crate::location::Location;

/// Never constructed: this build has no archives.
#[derive(Debug)]
pub enum ArchiveStorage {}

impl ArchiveStorage {
    pub(crate) fn file(&self) -> &Location {
        match *self {}
    }

    pub(crate) fn only_name(&self) -> Option<String> {
        match *self {}
    }
}

/// No path leads through an archive.
///
/// # Errors
/// None.
pub fn find(_at: &Location) -> Result<Option<Location>> {
    Ok(None)
}

/// No location is inside an archive.
///
/// # Errors
/// None.
pub fn refuse_inside(_target: &Location) -> Result<()> {
    Ok(())
}
