//! Manifests of data and manifest, beside data that stay as they are.

#![no_main]

mod door;

use libfuzzer_sys::fuzz_target;

const DATA: &[u8] = include_bytes!("../../fixtures/pytree/np2_basic.data");

fuzz_target!(|manifest: &[u8]| {
    let path = door::put("x.data", DATA);
    door::put("x.manifest", manifest);
    door::open(&path.with_extension(""));
});
