//! Locks of the temporary folders of saves, and the removal of files of killed writers.
//!
//! The lock is `flock` on the folder itself: the kernel releases it when the writer dies in any
//! way. If the file system has no locks, the folder of an unfinished save is never removed.
//!
//! A process that writes or removes takes the exclusive lock. A process that only asks whether the
//! writer lives takes a shared lock, so that two readers do not treat each other as a writer.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::lock::{Held, lock_target, look_at_lock, sweep_lock};
use super::rename::rename_new;
use super::siblings;
use super::temporary::{Kind, copy_path, kind_in, kind_of, name_in, temporary_name};
use crate::UNCOMMITTED_MARK;
use crate::error::{Error, Result};
use crate::lock::TargetLock;
use crate::monitor::Monitor;
use crate::system::{id_of, id_of_name, make_folder, open_folder_no_link, set_mode};
use crate::traces::{Life, Trace, TraceKind};

/// Attempts to make a folder. Another writer may remove a new folder before it is locked.
const TRIES: usize = 16;

/// Readers hold a lock for at most about this long.
const READER_PACE: Duration = Duration::from_millis(1);

/// Attempts to take a lock that readers hold. Many readers may take it one after the other.
const READER_TRIES: usize = 100;

/// The list of the files that a copy has finished.
pub(super) const JOURNAL: &str = "journal";

/// Whether the temporary folder of a copy has no journal, so that no copy can continue it.
pub(super) fn is_over(folder: &Path) -> bool {
    fs::symlink_metadata(folder.join(JOURNAL)).is_err()
}

fn keep_removing(parent: &Path) -> Error {
    Error::new(crate::error::ErrorKind::Io, "other writers keep removing the temporary folder")
        .in_file(parent)
}

/// A temporary folder of this process, and its lock.
#[derive(Debug)]
pub(super) struct OwnFolder {
    pub(super) path: PathBuf,
    /// Whether an earlier writer has left files to continue from.
    pub(super) has_beginning: bool,
    _lock: File,
}

impl OwnFolder {
    /// Makes a temporary folder for `name` in `parent` and locks it. With `private` its mode is
    /// 0700.
    pub(super) fn make(parent: &Path, name: &OsStr, private: bool) -> Result<Self> {
        let mode = if private { 0o700 } else { 0o777 };
        for _ in 0..TRIES {
            let path = parent.join(temporary_name(name, "")?);
            make_folder(&path, mode).map_err(|error| Error::io("cannot make a folder", &path, error))?;
            match lock(&path) {
                Ok(Lock::Ours(lock) | Lock::Unlockable(lock)) => {
                    return Ok(Self { path, has_beginning: false, _lock: lock });
                }
                // Another writer that removes temporary folders locked this one first.
                Ok(Lock::Theirs) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let _ = fs::remove_dir(&path);
                    return Err(Error::io("cannot lock", &path, error));
                }
            }
        }
        Err(keep_removing(parent))
    }

    /// Locks the temporary folder of copies to `name`, and makes it if it is missing. Files of an
    /// earlier copy stay.
    ///
    /// # Errors
    /// `AlreadyExists` if another copy has the folder.
    pub(super) fn of_copy(parent: &Path, name: &OsStr, private: bool) -> Result<Self> {
        let path = copy_path(parent, name);
        let mode = if private { 0o700 } else { 0o777 };
        let cannot_lock = |error| Error::io("cannot lock", &path, error);
        for _ in 0..READER_TRIES {
            match make_folder(&path, mode) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::io("cannot make a folder", &path, error));
                }
                _ => {}
            }
            match lock(&path) {
                Ok(Lock::Ours(lock) | Lock::Unlockable(lock)) => {
                    if private {
                        set_mode(&path, mode).map_err(cannot_lock)?;
                    }
                    let has_beginning = !is_over(&path);
                    return Ok(Self { path, has_beginning, _lock: lock });
                }
                // The lock belongs to another copy, or to a process that briefly checks whether a
                // copy runs.
                Ok(Lock::Theirs) => std::thread::sleep(READER_PACE),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(cannot_lock(error)),
            }
        }
        Err(Error::new(crate::error::ErrorKind::AlreadyExists, "another process copies to this target")
            .in_file(parent.join(name))
            .help(format!("wait until it ends: it holds the lock on {}", path.display())))
    }
}

