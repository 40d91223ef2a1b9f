//! Locks of this process on files.
//!
//! ```text
//! .step_100.regrow.__lock      beside the target step_100, while a process changes it
//! ```
//! A forked child keeps a lock by `flock` even after its parent has ended, and a training loop
//! forks workers that may run longer than the loop. So these are record locks (`fcntl`), which
//! belong only to the process. A record lock does not exclude the process itself, so this module
//! also keeps a list of the process's locks. The system releases a lock when the process dies.
//!
//! The owner deletes the file of a target before it releases the lock. So a process that gets the
//! lock checks that the file still has its name, and otherwise tries again.
//!
//! If the file system has no locks, or if the folder of the target is read only, an operation goes
//! on without a lock. Then two processes must not change the same checkpoint at once.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::temporary::{no_name, shortened, split};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::lock::{Holder, TargetLock, WAIT_DEFAULT, busy};
use crate::monitor::Monitor;
use crate::stem_of;
use crate::store::local::folders::{LOCK_SUFFIX, make_folders};
use crate::system::{RecordLock, id_of, id_of_name, lock_record, look_at_record, set_mode};
use crate::traces::{Life, Trace, TraceKind};

/// Pause between two tries to take a lock.
const PACE: Duration = Duration::from_millis(5);

/// A longer text in a lock file is not read.
const HOLDER_LEN_MAX_BYTES: u64 = 4096;

/// The locks of this process, by the path of the file. Lock files are opened and closed only while
/// this list is locked, because closing any descriptor of a file releases the process's lock on it.
static HELD: Mutex<Locks> = Mutex::new(BTreeMap::new());

fn held() -> MutexGuard<'static, Locks> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock, released when it is dropped.
#[derive(Debug)]
pub struct Hold {
    path: PathBuf,
    file: Option<File>,
    /// The process that took the lock. A forked child does not have it.
    pid: u32,
    /// Whether the file is deleted at the end.
    is_temporary: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            let mut held = held();
            if self.is_temporary {
                // A network file system may fail for a moment. A file that stays does no harm.
                let _ = fs::remove_file(&self.path).or_else(|_| fs::remove_file(&self.path));
            }
            self.file = None;
            held.remove(&self.path);
        }
    }
}

/// The result of an attempt to lock a file.
enum Tried {
    /// This process has the lock. The flag is false if the file system has no locks: then the file
    /// only shows readers that a process changes the target.
    Ours(Hold, bool),
    /// Another process or thread has the lock.
    Theirs(Option<Holder>),
    /// The owner has just deleted the file.
    Again,
}

type Locks = BTreeMap<PathBuf, (u32, Holder)>;

/// The operation of this process that has the lock. A forked child has a copy of its parent's list.
fn own_holder(held: &Locks, path: &Path) -> Option<Holder> {
    held.get(path).filter(|(pid, _)| *pid == std::process::id()).map(|(_, holder)| holder.clone())
}

fn try_lock(path: &Path, holder: &Holder, is_temporary: bool) -> io::Result<Tried> {
    let mut held = held();
    if let Some(holder) = own_holder(&held, path) {
        return Ok(Tried::Theirs(Some(holder)));
    }
    if is_temporary && fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let is_sure = match lock_record(&file) {
        Ok(RecordLock::Ours) => true,
        Ok(RecordLock::Theirs) => return Ok(Tried::Theirs(read_holder(&file))),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Tried::Again),
        // A save does not fail because its lock fails.
        Ok(RecordLock::Missing) | Err(_) => false,
    };
    if is_temporary {
        let is_deleted = match id_of_name(path) {
            Ok(named) => id_of(&file).is_ok_and(|locked| locked != named),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if is_deleted {
            return Ok(Tried::Again);
        }
        // Other users of a shared folder must be able to lock the file, too.
        let _ = set_mode(path, 0o666);
        // The text is for people. The lock works without it, for example on a full disk.
        let text = serde_json::to_string(holder).unwrap_or_default() + "\n";
        let _ = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
    }
    let pid = std::process::id();
    held.insert(path.to_owned(), (pid, holder.clone()));
    Ok(Tried::Ours(Hold { path: path.to_owned(), file: Some(file), pid, is_temporary }, is_sure))
}

