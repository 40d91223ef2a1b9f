//! The full check: every rule of the format, over all versions of a database.
//!
//! A read checks only the nodes that it reads. This check reads the version tree nodes and the
//! B+tree nodes of all versions. It also compares statistics and counts, and checks that the file
//! of each value exists and is long enough. It reads no values of files: they have no checksum.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::bytes::limits::OCDBT_NODES_MAX;
use crate::error::{Error, Result};
use regrow_store::Store;

use super::node::{Node, NodeRef, Stats, Value};
use super::reader::OcdbtStore;
use super::rule::Rule;
use super::versions::{Version, VersionChild, VersionContent};
use super::walk::{Bounds, check_limit};

const ERRORS_MAX: usize = 1000;

/// All errors of the database at the root of `base`; empty for a sound one.
///
/// A node is checked before the nodes below it. A node that versions share is checked once.
pub fn check(base: Arc<dyn Store>) -> Vec<Error> {
    match OcdbtStore::open(base) {
        Err(error) => vec![error],
        Ok(database) => {
            let mut check = Check::new(&database);
            check.versions();
            check.errors
        }
    }
}

struct Check<'d> {
    database: &'d OcdbtStore,
    errors: Vec<Error>,
    lens: HashMap<Arc<[u8]>, Option<u64>>,
    /// The nodes that were checked, each with its parent's statements about it.
    seen: HashSet<Claim>,
    ended_early: bool,
}

/// A parent's statements about a node. The result of a check depends on these alone.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Claim {
    reference: NodeRef,
    height: u8,
    prefix_len: usize,
    min_key: Vec<u8>,
    limit: Option<Vec<u8>>,
    stats: Stats,
}

impl<'d> Check<'d> {
    fn new(database: &'d OcdbtStore) -> Self {
        Self { database, errors: Vec::new(), lens: HashMap::new(), seen: HashSet::new(), ended_early: false }
    }

    fn report(&mut self, error: Error) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(error);
        }
    }

    fn versions(&mut self) {
        let mut versions = Vec::new();
        let manifest = self.database.manifest();
        for child in &manifest.children {
            self.version_node(child, &mut versions);
        }
        versions.extend_from_slice(&manifest.versions);
        for (before, version) in versions.iter().zip(versions.iter().skip(1)) {
            if version.generation <= before.generation || version.commit_time_ns <= before.commit_time_ns {
                let what = format!(
                    "generation {} does not come after generation {}",
                    version.generation, before.generation
                );
                self.report(Rule::VersionTree.error(what).in_file(self.database.manifest_place()));
            }
        }
        for version in &versions {
            self.version(version);
        }
    }

    fn version_node(&mut self, child: &VersionChild, versions: &mut Vec<Version>) {
        let files = self.database.files();
        let node = match files.version_node(child, self.database.config().version_tree_arity_log2) {
            Ok(node) => node,
            Err(error) => return self.report(error),
        };
        let (num_generations, first_time) = match &node.content {
            VersionContent::Versions(inside) => {
                (inside.len() as u64, inside.first().map(|first| first.commit_time_ns))
            }
            VersionContent::Children(inside) => (
                inside.iter().fold(0, |sum: u64, child| sum.saturating_add(child.num_generations)),
                inside.first().map(|first| first.commit_time_ns),
            ),
        };
        if num_generations != child.num_generations {
            let error =
                Rule::Stats.error("the number of versions of a version tree node differs from its parent");
            let error = error.expected(child.num_generations, num_generations);
            self.report(files.blame(&child.reference, error));
        }
        if first_time != Some(child.commit_time_ns) {
            let error =
                Rule::Stats.error("the first commit time of a version tree node differs from its parent");
            let error = error.expected(child.commit_time_ns, first_time.unwrap_or_default());
            self.report(files.blame(&child.reference, error));
        }
        match node.content {
            VersionContent::Versions(inside) => versions.extend(inside),
            VersionContent::Children(inside) => {
                for child in &inside {
                    self.version_node(child, versions);
                }
            }
        }
    }

    fn version(&mut self, version: &Version) {
        if let Some(root) = &version.root {
            self.node(root, version.root_height, version.stats, 0, Bounds::ALL);
        }
    }

    fn node(&mut self, reference: &NodeRef, height: u8, stats: Stats, prefix_len: usize, bounds: Bounds<'_>) {
        let claim = Claim {
            reference: reference.clone(),
            height,
            prefix_len,
            min_key: bounds.min_key.to_vec(),
            limit: bounds.limit.map(<[u8]>::to_vec),
            stats,
        };
        if self.ended_early || self.errors.len() >= ERRORS_MAX || !self.seen.insert(claim) {
            return;
        }
        if self.seen.len() as u64 > OCDBT_NODES_MAX {
            self.ended_early = true;
            let error = Rule::Limit.error("the database has too many B+tree nodes, the check ends early");
            return self.report(error.expected(format_args!("at most {OCDBT_NODES_MAX}"), "more"));
        }
        let files = self.database.files();
        let node = match files.node(reference, height, bounds.min_key, prefix_len) {
            Ok(node) => node,
            Err(error) => return self.report(error),
        };
        if let Err(error) = check_stats(&node, reference.len_bytes, stats) {
            self.report(files.blame(reference, error));
        }
        if let Err(error) = check_limit(&node, bounds.limit) {
            self.report(files.blame(reference, error));
        }
        for i in 0..node.len() {
            if let Some(value) = node.value(i) {
                self.value(value);
            } else if let Some(child) = node.child(i) {
                let limit = if i + 1 < node.len() { Some(node.key(i + 1)) } else { bounds.limit };
                let below = Bounds { min_key: child.key, limit, ..Bounds::ALL }.below(child.common);
                let prefix_len = prefix_len + child.common.len();
                if let Some(below) = below {
                    self.node(&child.reference, height.saturating_sub(1), child.stats, prefix_len, below);
                }
            }
        }
    }

    fn value(&mut self, value: Value<'_>) {
        let Value::Indirect { file, offset_bytes, len_bytes } = value else { return };
        let files = self.database.files();
        let lens = &mut self.lens;
        let len_of = |path: &Arc<[u8]>| -> Result<Option<u64>> {
            if let Some(len) = lens.get(path) {
                return Ok(*len);
            }
            let len = files.base().len_bytes(path)?;
            lens.insert(path.clone(), len);
            Ok(len)
        };
        if let Err(error) = files.check_range(file, offset_bytes, len_bytes, len_of) {
            self.report(error);
        }
    }
}

fn check_stats(node: &Node, own_len_bytes: u64, expected: Stats) -> Result<()> {
    let found = node.stats(own_len_bytes);
    if found == expected {
        return Ok(());
    }
    let text = |stats: Stats| {
        let Stats { num_keys, num_tree_bytes, num_indirect_value_bytes } = stats;
        format!(
            "{num_keys} keys, {num_tree_bytes} bytes of nodes, {num_indirect_value_bytes} bytes of values"
        )
    };
    Err(Rule::Stats
        .error("the statistics of a B+tree node differ from what lies below it")
        .expected(text(expected), text(found)))
}
