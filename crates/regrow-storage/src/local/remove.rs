//! Removes a checkpoint on a local disk, or the files of an unfinished save or copy.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::leftovers::{Lock, finish, leftovers_of, lock, sweep};
use super::lock::{lock_target, resolved};
use super::rename::rename_new;
use super::siblings;
use super::sync_folder;
use super::target::{absolute, check_replaceable};
use super::temporary::{Kind, kind_in, split, temporary_path};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::TargetLock;
use crate::monitor::Monitor;
use crate::{RESPECTED_FOR, Removed, UNCOMMITTED_MARK, is_recent, stem_of};

/// Removes a folder that holds only a checkpoint. The folder is renamed first, so that readers
/// never see a part of it.
pub(crate) fn remove_checkpoint(folder: &Path) -> Result<Removed> {
    let absolute = absolute(folder)?;
    check_replaceable(&absolute).map_err(|error| match error.kind() {
        ErrorKind::InvalidArgument => error.help(
            "a removal would delete them too: move them elsewhere, or remove the folder \
                yourself",
        ),
        _ => error,
    })?;
    let removed = stock(&absolute)?.0;
    remove_locked(folder)?;
    Ok(removed)
}

/// Removes a folder with any content. The folder is renamed first, so that readers never see a part
/// of it. The caller has checked that the folder may be removed.
///
/// # Errors
/// Errors of the file system. After an error the folder either has its name and all of its content,
/// or it has only a temporary name.
pub fn remove_folder(folder: &Path) -> Result<()> {
    let _lock = lock_target(folder, "remove", None, &Monitor::new())?;
    remove_locked(folder)
}

fn remove_locked(folder: &Path) -> Result<()> {
    let absolute = absolute(folder)?;
    let (parent, name) = split(&absolute)?;
    let aside = temporary_path(parent, name)?;
    rename_new(&absolute, &aside).map_err(|error| Error::io("cannot remove the folder", folder, error))?;
    sync_folder(parent)?;
    remove_all(&aside)
}

/// Removes the side files, and then files in their order. A link is removed, not its target.
pub(crate) fn remove_files(at: &Path, files: &[PathBuf], beside: &[PathBuf]) -> Result<Removed> {
    let (parent, _) = split(at)?;
    let mut removed = Removed::default();
    let is_beside = beside.iter().map(|file| (file, true)).chain(files.iter().map(|file| (file, false)));
    for (file, is_beside) in is_beside {
        let len_bytes = fs::symlink_metadata(file).map_or(0, |found| found.len());
        match fs::remove_file(file) {
            Err(error) if is_beside && error.kind() == std::io::ErrorKind::NotFound => continue,
            done => done.map_err(|error| Error::io("cannot remove", file, error))?,
        }
        sync_folder(parent)?;
        removed.add(len_bytes);
    }
    Ok(removed)
}

/// Removes temporary files of saves and copies to a target. `at` is the target, or the temporary
/// folder of one save. Temporary folders of other dead writers of the target are removed, too.
pub(crate) fn remove_unfinished(at: &Path, force: bool) -> Result<Removed> {
    let absolute = absolute(at)?;
    let (parent, name) = split(&absolute)?;
    let is_temporary = name.to_string_lossy().contains(UNCOMMITTED_MARK);
    let left: Vec<PathBuf> = if is_temporary { vec![absolute.clone()] } else { leftovers_of(parent, name) };
    let mut removed = Removed::default();
    if left.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "there is no unfinished save").in_file(at));
    }
    let stocks: Vec<_> = left.iter().map(|folder| stock(folder).ok()).collect();
    // The sweep puts some folders of dead writers back instead of removing them.
    let target = match is_temporary {
        true => OsString::from(name.to_string_lossy().split(UNCOMMITTED_MARK).next().unwrap_or_default()),
        false => name.to_owned(),
    };
    if sweep(parent, &target) {
        return Ok(Removed { is_finished: true, ..Removed::default() });
    }
    for (folder, stock) in left.iter().zip(stocks) {
        let Some((found, modified)) = stock else {
            return Err(Error::io("cannot look at", folder, std::io::ErrorKind::NotFound.into()));
        };
        remove_left(folder, modified, force)?;
        removed.merge(found);
    }
    Ok(removed)
}

/// Removes a temporary folder, unless its writer may live, or it may be needed.
fn remove_left(folder: &Path, modified: Option<SystemTime>, force: bool) -> Result<()> {
    let locked = match lock(folder) {
        // The sweep removed the folder.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        locked => locked.map_err(|error| Error::io("cannot remove", folder, error))?,
    };
    let kind = folder.file_name().and_then(kind_in);
    let is_dead = match locked {
        Lock::Ours(_) => kind.is_some() || !is_recent(modified),
        Lock::Unlockable(_) => !is_recent(modified),
        Lock::Theirs => false,
    };
    if is_dead && !force && (kind == Some(Kind::Replaced) || siblings::has_begun(folder)) {
        // The writer died between two renames. The sweep has put back or removed such a folder, if
        // it got the lock of the target.
        return Err(Error::new(ErrorKind::Busy, "these files may be the only copy of a checkpoint")
            .in_file(folder)
            .expected("the lock of the checkpoint", "another process that has it")
            .help("wait until that process ends, then try again; `force` deletes the files"));
    }
    if is_dead || force { remove_all(folder) } else { Err(may_live(folder, modified)) }
}

