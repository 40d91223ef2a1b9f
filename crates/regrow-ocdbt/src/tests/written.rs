//! Databases that regrow writes, and reads again.

use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

pub(super) const NODE_FILE: &str = "d/0123456789abcdef0123456789abcdef";

/// Config of the smallest nodes, so that few keys make many levels.
pub(super) fn small_nodes(zstd_level: Option<i32>) -> OcdbtConfig {
    OcdbtConfig { max_decoded_node_bytes: 100, zstd_level, ..OcdbtConfig::default() }
}

pub(super) fn write(config: &OcdbtConfig, entries: Vec<(Vec<u8>, EntryValue)>) -> Arc<dyn Store> {
    let store = MemoryStore::new();
    store_database(&store, NODE_FILE, write_database(config, entries, NODE_FILE, 0).unwrap());
    Arc::new(store)
}

proptest! {
    #[test]
    fn any_keys_and_values_come_back(
        entries in prop::collection::btree_map(
            prop::collection::vec(prop::sample::select(vec![0_u8, b'a', b'b', b'/', 0xff]), 0..9),
            (prop::collection::vec(any::<u8>(), 0..40), any::<bool>()),
            0..60,
        ),
        max_decoded_node_bytes in prop::sample::select(vec![1_u32, 100, 300, 100_000_000]),
        zstd in prop::option::of(-3..4_i32),
        numbered: bool,
    ) {
        let config = OcdbtConfig { max_decoded_node_bytes, zstd_level: zstd, numbered, ..OcdbtConfig::default() };
        let mut file = vec![0_u8; 7];
        let mut given = Vec::new();
        for (key, (value, outside)) in entries.iter().rev() {
            given.push((key.clone(), if *outside {
                file.extend_from_slice(value);
                indirect(NODE_FILE, (file.len() - value.len()) as u64, value.len() as u64)
            } else {
                inline(value)
            }));
        }
        let database = write_database(&config, given, NODE_FILE, file.len() as u64).unwrap();
        file.extend_from_slice(&database.nodes);
        let store = MemoryStore::new();
        store_database(&store, NODE_FILE, Database { nodes: file, ..database });
        let base: Arc<dyn Store> = Arc::new(store);
        prop_assert!(check(base.clone()).is_empty(), "{:?}", check(base));
        let database = OcdbtStore::open(base).unwrap();
        let expected: Vec<_> = entries.into_iter().map(|(key, (value, _))| (key, Bytes::from(value))).collect();
        prop_assert_eq!(contents(&database), expected);
        prop_assert_eq!(database.config(), &config);
    }
}

