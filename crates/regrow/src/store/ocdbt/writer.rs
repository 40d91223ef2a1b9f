//! Builds a database in memory: sorted keys to leaves, leaves to interior nodes up to one root, and the
//! manifest that names it. Nothing here does I/O: the caller stores the bytes, the manifest last.
//!
//! ```text
//! file `node_file`:  | (whatever comes first) | leaves in key order | interior nodes, level by level | root |
//!                                             ^ nodes_offset_bytes
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::bytes::varint::write_varint;
use crate::error::{Error, ErrorKind, Result};

use super::config::OcdbtConfig;
use super::envelope::{Structure, seal};
use super::manifest::Manifest;
use super::node::{INLINE_LEN_MAX_BYTES, KEY_LEN_MAX_BYTES, NodeRef, Stats, write_stats};
use super::split::split;
use super::table::{self, DataFile, common_prefix_len, is_safe};
use super::versions::Version;

/// What the split estimates for an entry beside its key and value or path.
const LEAF_ENTRY_ESTIMATE_BYTES: u64 = 16;
const CHILD_ENTRY_ESTIMATE_BYTES: u64 = 56;

/// An interior node with a single child would add a level for nothing.
const CHILDREN_MIN: usize = 2;

/// A value handed to [`write_database`].
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

/// A database as bytes.
#[derive(Debug, Clone)]
pub struct Database {
    /// The nodes, to be stored in the node file from `nodes_offset_bytes` on. Empty where there are no keys.
    pub nodes: Vec<u8>,
    /// Keys and bytes of the manifests, to be stored in this order after everything else; the last one makes
    /// the database real.
    pub manifests: Vec<(String, Vec<u8>)>,
}

/// Builds a new database with one version that holds `entries`, in any order.
///
/// The nodes refer to each other as lying in `node_file` from `nodes_offset_bytes` on, so they can follow values
/// in one file. Which values go inside the nodes is the caller's choice ([`OcdbtConfig::max_inline_value_bytes`]
/// is only recorded).
///
/// # Errors
/// `NameCollision` for a key given twice; `InvalidArgument` for a key above 65535 bytes, an inline value above
/// 1 MiB, a range that ends beyond 2^63 - 1, a path that would not be followed, a configuration out of range.
pub fn write_database(
    config: &OcdbtConfig,
    entries: Vec<(Vec<u8>, EntryValue)>,
    node_file: &str,
    nodes_offset_bytes: u64,
) -> Result<Database> {
    config.validate()?;
    let mut uuid = [0; 16];
    random(&mut uuid)?;
    let mut nodes = NodeSink::new(config, node_file, nodes_offset_bytes)?;
    let root = nodes.write_tree(entries)?;
    let version = root.version(1, now_ns());
    let manifest = Manifest { uuid, config: *config, versions: vec![version], children: Vec::new() };
    Ok(Database { nodes: nodes.bytes, manifests: manifest.encode()? })
}

/// A new name for a data file: `d/` and 32 random hex digits.
///
/// # Errors
/// `Io` where the system has no random numbers.
pub fn random_data_file_name() -> Result<String> {
    let mut bytes = [0; 16];
    random(&mut bytes)?;
    Ok(format!("d/{:032x}", u128::from_be_bytes(bytes)))
}

fn random(bytes: &mut [u8; 16]) -> Result<()> {
    getrandom::fill(bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("the system gives no random numbers: {error}")))
}

/// Nanoseconds since 1970-01-01 UTC.
pub(super) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What a version says of its root.
#[derive(Debug, Default)]
pub(super) struct Root {
    reference: Option<NodeRef>,
    height: u8,
    stats: Stats,
}

impl Root {
    pub(super) fn version(self, generation: u64, commit_time_ns: u64) -> Version {
        Version {
            generation,
            commit_time_ns,
            root_height: self.height,
            root: self.reference,
            stats: self.stats,
        }
    }
}

/// Gathers nodes that will lie one after another in one file.
pub(super) struct NodeSink<'c> {
    pub(super) bytes: Vec<u8>,
    config: &'c OcdbtConfig,
    file: DataFile,
    offset_bytes: u64,
}

