//! The documents of a TRAK store, and the header of one of its arrays.

#![no_main]

mod door;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut parts = door::parts(input);
    for name in ["metadata.json", "experiments.json", "id_0.json"] {
        door::put(&format!("store/{name}"), parts.next().unwrap());
    }
    let array: Vec<&[u8]> = parts.take_while(|part| !part.is_empty()).collect();
    for name in ["0/features.mmap", "0/grads.mmap", "scores/val.mmap"] {
        door::put(&format!("store/{name}"), &array.join(&0));
    }
    door::open(&door::folder().join("store"));
});
