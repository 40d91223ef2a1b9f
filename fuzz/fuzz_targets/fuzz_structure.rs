//! `regrow-structure.json` beside npy files, with its checksum put right: the exact pytree in
//! columns.

#![no_main]

mod door;

use libfuzzer_sys::fuzz_target;
use regrow_testkit::archives::crc32;

const ARRAY: &[u8] = include_bytes!("../../fixtures/npy/le_f4.npy");

fuzz_target!(|body: &[u8]| {
    let mut json = body.to_vec();
    json.extend_from_slice(format!(",\"crc32\":\"{:08x}\"}}", crc32(body)).as_bytes());
    door::put("npy/w.npy", ARRAY);
    door::put("npy/b.npy", ARRAY);
    door::put("npy/regrow-structure.json", &json);
    door::open(&door::folder().join("npy"));
});
