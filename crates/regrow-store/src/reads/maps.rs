//! Maps of the files of a checkpoint as memory of this process.

use crate::PrivateMap;

/// The maps of a checkpoint's files, and the positions of its leaves in them.
#[derive(Debug)]
pub struct PrivateMaps {
    /// One map for each file.
    pub files: Vec<PrivateMap>,
    /// The position of each leaf; `None` for a leaf without stored bytes.
    pub places: Vec<Option<MappedPlace>>,
}

/// The position of the stored bytes of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedPlace {
    /// The index of the file in `files`.
    pub file: usize,
    /// The offset of the first byte in the file.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub len_bytes: u64,
}
