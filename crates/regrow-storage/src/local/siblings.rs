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

use super::rename::{keep_owner_and_mode, rename_new_under_lock};
use crate::error::{Error, ErrorKind, Result};
use crate::store::local::folders::sync_folder;
use crate::system::{give_to_owner_of, mode_of, set_mode_or_less};

/// The folder for replaced files, below the temporary folder. A commit makes it before the first
/// move. No leaf of a folder checkpoint can get this name.
const REPLACED: &str = ".regrow-replaced";

/// The path of file number `at` below the temporary folder, before the commit.
pub(super) fn staged_path(folder: &Path, at: usize, target: &Path) -> PathBuf {
    staged_folder(folder, at).join(target.file_name().unwrap_or_default())
}

fn staged_folder(folder: &Path, at: usize) -> PathBuf {
    folder.join(format!(".regrow-{at}"))
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
        let mut name = OsString::from(stem.file_name().unwrap_or_default());
        name.push(suffix);
        let target = stem.with_file_name(name);
        if out.contains(&target) {
            return Err(Error::invalid(format!("two files have the suffix {suffix:?}")));
        }
        out.push(target);
    }
    match out.is_empty() {
        true => Err(Error::invalid("the checkpoint needs at least one file")),
        false => Ok(out),
    }
}

/// Moves files, and records the moves so that they can be undone.
struct Moves<'a> {
    /// The folder of the targets, synced after each move.
    parent: &'a Path,
    done: Vec<(PathBuf, PathBuf)>,
    durable: bool,
    /// The number of moves before a simulated kill. Only tests limit it.
    left: usize,
}

impl Moves<'_> {
    fn take(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if self.left == 0 {
            return Err(io::Error::other(Died));
        }
        self.left -= 1;
        rename_new_under_lock(from, to)?;
        self.done.push((from.to_owned(), to.to_owned()));
        if self.durable { sync_folder(self.parent) } else { Ok(()) }
    }

    /// Undoes all moves, the last one first.
    fn undo(&self) -> io::Result<()> {
        self.done.iter().rev().try_for_each(|(from, to)| {
            // An error may be temporary, so try twice.
            rename_new_under_lock(to, from).or_else(|_| rename_new_under_lock(to, from))
        })
    }
}

/// A test ends a commit with this error, as if the process had died.
#[derive(Debug)]
struct Died;

impl std::fmt::Display for Died {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the process died")
    }
}

impl std::error::Error for Died {}

/// The error of a commit, and whether its temporary folder must stay.
pub(super) struct Failed {
    pub error: Error,
    /// Whether the temporary folder must stay, because it holds files that could not be moved back.
    pub keep: bool,
}

/// Gives the staged files their names. The caller has the lock of the target. `check` decides
/// whether the existing files may be replaced.
pub(super) fn take_names(
    staged: &Path,
    targets: &[PathBuf],
    durable: bool,
    check: &dyn Fn() -> Result<()>,
) -> std::result::Result<(), Failed> {
    take_names_until(staged, targets, durable, check, usize::MAX)
}

