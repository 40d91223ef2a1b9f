//! Staged to committed (stub: the I/O room replaces it).
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A checkpoint under its temporary name. Dropped uncommitted, it leaves no trace.
#[derive(Debug)]
pub struct Staged {
    folder: PathBuf,
}

impl Staged {
    /// Makes the temporary folder beside `target`.
    ///
    /// # Errors
    /// `AlreadyExists` if the target exists and `overwrite` is not set.
    pub fn create(_target: &Path, _overwrite: bool) -> Result<Self> {
        Err(Error::unsupported("stub"))
    }
    /// The temporary folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
    /// Writes one small file durably below the temporary folder; makes its folders.
    pub fn write(&self, _name: &str, _bytes: &[u8]) -> Result<()> {
        Err(Error::unsupported("stub"))
    }
    /// Syncs folders, gives the final name, syncs the parent: a reader sees all of the checkpoint or none of it.
    pub fn commit(self) -> Result<PathBuf> {
        Err(Error::unsupported("stub"))
    }
}
