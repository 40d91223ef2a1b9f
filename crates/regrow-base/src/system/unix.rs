//! Common parts of Linux, macOS and BSD.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
pub use std::os::unix::fs::FileExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{FlockOperation, OFlags, fcntl_lock, fstatvfs, statvfs};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk, test_kill_process};

use super::kinds::{FileId, FileState, Pattern, RecordLock, Room};

/// Options that open a file of any kind for reading. Opening does not wait, even for the other end
/// of a pipe.
pub fn reading() -> OpenOptions {
    reading_with(OFlags::empty())
}

/// As `reading`, but a link in the last part of the path is an error.
pub fn reading_no_link() -> OpenOptions {
    reading_with(OFlags::NOFOLLOW)
}

fn reading_with(flags: OFlags) -> OpenOptions {
    let mut options = File::options();
    options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY | flags).bits().cast_signed());
    options
}

/// Opens a folder, to lock it, to sync it or to identify it.
pub fn open_folder(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).open(path)
}

/// As `open_folder`, but a link is an error.
pub fn open_folder_no_link(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Options that make a new file which only this user may read and write.
#[cfg(feature = "cloud")]
pub fn private_file() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    options
}

/// Syncs a file to the disk. On macOS, `std` calls `F_FULLFSYNC`. Without it the bytes may still be
/// in the disk's own memory.
pub fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        // Network file systems of macOS may lack this call, but have `fsync`.
        #[cfg(target_os = "macos")]
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput) => {
            Ok(rustix::fs::fsync(file)?)
        }
        other => other,
    }
}

/// Syncs the file at a path.
pub fn sync_at(path: &Path) -> io::Result<()> {
    sync(&File::open(path)?)
}

/// Syncs the names in a folder; `false` if the file system cannot.
pub fn sync_folder(path: &Path) -> io::Result<bool> {
    match sync(&File::open(path)?) {
        Ok(()) => Ok(true),
        // Some systems answer EBADF for a descriptor that is open only for reading.
        Err(error) if is_lacking(&error) || is(&error, Errno::BADF) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether this error means that the file system lacks a call. FUSE, CIFS, exFAT, Lustre and others
/// return these errors. Some of them return `EPERM` or `EACCES`, but those also have other
/// meanings.
pub(super) fn is_lacking(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOTTY].into_iter().any(|lacking| is(error, lacking))
}

fn is(error: &io::Error, number: Errno) -> bool {
    error.raw_os_error() == Some(number.raw_os_error())
}

/// Reads into the reserved space of a vector and extends the vector by the bytes read. Returns
/// their number; 0 at the end of the file.
pub fn append_at(file: &File, bytes: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
    Ok(rustix::io::pread(file, spare_capacity(bytes), offset)?)
}

/// The identity of an open file.
pub fn id_of(file: &File) -> io::Result<FileId> {
    file.metadata().map(|found| id_in(&found))
}

/// The identity of the file or folder at a path. Links are followed.
pub fn id_at(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|found| id_in(&found))
}

/// The identity of the file, folder or link at a path. Links are not followed.
pub fn id_of_name(path: &Path) -> io::Result<FileId> {
    fs::symlink_metadata(path).map(|found| id_in(&found))
}

fn id_in(found: &Metadata) -> FileId {
    FileId { device: found.dev(), number: found.ino() }
}

/// The state of the file at a path. Links are followed.
pub fn look(path: &Path) -> io::Result<FileState> {
    fs::metadata(path).map(|found| state_in(&found))
}

/// The state of an open file.
pub fn look_at(file: &File) -> io::Result<FileState> {
    file.metadata().map(|found| state_in(&found))
}

fn state_in(found: &Metadata) -> FileState {
    FileState {
        is_file: found.is_file(),
        len_bytes: found.len(),
        id: id_in(found),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    }
}

/// The kind of an entry that is not a file, folder or link, for messages.
pub fn name_of_special(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// The mode: the permissions of owner, group and others, and the special bits.
pub fn mode_of(found: &Metadata) -> u32 {
    found.mode()
}

/// Sets the mode of a file or folder.
///
/// # Errors
/// Errors of the system, unless the mode is already right: CIFS and exFAT refuse every change.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode)).or_else(|error| match fs::metadata(path) {
        Ok(found) if found.mode() & 0o7777 == mode & 0o7777 => Ok(()),
        _ => Err(error),
    })
}

