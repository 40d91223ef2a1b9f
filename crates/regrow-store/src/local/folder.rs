//! A folder in which files are opened. A `Folder` is found by its path at each access, or it is
//! opened once, and the system finds files relative to the opened folder.
//!
//! A save replaces a checkpoint by exchanging the names of two folders. If a reader opens one file
//! by path before the exchange and another file after the exchange, the reader has parts of two
//! checkpoints. An opened folder stays the same folder: its files are those of one checkpoint, or
//! missing.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::system::{self, Caching, FileState, OpenFolder};

/// The folder to which paths are relative.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    opened: Option<OpenFolder>,
}

impl Folder {
    /// A folder that is found by its path at each access. It need not exist yet.
    pub fn at_path(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), opened: None }
    }

    /// Opens the folder that is at `path` now.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let opened = OpenFolder::open(&path)?;
        Ok(Self { path, opened: Some(opened) })
    }

    /// The path of the folder, as the caller gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The place of the file at `relative`. The file need not exist.
    pub fn file<'a>(&'a self, relative: &'a Path) -> FilePlace<'a> {
        FilePlace { folder: self, relative }
    }
}

/// The place of a file: a folder and a relative path.
#[derive(Debug, Clone, Copy)]
pub struct FilePlace<'a> {
    folder: &'a Folder,
    relative: &'a Path,
}

impl FilePlace<'_> {
    /// The path of the file, for messages.
    pub fn describe(self) -> PathBuf {
        self.folder.path.join(self.relative)
    }

    /// Opens a file of any kind for reading. Does not wait, even for a pipe.
    pub fn open(self, caching: Caching) -> io::Result<File> {
        match &self.folder.opened {
            Some(folder) => folder.open_file(self.relative, caching),
            None => system::open_file(&self.describe(), caching),
        }
    }

    /// The kind, length, identity and times of the file, according to the system.
    pub fn look(self) -> io::Result<FileState> {
        match &self.folder.opened {
            Some(folder) => folder.look(self.relative),
            None => system::look(&self.describe()),
        }
    }

    /// The length of the regular file; `None` if it is not a regular file.
    pub fn len_bytes(self) -> io::Result<Option<u64>> {
        let Some(folder) = &self.folder.opened else {
            let found = fs::metadata(self.describe())?;
            return Ok(found.is_file().then_some(found.len()));
        };
        let found = folder.look(self.relative)?;
        Ok(found.is_file.then_some(found.len_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_folder_that_was_opened_is_not_the_one_that_takes_its_name() {
        let root = tempfile::tempdir().unwrap();
        let (path, other) = (root.path().join("a"), root.path().join("b"));
        for (folder, text) in [(&path, "old"), (&other, "newer")] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), text).unwrap();
        }
        let (by_path, opened) = (Folder::at_path(&path), Folder::open(&path).unwrap());
        let read = |folder: &Folder| {
            let mut text = String::new();
            let file = folder.file(Path::new("file"));
            file.open(Caching::Through)?.read_to_string(&mut text)?;
            assert_eq!(file.len_bytes()?, Some(text.len() as u64));
            io::Result::Ok(text)
        };
        fs::rename(&path, root.path().join("c")).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(read(&by_path).unwrap(), "newer");
        match read(&opened) {
            // The portable version finds that another folder has the path, and cannot open the old
            // file.
            Err(error) if cfg!(feature = "portable") => assert_eq!(error.kind(), io::ErrorKind::NotFound),
            old => assert_eq!(old.unwrap(), "old"),
        }
        fs::remove_dir_all(root.path().join("c")).unwrap();
        assert_eq!(read(&opened).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(Folder::open(&other).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_regular_files_have_a_length() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("below")).unwrap();
        for folder in [Folder::at_path(root.path()), Folder::open(root.path()).unwrap()] {
            assert_eq!(folder.file(Path::new("below")).len_bytes().unwrap(), None);
            let missing = folder.file(Path::new("below/x")).len_bytes().unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        }
    }
}
