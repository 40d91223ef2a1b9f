//! Locks of the temporary folders of saves, and the removal of files of killed writers.
//!
//! The lock is `flock` on the folder itself: the kernel releases it when the writer dies in any
//! way. If the file system has no locks, the folder of an unfinished save is never removed.
//!
//! A process that writes or removes takes the exclusive lock. A process that only asks whether the
//! writer lives takes a shared lock, so that two readers do not treat each other as a writer.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::lock::{Held, lock_target, look_at_lock, sweep_lock};
use super::rename::rename_new;
use super::siblings;
use super::temporary::{Kind, copy_path, kind_in, kind_of, name_in, split, temporary_path};
use crate::UNCOMMITTED_MARK;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::TargetLock;
use crate::monitor::Monitor;
use crate::store::local::folders::sync_folder;
use crate::system::{id_of, id_of_name, make_folder, open_folder_no_link, set_mode};
use crate::traces::{Life, Trace, TraceKind};

/// Pause between two attempts to lock a folder.
const PACE: Duration = Duration::from_millis(1);

/// Attempts to lock a folder. Readers hold its lock for about `PACE`, and many readers may take it
/// one after the other. Another writer may remove a new folder before it is locked.
const TRIES: usize = 100;

/// The list of the files that a copy has finished.
pub(super) const JOURNAL: &str = "journal";

/// The folder for the files, below the temporary folder. Readers do not treat a folder with this
/// name as a checkpoint.
pub(super) const FILES: &str = ".orbax-checkpoint-tmp-files";

/// A temporary folder of this process, and its lock.
#[derive(Debug)]
pub(super) struct OwnFolder {
    pub(super) path: PathBuf,
    /// Whether an earlier copy has left files to continue from.
    pub(super) has_beginning: bool,
    _lock: File,
}

impl OwnFolder {
    /// Makes a temporary folder for `name` in `parent` and locks it. With `private` its mode is
    /// 0700. All copies to `name` use the same folder, so files of an earlier copy stay.
    ///
    /// # Errors
    /// `AlreadyExists` if another copy has the folder.
    pub(super) fn make(parent: &Path, name: &OsStr, private: bool, is_copy: bool) -> Result<Self> {
        let mode = if private { 0o700 } else { 0o777 };
        for _ in 0..TRIES {
            let path = match is_copy {
                true => copy_path(parent, name),
                false => temporary_path(parent, name)?,
            };
            let cannot = |error| Error::io("cannot make and lock", &path, error);
            match make_folder(&path, mode) {
                Err(error) if is_copy && error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.map_err(cannot)?,
            }
            match lock(&path) {
                Ok(Lock::Ours(lock) | Lock::Unlockable(lock)) => {
                    if is_copy && private {
                        set_mode(&path, mode).map_err(cannot)?;
                    }
                    let has_beginning = has_journal(&path);
                    return Ok(Self { path, has_beginning, _lock: lock });
                }
                // The lock belongs to another copy, or to a process that looks or removes.
                Ok(Lock::Theirs) => std::thread::sleep(PACE),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    // The empty folder of a copy may belong to another process.
                    if !is_copy {
                        let _ = fs::remove_dir(&path);
                    }
                    return Err(cannot(error));
                }
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "another process uses the temporary folder of this target")
            .in_file(parent.join(name))
            .help(format!("wait until it ends: it has locked {}", copy_path(parent, name).display())))
    }
}

/// Whether the next copy continues from the files in a temporary folder.
fn has_journal(folder: &Path) -> bool {
    fs::symlink_metadata(folder.join(JOURNAL)).is_ok()
}

/// The temporary folders of regrow for `name`, and their kinds.
fn folders_of(parent: &Path, name: &OsStr) -> Vec<(PathBuf, Kind)> {
    of_name(fs::read_dir(parent).into_iter().flatten().flatten(), name)
}

fn of_name(entries: impl IntoIterator<Item = DirEntry>, name: &OsStr) -> Vec<(PathBuf, Kind)> {
    let entries = entries.into_iter();
    entries.filter_map(|entry| Some((entry.path(), kind_of(&entry.file_name(), name)?))).collect()
}

