//! How high and how long a version tree may be, at both sides of each limit, and commits that meet another.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::written::{small_nodes, write};
use super::*;
use crate::store::Located;
use crate::store::ocdbt::arity::Arity;
use crate::store::ocdbt::manifest::{MANIFEST_KEY, Manifest};
use crate::store::ocdbt::node::{NodeRef, Stats};
use crate::store::ocdbt::table::DataFile;
use crate::store::ocdbt::versions::{Version, VersionChild, VersionContent, VersionNode};
use crate::{ErrorKind, Result};

fn reference() -> NodeRef {
    NodeRef { file: DataFile::new(b"", b"d/0"), offset_bytes: 0, len_bytes: 10 }
}

fn version(generation: u64) -> Version {
    Version {
        generation,
        commit_time_ns: generation,
        root_height: 0,
        root: Some(reference()),
        stats: Stats { num_keys: 1, ..Stats::default() },
    }
}

fn child(generation: u64, height: u8) -> VersionChild {
    VersionChild {
        generation,
        reference: reference(),
        num_generations: 1,
        commit_time_ns: generation,
        height,
    }
}

/// What a reader says of a node or a manifest that was written so.
fn said_of_node(arity: Arity, height: u8, content: VersionContent) -> String {
    let mut stored = Vec::new();
    VersionNode { arity_log2: arity.0, height, content }.write(&mut stored, None).unwrap();
    VersionNode::parse(&stored.into(), b"").map_or_else(|error| error.to_string(), |_| "fine".to_owned())
}

fn said_of_manifest(arity: Arity, versions: Vec<Version>, children: Vec<VersionChild>) -> String {
    let config = OcdbtConfig { version_tree_arity_log2: arity.0, zstd_level: None, ..OcdbtConfig::default() };
    let manifest = Manifest { uuid: [7; 16], config, versions, children };
    let stored = manifest.encode().unwrap().remove(0).1;
    Manifest::parse(&stored.into()).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
}

const ARITIES: [Arity; 5] = [Arity(1), Arity(2), Arity(3), Arity(4), Arity(16)];

#[test]
fn nodes_are_as_high_as_their_arity_allows() {
    for arity in ARITIES {
        let highest = arity.height_max();
        for (height, word) in
            [(1, "fine"), (highest, "fine"), (highest + 1, "too high"), (u8::MAX, "too high")]
        {
            let last = arity.span((height - 1).min(highest));
            let said = said_of_node(arity, height, VersionContent::Children(vec![child(last, height - 1)]));
            assert!(said.contains(word), "{arity:?}, height {height}: {said}");
        }
    }
}

#[test]
fn lists_are_as_long_as_their_arity_allows() {
    for arity in ARITIES {
        let most = arity.fan_out();
        for (count, word) in [(0, "out of range"), (1, "fine"), (most, "fine"), (most + 1, "out of range")] {
            // As many as a list may have, and those of one group.
            let versions = VersionContent::Versions((1..=count).map(version).collect());
            let said = said_of_node(arity, 0, versions);
            assert!(said.contains(word), "{arity:?}, {count} versions: {said}");
            let children = (1..=count).map(|at| child(at * arity.span(0), 0)).collect();
            let said = said_of_node(arity, 1, VersionContent::Children(children));
            assert!(said.contains(word), "{arity:?}, {count} children: {said}");
        }
        let two_groups = vec![version(most), version(most + 1)];
        let said = said_of_node(arity, 0, VersionContent::Versions(two_groups));
        assert!(said.contains("more than one group"), "{arity:?}: {said}");
    }
}

#[test]
fn generations_end_where_the_tree_is_full() {
    for arity in ARITIES {
        let last = arity.generation_max();
        for (generation, word) in [(last - 1, "fine"), (last, "fine"), (last + 1, "beyond what")] {
            let said = said_of_manifest(arity, vec![version(generation)], Vec::new());
            assert!(said.contains(word), "{arity:?}, generation {generation}: {said}");
        }
    }
}

#[test]
fn a_manifest_has_a_node_of_each_height_at_most() {
    for arity in ARITIES {
        // As in a tree that is full: a node of each height.
        let last = arity.generation_max();
        let mut children: Vec<VersionChild> =
            arity.windows(last).into_iter().map(|(height, _, hi)| child(hi, height)).collect();
        children.reverse();
        assert_eq!(said_of_manifest(arity, vec![version(last)], children.clone()), "fine", "{arity:?}");
        for (height, word) in [(0, "entry_height is out of range"), (arity.height_max() + 1, "out of range")]
        {
            let mut wrong = children.clone();
            wrong[0].height = height;
            let said = said_of_manifest(arity, vec![version(last)], wrong);
            assert!(said.contains(word), "{arity:?}, height {height}: {said}");
        }
        let mut many = children.clone();
        many.extend((0..u64::from(arity.height_max())).map(|at| child(last + 1 + at, 1)));
        let said = said_of_manifest(arity, vec![version(last)], many);
        assert!(said.contains("num_children is out of range"), "{arity:?}: {said}");
    }
}

