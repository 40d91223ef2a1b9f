//! Opening: find the layout, read the metadata, hand out lazy leaves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::OpenOptions;
use crate::array::{Array, Region};
use crate::error::{Error, Result};
use crate::formats::{Description, Reader};
use crate::tree::{KeyPath, Leaf, LeafInfo, Tree};

/// An opened checkpoint: its metadata, and its leaves to be read one at a time. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    reader: Arc<dyn Reader>,
}

/// Opens the checkpoint at `path`, whatever its layout: metadata only.
pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
    open_with(path, &OpenOptions::default())
}

/// Opens a step or an item of the checkpoint at `path`.
pub fn open_with(_path: impl AsRef<Path>, _options: &OpenOptions) -> Result<Checkpoint> {
    Err(Error::unsupported("stub"))
}

impl Checkpoint {
    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The reader of its layout.
    pub fn reader(&self) -> &dyn Reader {
        &*self.reader
    }
    /// What the checkpoint says of itself.
    pub fn description(&self) -> &Description {
        self.reader.description()
    }
    /// The structure, with what is known of each leaf.
    pub fn tree(&self) -> &Tree<LeafInfo> {
        self.reader.tree()
    }
    /// The position in flatten order of the leaf whose printed key path is `path` (`params/dense/kernel`), or
    /// whose stored name is (`params.dense.kernel`).
    pub fn find(&self, _path: &str) -> Result<usize> {
        Err(Error::unsupported("stub"))
    }
    /// The key path of a leaf.
    pub fn key_path(&self, _leaf: usize) -> Result<KeyPath> {
        Err(Error::unsupported("stub"))
    }
    /// Reads one leaf, checked; a view of the map where it can be one.
    pub fn read(&self, _leaf: usize) -> Result<Leaf> {
        Err(Error::unsupported("stub"))
    }
    /// Reads a hyper-rectangle of one leaf: only the chunks or byte ranges it meets.
    pub fn region(&self, _leaf: usize, _region: &Region) -> Result<Array> {
        Err(Error::unsupported("stub"))
    }
}