/// The temporary folders of running and killed saves and copies to `name`, including Orbax' own.
pub(super) fn leftovers_of(parent: &Path, name: &OsStr) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let is_left = |entry: &OsStr| {
        let rest = entry.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        kind_of(entry, name).is_some()
            || rest.is_some_and(|rest| rest.starts_with(UNCOMMITTED_MARK.as_bytes()))
    };
    let left = entries.filter(|entry| is_left(&entry.file_name()));
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
/// no process holds. Finishes begun commits first. Files that cannot be removed stay; they do no
/// harm. Returns whether a checkpoint got its name back.
pub(super) fn sweep(parent: &Path, name: &OsStr) -> bool {
    let entries: Vec<DirEntry> = fs::read_dir(parent).into_iter().flatten().flatten().collect();
    entries.iter().for_each(|entry| sweep_lock(&entry.path()));
    let left = of_name(entries, name);
    let has_named = finish_all(parent, name, &left, None);
    for (path, kind) in &left {
        if *kind != Kind::Replaced
            && let Ok(Lock::Ours(_lock)) = lock(path)
            && !(*kind == Kind::Copy && has_journal(path))
            && !siblings::has_begun(path)
        {
            remove(path);
        }
    }
    has_named
}

/// As `sweep`, for every name in a folder. Files of a name that is too long for temporary names
/// stay for the next save to that name.
pub fn sweep_folder(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names: BTreeSet<OsString> = entries.filter_map(|entry| name_in(&entry.file_name())).collect();
    for name in names {
        sweep(folder, &name);
    }
}

/// Finishes the commits to `name` that dead writers have begun, and removes no other file. Returns
/// whether a checkpoint got its name back. The caller may have the lock of the target.
pub(super) fn finish(parent: &Path, name: &OsStr, lock: Option<&TargetLock>) -> bool {
    finish_all(parent, name, &folders_of(parent, name), lock)
}

/// How long a sweep waits for the lock of a target that a dead writer has left without a name.
const NAME_WAIT: Duration = Duration::from_millis(100);

fn finish_all(parent: &Path, name: &OsStr, left: &[(PathBuf, Kind)], lock: Option<&TargetLock>) -> bool {
    let is_unnamed = |(path, kind): &&(PathBuf, Kind)| *kind == Kind::Replaced || siblings::has_begun(path);
    let unnamed: Vec<_> = left.iter().filter(is_unnamed).collect();
    let finish = |lock: &TargetLock| {
        let finish = |(path, kind): &&&(PathBuf, Kind)| finish_one(&parent.join(name), path, *kind, lock);
        unnamed.iter().filter(finish).count() > 0
    };
    let take = || lock_target(&parent.join(name), "finish a save", Some(NAME_WAIT), &Monitor::new());
    match lock {
        _ if unnamed.is_empty() => false,
        Some(lock) => finish(lock),
        // A live process that has the lock is about to give the names itself.
        None => take().is_ok_and(|lock| finish(&lock)),
    }
}

