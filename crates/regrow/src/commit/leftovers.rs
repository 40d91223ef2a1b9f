//! Temporary names, the locks that say whose they are, and the removal of what killed writers left.
//!
//! ```text
//! step_100                                               the target
//! step_100.orbax-checkpoint-tmp-<pid>-<random>           being written; locked while its writer lives
//! step_100.orbax-checkpoint-tmp-replaced-<pid>-<random>  the old target, between the two renames of an overwrite
//!                                                        on a file system that cannot exchange names
//! ```
//! Orbax takes every name with `.orbax-checkpoint-tmp` in it for an unfinished save and passes over it.
//!
//! The lock is `flock` on the folder itself: the kernel gives it up when the writer dies, however it dies. A
//! folder that cannot be locked because the file system has no locks is left alone.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::rename::rename_new;
use super::siblings;
use crate::error::{Error, Result};
use crate::store::local::folders::random_name;

const TEMPORARY: &str = ".orbax-checkpoint-tmp-";
const REPLACED: &str = "replaced-";

/// How often a new folder may be taken for a leftover by another writer, just before it is locked.
const TRIES: usize = 16;

/// A folder that is ours, and the lock that says so.
#[derive(Debug)]
pub(super) struct OwnFolder {
    pub(super) path: PathBuf,
    _lock: File,
}

impl OwnFolder {
    /// Makes a temporary folder for `name` in `parent` and locks it.
    pub(super) fn make(parent: &Path, name: &OsStr) -> Result<Self> {
        for _ in 0..TRIES {
            let path = parent.join(temporary_name(name, "")?);
            fs::create_dir(&path).map_err(|error| Error::io("cannot make a folder", &path, error))?;
            match lock(&path) {
                Ok(Lock::Ours(lock) | Lock::Unlockable(lock)) => return Ok(Self { path, _lock: lock }),
                // Another writer was sweeping and got hold of it first.
                Ok(Lock::Theirs) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("cannot lock", &path, error)),
            }
        }
        Err(Error::new(crate::ErrorKind::Io, "other writers keep removing the temporary folder")
            .in_file(parent))
    }
}

/// Where the old target waits while the new one takes its name.
pub(super) fn replaced_path(parent: &Path, name: &OsStr) -> Result<PathBuf> {
    Ok(parent.join(temporary_name(name, REPLACED)?))
}

/// Removes what killed writers of `name` left in `parent`; puts back a target that was caught between two
/// renames. What cannot be removed stays: it is in nobody's way.
pub(super) fn sweep(parent: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let found: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.path(), kind_of(&entry.file_name(), name)?))
        })
        .collect();
    for (path, kind) in found {
        let Ok(Lock::Ours(_lock)) = lock(&path) else { continue };
        if kind == Kind::Replaced {
            match rename_new(&path, &parent.join(name)) {
                // The overwrite went through, and only removing the old one was left to do.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                _ => continue,
            }
        }
        if siblings::finish(&path, parent).is_err() {
            continue;
        }
        let _ = fs::remove_dir_all(&path);
    }
}

/// A commit of files beside each other that has begun and not ended.
pub(crate) enum Begun {
    /// Its writer lives: the next look will find another state.
    Living,
    /// Its writer died; its temporary folder.
    Dead(PathBuf),
}

/// Whether files beside each other, named after `stem`, are between two states.
pub(crate) fn begun(stem: &Path) -> Option<Begun> {
    let name = stem.file_name()?;
    let parent = stem.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = None;
    for entry in fs::read_dir(parent).ok()?.flatten() {
        let path = entry.path();
        if kind_of(&entry.file_name(), name).is_none() || !siblings::has_begun(&path) {
            continue;
        }
        match lock(&path) {
            Ok(Lock::Theirs) => return Some(Begun::Living),
            Ok(_) => found = Some(Begun::Dead(path)),
            Err(_) => {}
        }
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unfinished,
    Replaced,
}

fn temporary_name(name: &OsStr, kind: &str) -> Result<OsString> {
    let mut temporary = name.to_owned();
    temporary.push(format!("{TEMPORARY}{kind}{}-{}", std::process::id(), random_name()?));
    Ok(temporary)
}

/// Whether `entry` is one of our temporary names for `name`: Orbax' own end otherwise and are not ours to remove.
fn kind_of(entry: &OsStr, name: &OsStr) -> Option<Kind> {
    let rest = entry.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(TEMPORARY.as_bytes())?;
    let (kind, rest) = match rest.strip_prefix(REPLACED.as_bytes()) {
        Some(rest) => (Kind::Replaced, rest),
        None => (Kind::Unfinished, rest),
    };
    let (pid, random) = rest.split_at_checked(rest.iter().position(|&byte| byte == b'-')?)?;
    let ours = !pid.is_empty()
        && pid.iter().all(u8::is_ascii_digit)
        && random.len() == 17
        && random.iter().skip(1).all(u8::is_ascii_hexdigit);
    ours.then_some(kind)
}

/// Whose a folder is.
pub(super) enum Lock {
    /// Ours now, until the file is dropped.
    Ours(File),
    /// A living writer's.
    Theirs,
    /// The file system has no locks.
    Unlockable(File),
}

/// Locks a folder that is still there when the lock is held.
pub(super) fn lock(path: &Path) -> io::Result<Lock> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    let folder = File::options().read(true).custom_flags(flags).open(path)?;
    match folder.try_lock() {
        Ok(()) => {
            let (held, named) = (folder.metadata()?, fs::symlink_metadata(path)?);
            if (held.dev(), held.ino()) != (named.dev(), named.ino()) {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(Lock::Ours(folder))
        }
        Err(TryLockError::WouldBlock) => Ok(Lock::Theirs),
        Err(TryLockError::Error(_)) => Ok(Lock::Unlockable(folder)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_own_temporary_names_from_those_of_orbax() {
        let name = OsStr::new("step_1");
        assert_eq!(kind_of(&temporary_name(name, "").unwrap(), name), Some(Kind::Unfinished));
        assert_eq!(kind_of(&temporary_name(name, REPLACED).unwrap(), name), Some(Kind::Replaced));
        for other in [
            "step_1",
            "step_1.orbax-checkpoint-tmp",
            "step_1.orbax-checkpoint-tmp-1700000000000000",
            "step_1.orbax-checkpoint-tmp-12-0123",
            "step_10.orbax-checkpoint-tmp-12-0123456789abcdef",
            "step_1.orbax-checkpoint-tmp-x-0123456789abcdef",
        ] {
            assert_eq!(kind_of(OsStr::new(other), name), None, "{other}");
        }
    }

    #[test]
    fn sweeps_what_is_not_locked() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        let alive = OwnFolder::make(root.path(), name).unwrap();
        let dead = OwnFolder::make(root.path(), name).unwrap().path;
        let other = OwnFolder::make(root.path(), OsStr::new("other")).unwrap().path;
        fs::write(dead.join("file"), b"x").unwrap();
        sweep(root.path(), name);
        assert!(alive.path.is_dir());
        assert!(!dead.exists());
        assert!(other.is_dir());
    }

    #[test]
    fn puts_back_a_target_that_was_caught_between_two_renames() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        for content in ["first", "second"] {
            let aside = replaced_path(root.path(), name).unwrap();
            fs::create_dir(&aside).unwrap();
            fs::write(aside.join("file"), content).unwrap();
            sweep(root.path(), name);
        }
        // The second found the name taken, so it was what an overwrite had left to remove.
        assert_eq!(fs::read(root.path().join("target/file")).unwrap(), b"first");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
