//! Many blocks at once: checked for views of the map, checked for a verification, or read into the
//! caller's memory.
//!
//! A pass is divided into pieces of whole blocks, in the order of the blob. A few threads, which
//! live as long as the call, take one piece after another. While one thread waits for the disk,
//! another checks and copies its data.
//!
//! | pass | in the page cache | on disk |
//! |---|---|---|
//! | [`check_ahead`] for views | through the map | front to back through the page cache |
//! | [`check_ahead`] for a verification | `pread` into a buffer | direct I/O into a buffer |
//! | [`fill`] | `pread` into the destination or a buffer, then checked | direct I/O into a buffer, then checked and copied |
//!
//! Over a network a piece is one request, checked and copied as it arrives ([`Arrival`]).
//!
//! The extra memory is a buffer of 4 MiB for each thread. Long blocks are read in steps directly
//! into their destination, and checked during the read.

use std::ops::Range;

use super::arrival::Arrival;
use super::pieces::{
    PIECE_LEN_BYTES, Part, Piece, Wanted, beyond_the_end, cut, in_place, is_in_place_later, whole_from,
};
use super::table::{Block, Checked, Running};
use crate::error::{Error, ErrorKind, Result};
use crate::monitor::{Monitor, Stage};
use crate::threads::pool;
use crate::{
    Access, Blob, CACHED_LEN_BYTES, FETCH_LEN_MAX_BYTES, LONG_LEN_MIN_BYTES, ReadPath, Scratch, Suits, advise,
};

/// Checks for views of at least this length read with readahead. Shorter checks do not read the
/// bytes around them.
const READAHEAD_LEN_MIN_BYTES: u64 = 1 << 20;

/// Number of threads that read one file in order through the page cache. With more threads the
/// kernel's readahead fails.
const STREAM_THREADS: usize = 2;

/// From this many pieces on, or from the length of this many long pieces on, several threads are
/// faster than one. (A band of a load has fewer pieces, and each band already has its own thread.)
const PIECES_MIN: usize = 5;

/// Small pieces are combined into batches of this length for one thread.
const BATCH_LEN_BYTES: u64 = 1 << 20;

/// The purpose of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckFor {
    /// For views of the map: the check should leave the pages in memory.
    Views,
    /// For a verification: the bytes are not needed, so the check should not fill the page cache.
    Verify,
}

/// How bytes are read.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions {
    /// Whether the bytes are checked against the checksums of their blocks.
    pub verified: bool,
    /// Whether bytes on disk are read past the page cache. Reads of slices use the page cache,
    /// because a program may read the same bytes again.
    pub direct: bool,
}

/// Checks the blocks in the ranges with several threads: for views only blocks that have not passed
/// yet, for a verification all blocks. Each range comes with the range of its data bytes, which the
/// monitor counts. The ranges are sorted by offset in each blob. Long blocks are skipped. A block
/// that fails or cannot be read does not pass. Later, [`Checked::check`] returns its error.
///
/// # Errors
/// `Cancelled`.
pub fn check_ahead<'f>(
    ranges: impl IntoIterator<Item = (Checked<'f>, Range<u64>, Range<u64>)>,
    purpose: CheckFor,
    monitor: Option<&Monitor>,
) -> Result<()> {
    let mut pieces: Vec<Piece<'_, '_>> = Vec::new();
    let mut uncounted = 0_u64;
    for (checked, range, data) in ranges {
        let table = checked.table;
        uncounted += data.end.saturating_sub(data.start);
        for block in table.blocks(range.start, range.end).take_while(|_| table.is_short()) {
            match pieces.last_mut() {
                Some(last) if last.holds(checked, block) => {}
                _ if purpose == CheckFor::Views && table.has_passed(block) => continue,
                Some(last) if last.takes(checked, block) => last.end = block.end,
                _ => pieces.push(Piece::of(checked, block, 0)),
            }
            if let Some(last) = pieces.last_mut() {
                let wanted = block.end.min(data.end).saturating_sub(block.start.max(data.start));
                last.wanted_bytes += wanted;
                uncounted -= wanted;
            }
        }
    }
    let is_streamed = purpose == CheckFor::Views
        && pieces.first().is_some_and(|first| !first.checked.blob.is_cached(first.start, first.len_bytes()));
    let suits = pieces.first().map(|first| first.checked.blob.suits());
    let threads = if is_streamed { STREAM_THREADS } else { suits.map_or(1, thread_count) };
    let is_far = suits.is_some_and(|suits| suits.is_far());
    each(threads, is_far, pieces, |mut piece| {
        let _ = match purpose {
            CheckFor::Views => piece.check_for_views(),
            CheckFor::Verify => {
                // A block that cannot be read must not count as passed.
                piece.checked.table.forget(piece.start, piece.end);
                piece.read(ReadOptions { verified: true, direct: true }, None)
            }
        };
        told(monitor, piece.wanted_bytes)
    })?;
    told(monitor, uncounted)
}