fn read_holder(file: &File) -> Option<Holder> {
    let mut text = Vec::new();
    file.take(HOLDER_LEN_MAX_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Locks a file, and makes the file if necessary; `None` if the file system has no locks.
///
/// # Errors
/// `AlreadyExists` if this or another process already has the lock; errors of the file system.
pub(crate) fn hold(path: &Path) -> Result<Option<Hold>> {
    let cannot = |error| Error::io("cannot lock", path, error);
    let folder = path.parent().ok_or_else(|| Error::invalid("the lock needs another name").in_file(path))?;
    make_folders(folder).map_err(cannot)?;
    let path = in_resolved_folder(path).ok_or_else(|| cannot(io::ErrorKind::NotFound.into()))?;
    match try_lock(&path, &Holder::new("write steps"), false).map_err(cannot)? {
        Tried::Ours(hold, is_sure) => Ok(is_sure.then_some(hold)),
        Tried::Theirs(_) | Tried::Again => {
            Err(Error::new(ErrorKind::AlreadyExists, "another process holds the lock").in_file(path))
        }
    }
}

/// The target without links in its path; `None` if its folder does not exist.
pub(super) fn resolved(target: &Path) -> Result<Option<PathBuf>> {
    // Not `target::absolute`: a path such as `..` has no name, but leads to a checkpoint.
    let absolute = std::path::absolute(target).map_err(|_| no_name(target))?;
    Ok(absolute.canonicalize().ok().or_else(|| in_resolved_folder(&absolute)))
}

/// The same file, without links in the path of its folder. The list of locks has only such paths.
fn in_resolved_folder(file: &Path) -> Option<PathBuf> {
    let (folder, name) = split(file).ok()?;
    Some(folder.canonicalize().ok()?.join(name))
}

/// The path of the lock file of a target. A link is followed, and a file of a pair has the lock of
/// its stem, so that all names of a checkpoint lead to one lock.
pub(super) fn lock_path(target: &Path) -> Result<Option<PathBuf>> {
    // Without its folder there is no checkpoint.
    let Some(resolved) = resolved(target)? else { return Ok(None) };
    let (parent, name) = split(&resolved)?;
    let name = name.to_str().map_or(name, |name| OsStr::new(stem_of(name)));
    let mut file = OsString::from(".");
    file.push(shortened(name).as_deref().unwrap_or(name));
    file.push(suffix());
    Ok(Some(parent.join(file)))
}

fn suffix() -> String {
    format!(".regrow{LOCK_SUFFIX}")
}

/// Whether a file has the name of the lock of a target.
pub(super) fn is_lock(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(suffix().as_bytes())
}

/// Deletes a file that is the lock of any target, if a dead process has left it.
pub(super) fn sweep_lock(file: &Path) {
    if is_lock(file)
        && let Some(file) = in_resolved_folder(file)
    {
        // Dropping the lock deletes the file.
        let _ = try_lock(&file, &Holder::new("sweep"), true);
    }
}

/// Takes the lock of a target. Waits at most `wait` for another process that has it.
///
/// # Errors
/// `Busy`; `InvalidArgument` if the lock file is something else than a file; `Cancelled`; errors of
/// the file system.
pub(super) fn lock_target(
    target: &Path,
    operation: &str,
    wait: Option<Duration>,
    monitor: &Monitor,
) -> Result<TargetLock> {
    let Some(path) = lock_path(target)? else { return Ok(TargetLock::default()) };
    let holder = Holder::new(operation);
    let began = Instant::now();
    loop {
        match try_lock(&path, &holder, true) {
            Ok(Tried::Ours(hold, is_sure)) => return Ok(TargetLock::new(String::new(), is_sure, hold)),
            Ok(Tried::Theirs(other)) if began.elapsed() >= wait.unwrap_or(WAIT_DEFAULT) => {
                return Err(busy(&Location::local(target), other.as_ref()));
            }
            Ok(Tried::Theirs(_) | Tried::Again) => {}
            Err(error) => return without_lock(&path, error).map(|()| TargetLock::default()),
        }
        monitor.check()?;
        std::thread::sleep(PACE);
    }
}

/// Whether an operation goes on although the lock file cannot be opened: the folder is read only,
/// or belongs to another user, or the disk is full.
fn without_lock(path: &Path, error: io::Error) -> Result<()> {
    use io::ErrorKind::{NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match (fs::symlink_metadata(path), error.kind()) {
        (Err(_), NotFound | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull) => Ok(()),
        (Ok(found), _) if !found.is_file() => {
            Err(Error::invalid("the lock file of this checkpoint is not a file")
                .in_file(path)
                .expected("a file", if found.is_dir() { "a folder" } else { "a link or special file" })
                .help("move it elsewhere"))
        }
        _ => Err(Error::io("cannot lock", path, error)
            .help("the file is the lock of the checkpoint beside it: make it writable, or remove it if no process uses the checkpoint")),
    }
}

/// How a target is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// No process has the lock.
    Free,
    /// A process has the lock. If its text cannot be read, the process is unknown.
    By(Option<Holder>),
    /// The lock file exists, but the file system has no locks.
    Unknown,
}

/// Looks at the lock of a target.
pub fn look_at_lock(target: &Path) -> Held {
    let Ok(Some(path)) = lock_path(target) else { return Held::Free };
    look_at_file(&path).0
}

/// Looks at a lock file. Returns its text too, if it can be read.
fn look_at_file(path: &Path) -> (Held, Option<Holder>) {
    let held = held();
    if let Some(holder) = own_holder(&held, path) {
        return (Held::By(Some(holder.clone())), Some(holder));
    }
    let Ok(file) = File::open(path) else { return (Held::Free, None) };
    let holder = read_holder(&file);
    match look_at_record(&file) {
        Ok(RecordLock::Ours) => (Held::Free, holder),
        Ok(RecordLock::Theirs) => (Held::By(holder.clone()), holder),
        Ok(RecordLock::Missing) | Err(_) => (Held::Unknown, holder),
    }
}

/// The lock file at this path, as people want to know it; `None` if there is none.
pub(super) fn trace_of_lock(path: &Path) -> Option<Trace> {
    let path = &in_resolved_folder(path)?;
    let found = fs::symlink_metadata(path).ok()?;
    let (held, owner) = if found.is_file() { look_at_file(path) } else { (Held::Unknown, None) };
    let life = match held {
        Held::By(_) => Life::Alive,
        Held::Free => Life::Dead,
        Held::Unknown => Life::Unknown,
    };
    let error = match found.is_file() && may_write(path) {
        true => None,
        false => without_lock(path, io::ErrorKind::PermissionDenied.into()).err(),
    };
    Some(Trace { path: path.to_owned(), kind: TraceKind::Lock, owner, phase: None, life, error })
}

/// Whether this process may open a lock file to lock it.
fn may_write(path: &Path) -> bool {
    let held = held();
    own_holder(&held, path).is_some() || File::options().read(true).write(true).open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn lock(target: &Path, wait: Option<Duration>) -> Result<TargetLock> {
        lock_target(target, "repair", wait, &Monitor::new())
    }

    #[test]
    fn files_of_a_pair_have_the_lock_of_their_stem() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("x.manifest"), "x").unwrap();
        let held = lock(&path("x"), NOW).unwrap();
        for name in ["x", "x.data", "x.manifest"] {
            assert_eq!(lock(&path(name), NOW).unwrap_err().kind(), ErrorKind::Busy, "{name}");
        }
        drop(held);
        drop(lock(&path("x.manifest"), NOW).unwrap());
    }

    #[test]
    fn a_lock_is_exclusive_while_held_and_shared_after() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/lock");
        let held = hold(&path).unwrap();
        assert!(held.is_some(), "this file system has locks");
        assert_eq!(hold(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        // Another name of the folder leads to the same lock.
        std::os::unix::fs::symlink("a", root.path().join("c")).unwrap();
        assert_eq!(hold(&root.path().join("c/b/lock")).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let other = hold(&root.path().join("a/b/other")).unwrap();
        drop(held);
        assert!(hold(&path).unwrap().is_some());
        drop(other);
    }

    #[test]
    fn the_error_names_the_owner_and_the_file_goes_with_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("step_1");
        std::os::unix::fs::symlink("step_1", root.path().join("latest")).unwrap();
        assert_eq!(look_at_lock(&target), Held::Free);
        let first = lock(&target, NOW).unwrap();
        assert!(first.is_sure);
        fs::create_dir_all(target.join("inside")).unwrap();
        // Every name of the target leads to the same lock.
        for name in ["step_1", "latest", "step_1/inside/.."] {
            let error = lock(&root.path().join(name), NOW).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
            assert!(error.to_string().contains("repair"), "{error}");
        }
        let Held::By(Some(holder)) = look_at_lock(&target) else { panic!("the lock is held") };
        assert_eq!((holder.pid, holder.operation.as_str()), (std::process::id(), "repair"));
        lock(&root.path().join("step_2"), NOW).unwrap();
        drop(first);
        assert_eq!(look_at_lock(&target), Held::Free);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "no lock file stays");
    }

    #[test]
    fn a_sweep_by_another_name_of_the_folder_leaves_the_lock() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("real/sub")).unwrap();
        std::os::unix::fs::symlink("real", root.path().join("link")).unwrap();
        let target = root.path().join("real/x");
        let held = lock(&target, NOW).unwrap();
        let file = lock_path(&target).unwrap().unwrap();
        for folder in ["real", "link", "real/sub/..", "link/sub/.."] {
            let other = root.path().join(folder).join(file.file_name().unwrap());
            sweep_lock(&other);
            assert_eq!(trace_of_lock(&other).unwrap().life, Life::Alive, "{folder}");
            assert!(file.exists(), "{folder}");
            // Another process would not get the lock either.
            let asked = std::process::Command::new("python3")
                .args([
                    "-c",
                    "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)",
                ])
                .arg(&file)
                .output()
                .unwrap();
            assert!(!asked.status.success(), "{folder}: the system has no lock any more");
        }
        drop(held);
        assert!(!file.exists());
    }

    #[test]
    fn a_second_thread_waits_and_a_cancelled_one_does_not() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("x");
        let first = lock(&target, NOW).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| lock(&target, None).map(|_| Instant::now()));
            std::thread::sleep(Duration::from_millis(50));
            let freed = Instant::now();
            drop(first);
            assert!(second.join().unwrap().unwrap() >= freed);
        });
        let _first = lock(&target, NOW).unwrap();
        let monitor = Monitor::new();
        monitor.cancel();
        let error = lock_target(&target, "save", None, &monitor).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn many_threads_have_the_lock_one_after_the_other() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("x");
        let count = Mutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _lock = lock(&target, None).unwrap();
                        let mut alone = count.try_lock().expect("two threads have the lock");
                        *alone += 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock().unwrap(), 160);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_file_that_is_no_file_is_an_error_and_a_file_of_the_dead_is_none() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("x");
        let path = lock_path(&target).unwrap().unwrap();
        fs::create_dir(&path).unwrap();
        let error = lock(&target, NOW).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        fs::remove_dir(&path).unwrap();
        for text in ["", "no JSON", "{\"pid\": 1}"] {
            fs::write(&path, text).unwrap();
            assert_eq!(look_at_lock(&target), Held::Free);
            drop(lock(&target, NOW).unwrap());
            assert!(!path.exists(), "{text}");
        }
        assert!(lock(&root.path().join("none/x"), NOW).is_ok(), "there is no checkpoint");
    }

    #[test]
    fn without_a_lock_file_an_operation_goes_on_if_the_folder_takes_no_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(".x.regrow.__lock");
        for (kind, goes_on) in [
            (io::ErrorKind::ReadOnlyFilesystem, true),
            (io::ErrorKind::PermissionDenied, true),
            (io::ErrorKind::StorageFull, true),
            (io::ErrorKind::InvalidInput, false),
        ] {
            assert_eq!(without_lock(&path, kind.into()).is_ok(), goes_on, "{kind:?}");
        }
        // The lock file of another user, whose owner may live.
        fs::write(&path, b"").unwrap();
        let error = without_lock(&path, io::ErrorKind::PermissionDenied.into()).unwrap_err();
        assert!(error.help_text().is_some_and(|help| help.contains("make it writable")), "{error}");
    }
}