/// A node as its parent will refer to it.
struct Written<'k> {
    first_key: &'k [u8],
    /// Bytes of its keys that it leaves out, counted in full keys.
    excluded_len: usize,
    offset_bytes: u64,
    len_bytes: u64,
    stats: Stats,
}

impl<'c> NodeSink<'c> {
    pub(super) fn new(config: &'c OcdbtConfig, node_file: &str, offset_bytes: u64) -> Result<Self> {
        if !is_safe(node_file.as_bytes()) {
            return Err(Error::invalid(format!("{node_file:?} is no name for a data file")));
        }
        Ok(Self { bytes: Vec::new(), config, file: DataFile::new(b"", node_file.as_bytes()), offset_bytes })
    }

    /// A reference to the `len_bytes` bytes that were written last.
    pub(super) fn last_written(&self, len_bytes: u64) -> NodeRef {
        NodeRef {
            file: self.file.clone(),
            offset_bytes: self.end_bytes().saturating_sub(len_bytes),
            len_bytes,
        }
    }

    fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.bytes.len() as u64)
    }

    /// Writes the whole tree of `entries`, leaves first, root last.
    pub(super) fn write_tree(&mut self, mut entries: Vec<(Vec<u8>, EntryValue)>) -> Result<Root> {
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for ((key, value), next) in entries.iter().zip(entries.iter().skip(1).map(Some).chain([None])) {
            check_entry(key, value)?;
            if next.is_some_and(|(next, _)| key == next) {
                return Err(Error::new(
                    ErrorKind::NameCollision,
                    format!("the key {} is given twice", key.escape_ascii()),
                ));
            }
        }
        if entries.is_empty() {
            return Ok(Root::default());
        }
        let sizes: Vec<u64> = entries.iter().map(leaf_entry_estimate).collect();
        let ranges = self.split(&sizes, 1);
        let names = FileNames::new(&entries);
        let mut level = Vec::with_capacity(ranges.len());
        for range in &ranges {
            level.push(self.write_leaf(&entries, range.clone(), &names, ranges.len() == 1)?);
        }
        let mut height = 0_u8;
        while level.len() > 1 {
            height = height.saturating_add(1); // each level has about half the nodes of the one below, or fewer
            level = self.write_level(&level, height)?;
        }
        let root = level.first().map(|root| Root {
            reference: Some(NodeRef {
                file: self.file.clone(),
                offset_bytes: root.offset_bytes,
                len_bytes: root.len_bytes,
            }),
            height,
            stats: root.stats,
        });
        Ok(root.unwrap_or_default())
    }

    fn split(&self, sizes: &[u64], least: usize) -> Vec<Range<usize>> {
        split(sizes, u64::from(self.config.max_decoded_node_bytes), least)
    }

    fn write_leaf<'k>(
        &mut self,
        entries: &'k [(Vec<u8>, EntryValue)],
        range: Range<usize>,
        names: &FileNames<'_>,
        is_root: bool,
    ) -> Result<Written<'k>> {
        let ranks = names.ranks.get(range.clone()).unwrap_or_default();
        let entries = entries.get(range).unwrap_or_default();
        let (first_key, last_key) = ends(entries, |(key, _)| key);
        let excluded_len = if is_root { 0 } else { common_prefix_len(first_key, last_key) };

        let mut used: Vec<u32> = ranks.iter().copied().flatten().collect();
        used.sort_unstable();
        used.dedup();
        let files: Vec<_> =
            used.iter().filter_map(|&rank| names.sorted.get(rank as usize).copied()).collect();

        let mut body = vec![0];
        table::write(&mut body, &files);
        write_keys(&mut body, entries.iter().map(|(key, _)| key.as_slice()), excluded_len, None);
        let mut stats = Stats::default();
        for (_, value) in entries {
            let (len_bytes, indirect) = match value {
                EntryValue::Inline(bytes) => (bytes.len() as u64, false),
                EntryValue::Indirect { len_bytes, .. } => (*len_bytes, true),
            };
            let num_indirect_value_bytes = if indirect { len_bytes } else { 0 };
            stats = stats.plus(Stats { num_keys: 1, num_tree_bytes: 0, num_indirect_value_bytes });
            write_varint(&mut body, len_bytes);
        }
        body.extend(entries.iter().map(|(_, value)| u8::from(matches!(value, EntryValue::Indirect { .. }))));
        for rank in ranks.iter().flatten() {
            let id = used.binary_search(rank).unwrap_or_else(|place| place);
            write_varint(&mut body, id as u64);
        }
        for (_, value) in entries {
            if let EntryValue::Indirect { offset_bytes, .. } = value {
                write_varint(&mut body, *offset_bytes);
            }
        }
        for (_, value) in entries {
            if let EntryValue::Inline(bytes) = value {
                body.extend_from_slice(bytes);
            }
        }
        self.seal(&body, stats, first_key, excluded_len)
    }

    fn write_level<'k>(&mut self, children: &[Written<'k>], height: u8) -> Result<Vec<Written<'k>>> {
        let path_len = self.file.base_and_relative().1.len() as u64;
        let sizes: Vec<u64> = children
            .iter()
            .map(|child| child.first_key.len() as u64 + CHILD_ENTRY_ESTIMATE_BYTES + path_len)
            .collect();
        let ranges = self.split(&sizes, CHILDREN_MIN);
        let mut level = Vec::with_capacity(ranges.len());
        for range in &ranges {
            let children = children.get(range.clone()).unwrap_or_default();
            level.push(self.write_interior(children, height, ranges.len() == 1)?);
        }
        Ok(level)
    }

    fn write_interior<'k>(
        &mut self,
        children: &[Written<'k>],
        height: u8,
        is_root: bool,
    ) -> Result<Written<'k>> {
        let (first_key, last_first_key) = ends(children, |child| child.first_key);
        let excluded_len = if is_root {
            0
        } else {
            let of_keys = common_prefix_len(first_key, last_first_key);
            children.iter().map(|child| child.excluded_len).fold(of_keys, usize::min)
        };
        let mut body = vec![height];
        table::write(&mut body, &[self.file.base_and_relative()]);
        let common_lens = children.iter().map(|child| child.excluded_len - excluded_len);
        let keys = children.iter().map(|child| child.first_key);
        write_keys(&mut body, keys, excluded_len, Some(&mut common_lens.clone()));
        body.resize(body.len() + children.len(), 0); // data_file_id: the only file there is
        children.iter().for_each(|child| write_varint(&mut body, child.offset_bytes));
        children.iter().for_each(|child| write_varint(&mut body, child.len_bytes));
        write_stats(&mut body, children.iter().map(|child| child.stats));
        let stats = children.iter().fold(Stats::default(), |sum, child| sum.plus(child.stats));
        self.seal(&body, stats, first_key, excluded_len)
    }

    fn seal<'k>(
        &mut self,
        body: &[u8],
        below: Stats,
        first_key: &'k [u8],
        excluded_len: usize,
    ) -> Result<Written<'k>> {
        let offset_bytes = self.end_bytes();
        let len_bytes = seal(&mut self.bytes, Structure::BtreeNode, body, self.config.zstd_level)?;
        let stats = below.plus(Stats { num_tree_bytes: len_bytes, ..Stats::default() });
        Ok(Written { first_key, excluded_len, offset_bytes, len_bytes, stats })
    }
}

