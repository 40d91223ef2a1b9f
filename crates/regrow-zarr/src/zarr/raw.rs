//! Raw chunks: the needed rows are read directly, in pieces of bounded length.
//!
//! ```text
//! chunk    ......................    wanted ##, read [ ]
//!          ..[##..##..##].........   rows near each other: one read, with the bytes between
//!          ....[##].....[##]......   rows far apart: one read for each row
//! ```

use super::Destination;
use super::array::STREAMED_LEN_MIN_BYTES;
use crate::array::Region;
use crate::codec::{ByteSource, CodecChain, bytes_codec, wrong_len};
use crate::error::{Error, Result};

/// Longest range of a raw chunk that is read at once, so that memory stays bounded for chunks of
/// any size.
const RAW_PIECE_LEN_MAX_BYTES: u64 = 8 << 20;

/// A range of at most this length is read in one step, with the bytes between its rows: reading
/// them costs about as much as one more read.
const RAW_PIECE_LEN_MIN_BYTES: u64 = 64 << 10;

/// A range of at most this many times the length of its wanted rows is read in one step.
const RAW_OVERREAD_MAX: u64 = 4;

/// Checks that a raw chunk has its full length, and reads the part that `destination` needs.
pub(super) fn read_raw(
    stored: &dyn ByteSource,
    chain: &CodecChain,
    chunk: &Region,
    part: &Region,
    destination: &mut Destination<'_>,
) -> Result<()> {
    if stored.len_bytes() != chain.len_bytes() {
        return Err(wrong_len(chain.len_bytes(), stored.len_bytes()));
    }
    match destination.region().intersect(part) {
        None => Ok(()),
        Some(wanted) => read_raw_part(stored, chain, chunk, &wanted, destination),
    }
}

/// Reads `wanted` in one step if it is a run, or nearly a run, of at most
/// `RAW_PIECE_LEN_MAX_BYTES`. Otherwise reads its two halves.
fn read_raw_part(
    stored: &dyn ByteSource,
    chain: &CodecChain,
    chunk: &Region,
    wanted: &Region,
    destination: &mut Destination<'_>,
) -> Result<()> {
    let Some(axis) = wanted.lens().iter().position(|&len| len > 1) else {
        return read_raw_run(stored, chain, chunk, wanted, destination);
    };
    // A run covers all later axes, so read the later axes whole.
    let mut starts = wanted.starts().to_vec();
    let mut lens = wanted.lens().to_vec();
    let later = chunk.starts().iter().zip(chunk.lens()).zip(starts.iter_mut().zip(&mut lens)).skip(axis + 1);
    for ((&chunk_start, &chunk_len), (start, len)) in later {
        (*start, *len) = (chunk_start, chunk_len);
    }
    let run = Region::new(starts.clone(), lens.clone())?;
    let size = chain.dtype().size_bytes() as u64;
    let (run_len, wanted_len) = (run.len_elements() * size, wanted.len_elements() * size);
    let is_near = run_len / RAW_OVERREAD_MAX <= wanted_len || run_len <= RAW_PIECE_LEN_MIN_BYTES;
    if run_len <= RAW_PIECE_LEN_MAX_BYTES && is_near {
        return read_raw_run(stored, chain, chunk, &run, destination);
    }
    let (mut starts, mut lens) = (wanted.starts().to_vec(), wanted.lens().to_vec());
    if let (Some(start), Some(len)) = (starts.get_mut(axis), lens.get_mut(axis)) {
        let half = *len / 2;
        let first = {
            let mut lens = wanted.lens().to_vec();
            lens.splice(axis..=axis, [half]);
            Region::new(wanted.starts(), lens)?
        };
        (*start, *len) = (*start + half, *len - half);
        read_raw_part(stored, chain, chunk, &first, destination)?;
    }
    read_raw_part(stored, chain, chunk, &Region::new(starts, lens)?, destination)
}

fn read_raw_run(
    stored: &dyn ByteSource,
    chain: &CodecChain,
    chunk: &Region,
    run: &Region,
    destination: &mut Destination<'_>,
) -> Result<()> {
    let local = run.relative_to(chunk.starts())?;
    let range = local.contiguous_bytes(&chunk.shape(), chain.dtype());
    let (offset, len) =
        range.ok_or_else(|| Error::invalid(format!("region {run} of a raw chunk is not contiguous")))?;
    if len >= STREAMED_LEN_MIN_BYTES
        && bytes_codec::takes_any_bytes(chain.dtype())
        && let Some(slot) = destination.slot(run)?
    {
        let mut rest = slot;
        return stored.stream(offset, len, &mut |bytes| {
            let (place, after) = std::mem::take(&mut rest)
                .split_at_mut_checked(bytes.len())
                .ok_or_else(|| wrong_len(len, len.saturating_add(bytes.len() as u64)))?;
            place.copy_from_slice(bytes);
            rest = after;
            Ok(())
        });
    }
    stored.visit(offset, len, &mut |bytes| destination.put_raw(run, bytes))
}
