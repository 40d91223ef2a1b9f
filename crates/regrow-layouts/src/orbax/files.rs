//! Reads small JSON files, up to a maximum length, and lists folders. Errors name the path.

use super::checkpoint_metadata::CHECKPOINT_METADATA_FILE;
use super::marker_files::{AGGREGATE_FILE, COMMIT_SUCCESS_FILE, JSON_FILE, MANIFEST_FILE, V1_MARKER_FILE};
use super::metadata::METADATA_FILE;
use super::sharding::SHARDING_FILE;
use super::strings::STRINGS_FILE;
use crate::{items_record, regrow};
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_base::error::Result;
use regrow_base::text::printable;
use regrow_storage::location::Location;

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub name: String,
    pub is_dir: bool,
    /// A symbolic link, to any target.
    pub is_link: bool,
}

/// Names that show the kind of a checkpoint or item, for storages that cannot list folders.
const KNOWN: [&str; 17] = [
    items_record::FILE_NAME,
    regrow::manifest::FILE_NAME,
    METADATA_FILE,
    CHECKPOINT_METADATA_FILE,
    V1_MARKER_FILE,
    MANIFEST_FILE,
    SHARDING_FILE,
    STRINGS_FILE,
    COMMIT_SUCCESS_FILE,
    AGGREGATE_FILE,
    "pytreedef.json",
    JSON_FILE,
    "data.json",
    "metrics",
    "proto.pbtxt",
    "jax_random_key",
    "np_random_key",
];

/// The entries of a folder, sorted by name. A storage without listings gives only the names in
/// [`KNOWN`]. Names that are not UTF-8 are left out: Orbax writes none.
pub(super) fn list(folder: &Location) -> Result<Vec<Listed>> {
    let entries = match folder.has_listings() {
        true => folder.entries()?,
        false => folder.those_there(&KNOWN)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let (is_dir, is_link) = (entry.is_folder(), entry.is_link);
        let Ok(name) = entry.name.into_string() else { continue };
        names.push(Listed { name, is_dir, is_link });
    }
    names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(names)
}

/// The bytes of a JSON file; `None` if there is no file of that name.
pub(super) fn read_small(file: &Location) -> Result<Option<Vec<u8>>> {
    file.read_document("a metadata file", Language::Json, JSON_LEN_MAX_BYTES)
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
