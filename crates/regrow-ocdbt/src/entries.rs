//! The entries of a new database, in the order of their keys.
//!
//! The writer asks for one key and one value at a time. So a caller with a hundred thousand entries
//! in another form (names in one text, ranges of one file) needs no second copy.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

/// Base path and relative path of a data file.
pub type FileName = (Arc<[u8]>, Arc<[u8]>);

/// Entries in strictly ascending order of their keys.
pub trait Entries: Sync {
    /// The number of entries.
    fn count(&self) -> usize;

    /// The files with values.
    fn files(&self) -> &[FileName];

    /// Appends the key of entry `at` to `out`.
    fn push_key(&self, at: usize, out: &mut Vec<u8>);

    /// The value of entry `at`.
    fn value(&self, at: usize) -> ValueRef<'_>;
}

/// A value handed to [`write_database`](super::write_database).
#[derive(Debug, Clone)]
pub enum EntryValue {
    /// The value is stored inside the node.
    Inline(Bytes),
    /// A byte range of a file: `base` + `relative` is its path below the database.
    Indirect {
        /// First part of the path (`ocdbt.process_0/`, often empty).
        base: Arc<[u8]>,
        /// The rest of the path (`d/<hex>`, `model.safetensors`).
        relative: Arc<[u8]>,
        /// The offset of the first byte.
        offset_bytes: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
}

/// A reference to an [`EntryValue`].
#[derive(Debug, Clone, Copy)]
pub enum ValueRef<'a> {
    /// The value is stored inside the node.
    Inline(&'a [u8]),
    /// A byte range of a file.
    Indirect {
        /// The index in [`Entries::files`].
        file: u32,
        /// The offset of the first byte.
        offset_bytes: u64,
        /// Number of bytes.
        len_bytes: u64,
    },
}

/// Entries in memory.
pub(super) struct SortedEntries {
    entries: Vec<(Vec<u8>, EntryValue)>,
    files: Vec<FileName>,
    /// The number of each entry's file; 0 for an entry without a file.
    file_of: Vec<u32>,
}

impl SortedEntries {
    /// Sorts the entries, and numbers their files.
    pub(super) fn new(mut entries: Vec<(Vec<u8>, EntryValue)>) -> Self {
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut ids: HashMap<(&[u8], &[u8]), u32> = HashMap::new();
        let mut files: Vec<FileName> = Vec::new();
        let file_of = entries
            .iter()
            .map(|(_, value)| match value {
                EntryValue::Inline(_) => 0,
                EntryValue::Indirect { base, relative, .. } => {
                    *ids.entry((base, relative)).or_insert_with(|| {
                        files.push((base.clone(), relative.clone()));
                        (files.len() - 1) as u32
                    })
                }
            })
            .collect();
        Self { entries, files, file_of }
    }
}

impl Entries for SortedEntries {
    fn count(&self) -> usize {
        self.entries.len()
    }

    fn files(&self) -> &[FileName] {
        &self.files
    }

    fn push_key(&self, at: usize, out: &mut Vec<u8>) {
        if let Some((key, _)) = self.entries.get(at) {
            out.extend_from_slice(key);
        }
    }

    fn value(&self, at: usize) -> ValueRef<'_> {
        match (self.entries.get(at), self.file_of.get(at)) {
            (Some((_, EntryValue::Inline(bytes))), _) => ValueRef::Inline(bytes),
            (Some((_, EntryValue::Indirect { offset_bytes, len_bytes, .. })), Some(&file)) => {
                ValueRef::Indirect { file, offset_bytes: *offset_bytes, len_bytes: *len_bytes }
            }
            _ => ValueRef::Inline(b""),
        }
    }
}
