//! What goes into a database, in order of its keys.
//!
//! The writer asks for one key and one value at a time, so whoever has a hundred thousand of them elsewhere (names
//! in one text, ranges of one file) makes none of them twice.

use std::sync::Arc;

use bytes::Bytes;

/// Entries in strictly rising order of their keys.
pub(crate) trait Entries: Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Appends the key of entry `at` to `out`.
    fn push_key(&self, at: usize, out: &mut Vec<u8>);

    /// The value of entry `at`.
    fn value(&self, at: usize) -> ValueRef<'_>;
}

/// A value handed to [`write_database`](super::write_database).
#[derive(Debug, Clone)]
pub enum EntryValue {
    /// Put inside the node.
    Inline(Bytes),
    /// A byte range of a file: `base` + `relative` is its path below the database.
    Indirect {
        /// First part of the path (`ocdbt.process_0/`, often empty).
        base: Arc<[u8]>,
        /// The rest of the path (`d/<hex>`, `model.safetensors`).
        relative: Arc<[u8]>,
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
}

/// An [`EntryValue`] that lies elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueRef<'a> {
    /// Put inside the node.
    Inline(&'a [u8]),
    /// A byte range of a file.
    Indirect {
        /// First part of the path.
        base: &'a Arc<[u8]>,
        /// The rest of the path.
        relative: &'a Arc<[u8]>,
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
}

/// Entries in memory.
pub(super) struct SortedEntries(Vec<(Vec<u8>, EntryValue)>);

impl SortedEntries {
    /// Sorts them.
    pub(super) fn new(mut entries: Vec<(Vec<u8>, EntryValue)>) -> Self {
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Self(entries)
    }
}

impl Entries for SortedEntries {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn push_key(&self, at: usize, out: &mut Vec<u8>) {
        if let Some((key, _)) = self.0.get(at) {
            out.extend_from_slice(key);
        }
    }

    fn value(&self, at: usize) -> ValueRef<'_> {
        match self.0.get(at) {
            Some((_, EntryValue::Inline(bytes))) => ValueRef::Inline(bytes),
            Some((_, EntryValue::Indirect { base, relative, offset_bytes, len_bytes })) => {
                ValueRef::Indirect { base, relative, offset_bytes: *offset_bytes, len_bytes: *len_bytes }
            }
            None => ValueRef::Inline(b""),
        }
    }
}
