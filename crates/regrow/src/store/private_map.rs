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
