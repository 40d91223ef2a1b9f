//! safetensors headers: the first eight bytes are the length of the file, the rest is JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use regrow_layouts::safetensors::layout::Header;

fuzz_target!(|input: &[u8]| {
    let Some((length, json)) = input.split_first_chunk() else { return };
    let _ = Header::parse(json, u64::from_le_bytes(*length));
});
