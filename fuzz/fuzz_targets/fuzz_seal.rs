//! Seals, with their checksum put right, of a file that stays as it is.

#![no_main]

mod door;

use libfuzzer_sys::fuzz_target;
use regrow_base::bytes::checksum::crc32c;

const SEALED: &[u8] = include_bytes!("../../fixtures/safetensors/every_dtype.safetensors");

fuzz_target!(|body: &[u8]| {
    let mut seal = format!("{{\"crc32c\":\"{:08x}\",", crc32c(body)).into_bytes();
    seal.extend_from_slice(body);
    let path = door::put("x.safetensors", SEALED);
    door::put("regrow.seal.x.safetensors.json", &seal);
    door::open(&path);
});
