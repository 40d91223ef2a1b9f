//! The index of parity, with its checksum put right, beside a damaged file: what a repair makes of
//! it.

#![no_main]

mod door;

use libfuzzer_sys::fuzz_target;
use regrow::RepairOptions;
use regrow_base::bytes::checksum::crc32c;

const FILE: &[u8] = include_bytes!("../../fixtures/safetensors/every_dtype.safetensors");

fuzz_target!(|input: &[u8]| {
    let mut parts = door::parts(input);
    let body = parts.next().unwrap_or_default();
    let mut index = format!("{{\"crc32c\":\"{:08x}\",", crc32c(body)).into_bytes();
    index.extend_from_slice(body);
    let path = door::put("x.safetensors", FILE);
    door::put("regrow.parity.x.safetensors.json", &index);
    door::put("regrow.parity.x.safetensors.blocks", parts.next().unwrap_or_default());
    let _ = regrow::repair(&path, &RepairOptions { check: true, ..RepairOptions::default() });
});