/// Restores a checkpoint whose writer died between two renames, or finishes a commit that had
/// begun. Returns whether there was such a checkpoint. The caller may have the lock of the target.
pub(crate) fn finish_unfinished(at: &Path, lock: Option<&TargetLock>) -> Result<bool> {
    let Some(target) = resolved(at)? else { return Ok(false) };
    let (parent, name) = split(&target)?;
    let stem = name.to_str().map(stem_of).map(OsStr::new).filter(|stem| *stem != name);
    let names = [Some(name), stem].into_iter().flatten();
    Ok(names.filter(|name| finish(parent, name, lock)).count() > 0)
}

fn may_live(folder: &Path, modified: Option<SystemTime>) -> Error {
    let age = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
    Error::new(ErrorKind::AlreadyExists, "its writer may still be running")
        .in_file(folder)
        .expected(
            format_args!("no writer, and no change within {} minutes", RESPECTED_FOR.as_secs() / 60),
            age.map_or("a lock".to_owned(), |age| format!("a change {} s ago", age.as_secs())),
        )
        .help("wait until it ends; if that process is dead, pass `force`")
}

fn remove_all(folder: &Path) -> Result<()> {
    // A network file system may fail for a moment, so try twice. Neither try follows links.
    let removed = fs::remove_dir_all(folder).or_else(|_| fs::remove_dir_all(folder));
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("cannot remove the rest", folder, error)
                .help("this is no longer a checkpoint: remove the rest yourself"))
        }
        _ => Ok(()),
    }
}

/// The number and length of all files below a folder, and the time of the last change.
pub(crate) fn stock(folder: &Path) -> Result<(Removed, Option<SystemTime>)> {
    let cannot_look = |error| Error::io("cannot look into", folder, error);
    let mut removed = Removed::default();
    let mut modified = fs::symlink_metadata(folder).map_err(cannot_look)?.modified().ok();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).map_err(cannot_look)? {
            let entry = entry.map_err(cannot_look)?;
            // `DirEntry::metadata` does not follow links, so a link counts with its own length.
            let found = match entry.metadata() {
                Ok(found) => found,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(cannot_look(error)),
            };
            modified = modified.max(found.modified().ok());
            match found.is_dir() {
                true => folders.push(entry.path()),
                false => removed.add(found.len()),
            }
        }
    }
    Ok((removed, modified))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_copy_stays_while_another_process_has_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("target");
        let aside = crate::local::temporary::replaced_path(root.path(), "target".as_ref()).unwrap();
        let put_aside = || {
            fs::create_dir(&aside).unwrap();
            fs::write(aside.join("file"), b"old").unwrap();
        };
        put_aside();
        let held = lock_target(&target, "repair", None, &Monitor::new()).unwrap();
        for at in [&target, &aside] {
            assert_eq!(remove_unfinished(at, false).unwrap_err().kind(), ErrorKind::Busy);
            assert!(aside.join("file").is_file());
        }
        // The owner of the lock gives the checkpoint its name.
        finish_unfinished(&target, Some(&held)).unwrap();
        assert!(target.join("file").is_file() && !aside.exists());
        drop(held);
        fs::remove_dir_all(&target).unwrap();
        put_aside();
        assert!(remove_unfinished(&target, false).unwrap().is_finished);
        assert!(target.join("file").is_file() && !aside.exists());
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error_and_one_beside_it_is_none() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("one"), b"abc").unwrap();
        // Side files are removed first. If a side file cannot be removed, the file stays, too.
        remove_files(&path("one"), &[path("one")], &[path("folder")]).unwrap_err();
        assert!(path("one").exists());
        remove_files(&path("one"), &[path("one")], &[path("seal")]).unwrap();
        let error = remove_files(&path("one"), &[path("one")], &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_without_a_folder_in_its_path_is_removed() {
        let file = tempfile::NamedTempFile::new_in(std::env::current_dir().unwrap()).unwrap();
        let name = Path::new(file.path().file_name().unwrap());
        std::fs::write(name, b"abc").unwrap();
        let gone = [PathBuf::from("no seal is there")];
        let removed = remove_files(name, &[name.to_owned()], &gone).unwrap();
        assert_eq!((removed.file_count, removed.bytes), (1, 3));
        assert!(!file.path().exists());
    }

    #[test]
    fn files_beside_each_other_without_a_folder_in_their_path_are_removed() {
        let stem = tempfile::NamedTempFile::new_in(std::env::current_dir().unwrap()).unwrap();
        let at = Path::new(stem.path().file_name().unwrap());
        let files = [".manifest", ".data"].map(|suffix| {
            let mut name = at.as_os_str().to_owned();
            name.push(suffix);
            std::fs::write(&name, b"abc").unwrap();
            PathBuf::from(name)
        });
        let removed = remove_files(at, &files, &[]).unwrap();
        assert_eq!((removed.file_count, removed.bytes), (2, 6));
        assert!(files.iter().all(|file| !file.exists()));
    }

    #[test]
    fn what_is_more_than_a_checkpoint_stays_and_is_told() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("regrow.json"), b"{}").unwrap();
        fs::write(root.path().join("thesis.tex"), b"...").unwrap();
        let error = remove_checkpoint(root.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.help_text().is_some_and(|help| help.contains("a removal would delete them")),
            "{error}"
        );
        let nothing = remove_checkpoint(&root.path().join("nothing")).unwrap_err();
        assert!(nothing.help_text().is_none_or(|help| !help.contains("would delete")), "{nothing}");
        assert!(root.path().join("thesis.tex").exists());
    }
}
