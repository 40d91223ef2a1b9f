//! A folder on a disk as a store, a reader and a writer of large files, and documents.
//!
//! | module | does |
//! |---|---|
//! | `mod` | [`LocalStore`]: keys are paths below a folder |
//! | `folder` | the folder below which keys are paths: found by its path each time, or opened once |
//! | `files` | open files that are kept for later reads; `pread` |
//! | `whole` | documents, which are read whole; a long file that is no document is refused early |
//! | `regular` | opens only regular files |
//! | `reader` | `DirectReader`: a large file by offset, through the page cache or past it |
//! | `map` | read-only maps of whole files, and advice on reading them |
//! | `direct` | [`DirectWriter`]: one large file, front to back, by direct I/O |
//! | `output` | the file of a `DirectWriter` |
//! | `watch` | the times of a `DirectWriter` |
//! | `folders` | safe keys; functions that make and sync folders |
//!
//! Reads cost a `pread` each (17.8 GB/s warm); a map costs 6 us and then nothing. A put costs a
//! temporary file, two syncs and a rename (0.45 ms). Puts are for small values; large files go
//! through [`DirectWriter`].
//!
//! ```text
//! put:  folder/.<random>.__lock   write, fsync  ->  rename to folder/key  ->  fsync folder
//! ```
//! `put_if_absent` links the temporary file to the name of the key, and syncs nothing. The
//! temporary name has the ending of TensorStore's own temporary names, so that neither TensorStore
//! nor regrow lists such a file after a crash.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{Blob, ByteRange, Located, PrivateMap, Span, Store, Version, missing};
use crate::Document;
use crate::error::{Error, Result};
use crate::system::{name_of_bytes, sync};

mod direct;
mod files;
mod folder;
pub mod folders;
mod map;
mod output;
mod reader;
pub mod regular;
mod watch;
mod whole;

pub use direct::DirectWriter;
pub use map::{Access, advise};
use reader::DirectReader;
pub use whole::{read_beginning, read_document, read_opened_document};

use files::{OpenFile, OpenFiles};
use folder::{FilePlace, Folder};
use folders::{
    LOCK_SUFFIX, link_if_absent, make_folders, random_name, relative_path, sync_folder, sync_made,
};
use regular::is_absent;

/// Files below a folder. Cheap to clone; clones share their open files and maps.
///
/// - Keys are relative paths without empty, `.` or `..` parts; others are `InvalidArgument`.
/// - Only regular files are values. Links are followed by reads; [`list`](Store::list) shows links
///   to files below the folder and enters no linked folder.
/// - The store reads from the open file of a key, even if another process has replaced the file at
///   its path. The store keeps a few files open.
#[derive(Debug, Clone)]
pub struct LocalStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: Folder,
    files: OpenFiles,
}

impl LocalStore {
    /// A store of the folder `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { inner: Arc::new(Inner { root: Folder::at_path(root), files: OpenFiles::default() }) }
    }

    /// A store of the folder that is at `root` now. It reads the files of this folder, even if
    /// another folder takes the path. Writes and lists use the path.
    pub fn anchored(root: &Path) -> Result<Self> {
        let folder = Folder::open(root).map_err(|error| Error::io("cannot open", root, error))?;
        Ok(Self { inner: Arc::new(Inner { root: folder, files: OpenFiles::default() }) })
    }

    /// The path of the folder.
    pub fn root(&self) -> &Path {
        self.inner.root.path()
    }

    fn path(&self, key: &[u8]) -> Result<PathBuf> {
        Ok(self.root().join(relative_path(key)?))
    }

    fn opened<'a>(&'a self, key: &'a [u8]) -> Result<Option<(FilePlace<'a>, Arc<OpenFile>)>> {
        let place = self.inner.root.file(relative_path(key)?);
        Ok(self.inner.files.open(key, place)?.map(|file| (place, file)))
    }

    fn listing(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let folder_len = prefix.iter().rposition(|&byte| byte == b'/');
        let folder = prefix.get(..folder_len.unwrap_or(0)).unwrap_or_default();
        let mut pending = match folder_len {
            Some(_) => vec![(self.path(folder)?, [folder, b"/"].concat())],
            None => vec![(self.root().to_owned(), Vec::new())],
        };
        let mut keys = Vec::new();
        while let Some((folder, below)) = pending.pop() {
            let cannot_list = |error| Error::io("cannot list", &folder, error);
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if is_absent(&error) => continue,
                Err(error) => return Err(cannot_list(error)),
            };
            for entry in entries {
                let entry = entry.map_err(cannot_list)?;
                let key = [below.as_slice(), entry.file_name().as_encoded_bytes()].concat();
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    let folder_key = [key.as_slice(), b"/"].concat();
                    if folder_key.starts_with(prefix) || prefix.starts_with(&folder_key) {
                        pending.push((entry.path(), folder_key));
                    }
                } else if key.starts_with(prefix)
                    && !key.ends_with(LOCK_SUFFIX.as_bytes())
                    && (kind.is_file() || kind.is_symlink() && self.leads_inside(&entry.path()))
                {
                    keys.push(key);
                }
            }
        }
        keys.sort_unstable();
        Ok(keys)
    }

    fn leads_inside(&self, link: &Path) -> bool {
        match (fs::canonicalize(link), fs::canonicalize(self.root())) {
            (Ok(file), Ok(root)) => file.is_file() && file.starts_with(root),
            _ => false,
        }
    }
}

