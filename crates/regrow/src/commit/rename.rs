//! The three ways in which a name changes hands, and what to do where the file system lacks the best of them.
//!
//! | wanted | system call | where it is missing (some network and FUSE file systems) |
//! |---|---|---|
//! | a new name | `renameat2 NOREPLACE` | folder: `rename`, which never replaces one that holds anything; file: `link`, `unlink` |
//! | exchange two folders | `renameat2 EXCHANGE` | old aside, new in; for that moment neither has the name |
//! | replace a file | `rename` | |

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Gives `from` the name `to`, which nobody may have.
///
/// # Errors
/// `AlreadyExists` if somebody has.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(error) if is_missing(error) => rename_new_without_flags(from, to),
        Err(error) => Err(error.into()),
    }
}

fn rename_new_without_flags(from: &Path, to: &Path) -> io::Result<()> {
    if fs::symlink_metadata(from)?.is_dir() {
        return match fs::rename(from, to) {
            Err(error) if fs::symlink_metadata(to).is_ok() && is_occupied(&error) => {
                Err(io::ErrorKind::AlreadyExists.into())
            }
            other => other,
        };
    }
    fs::hard_link(from, to)?;
    fs::remove_file(from)
}

fn is_occupied(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}

/// Exchanges the names of two folders in one step; `false` where the file system cannot.
///
/// # Errors
/// `NotFound` if one of them is not there.
pub(super) fn exchange(new: &Path, target: &Path) -> io::Result<bool> {
    match renameat_with(CWD, new, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(error) if is_missing(error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Gives `target` the name `aside` and `new` the name `target`; undoes the first if the second fails.
///
/// A reader may find no `target` in between. If the process dies there, the next save to it puts it back.
pub(super) fn replace_in_two_steps(new: &Path, target: &Path, aside: &Path) -> io::Result<()> {
    fs::rename(target, aside)?;
    rename_new(new, target).inspect_err(|_| {
        let _ = rename_new(aside, target);
    })
}

fn is_missing(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Gives `new` the mode of `old`, which it is about to replace, and its owner where that is allowed: what was
/// private stays so.
///
/// # Errors
/// What the file system says; `NotFound` if there is no `old`.
pub(super) fn keep_owner_and_mode(old: &Path, new: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let (was, is) = (fs::metadata(old)?, fs::metadata(new)?);
    if (was.uid(), was.gid()) != (is.uid(), is.gid()) {
        // Only the super-user may give files away.
        let _ = std::os::unix::fs::chown(new, Some(was.uid()), Some(was.gid()));
    }
    // A folder's other bits say who owns what is made in it, and who may remove it; a file's would make it run as another.
    let kept = if was.is_dir() { 0o7777 } else { 0o777 };
    fs::set_permissions(new, fs::Permissions::from_mode(was.mode() & kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_private_stays_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, b"").unwrap();
        fs::write(&new, b"").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o600)).unwrap();
        keep_owner_and_mode(&old, &new).unwrap();
        assert_eq!(fs::metadata(&new).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&old).unwrap();
        assert_eq!(keep_owner_and_mode(&old, &new).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn without_flags_a_folder_or_file_is_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for rename in [rename_new, rename_new_without_flags] {
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
}