/// Reads bytes of blobs into memory of the caller. Each part comes with the range whose checksums
/// cover it. Parts of one table are sorted by offset and do not overlap. `named` adds the leaf to
/// an error.
///
/// # Errors
/// `Corrupt` with the file and offset of a bad block; errors of the storage; `Cancelled`. After an
/// error the parts are partly written.
pub fn fill<'f, 'a>(
    wanted: impl IntoIterator<Item = Wanted<'f, 'a>>,
    how: ReadOptions,
    monitor: Option<&Monitor>,
    named: impl Fn(usize, Error) -> Error + Sync,
) -> Result<()> {
    let pieces = cut(wanted)?;
    let Some(first) = pieces.first() else { return Ok(()) };
    let suits = first.checked.blob.suits();
    each(thread_count(suits), suits.is_far(), pieces, |mut piece| {
        let done = piece.read(how, monitor);
        // The copied bytes have passed. But the bytes in the file may change before a program asks
        // for a view of them.
        if !piece.checked.table.is_never_rewritten() {
            piece.checked.table.forget(piece.start, piece.end);
        }
        done.map_err(|error| match error.kind() {
            ErrorKind::Cancelled => error,
            _ => named(piece.leaf_at(error.place().offset_bytes), error),
        })
    })
}

impl Checked<'_> {
    pub(super) fn is_same(self, other: Checked<'_>) -> bool {
        std::ptr::eq(self.table, other.table)
    }

    /// Checks every block in a range that has not passed yet. For views, the bytes may be checked
    /// in the map. For a verification, the bytes are read, because a map faults if the disk cannot
    /// be read, and long blocks are checked again.
    pub fn check(self, start: u64, end: u64, purpose: CheckFor) -> Result<()> {
        let Self { blob, table } = self;
        let is_done =
            |block: Block| table.has_passed(block) && (purpose == CheckFor::Views || table.is_short());
        if table.blocks(start, end).all(is_done) {
            return Ok(());
        }
        if purpose == CheckFor::Views && table.is_short() {
            check_ahead([(self, start..end, 0..0)], purpose, None)?;
        }
        // After a check for views, only bad blocks and long blocks remain.
        for block in table.blocks(start, end).filter(|&block| !is_done(block)) {
            if table.is_short() {
                let mut scratch = Scratch::default();
                let bytes = blob.fetch(block.start, block.len_bytes(), ReadPath::Cached, &mut scratch)?;
                table.check(blob, block, bytes)?;
            } else {
                self.check_long(block, purpose)?;
            }
        }
        Ok(())
    }

    fn check_long(self, block: Block, purpose: CheckFor) -> Result<()> {
        let map = if purpose == CheckFor::Views { self.blob.map()? } else { None };
        let Some(map) = map else {
            return Piece::of(self, block, 0).read_long(true, None);
        };
        if map.len() as u64 <= block.end.saturating_sub(1) {
            return Err(beyond_the_end(self.blob));
        }
        let bytes = map.slice(block.start as usize..block.end as usize);
        advise(&bytes, Access::Soon);
        self.table.check(self.blob, block, &bytes)
    }

    /// Checks a block in `bytes`, whose first byte is byte `start` of the blob.
    fn check_within(self, block: Block, start: u64, bytes: &[u8]) -> Result<()> {
        let inside = block.start.checked_sub(start).zip(block.end.checked_sub(start));
        let bytes = inside.and_then(|(from, to)| bytes.get(from as usize..to as usize));
        self.table.check(self.blob, block, bytes.ok_or_else(|| beyond_the_end(self.blob))?)
    }
}

