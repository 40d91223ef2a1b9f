//! Files that desktop programs write into folders. They belong neither to the user nor to a
//! checkpoint.
//!
//! Listings omit them, and they are deleted together with a removed or replaced checkpoint.

use crate::Entry;

/// Of macOS and of Windows.
const NAMES: [&str; 3] = [".DS_Store", "Thumbs.db", "desktop.ini"];

/// How macOS names what it knows of a file beside the file, on disks of other systems.
const COMPANION_PREFIX: &str = "._";

/// Whether a file of this name is one of them.
pub fn is_desktop_file(name: &str) -> bool {
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known)) || name.starts_with(COMPANION_PREFIX)
}

/// Whether this is one of them: a folder is not.
pub fn is_desktop_entry(entry: &Entry) -> bool {
    entry.is_file() && entry.name.to_str().is_some_and(is_desktop_file)
}
