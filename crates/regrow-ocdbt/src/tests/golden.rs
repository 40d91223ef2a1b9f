//! Compares databases of TensorStore and Orbax with the values that TensorStore read from them.

use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::*;
use regrow_store::Located;

const GOLDEN: [&str; 14] = [
    "binary_keys",
    "emptied",
    "inline0",
    "interior_raw",
    "interior_zstd",
    "merged_v2",
    "merged_v3",
    "numbered",
    "orbax_v2",
    "orbax_v3",
    "small_raw",
    "small_zstd",
    "versions_arity1",
    "versions_arity4",
];

fn expected(name: &str) -> Json {
    regrow_testkit::expected(&format!("ocdbt/{name}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_list_of_golden_databases_is_complete() {
    let mut found: Vec<_> = std::fs::read_dir(fixtures().join("ocdbt"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("manifest.ocdbt").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, GOLDEN);
}

#[test]
fn golden_configurations() {
    for name in GOLDEN {
        let database = OcdbtStore::open(load(name)).unwrap();
        let (config, json) = (database.config(), &expected(name)["config"]);
        assert_eq!(hex(&database.uuid()), json["uuid"], "{name}");
        assert_eq!(if config.numbered { "numbered" } else { "single" }, json["manifest_kind"], "{name}");
        assert_eq!(config.max_inline_value_bytes, json["max_inline_value_bytes"], "{name}");
        assert_eq!(config.max_decoded_node_bytes, json["max_decoded_node_bytes"], "{name}");
        assert_eq!(config.version_tree_arity_log2, json["version_tree_arity_log2"], "{name}");
        let level = json["compression"].get("level").and_then(Json::as_i64);
        assert_eq!(config.zstd_level.map(i64::from), level, "{name}");
        if name.starts_with("orbax") {
            assert_eq!(*config, OcdbtConfig::orbax(), "{name}");
        }
    }
}

#[test]
fn golden_versions_and_contents() {
    for name in GOLDEN {
        let base = load(name);
        let versions = versions(&OcdbtStore::open(base.clone()).unwrap());
        let json = expected(name);
        let json = json["versions"].as_array().unwrap();
        assert_eq!(versions.len(), json.len(), "{name}");
        for (version, json) in versions.iter().zip(json) {
            let place = format!("{name}, generation {}", version.generation);
            assert_eq!(version.generation, json["generation"], "{place}");
            assert_eq!(version.commit_time_ns, json["commit_time_ns"], "{place}");
            assert_eq!(version.root_height, json["root_height"], "{place}");
            assert_eq!(version.stats.num_keys, json["num_keys"], "{place}");
            assert_eq!(version.stats.num_tree_bytes, json["num_tree_bytes"], "{place}");
            assert_eq!(version.stats.num_indirect_value_bytes, json["num_indirect_value_bytes"], "{place}");
            let mut database = OcdbtStore::open(base.clone()).unwrap();
            database.version = Some(version.clone());
            check_contents(&database, json, &place);
        }
    }
}

fn check_contents(database: &OcdbtStore, json: &Json, place: &str) {
    let contents = contents(database);
    assert_eq!(contents.len() as u64, json["num_keys"], "{place}");
    if let Some(sum) = json["contents_sha256"].as_str() {
        let mut sha = Sha256::new();
        for part in contents.iter().flat_map(|(key, value)| [&key[..], value]) {
            sha.update((part.len() as u64).to_le_bytes());
            sha.update(part);
        }
        assert_eq!(hex(&sha.finalize()), sum, "{place}");
        return;
    }
    let entries = json["entries"].as_array().unwrap();
    assert_eq!(contents.len(), entries.len(), "{place}");
    for ((key, value), json) in contents.iter().zip(entries) {
        assert_eq!(hex(key), json["key_hex"], "{place}");
        assert_eq!(value.len(), json["length"], "{place}");
        assert_eq!(hex(&Sha256::digest(value)), json["sha256"], "{place}");
        assert_eq!(database.len_bytes(key).unwrap(), Some(value.len() as u64), "{place}");
        let stored = match database.locate(key).unwrap().unwrap() {
            Located::Inline(_) => "inline",
            Located::At(_) => "indirect",
        };
        assert_eq!(stored, json["stored"], "{place}");
        let mut absent = key.clone();
        absent.push(0);
        if contents.iter().all(|(key, _)| *key != absent) {
            assert!(database.locate(&absent).unwrap().is_none(), "{place}");
        }
    }
}

#[test]
fn a_full_check_finds_nothing_wrong() {
    for name in GOLDEN {
        assert!(check(load(name)).is_empty(), "{name}: {:?}", check(load(name)));
    }
}

#[test]
fn listing_a_prefix_is_filtering_all_keys() {
    for name in GOLDEN {
        let database = OcdbtStore::open(load(name)).unwrap();
        let all = database.list(b"").unwrap();
        let entries: Vec<_> = database.entries().unwrap().into_iter().map(|(key, _)| key).collect();
        assert_eq!(all, entries, "{name}");
        let of_keys = all
            .iter()
            .flat_map(|key| [0, 1, 2, key.len() / 2, key.len()].map(|len| &key[..len.min(key.len())]));
        for prefix in of_keys.chain([&b"\xff"[..], b"absent", b"layer_"]) {
            let expected: Vec<_> = all.iter().filter(|key| key.starts_with(prefix)).cloned().collect();
            assert_eq!(database.list(prefix).unwrap(), expected, "{name}, {}", prefix.escape_ascii());
        }
    }
}

#[test]
fn ranges_of_values() {
    let database = OcdbtStore::open(load("small_raw")).unwrap();
    for (key, whole) in contents(&database) {
        let get = |range| database.get(&key, range).unwrap().unwrap();
        let len_bytes = whole.len() as u64;
        assert_eq!(get(ByteRange::Span { offset_bytes: 1, len_bytes: len_bytes - 1 }), whole.slice(1..));
        assert_eq!(get(ByteRange::Suffix(1)), whole.slice(whole.len() - 1..));
        assert!(get(ByteRange::Suffix(0)).is_empty());
        assert!(database.get(&key, ByteRange::Span { offset_bytes: 1, len_bytes }).is_err());
        assert!(database.get(&key, ByteRange::Span { offset_bytes: u64::MAX, len_bytes: 2 }).is_err());
    }
}

#[test]
fn writes_are_refused() {
    use crate::error::ErrorKind;
    let database = OcdbtStore::open(load("versions_arity1")).unwrap();
    assert_eq!(database.put(b"a", Bytes::new()).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(database.delete(b"a").unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn our_nodes_are_tensorstores_byte_for_byte() {
    // The nodes are not compressed, so the version of zstd does not matter. The keys, the positions
    // of the values and the file name are the same.
    for name in ["small_raw", "interior_raw"] {
        let base = load(name);
        let database = OcdbtStore::open(base.clone()).unwrap();
        let file = base.list(b"d/").unwrap().remove(0);
        let file = String::from_utf8(file).unwrap();
        let mut values_end = 0;
        let entries = database.entries().unwrap().into_iter().map(|(key, located)| match located {
            Located::Inline(bytes) => (key, EntryValue::Inline(bytes)),
            Located::At(span) => {
                values_end = values_end.max(span.offset_bytes + span.len_bytes);
                (key, indirect(&file, span.offset_bytes, span.len_bytes))
            }
        });
        let entries = entries.collect();
        let written = write_database(database.config(), entries, &file, values_end).unwrap();
        let stored = base.get_text_key(&file).unwrap().unwrap();
        assert_eq!(hex(&written.nodes), hex(&stored[values_end as usize..]), "{name}");
        // The manifest differs in uuid and commit time only, and so in its checksum.
        let (_, manifest) = &written.manifests[0];
        let mut expected = base.get_text_key("manifest.ocdbt").unwrap().unwrap().to_vec();
        assert_eq!(manifest.len(), expected.len(), "{name}");
        let len = manifest.len();
        for range in [14..30, len - 13..len - 5, len - 4..len] {
            expected[range.clone()].copy_from_slice(&manifest[range]);
        }
        assert_eq!(hex(manifest), hex(&expected), "{name}");
    }
}

#[test]
fn our_tree_has_tensorstores_shape() {
    for name in ["interior_raw", "binary_keys", "merged_v2", "orbax_v3"] {
        let database = OcdbtStore::open(load(name)).unwrap();
        let entries = database.entries().unwrap().into_iter().map(|(key, located)| match located {
            Located::Inline(bytes) => (key, EntryValue::Inline(bytes)),
            Located::At(span) => {
                (key, indirect(std::str::from_utf8(&span.key).unwrap(), span.offset_bytes, span.len_bytes))
            }
        });
        let entries = entries.collect();
        let node_file = format!("d/{:032x}", 0);
        let written = write_database(database.config(), entries, &node_file, 0).unwrap();
        let store = MemoryStore::new();
        store_database(&store, &node_file, written);
        let again = OcdbtStore::open(Arc::new(store)).unwrap();
        assert_eq!(
            again.version.as_ref().unwrap().root_height,
            database.version.as_ref().unwrap().root_height,
            "{name}"
        );
        let shape = |database: &OcdbtStore| {
            let mut leaves = Vec::new();
            let version = database.version.as_ref().unwrap();
            let mut visit = |prefix: &[u8], _: &node::Node, wanted: std::ops::Range<usize>| {
                leaves.push((prefix.to_vec(), wanted));
                Ok(())
            };
            let all = walk::Bounds::ALL;
            walk::Walk::run(database.files(), version, all, None, &mut visit).unwrap();
            leaves
        };
        assert_eq!(shape(&again), shape(&database), "{name}");
    }
}

#[test]
fn manifests_are_written_as_they_were_read() {
    for name in ["versions_arity1", "emptied", "small_raw"] {
        let stored = load(name).get_text_key("manifest.ocdbt").unwrap().unwrap();
        let again = manifest::Manifest::parse(&stored).unwrap().encode().unwrap();
        assert_eq!(hex(&again[0].1), hex(&stored), "{name}");
    }
}