/// The temporary folders of running and killed saves and copies to `name`, including Orbax' own.
pub(super) fn leftovers_of(parent: &Path, name: &OsStr) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let is_left = |entry: &OsStr| {
        let rest = entry.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        kind_of(entry, name).is_some()
            || rest.is_some_and(|rest| rest.starts_with(UNCOMMITTED_MARK.as_bytes()))
    };
    let left = entries.flatten().filter(|entry| is_left(&entry.file_name()));
    let folders = left.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// A temporary folder, as people want to know it. `held` is the lock of its target.
pub(super) fn trace_of(folder: PathBuf, held: &Held) -> Trace {
    let kind = folder.file_name().and_then(kind_in);
    let life = match (lock_shared(&folder), held) {
        (Ok(Lock::Theirs), _) | (_, Held::By(_)) => Life::Alive,
        (Ok(Lock::Ours(_)), Held::Free) if kind.is_some() => Life::Dead,
        _ => Life::Unknown,
    };
    let kind = match kind {
        None => TraceKind::Foreign,
        Some(Kind::Unfinished) => TraceKind::Unfinished,
        Some(Kind::Replaced) => TraceKind::Replaced,
        Some(Kind::Copy) => TraceKind::Copy,
    };
    Trace { path: folder, kind, owner: None, phase: None, life, error: None }
}

/// Removes temporary files of killed writers of `name` from `parent`, and all lock files there that
/// no process holds. Restores a checkpoint whose
/// overwrite was killed between its two renames. Files that cannot be removed stay; they do no
/// harm. Returns whether a checkpoint got its name back.
pub(super) fn sweep(parent: &Path, name: &OsStr) -> bool {
    settle(parent, name, false, None)
}

/// As [`sweep`], but removes no unfinished save: only restores targets and finishes commits. The
/// caller may have the lock of the target.
pub(super) fn finish(parent: &Path, name: &OsStr, lock: Option<&TargetLock>) -> bool {
    settle(parent, name, true, lock)
}

/// How long a sweep waits for the lock of a target that a dead writer has left without a name.
const NAME_WAIT: Duration = Duration::from_millis(100);

/// As `sweep`, for every name in a folder. Files of a name that is too long for temporary names
/// stay for the next save to that name.
pub fn sweep_folder(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let names: BTreeSet<OsString> =
        entries.flatten().filter_map(|entry| name_in(&entry.file_name())).collect();
    for name in names {
        sweep(folder, &name);
    }
}

fn settle(parent: &Path, name: &OsStr, only_finish: bool, lock_of_caller: Option<&TargetLock>) -> bool {
    let Ok(entries) = fs::read_dir(parent) else { return false };
    let found = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        if !only_finish {
            sweep_lock(&path);
        }
        let kind = kind_of(path.file_name()?, name)?;
        Some((path, kind))
    });
    let (unnamed, unfinished): (Vec<_>, Vec<_>) =
        found.partition(|(path, kind)| *kind == Kind::Replaced || siblings::has_begun(path));
    let give_names = |lock: &TargetLock| {
        let give = |(path, kind): &(PathBuf, Kind)| finish_one(parent, name, path, *kind, only_finish, lock);
        unnamed.iter().filter(|left| give(left)).count() > 0
    };
    let take = || lock_target(&parent.join(name), "finish a save", Some(NAME_WAIT), &Monitor::new());
    let has_named = !unnamed.is_empty()
        && match lock_of_caller {
            Some(lock) => give_names(lock),
            // A live process that has the lock is about to give the names itself.
            None => take().is_ok_and(|lock| give_names(&lock)),
        };
    for (path, kind) in unfinished.iter().filter(|_| !only_finish) {
        // The next copy continues from these files.
        let is_for_next_copy = || *kind == Kind::Copy && !is_over(path);
        if !is_for_next_copy()
            && let Ok(Lock::Ours(_lock)) = lock(path)
            && !is_for_next_copy()
            && !siblings::has_begun(path)
        {
            remove(path);
        }
    }
    has_named
}

