//! Checkpoints that are several files with one stem: the path `model` stands for `model.data` and
//! `model.manifest`. No file has the name of the path.

use super::{Format, FormatExt, Siblings, formats};
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;

/// The layouts whose checkpoints are several files with one stem.
pub fn layouts() -> impl Iterator<Item = (&'static dyn Format, &'static dyn Siblings)> {
    formats().filter_map(|format| Some((format, format.roles().siblings?)))
}

/// For each such layout, the current path of the file that describes the others.
pub fn main_files(at: &Location) -> impl Iterator<Item = Location> {
    layouts().filter_map(|(_, siblings)| siblings.files_now(at).pop())
}

/// Whether a path is the stem of such a checkpoint, or one of its files.
///
/// # Errors
/// Errors of the storage.
pub fn are_at(at: &Location) -> Result<bool> {
    for (format, _) in layouts() {
        if format.recognise(at)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The stem of a file name; `None` unless a file with this name describes the others.
pub fn stem_of(name: &str) -> Option<&str> {
    let stem = |(format, _): (&dyn Format, _)| name.strip_suffix(format.file_names().pair_suffixes.last()?);
    layouts().find_map(stem).filter(|stem| !stem.is_empty())
}

/// Returns an error for a file that is one of several files of a checkpoint.
///
/// # Errors
/// `InvalidArgument`, with `help`.
pub fn refuse_part(at: &Location, help: &str) -> Result<()> {
    match formats().any(|format| format.is_part(at)) {
        true => Err(Error::invalid("the checkpoint has several files, and this is one of them")
            .in_file(at)
            .help(help)),
        false => Ok(()),
    }
}