impl Store for LocalStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        let Some((_, file)) = self.opened(key)? else { return Ok(None) };
        file.read(range).map(Some).map_err(|error| error.in_file(self.describe(key)))
    }

    fn stream(
        &self,
        key: &[u8],
        range: ByteRange,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let Some((place, file)) = self.opened(key)? else { return Ok(false) };
        file.stream(place, range, each).map(|()| true).map_err(|error| error.in_file(self.describe(key)))
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.listing(prefix)
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        let place = self.inner.root.file(relative_path(key)?);
        let cannot_look = |error| Error::io("cannot look at", self.describe(key), error);
        if let Some(file) = self.inner.files.known(key) {
            return file.len_bytes().map(Some).map_err(cannot_look);
        }
        match place.len_bytes() {
            Ok(len_bytes) => Ok(len_bytes),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(cannot_look(error)),
        }
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        Ok(self.len_bytes(key)?.map(|len_bytes| {
            Located::At(Span { store: Arc::new(self.clone()), key: key.into(), offset_bytes: 0, len_bytes })
        }))
    }

    /// Opens the file again, because a reader has descriptors of its own, with and without the page
    /// cache.
    fn open(&self, key: &[u8]) -> Result<Option<Arc<dyn Blob>>> {
        let opened = DirectReader::open(self.inner.root.file(relative_path(key)?))?;
        Ok(opened.map(|reader| Arc::new(reader) as Arc<dyn Blob>))
    }

    fn read_into(&self, key: &[u8], offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        match self.opened(key)? {
            Some((_, file)) => {
                file.read_into(offset_bytes, out).map_err(|error| error.in_file(self.describe(key)))
            }
            None => Err(missing(self.describe(key))),
        }
    }

    fn read_document(&self, key: &str, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        let place = self.inner.root.file(relative_path(key.as_bytes())?);
        whole::read_document_at(place, document.what, document.language, document.len_max_bytes)
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        self.root().join(name_of_bytes(key))
    }

    fn capabilities(&self) -> crate::StoreCapabilities<'_> {
        crate::StoreCapabilities { writes: Ok(self), maps: Some(self), versions: Some(self) }
    }
}

impl crate::StoreWrites for LocalStore {
    fn put(&self, key: &[u8], value: Bytes) -> Result<()> {
        let path = self.path(key)?;
        if key.ends_with(LOCK_SUFFIX.as_bytes()) {
            return Err(Error::invalid(format!("a key must not end in `{LOCK_SUFFIX}`")).in_file(path));
        }
        let folder = path.parent().unwrap_or(self.root());
        let temporary = folder.join(format!(".{}{LOCK_SUFFIX}", random_name()?));
        let write = || -> io::Result<()> {
            let made = make_folders(folder)?;
            let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
            file.write_all(&value)?;
            sync(&file)?;
            fs::rename(&temporary, &path)?;
            sync_folder(folder)?;
            sync_made(&made)
        };
        let written = write();
        self.inner.files.forget(key);
        written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Error::io("cannot write", &path, error)
        })
    }

    fn put_if_absent(&self, key: &[u8], value: Bytes) -> Result<bool> {
        let path = self.path(key)?;
        let folder = path.parent().unwrap_or(self.root());
        let temporary = folder.join(format!(".{}{LOCK_SUFFIX}", random_name()?));
        let write = || -> io::Result<bool> {
            make_folders(folder)?;
            let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
            file.write_all(&value)?;
            // A network disk has all bytes only after the file is closed.
            drop(file);
            link_if_absent(&temporary, &path)
        };
        let written = write();
        let _ = fs::remove_file(&temporary);
        self.inner.files.forget(key);
        written.map_err(|error| Error::io("cannot write", &path, error))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let path = self.path(key)?;
        self.inner.files.forget(key);
        match fs::remove_file(&path) {
            Err(error) if !is_absent(&error) && !path.is_dir() => {
                Err(Error::io("cannot delete", &path, error))
            }
            _ => Ok(()),
        }
    }

    fn delete_durably(&self, keys: &[&[u8]]) -> Result<()> {
        let mut folders = BTreeSet::new();
        for key in keys {
            crate::StoreWrites::delete(self, key)?;
            folders.extend(self.path(key)?.parent().map(Path::to_owned));
        }
        folders.iter().try_for_each(|folder| match sync_folder(folder) {
            Err(error) if !is_absent(&error) => Err(Error::io("cannot sync the folder", folder, error)),
            _ => Ok(()),
        })
    }
}

impl crate::StoreMaps for LocalStore {
    /// The map lives while the store keeps the file open, and at least as long as a view of the
    /// map.
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let Some((_, file)) = self.opened(key)? else { return Ok(None) };
        file.map().map_err(|error| Error::io("cannot look at", self.describe(key), error))
    }

    fn map_private(&self, key: &[u8]) -> Result<Option<PrivateMap>> {
        let Some((_, file)) = self.opened(key)? else { return Ok(None) };
        Ok(file.map_private())
    }

    fn is_cached(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> bool {
        let opened = self.opened(key);
        !matches!(opened, Ok(Some((place, file))) if !file.is_cached(place, offset_bytes, len_bytes))
    }
}

impl crate::StoreVersions for LocalStore {
    fn version(&self, key: &[u8]) -> Result<Option<Version>> {
        let found = match self.inner.root.file(relative_path(key)?).look() {
            Ok(found) => found,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(Error::io("cannot look at", self.describe(key), error)),
        };
        // A program can set back the time of modification, so the version has the time of the
        // inode's last change, too.
        Ok(found.is_file.then(|| Version {
            len_bytes: found.len_bytes,
            text: format!(
                "file {} {} {} {}.{:09} {}.{:09}",
                found.id.device,
                found.id.number,
                found.len_bytes,
                found.modified.0,
                found.modified.1,
                found.changed.0,
                found.changed.1
            ),
        }))
    }
}

#[cfg(test)]
mod tests;
