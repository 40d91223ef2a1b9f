//! Replaces `archive` in a build without the feature: a path to or through an archive is an error.

use crate::error::{Error, Result};
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

/// Returns `None`, or an error if the path is an archive or leads through one.
///
/// # Errors
/// `Unsupported`; errors of the storage.
pub fn find(at: &Location) -> Result<Option<Location>> {
    for file in std::iter::once(at.clone()).chain(at.folders_above()) {
        let name = file.name_text().to_ascii_lowercase();
        let is_named_so = name.ends_with(".tar") || name.ends_with(".zip");
        if is_named_so && file.is_file() && begins_archive(&file.read_beginning(512)?.unwrap_or_default()) {
            return Err(Error::unsupported("this is an archive; this build lacks the feature `archive`")
                .in_file(&file)
                .help("build regrow with the feature `archive`, or unpack the archive"));
        }
    }
    Ok(None)
}

fn begins_archive(beginning: &[u8]) -> bool {
    let is_zip = [b"PK\x03\x04", b"PK\x05\x06"].iter().any(|magic| beginning.starts_with(*magic));
    is_zip || beginning.get(257..262) == Some(b"ustar")
}

/// No location is inside an archive.
///
/// # Errors
/// None.
pub fn refuse_inside(_target: &Location) -> Result<()> {
    Ok(())
}
