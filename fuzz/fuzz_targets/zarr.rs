//! A document, then a chunk of the array that it describes.

use regrow_zarr::zarr::ArrayMeta;

/// Larger chunks are legal and only slow the fuzzer down.
const CHUNK_LEN_MAX_BYTES: u64 = 1 << 20;

pub fn document_and_chunk(input: &[u8], parse: fn(&[u8]) -> regrow::Result<ArrayMeta>) {
    let (json, chunk) = match input.iter().position(|byte| *byte == 0) {
        Some(end) => (&input[..end], &input[end + 1..]),
        None => (input, &[][..]),
    };
    if let Ok(meta) = parse(json)
        && meta.chunk_len_bytes() <= CHUNK_LEN_MAX_BYTES
    {
        let decoded = meta.decode_chunk(chunk);
        if let Ok(decoded) = decoded {
            assert_eq!(decoded.len() as u64, meta.chunk_len_bytes());
        }
    }
}
