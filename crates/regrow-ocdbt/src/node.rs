//! B+tree nodes: sorted keys. In a leaf each key has a value; in an interior node each key has a
//! reference to a child.
//!
//! ```text
//! | height u8 | data file table | num_entries n | key_prefix_length x n-1 | key_suffix_length x n | (*) | key suffixes |
//! leaf:          | value_length x n | value_kind x n | data_file_id, offset per indirect value | inline values |
//! interior node: | data_file_id, offset, length x n | num_keys, num_tree_bytes, num_indirect_value_bytes x n  |
//! (*) interior nodes: subtree_common_prefix_length x n
//! ```
//!
//! Keys inside a node are *relative*: they omit a prefix K that a reader collects on the way down.
//! The node does not store K, so this module uses relative keys. A parsed node has its keys in one
//! buffer and its inline values in its body, without an allocation for each key.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::bytes::varint::write_varint;
use crate::error::Result;

use super::envelope::{Body, Structure};
use super::fields::Fields;
use super::rule::Rule;
use super::table::{self, DataFile};

pub(super) const ENTRIES_MAX: usize = 1 << 20;
/// The longest key, with K.
pub const KEY_LEN_MAX_BYTES: usize = 65535;
pub(super) const INLINE_LEN_MAX_BYTES: u64 = 1 << 20;

/// The shortest entry of a leaf, and of an interior node.
const LEAF_ENTRY_LEN_MIN_BYTES: u64 = 3;
const CHILD_ENTRY_LEN_MIN_BYTES: u64 = 8;

const KIND_INLINE: u8 = 0;
const KIND_INDIRECT: u8 = 1;

/// A byte range of a data file with a node: the root of a version, a child, or a version tree node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct NodeRef {
    pub(super) file: DataFile,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
}

/// The statistics in a reference to a B+tree node, over everything below it. Sums stop at 2^64 - 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Stats {
    pub(super) num_keys: u64,
    pub(super) num_tree_bytes: u64,
    pub(super) num_indirect_value_bytes: u64,
}

impl Stats {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            num_keys: self.num_keys.saturating_add(other.num_keys),
            num_tree_bytes: self.num_tree_bytes.saturating_add(other.num_tree_bytes),
            num_indirect_value_bytes: self
                .num_indirect_value_bytes
                .saturating_add(other.num_indirect_value_bytes),
        }
    }
}

/// A parsed and checked node:
///
/// - it has at least one entry;
/// - relative keys strictly increase;
/// - file indexes lie inside its table, ranges end below 2^63, and inline values lie inside its
///   body.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) height: u8,
    keys: Vec<u8>,
    key_ends: Vec<u32>,
    longest_key_len: usize,
    files: Vec<DataFile>,
    body: Bytes,
    entries: Entries,
}

#[derive(Debug)]
enum Entries {
    Leaf(Vec<LeafEntry>),
    Interior(Vec<ChildEntry>),
}

#[derive(Debug, Clone, Copy)]
struct LeafEntry {
    /// The number of the file; `None` for an inline value, whose offset counts in the body.
    file: Option<u32>,
    offset_bytes: u64,
    len_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct ChildEntry {
    common_len: u16,
    file: u32,
    offset_bytes: u64,
    len_bytes: u64,
    stats: Stats,
}

/// The value of a leaf's entry.
#[derive(Debug)]
pub(super) enum Value<'n> {
    Inline(Bytes),
    Indirect { file: &'n DataFile, offset_bytes: u64, len_bytes: u64 },
}

/// An interior node's entry.
#[derive(Debug)]
pub(super) struct Child<'n> {
    pub(super) reference: NodeRef,
    pub(super) stats: Stats,
    /// The relative key of the entry: a lower bound of the keys below.
    pub(super) key: &'n [u8],
    /// The part of `key` that the child's own keys omit.
    pub(super) common: &'n [u8],
}

