//! Tests both sides of each limit: of version trees and manifests, of nodes, of keys and of ranges.

use super::written::{NODE_FILE, write};
use super::*;
use crate::arity::Arity;
use crate::bytes::varint::write_varint;
use crate::envelope::{Structure, seal};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::Manifest;
use crate::node::{ENTRIES_MAX, KEY_LEN_MAX_BYTES, Node, NodeRef, Stats, write_stats};
use crate::table::{self, DataFile};
use crate::versions::{
    FileTable, Version, VersionChild, VersionContent, VersionNode, write_children, write_versions,
};
use regrow_store::Located;
use regrow_store::StoreCapabilities;

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

/// The error of a reader for a version tree node with this content; `fine` if there is none.
fn said_of_node(arity: Arity, height: u8, content: VersionContent) -> String {
    let mut stored = Vec::new();
    let mut body = vec![arity.0, height];
    match &content {
        VersionContent::Versions(versions) => {
            let files = FileTable::new(versions, &[]);
            files.write(&mut body);
            write_versions(&mut body, versions, &files);
        }
        VersionContent::Children(children) => {
            let files = FileTable::new(&[], children);
            files.write(&mut body);
            write_children(&mut body, children, &files, false);
        }
    }
    seal(&mut stored, Structure::VersionNode, &body, None).unwrap();
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
            // All versions belong to one group, and all children belong to one node.
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
        // A full tree has a node of each height.
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
    // A node of height 1 that ends with generation 16 holds one to sixteen generations.
    for (num_generations, word) in [(0, "out of range"), (1, "fine"), (16, "fine"), (17, "out of range")] {
        let node = VersionChild { num_generations, ..child(16, 1) };
        let said = said_of_manifest(arity, vec![version(17)], vec![node]);
        assert!(said.contains(word), "{num_generations}: {said}");
    }
}

#[test]
fn a_version_without_a_root_is_empty() {
    let arity = Arity(4);
    let stats = Stats { num_keys: 1, ..Stats::default() };
    for (root_height, stats, word) in [
        (0, Stats::default(), "fine"),
        (1, Stats::default(), "has no root"),
        (0, stats, "has no root"),
        (1, stats, "has no root"),
    ] {
        let said = said_of_manifest(
            arity,
            vec![Version { root: None, root_height, stats, ..version(1) }],
            Vec::new(),
        );
        assert!(said.contains(word), "{root_height} {stats:?}: {said}");
    }
}

#[test]
fn ranges_end_where_files_can() {
    let last = i64::MAX as u64;
    for (offset_bytes, len_bytes, word) in
        [(last - 1, 1, "fine"), (last, 1, "beyond 2^63"), (last, 0, "fine"), (u64::MAX, 2, "beyond 2^63")]
    {
        let root = Some(NodeRef { offset_bytes, len_bytes, ..reference() });
        let said = said_of_manifest(Arity(4), vec![Version { root, ..version(1) }], Vec::new());
        assert!(said.contains(word), "{len_bytes} bytes from {offset_bytes}: {said}");
    }
}

#[test]
fn the_nodes_of_a_manifest_go_down_from_the_highest() {
    let said = |last, children| said_of_manifest(Arity(2), vec![version(last)], children);
    // The manifest of generation 17 refers to one node of height 1, which ends with generation 16.
    assert_eq!(said(17, vec![child(16, 1)]), "fine");
    assert!(said(17, vec![child(4, 1), child(8, 1)]).contains("do not decrease"));
    assert!(said(17, vec![child(16, 2)]).contains("no version tree node of height 2"));
    assert!(said(17, vec![child(20, 1)]).contains("has a wrong end"));
    assert!(said(17, vec![child(15, 1)]).contains("15"));
}

/// A database of a single leaf, with three keys of one, six and three bytes, without compression;
/// and the leaf.
fn one_leaf() -> (Arc<dyn Store>, NodeRef, Bytes) {
    let config = OcdbtConfig { zstd_level: None, ..OcdbtConfig::default() };
    let keys: [&[u8]; 3] = [b"a", b"abcdef", b"bcd"];
    let base = write(&config, keys.into_iter().map(|key| (key.to_vec(), inline(b"x"))).collect());
    let database = OcdbtStore::open(base.clone()).unwrap();
    let root = database.version.as_ref().unwrap().root.clone().unwrap();
    let span = ByteRange::Span { offset_bytes: root.offset_bytes, len_bytes: root.len_bytes };
    let stored = base.get(root.file.path().unwrap(), span).unwrap().unwrap();
    (base, root, stored)
}

