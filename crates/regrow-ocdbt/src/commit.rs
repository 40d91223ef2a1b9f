//! Commits a new version to an existing database.
//!
//! The whole tree is written again into one new data file (values stay in place). Then the manifest
//! is replaced: its list of versions has one more. If a group of versions is full, the commit
//! writes the group into version tree nodes, after the tree in the same data file.
//!
//! ```text
//! G = 13, arity 2:   inline {13}   <- new group            before: inline {11, 12}, children 10 (h 1), 8 (h 2)
//!                    child 12, height 1: leaves {9, 10}, {11, 12}
//!                    child  8, height 2: as it was
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use regrow_store::{Located, Store, StoreExt};

use super::arity::Arity;
use super::entries::EntryValue;
use super::manifest::{Manifest, newest_numbered};
use super::node::NodeRef;
use super::reader::OcdbtStore;
use super::rule::Rule;
use super::versions::{Version, VersionChild, VersionContent, VersionNode};
use super::writer::{NodeSink, now_ns, random_data_file_name};

/// Adds a version: the newest version with `changes`, where `None` removes a key. If a key has
/// several changes, the last one counts.
///
/// The manifest is stored last, so a reader sees the old newest version or the new one. Before it
/// is replaced, it is compared with the manifest read at the start. The caller must lock the
/// database against other processes that commit at the same instant.
///
/// # Errors
/// As [`OcdbtStore::open`], [`OcdbtStore::entries`] and [`write_database`](super::write_database);
/// `AlreadyExists` if another writer has committed in between. No version is lost.
pub fn commit_version(base: &Arc<dyn Store>, changes: Vec<(Vec<u8>, Option<EntryValue>)>) -> Result<()> {
    let database = OcdbtStore::open(base.clone())?;
    let before = database.manifest();
    let arity = Arity(before.config.version_tree_arity_log2);
    let last = before.versions.last();
    let generation = last.map_or(0, |last| last.generation) + 1;
    if generation > arity.generation_max() {
        return Err(Rule::Limit
            .error("the version tree is full")
            .expected(format_args!("at most generation {}", arity.generation_max()), generation)
            .in_file(database.manifest_place()));
    }
    let commit_time_ns = last.map_or(0, |last| last.commit_time_ns.saturating_add(1)).max(now_ns());

    let node_file = random_data_file_name()?;
    let mut nodes = NodeSink::new(&before.config, &node_file, 0)?;
    let root = nodes.write_tree(changed_entries(&database, changes)?)?;
    let version = root.version(generation, commit_time_ns);
    let (versions, children) = with_version(&database, version, &mut nodes)?;
    let manifest = Manifest { versions, children, ..before.clone() };
    let mut manifests = manifest.encode()?;

    if !nodes.bytes.is_empty() {
        base.put(node_file.as_bytes(), nodes.bytes.into())?;
    }
    let now = Manifest::read(&**base)?;
    if now.versions != before.versions || now.uuid != before.uuid {
        return Err(another_writer_committed(&database, generation));
    }
    let Some((key, bytes)) = manifests.pop() else { return Ok(()) }; // manifest.ocdbt of kind numbered is there
    base.put(key.as_bytes(), bytes.into())?;
    if before.config.numbered && newest_numbered(&**base)? != Some(generation) {
        return Err(another_writer_committed(&database, generation));
    }
    Ok(())
}

fn another_writer_committed(database: &OcdbtStore, generation: u64) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("another writer has committed generation {generation}"))
        .in_file(database.manifest_place())
        .help("commit again to change the newest version")
}

fn changed_entries(
    database: &OcdbtStore,
    changes: Vec<(Vec<u8>, Option<EntryValue>)>,
) -> Result<Vec<(Vec<u8>, EntryValue)>> {
    let mut changes: BTreeMap<_, _> = changes.into_iter().collect();
    let no_base: Arc<[u8]> = Arc::new([]);
    let mut entries = Vec::new();
    for (key, located) in database.entries()? {
        match changes.remove(&key) {
            Some(None) => {}
            Some(Some(value)) => entries.push((key, value)),
            None => entries.push((
                key,
                match located {
                    Located::Inline(bytes) => EntryValue::Inline(bytes),
                    // The point where a path splits into base and relative part has no meaning
                    // here.
                    Located::At(span) => EntryValue::Indirect {
                        base: no_base.clone(),
                        relative: span.key,
                        offset_bytes: span.offset_bytes,
                        len_bytes: span.len_bytes,
                    },
                },
            )),
        }
    }
    let added = changes.into_iter().filter_map(|(key, value)| Some((key, value?)));
    entries.extend(added);
    Ok(entries)
}

/// The two lists of the next manifest. Writes the version tree nodes that they need.
fn with_version(
    database: &OcdbtStore,
    version: Version,
    nodes: &mut NodeSink<'_>,
) -> Result<(Vec<Version>, Vec<VersionChild>)> {
    let before = database.manifest();
    let arity = Arity(before.config.version_tree_arity_log2);
    let Some((first, last)) = before.versions.first().zip(before.versions.last()) else {
        return Ok((vec![version], Vec::new()));
    };
    if !last.generation.is_multiple_of(arity.fan_out()) {
        let versions = before.versions.iter().cloned().chain([version]).collect();
        return Ok((versions, before.children.clone()));
    }

    let mut write = |height, content| write_node(nodes, database, height, content);
    let mut down = Some(VersionChild {
        generation: last.generation,
        reference: write(0, VersionContent::Versions(before.versions.clone()))?,
        num_generations: before.versions.len() as u64,
        commit_time_ns: first.commit_time_ns,
        height: 0,
    });
    let mut children = Vec::new();
    for (height, lo, hi) in arity.windows(version.generation) {
        let in_window = |child: &&VersionChild| (lo..=hi).contains(&child.generation);
        let old = before.children.iter().find(|child| child.height == height);
        let kept = old.filter(in_window);
        let added = down.as_ref().filter(in_window);
        let inside = match (kept, added) {
            (Some(kept), Some(added)) => {
                let mut inside = match database.files().version_node(kept, arity.0)?.content {
                    VersionContent::Children(inside) => inside,
                    VersionContent::Versions(_) => Vec::new(), // heights above 0 have children
                };
                inside.push(added.clone());
                inside
            }
            (None, Some(added)) => vec![added.clone()],
            (Some(kept), None) => {
                children.push(kept.clone());
                Vec::new()
            }
            (None, None) => Vec::new(),
        };
        if let Some((first, last)) = inside.first().zip(inside.last()) {
            children.push(VersionChild {
                generation: last.generation,
                num_generations: inside
                    .iter()
                    .fold(0, |sum, child| sum.saturating_add(child.num_generations)),
                commit_time_ns: first.commit_time_ns,
                height,
                reference: write(height, VersionContent::Children(inside.clone()))?,
            });
        }
        down = old.cloned();
    }
    children.reverse();
    Ok((vec![version], children))
}

fn write_node(
    nodes: &mut NodeSink<'_>,
    database: &OcdbtStore,
    height: u8,
    content: VersionContent,
) -> Result<NodeRef> {
    let config = database.config();
    let node = VersionNode { arity_log2: config.version_tree_arity_log2, height, content };
    let len_bytes = node.write(&mut nodes.bytes, config.zstd_level)?;
    Ok(nodes.last_written(len_bytes))
}
