//! Builds a database in memory: sorted keys to leaves, leaves to interior nodes up to one root, and
//! the manifest that refers to it. This module does no I/O: the caller stores the bytes, the
//! manifest last.
//!
//! ```text
//! file `node_file`:  | (any other data)      | leaves in key order | interior nodes, level by level | root |
//!                                             ^ nodes_offset_bytes
//! ```

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bytes::varint::write_varint;
use crate::error::{Error, ErrorKind, Result};
use crate::threads::pool;

use super::config::OcdbtConfig;
use super::entries::{Entries, EntryValue, SortedEntries};
use super::envelope::{Structure, seal};
use super::keys::Keys;
use super::leaves::{Files, leaf_body};
use super::manifest::{DATA_FOLDER, Manifest};
use super::node::{NodeRef, Stats, write_stats};
use super::split::split;
use super::table::{self, DataFile, common_prefix_len, is_safe};
use super::versions::Version;

/// The estimated length of an entry in addition to its key and path.
const CHILD_ENTRY_ESTIMATE_BYTES: u64 = 56;

/// The total estimated size of the nodes that are encoded at one time.
const NODES_IN_WORK_BYTES: u64 = 8 << 20;

/// The fewest children of an interior node: one child would add a useless level.
const CHILDREN_MIN: usize = 2;

/// A database as bytes.
#[derive(Debug, Clone)]
pub struct Database {
    /// The nodes, to store in the node file from `nodes_offset_bytes` on. Empty if there are no
    /// keys.
    pub nodes: Vec<u8>,
    /// Keys and bytes of the manifests, to store in this order after everything else. The last one
    /// makes the database visible.
    pub manifests: Vec<(String, Vec<u8>)>,
    /// The random UUID in the manifests.
    pub uuid: [u8; 16],
}

/// Builds a new database with one version, which has `entries`. They may be in any order.
///
/// The nodes refer to each other as lying in `node_file` from `nodes_offset_bytes` on, so the
/// caller can store them after values in the same file. The caller chooses the values that lie
/// inside nodes ([`OcdbtConfig::max_inline_value_bytes`] is only recorded).
///
/// # Errors
/// `NameCollision` for a key given twice; `InvalidArgument` for a key above 65535 bytes, an inline
/// value above 1 MiB, a range that ends beyond 2^63 - 1, an unsafe path, or a configuration out of
/// range.
pub fn write_database(
    config: &OcdbtConfig,
    entries: Vec<(Vec<u8>, EntryValue)>,
    node_file: &str,
    nodes_offset_bytes: u64,
) -> Result<Database> {
    write_sorted(config, &SortedEntries::new(entries), node_file, nodes_offset_bytes)
}

/// Like [`write_database`], for entries of any type; `InvalidArgument` if they are not in order.
pub fn write_sorted(
    config: &OcdbtConfig,
    entries: &impl Entries,
    node_file: &str,
    nodes_offset_bytes: u64,
) -> Result<Database> {
    config.validate()?;
    let mut uuid = [0; 16];
    random(&mut uuid)?;
    let mut nodes = NodeSink::new(config, node_file, nodes_offset_bytes)?;
    let root = nodes.write_sorted(entries)?;
    let version = root.version(1, now_ns());
    let manifest = Manifest { uuid, config: *config, versions: vec![version], children: Vec::new() };
    Ok(Database { nodes: nodes.bytes, manifests: manifest.encode()?, uuid })
}

/// A new name for a data file: `d/` and 32 random hex digits.
pub fn random_data_file_name() -> Result<String> {
    let mut bytes = [0; 16];
    random(&mut bytes)?;
    Ok(format!("{DATA_FOLDER}/{:032x}", u128::from_be_bytes(bytes)))
}

fn random(bytes: &mut [u8; 16]) -> Result<()> {
    getrandom::fill(bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("the system gives no random numbers: {error}")))
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The root of a version, with its height and statistics.
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

/// Collects nodes that are stored one after another in one file.
pub(super) struct NodeSink<'c> {
    pub(super) bytes: Vec<u8>,
    config: &'c OcdbtConfig,
    file: DataFile,
    offset_bytes: u64,
}

/// A node as its parent will refer to it.
struct Written {
    first_key: Vec<u8>,
    /// The number of first bytes of its full keys that the node omits.
    excluded_len: usize,
    offset_bytes: u64,
    len_bytes: u64,
    stats: Stats,
}

impl<'c> NodeSink<'c> {
    pub(super) fn new(config: &'c OcdbtConfig, node_file: &str, offset_bytes: u64) -> Result<Self> {
        if !is_safe(node_file.as_bytes()) {
            return Err(Error::invalid(format!("{node_file:?} is not a valid name of a data file")));
        }
        Ok(Self { bytes: Vec::new(), config, file: DataFile::new(b"", node_file.as_bytes()), offset_bytes })
    }

    fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.bytes.len() as u64)
    }

    /// Checks the entries, writes all nodes, and returns the root. A few threads encode and
    /// compress the leaves.
    fn write_sorted(&mut self, entries: &impl Entries) -> Result<Root> {
        let files = Files::new(entries.files());
        let sizes = files.check_entries(entries)?;
        if sizes.is_empty() {
            return Ok(Root::default());
        }
        let ranges = self.split(&sizes, 1);
        let is_root = ranges.len() == 1;
        let cost = |range: &Range<usize>| {
            sizes.get(range.clone()).unwrap_or_default().iter().map(|&size| u64::from(size)).sum::<u64>()
        };
        let costs: Vec<u64> = ranges.iter().map(cost).collect();
        let mut level = Vec::with_capacity(ranges.len());
        let zstd_level = self.config.zstd_level;
        pool::map_ordered(
            pool::thread_count(),
            ranges.iter().cloned().zip(costs),
            NODES_IN_WORK_BYTES,
            |(_, cost)| *cost,
            |(range, _)| {
                let (body, leaf) = leaf_node(entries, range, &files, is_root);
                let mut sealed = Vec::new();
                seal(&mut sealed, Structure::BtreeNode, &body, zstd_level)?;
                Ok((sealed, leaf))
            },
            |(sealed, leaf): (Vec<u8>, Written)| {
                level.push(leaf.at(self.end_bytes(), sealed.len() as u64));
                self.bytes.extend_from_slice(&sealed);
                Ok(())
            },
        )?;
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

    fn split<T: Copy + Into<u64>>(&self, sizes: &[T], least: usize) -> Vec<Range<usize>> {
        split(sizes, u64::from(self.config.max_decoded_node_bytes), least)
    }

    fn write_level(&mut self, children: &[Written], height: u8) -> Result<Vec<Written>> {
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

    fn write_interior(&mut self, children: &[Written], height: u8, is_root: bool) -> Result<Written> {
        let key_of = |child: Option<&Written>| child.map_or(Vec::new(), |child| child.first_key.clone());
        let (first_key, last_first_key) = (key_of(children.first()), key_of(children.last()));
        let excluded_len = if is_root {
            0
        } else {
            let of_keys = common_prefix_len(&first_key, &last_first_key);
            children.iter().map(|child| child.excluded_len).fold(of_keys, usize::min)
        };
        let mut body = vec![height];
        table::write(&mut body, &[self.file.base_and_relative()]);
        let mut keys = Keys::new(excluded_len);
        children.iter().for_each(|child| keys.push(&child.first_key));
        let common_lens = children.iter().map(|child| child.excluded_len - excluded_len);
        keys.write(&mut body, common_lens);
        body.resize(body.len() + children.len(), 0); // data_file_id 0: the table has one file
        children.iter().for_each(|child| write_varint(&mut body, child.offset_bytes));
        children.iter().for_each(|child| write_varint(&mut body, child.len_bytes));
        write_stats(&mut body, children.iter().map(|child| child.stats));
        let stats = children.iter().fold(Stats::default(), |sum, child| sum.plus(child.stats));
        let offset_bytes = self.end_bytes();
        let len_bytes = seal(&mut self.bytes, Structure::BtreeNode, &body, self.config.zstd_level)?;
        Ok(Written { first_key, excluded_len, offset_bytes: 0, len_bytes: 0, stats }
            .at(offset_bytes, len_bytes))
    }
}

impl Written {
    fn at(mut self, offset_bytes: u64, len_bytes: u64) -> Self {
        (self.offset_bytes, self.len_bytes) = (offset_bytes, len_bytes);
        self.stats = self.stats.plus(Stats { num_tree_bytes: len_bytes, ..Stats::default() });
        self
    }
}

/// The body of a leaf with the entries of `range`, and the parent's reference to it, whose position
/// is set later.
fn leaf_node(
    entries: &impl Entries,
    range: Range<usize>,
    files: &Files<'_>,
    is_root: bool,
) -> (Vec<u8>, Written) {
    let (mut first_key, mut last_key) = (Vec::new(), Vec::new());
    entries.push_key(range.start, &mut first_key);
    entries.push_key(range.end.saturating_sub(1), &mut last_key);
    let excluded_len = if is_root { 0 } else { common_prefix_len(&first_key, &last_key) };
    let (body, stats) = leaf_body(entries, range, files, excluded_len);
    (body, Written { first_key, excluded_len, offset_bytes: 0, len_bytes: 0, stats })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn versions_have_the_time_of_their_commit() {
        let elapsed = UNIX_EPOCH + Duration::from_nanos(now_ns());
        assert!(SystemTime::now().duration_since(elapsed).unwrap_or_default() < Duration::from_secs(60));
        assert!(elapsed <= SystemTime::now());
    }
}
