//! Databases that regrow writes, and reads again.

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
