//! The threads of a save: each takes the next few chunks from one queue, and encodes and writes
//! them. In a database each thread has its own data file; in plain folders each chunk is a file.
//!
//! ```text
//! leaf 0: chunk 0,1,2,...  ─┐            ┌─> worker 0: encode ─> file
//! leaf 1: chunk 0           ├─> queue ───┼─> worker 1: encode ─> file
//! ...                      ─┘            └─> ...
//! ```
//!
//! A worker has the ring of its file, and one chunk of at most 1 MiB with its encoded form. So the
//! byte budget limits the number of workers. No worker waits for another, and no chunk waits for a
//! larger one.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::encode::{IN_MEMORY_MAX_BYTES, PlannedArray};
use crate::options::Compression;
use regrow_base::error::Result;
use regrow_base::threads::pool;

/// The memory of one worker: the writer's ring of 12 MiB, a chunk and its encoded form.
const WORKER_COST_BYTES: u64 = 16 << 20;

/// A worker (and its data file) is worth its cost only with at least this many bytes, or this many
/// chunks.
const BYTES_PER_WORKER: u64 = 8 << 20;
const CHUNKS_PER_WORKER: u64 = 4096;

/// Files below this size are written at once and synced by the commit.
const SMALL_FILE_MAX_BYTES: u64 = 64 << 10;

/// Extra memory if the caller sets no budget.
const BUDGET_DEFAULT_BYTES: u64 = 64 << 20;

/// Some chunks of one array.
pub(super) struct Batch<'p, 'a> {
    pub(super) array: &'p PlannedArray<'a>,
    pub(super) chunks: Range<u64>,
}

/// The chunks that no worker has taken yet.
pub(super) struct Queue<'p, 'a> {
    arrays: &'p [PlannedArray<'a>],
    /// The next array, and its next chunk.
    next: Mutex<(usize, u64)>,
    stopped: AtomicBool,
}

impl<'p, 'a> Queue<'p, 'a> {
    /// The next batch: a single chunk, or small ones up to a megabyte. `None` at the end or after
    /// an error.
    pub(super) fn next(&self) -> Option<Batch<'p, 'a>> {
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let array = self.arrays.get(next.0)?;
        let at_once = (IN_MEMORY_MAX_BYTES / array.chunk_len_bytes().max(1)).max(1);
        let (start, count) = (next.1, array.chunk_count());
        let end = start.saturating_add(at_once).min(count);
        *next = if end == count { (next.0 + 1, 0) } else { (next.0, end) };
        Some(Batch { array, chunks: start..end })
    }
}

fn total_len_bytes(arrays: &[PlannedArray<'_>]) -> u64 {
    arrays.iter().fold(0, |sum, array| sum.saturating_add(array.len_bytes()))
}

/// The number of bytes to reserve on disk for the file of a worker; 0 if compression makes the
/// length unknown.
pub(super) fn expected_file_len_bytes(arrays: &[PlannedArray<'_>], worker_count: usize) -> u64 {
    let total = total_len_bytes(arrays);
    let is_raw = arrays.iter().all(|array| array.form.compression == Compression::None);
    match total / worker_count.max(1) as u64 {
        // For a small file the raw length is expected, although compression makes the file shorter.
        share if is_raw || share < SMALL_FILE_MAX_BYTES => share,
        _ => 0,
    }
}

/// The number of workers that the data needs and the budget allows.
pub(super) fn worker_count(arrays: &[PlannedArray<'_>], budget_bytes: Option<u64>) -> usize {
    let chunk_count = arrays.iter().fold(0_u64, |sum, array| sum.saturating_add(array.chunk_count()));
    let useful = (total_len_bytes(arrays) / BYTES_PER_WORKER).max(chunk_count / CHUNKS_PER_WORKER).max(1);
    let affordable = (budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES) / WORKER_COST_BYTES).max(1);
    usize::try_from(useful.min(affordable)).unwrap_or(usize::MAX).min(pool::thread_count())
}

/// Runs `worker` once on each of `workers` threads, over one queue. Returns their results.
///
/// # Errors
/// The error of a worker; the other workers then stop after their current batch.
pub(super) fn run<R: Send>(
    arrays: &[PlannedArray<'_>],
    workers: usize,
    worker: impl Fn(&Queue<'_, '_>) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let queue = Queue { arrays, next: Mutex::new((0, 0)), stopped: AtomicBool::new(false) };
    let mut done = Vec::with_capacity(workers);
    pool::map_ordered(
        workers,
        0..workers,
        u64::MAX,
        |_| 0,
        |_| worker(&queue).inspect_err(|_| queue.stopped.store(true, Ordering::Relaxed)),
        |result| {
            done.push(result);
            Ok(())
        },
    )?;
    Ok(done)
}