/// Restores the target from the temporary folder of a dead writer, or finishes its commit. Returns
/// whether a checkpoint got its name back.
fn finish_one(
    parent: &Path,
    name: &OsStr,
    path: &Path,
    kind: Kind,
    only_finish: bool,
    lock: &TargetLock,
) -> bool {
    if kind == Kind::Replaced {
        return match rename_new(path, &parent.join(name)) {
            // The overwrite was committed; only the removal of the old checkpoint is missing.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !only_finish {
                    remove(path);
                }
                false
            }
            renamed => renamed.is_ok(),
        };
    }
    // Without locks, the writer may live.
    if !lock.is_sure {
        return false;
    }
    let Ok(is_finished) = siblings::finish(path, parent) else { return false };
    remove(path);
    is_finished
}

/// Removes a temporary folder; what cannot be removed stays for the next save.
pub(super) fn remove(folder: &Path) {
    // Remove the mark of a begun commit first, unless it holds files: a half-removed folder must
    // not look like a begun commit.
    let once = || siblings::forget(folder).and_then(|()| fs::remove_dir_all(folder));
    // A network file system may fail for a moment, or show a removed file under another name.
    let _ = once().or_else(|_| once());
}

/// A commit of several files that has begun and not ended.
pub enum Begun {
    /// The writer lives and continues the commit.
    Living,
    /// The writer died after it had written all new files. Files that have not got their names yet
    /// are in this temporary folder.
    Dead(PathBuf),
}

/// A commit of several files with the stem `stem` that has begun and not ended; `None` if there is
/// none.
pub fn begun(stem: &Path) -> Option<Begun> {
    let name = stem.file_name()?;
    let parent = stem.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = None;
    for entry in fs::read_dir(parent).ok()?.flatten() {
        let path = entry.path();
        if kind_of(&entry.file_name(), name).is_none() || !siblings::has_begun(&path) {
            continue;
        }
        match look_at_lock(stem) {
            Held::By(_) => return Some(Begun::Living),
            // The writer may have ended between the two looks, so look again.
            _ if siblings::is_waiting(&path) => found = Some(Begun::Dead(path)),
            _ => {}
        }
    }
    found
}

/// How long a reader waits for an overwrite to give a name to the new checkpoint.
const OVERWRITE_WAIT: Duration = Duration::from_secs(10);

/// Whether the name `path` exists now or after the overwrite that is running. Without an exchange
/// of names, an overwrite leaves the name unused for a moment.
pub fn reappears(path: &Path) -> bool {
    let since = Instant::now();
    // `metadata` follows links, so a link to a missing file counts as missing.
    let is_there = || fs::metadata(path).is_ok();
    let named = end_of_links(path);
    let mut quiet = 0;
    // Between two looks one writer may end and the next begin, so one quiet look is not enough.
    while !is_there() && quiet < 3 && since.elapsed() < OVERWRITE_WAIT {
        match is_being_replaced(&named) {
            true => std::thread::sleep(READER_PACE),
            false => quiet += 1,
        }
    }
    is_there()
}

/// Where `path` leads by symbolic links, even if nothing exists there. Writers replace that path
/// and keep the links.
fn end_of_links(path: &Path) -> PathBuf {
    let mut end = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(to) = fs::read_link(&end) else { break };
        end = end.parent().unwrap_or(Path::new("")).join(to);
    }
    end
}

/// Longest chain of links; Linux follows no more.
const LINKS_MAX: usize = 40;

/// Whether an overwrite by a live writer has moved the folder at `path` aside.
fn is_being_replaced(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return false };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = fs::read_dir(parent) else { return false };
    let mut entries = entries.flatten();
    entries.any(|entry| kind_of(&entry.file_name(), name) == Some(Kind::Replaced))
        && look_at_lock(path) != Held::Free
}