/// The distinct files of all entries, in table order, and which one each entry lies in.
struct FileNames<'e> {
    sorted: Vec<(&'e [u8], &'e [u8])>,
    ranks: Vec<Option<u32>>,
}

impl<'e> FileNames<'e> {
    fn new(entries: &'e [(Vec<u8>, EntryValue)]) -> Self {
        let mut ids: HashMap<(&[u8], &[u8]), u32> = HashMap::new();
        let mut ranks = Vec::with_capacity(entries.len());
        let mut last = None;
        for (_, value) in entries {
            let EntryValue::Indirect { base, relative, .. } = value else {
                ranks.push(None);
                continue;
            };
            // Neighbours mostly share their file, and then its very name.
            let id = match last {
                Some((b, r, id)) if Arc::ptr_eq(b, base) && Arc::ptr_eq(r, relative) => id,
                _ => {
                    let next = ids.len() as u32;
                    *ids.entry((base, relative)).or_insert(next)
                }
            };
            last = Some((base, relative, id));
            ranks.push(Some(id));
        }
        let mut sorted: Vec<_> = ids.into_iter().collect();
        sorted.sort_unstable();
        let mut rank_of_id = vec![0; sorted.len()];
        for (rank, (_, id)) in sorted.iter().enumerate() {
            if let Some(slot) = rank_of_id.get_mut(*id as usize) {
                *slot = rank as u32;
            }
        }
        for id in ranks.iter_mut().flatten() {
            *id = rank_of_id.get(*id as usize).copied().unwrap_or_default();
        }
        Self { sorted: sorted.into_iter().map(|(name, _)| name).collect(), ranks }
    }
}

