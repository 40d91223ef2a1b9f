//! Files that desktop programs write into folders. They belong neither to the user nor to a
//! checkpoint.
//!
//! Listings omit them, and they are deleted together with a removed or replaced checkpoint.

use crate::Entry;

/// Files of macOS (the first) and Windows.
const NAMES: [&str; 3] = [".DS_Store", "Thumbs.db", "desktop.ini"];

/// On disks of other systems, macOS writes metadata of a file into a second file with this prefix.
const COMPANION_PREFIX: &str = "._";

/// Whether a file of this name belongs to a desktop program.
pub fn is_desktop_file(name: &str) -> bool {
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known)) || name.starts_with(COMPANION_PREFIX)
}

/// Whether an entry is a file of a desktop program. A folder with such a name is not.
pub fn is_desktop_entry(entry: &Entry) -> bool {
    entry.is_file() && entry.name.to_str().is_some_and(is_desktop_file)
}
