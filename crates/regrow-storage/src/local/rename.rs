//! The ways to give a file or folder its name, and the replacements if the file system lacks a
//! call.
//!
//! | wanted | system call | where it is missing (some network and FUSE file systems; systems other than Linux and macOS) |
//! |---|---|---|
//! | a new name | `renameat2 NOREPLACE` | a check of the name, then `rename`, which never replaces a folder with content |
//! | exchange two folders | `renameat2 EXCHANGE` | two renames: the old folder moves aside, then the new folder gets the name; between them the name is unused |
//! | replace a file | `rename` | |
//!
//! The caller has the lock of the name, so no other process of regrow takes the name in between.

use std::fs;
use std::io;
use std::path::Path;

use super::lock::lock_target;
use super::sync_folder;
use super::temporary::split;
use crate::error::{Error, ErrorKind, Result};
use crate::monitor::Monitor;
use crate::store::local::folders::{make_folders, rename_if_free};
use crate::system;
pub(super) use crate::system::exchange;

/// Renames `from` to the unused name `to`. After a kill exactly one of the two names exists.
///
/// # Errors
/// `AlreadyExists` if the name is taken.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    if system::rename_no_replace(from, to)? {
        return Ok(());
    }
    // As with the system call, a missing file is `NotFound`, also if the new name is taken.
    fs::symlink_metadata(from)?;
    rename_if_free(from, to)
}

/// Renames `target` to `aside`, and then `new` to `target`. If the second rename fails, the first
/// is undone.
///
/// In between, a reader may find no `target`. If the process dies there, the next save to this
/// target restores the old checkpoint.
pub(super) fn replace_in_two_steps(new: &Path, target: &Path, aside: &Path) -> io::Result<()> {
    fs::rename(target, aside)?;
    rename_new(new, target).inspect_err(|_| {
        let _ = rename_new(aside, target);
    })
}

/// Renames a folder to an unused name. The parent folder is made if it is missing.
pub(crate) fn move_folder(from: &Path, to: &Path) -> Result<()> {
    let cannot = |error| Error::io("cannot move the folder", from, error);
    let ((old, _), (new, _)) = (split(from)?, split(to)?);
    let _lock = lock_target(from, "move", None, &Monitor::new())?;
    make_folders(new).map_err(cannot)?;
    rename_new(from, to).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::new(ErrorKind::AlreadyExists, "the name is taken").in_file(to),
        _ => cannot(error),
    })?;
    // Sync the new name first: after a power cut both names may exist, but one always does.
    [new, old].into_iter().try_for_each(sync_folder)
}

/// Gives `new` the mode of `old`, which it will replace, and the owner if the system allows it. So
/// a private checkpoint stays private. If modes cannot be changed, `new` may be more private.
///
/// # Errors
/// Errors of the file system; `NotFound` if `old` does not exist.
pub(super) fn keep_owner_and_mode(old: &Path, new: &Path) -> io::Result<()> {
    let (was, is) = (fs::metadata(old)?, fs::metadata(new)?);
    if !system::have_same_owner(&was, &is) {
        let _ = system::give_to_owner_of(&was, new);
    }
    // Special bits of a folder apply to its entries, so keep them. On a file, set-user-ID would run
    // it as another user. A file that replaces a folder must not become executable.
    let kept = match (was.is_dir(), is.is_dir()) {
        (true, true) => 0o7777,
        (true, false) => 0o666,
        (false, _) => 0o777,
    };
    system::set_mode_or_less(new, system::mode_of(&was) & kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_private_stays_private() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, b"").unwrap();
        fs::write(&new, b"").unwrap();
        system::set_mode(&old, 0o600).unwrap();
        keep_owner_and_mode(&old, &new).unwrap();
        assert_eq!(system::mode_of(&fs::metadata(&new).unwrap()) & 0o777, 0o600);
        fs::remove_file(&old).unwrap();
        assert_eq!(keep_owner_and_mode(&old, &new).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn without_flags_a_folder_or_file_is_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for rename in [rename_new, rename_if_free] {
            fs::create_dir_all(path("old/inside")).unwrap();
            fs::create_dir_all(path("new")).unwrap();
            fs::write(path("file"), b"f").unwrap();
            fs::write(path("other"), b"o").unwrap();
            for (from, to) in [("new", "old"), ("new", "file"), ("other", "file"), ("other", "old")] {
                let error = rename(&path(from), &path(to)).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{from} {to}");
            }
            assert_eq!(fs::read(path("file")).unwrap(), b"f");
            rename(&path("new"), &path("moved")).unwrap();
            rename(&path("other"), &path("moved_file")).unwrap();
            assert!(path("moved").is_dir() && !path("new").exists());
            assert!(path("moved_file").is_file() && !path("other").exists());
            fs::remove_dir(path("moved")).unwrap();
            fs::remove_file(path("moved_file")).unwrap();
        }
    }

    #[test]
    fn two_steps_replace_or_undo() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("target")).unwrap();
        fs::write(path("target/old"), b"").unwrap();
        replace_in_two_steps(&path("missing"), &path("target"), &path("aside")).unwrap_err();
        assert!(path("target/old").exists() && !path("aside").exists());
        fs::create_dir(path("new")).unwrap();
        replace_in_two_steps(&path("new"), &path("target"), &path("aside")).unwrap();
        assert!(path("aside/old").exists() && path("target").is_dir() && !path("new").exists());
    }

    #[test]
    fn exchange_takes_one_step_or_says_no() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("target")).unwrap();
        fs::create_dir(path("new")).unwrap();
        fs::write(path("new/file"), b"").unwrap();
        let exchanged = exchange(&path("new"), &path("target")).unwrap();
        assert_eq!(path("target/file").exists(), exchanged);
        fs::remove_dir_all(path("target")).unwrap();
        if exchanged {
            let error = exchange(&path("new"), &path("target")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_moved_folder_replaces_no_existing_name() {
        let root = tempfile::tempdir().unwrap();
        let (from, taken, free) = (root.path().join("a"), root.path().join("b"), root.path().join("new/c"));
        for folder in [&from, &taken] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), folder.as_os_str().as_encoded_bytes()).unwrap();
        }
        let error = move_folder(&from, &taken).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert_eq!(fs::read(taken.join("file")).unwrap(), taken.as_os_str().as_encoded_bytes());
        move_folder(&from, &free).unwrap();
        assert!(free.join("file").is_file() && !from.exists());
        assert_eq!(move_folder(&from, &free).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
