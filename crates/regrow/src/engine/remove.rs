//! Removes a checkpoint completely, and no other files.
//!
//! | a folder | on a disk | in a bucket |
//! |---|---|---|
//! | first | gives the folder a temporary name | writes a claim, removes the marker |
//! | then | removes the renamed folder | removes the objects, the claim last |
//! | if killed | the next save to the path removes the rest | the same |
//!
//! Single files keep their names: the side files are removed first, then the files one by one. A
//! file without its seal is a complete checkpoint, but a seal without its file is damage.
//!
//! As for an overwrite, a path without a checkpoint is an error, and so is a folder with other
//! files. Links are not followed, neither at the path nor in the folder.

use std::path::PathBuf;
use std::time::Duration;

use super::locked::Change;
use super::{SaveOptions, replace};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::siblings::{self, refuse_part};
use crate::formats::{formats, located};
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::seal::side_files_of;
use crate::storage::{Found, Removal, Removed, archive};

/// The options of a removal.
#[derive(Debug, Clone, Default)]
pub struct RemoveOptions {
    /// Removes the temporary files of an unfinished save or copy instead of a checkpoint.
    pub unfinished: bool,
    /// With `unfinished`: removes the files even if their writer may still run.
    pub force: bool,
    /// How long to wait for another process that changes the checkpoint, before the error `Busy`; a
    /// minute if `None`.
    pub wait: Option<Duration>,
}

/// The result of a removal.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RemoveReport {
    /// The path of the removed checkpoint.
    pub path: PathBuf,
    /// The number of removed files.
    pub file_count: usize,
    /// The bytes of the removed files.
    pub bytes: u64,
}

/// Removes the checkpoint at a path or URL; with [`unfinished`](RemoveOptions::unfinished), the
/// temporary files of an unfinished save to that path.
///
/// # Errors
/// `NotFound` if the path does not exist; `NotACheckpoint` for other files; `InvalidArgument` for a
/// folder of steps, for a folder with other files beside the checkpoint, for a part of a
/// checkpoint, for a link; `Uncommitted` for an unfinished save, without `unfinished`;
/// `AlreadyExists` if the writer of an unfinished save may live, without `force`; errors of the
/// storage. After an error the path has the complete checkpoint or no checkpoint. Only the side
/// files of single files may be missing, because they are removed first.
pub fn remove(path: impl ToLocation, options: &RemoveOptions) -> Result<RemoveReport> {
    let at = located(path)?;
    if archive::find(&at)?.is_some() {
        return Err(Error::unsupported("a file in an archive cannot be removed")
            .in_file(&at)
            .help("remove the archive itself"));
    }
    let removed = match options.unfinished {
        true => match at.remove_unfinished(options.force)? {
            Removed { is_finished: true, .. } => {
                return Err(Error::invalid(
                    "the unfinished save was complete: its writer was killed just before the rename",
                )
                .in_file(&at)
                .help(
                    "it is a checkpoint now: check it, and remove it as a checkpoint if you do not need \
                    it",
                ));
            }
            removed => removed,
        },
        false => {
            let change = Change { name: "remove", wait: options.wait, monitor: &Monitor::new() };
            let lock = change.lock(&at)?;
            at.remove(&check(&at)?, &lock)?
        }
    };
    Ok(RemoveReport { path: at.describe(), file_count: removed.file_count, bytes: removed.bytes })
}

/// Returns the files to remove, or an error unless the path holds one checkpoint and nothing else.
fn check(at: &Location) -> Result<Removal> {
    if at.is_link() {
        return Err(Error::invalid("the path is a link, and regrow does not remove its target")
            .in_file(at)
            .help("give the path of the checkpoint itself, or remove the link yourself"));
    }
    let reading = at.for_reading()?;
    let looked = reading.location.look()?;
    if looked.is_none() && !siblings::are_at(&reading.location)? {
        let source = std::io::Error::from_raw_os_error(2);
        return Err(Error::io("cannot remove the checkpoint", at, source));
    }
    let mut formats = formats().filter(|format| looked.is_some() || format.roles().siblings.is_some());
    let found = formats.find_map(|format| match format.recognise(&reading.location) {
        Ok(false) => None,
        Ok(true) => Some(Ok(format)),
        Err(error) => Some(Err(error)),
    });
    let Some(format) = found.transpose()? else {
        return Err(super::open(at).err().unwrap_or_else(|| {
            Error::new(ErrorKind::NotACheckpoint, "this is not a checkpoint").in_file(at)
        }));
    };
    replace::check_place(at, &SaveOptions::default())?;
    match (looked, format.roles().siblings) {
        (Some(Found::Folder), _) => {
            // A checkpoint that cannot be opened can still be removed.
            match super::open(at) {
                Ok(checkpoint) if !checkpoint.description().steps.is_empty() => {
                    return Err(Error::invalid("this is a folder of several checkpoints")
                        .in_file(at)
                        .help("give the path of one of them"));
                }
                Err(error) if matches!(error.kind(), ErrorKind::Uncommitted | ErrorKind::NotACheckpoint) => {
                    return Err(error);
                }
                _ => {}
            }
            Ok(Removal::Folder)
        }
        (_, Some(siblings)) => {
            let mut others = siblings.files_now(at);
            let main = others.pop();
            let files = main.into_iter().chain(others.into_iter().filter(Location::is_file)).collect();
            Ok(Removal::Files { files, beside: beside(at)? })
        }
        (Some(Found::File { .. }), None) => {
            refuse_part(at, "remove the files together, yourself")?;
            Ok(Removal::Files { files: vec![at.clone()], beside: beside(at)? })
        }
        _ => Err(Error::new(ErrorKind::NotACheckpoint, "this is not a checkpoint").in_file(at)),
    }
}

fn beside(at: &Location) -> Result<Vec<Location>> {
    let mut found = Vec::new();
    for file in side_files_of(at) {
        if let Some(Found::File { .. }) = file.look()? {
            found.push(file);
        }
    }
    Ok(found)
}
