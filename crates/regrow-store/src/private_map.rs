//! Maps of whole files as private, writable memory of this process.

use std::fs::File;

use memmap2::{MmapOptions, MmapRaw};

/// A whole file as writable memory. Writes change only this memory, not the file.
#[derive(Debug)]
pub struct PrivateMap(MmapRaw);

impl PrivateMap {
    /// Maps the whole of `file`, which is not empty; `None` if the system cannot map it.
    pub(super) fn of(file: &File) -> Option<Self> {
        // SAFETY: the map is private and copied on write. No reference to its bytes exists: callers
        // get only a pointer. A process that truncates the file would take pages from the map, as
        // with every map; regrow replaces files and never truncates them.
        unsafe { MmapOptions::new().map_copy(file) }.ok().map(|map| Self(map.into()))
    }

    /// A pointer to the first byte.
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a map cannot be empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn files_that_cannot_be_mapped_have_no_map() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"abc").unwrap();
        let map = PrivateMap::of(&File::open(&path).unwrap()).unwrap();
        assert_eq!((map.len(), map.as_mut_ptr().is_null()), (3, false));
        // The system returns ENODEV for a folder and for files of some file systems, and EACCES for
        // a file without permission to read.
        assert!(PrivateMap::of(&File::open(folder.path()).unwrap()).is_none());
        assert!(PrivateMap::of(&File::options().write(true).open(&path).unwrap()).is_none());
    }
}