impl Node {
    /// Parses a stored node that was reached by the path `transitive`. Its decompressed length, and
    /// the total length of its full keys, is at most `len_max_bytes`.
    pub(super) fn parse(stored: &Bytes, transitive: &[u8], len_max_bytes: u64) -> Result<Self> {
        let body = Body::open(stored, Structure::BtreeNode, len_max_bytes)?;
        body.parse(|input| {
            let height = input.u8("height")?;
            let files = table::read(input, transitive, len_max_bytes)?;
            let count = u64::from(input.v32("num_entries")?);
            if count == 0 || count > ENTRIES_MAX as u64 {
                return Err(input
                    .fail(Rule::Btree, "num_entries is out of range")
                    .expected(format_args!("1 to {ENTRIES_MAX}"), count));
            }
            let least = if height == 0 { LEAF_ENTRY_LEN_MIN_BYTES } else { CHILD_ENTRY_LEN_MIN_BYTES };
            let count = input.fits(count, least, "num_entries")?;
            let keys = read_keys(input, count, height > 0, len_max_bytes)?;
            let entries = if height == 0 {
                Entries::Leaf(read_leaf(input, &files, count)?)
            } else {
                Entries::Interior(read_interior(input, &files, &keys.common_lens)?)
            };
            Ok(Self {
                height,
                keys: keys.bytes,
                key_ends: keys.ends,
                longest_key_len: keys.longest_len,
                files,
                body: body.bytes.clone(),
                entries,
            })
        })
    }

    pub(super) fn len(&self) -> usize {
        self.key_ends.len()
    }

    /// The approximate memory of the node.
    pub(super) fn footprint_bytes(&self) -> usize {
        let each = match self.entries {
            Entries::Leaf(_) => size_of::<LeafEntry>(),
            Entries::Interior(_) => size_of::<ChildEntry>(),
        };
        self.keys.len() + self.body.len() + self.len() * (each + size_of::<u32>())
    }

    pub(super) fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.key_ends.get(i - 1).map_or(0, |&end| end as usize) };
        let end = self.key_ends.get(i).map_or(0, |&end| end as usize);
        self.keys.get(start..end).unwrap_or_default()
    }

    pub(super) fn first_key(&self) -> &[u8] {
        self.key(0)
    }

    pub(super) fn last_key(&self) -> &[u8] {
        self.key(self.len().saturating_sub(1))
    }

    pub(super) fn longest_key_len(&self) -> usize {
        self.longest_key_len
    }

    /// Number of entries whose relative key is below `key`.
    pub(super) fn count_below(&self, key: &[u8]) -> usize {
        self.partition(|other| other < key)
    }

    /// Number of entries whose relative key is `key` or below.
    pub(super) fn count_up_to(&self, key: &[u8]) -> usize {
        self.partition(|other| other <= key)
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        let i = self.count_below(key);
        (i < self.len() && self.key(i) == key).then_some(i)
    }

    fn partition(&self, is_before: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(self.key(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(super) fn value(&self, i: usize) -> Option<Value<'_>> {
        let Entries::Leaf(entries) = &self.entries else { return None };
        let entry = entries.get(i)?;
        Some(match entry.file {
            None => {
                let start = usize::try_from(entry.offset_bytes).ok()?;
                let end = start.checked_add(usize::try_from(entry.len_bytes).ok()?)?;
                Value::Inline(self.body.slice(start..end.min(self.body.len())))
            }
            Some(file) => Value::Indirect {
                file: self.files.get(file as usize)?,
                offset_bytes: entry.offset_bytes,
                len_bytes: entry.len_bytes,
            },
        })
    }

    /// Entry `i` of an interior node; `None` for a leaf.
    pub(super) fn child(&self, i: usize) -> Option<Child<'_>> {
        let Entries::Interior(entries) = &self.entries else { return None };
        let entry = entries.get(i)?;
        let key = self.key(i);
        Some(Child {
            reference: NodeRef {
                file: self.files.get(entry.file as usize)?.clone(),
                offset_bytes: entry.offset_bytes,
                len_bytes: entry.len_bytes,
            },
            stats: entry.stats,
            key,
            common: key.get(..usize::from(entry.common_len))?,
        })
    }

    /// The statistics that a reference to this node must have. The node's stored length is
    /// `own_len_bytes`.
    pub(super) fn stats(&self, own_len_bytes: u64) -> Stats {
        let own = Stats { num_tree_bytes: own_len_bytes, ..Stats::default() };
        match &self.entries {
            Entries::Leaf(entries) => entries.iter().fold(own, |sum, entry| {
                let indirect = if entry.file.is_some() { entry.len_bytes } else { 0 };
                sum.plus(Stats { num_keys: 1, num_tree_bytes: 0, num_indirect_value_bytes: indirect })
            }),
            Entries::Interior(entries) => entries.iter().fold(own, |sum, entry| sum.plus(entry.stats)),
        }
    }
}

struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    common_lens: Vec<u16>,
    longest_len: usize,
}

fn read_keys(input: &mut Fields<'_>, count: usize, interior: bool, len_max_bytes: u64) -> Result<Keys> {
    let prefix_lens = input.column(count - 1, "key_prefix_length", Fields::v16)?;
    let suffix_lens = input.column(count, "key_suffix_length", Fields::v16)?;
    let common_lens =
        if interior { input.column(count, "subtree_common_prefix_length", Fields::v16)? } else { Vec::new() };

    let mut keys = Keys { bytes: Vec::new(), ends: Vec::with_capacity(count), common_lens, longest_len: 0 };
    let mut before = 0..0;
    let prefix_lens = std::iter::once(0).chain(prefix_lens);
    for (i, (prefix_len, suffix_len)) in prefix_lens.zip(suffix_lens).enumerate() {
        let at = input.offset_bytes();
        let broken = |what: &str| Rule::Btree.error(format_args!("key {i} of the node {what}")).at_byte(at);
        let (prefix_len, suffix_len) = (usize::from(prefix_len), usize::from(suffix_len));
        if prefix_len > before.len() {
            return Err(broken("shares more bytes than the previous key has")
                .expected(format_args!("at most {}", before.len()), prefix_len));
        }
        let key_len = prefix_len + suffix_len;
        if key_len > KEY_LEN_MAX_BYTES {
            return Err(
                broken("is too long").expected(format_args!("at most {KEY_LEN_MAX_BYTES} bytes"), key_len)
            );
        }
        if keys.common_lens.get(i).is_some_and(|&common_len| usize::from(common_len) > key_len) {
            return Err(broken("is shorter than the common prefix of its subtree"));
        }
        let start = keys.bytes.len();
        if (start + key_len) as u64 > len_max_bytes.min(u64::from(u32::MAX)) {
            return Err(input.fail(Rule::Limit, "the keys of the node are too long together"));
        }
        let suffix = input.take(suffix_len, "key_suffix")?;
        // Both keys begin with the same `prefix_len` bytes, so the bytes after them decide the
        // order of the keys.
        let rest_before = keys.bytes.get(before.start + prefix_len..before.end).unwrap_or_default();
        if i > 0 && suffix.cmp(rest_before) != Ordering::Greater {
            return Err(broken("does not come after the key before it"));
        }
        keys.bytes.extend_from_within(before.start..before.start + prefix_len);
        keys.bytes.extend_from_slice(suffix);
        keys.longest_len = keys.longest_len.max(key_len);
        before = start..start + key_len;
        keys.ends.push(before.end as u32);
    }
    Ok(keys)
}

