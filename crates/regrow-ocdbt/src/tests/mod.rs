//! Tests of whole databases: databases of TensorStore, damaged databases, and databases that regrow
//! writes.

mod damaged;
mod golden;
mod limits;
mod written;

use std::path::Path;
use std::sync::Arc;

use ::bytes::Bytes;
use regrow_testkit::fixtures;

use super::*;
use crate::versions::{Version, VersionChild, VersionContent};
use regrow_store::{ByteRange, MemoryStore, Store, StoreExt};

/// A folder below `fixtures/ocdbt`, in memory.
fn load(name: &str) -> Arc<dyn Store> {
    let store = MemoryStore::new();
    let root = fixtures().join("ocdbt").join(name);
    load_folder(&store, &root, "");
    Arc::new(store)
}

fn load_folder(store: &MemoryStore, folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let key = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            load_folder(store, &entry.path(), &format!("{key}/"));
        } else {
            store.put(key.as_bytes(), std::fs::read(entry.path()).unwrap().into()).unwrap();
        }
    }
}

/// All keys and values.
fn contents(database: &OcdbtStore) -> Vec<(Vec<u8>, Bytes)> {
    let entries = database.entries().unwrap();
    let value = |key: &[u8]| database.get_whole(key).unwrap().unwrap();
    entries.into_iter().map(|(key, _)| (key.clone(), value(&key))).collect()
}

/// All versions, oldest first.
fn versions(database: &OcdbtStore) -> Vec<Version> {
    fn collect(database: &OcdbtStore, children: &[VersionChild], versions: &mut Vec<Version>) {
        for child in children {
            let arity = database.config().version_tree_arity_log2;
            match database.files().version_node(child, arity).unwrap().content {
                VersionContent::Versions(leaf) => versions.extend(leaf),
                VersionContent::Children(below) => collect(database, &below, versions),
            }
        }
    }
    let manifest = database.manifest();
    let mut versions = Vec::new();
    collect(database, &manifest.children, &mut versions);
    versions.extend_from_slice(&manifest.versions);
    versions
}

/// Stores a database built by [`write_database`].
fn store_database(store: &dyn Store, node_file: &str, database: Database) {
    store.put(node_file.as_bytes(), database.nodes.into()).unwrap();
    for (key, bytes) in database.manifests {
        store.put(key.as_bytes(), bytes.into()).unwrap();
    }
}

fn inline(value: &[u8]) -> EntryValue {
    EntryValue::Inline(Bytes::copy_from_slice(value))
}

fn indirect(relative: &str, offset_bytes: u64, len_bytes: u64) -> EntryValue {
    EntryValue::Indirect { base: Arc::new([]), relative: relative.as_bytes().into(), offset_bytes, len_bytes }
}
