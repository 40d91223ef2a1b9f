//! OCDBT manifests, with the frame's length and checksum put right, so that mutations get past
//! them.

#![no_main]

mod frame;

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use regrow_store::{MemoryStore, StoreExt};
use regrow_ocdbt::{OcdbtStore, check};

fuzz_target!(|body: &[u8]| {
    let store = Arc::new(MemoryStore::new());
    store.put(b"manifest.ocdbt", frame::seal(frame::MANIFEST_MAGIC, body).into()).unwrap();
    if let Ok(database) = OcdbtStore::open(store.clone()) {
        let _ = database.entries();
    }
    let _ = check(store);
});
