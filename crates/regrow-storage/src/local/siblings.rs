//! Several files that are one checkpoint: `model.data` and `model.manifest`.
//!
//! No system call gives two names at once. So the last file makes the checkpoint: without it,
//! readers ignore the others. It is removed first and written last:
//!
//! ```text
//! write    tmp/.regrow-0/model.data  tmp/.regrow-1/model.manifest
//! commit   fsync both -> take the lock -> make tmp/.regrow-replaced, and sync the folders above it
//!          model.manifest -> tmp/.regrow-replaced      from here on the new files are the checkpoint, wherever they are
//!          model.data     -> tmp/.regrow-replaced
//!          tmp/.regrow-0/model.data     -> model.data
//!          tmp/.regrow-1/model.manifest -> model.manifest
//! ```
//! So a manifest is never found together with the data of another save. Each step is synced before
//! the next. If the writer dies between the steps, all new files are complete, with their own names
//! or in the temporary folder. A reader finds them there ([`where_is`]), and the next save to the
//! same target does the remaining steps ([`finish`]). If a step fails, all steps are undone. If
//! this fails too, the files stay where they are, as after a kill, and the error is `NotDurable`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::rename::{keep_owner_and_mode, rename_new};
use super::temporary::split;
use crate::error::{Error, ErrorKind, Result};
use crate::store::local::folders::sync_folder;
use crate::system::{give_to_owner_of, mode_of, set_mode_or_less};

/// The folder for replaced files, below the temporary folder. A commit makes it before the first
/// move. No leaf of a folder checkpoint can get this name.
const REPLACED: &str = ".regrow-replaced";

/// The path of file number `at` below the temporary folder, before the commit.
pub(super) fn staged_path(folder: &Path, at: usize, target: &Path) -> PathBuf {
    folder.join(format!(".regrow-{at}")).join(target.file_name().unwrap_or_default())
}

/// The files that still have their temporary names; `None` for a file that was moved.
fn staged_files(staged: &Path) -> io::Result<Vec<Option<PathBuf>>> {
    let mut files = Vec::new();
    loop {
        match fs::read_dir(staged.join(format!(".regrow-{}", files.len()))) {
            Ok(mut entries) => files.push(entries.next().transpose()?.map(|entry| entry.path())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
            Err(error) => return Err(error),
        }
    }
}

/// The paths of the files of a checkpoint: `stem` with each suffix appended.
///
/// # Errors
/// `InvalidArgument` for a suffix that leads to another folder, or if two suffixes are equal.
pub(super) fn targets(stem: &Path, suffixes: &[String]) -> Result<Vec<PathBuf>> {
    let mut out: Vec<PathBuf> = Vec::with_capacity(suffixes.len());
    for suffix in suffixes {
        if suffix.contains(['/', '\0']) {
            return Err(Error::invalid(format!("the suffix {suffix:?} points to another folder")));
        }
        let mut target = OsString::from(stem);
        target.push(suffix);
        if out.contains(&target.clone().into()) {
            return Err(Error::invalid(format!("two files have the suffix {suffix:?}")));
        }
        out.push(target.into());
    }
    match out.is_empty() {
        true => Err(Error::invalid("the checkpoint needs at least one file")),
        false => Ok(out),
    }
}

/// The staged files of a checkpoint, and their names.
pub(super) struct Names<'s> {
    /// The temporary folder.
    pub(super) folder: &'s Path,
    /// The path of the checkpoint, without suffix.
    pub(super) absolute: &'s Path,
    pub(super) targets: &'s [PathBuf],
    pub(super) is_durable: bool,
    /// Whether the commit replaces a checkpoint.
    pub(super) has_old: bool,
}

