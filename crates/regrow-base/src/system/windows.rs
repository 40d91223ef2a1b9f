//! The functions of `unix` for Windows. They compile, but were never run (`docs/limits.md`).

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::{MetadataExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::Path;

use windows_sys::Win32::Foundation::{
    ERROR_DISK_FULL, ERROR_FILE_NOT_FOUND, ERROR_HANDLE_EOF, ERROR_NOT_SUPPORTED,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT,
    GetDiskFreeSpaceExW, GetFileInformationByHandle,
};

use super::kinds::{FileId, FileState, Pattern, RecordLock, Room};

/// Seconds from 1601, when Windows' file times begin, to 1970.
const EPOCH_SECONDS: i64 = 11_644_473_600;

const TICKS_PER_SECOND: u64 = 10_000_000;

/// Reads and writes at an offset that do not move the file position.
pub trait FileExt {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize>;
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

impl FileExt for File {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        match std::os::windows::fs::FileExt::seek_read(self, out, offset) {
            Err(error) if error.raw_os_error() == Some(ERROR_HANDLE_EOF.cast_signed()) => Ok(0),
            other => other,
        }
    }

    fn read_exact_at(&self, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !out.is_empty() {
            let len = self.read_at(out, offset)?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            out = out.get_mut(len..).unwrap_or_default();
            offset += len as u64;
        }
        Ok(())
    }

    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let len = std::os::windows::fs::FileExt::seek_write(self, bytes, offset)?;
            if len == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = bytes.get(len..).unwrap_or_default();
            offset += len as u64;
        }
        Ok(())
    }
}

/// Options that open a file of any kind for reading, folders too. Without the flag, the error for a
/// folder would be that access is denied.
pub fn reading() -> OpenOptions {
    reading_with(FILE_FLAG_BACKUP_SEMANTICS)
}

/// As `reading`, but opens a link in the last part of the path instead of following it.
pub fn reading_no_link() -> OpenOptions {
    reading_with(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)
}

fn reading_with(flags: u32) -> OpenOptions {
    let mut options = File::options();
    options.read(true).custom_flags(flags);
    options
}

/// Opens a folder, to lock it or to identify it.
pub fn open_folder(path: &Path) -> io::Result<File> {
    folder_only(reading().open(path)?)
}

/// As `open_folder`, but a link is an error.
pub fn open_folder_no_link(path: &Path) -> io::Result<File> {
    folder_only(reading_no_link().open(path)?)
}

fn folder_only(opened: File) -> io::Result<File> {
    match opened.metadata()?.is_dir() {
        true => Ok(opened),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Options that make a new file. The access list of its folder decides who may read it.
#[cfg(feature = "cloud")]
pub fn private_file() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create_new(true);
    options
}

/// Syncs a file that is open for writing.
pub fn sync(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Syncs the file at a path.
pub fn sync_at(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path)?.sync_all()
}

/// Windows cannot sync folders. It journals names, so after a power cut a name is the old or the
/// new one.
pub fn sync_folder(path: &Path) -> io::Result<bool> {
    fs::metadata(path).map(|_| false)
}

/// Reads into the reserved space of a vector and extends the vector by the bytes read. Returns
/// their number; 0 at the end of the file.
pub fn append_at(file: &File, bytes: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
    let start = bytes.len();
    bytes.resize(bytes.capacity(), 0);
    let read = file.read_at(bytes.get_mut(start..).unwrap_or_default(), offset);
    bytes.truncate(start + *read.as_ref().unwrap_or(&0));
    read
}

/// The identity of an open file.
pub fn id_of(file: &File) -> io::Result<FileId> {
    let mut found = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle stays open while the file is borrowed, and the call writes one structure,
    // `found`.
    if unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut found) } == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(FileId {
        device: u64::from(found.dwVolumeSerialNumber),
        number: u64::from(found.nFileIndexHigh) << 32 | u64::from(found.nFileIndexLow),
    })
}

/// The identity of the file or folder at a path. Links are followed.
pub fn id_at(path: &Path) -> io::Result<FileId> {
    id_of(&reading().open(path)?)
}

/// The identity of the file, folder or link at a path. Links are not followed.
pub fn id_of_name(path: &Path) -> io::Result<FileId> {
    id_of(&reading_no_link().open(path)?)
}

/// The state of the file at a path. Links are followed.
pub fn look(path: &Path) -> io::Result<FileState> {
    look_at(&reading().open(path)?)
}

/// The state of an open file.
pub fn look_at(file: &File) -> io::Result<FileState> {
    let found = file.metadata()?;
    Ok(FileState {
        is_file: found.is_file(),
        len_bytes: found.len(),
        id: id_of(file)?,
        modified: since_1970(found.last_write_time()),
        changed: since_1970(found.creation_time()),
    })
}

fn since_1970(ticks: u64) -> (i64, i64) {
    let seconds = (ticks / TICKS_PER_SECOND).cast_signed() - EPOCH_SECONDS;
    (seconds, (ticks % TICKS_PER_SECOND).cast_signed() * 100)
}

/// The kind of an entry that is not a file, folder or link, for messages.
pub fn name_of_special(_kind: FileType) -> &'static str {
    "a device"
}

/// A Unix mode without write permission for others. On Windows the access lists decide who may
/// write, not this mode.
pub fn mode_of(found: &Metadata) -> u32 {
    if found.permissions().readonly() { 0o555 } else { 0o755 }
}