#[test]
fn keys_are_as_long_together_as_a_node_may_be() {
    let (_, _, stored) = one_leaf();
    let node = Node::parse(&stored, b"", 10).unwrap();
    assert_eq!((node.len(), node.longest_key_len()), (3, 6));
    for key in [&b"a"[..], b"abcdef", b"bcd"] {
        assert!(node.find(key).is_some());
    }
    for key in [&b""[..], b"ab", b"abcdefg", b"c"] {
        assert_eq!(node.find(key), None);
    }
    assert_eq!(Rule::of(&Node::parse(&stored, b"", 9).unwrap_err()), Some(Rule::Limit));
}

#[test]
fn a_node_has_an_entry_and_no_more_than_may_be() {
    let most = ENTRIES_MAX as u64;
    for (count, rule) in [(0, Rule::Btree), (most, Rule::Eof), (most + 1, Rule::Btree)] {
        // A leaf without files that claims `count` entries, and has none.
        let mut body = vec![0, 0];
        write_varint(&mut body, count);
        let mut stored = Vec::new();
        seal(&mut stored, Structure::BtreeNode, &body, None).unwrap();
        let error = Node::parse(&stored.into(), b"", 1 << 20).unwrap_err();
        assert_eq!(Rule::of(&error), Some(rule), "{count}: {error}");
    }
}

#[test]
fn a_key_is_as_long_as_may_be_with_what_leads_to_it() {
    let (base, root, _) = one_leaf();
    let database = OcdbtStore::open(base).unwrap();
    for prefix_len in [0, 20_000, KEY_LEN_MAX_BYTES - 6] {
        database.files().node(&root, 0, b"", prefix_len).unwrap();
    }
    let error = database.files().node(&root, 0, b"", KEY_LEN_MAX_BYTES - 5).unwrap_err();
    assert_eq!(Rule::of(&error), Some(Rule::Btree));
    assert_eq!(error.expected_found().unwrap().1, (KEY_LEN_MAX_BYTES + 1).to_string());
}

/// Puts the leaf of [`one_leaf`] below a node with one key of `key_len` bytes. The full keys of the
/// leaf all begin with this key.
fn below_a_key_of(key_len: usize) -> Arc<dyn Store> {
    let (base, leaf, _) = one_leaf();
    let mut manifest = Manifest::read(&*base).unwrap();
    let stats = manifest.versions[0].stats;
    let mut body = vec![1];
    table::write(&mut body, &[(b"", NODE_FILE.as_bytes())]);
    // The number of children, the length of the key, the length of the common prefix, and the key.
    // Then the file, position and statistics of the child.
    [1, key_len as u64, key_len as u64].into_iter().for_each(|number| write_varint(&mut body, number));
    body.resize(body.len() + key_len, b'k');
    [0, leaf.offset_bytes, leaf.len_bytes].into_iter().for_each(|number| write_varint(&mut body, number));
    write_stats(&mut body, std::iter::once(stats));
    let mut file = base.get_whole(NODE_FILE.as_bytes()).unwrap().unwrap().to_vec();
    let offset_bytes = file.len() as u64;
    let len_bytes = seal(&mut file, Structure::BtreeNode, &body, None).unwrap();
    base.put(NODE_FILE.as_bytes(), file.into()).unwrap();
    let root = Some(NodeRef { offset_bytes, len_bytes, ..leaf });
    let stats = stats.plus(Stats { num_tree_bytes: len_bytes, ..Stats::default() });
    manifest.versions[0] = Version { root, root_height: 1, stats, ..manifest.versions[0].clone() };
    let (key, bytes) = manifest.encode().unwrap().remove(0);
    base.put(key.as_bytes(), bytes.into()).unwrap();
    base
}

#[test]
fn a_check_counts_what_leads_to_a_key() {
    let fits = below_a_key_of(KEY_LEN_MAX_BYTES - 6);
    assert!(check(fits.clone()).is_empty(), "{:?}", check(fits));
    assert_eq!(OcdbtStore::open(fits).unwrap().entries().unwrap()[1].0.len(), KEY_LEN_MAX_BYTES);
    let base = below_a_key_of(KEY_LEN_MAX_BYTES - 5);
    assert_eq!(Rule::of(&check(base.clone())[0]), Some(Rule::Btree));
    assert_eq!(Rule::of(&OcdbtStore::open(base).unwrap().entries().unwrap_err()), Some(Rule::Btree));
}