impl Piece<'_, '_> {
    fn check_for_views(&mut self) -> Result<()> {
        let Checked { blob, table } = self.checked;
        let len_bytes = self.len_bytes();
        if !blob.is_cached(self.start, len_bytes) {
            // Read instead of using the map: faults cost more than a copy of the bytes. The first
            // fault also reads the surrounding bytes: 8 MiB if the readahead has this length. And
            // if the disk cannot be read, a fault kills the process.
            let way = if len_bytes < READAHEAD_LEN_MIN_BYTES { ReadPath::Cached } else { ReadPath::Streamed };
            return self.read_through_cache(true, way);
        }
        let Some(map) = blob.map()? else { return self.read_through_cache(true, ReadPath::Cached) };
        if !blob.has_its_length() {
            return Err(beyond_the_end(blob));
        }
        let mut failed = Ok(());
        for block in table.blocks(self.start, self.end) {
            // After a bad block, the good blocks are still recorded as good.
            let bytes = map.get(block.start as usize..block.end as usize).unwrap_or_default();
            failed = failed.and(table.check(blob, block, bytes));
        }
        failed
    }

    /// Reads the piece, and reports the requested bytes to the monitor.
    fn read(&mut self, how: ReadOptions, monitor: Option<&Monitor>) -> Result<()> {
        if !self.checked.table.is_short() {
            return self.read_long(how.verified, monitor);
        }
        if self.receive(how.verified)? {
            return told(monitor, self.wanted_bytes);
        }
        let (blob, len_bytes) = (self.checked.blob, self.len_bytes());
        let is_direct =
            how.direct && len_bytes >= LONG_LEN_MIN_BYTES && !blob.is_cached(self.start, len_bytes);
        if is_direct {
            let mut scratch = Scratch::default();
            let bytes = blob.fetch(self.start, len_bytes as usize, ReadPath::Direct, &mut scratch)?;
            deliver((self.checked, self.start, self.end), &mut self.parts, bytes, how.verified)?;
        } else {
            self.read_through_cache(how.verified, ReadPath::Cached)?;
        }
        told(monitor, self.wanted_bytes)
    }

    /// Receives the piece over a network as it arrives; `false` if the storage cannot stream.
    fn receive(&mut self, verified: bool) -> Result<bool> {
        let (checked, start, len_bytes) = (self.checked, self.start, self.len_bytes());
        let mut arrival = Arrival::of(checked, start, &mut self.parts, verified);
        let has_come = checked.blob.stream(start, len_bytes, &mut |bytes| arrival.take(bytes))?;
        if has_come { arrival.finish().map(|()| true) } else { Ok(false) }
    }

    /// Reads a few blocks at a time, and checks and copies them while they are in the processor's
    /// cache. Many whole blocks for one destination are read directly into it; others go through a
    /// buffer.
    fn read_through_cache(&mut self, verified: bool, way: ReadPath) -> Result<()> {
        let (checked, end) = (self.checked, self.end);
        let Checked { blob, table } = checked;
        let step = match blob.suits().is_far() {
            // The largest number of whole blocks in one request.
            true => FETCH_LEN_MAX_BYTES - FETCH_LEN_MAX_BYTES % table.block_len_bytes(),
            false => CACHED_LEN_BYTES.next_multiple_of(table.block_len_bytes()),
        };
        let mut scratch = Scratch::default();
        let mut failed = Ok(());
        let (mut at, mut next) = (self.start, 0);
        while at < end {
            next += self.parts.iter().skip(next).take_while(|part| part.end() <= at).count();
            let parts = self.parts.get_mut(next..).unwrap_or_default();
            let to = end.min(at + step);
            if let Some((part, to)) = parts.first_mut().and_then(|part| in_place(checked, part, at, to)) {
                blob.read(at, part, way)?;
                if verified {
                    table.blocks(at, to).try_for_each(|block| checked.check_within(block, at, part))?;
                }
                at = to;
                continue;
            }
            // If a later part has many whole blocks, read only up to the first of these blocks: the
            // next step reads them directly into the memory of that part.
            let later = parts.iter().find(|part| is_in_place_later(checked, part, at, end));
            let to = later.map_or(to, |part| to.min(whole_from(checked, part)));
            let bytes = blob.fetch(at, (to - at) as usize, way, &mut scratch)?;
            let done = deliver((checked, at, to), parts, bytes, verified);
            if done.is_err() && !parts.is_empty() {
                return done;
            }
            failed = failed.and(done);
            at = to;
        }
        failed
    }

