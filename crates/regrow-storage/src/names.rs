//! Which file names belong to checkpoints, as the layouts define them. The storage uses them before
//! it replaces or removes a folder, and to find the files of a checkpoint without a listing.
//!
//! ```text
//! step_100/_METADATA      a marker: this folder is a checkpoint
//! step_100/d/3f2a         one of the checkpoint's own files
//! step_100/notes.txt      a foreign file: the folder is neither replaced nor removed
//! ```
//! The layouts are above the storage in the order of the crates. So the program registers the names
//! of the layouts once in a process, with [`tell_names`]. Before that, no folder with files in it
//! is replaced or removed.

use std::fmt::Debug;
use std::sync::OnceLock;

use crate::error::Result;
use crate::location::Location;
use crate::publication::{COMMITTED_MARKER, UNCOMMITTED_MARK};
use crate::side_files;
use crate::store::local::folders::LOCK_SUFFIX;

/// Network file systems rename a removed file that is still open; the new name begins with this.
const REMOVED_PREFIX: &str = ".nfs";

/// The search for foreign files ends when it has found more than this number.
const SHOWN_MAX: usize = 5;

/// The names of all layouts.
pub trait Names: Debug + Send + Sync {
    /// A folder with a file of one of these names is a checkpoint, and `overwrite` may replace it.
    fn markers(&self) -> &[&'static str];

    /// Files that another program writes into a new checkpoint folder before anything else.
    fn first_files(&self) -> &[&'static str];

    /// A checkpoint on a web server has a file of one of these names. Most checkpoints have the
    /// first.
    fn beginnings(&self) -> &[&'static str];

    /// Whether all these names are files of one checkpoint without a marker.
    fn are_of_one(&self, files: &[&str]) -> bool;

    /// The suffixes of a checkpoint that consists of two files, such as `run.data` and
    /// `run.manifest`.
    fn pair_suffixes(&self) -> &[&'static str];

    /// Returns a function that tells whether a name in the folder is part of the checkpoint.
    fn own_in<'f>(&self, folder: &'f Location) -> IsOwn<'f>;
}

/// A function that returns whether a name is part of the checkpoint.
pub type IsOwn<'f> = Box<dyn FnMut(&Name<'_>) -> Result<bool> + 'f>;

/// A name in the folder of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Name<'n> {
    /// The name.
    pub text: &'n str,
    /// Whether the name is a folder, and not a link to one.
    pub is_folder: bool,
}

static NAMES: OnceLock<&'static dyn Names> = OnceLock::new();

/// Registers the names of the layouts. Only the first call in a process has an effect.
#[inline]
pub fn tell_names(names: &'static dyn Names) {
    NAMES.get_or_init(|| names);
}

pub(crate) fn names() -> &'static dyn Names {
    #[cfg(test)]
    tell_names(&tests::Toy);
    NAMES.get().copied().unwrap_or(&Unknown)
}

/// The stem of a file of a checkpoint of two files: the name without its suffix. Both files have
/// the same stem.
pub fn stem_of(name: &str) -> &str {
    let stem = names().pair_suffixes().iter().find_map(|suffix| name.strip_suffix(suffix));
    stem.filter(|stem| !stem.is_empty()).unwrap_or(name)
}

/// Names in the folder of a checkpoint that are not part of the checkpoint. If there are more than
/// five, returns six of them.
///
/// # Errors
/// Errors of the storage.
pub fn foreign_files_in(folder: &Location) -> Result<Vec<String>> {
    let foreign = look_for_foreign_files(folder, SHOWN_MAX)?;
    match foreign.is_empty() {
        true => Ok(foreign),
        // Look again: another writer may have replaced the checkpoint, so that the first look
        // compared new files with the names of the old checkpoint.
        false => look_for_foreign_files(folder, SHOWN_MAX),
    }
}

pub(crate) fn all_foreign_files_in(folder: &Location) -> Result<Vec<String>> {
    look_for_foreign_files(folder, usize::MAX)
}

fn look_for_foreign_files(folder: &Location, count_max: usize) -> Result<Vec<String>> {
    let mut foreign = Vec::new();
    let mut is_own = names().own_in(folder);
    for entry in folder.entries()? {
        let text = entry.name.to_string_lossy();
        let name = Name { text: &text, is_folder: entry.is_real_folder() };
        if is_temporary(&text) || !name.is_folder && is_of_the_storage(&text) || is_own(&name)? {
            continue;
        }
        foreign.push(text.into_owned());
        if foreign.len() > count_max {
            break;
        }
    }
    foreign.sort();
    Ok(foreign)
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(REMOVED_PREFIX) || name.contains(UNCOMMITTED_MARK)
}

/// Whether a name is one that the storage itself adds to the folder of a checkpoint, for any
/// layout.
fn is_of_the_storage(name: &str) -> bool {
    name == COMMITTED_MARKER || name.ends_with(LOCK_SUFFIX) || side_files::is_in_folder(name)
}

/// The names of no layout: every file is foreign.
#[derive(Debug)]
struct Unknown;

impl Names for Unknown {
    fn markers(&self) -> &[&'static str] {
        &[]
    }

    fn first_files(&self) -> &[&'static str] {
        &[]
    }

    fn beginnings(&self) -> &[&'static str] {
        &[]
    }

    fn are_of_one(&self, files: &[&str]) -> bool {
        files.is_empty()
    }

    fn pair_suffixes(&self) -> &[&'static str] {
        &[]
    }

    fn own_in<'f>(&self, _folder: &'f Location) -> IsOwn<'f> {
        Box::new(|_| Ok(false))
    }
}

#[cfg(test)]
pub(crate) mod tests;
