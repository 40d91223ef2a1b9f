//! The database's entries for raw leaves: for each leaf, a zarr document inline and a reference to
//! its single chunk.
//!
//! ```text
//! m.0.w/c/0          model.safetensors, offset, length      (inline, if tiny)
//! m.0.w/zarr.json    the document of its dtype and shape    (one in memory for all equal leaves)
//! ```
//!
//! The entries are made only when the writer of the database asks for them. Keys come from the
//! plan's names.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::super::manifest::LeafPlace;
use super::super::{stored_dtype, zarr_key};
use super::plan::Plan;
use regrow_base::error::Result;
use regrow_ocdbt::{Entries, EntryValue, FileName, ValueRef};
use regrow_tree::array::{Array, Dtype, Shape};
use regrow_zarr::zarr::{ArrayMeta, V3_DOCUMENT};

/// Values up to this size are also stored in the database's nodes, where Orbax reads them without
/// another seek.
const INLINE_LEN_MAX_BYTES: u64 = 128;

/// The number of entries of a leaf: its chunk, then its document, in the order of their keys.
const ENTRIES_PER_LEAF: usize = 2;

/// All entries of raw leaves.
pub(super) struct RawEntries<'p> {
    plan: &'p Plan<'p>,
    /// The leaves with entries, sorted by name, each with the number of its document.
    leaves: Vec<(u32, u32)>,
    documents: Vec<Document>,
    files: Vec<FileName>,
    /// The stored bytes of tiny leaves whose memory is not in C order.
    tiny: HashMap<u32, Bytes>,
}

struct Document {
    json: Bytes,
    /// The key of the only chunk, such as `c/0/0`.
    chunk_key: String,
}

impl<'p> RawEntries<'p> {
    /// The entries of the raw leaves in a plan. `files` has the names of the data files.
    pub fn new<'n>(plan: &'p Plan<'p>, files: impl Iterator<Item = &'n str>) -> Result<Self> {
        let base: Arc<[u8]> = Arc::from(&b""[..]);
        let mut entries = Self {
            plan,
            leaves: Vec::with_capacity(plan.leaves.len()),
            documents: Vec::new(),
            files: files.map(|name| (base.clone(), Arc::from(name.as_bytes()))).collect(),
            tiny: HashMap::new(),
        };
        let mut known: HashMap<(Dtype, Shape), u32> = HashMap::new();
        let mut last: Option<(Dtype, &Shape, u32)> = None;
        for &leaf in plan.by_name() {
            let Some((planned, source)) = plan.leaf(leaf as usize) else { continue };
            let (LeafPlace::Raw { .. }, Some(array), true) =
                (planned.place, source.as_array(), Plan::has_elements(source))
            else {
                continue;
            };
            let (dtype, shape) = (stored_dtype(planned.dtype), array.shape());
            let document = match last {
                Some((d, s, document)) if d == dtype && s == shape => document,
                _ => match known.get(&(dtype, shape.clone())) {
                    Some(&document) => document,
                    None => {
                        let added = entries.add_document(dtype, shape);
                        let document = added.map_err(|error| error.at_leaf(&plan.path(leaf as usize)))?;
                        known.insert((dtype, shape.clone()), document);
                        document
                    }
                },
            };
            last = Some((dtype, shape, document));
            if is_tiny(array, planned.dtype) && array.c_order_bytes().is_none() {
                let bytes = array.to_c_order().map_err(|error| error.at_leaf(&plan.path(leaf as usize)))?;
                entries.tiny.insert(leaf, bytes);
            }
            entries.leaves.push((leaf, document));
        }
        Ok(entries)
    }

    fn add_document(&mut self, dtype: Dtype, shape: &Shape) -> Result<u32> {
        let json = Bytes::from(ArrayMeta::v3_raw(shape.clone(), dtype)?.to_json());
        self.documents.push(Document { json, chunk_key: format!("c{}", "/0".repeat(shape.rank())) });
        Ok((self.documents.len() - 1) as u32)
    }

    /// Whether the keys have the same order as the names.
    pub fn are_in_order(&self) -> bool {
        names_rise(self.leaves.iter().map(|entry| self.plan.name(entry.0 as usize)))
    }

    fn entry(&self, at: usize) -> Option<(u32, &Document)> {
        let &(leaf, document) = self.leaves.get(at / ENTRIES_PER_LEAF)?;
        Some((leaf, self.documents.get(document as usize)?))
    }
}

