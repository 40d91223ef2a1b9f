//! The functions of [`linux`](super) without Linux' own calls: for other systems, and for tests on
//! Linux.
//!
//! Each describes the replacement of the call. `docs/limits.md` lists the effects for users.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memmap2::MmapMut;

use super::kinds::{Caching, FileId, FileState, Pattern};
#[cfg(unix)]
use super::unix as family;
#[cfg(windows)]
use super::windows as family;

/// Opens any kind of file for reading. Never waits. Reads past the page cache are not available.
pub fn open_file(path: &Path, caching: Caching) -> io::Result<File> {
    match caching {
        Caching::Through => family::reading().open(path),
        Caching::Past => Err(family::not_supported()),
    }
}

/// A folder that is known again: what is opened below its path is given out only if the path still
/// leads to it.
///
/// The folder is held open as long as this lives, so that no other folder gets its number.
#[derive(Debug)]
pub struct OpenFolder {
    path: PathBuf,
    id: FileId,
    /// `None` where it may be passed through and not be read.
    _held: Option<File>,
}

impl OpenFolder {
    /// The folder that `path` leads to now.
    pub fn open(path: &Path) -> io::Result<Self> {
        let held = family::open_folder(path).ok();
        let id = match &held {
            Some(folder) => family::id_of(folder)?,
            None if std::fs::metadata(path)?.is_dir() => family::id_at(path)?,
            None => return Err(io::ErrorKind::NotADirectory.into()),
        };
        Ok(Self { path: path.to_owned(), id, _held: held })
    }

    /// [`open_file`] of what is below it; `NotFound` if another folder has its path.
    pub fn open_file(&self, relative: &Path, caching: Caching) -> io::Result<File> {
        let opened = open_file(&self.path.join(relative), caching)?;
        self.still(opened)
    }

    /// What the system says of a file below it; `NotFound` if another folder has its path.
    pub fn look(&self, relative: &Path) -> io::Result<FileState> {
        let found = family::look(&self.path.join(relative))?;
        self.still(found)
    }

    /// Looked at after the file was: a folder that has lost its path does not get it back while a
    /// checkpoint has it.
    fn still<T>(&self, found: T) -> io::Result<T> {
        match family::id_at(&self.path)? == self.id {
            true => Ok(found),
            false => Err(family::not_found()),
        }
    }
}

/// Announces how a file will be read: ignored here.
pub fn advise_file(_file: &File, _pattern: Pattern) {}

/// The parts of a file in the page cache: unknown here.
#[derive(Debug)]
pub struct PageCache;

impl PageCache {
    pub fn of(_file: &File) -> Self {
        Self
    }

    /// False: what is not known to be in memory is read in pieces, and not handed out as a view of
    /// the file.
    pub fn has(&self, _file: &File, _offset: u64, _len: u64) -> bool {
        false
    }
}

/// Has the next writes to a file go past the page cache, which they cannot, or through it, which
/// they do.
pub fn set_direct(_file: &File, direct: bool) -> io::Result<()> {
    if direct { Err(family::not_supported()) } else { Ok(()) }
}

/// Whether a file system has refused direct I/O with this error: there is none to refuse.
pub fn refuses_direct(_error: &io::Error) -> bool {
    false
}

/// Has the disk begin to write a part of a file: it does so when it likes, or at the sync.
pub fn start_write_back(_file: &File, _offset: u64, _len: usize) {}

/// Returns an error if there is no space for a file. The space is not reserved: another process may
/// take it first.
pub fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    match family::free_bytes(file).is_some_and(|free_bytes| free_bytes < len_bytes) {
        true => Err(family::no_room()),
        false => Ok(()),
    }
}

/// Gives a file its length and takes the room for it: it does not.
pub fn allocate(file: &File, len_bytes: u64) -> io::Result<bool> {
    reserve(file, len_bytes).map(|()| false)
}

/// Renames `from` to the unused name `to` in one step; `false` if the system cannot.
///
/// # Errors
/// `AlreadyExists` if the name is taken.
pub fn rename_no_replace(from: &Path, to: &Path) -> io::Result<bool> {
    flagged::rename_no_replace(from, to)
}

/// Exchanges two names in one step; `false` where that is not to be had.
///
/// # Errors
/// `NotFound` if a name does not exist.
pub fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
    flagged::exchange(one, other)
}

/// macOS has both, by `renameatx_np`.
#[cfg(target_os = "macos")]
mod flagged {
    use std::io;
    use std::path::Path;

    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    pub(super) fn rename_no_replace(from: &Path, to: &Path) -> io::Result<bool> {
        rename_by(from, to, RenameFlags::NOREPLACE)
    }

    pub(super) fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
        rename_by(one, other, RenameFlags::EXCHANGE)
    }

    fn rename_by(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<bool> {
        match renameat_with(CWD, from, CWD, to, flags) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOTSUP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Others have neither.
#[cfg(not(target_os = "macos"))]
mod flagged {
    use std::io;
    use std::path::Path;

    pub(super) fn rename_no_replace(_from: &Path, _to: &Path) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn exchange(_one: &Path, _other: &Path) -> io::Result<bool> {
        Ok(false)
    }
}

/// Syncs all that the file system of a folder has not on disk yet: not to be had.
pub fn sync_file_system(_folder: &Path) -> io::Result<bool> {
    Ok(false)
}

/// Asks for large pages: the system decides.
pub fn want_large_pages(_memory: &MmapMut) {}

/// Makes the pages of fresh memory at once: they are made as they are touched.
pub fn make_pages(_start: usize, _len_bytes: usize) -> bool {
    false
}

/// The same of one large page.
pub fn make_large_page(_start: usize, _len_bytes: usize) -> Option<Duration> {
    None
}
