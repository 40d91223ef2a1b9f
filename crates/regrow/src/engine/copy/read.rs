//! Reads a piece of a file of the source.

use crate::bytes::limits::work_space;
use crate::error::Result;
use crate::store::{Blob, CACHED_LEN_BYTES, FETCH_LEN_MAX_BYTES, ReadPath, Scratch};

/// Reads a range of a file. One request reads a short range, or any range of a storage that serves
/// many requests at once. On a disk, parts that are not in the page cache bypass the page cache.
pub(super) fn read_piece(blob: &dyn Blob, offset_bytes: u64, len_bytes: u64) -> Result<Vec<u8>> {
    let mut out = work_space(len_bytes)?;
    if len_bytes <= CACHED_LEN_BYTES || blob.suits().requests_max > Scratch::KEPT_MAX {
        blob.read(offset_bytes, &mut out, ReadPath::Cached)?;
        return Ok(out);
    }
    let (mut scratch, mut at) = (Scratch::default(), offset_bytes);
    let step = usize::try_from(FETCH_LEN_MAX_BYTES).unwrap_or(usize::MAX);
    for part in out.chunks_mut(step) {
        let len_bytes = part.len() as u64;
        if blob.is_cached(at, len_bytes) {
            blob.read(at, part, ReadPath::Cached)?;
        } else {
            part.copy_from_slice(blob.fetch(at, part.len(), ReadPath::Direct, &mut scratch)?);
        }
        at += len_bytes;
    }
    Ok(out)
}