/// Gives the staged files their names. The caller has the lock of the target. If a move fails, all
/// moves are undone. Tests end the commit after `moves_max` moves.
///
/// # Errors
/// `NotDurable` if the undo fails too: the temporary folder must stay. Errors of the file system.
pub(super) fn take_names(names: &Names<'_>, moves_max: usize) -> Result<()> {
    let &Names { folder, absolute, targets, is_durable, has_old } = names;
    let (parent, _) = split(absolute)?;
    let aside = folder.join(REPLACED);
    let new: Vec<PathBuf> =
        targets.iter().enumerate().map(|(at, target)| staged_path(folder, at, target)).collect();
    let mut done: Vec<(&Path, PathBuf)> = Vec::new();
    let mut take_all = || -> io::Result<()> {
        for (target, new) in targets.iter().zip(&new) {
            match keep_owner_and_mode(target, new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        open_to_readers(folder, &new)?;
        fs::create_dir(&aside)?;
        if is_durable && has_old {
            // The old files move into this folder, so its name must be on the disk first.
            sync_folder(folder)?;
            sync_folder(parent)?;
        }
        // The last file makes the checkpoint, so it moves aside first.
        let olds = targets.iter().rev().map(|old| (&**old, aside.join(old.file_name().unwrap_or_default())));
        let news = new.iter().zip(targets).map(|(new, target)| (&**new, target.clone()));
        for (at, (from, to)) in olds.chain(news).enumerate() {
            if at == moves_max {
                return Err(io::Error::other("the process died"));
            }
            match rename_new(from, &to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && at < targets.len() => continue,
                moved => moved?,
            }
            done.push((from, to));
            if is_durable {
                sync_folder(parent)?;
            }
        }
        Ok(())
    };
    let Err(error) = take_all() else { return Ok(()) };
    // An error may be temporary, so try twice.
    let undo = |(from, to): &(&Path, PathBuf)| rename_new(to, from).or_else(|_| rename_new(to, from));
    let failed = Error::io("cannot give the checkpoint its name", absolute, error);
    if moves_max >= 2 * targets.len() && done.iter().rev().try_for_each(undo).is_ok() {
        return Err(failed);
    }
    // Readers find the files in the folder, as after a kill.
    Err(failed.of_kind(ErrorKind::NotDurable).help(format!(
        "the new checkpoint can be opened; some of its files are still in {}, and the next save to this path \
         moves them. The old checkpoint is in {}",
        folder.display(),
        aside.display()
    )))
}

/// Lets other users read the temporary folder, if they may read all files in it. If the writer dies
/// between two steps, these users read the files there.
fn open_to_readers(staged: &Path, files: &[PathBuf]) -> io::Result<()> {
    let mut readable = 0o777;
    for file in files {
        let found = fs::metadata(file)?;
        readable &= mode_of(&found);
        let _ = give_to_owner_of(&found, staged);
    }
    // Users with permission to read (4) all files may read and enter (5) the folder.
    set_mode_or_less(staged, 0o700 | (((readable >> 2) & 0o011) * 5))
}

/// Finishes the commit of a dead writer. Returns `false`, with nothing changed, if the commit had
/// not begun or a checkpoint is already there. `staged` is the dead writer's temporary folder. The
/// caller has the lock of the target.
///
/// # Errors
/// Errors of the file system; the folder must then stay as it is.
pub(super) fn finish(staged: &Path, parent: &Path) -> io::Result<bool> {
    let waiting: Vec<PathBuf> = staged_files(staged)?.into_iter().flatten().collect();
    let names: Vec<_> = waiting.iter().filter_map(|path| path.file_name()).collect();
    let Some(last) = names.last().filter(|_| has_begun(staged)) else { return Ok(false) };
    if fs::symlink_metadata(parent.join(last)).is_ok() {
        return Ok(false);
    }
    for (from, name) in waiting.iter().zip(&names) {
        let to = parent.join(name);
        match rename_new(from, &to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // The dead writer did not move this file of the old checkpoint aside.
                rename_new(&to, &staged.join(REPLACED).join(name))?;
                rename_new(from, &to)?;
            }
            moved => moved?,
        }
        sync_folder(parent)?;
    }
    Ok(true)
}

/// Whether the commit of the temporary folder `staged` has moved any file.
pub(super) fn has_begun(staged: &Path) -> bool {
    let Ok(mut replaced) = fs::read_dir(staged.join(REPLACED)) else { return false };
    // A folder that cannot be listed may have files that no other place has.
    replaced.next().is_some() || !matches!(staged_files(staged).as_deref(), Ok([] | [Some(_), ..]))
}

/// Whether a commit has begun and its last file, which makes the checkpoint, is still in the
/// temporary folder. False if the commit succeeded and only the removal of the folder is missing.
pub(super) fn is_waiting(staged: &Path) -> bool {
    has_begun(staged) && matches!(staged_files(staged).as_deref(), Ok([.., Some(_)]))
}

/// The path of a file of a checkpoint whose writer died between two steps: its own path, or a path
/// among the staged files.
pub fn where_is(target: &Path, staged: &Path) -> PathBuf {
    let files = staged_files(staged).unwrap_or_default().into_iter().flatten();
    let mut files = files.filter(|path| path.file_name() == target.file_name());
    files.next().unwrap_or_else(|| target.to_owned())
}

/// Marks a temporary folder as one whose commit has not begun, unless replaced files are in it.
/// Without this, a half-removed folder would look like a begun commit.
pub(super) fn forget(staged: &Path) -> io::Result<()> {
    match fs::remove_dir(staged.join(REPLACED)) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
            Ok(())
        }
        removed => removed,
    }
}

#[cfg(test)]
mod tests;