#[test]
fn long_nodes_lie_anywhere_in_their_file() {
    // Six megabytes of values in one leaf, behind other bytes.
    let config =
        OcdbtConfig { max_decoded_node_bytes: 100_000_000, zstd_level: None, ..OcdbtConfig::default() };
    let entries: Vec<_> =
        (0..6_u8).map(|at| (vec![b'a' + at], EntryValue::Inline(vec![at; 1 << 20].into()))).collect();
    let mut nodes = vec![9; 1001];
    let database = write_database(&config, entries, NODE_FILE, nodes.len() as u64).unwrap();
    nodes.extend_from_slice(&database.nodes);
    let store = MemoryStore::new();
    store_database(&store, NODE_FILE, Database { nodes, ..database });
    let found = contents(&OcdbtStore::open(Arc::new(store)).unwrap());
    assert!(found.len() == 6 && found.iter().zip(0..).all(|((_, value), at)| value[..] == [at; 1 << 20]));
}

/// Gets a key and its stored bytes, and returns the answer to the read.
type Says = Box<dyn Fn(&[u8], Option<Bytes>) -> Result<Option<Bytes>> + Send + Sync>;

/// A store that answers reads of `base` with other bytes or errors.
struct Odd {
    base: Arc<dyn Store>,
    says: Says,
}

impl std::fmt::Debug for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.base.fmt(f)
    }
}

impl Store for Odd {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        (self.says)(key, self.base.get(key, range)?)
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

    fn capabilities(&self) -> StoreCapabilities<'_> {
        StoreCapabilities { maps: None, versions: None, ..self.base.capabilities() }
    }
}

#[test]
fn what_the_store_says_of_a_node_is_what_is_said() {
    let (base, ..) = one_leaf();
    // The answer of the store for nodes; the kind and the rule of the error; whether
    // `entries_there` skips the node.
    type Case = (fn(Bytes) -> Result<Option<Bytes>>, ErrorKind, Option<Rule>, bool);
    let cases: [Case; 4] = [
        (|found| Ok(Some(found.slice(1..))), ErrorKind::Corrupt, Some(Rule::FileShort), true),
        (|_| Ok(None), ErrorKind::Corrupt, Some(Rule::FileMissing), true),
        (|_| Err(Error::corrupt("the file ends early")), ErrorKind::Corrupt, Some(Rule::FileShort), true),
        (|_| Err(Error::new(ErrorKind::PermissionDenied, "no")), ErrorKind::PermissionDenied, None, false),
    ];
    for (of_nodes, kind, rule, is_damage) in cases {
        let says: Says = Box::new(move |key, found| match key == NODE_FILE.as_bytes() {
            true => of_nodes(found.unwrap_or_default()),
            false => Ok(found),
        });
        let database = OcdbtStore::open(Arc::new(Odd { base: base.clone(), says })).unwrap();
        let error = database.entries().unwrap_err();
        assert_eq!((error.kind(), Rule::of(&error)), (kind, rule), "{error}");
        match database.entries_there() {
            Ok((entries, damage)) => {
                assert!(is_damage && entries.is_empty(), "{error}");
                assert_eq!(damage.unwrap().kind(), kind);
            }
            Err(error) => assert_eq!((is_damage, error.kind()), (false, kind)),
        }
    }
}

#[test]
fn versions_come_one_after_the_other_also_where_a_node_ends() {
    let base = load("versions_arity1");
    assert!(check(base.clone()).is_empty());
    let mut manifest = Manifest::read(&*base).unwrap();
    // The first version of the manifest gets a commit time that is not later than the time of the
    // version before it. The manifest has only the time of the first version in the last node.
    manifest.versions[0].commit_time_ns = manifest.children.last().unwrap().commit_time_ns + 1;
    let (key, bytes) = manifest.encode().unwrap().remove(0);
    base.put(key.as_bytes(), bytes.into()).unwrap();
    let errors = check(base);
    assert_eq!(Rule::of(&errors[0]), Some(Rule::VersionTree), "{errors:?}");
    assert!(errors[0].to_string().contains(" does not come after generation "), "{}", errors[0]);
}
