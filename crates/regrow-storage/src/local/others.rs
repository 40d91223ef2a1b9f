//! Files of a user in a checkpoint's folder that an overwrite keeps: the new folder gets links to
//! them.
//!
//! Until the commit the files are also in the old folder, so a kill loses no file.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use super::sync_folder;
use super::target::holds_checkpoint;
use crate::UNCOMMITTED_MARK;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::names::all_foreign_files_in;
use crate::system;

/// Greatest depth of the user's folders.
const DEPTH_MAX: usize = 32;

/// Links the user's files in the folder `target` into the folder `staged`, which replaces it.
///
/// # Errors
/// `AlreadyExists` if the new checkpoint has a file of the same name; `InvalidArgument` for
/// anything except files and folders; errors of the system.
pub fn keep_others(target: &Path, staged: &Path, durable: bool) -> Result<()> {
    let names = match holds_checkpoint(target) {
        true => all_foreign_files_in(&Location::local(target))
            .map(|names| names.into_iter().map(OsString::from).collect()),
        false => names_in(target),
    };
    match names {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        names => names?.iter().try_for_each(|name| keep(&target.join(name), &staged.join(name), durable, 0)),
    }
}

fn names_in(folder: &Path) -> Result<Vec<OsString>> {
    let cannot_list = |error| Error::io("cannot list", folder, error);
    let entries = fs::read_dir(folder).map_err(cannot_list)?;
    let names: io::Result<Vec<OsString>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let mut names = names.map_err(cannot_list)?;
    names.retain(|name| !name.to_string_lossy().contains(UNCOMMITTED_MARK));
    Ok(names)
}

fn keep(from: &Path, to: &Path, durable: bool, depth: usize) -> Result<()> {
    let kind = fs::symlink_metadata(from).map_err(|error| Error::io("cannot look at", from, error))?;
    if fs::symlink_metadata(to).is_ok() {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            "a file of the checkpoint and a side file have the same name",
        )
        .in_file(from)
        .help("move it elsewhere, or save to another path"));
    }
    if kind.is_file() {
        return link_or_copy(from, to, durable)
            .map_err(|error| Error::io("cannot keep the file", from, error));
    }
    if !kind.is_dir() || depth > DEPTH_MAX {
        return Err(Error::invalid("an overwrite can keep only files and folders")
            .in_file(from)
            .expected("files and folders", if kind.is_symlink() { "a link" } else { "something else" })
            .help("move it elsewhere, or save to another path"));
    }
    fs::create_dir(to).map_err(|error| Error::io("cannot make the folder", to, error))?;
    for name in names_in(from)? {
        keep(&from.join(&name), &to.join(&name), durable, depth + 1)?;
    }
    if durable { sync_folder(to) } else { Ok(()) }
}

/// Links a file, which costs no space. On file systems without hard links, copies it.
fn link_or_copy(from: &Path, to: &Path, durable: bool) -> io::Result<()> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)?;
    if durable { system::sync_at(to) } else { Ok(()) }
}
