//! `regrow.json`, the default layout's own manifest, with its checksum put right; then its
//! structure and places.

#![no_main]

use libfuzzer_sys::fuzz_target;
use regrow_base::bytes::checksum::crc32c;
use regrow_layouts::regrow::manifest::Manifest;

fuzz_target!(|body: &[u8]| {
    let mut document = format!("{{\"crc32c\":\"{:08x}\",", crc32c(body)).into_bytes();
    document.extend_from_slice(body);
    if let Ok(manifest) = Manifest::parse(&document) {
        let leaf_count = manifest.structure.regrow().map_or(3, |regrown| regrown.tree.len());
        let _ = manifest.places(leaf_count);
    }
});