#[test]
fn what_cannot_be_stored_is_refused() {
    let kind = |entries| write_database(&OcdbtConfig::orbax(), entries, NODE_FILE, 0).unwrap_err().kind();
    let value = || inline(b"1");
    let twice = vec![(b"a".to_vec(), value()), (b"b".to_vec(), value()), (b"a".to_vec(), value())];
    assert_eq!(kind(twice), ErrorKind::NameCollision);
    assert_eq!(kind(vec![(vec![0; 65536], value())]), ErrorKind::InvalidArgument);
    assert_eq!(kind(vec![(vec![], inline(&vec![0; (1 << 20) + 1]))]), ErrorKind::InvalidArgument);
    assert_eq!(kind(vec![(vec![], indirect("../x", 0, 1))]), ErrorKind::InvalidArgument);
    assert_eq!(kind(vec![(vec![], indirect("x", i64::MAX as u64, 1))]), ErrorKind::InvalidArgument);
    let config = OcdbtConfig { version_tree_arity_log2: 0, ..OcdbtConfig::default() };
    assert_eq!(write_database(&config, vec![], NODE_FILE, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(write_database(&OcdbtConfig::default(), vec![], "/x", 0).is_err());
}

#[test]
fn the_longest_keys_and_values_come_back() {
    let entries: Vec<_> = (0..3_u8)
        .map(|i| {
            let mut key = vec![b'k'; 65535];
            key[65534] = i;
            (key, inline(&vec![i; 1 << 20]))
        })
        .collect();
    for config in [small_nodes(Some(0)), OcdbtConfig::orbax()] {
        let base = write(&config, entries.clone());
        assert!(check(base.clone()).is_empty());
        let database = OcdbtStore::open(base).unwrap();
        for (key, _) in &entries {
            assert_eq!(database.len_bytes(key).unwrap(), Some(1 << 20));
        }
    }
}

#[test]
fn a_base_path_is_followed_in_full() {
    // The manifest refers to the tree of a database in a subfolder. regrow writes no such
    // references.
    let entries: Vec<_> = (0..40).map(|i| (format!("k{i:02}").into_bytes(), inline(b"v"))).collect();
    let below = MemoryStore::new();
    let child = write_database(&small_nodes(None), entries.clone(), NODE_FILE, 0).unwrap();
    below.put(format!("sub/{NODE_FILE}").as_bytes(), child.nodes.into()).unwrap();
    let manifest = manifest::Manifest::parse(&child.manifests[0].1.clone().into()).unwrap();
    let mut version = manifest.versions[0].clone();
    let mut root = version.root.clone().unwrap();
    assert!(version.root_height > 1);
    root.file = table::DataFile::new(b"sub/", NODE_FILE.as_bytes());
    version.root = Some(root);
    let manifest = manifest::Manifest { versions: vec![version], ..manifest };
    for (key, bytes) in manifest.encode().unwrap() {
        below.put(key.as_bytes(), bytes.into()).unwrap();
    }
    let base: Arc<dyn Store> = Arc::new(below);
    assert!(check(base.clone()).is_empty());
    let database = OcdbtStore::open(base).unwrap();
    assert_eq!(contents(&database).len(), 40);
}

#[test]
fn forty_commits_keep_every_version() {
    for (arity, numbered, zstd_level) in
        [(1, false, None), (2, false, Some(0)), (1, true, Some(0)), (2, true, None)]
    {
        let config = OcdbtConfig { version_tree_arity_log2: arity, numbered, ..small_nodes(zstd_level) };
        let base = write(&config, vec![(b"first".to_vec(), inline(b"0"))]);
        let mut state = BTreeMap::from([(b"first".to_vec(), Bytes::from_static(b"0"))]);
        let mut history = vec![state.clone()];
        for i in 1..40_u32 {
            let value = Bytes::from(format!("value {i}"));
            let mut changes =
                vec![(format!("key {}", i % 7).into_bytes(), Some(EntryValue::Inline(value.clone())))];
            state.insert(changes[0].0.clone(), value);
            if i % 5 == 0 {
                let gone = format!("key {}", i % 3).into_bytes();
                if gone != changes[0].0 {
                    state.remove(&gone);
                    changes.push((gone, None));
                }
            }
            commit_version(&base, changes).unwrap();
            history.push(state.clone());
        }
        assert!(check(base.clone()).is_empty(), "{:?}", check(base));
        let versions = OcdbtStore::open(base.clone()).unwrap().versions().unwrap();
        assert_eq!(versions.len(), 40);
        for (i, expected) in history.into_iter().enumerate() {
            let database = OcdbtStore::open_generation(base.clone(), i as u64 + 1).unwrap();
            assert_eq!(contents(&database), expected.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn commits_go_on_where_tensorstore_stopped() {
    for name in ["versions_arity1", "versions_arity4", "numbered", "merged_v2", "emptied", "binary_keys"] {
        let base = load(name);
        let before = OcdbtStore::open(base.clone()).unwrap();
        let mut expected: BTreeMap<_, _> = contents(&before).into_iter().collect();
        for i in 0..20_u8 {
            commit_version(&base, vec![(vec![b'z', i], Some(inline(&[i])))]).unwrap();
            expected.insert(vec![b'z', i], Bytes::copy_from_slice(&[i]));
        }
        assert!(check(base.clone()).is_empty(), "{name}: {:?}", check(base));
        let after = OcdbtStore::open(base).unwrap();
        assert_eq!(contents(&after), expected.into_iter().collect::<Vec<_>>(), "{name}");
        assert_eq!(after.uuid(), before.uuid());
        assert_eq!(after.versions().unwrap().len(), before.versions().unwrap().len() + 20, "{name}");
    }
}

#[test]
fn the_last_key_leaves_a_version_without_a_root() {
    let base = write(&OcdbtConfig::default(), vec![(b"a".to_vec(), inline(b"1"))]);
    commit_version(&base, vec![(b"a".to_vec(), None), (b"never there".to_vec(), None)]).unwrap();
    let database = OcdbtStore::open(base.clone()).unwrap();
    assert_eq!(database.version().unwrap().num_keys(), 0);
    assert!(database.entries().unwrap().is_empty());
    assert!(check(base).is_empty());
}

#[test]
fn an_empty_numbered_database_takes_its_first_commit() {
    let config = OcdbtConfig { numbered: true, ..OcdbtConfig::default() };
    let base: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (key, bytes) = write_database(&config, vec![], NODE_FILE, 0).unwrap().manifests.remove(0);
    base.put(key.as_bytes(), bytes.into()).unwrap();
    assert!(OcdbtStore::open(base.clone()).unwrap().version().is_none());
    commit_version(&base, vec![(b"a".to_vec(), Some(inline(b"1")))]).unwrap();
    let database = OcdbtStore::open(base.clone()).unwrap();
    assert_eq!(database.version().unwrap().generation, 1);
    assert_eq!(contents(&database).len(), 1);
    assert!(check(base).is_empty());
}

#[test]
fn two_hundred_thousand_keys_take_no_time() {
    let relative: Arc<[u8]> = b"d/00000000000000000000000000000001"[..].into();
    let base: Arc<[u8]> = Arc::new([]);
    let entries: Vec<_> = (0..200_000_u64)
        .map(|i| {
            let key = format!("params/layers_{}/attention/kernel/c/{}", i / 100, i % 100).into_bytes();
            let (base, relative) = (base.clone(), relative.clone());
            (key, EntryValue::Indirect { base, relative, offset_bytes: i * 4096, len_bytes: 4096 })
        })
        .collect();
    let start = Instant::now();
    let store = write(&OcdbtConfig::orbax(), entries);
    let built = start.elapsed();
    let database = OcdbtStore::open(store).unwrap();
    assert_eq!(database.entries().unwrap().len(), 200_000);
    let both = start.elapsed();
    // Generous: a build without optimisation on a busy machine. Quadratic work would take minutes.
    assert!(both.as_secs() < 10, "built in {built:?}, read in {:?}", both - built);
    println!("built in {built:?}, read in {:?}", both - built);
}
