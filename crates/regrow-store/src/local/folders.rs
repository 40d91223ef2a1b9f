//! Keys as safe paths in a folder, names for files, and functions that make and sync folders.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::system;

/// Files with this suffix are never values: they are locks of TensorStore or unfinished puts of
/// regrow.
pub const LOCK_SUFFIX: &str = ".__lock";

/// Converts `key` to a relative path that stays below the folder.
///
/// # Errors
/// `InvalidArgument` if it is empty, has a NUL, begins with `/`, or has an empty, `.` or `..`
/// component.
pub fn relative_path(key: &[u8]) -> Result<&Path> {
    let safe = !key.contains(&0) && key.split(|&byte| byte == b'/').all(is_name);
    let path = system::path_of_key(key).filter(|_| safe);
    path.ok_or_else(|| {
        Error::invalid(format!("key {:?} is not a safe relative path", String::from_utf8_lossy(key)))
            .help("a key must not be empty or absolute, or have `.`, `..` or empty parts")
    })
}

fn is_name(part: &[u8]) -> bool {
    !matches!(part, b"" | b"." | b"..")
}

/// Makes `folder` and its missing parents. Returns the folders that were made, outermost first.
/// After an error none of them stays.
pub fn make_folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    let mut above = Some(folder);
    while let Some(path) = above.filter(|path| !path.as_os_str().is_empty()) {
        match fs::create_dir(path) {
            Ok(()) => {
                missing.push(path.to_owned());
                break;
            }
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && path.parent().is_some_and(|above| !above.as_os_str().is_empty()) =>
            {
                missing.push(path.to_owned());
            }
            Err(error) => match fs::metadata(path) {
                Ok(found) if found.is_dir() => break,
                Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
                Err(_) => return Err(error),
            },
        }
        above = path.parent();
    }
    missing.reverse();
    for (at, path) in missing.iter().enumerate() {
        match fs::create_dir(path) {
            Err(error) if !path.is_dir() => {
                // Remove the folder that failed, too: the system may have made the folder and then
                // failed to read its metadata.
                missing.iter().take(at + 1).rev().for_each(|made| {
                    let _ = fs::remove_dir(made);
                });
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(missing)
}

/// Gives the file `from` the name `to`, if the name is unused. Returns `false` if it is used.
/// `from` may stay as a second name.
pub fn link_if_absent(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::hard_link(from, to) {
        Ok(()) => return Ok(true),
        // Over NFS the answer to a link may get lost, and the second try then finds the link that
        // the first one made.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Ok(system::id_at(from)? == system::id_at(to)?);
        }
        Err(_) => {}
    }
    // The file system has no hard links.
    let renamed = match system::rename_no_replace(from, to) {
        Ok(false) => rename_if_free(from, to),
        other => other.map(drop),
    };
    match renamed {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks that the name is unused, and renames. The caller needs a lock: another process could use
/// the name in between.
pub fn rename_if_free(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(from, to),
        Err(error) => Err(error),
    }
}

/// Syncs the names in a folder to the disk, if the file system can do this.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    system::sync_folder(folder).map(drop)
}

/// Syncs the parents of new folders, so that the new names survive a power cut.
pub fn sync_made(made: &[PathBuf]) -> io::Result<()> {
    made.iter().filter_map(|folder| folder.parent()).try_for_each(sync_folder)
}

/// Sixteen random hex digits, for unique names.
pub fn random_name() -> Result<String> {
    match getrandom::u64() {
        Ok(number) => Ok(format!("{number:016x}")),
        Err(error) => {
            Err(Error::new(crate::error::ErrorKind::Io, format!("the system gives no random bytes: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_cannot_leave_the_folder() {
        for key in ["", "/", "/etc/passwd", "..", "a/../b", "a//b", "a/", "./a", "a\0b", "a/."] {
            let error = relative_path(key.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), crate::error::ErrorKind::InvalidArgument, "{key:?}");
        }
        for key in ["a", "a/b", "..a", "a..", "params['w'].0/ü #1", ".zarray", "a/ b"] {
            relative_path(key.as_bytes()).unwrap();
        }
    }

    #[test]
    fn folders_that_cannot_be_synced_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(sync_made(&make_folders(&root.path().join("a/b")).unwrap()).is_ok());
        let error = sync_made(&[root.path().join("nowhere/x")]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn says_which_folders_it_made() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c");
        let expected: Vec<_> = ["a", "a/b", "a/b/c"].iter().map(|name| root.path().join(name)).collect();
        assert_eq!(make_folders(&deep).unwrap(), expected);
        assert!(deep.is_dir());
        assert!(make_folders(&deep).unwrap().is_empty());
        fs::write(root.path().join("file"), b"").unwrap();
        assert!(make_folders(&root.path().join("file/x")).is_err());
        assert!(make_folders(&root.path().join("file")).is_err());
    }
}