#[test]
fn a_child_holds_a_generation_and_no_more_than_end_there() {
    let arity = Arity(2);
    // A node of height 1 that ends with generation 16 holds one to sixteen.
    for (num_generations, word) in [(0, "out of range"), (1, "fine"), (16, "fine"), (17, "out of range")] {
        let node = VersionChild { num_generations, ..child(16, 1) };
        let said = said_of_manifest(arity, vec![version(17)], vec![node]);
        assert!(said.contains(word), "{num_generations}: {said}");
    }
}

/// A manifest of one version, of which nothing else is looked at.
fn with_last(base: &dyn Store, generation: u64) {
    let mut manifest = Manifest::read(base).unwrap();
    for version in &mut manifest.versions {
        version.generation = generation;
    }
    let (key, bytes) = manifest.encode().unwrap().remove(0);
    base.put(key.as_bytes(), bytes.into()).unwrap();
}

#[test]
fn commits_end_where_the_tree_is_full() {
    for arity in ARITIES {
        let config = OcdbtConfig { version_tree_arity_log2: arity.0, ..small_nodes(None) };
        let base = write(&config, vec![(b"first".to_vec(), inline(b"0"))]);
        with_last(&*base, arity.generation_max() - 1);
        commit_version(&base, vec![(b"last".to_vec(), Some(inline(b"1")))]).unwrap();
        let database = OcdbtStore::open(base.clone()).unwrap();
        assert_eq!(database.version().unwrap().generation, arity.generation_max());
        let error = commit_version(&base, vec![(b"more".to_vec(), Some(inline(b"2")))]).unwrap_err();
        assert_eq!(Rule::of(&error), Some(Rule::Limit), "{error}");
        assert_eq!(contents(&OcdbtStore::open(base).unwrap()).len(), 2);
    }
}

/// Gives another database's manifest from its so-manieth read on, as if somebody had committed in between.
#[derive(Debug)]
struct Overtaken {
    base: Arc<dyn Store>,
    manifest: Bytes,
    reads_left: AtomicUsize,
}

impl Store for Overtaken {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        if key == MANIFEST_KEY.as_bytes() {
            if self.reads_left.load(Ordering::Relaxed) == 0 {
                let other = MemoryStore::new();
                other.put(key, self.manifest.clone())?;
                return other.get(key, range);
            }
            self.reads_left.fetch_sub(1, Ordering::Relaxed);
        }
        self.base.get(key, range)
    }

    fn put(&self, key: &[u8], bytes: Bytes) -> Result<()> {
        self.base.put(key, bytes)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.base.delete(key)
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        self.base.len_bytes(key)
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        self.base.locate(key)
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.base.list(prefix)
    }

    fn describe(&self, key: &[u8]) -> std::path::PathBuf {
        self.base.describe(key)
    }
}

#[test]
fn a_commit_in_between_is_kept() {
    let config = small_nodes(None);
    let first = || write(&config, vec![(b"first".to_vec(), inline(b"0"))]);
    let base = first();
    let manifest = |base: &Arc<dyn Store>| base.get_whole(MANIFEST_KEY.as_bytes()).unwrap().unwrap();
    let before = manifest(&base);
    // Of the same database, a version later; and another database, made at the same moment with the same versions.
    let of_another = {
        let mut other = Manifest::parse(&before).unwrap();
        other.uuid[0] ^= 1;
        Bytes::from(other.encode().unwrap().remove(0).1)
    };
    let later = {
        let other: Arc<dyn Store> = Arc::new(MemoryStore::new());
        for key in base.list(b"").unwrap() {
            other.put(&key, base.get_whole(&key).unwrap().unwrap()).unwrap();
        }
        commit_version(&other, vec![(b"other".to_vec(), Some(inline(b"1")))]).unwrap();
        manifest(&other)
    };
    for (what, meanwhile) in [("another version", later), ("another database", of_another)] {
        let store: Arc<dyn Store> =
            Arc::new(Overtaken { base: base.clone(), manifest: meanwhile, reads_left: AtomicUsize::new(1) });
        let error = commit_version(&store, vec![(b"mine".to_vec(), Some(inline(b"2")))]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{what}: {error}");
        assert_eq!(manifest(&base), before, "{what}");
    }
}
