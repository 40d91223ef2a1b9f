//! Files with leaves as memory of this process.

use crate::PrivateMap;

/// The files of a checkpoint as memory of this process, and where its leaves lie there.
#[derive(Debug)]
pub struct PrivateMaps {
    /// A map of each file.
    pub files: Vec<PrivateMap>,
    /// For each leaf its place; `None` for those without elements that a map shows.
    pub places: Vec<Option<MappedPlace>>,
}

/// The bytes of a leaf, as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedPlace {
    /// The number of its file.
    pub file: usize,
    /// Where it begins there.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}
