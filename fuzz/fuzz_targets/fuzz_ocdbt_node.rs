//! OCDBT B+tree nodes behind a good manifest, with the frame's length and checksum put right.

#![no_main]

mod frame;

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use regrow_store::{MemoryStore, StoreExt};
use regrow_ocdbt::{OcdbtStore, check};

const MANIFEST: &[u8] = include_bytes!("../../fixtures/ocdbt/small_raw/manifest.ocdbt");
const DATA_FILE: &[u8] = b"d/4bcab516948a0d57e1d19bbf97324544";
/// In the manifest: offset and length of the root node, its number of keys, its length again.
const ROOT: &[u8] = &[0x68, 0x70, 0x04, 0x70];
const NODE_OFFSET_BYTES: usize = 0x68;

fuzz_target!(|body: &[u8]| {
    let node = frame::seal(frame::NODE_MAGIC, body);
    let store = Arc::new(MemoryStore::new());
    store.put(b"manifest.ocdbt", manifest_of(node.len()).into()).unwrap();
    let mut file = vec![0; NODE_OFFSET_BYTES];
    file.extend_from_slice(&node);
    store.put(DATA_FILE, file.into()).unwrap();
    if let Ok(database) = OcdbtStore::open(store.clone()) {
        let _ = database.entries();
        let _ = database.get_whole(b"a");
    }
    let _ = check(store);
});

/// The fixture's manifest, its root node as long as this one.
fn manifest_of(node_len_bytes: usize) -> Vec<u8> {
    let at = MANIFEST.windows(ROOT.len()).position(|part| part == ROOT).unwrap();
    let body = &MANIFEST[frame::BODY_OFFSET..MANIFEST.len() - frame::CRC_LEN_BYTES];
    let at = at - frame::BODY_OFFSET;
    let length = frame::varint(node_len_bytes as u64);
    let mut patched = body[..=at].to_vec();
    patched.extend_from_slice(&length);
    patched.push(ROOT[2]);
    patched.extend_from_slice(&length);
    patched.extend_from_slice(&body[at + ROOT.len()..]);
    frame::seal(frame::MANIFEST_MAGIC, &patched)
}