/// Windows has no modes: a new file or folder gets the access list of its folder.
pub fn set_mode(path: &Path, _mode: u32) -> io::Result<()> {
    fs::metadata(path).map(drop)
}

/// Windows has no modes: does the same as `set_mode`.
pub fn set_mode_or_less(path: &Path, mode: u32) -> io::Result<()> {
    set_mode(path, mode)
}

/// Whether this error means that the file system has no locks.
pub fn has_no_locks(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_NOT_SUPPORTED.cast_signed())
}

/// Makes a folder. The mode is ignored.
pub fn make_folder(path: &Path, _mode: u32) -> io::Result<()> {
    fs::create_dir(path)
}

/// Makes a folder and its missing parents.
#[cfg(feature = "cloud")]
pub fn make_private_folders(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// The user number of the owner. Windows has no such numbers, so this is always the number of this
/// user.
#[cfg(feature = "cloud")]
pub fn owner_of(_found: &Metadata) -> u32 {
    own_user()
}

/// The user number of this process; always 0.
#[cfg(feature = "cloud")]
pub fn own_user() -> u32 {
    0
}

/// Whether two files have the same owner. Always true: not checked on Windows.
pub fn have_same_owner(_one: &Metadata, _other: &Metadata) -> bool {
    true
}

/// Would give a file or folder to the owner of another. Does nothing on Windows.
pub fn give_to_owner_of(_other: &Metadata, _path: &Path) -> io::Result<()> {
    Ok(())
}

/// Locks a file. Children of this process do not have the lock.
pub fn lock_record(file: &File) -> io::Result<RecordLock> {
    match file.try_lock() {
        Ok(()) => Ok(RecordLock::Ours),
        Err(TryLockError::WouldBlock) => Ok(RecordLock::Theirs),
        Err(TryLockError::Error(_)) => Ok(RecordLock::Missing),
    }
}

/// Whether another process holds a lock on a file: `Ours` if no process does. Takes the lock for a
/// moment.
pub fn look_at_record(file: &File) -> io::Result<RecordLock> {
    let looked = lock_record(file)?;
    if matches!(looked, RecordLock::Ours) {
        file.unlock()?;
    }
    Ok(looked)
}

/// Whether a process is known to have ended. Always false: Windows soon reuses process numbers.
pub fn has_ended(_pid: u32) -> bool {
    false
}

/// The host name of this machine.
pub fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// The length of a page of memory in bytes, the same on all 64-bit machines with Windows.
pub fn page_size() -> usize {
    4096
}

/// Would tell the system how the program will read a part of a map. Does nothing on Windows.
pub fn advise_map(_bytes: &[u8], _pattern: Pattern) {}

/// The space on the file system of a folder.
pub fn room(folder: &Path) -> io::Result<Room> {
    let name: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let (mut free_bytes, mut total_bytes) = (0, 0);
    // SAFETY: the name ends with a zero. The call writes two numbers, and accepts null for the
    // third.
    let told = unsafe {
        GetDiskFreeSpaceExW(name.as_ptr(), &raw mut free_bytes, &raw mut total_bytes, std::ptr::null_mut())
    };
    match told {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(Room { free_bytes, total_bytes, free_files: None }),
    }
}

/// Free space on the file system of an open file. Always `None`: this function does not
/// ask Windows.
pub fn free_bytes(_file: &File) -> Option<u64> {
    None
}

/// A key as a relative path; `None` if Windows does not have such names, or gives them another
/// meaning.
pub fn path_of_key(key: &[u8]) -> Option<&Path> {
    let key = std::str::from_utf8(key).ok()?;
    key.split('/').all(is_name).then(|| Path::new(key))
}

/// Whether Windows uses the name without a change. `CON`, `NUL.txt` and `COM1` are devices, and
/// dots and spaces at the end are dropped.
fn is_name(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let is_device = matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        || ["COM", "LPT"]
            .iter()
            .any(|port| stem.strip_prefix(port).is_some_and(|number| number.chars().count() == 1));
    !is_device
        && !part.ends_with(['.', ' '])
        && !part.contains(|sign: char| {
            sign < ' ' || matches!(sign, '\\' | ':' | '<' | '>' | '"' | '|' | '?' | '*')
        })
}

/// Converts bytes to a file name. Invalid UTF-8 becomes replacement characters.
pub fn name_of_bytes(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// A relative path as a key, with `/` between its parts.
pub fn key_of_path(path: &Path) -> Cow<'_, [u8]> {
    let bytes = path.as_os_str().as_encoded_bytes();
    match bytes.contains(&b'\\') {
        true => bytes.iter().map(|&byte| if byte == b'\\' { b'/' } else { byte }).collect::<Vec<u8>>().into(),
        false => bytes.into(),
    }
}

/// The system's error for a missing file.
pub fn not_found() -> io::Error {
    io::Error::from_raw_os_error(ERROR_FILE_NOT_FOUND.cast_signed())
}

/// The system's error for a full disk.
pub fn no_room() -> io::Error {
    io::Error::from_raw_os_error(ERROR_DISK_FULL.cast_signed())
}

/// The system's error for an operation that it does not support.
pub fn not_supported() -> io::Error {
    io::Error::from_raw_os_error(ERROR_NOT_SUPPORTED.cast_signed())
}