/// Restores the target from the temporary folder of a dead writer, or finishes its commit. Returns
/// whether a checkpoint got its name back.
fn finish_one(target: &Path, path: &Path, kind: Kind, lock: &TargetLock) -> bool {
    let parent = target.parent().unwrap_or(target);
    let finished = match kind {
        Kind::Replaced => match rename_new(path, target) {
            // The overwrite was committed; the removal of the old checkpoint is missing, and
            // perhaps the sync before it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => sync_folder(parent).map(|()| false),
            renamed => renamed.map(|()| true),
        },
        // Without locks, the writer may live.
        _ if !lock.is_sure => return false,
        _ => siblings::finish(path, parent),
    };
    if finished.is_ok() {
        remove(path);
    }
    finished.unwrap_or(false)
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
    let (parent, name) = split(stem).ok()?;
    let mut found = None;
    for (path, _) in folders_of(parent, name) {
        if !siblings::has_begun(&path) {
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
    // Writers replace the path to which links lead. Linux follows at most 40 links.
    let mut named = path.to_owned();
    for _ in 0..40 {
        let Ok(to) = fs::read_link(&named) else { break };
        named = named.with_file_name(to);
    }
    let mut quiet = 0;
    // Between two looks one writer may end and the next begin, so one quiet look is not enough.
    while !is_there() && quiet < 3 && since.elapsed() < OVERWRITE_WAIT {
        match is_being_replaced(&named) {
            true => std::thread::sleep(PACE),
            false => quiet += 1,
        }
    }
    is_there()
}

/// Whether an overwrite by a live writer has moved the folder at `path` aside.
fn is_being_replaced(path: &Path) -> bool {
    let Ok((parent, name)) = split(path) else { return false };
    let is_aside = || folders_of(parent, name).iter().any(|(_, kind)| *kind == Kind::Replaced);
    is_aside() && look_at_lock(path) != Held::Free
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
        let dead = OwnFolder::make(root.path(), name, false, false).unwrap().path;
        let first = lock_shared(&dead).unwrap();
        assert!(matches!(first, Lock::Ours(_)));
        assert!(matches!(lock_shared(&dead).unwrap(), Lock::Ours(_)));
        assert!(matches!(lock(&dead).unwrap(), Lock::Theirs));
        drop(first);
        let alive = OwnFolder::make(root.path(), name, false, false).unwrap();
        assert!(matches!(lock_shared(&alive.path).unwrap(), Lock::Theirs));
    }

    #[test]
    fn sweeps_what_is_not_locked() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        let alive = OwnFolder::make(root.path(), name, false, false).unwrap();
        let dead = OwnFolder::make(root.path(), name, false, false).unwrap().path;
        let other = OwnFolder::make(root.path(), OsStr::new("other"), false, false).unwrap().path;
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
        let copy = OwnFolder::make(root.path(), name, false, true).unwrap();
        let path = copy.path.clone();
        let error = OwnFolder::make(root.path(), name, false, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        fs::write(path.join("journal"), b"").unwrap();
        drop(copy);
        sweep(root.path(), name);
        assert!(path.join("journal").is_file());
        // The copy was committed, but its folder was not removed.
        fs::remove_file(path.join("journal")).unwrap();
        let again = OwnFolder::make(root.path(), name, true, true).unwrap();
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
        let (best, latest) = (root.path().join("best"), root.path().join("latest"));
        std::os::unix::fs::symlink("target", &best).unwrap();
        std::os::unix::fs::symlink("best", &latest).unwrap();
        std::thread::scope(|scope| {
            let readers = [&target, &best, &latest].map(|path| scope.spawn(move || reappears(path)));
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
    fn who_only_finishes_removes_no_unfinished_save() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("target");
        let put = |path: &Path, content: &str| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("file"), content).unwrap();
        };
        let unfinished = OwnFolder::make(root.path(), name, false, false).unwrap().path;
        fs::write(unfinished.join("file"), "unfinished").unwrap();
        assert!(!finish(root.path(), name, None));
        assert!(unfinished.join("file").is_file());
        let aside = replaced_path(root.path(), name).unwrap();
        put(&aside, "old");
        assert!(finish(root.path(), name, None), "it has its name again");
        assert_eq!(fs::read(root.path().join("target/file")).unwrap(), b"old");
        // The overwrite was committed, so the old checkpoint goes.
        put(&aside, "older");
        assert!(!finish(root.path(), name, None));
        assert!(!aside.exists() && unfinished.join("file").is_file());
        assert_eq!(fs::read(root.path().join("target/file")).unwrap(), b"old");
        put(&aside, "older");
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
            .map(|name| OwnFolder::make(root.path(), OsStr::new(name), false, false).unwrap().path)
            .into();
        let live = OwnFolder::make(root.path(), OsStr::new("b"), false, false).unwrap();
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
        let plain = OwnFolder::make(root.path(), name, false, true).unwrap();
        assert!(!plain.has_beginning);
        fs::write(plain.path.join(JOURNAL), b"").unwrap();
        let path = plain.path.clone();
        drop(plain);
        let again = OwnFolder::make(root.path(), name, false, true).unwrap();
        assert!(again.has_beginning && again.path == path);
        drop(again);
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, b"a file").unwrap();
        OwnFolder::make(root.path(), name, false, true).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        let error = OwnFolder::make(&root.path().join("none"), name, false, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
