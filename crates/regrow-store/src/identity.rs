//! The identity of the file or object at a path, and documents that are read as a whole.

use std::hash::{Hash, Hasher};
use std::time::SystemTime;

use crate::bytes::glance::Language;
use crate::error::{Error, ErrorKind, Result};

/// Identifies the file, folder or objects at a path. If the identity has changed, something else
/// has taken the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Device, inode and time of creation. An inode alone is soon reused for another file.
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

/// A document that is read as a whole: its name in messages, its language, and its longest length.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// The name of the document in messages: `the manifest`.
    pub what: &'a str,
    /// The language of the document. Each piece of a long document must look like this language.
    pub language: Language,
    /// A longer document is refused.
    pub len_max_bytes: u64,
}

impl Document<'_> {
    /// Returns an error of kind `Limit` if the document is too long.
    pub fn check_len(&self, len_bytes: u64) -> Result<()> {
        if len_bytes <= self.len_max_bytes {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Limit, format!("{} is too long", self.what))
            .expected(format_args!("at most {} bytes", self.len_max_bytes), len_bytes))
    }
}
