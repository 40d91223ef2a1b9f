//! The functions of [`linux`](super) without Linux' own calls: for other systems, and for tests on
//! Linux.
//!
//! The comment of each function describes its replacement. `docs/limits.md` lists the effects for
//! users.

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

/// Opens a file of any kind for reading. Does not wait. Reads past the page cache are not
/// available.
pub fn open_file(path: &Path, caching: Caching) -> io::Result<File> {
    match caching {
        Caching::Through => family::reading().open(path),
        Caching::Past => Err(family::not_supported()),
    }
}

/// A folder and its identity. Files below its path are used only if the path still leads to the
/// same folder.
///
/// The folder stays open while this value lives, so that no other folder gets its number.
#[derive(Debug)]
pub struct OpenFolder {
    path: PathBuf,
    id: FileId,
    /// The open folder; `None` without permission to read it.
    _held: Option<File>,
}

impl OpenFolder {
    /// Opens the folder that is at `path` now.
    pub fn open(path: &Path) -> io::Result<Self> {
        let held = family::open_folder(path).ok();
        let id = match &held {
            Some(folder) => family::id_of(folder)?,
            None if std::fs::metadata(path)?.is_dir() => family::id_at(path)?,
            None => return Err(io::ErrorKind::NotADirectory.into()),
        };
        Ok(Self { path: path.to_owned(), id, _held: held })
    }

    /// The same as [`open_file`], for a path relative to this folder; `NotFound` if another folder
    /// has its path.
    pub fn open_file(&self, relative: &Path, caching: Caching) -> io::Result<File> {
        let opened = open_file(&self.path.join(relative), caching)?;
        self.still(opened)
    }

    /// The state of a file at a path relative to this folder; `NotFound` if another folder has its
    /// path.
    pub fn look(&self, relative: &Path) -> io::Result<FileState> {
        let found = family::look(&self.path.join(relative))?;
        self.still(found)
    }

    /// Returns `found` if the path still leads to this folder. This check follows the access to the
    /// file: a folder that has lost its path does not get it back.
    fn still<T>(&self, found: T) -> io::Result<T> {
        match family::id_at(&self.path)? == self.id {
            true => Ok(found),
            false => Err(family::not_found()),
        }
    }
}

/// Would tell the system how the program will read a file. Does nothing here.
pub fn advise_file(_file: &File, _pattern: Pattern) {}

/// The pages of a file in the page cache, which are unknown here.
#[derive(Debug)]
pub struct PageCache;

impl PageCache {
    /// Looks at nothing.
    pub fn of(_file: &File) -> Self {
        Self
    }

    /// Always false. So files are read in pieces, and not shown as views of a map.
    pub fn has(&self, _file: &File, _offset: u64, _len: u64) -> bool {
        false
    }
}

/// Makes the next writes to a file direct or buffered. Direct writes are an error here; buffered
/// writes are the default.
pub fn set_direct(_file: &File, direct: bool) -> io::Result<()> {
    if direct { Err(family::not_supported()) } else { Ok(()) }
}

/// Whether this error means that a file system refuses direct I/O. Always false: there is no direct
/// I/O here.
pub fn refuses_direct(_error: &io::Error) -> bool {
    false
}

/// Would start to write a range of a file to the disk. Does nothing here: the system writes it
/// later, or at the sync.
pub fn start_write_back(_file: &File, _offset: u64, _len: usize) {}

/// Returns an error if there is no space for a file. The space is not reserved: another process may
/// take it first.
pub fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    match family::free_bytes(file).is_some_and(|free_bytes| free_bytes < len_bytes) {
        true => Err(family::no_room()),
        false => Ok(()),
    }
}

/// Would set the length of a file and reserve the space. Here it only checks the free space and
/// returns `false`.
pub fn allocate(file: &File, len_bytes: u64) -> io::Result<bool> {
    reserve(file, len_bytes).map(|()| false)
}

/// Renames `from` to the unused name `to` in one step; `false` if the system cannot, and
/// `AlreadyExists` if the name is taken.
pub fn rename_no_replace(from: &Path, to: &Path) -> io::Result<bool> {
    flagged::rename_no_replace(from, to)
}

/// Exchanges two names in one step; `false` if the system cannot, and `NotFound` if a name does not
/// exist.
pub fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
    flagged::exchange(one, other)
}

/// macOS has both functions, by `renameatx_np`.
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

/// Would sync the whole file system of a folder. Not available here: always `false`.
pub fn sync_file_system(_folder: &Path) -> io::Result<bool> {
    Ok(false)
}

/// Would ask for large pages. Does nothing here.
pub fn want_large_pages(_memory: &MmapMut) {}

/// Would make the pages of new memory in one call. Always false here: the system makes pages at the
/// first access.
pub fn make_pages(_start: usize, _len_bytes: usize) -> bool {
    false
}

/// Would make one large page. Always `None` here.
pub fn make_large_page(_start: usize, _len_bytes: usize) -> Option<Duration> {
    None
}
