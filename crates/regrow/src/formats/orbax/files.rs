//! Small files and folder listings, with bounds and with errors that name the file.

use std::fs;
use std::path::Path;

use crate::bytes::glance::Language;
use crate::bytes::limits::JSON_LEN_MAX_BYTES;
use crate::error::{Error, Result};
use crate::store::read_document;
use crate::text::printable;

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub name: String,
    pub is_dir: bool,
    /// A symbolic link, whatever it leads to.
    pub is_link: bool,
}

/// What is in a folder, sorted by name. Names that are no UTF-8 are left out: Orbax writes none.
///
/// # Errors
/// What the file system says.
pub(super) fn list(folder: &Path) -> Result<Vec<Listed>> {
    let cannot = |error| Error::io("cannot list the folder", folder, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let kind = entry.file_type().map_err(cannot)?;
        let is_dir = if kind.is_symlink() { entry.path().is_dir() } else { kind.is_dir() };
        names.push(Listed { name, is_dir, is_link: kind.is_symlink() });
    }
    names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(names)
}

/// The bytes of a JSON file; `None` if there is no file of that name.
///
/// # Errors
/// As [`read_document`].
pub(super) fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    read_document(path, "a metadata file", Language::Json, JSON_LEN_MAX_BYTES)
}

/// A few names of a listing, for messages: `a, b/, … (12 in all)`.
pub(super) fn some_names(listed: &[Listed]) -> String {
    const SHOWN: usize = 6;
    if listed.is_empty() {
        return "nothing".to_owned();
    }
    let names: Vec<String> = listed
        .iter()
        .take(SHOWN)
        .map(|entry| format!("{}{}", printable(&entry.name), if entry.is_dir { "/" } else { "" }))
        .collect();
    let more = if listed.len() > SHOWN { format!(", … ({} in all)", listed.len()) } else { String::new() };
    names.join(", ") + &more
}