/// The result of an attempt to lock a folder.
pub(super) enum Lock {
    /// This process has the lock until the file is dropped.
    Ours(File),
    /// Another writer or reader has the lock, in this process or another.
    Theirs,
    /// The file system has no locks.
    Unlockable(File),
}

/// Locks a folder, and checks that the locked folder still has its path.
pub(super) fn lock(path: &Path) -> io::Result<Lock> {
    lock_by(path, File::try_lock)
}

/// Takes a shared lock (readers). `Theirs` means that a writer has the lock.
fn lock_shared(path: &Path) -> io::Result<Lock> {
    lock_by(path, File::try_lock_shared)
}

/// Whether a live writer may have the lock of a temporary folder. True also if the file system has
/// no locks.
pub fn is_locked(folder: &Path) -> bool {
    matches!(lock_shared(folder), Ok(Lock::Theirs | Lock::Unlockable(_)))
}

fn lock_by(path: &Path, take: fn(&File) -> std::result::Result<(), TryLockError>) -> io::Result<Lock> {
    let folder = open_folder_no_link(path)?;
    match take(&folder) {
        Ok(()) => {
            if id_of(&folder)? != id_of_name(path)? {
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
    use super::super::temporary::{KEPT_LEN_MAX_BYTES, replaced_path};
    use super::*;

    #[test]
    fn who_looks_shares_the_lock_and_who_writes_does_not() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        let dead = OwnFolder::make(root.path(), name, false).unwrap().path;
        let first = lock_shared(&dead).unwrap();
        assert!(matches!(first, Lock::Ours(_)));
        assert!(matches!(lock_shared(&dead).unwrap(), Lock::Ours(_)));
        assert!(matches!(lock(&dead).unwrap(), Lock::Theirs));
        drop(first);
        let alive = OwnFolder::make(root.path(), name, false).unwrap();
        assert!(matches!(lock_shared(&alive.path).unwrap(), Lock::Theirs));
    }

    #[test]
    fn sweeps_what_is_not_locked() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        let alive = OwnFolder::make(root.path(), name, false).unwrap();
        let dead = OwnFolder::make(root.path(), name, false).unwrap().path;
        let other = OwnFolder::make(root.path(), OsStr::new("other"), false).unwrap().path;
        fs::write(dead.join("file"), b"x").unwrap();
        sweep(root.path(), name);
        assert!(alive.path.is_dir());
        assert!(!dead.exists());
        assert!(other.is_dir());
    }

    #[test]
    fn what_a_copy_has_left_stays_as_long_as_it_can_go_on() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        let copy = OwnFolder::of_copy(root.path(), name, false).unwrap();
        let path = copy.path.clone();
        let error = OwnFolder::of_copy(root.path(), name, false).unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::AlreadyExists);
        fs::write(path.join("journal"), b"").unwrap();
        drop(copy);
        sweep(root.path(), name);
        assert!(path.join("journal").is_file());
        // The copy was committed, but its folder was not removed.
        fs::remove_file(path.join("journal")).unwrap();
        let again = OwnFolder::of_copy(root.path(), name, true).unwrap();
        assert_eq!(crate::system::mode_of(&fs::metadata(&path).unwrap()) & 0o777, 0o700);
        sweep(root.path(), name);
        assert!(path.is_dir());
        drop(again);
        sweep(root.path(), name);
        assert!(!path.exists());
    }

    #[test]
    fn a_reader_waits_for_a_name_while_its_writer_lives() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("target");
        assert!(!reappears(&target), "no process has it");
        let aside = replaced_path(root.path(), OsStr::new("target")).unwrap();
        fs::create_dir(&aside).unwrap();
        assert!(!reappears(&target), "its writer is dead");
        let held = lock_target(&target, "save", None, &Monitor::new()).unwrap();
        let latest = root.path().join("latest");
        std::os::unix::fs::symlink("target", &latest).unwrap();
        std::thread::scope(|scope| {
            let readers = [&target, &latest].map(|path| scope.spawn(move || reappears(path)));
            std::thread::sleep(Duration::from_millis(50));
            assert!(readers.iter().all(|reader| !reader.is_finished()));
            fs::create_dir(&target).unwrap();
            assert!(readers.into_iter().all(|reader| reader.join().unwrap()));
        });
        drop(held);
    }

    #[test]
    fn no_reader_waits_at_a_link_that_leads_nowhere() {
        let root = tempfile::tempdir().unwrap();
        for (name, to) in [("dangling", "nothing"), ("round", "round"), ("outside", "../../nothing")] {
            let link = root.path().join(name);
            std::os::unix::fs::symlink(to, &link).unwrap();
            assert!(!reappears(&link), "{name}");
        }
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
        // The name was taken, so the second folder counted as one to remove after an overwrite.
        assert_eq!(fs::read(root.path().join("target/file")).unwrap(), b"first");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn who_only_finishes_removes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        let put = |path: &Path, content: &str| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("file"), content).unwrap();
        };
        let unfinished = OwnFolder::make(root.path(), name, false).unwrap().path;
        fs::write(unfinished.join("file"), "unfinished").unwrap();
        assert!(!finish(root.path(), name, None));
        assert!(unfinished.join("file").is_file());
        let aside = replaced_path(root.path(), name).unwrap();
        put(&aside, "old");
        assert!(finish(root.path(), name, None), "it has its name again");
        assert_eq!(fs::read(root.path().join("target/file")).unwrap(), b"old");
        // The overwrite was committed, so only the next save removes the old checkpoint.
        put(&aside, "older");
        assert!(!finish(root.path(), name, None));
        assert_eq!(fs::read(aside.join("file")).unwrap(), b"older");
        assert_eq!(fs::read(root.path().join("target/file")).unwrap(), b"old");
        // The folder belongs to the process that has the lock.
        let target = root.path().join(name);
        let held = lock_target(&target, "save", None, &Monitor::new()).unwrap();
        assert!(!sweep(root.path(), name));
        assert!(aside.is_dir() && !unfinished.exists());
        drop(held);
        assert!(!sweep(root.path(), name));
        assert!(!aside.exists());
        assert_eq!(fs::read(root.path().join("target/file")).unwrap(), b"old");
    }

    #[test]
    fn sweep_folder_cleans_all_names_and_leaves_live_writers() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let long = "x".repeat(KEPT_LEN_MAX_BYTES + 1);
        let dead: Vec<PathBuf> = ["a", "b", &long]
            .map(|name| OwnFolder::make(root.path(), OsStr::new(name), false).unwrap().path)
            .into();
        let live = OwnFolder::make(root.path(), OsStr::new("b"), false).unwrap();
        let aside = replaced_path(root.path(), OsStr::new("c")).unwrap();
        fs::create_dir(&aside).unwrap();
        for other in ["d.orbax-checkpoint-tmp-0", "e"] {
            fs::create_dir(path(other)).unwrap();
        }
        assert!(is_locked(&live.path) && !is_locked(&dead[0]) && !is_locked(&path("none")));
        sweep_folder(root.path());
        assert!(!dead[0].exists() && !dead[1].exists(), "their writers are dead");
        assert!(dead[2].exists(), "its target is not known");
        assert!(live.path.exists() && path("d.orbax-checkpoint-tmp-0").exists() && path("e").exists());
        assert!(path("c").is_dir() && !aside.exists(), "it has its name again");
    }

    #[test]
    fn a_copy_is_taken_by_one_at_a_time_and_private_where_it_is_to_be() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        let plain = OwnFolder::of_copy(root.path(), name, false).unwrap();
        assert!(!plain.has_beginning);
        fs::write(plain.path.join(JOURNAL), b"").unwrap();
        let path = plain.path.clone();
        drop(plain);
        let again = OwnFolder::of_copy(root.path(), name, false).unwrap();
        assert!(again.has_beginning && again.path == path);
        drop(again);
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, b"a file").unwrap();
        OwnFolder::of_copy(root.path(), name, false).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        let error = OwnFolder::of_copy(&root.path().join("none"), name, false).unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::NotFound);
    }
}