fn read_leaf(input: &mut Fields<'_>, files: &[DataFile], count: usize) -> Result<Vec<LeafEntry>> {
    let lens = input.column(count, "value_length", Fields::v64)?;
    let kinds = input.take(count, "value_kind")?;
    let mut entries = Vec::with_capacity(count);
    for (i, (&len_bytes, &kind)) in lens.iter().zip(kinds).enumerate() {
        if kind > KIND_INDIRECT {
            let error = input.fail(Rule::Btree, format_args!("value_kind of entry {i} is unknown"));
            return Err(error.expected("0 (inline) or 1 (indirect)", kind));
        }
        if kind == KIND_INLINE && len_bytes > INLINE_LEN_MAX_BYTES {
            let error = input.fail(Rule::Btree, format_args!("the inline value of entry {i} is too long"));
            return Err(error.expected(format_args!("at most {INLINE_LEN_MAX_BYTES} bytes"), len_bytes));
        }
        entries.push(LeafEntry { file: None, offset_bytes: 0, len_bytes });
    }
    for (&kind, entry) in kinds.iter().zip(&mut entries) {
        if kind == KIND_INDIRECT {
            entry.file = Some(read_file_id(input, files)?);
        }
    }
    for entry in entries.iter_mut().filter(|entry| entry.file.is_some()) {
        entry.offset_bytes = input.v64("data_file_offset")?;
        check_range(input, entry.offset_bytes, entry.len_bytes)?;
    }
    for entry in entries.iter_mut().filter(|entry| entry.file.is_none()) {
        entry.offset_bytes = input.offset_bytes();
        input.take(entry.len_bytes as usize, "an inline value")?;
    }
    Ok(entries)
}

fn read_interior(input: &mut Fields<'_>, files: &[DataFile], common_lens: &[u16]) -> Result<Vec<ChildEntry>> {
    let count = common_lens.len();
    let ids = input.column(count, "data_file_id", |input, _| read_file_id(input, files))?;
    let offsets = input.column(count, "data_file_offset", Fields::v64)?;
    let lens = input.column(count, "data_file_length", Fields::v64)?;
    let stats = read_stats(input, count)?;
    let mut entries = Vec::with_capacity(count);
    for (((&common_len, file), (offset_bytes, len_bytes)), stats) in
        common_lens.iter().zip(ids).zip(offsets.into_iter().zip(lens)).zip(stats)
    {
        check_range(input, offset_bytes, len_bytes)?;
        entries.push(ChildEntry { common_len, file, offset_bytes, len_bytes, stats });
    }
    Ok(entries)
}

fn read_file_id(input: &mut Fields<'_>, files: &[DataFile]) -> Result<u32> {
    let id = input.v64("data_file_id")?;
    table::file_at(files, id, input)?;
    Ok(id as u32) // a node is too short for a table of 2^32 files
}

pub(super) fn read_stats(input: &mut Fields<'_>, count: usize) -> Result<Vec<Stats>> {
    let keys = input.column(count, "num_keys", Fields::v64)?;
    let tree = input.column(count, "num_tree_bytes", Fields::v64)?;
    let indirect = input.column(count, "num_indirect_value_bytes", Fields::v64)?;
    let columns = keys.into_iter().zip(tree).zip(indirect);
    Ok(columns
        .map(|((num_keys, num_tree_bytes), num_indirect_value_bytes)| Stats {
            num_keys,
            num_tree_bytes,
            num_indirect_value_bytes,
        })
        .collect())
}

pub(super) fn write_stats(out: &mut Vec<u8>, stats: impl Iterator<Item = Stats> + Clone) {
    stats.clone().for_each(|stats| write_varint(out, stats.num_keys));
    stats.clone().for_each(|stats| write_varint(out, stats.num_tree_bytes));
    stats.for_each(|stats| write_varint(out, stats.num_indirect_value_bytes));
}

/// Returns an error where a range ends beyond 2^63 - 1.
pub(super) fn check_range(input: &Fields<'_>, offset_bytes: u64, len_bytes: u64) -> Result<()> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(input.fail(
            Rule::Range,
            format_args!("a byte range ends beyond 2^63 - 1: {len_bytes} bytes from byte {offset_bytes} on"),
        )),
    }
}
