//! `zarr.json` documents, and, behind a zero byte, a chunk for what they describe.

#![no_main]

mod zarr;

use libfuzzer_sys::fuzz_target;
use regrow_zarr::zarr::ArrayMeta;

fuzz_target!(|input: &[u8]| zarr::document_and_chunk(input, ArrayMeta::parse_v3));