impl Entries for RawEntries<'_> {
    fn count(&self) -> usize {
        ENTRIES_PER_LEAF * self.leaves.len()
    }

    fn files(&self) -> &[FileName] {
        &self.files
    }

    fn push_key(&self, at: usize, out: &mut Vec<u8>) {
        let Some((leaf, document)) = self.entry(at) else { return };
        let name = self.plan.name(leaf as usize);
        let part =
            if at.is_multiple_of(ENTRIES_PER_LEAF) { document.chunk_key.as_str() } else { V3_DOCUMENT };
        if !name.is_empty() {
            out.extend_from_slice(name.as_bytes());
            out.push(b'/');
        }
        out.extend_from_slice(part.as_bytes());
        debug_assert!(out.ends_with(zarr_key(name, part).as_bytes()));
    }

    fn value(&self, at: usize) -> ValueRef<'_> {
        let nothing = ValueRef::Inline(b"");
        let Some((leaf, document)) = self.entry(at) else { return nothing };
        if !at.is_multiple_of(ENTRIES_PER_LEAF) {
            return ValueRef::Inline(&document.json);
        }
        let Some((planned, Some(array))) =
            self.plan.leaf(leaf as usize).map(|(planned, leaf)| (planned, leaf.as_array()))
        else {
            return nothing;
        };
        if is_tiny(array, planned.dtype) {
            let bytes = array.c_order_bytes().or_else(|| self.tiny.get(&leaf));
            return ValueRef::Inline(bytes.map_or(b"", |bytes| bytes));
        }
        let LeafPlace::Raw { file, offset_bytes } = planned.place else { return nothing };
        ValueRef::Indirect { file: file as u32, offset_bytes, len_bytes: planned.len_bytes }
    }
}

/// Whether the keys of leaves have the same order as their names, which are sorted. If one name is
/// a prefix of another, the key of the longer name may sort between the entries of the shorter
/// name.
pub(super) fn names_rise<'n>(names: impl Iterator<Item = &'n str>) -> bool {
    let mut last: Option<&[u8]> = None;
    for name in names {
        let name = name.as_bytes();
        let may_come_between = last.is_some_and(|last| match name.strip_prefix(last) {
            // `w` and `w/x` share a folder; `w-x` sorts before `w/`.
            Some(rest) => rest.first().is_none_or(|&next| next <= b'/'),
            None => false,
        });
        if may_come_between {
            return false;
        }
        last = Some(name);
    }
    true
}

/// All entries as a list, to which a caller can add other entries.
pub(super) fn to_list(entries: &dyn Entries) -> Vec<(Vec<u8>, EntryValue)> {
    let entry = |at| {
        let mut key = Vec::new();
        entries.push_key(at, &mut key);
        let value = match entries.value(at) {
            ValueRef::Inline(bytes) => EntryValue::Inline(Bytes::copy_from_slice(bytes)),
            ValueRef::Indirect { file, offset_bytes, len_bytes } => {
                let (base, relative) = entries.files().get(file as usize).cloned().unwrap_or_default();
                EntryValue::Indirect { base, relative, offset_bytes, len_bytes }
            }
        };
        (key, value)
    };
    (0..entries.count()).map(entry).collect()
}

/// Whether a node stores the leaf's bytes: the leaf is small, and the save does not cast it.
fn is_tiny(array: &Array, stored: Dtype) -> bool {
    array.dtype() == stored && array.len_bytes() <= INLINE_LEN_MAX_BYTES
}
