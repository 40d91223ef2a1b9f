//! Maps of whole files as memory of this process.

use std::fs::File;
use std::io;

use memmap2::{MmapOptions, MmapRaw};

use crate::system;

/// The whole of a file as writable memory: what is written to it stays in this process, and the file as it is.
#[derive(Debug)]
pub struct PrivateMap(MmapRaw);

impl PrivateMap {
    /// Maps the whole of `file`, which is not empty; `None` where the file system has no maps.
    pub(super) fn of(file: &File) -> io::Result<Option<Self>> {
        // SAFETY: the map is private and copied on write, and nobody makes a reference to its bytes: they are given
        // away as a pointer alone. As with every map, a process that truncates the file takes pages away; regrow
        // replaces files and never truncates one.
        match unsafe { MmapOptions::new().map_copy(file) } {
            Ok(map) => Ok(Some(Self(map.into()))),
            Err(error) if has_no_maps(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no map is empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Whether a file could not be mapped because its file system has no maps.
pub(super) fn has_no_maps(error: &io::Error) -> bool {
    system::has_no_maps(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_has_no_maps_is_told_from_what_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"abc").unwrap();
        let map = PrivateMap::of(&File::open(&path).unwrap()).unwrap().unwrap();
        assert_eq!((map.len(), map.as_mut_ptr().is_null()), (3, false));
        // A folder has none, as files of some file systems; and a file that may not be read is an error.
        assert!(PrivateMap::of(&File::open(folder.path()).unwrap()).unwrap().is_none());
        PrivateMap::of(&File::options().write(true).open(&path).unwrap()).unwrap_err();
    }
}
