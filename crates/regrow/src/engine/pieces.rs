//! Reads pieces of several leaves at once, for comparisons and statistics.
//!
//! A leaf becomes one job, or several jobs if it is long and its parts can be read alone. A job is
//! read in pieces that begin and end at chunks. Threads get small jobs in batches.

use std::borrow::Cow;

use super::bands::band_elements;
use super::{BUDGET_DEFAULT_BYTES, Checkpoint};
use crate::array::{Region, for_each_box};
use crate::bytes::limits::{CLAIM_FACTOR_MAX, CLAIM_LEN_MAX_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Sparse;
use crate::reads::Source;
use crate::threads::pool;
use crate::tree::LeafInfo;

pub(super) const PIECE_LEN_BYTES: u64 = 4 << 20;

const JOB_LEN_BYTES: u64 = 32 << 20;

/// Small jobs are given to a thread in batches of this many bytes.
const BATCH_LEN_BYTES: u64 = 4 << 20;

/// Memory that a leaf costs in addition to its bytes.
const LEAF_COST_BYTES: u64 = 4096;

/// The fewest threads: some compute while others wait for the disk.
const THREADS_MIN: usize = 4;

/// A run of elements that one thread reads.
pub(super) trait Job: Send {
    fn len_bytes(&self) -> u64;

    /// The most memory that the job needs.
    fn cost_bytes(&self) -> u64;
}

/// Does `work` on all jobs, in batches, on several threads. The memory of concurrent reads is at
/// most the budget (64 MiB if `None`).
pub(super) fn for_each_batch<J: Job>(
    jobs: impl IntoIterator<Item = J>,
    budget_bytes: Option<u64>,
    work: impl Fn(Vec<J>) -> Result<()> + Sync,
) -> Result<()> {
    let mut batches: Vec<Vec<J>> = Vec::new();
    let mut batch_len_bytes = BATCH_LEN_BYTES;
    for job in jobs {
        if batch_len_bytes >= BATCH_LEN_BYTES {
            batches.push(Vec::new());
            batch_len_bytes = 0;
        }
        batch_len_bytes = batch_len_bytes.saturating_add(job.len_bytes()).saturating_add(LEAF_COST_BYTES);
        if let Some(batch) = batches.last_mut() {
            batch.push(job);
        }
    }
    let cost = |batch: &Vec<J>| {
        let held = batch.iter().map(J::len_bytes).fold(0, u64::saturating_add).min(BATCH_LEN_BYTES);
        batch.iter().map(J::cost_bytes).max().unwrap_or(0).saturating_add(held)
    };
    let threads = pool::thread_count().max(THREADS_MIN);
    pool::for_each_parallel(threads, batches, budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES), cost, work)
}

/// The part of a leaf to read: if elements of a long leaf repeat along some axes, these axes have
/// length 1.
pub(super) fn once<'i>(checkpoint: &Checkpoint, leaf: usize, info: &'i LeafInfo) -> Cow<'i, LeafInfo> {
    match checkpoint.reader().sparse(leaf) {
        Ok(Some(Sparse::Repeats(shape, _))) if info.len_bytes() > PIECE_LEN_BYTES => {
            Cow::Owned(LeafInfo { shape, ..info.clone() })
        }
        _ => Cow::Borrowed(info),
    }
}

/// Returns an error for a leaf whose claimed size is far beyond its stored bytes: a damaged shape.
/// `info` comes from [`once`].
pub(super) fn check_claim(checkpoint: &Checkpoint, leaf: usize, info: &LeafInfo) -> Result<()> {
    let claimed_bytes = info.len_bytes();
    if claimed_bytes <= CLAIM_LEN_MAX_BYTES {
        return Ok(());
    }
    let Some(sparse) = checkpoint.reader().sparse(leaf)? else { return Ok(()) };
    let stored_bytes = sparse.len_bytes(info.dtype);
    if stored_bytes.saturating_mul(CLAIM_FACTOR_MAX) >= claimed_bytes {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Limit, "the shape of the array is much larger than its stored bytes")
        .in_file(checkpoint.path())
        .expected(
            format_args!("at most {CLAIM_LEN_MAX_BYTES} bytes for {stored_bytes} that are stored"),
            claimed_bytes,
        )
        .help("read a slice of it, or leave it out"))
}

/// The number of elements in a piece. A leaf in chunks is read in whole rows of chunks.
pub(super) fn piece_elements(checkpoint: &Checkpoint, leaf: usize, info: &LeafInfo) -> u64 {
    band_elements(checkpoint.reader(), leaf, info, PIECE_LEN_BYTES)
}

pub(super) fn job_elements(piece_elements: u64) -> u64 {
    piece_elements.saturating_mul((JOB_LEN_BYTES / PIECE_LEN_BYTES).max(1))
}

/// Whether one checksum covers the whole leaf, so that the leaf must be read from front to back.
pub(super) fn is_sealed(checkpoint: &Checkpoint, leaf: usize) -> bool {
    matches!(checkpoint.reader().source(leaf), Ok(Source::Coded(coded)) if coded.seal.is_some())
}

/// Memory that the layout takes to decode a piece.
pub(super) fn working_len_bytes(
    checkpoint: &Checkpoint,
    leaf: usize,
    info: &LeafInfo,
    piece_elements: u64,
) -> u64 {
    let working = match checkpoint.reader().source(leaf) {
        Ok(Source::Memory(_)) => return 0,
        Ok(Source::Raw(extent)) if extent.checks.is_some() => return PIECE_LEN_BYTES,
        Ok(Source::Raw(extent)) => extent.working_len_bytes,
        Ok(Source::Coded(coded)) => coded.working_len_bytes,
        _ => None,
    };
    working.unwrap_or(piece_elements.saturating_mul(info.dtype.size_bytes() as u64))
}

/// Reads and checks `count` elements of a leaf. Returns the first part of `out`, which holds them.
pub(super) fn read_elements<'o>(
    checkpoint: &Checkpoint,
    leaf: usize,
    info: &LeafInfo,
    (first, count): (u64, u64),
    out: &'o mut [u8],
) -> Result<&'o [u8]> {
    let size = info.dtype.size_bytes() as u64;
    let out = out.get_mut(..(count * size) as usize).unwrap_or_default();
    let reader = checkpoint.reader();
    let mut part = |region: &Region, at: u64, count: u64| {
        let out = out.get_mut((at * size) as usize..((at + count) * size) as usize).unwrap_or_default();
        reader.read_region(leaf, region, out)
    };
    match info.shape.rank() == 0 || count == info.shape.len_elements() {
        true => part(&Region::whole(&info.shape), 0, count)?,
        false => for_each_box(&info.shape, first, count, part)?,
    }
    Ok(out)
}