/// As `set_mode`, but if modes cannot be changed, fewer permissions than requested are enough.
///
/// # Errors
/// Errors of the system, if the file has other permissions than requested.
pub fn set_mode_or_less(path: &Path, mode: u32) -> io::Result<()> {
    set_mode(path, mode).or_else(|error| match fs::metadata(path) {
        Ok(found) if found.mode() & 0o777 & !mode == 0 => Ok(()),
        _ => Err(error),
    })
}

/// Makes a folder with this mode, reduced by the process's umask.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

/// Makes a folder and its missing parents with mode 0700.
#[cfg(feature = "cloud")]
pub fn make_private_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The user number of the owner.
#[cfg(feature = "cloud")]
pub fn owner_of(found: &Metadata) -> u32 {
    found.uid()
}

/// The user number of this process.
#[cfg(feature = "cloud")]
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether two files have the same owner and group.
pub fn have_same_owner(one: &Metadata, other: &Metadata) -> bool {
    (one.uid(), one.gid()) == (other.uid(), other.gid())
}

/// Gives a file or folder the owner and group of another. Only the super-user can give files to
/// other users.
pub fn give_to_owner_of(other: &Metadata, path: &Path) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(other.uid()), Some(other.gid()))
}

/// Locks a file with a record lock. It belongs to this process, and not to its children.
pub fn lock_record(file: &File) -> io::Result<RecordLock> {
    match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(RecordLock::Ours),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(RecordLock::Theirs),
        Err(error) if has_no_locks(&error.into()) => Ok(RecordLock::Missing),
        Err(error) => Err(error.into()),
    }
}

/// Whether another process holds a lock on a file, without taking it: `Ours` if no process does.
pub fn look_at_record(file: &File) -> io::Result<RecordLock> {
    match fcntl_getlk(file, &Flock::from(FlockType::WriteLock)) {
        Ok(None) => Ok(RecordLock::Ours),
        Ok(Some(_)) => Ok(RecordLock::Theirs),
        Err(error) if has_no_locks(&error.into()) => Ok(RecordLock::Missing),
        Err(error) => Err(error.into()),
    }
}

/// Whether this error means that the file system has no locks.
pub fn has_no_locks(error: &io::Error) -> bool {
    is_lacking(error) || is(error, Errno::NOLCK)
}

/// Whether a process of this machine is known to have ended.
pub fn has_ended(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// The host name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The length of a page of memory in bytes.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Tells the system how the program will read a part of a map. Does not change the content.
pub fn advise_map(bytes: &[u8], pattern: Pattern) {
    let before = bytes.as_ptr().addr() % page_size();
    let start = bytes.as_ptr().wrapping_sub(before).cast_mut().cast();
    let advice = match pattern {
        Pattern::Random => Advice::Random,
        Pattern::Sequential => Advice::Sequential,
        Pattern::Soon => Advice::WillNeed,
    };
    // SAFETY: `start` is the start of the page that holds the first byte, so the range lies in
    // pages that the borrow keeps mapped. No advice changes their content.
    let _ = unsafe { madvise(start, before + bytes.len(), advice) };
}

/// The space on the file system of a folder.
pub fn room(folder: &Path) -> io::Result<Room> {
    let found = statvfs(folder)?;
    Ok(Room {
        free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
        // Btrfs and others make inodes on demand, and report 0 of 0.
        free_files: Some(found.f_favail).filter(|_| found.f_files > 0),
    })
}

/// Free space for this user's files on the file system of an open file; `None` if the file system
/// does not tell.
pub fn free_bytes(file: &File) -> Option<u64> {
    let disk = fstatvfs(file).ok().filter(|disk| disk.f_blocks > 0)?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// A key as a relative path; `None` if the system does not have such names.
pub fn path_of_key(key: &[u8]) -> Option<&Path> {
    Some(Path::new(OsStr::from_bytes(key)))
}

/// Converts bytes to a file name.
pub fn name_of_bytes(bytes: &[u8]) -> OsString {
    OsStr::from_bytes(bytes).to_owned()
}

/// A relative path as a key, with `/` between its parts.
pub fn key_of_path(path: &Path) -> std::borrow::Cow<'_, [u8]> {
    path.as_os_str().as_bytes().into()
}

/// The system's error for a missing file.
pub fn not_found() -> io::Error {
    Errno::NOENT.into()
}

/// The system's error for a full disk.
pub fn no_room() -> io::Error {
    Errno::NOSPC.into()
}

/// The system's error for an operation that it does not support.
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
pub fn not_supported() -> io::Error {
    Errno::OPNOTSUPP.into()
}
