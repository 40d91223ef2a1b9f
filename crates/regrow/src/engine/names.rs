//! The names of the files of a checkpoint's folder.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::formats::UNCOMMITTED_MARK;
use crate::location::Location;
use crate::storage::{EntryKind, is_bookkeeping, is_desktop_file};
use crate::store::Store;
use crate::store::local::folders::LOCK_SUFFIX;

/// The most levels of folders. A deeper folder is probably a link that leads back to itself.
const DEPTH_MAX: usize = 64;

/// The prefix that a network file system gives to files that were removed while open.
const REMOVED_PREFIX: &str = ".nfs";

pub(in crate::engine) fn is_left_out(name: &str) -> bool {
    name.contains(UNCOMMITTED_MARK)
        || name.ends_with(LOCK_SUFFIX)
        || name.starts_with(REMOVED_PREFIX)
        || is_bookkeeping(name)
}

/// The files below the folder `at`, as sorted paths relative to `at`, without bookkeeping. `store`
/// is the store of the folder, and lists its keys if the folder is not on a disk.
pub(super) fn names_in(at: &Location, store: &dyn Store) -> Result<Vec<String>> {
    let names = match at.local_path() {
        Ok(_) => {
            let mut names = BTreeSet::new();
            walk(at, "", 0, &mut names)?;
            names
        }
        Err(_) => {
            let text = |key: Vec<u8>| String::from_utf8(key).map_err(|_| not_text(&at.describe()));
            store.list(b"")?.into_iter().map(text).collect::<Result<_>>()?
        }
    };
    // Compare only the last part of the path: a leaf's folder may have a desktop file's name.
    let is_of_a_desktop = |name: &String| is_desktop_file(name.rsplit('/').next().unwrap_or(name));
    let is_part = |name: &String| !name.split('/').any(is_left_out) && !is_of_a_desktop(name);
    Ok(names.into_iter().filter(is_part).collect())
}

/// Refuses a folder below `at` that is a link: the link may lead to files of another owner, which
/// must not be written.
pub(super) fn check_no_links(at: &Location) -> Result<()> {
    if at.local_path().is_err() {
        return Ok(());
    }
    for entry in at.entries()?.into_iter().filter(|entry| entry.found == EntryKind::Folder) {
        let below = at.join(&entry.name);
        if entry.is_link {
            return Err(Error::unsupported("a folder of the checkpoint is a link")
                .in_file(below)
                .help("replace the link by the folder itself: a repair would change the linked folder"));
        }
        check_no_links(&below)?;
    }
    Ok(())
}

/// Adds the files below a folder on a disk. Follows links, as readers do.
fn walk(at: &Location, below: &str, depth: usize, names: &mut BTreeSet<String>) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::Limit, "the folders are nested too deep, or a link leads back")
            .in_file(at)
            .expected(format_args!("at most {DEPTH_MAX} folders"), "more"));
    }
    for entry in at.entries()? {
        let name = entry.name.to_str().ok_or_else(|| not_text(&at.join(&entry.name).describe()))?;
        if is_left_out(name) {
            continue;
        }
        let path = format!("{below}{name}");
        match entry.found {
            EntryKind::Folder => walk(&at.join(name), &format!("{path}/"), depth + 1, names)?,
            EntryKind::File => drop(names.insert(path)),
            EntryKind::Other => {
                return Err(Error::unsupported(
                    "an entry of the folder is neither a regular file nor a folder",
                )
                .in_file(at.join(name))
                .help("remove it: it is a pipe, a device, or a link that leads nowhere"));
            }
        }
    }
    Ok(())
}

pub(super) fn not_text(file: &Path) -> Error {
    Error::unsupported("a file of the checkpoint has a name that is not UTF-8").in_file(file)
}