pub(super) fn take_names_until(
    staged: &Path,
    targets: &[PathBuf],
    durable: bool,
    check: &dyn Fn() -> Result<()>,
    moves: usize,
) -> std::result::Result<(), Failed> {
    let unchanged = |error| Failed { error, keep: false };
    let Some(parent) = targets.first().and_then(|target| target.parent()) else {
        return Err(unchanged(Error::invalid("no file is staged")));
    };
    check().map_err(unchanged)?;
    let aside = staged.join(REPLACED);
    let mut moves = Moves { parent, done: Vec::new(), durable, left: moves };
    let mut take_all = || -> io::Result<()> {
        for (at, target) in targets.iter().enumerate() {
            match keep_owner_and_mode(target, &staged_path(staged, at, target)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        open_to_readers(staged, targets)?;
        fs::create_dir(&aside)?;
        if durable && targets.iter().any(|target| fs::symlink_metadata(target).is_ok()) {
            // The old files move into this folder, so its name must be on the disk first.
            sync_folder(staged)?;
            sync_folder(parent)?;
        }
        // The last file makes the checkpoint, so it moves aside first.
        for target in targets.iter().rev() {
            let Some(name) = target.file_name() else { continue };
            match moves.take(target, &aside.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        targets
            .iter()
            .enumerate()
            .try_for_each(|(at, target)| moves.take(&staged_path(staged, at, target), target))
    };
    let Err(error) = take_all() else { return Ok(()) };
    let died = error.get_ref().is_some_and(|inner| inner.is::<Died>());
    let keep = died || moves.undo().is_err();
    let first = targets.first().map(PathBuf::as_path).unwrap_or(parent);
    let failed = Error::io("cannot give the checkpoint its name", first, error);
    Err(Failed {
        error: match keep {
            // Readers find the files in the folder, as after a kill.
            true => failed.of_kind(ErrorKind::NotDurable).help(format!(
                "the new checkpoint can be opened; some of its files are still in {}, and the next save to this path moves them. The old checkpoint is in {}",
                staged.display(),
                aside.display()
            )),
            false => failed,
        },
        keep,
    })
}

/// Lets other users read the temporary folder, if they may read all files in it. If the writer dies
/// between two steps, these users read the files there.
fn open_to_readers(staged: &Path, targets: &[PathBuf]) -> io::Result<()> {
    let (mut readable, mut owner) = (0o777, None);
    for (at, target) in targets.iter().enumerate() {
        let file = fs::metadata(staged_path(staged, at, target))?;
        readable &= mode_of(&file);
        owner = Some(file);
    }
    if let Some(owner) = owner {
        let _ = give_to_owner_of(&owner, staged);
    }
    let class = |read: u32, look: u32| if readable & read == 0 { 0 } else { look };
    set_mode_or_less(staged, 0o700 | class(0o040, 0o050) | class(0o004, 0o005))
}

/// Finishes the commit of a dead writer. Returns `false`, with nothing changed, if the commit had
/// not begun or a checkpoint is already there. `staged` is the dead writer's temporary folder. The
/// caller has the lock of the target.
///
/// # Errors
/// Errors of the file system; the folder must then stay as it is.
pub(super) fn finish(staged: &Path, parent: &Path) -> io::Result<bool> {
    if !has_begun(staged) {
        return Ok(false);
    }
    let waiting = waiting(staged)?;
    let Some(last) = waiting.last().and_then(|path| path.file_name()) else { return Ok(false) };
    if fs::symlink_metadata(parent.join(last)).is_ok() {
        return Ok(false);
    }
    for from in &waiting {
        let Some(name) = from.file_name() else { continue };
        let to = parent.join(name);
        match rename_new_under_lock(from, &to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // The dead writer did not move this file of the old checkpoint aside.
                rename_new_under_lock(&to, &staged.join(REPLACED).join(name))?;
                rename_new_under_lock(from, &to)?;
            }
            other => other?,
        }
        sync_folder(parent)?;
    }
    Ok(true)
}

/// Whether the commit of the temporary folder `staged` has moved any file.
pub(super) fn has_begun(staged: &Path) -> bool {
    let is_moved =
        |folder: PathBuf| matches!(fs::read_dir(folder).map(|mut all| all.next().is_none()), Ok(true));
    match fs::read_dir(staged.join(REPLACED)).map(|mut all| all.next().is_some()) {
        Ok(true) => true,
        Ok(false) => is_moved(staged_folder(staged, 0)),
        Err(_) => false,
    }
}

/// Whether a commit has begun and its last file, which makes the checkpoint, is still in the
/// temporary folder. False if the commit succeeded and only the removal of the folder is missing.
pub(super) fn is_waiting(staged: &Path) -> bool {
    let names_of = |at| fs::read_dir(staged_folder(staged, at));
    let Some(last) = (0_usize..).take_while(|&at| names_of(at).is_ok()).last() else { return false };
    has_begun(staged) && names_of(last).is_ok_and(|mut names| names.next().is_some())
}

/// The path of a file of a checkpoint whose writer died between two steps: its own path, or a path
/// among the staged files.
pub fn where_is(target: &Path, staged: &Path) -> PathBuf {
    (0_usize..)
        .take_while(|&at| staged_folder(staged, at).is_dir())
        .map(|at| staged_path(staged, at, target))
        .find(|path| path.is_file())
        .unwrap_or_else(|| target.to_owned())
}

/// Marks a temporary folder as one whose commit has not begun, unless replaced files are in it.
/// Without this, a half-removed folder would look like a begun commit.
pub(super) fn forget(staged: &Path) -> io::Result<()> {
    match fs::remove_dir(staged.join(REPLACED)) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
            Ok(())
        }
        other => other,
    }
}

fn waiting(staged: &Path) -> io::Result<Vec<PathBuf>> {
    let mut waiting = Vec::new();
    for at in 0_usize.. {
        match fs::read_dir(staged_folder(staged, at)) {
            Ok(mut entries) => waiting.extend(entries.next().transpose()?.map(|entry| entry.path())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    Ok(waiting)
}

#[cfg(test)]
mod tests;