    /// Reads one long block in steps, each directly into its destination, and checks it on the way.
    fn read_long(&mut self, verified: bool, monitor: Option<&Monitor>) -> Result<()> {
        let Checked { blob, table } = self.checked;
        let is_cached = blob.is_cached(self.start, self.len_bytes());
        let step = if is_cached { CACHED_LEN_BYTES } else { FETCH_LEN_MAX_BYTES };
        let mut running = verified.then(|| table.begin(table.block_at(self.start)));
        let mut at = self.start;
        for part in &mut self.parts {
            pass_over(blob, at..part.offset_bytes, step, &mut running)?;
            at = part.end();
            let mut offset_bytes = part.offset_bytes;
            for bytes in part.out.chunks_mut(step as usize) {
                blob.read(offset_bytes, bytes, ReadPath::Cached)?;
                if let Some(running) = &mut running {
                    running.update(bytes);
                }
                told(monitor, bytes.len() as u64)?;
                offset_bytes += bytes.len() as u64;
            }
        }
        pass_over(blob, at..self.end, step, &mut running)?;
        running.map_or(Ok(()), |running| running.finish(blob))
    }
}

/// Reads bytes that no part needs, only for the checksum of their block.
fn pass_over(blob: &dyn Blob, range: Range<u64>, step: u64, running: &mut Option<Running<'_>>) -> Result<()> {
    let Some(running) = running else { return Ok(()) };
    let mut scratch = Scratch::default();
    let mut at = range.start;
    while at < range.end {
        let len = step.min(range.end - at);
        running.update(blob.fetch(at, len as usize, ReadPath::Cached, &mut scratch)?);
        at += len;
    }
    Ok(())
}

/// Checks the blocks in a range of bytes that were read, and copies the bytes to their
/// destinations.
fn deliver(
    (checked, start, end): (Checked<'_>, u64, u64),
    parts: &mut [Part<'_>],
    bytes: &[u8],
    verified: bool,
) -> Result<()> {
    let mut failed = Ok(());
    let mut next = 0;
    for block in checked.table.blocks(start, end) {
        if verified {
            // Without destinations this is only a check. It continues after a bad block, so that
            // later good blocks are recorded as good.
            failed = failed.and(checked.check_within(block, start, bytes));
            if failed.is_err() && !parts.is_empty() {
                return failed;
            }
        }
        while let Some(part) = parts.get_mut(next) {
            let (from, to) = (part.offset_bytes.max(block.start), part.end().min(block.end));
            if from < to {
                let target = (from - part.offset_bytes) as usize..(to - part.offset_bytes) as usize;
                let source = bytes.get((from - start) as usize..(to - start) as usize);
                let target = part.out.get_mut(target).unwrap_or_default();
                target.copy_from_slice(source.ok_or_else(|| beyond_the_end(checked.blob))?);
            }
            if part.end() > block.end {
                break;
            }
            next += 1;
        }
    }
    failed
}

fn thread_count(suits: Suits) -> usize {
    pool::thread_count().clamp(suits.requests_min, suits.requests_max.max(suits.requests_min))
}

/// Calls `work` for all pieces. Small pieces are combined into batches. Uses `threads` threads if
/// there is enough work.
fn each<'f, 'a>(
    threads: usize,
    is_far: bool,
    pieces: Vec<Piece<'f, 'a>>,
    work: impl Fn(Piece<'f, 'a>) -> Result<()> + Sync,
) -> Result<()> {
    let len_bytes = pieces.iter().map(Piece::len_bytes).sum::<u64>();
    let is_little = pieces.len() < PIECES_MIN && len_bytes < PIECES_MIN as u64 * PIECE_LEN_BYTES;
    if threads <= 1 || is_little && !is_far {
        return pieces.into_iter().try_for_each(work);
    }
    // Over a network each piece waits for an answer, so make at least enough batches for all
    // threads.
    let batch_len_max_bytes = if is_far { len_bytes / (4 * threads as u64) } else { BATCH_LEN_BYTES };
    let batch_len_max_bytes = batch_len_max_bytes.min(BATCH_LEN_BYTES);
    let (mut batches, mut batch, mut batch_len_bytes) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        batch_len_bytes += piece.len_bytes();
        batch.push(piece);
        if batch_len_bytes >= batch_len_max_bytes {
            batches.push(std::mem::take(&mut batch));
            batch_len_bytes = 0;
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    // Starting threads that have no work would take longer than a short read.
    let threads = threads.min(batches.len());
    pool::for_each_parallel(threads, batches, u64::MAX, |_| 0, |batch| batch.into_iter().try_for_each(&work))
}

fn told(monitor: Option<&Monitor>, bytes: u64) -> Result<()> {
    monitor.map_or(Ok(()), |monitor| monitor.done(Stage::Read, bytes))
}