fn check_entry(key: &[u8], value: &EntryValue) -> Result<()> {
    let refuse = |what: String| Err(Error::invalid(format!("{what} (key {})", key.escape_ascii())));
    if key.len() > KEY_LEN_MAX_BYTES {
        return Err(Error::invalid("an OCDBT key is too long")
            .expected(format_args!("at most {KEY_LEN_MAX_BYTES} bytes"), key.len()));
    }
    match value {
        EntryValue::Inline(bytes) if bytes.len() as u64 > INLINE_LEN_MAX_BYTES => {
            refuse(format!("an inline value has at most {INLINE_LEN_MAX_BYTES} bytes, not {}", bytes.len()))
        }
        EntryValue::Inline(_) => Ok(()),
        EntryValue::Indirect { base, relative, offset_bytes, len_bytes } => {
            let ends = offset_bytes.checked_add(*len_bytes).is_some_and(|end| end <= i64::MAX as u64);
            if !ends {
                return refuse(format!("{len_bytes} bytes from byte {offset_bytes} on end beyond 2^63 - 1"));
            }
            if is_safe_pair(base, relative) {
                return Ok(());
            }
            refuse(format!("{}{} is no name for a data file", base.escape_ascii(), relative.escape_ascii()))
        }
    }
}

fn is_safe_pair(base: &[u8], relative: &[u8]) -> bool {
    if base.is_empty() { is_safe(relative) } else { is_safe(&[base, relative].concat()) }
}

fn leaf_entry_estimate((key, value): &(Vec<u8>, EntryValue)) -> u64 {
    let value_bytes = match value {
        EntryValue::Inline(bytes) => bytes.len(),
        EntryValue::Indirect { base, relative, .. } => base.len() + relative.len(),
    };
    LEAF_ENTRY_ESTIMATE_BYTES + (key.len() + value_bytes) as u64
}

/// Keys of the first and the last of `items`.
fn ends<'i, 'k, T>(items: &'i [T], key: impl Fn(&'i T) -> &'k [u8]) -> (&'k [u8], &'k [u8]) {
    match items {
        [] => (b"", b""),
        [first, ..] => (key(first), items.last().map_or(b"", key)),
    }
}

/// Appends the number of entries and their keys without the first `excluded_len` bytes.
fn write_keys<'k>(
    out: &mut Vec<u8>,
    keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    excluded_len: usize,
    common_lens: Option<&mut dyn Iterator<Item = usize>>,
) {
    let count = keys.len();
    let relative = keys.map(|key| key.get(excluded_len..).unwrap_or_default());
    let mut shared = Vec::with_capacity(count);
    let mut before: &[u8] = b"";
    for key in relative.clone() {
        shared.push(common_prefix_len(before, key));
        before = key;
    }
    write_varint(out, count as u64);
    shared.iter().skip(1).for_each(|&shared| write_varint(out, shared as u64));
    relative.clone().zip(&shared).for_each(|(key, shared)| write_varint(out, (key.len() - shared) as u64));
    if let Some(common_lens) = common_lens {
        common_lens.for_each(|common_len| write_varint(out, common_len as u64));
    }
    for (key, &shared) in relative.zip(&shared) {
        out.extend_from_slice(key.get(shared..).unwrap_or_default());
    }
}
