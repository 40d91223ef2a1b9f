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
use rustix::process::{Pid, test_kill_process};

use super::kinds::{FileId, FileState, Pattern, RecordLock, Room};

/// Opens any kind of file for reading. Never waits: not for the other end of a pipe either.
pub fn reading() -> OpenOptions {
    reading_with(OFlags::empty())
}

/// The same, but does not follow a link in the last place.
pub fn reading_no_link() -> OpenOptions {
    reading_with(OFlags::NOFOLLOW)
}

fn reading_with(flags: OFlags) -> OpenOptions {
    let mut options = File::options();
    options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY | flags).bits().cast_signed());
    options
}

/// Opens a folder, to lock it, to sync it or to know it again.
pub fn open_folder(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).open(path)
}

/// The same, but not through a link.
pub fn open_folder_no_link(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Makes a new file that only this user may read and write.
#[cfg(feature = "cloud")]
pub fn private_file() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    options
}

/// Puts the bytes of a file on the disk. `std` asks macOS for `F_FULLFSYNC`, without which the disk
/// may still have them in its own memory.
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

/// The same for the file at a path.
pub fn sync_at(path: &Path) -> io::Result<()> {
    sync(&File::open(path)?)
}

/// Puts the names in a folder on the disk; `false` where the file system cannot.
pub fn sync_folder(path: &Path) -> io::Result<bool> {
    match sync(&File::open(path)?) {
        Ok(()) => Ok(true),
        // Some systems answer EBADF for a descriptor that is open only for reading.
        Err(error) if is_lacking(&error) || is(&error, Errno::BADF) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a file system says by this error that it does not have a call, for good. What FUSE,
/// CIFS, exFAT, Lustre and others answer; `EPERM` and `EACCES`, which some of them answer too, have
/// other meanings as well.
pub(super) fn is_lacking(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOTTY].into_iter().any(|lacking| is(error, lacking))
}

fn is(error: &io::Error, number: Errno) -> bool {
    error.raw_os_error() == Some(number.raw_os_error())
}

/// Reads into what a vector has reserved, and makes it longer by so much; 0 at the end of the file.
pub fn append_at(file: &File, bytes: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
    Ok(rustix::io::pread(file, spare_capacity(bytes), offset)?)
}

/// Which file it is.
pub fn id_of(file: &File) -> io::Result<FileId> {
    file.metadata().map(|found| id_in(&found))
}

/// Which file or folder a path leads to.
pub fn id_at(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|found| id_in(&found))
}

/// Which file, folder or link has a name.
pub fn id_of_name(path: &Path) -> io::Result<FileId> {
    fs::symlink_metadata(path).map(|found| id_in(&found))
}

fn id_in(found: &Metadata) -> FileId {
    FileId { device: found.dev(), number: found.ino() }
}

/// What the system says of what a path leads to.
pub fn look(path: &Path) -> io::Result<FileState> {
    fs::metadata(path).map(|found| state_in(&found))
}

/// The same of an open file.
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

/// What something is that is no file, no folder and no link.
pub fn name_of_special(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// The bits of owner, group and others, and those before them.
pub fn mode_of(found: &Metadata) -> u32 {
    found.mode()
}

/// Gives a file or folder those bits.
///
/// # Errors
/// Errors of the system, unless it has them already: CIFS and exFAT refuse any change.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode)).or_else(|error| match fs::metadata(path) {
        Ok(found) if found.mode() & 0o7777 == mode & 0o7777 => Ok(()),
        _ => Err(error),
    })
}

/// The same; where modes cannot be changed, fewer bits will do.
///
/// # Errors
/// Errors of the system, if there are others than those.
pub fn set_mode_or_less(path: &Path, mode: u32) -> io::Result<()> {
    set_mode(path, mode).or_else(|error| match fs::metadata(path) {
        Ok(found) if found.mode() & 0o777 & !mode == 0 => Ok(()),
        _ => Err(error),
    })
}

/// Makes a folder with those bits, as far as the process lets it have them.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

/// Makes a folder, and those above it that are missing, which only this user may look into.
#[cfg(feature = "cloud")]
pub fn make_private_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The owner's number.
#[cfg(feature = "cloud")]
pub fn owner_of(found: &Metadata) -> u32 {
    found.uid()
}

/// The user that this process is.
#[cfg(feature = "cloud")]
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether two have the same owner and group.
pub fn have_same_owner(one: &Metadata, other: &Metadata) -> bool {
    (one.uid(), one.gid()) == (other.uid(), other.gid())
}

/// Gives a file or folder to the owner and group of another. Only the super-user may give things
/// away.
pub fn give_to_owner_of(other: &Metadata, path: &Path) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(other.uid()), Some(other.gid()))
}

/// Takes a lock of a file that belongs to this process, and to no child of it.
pub fn lock_record(file: &File) -> io::Result<RecordLock> {
    match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(RecordLock::Ours),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(RecordLock::Theirs),
        Err(error) if has_no_locks(&error.into()) => Ok(RecordLock::Missing),
        Err(error) => Err(error.into()),
    }
}

/// Whether a file system says by this error that it has no locks.
pub fn has_no_locks(error: &io::Error) -> bool {
    is_lacking(error) || is(error, Errno::NOLCK)
}

/// Whether a process of this machine is known to have ended.
pub fn has_ended(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// The name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Bytes of a page of memory.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Says how a part of a map will be read. Changes no contents.
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

/// Room on the file system of a folder.
pub fn room(folder: &Path) -> io::Result<Room> {
    let found = statvfs(folder)?;
    Ok(Room {
        free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
        // Btrfs and others make inodes on demand, and report 0 of 0.
        free_files: Some(found.f_favail).filter(|_| found.f_files > 0),
    })
}

/// Room for this user's files on the file system of an open one; `None` if that does not say.
pub fn free_bytes(file: &File) -> Option<u64> {
    let disk = fstatvfs(file).ok().filter(|disk| disk.f_blocks > 0)?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// A key as a relative path; `None` if the system has no such names.
pub fn path_of_key(key: &[u8]) -> Option<&Path> {
    Some(Path::new(OsStr::from_bytes(key)))
}

/// Bytes as a name, for what cannot be told from them.
pub fn name_of_bytes(bytes: &[u8]) -> OsString {
    OsStr::from_bytes(bytes).to_owned()
}

/// A relative path as a key, with `/` between its parts.
pub fn key_of_path(path: &Path) -> std::borrow::Cow<'_, [u8]> {
    path.as_os_str().as_bytes().into()
}

/// What the system says when nothing has a name.
pub fn not_found() -> io::Error {
    Errno::NOENT.into()
}

/// What the system says when a disk is full.
pub fn no_room() -> io::Error {
    Errno::NOSPC.into()
}

/// What the system says when it cannot do something at all.
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
pub fn not_supported() -> io::Error {
    Errno::OPNOTSUPP.into()
}
