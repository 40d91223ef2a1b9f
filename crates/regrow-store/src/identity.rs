//! The identity of the file or object at a path, and documents that are read as a whole.

use std::hash::{Hash, Hasher};
use std::time::SystemTime;

use crate::bytes::glance::Language;
use crate::error::{Error, ErrorKind, Result};

/// Which file, folder or object a path leads to: another identity means that something else has
/// taken the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Device, inode and time of birth; an inode alone is soon given to another file.
    Inode(u64, u64, Option<SystemTime>),
    /// A digest of the names, lengths and tags of the objects.
    Objects(u64),
}

impl Identity {
    /// The identity of objects, from values that differ between versions.
    pub fn of_objects(objects: impl Hash) -> Self {
        let mut hasher = std::hash::DefaultHasher::new();
        objects.hash(&mut hasher);
        Self::Objects(hasher.finish())
    }
}

/// A document to be read whole: its name in messages, its language, and how long it may be.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// Its name in messages: `the manifest`.
    pub what: &'a str,
    /// A long one must look like a part of such a document, piece by piece.
    pub language: Language,
    /// Longest that is read.
    pub len_max_bytes: u64,
}

impl Document<'_> {
    /// Errs if the document is too long to be read.
    ///
    /// # Errors
    /// `Limit`.
    pub fn check_len(&self, len_bytes: u64) -> Result<()> {
        if len_bytes <= self.len_max_bytes {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Limit, format!("{} is too long", self.what))
            .expected(format_args!("at most {} bytes", self.len_max_bytes), len_bytes))
    }
}
