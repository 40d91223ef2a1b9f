//! Properties of the machine, of the file system of a checkpoint, and of the processes that change
//! the checkpoint.
//!
//! | function | finds |
//! |---|---|
//! | [`machine`] | processors, memory, and the part of them that a save or load uses |
//! | [`disk`] | the file system, its free space, and its [abilities](Ability), found by tests |
//! | [`traces`] | the lock of a checkpoint, and temporary files of running and killed processes |
//!
//! `disk` writes a few kilobytes into a temporary folder, and then removes the folder. The others
//! only read.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::bytes::available::available_bytes;
pub use crate::commit::Ability;
use crate::commit::probe;
use crate::error::{Error, Result};
use crate::location::ToLocation;
use crate::options::BUDGET_DEFAULT_BYTES;
use crate::system::room;
use crate::threads::thread_count;
pub use regrow_storage::{Holder, Life, Trace, TraceKind};

/// The properties of the machine that matter for saves and loads.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Machine {
    /// Processors that this process may use; `None` if the system does not say.
    pub cores: Option<usize>,
    /// The default number of threads of a save or load.
    pub threads: usize,
    /// Memory that is available without swapping, according to the system and the process's
    /// cgroup; `None` if neither says.
    pub memory_available_bytes: Option<u64>,
    /// The memory that a save or load uses by default, in addition to the arrays.
    pub budget_bytes: u64,
}

/// The properties of the machine on which this process runs.
pub fn machine() -> Machine {
    Machine {
        cores: thread::available_parallelism().ok().map(Into::into),
        threads: thread_count(),
        memory_available_bytes: available_bytes(),
        budget_bytes: BUDGET_DEFAULT_BYTES,
    }
}

/// The properties of a file system, found through one of its folders.
#[derive(Debug)]
#[non_exhaustive]
pub struct Disk {
    /// The folder that was examined.
    pub folder: PathBuf,
    /// The kind, by the system's name for it: `ext4`, `nfs4`, `fuse.sshfs`; `None` if the system
    /// does not say.
    pub kind: Option<String>,
    /// Free bytes for this user's files; `None` if the file system does not say.
    pub free_bytes: Option<u64>,
    /// The size of the file system in bytes; `None` if the file system does not say.
    pub total_bytes: Option<u64>,
    /// How many more files and folders fit on the disk; `None` if there is no limit, or the limit
    /// is unknown.
    pub free_files: Option<u64>,
    /// Each ability, and whether the disk has it; an error if the folder is not writable.
    pub abilities: Result<Vec<(Ability, bool)>>,
}

/// Examines the file system of a folder.
///
/// # Errors
/// `NotFound` if the folder does not exist; errors of the file system.
pub fn disk(folder: &Path) -> Result<Disk> {
    let absolute = folder.canonicalize().map_err(|error| Error::io("cannot open", folder, error))?;
    let room = room(&absolute).ok();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Ok(Disk {
        kind: kind_of(&absolute, &mounts),
        free_bytes: room.map(|room| room.free_bytes),
        total_bytes: room.map(|room| room.total_bytes),
        free_files: room.and_then(|room| room.free_files),
        abilities: probe(&absolute),
        folder: absolute,
    })
}

/// The lock of the checkpoint at a path or URL, and the temporary files of saves and copies to it.
/// For a folder of steps on a disk, also those of the steps.
///
/// # Errors
/// Errors of the storage.
pub fn traces(at: impl ToLocation) -> Result<Vec<Trace>> {
    at.to_location()?.traces()
}

/// The kind of the file system that is mounted nearest above a folder. If two file systems are
/// mounted at the same path, the later one hides the earlier one.
///
/// Source: proc_pid_mountinfo(5): `36 35 98:0 /root /mount/point rw,noatime master:1 - ext3
/// /dev/root rw`
fn kind_of(folder: &Path, mounts: &str) -> Option<String> {
    let of_line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = unescaped(before.split(' ').nth(4)?);
        let kind = after.split(' ').next()?;
        folder.starts_with(&point).then(|| (point.len(), kind.to_owned()))
    };
    mounts.lines().filter_map(of_line).max_by_key(|(len, _)| *len).map(|(_, kind)| kind)
}

/// Decodes a path of mountinfo, in which spaces, tabs, line feeds and backslashes are octal
/// (`\040`).
fn unescaped(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /data/runs rw - nfs4 server:/runs rw
31 22 0:26 / /data/my\\040runs rw shared:2 master:1 - fuse.sshfs me@there: rw
32 30 0:27 / /data/runs rw - xfs /dev/vdb rw
";

    #[test]
    fn the_nearest_mount_above_counts_and_of_two_the_later() {
        for (folder, kind) in
            [("/", "ext4"), ("/data/runs/1", "xfs"), ("/data/runsx", "ext4"), ("/data/my runs", "fuse.sshfs")]
        {
            assert_eq!(kind_of(Path::new(folder), MOUNTS).as_deref(), Some(kind), "{folder}");
        }
        assert_eq!(kind_of(Path::new("/"), ""), None);
        assert_eq!(kind_of(Path::new("/"), "a line of another kind - \n"), None);
    }

    #[test]
    fn a_disk_has_room_and_a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let found = disk(folder.path()).unwrap();
        assert!(found.kind.is_some() && found.total_bytes >= found.free_bytes, "{found:?}");
        assert!(found.abilities.is_ok(), "{found:?}");
        let error = disk(&folder.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NotFound);
    }
}
