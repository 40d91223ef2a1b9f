//! Many blocks at once: checked for views of the map, checked for their own sake, or read into the caller's memory.
//!
//! A pass is cut into pieces of whole blocks, in the order of the file, and a few threads that live as long as the
//! call take one piece after another: while one waits for the disk, another checks and copies what it has read.
//!
//! ```text
//! file    | block | block | block | block | block | ...      a piece: at most 4 MiB of blocks that are touched
//! parts     ##1##  ###2####  3 4      #5#                     what goes where, in the order of the file
//! ```
//!
//! | pass | in the page cache | on disk |
//! |---|---|---|
//! | [`check_ahead`](CheckedStore::check_ahead) for views | through the map | front to back through the page cache |
//! | the same, to verify | `pread` into a buffer | direct I/O into a buffer |
//! | [`fill`](CheckedStore::fill) | `pread` into place or a buffer, checked there in cache | direct I/O into a buffer; checked and copied |
//!
//! Extra memory is a buffer of 4 MiB a thread.

use bytes::Bytes;

use super::checked::{Block, CheckedFile, CheckedStore};
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::formats::CheckFor;
use crate::monitor::{Monitor, Stage};
use crate::store::{CACHED_LEN_BYTES, FETCH_LEN_MAX_BYTES, LONG_LEN_MIN_BYTES, ReadPath, Scratch, Suits};
use crate::threads::pool;

/// Bytes of blocks that one thread takes at a time, at most.
const PIECE_LEN_BYTES: u64 = FETCH_LEN_MAX_BYTES;

/// Whole blocks of fewer bytes are copied to where they go: that costs less than a read of their own.
const IN_PLACE_LEN_MIN_BYTES: u64 = 64 << 10;

/// From here on what is wanted in the page cache is read with readahead; less has nothing read around it.
const READAHEAD_LEN_MIN_BYTES: u64 = 1 << 20;

/// Threads that read one file front to back through the page cache: more of them defeat its readahead.
const STREAM_THREADS: usize = 2;

/// From this many pieces on, threads pay. (Bands of a load, each on a thread of its own already, have fewer.)
const PIECES_MIN: usize = 5;

/// Where bytes of a data file go.
pub struct Part<'a> {
    /// The first of them in the file.
    pub offset_bytes: u64,
    /// Their destination.
    pub out: &'a mut [u8],
}

impl Part<'_> {
    fn end(&self) -> u64 {
        self.offset_bytes + self.out.len() as u64
    }
}

/// How parts are read.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions {
    /// Whether the blocks are read whole and checked.
    pub verified: bool,
    /// Whether what is on disk is read past the page cache. Slices are not: they may be asked for again.
    pub direct: bool,
}

/// Whole blocks that lie together, and the parts that take their bytes.
struct Piece<'f, 'a> {
    file: &'f CheckedFile,
    start: u64,
    end: u64,
    parts: Vec<Part<'a>>,
    /// How many of the bytes are asked for.
    wanted_bytes: u64,
}

impl CheckedStore {
    /// Checks, with several threads, the blocks that the ranges `(file, first byte, length)` touch: for views those
    /// that have not passed yet, to verify all of them. What fails or cannot be read is then unpassed, and
    /// [`check`](CheckedStore::check) says what is wrong.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check_ahead(
        &self,
        mut ranges: Vec<(usize, u64, u64)>,
        ahead: CheckFor,
        monitor: &Monitor,
    ) -> Result<()> {
        ranges.sort_unstable();
        let files = ranges.into_iter().filter_map(|(file, start, len_bytes)| {
            self.file(file).ok().map(|file| (file, start, start.saturating_add(len_bytes)))
        });
        self.check_blocks_ahead(files, ahead, Some(monitor))
    }

    /// The same, of ranges `(file, start, end)` in order.
    pub(super) fn check_blocks_ahead<'f>(
        &self,
        ranges: impl IntoIterator<Item = (&'f CheckedFile, u64, u64)>,
        ahead: CheckFor,
        monitor: Option<&Monitor>,
    ) -> Result<()> {
        let mut pieces: Vec<Piece<'_, '_>> = Vec::new();
        let mut uncounted = 0_u64;
        for (file, start, end) in ranges {
            uncounted += end.min(file.record.len_bytes).saturating_sub(start);
            let blocks = file.blocks(start.max(file.record.data_offset), end);
            for block in blocks.take_while(|_| file.is_read_by_offset()) {
                match pieces.last_mut() {
                    Some(last) if last.holds(file, block) => {}
                    _ if ahead == CheckFor::Views && file.has_passed(block) => continue,
                    Some(last) if last.takes(file, block) => last.end = block.end,
                    _ => pieces.push(Piece::of(file, block)),
                }
                if let Some(last) = pieces.last_mut() {
                    let wanted = block.end.min(end) - block.start.max(start);
                    last.wanted_bytes += wanted;
                    uncounted -= wanted;
                }
            }
        }
        let is_streamed = ahead == CheckFor::Views
            && pieces.first().is_some_and(|first| {
                let reader = self.opened(first.file);
                reader.is_ok_and(|reader| !reader.is_cached(first.start, first.end - first.start))
            });
        let suits = pieces.first().and_then(|first| Some(self.opened(first.file).ok()?.suits()));
        let threads = if is_streamed { STREAM_THREADS } else { suits.map_or(1, thread_count) };
        each(threads, pieces, |piece| {
            let wanted_bytes = piece.wanted_bytes;
            let _ = match ahead {
                CheckFor::Views => self.check_views(piece),
                CheckFor::Verify => {
                    // What cannot be read has not passed either.
                    piece.file.forget(piece.start, piece.end);
                    self.read_piece(piece, ReadOptions { verified: true, direct: true })
                }
            };
            told(monitor, wanted_bytes)
        })?;
        told(monitor, uncounted)
    }

    fn check_views(&self, piece: Piece<'_, '_>) -> Result<()> {
        let reader = self.opened(piece.file)?;
        let len_bytes = piece.end - piece.start;
        if !reader.is_cached(piece.start, len_bytes) {
            // Not through the map: its faults cost more than a copy of what is read, the first of them reads what
            // lies around as well (8 MiB where readahead is set so), and where the disk cannot be read it kills.
            let way = if len_bytes < READAHEAD_LEN_MIN_BYTES { ReadPath::Cached } else { ReadPath::Streamed };
            return self.read_through_cache(piece, true, way);
        }
        let Some(map) = self.map_of(piece.file)?.filter(|_| reader.has_its_length()) else {
            return Err(beyond_the_end());
        };
        let mut failed = Ok(());
        for block in piece.file.blocks(piece.start, piece.end) {
            // A bad block does not keep the good ones after it from passing.
            failed = failed.and(self.check_mapped(piece.file, block, &map));
        }
        failed
    }

    /// Reads the parts' bytes of a data file into place. Parts are in the order of the file and do not overlap.
    ///
    /// # Errors
    /// `Corrupt` with file and offset of a block that fails; what the disk says; `Cancelled`. Parts are then partly
    /// written.
    pub fn fill(
        &self,
        file: usize,
        parts: Vec<Part<'_>>,
        how: ReadOptions,
        monitor: Option<&Monitor>,
    ) -> Result<()> {
        let file = self.file(file)?;
        if !file.is_read_by_offset() {
            let wanted_bytes = parts.iter().map(|part| part.out.len() as u64).sum();
            self.fill_from_blocks(file, parts, how.verified)?;
            return told(monitor, wanted_bytes);
        }
        let threads = thread_count(self.opened(file)?.suits());
        each(threads, cut(file, parts)?, |piece| {
            let wanted_bytes = piece.wanted_bytes;
            self.read_piece(piece, how)?;
            told(monitor, wanted_bytes)
        })
    }

    /// Blocks that are too long for a buffer, which regrow does not write: one after another, whole.
    fn fill_from_blocks(&self, file: &CheckedFile, parts: Vec<Part<'_>>, verified: bool) -> Result<()> {
        for part in parts {
            for block in file.blocks(part.offset_bytes, part.end()) {
                let bytes = self.bytes_of(file, block.start, block.end)?;
                if verified && !file.has_passed(block) {
                    self.check_block(file, block, &bytes)?;
                }
                let (from, to) = (part.offset_bytes.max(block.start), part.end().min(block.end));
                let target = (from - part.offset_bytes) as usize..(to - part.offset_bytes) as usize;
                let source = bytes.get((from - block.start) as usize..(to - block.start) as usize);
                let target = part.out.get_mut(target).unwrap_or_default();
                target.copy_from_slice(source.ok_or_else(beyond_the_end)?);
            }
            if part.end() > file.record.len_bytes {
                return Err(beyond_the_end());
            }
        }
        Ok(())
    }

    /// Bytes of a data file that has no map, read into memory and checked.
    pub(super) fn read_checked(&self, file: &CheckedFile, part: std::ops::Range<u64>) -> Result<Bytes> {
        let mut bytes = work_space(part.end - part.start)?;
        let head_len = file.record.data_offset.saturating_sub(part.start).min(part.end - part.start);
        if head_len > 0 {
            self.check_file(file, 0, file.record.data_offset, CheckFor::Verify)?;
            let head = bytes.get_mut(..head_len as usize).unwrap_or_default();
            self.opened(file)?.read(part.start, head, ReadPath::Cached)?;
        }
        let offset_bytes = part.start.max(file.record.data_offset);
        let rest = bytes.get_mut(head_len as usize..).unwrap_or_default();
        let parts = if rest.is_empty() { Vec::new() } else { vec![Part { offset_bytes, out: rest }] };
        let how = ReadOptions { verified: true, direct: false };
        match file.is_read_by_offset() {
            true => each(1, cut(file, parts)?, |piece| self.read_piece(piece, how))?,
            false => self.fill_from_blocks(file, parts, true)?,
        }
        Ok(bytes.into())
    }

    fn read_piece(&self, piece: Piece<'_, '_>, how: ReadOptions) -> Result<()> {
        let reader = self.opened(piece.file)?;
        let len_bytes = piece.end - piece.start;
        let is_direct =
            how.direct && len_bytes >= LONG_LEN_MIN_BYTES && !reader.is_cached(piece.start, len_bytes);
        if is_direct {
            let mut scratch = Scratch::default();
            let bytes = reader.fetch(piece.start, len_bytes as usize, ReadPath::Direct, &mut scratch)?;
            return self.deliver(piece, bytes, how.verified);
        }
        self.read_through_cache(piece, how.verified, ReadPath::Cached)
    }

    /// Reads a few blocks at a time, so that they are checked and copied while the processor has them: to where they
    /// go, where many whole blocks go to one place, else into a buffer.
    fn read_through_cache(&self, mut piece: Piece<'_, '_>, verified: bool, way: ReadPath) -> Result<()> {
        let Piece { file, start, end, .. } = piece;
        let reader = self.opened(file)?;
        let step = CACHED_LEN_BYTES.next_multiple_of(file.record.block_len_bytes);
        let mut scratch = Scratch::default();
        let mut failed = Ok(());
        let (mut at, mut next) = (start, 0);
        while at < end {
            next += piece.parts.iter().skip(next).take_while(|part| part.end() <= at).count();
            let parts = piece.parts.get_mut(next..).unwrap_or_default();
            let to = end.min(at + step);
            if let Some((part, to)) = parts.first_mut().and_then(|part| in_place(file, part, at, to)) {
                reader.read(at, part, way)?;
                if verified {
                    file.blocks(at, to).try_for_each(|block| self.check_within(file, block, at, part))?;
                }
                at = to;
                continue;
            }
            // Up to where many whole blocks go to one place.
            let from = parts.iter().map(|part| (whole_from(file, part), part)).find(|(from, part)| {
                let to = whole_to(file, part, end).unwrap_or(0);
                *from > at && to >= from + IN_PLACE_LEN_MIN_BYTES
            });
            let to = from.map_or(to, |(from, _)| to.min(from));
            let bytes = reader.fetch(at, (to - at) as usize, way, &mut scratch)?;
            let done = self.deliver_parts((file, at, to), parts, bytes, verified);
            if done.is_err() && !parts.is_empty() {
                return done;
            }
            failed = failed.and(done);
            at = to;
        }
        failed
    }

    /// Checks the blocks of a piece whose bytes have been read, and copies each to where it goes.
    fn deliver(&self, mut piece: Piece<'_, '_>, bytes: &[u8], verified: bool) -> Result<()> {
        self.deliver_parts((piece.file, piece.start, piece.end), &mut piece.parts, bytes, verified)
    }

    fn deliver_parts(
        &self,
        (file, start, end): (&CheckedFile, u64, u64),
        parts: &mut [Part<'_>],
        bytes: &[u8],
        verified: bool,
    ) -> Result<()> {
        let mut failed = Ok(());
        let mut next = 0;
        for block in file.blocks(start, end) {
            if verified {
                // Checked for its own sake, a bad block does not keep the good ones after it from passing.
                failed = failed.and(self.check_within(file, block, start, bytes));
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
                    target.copy_from_slice(source.ok_or_else(beyond_the_end)?);
                }
                if part.end() > block.end {
                    break;
                }
                next += 1;
            }
        }
        failed
    }

    /// Checks a block within `bytes`, which begin at byte `start` of the file.
    fn check_within(&self, file: &CheckedFile, block: Block, start: u64, bytes: &[u8]) -> Result<()> {
        let inside = block.start.checked_sub(start).zip(block.end.checked_sub(start));
        let bytes = inside.and_then(|(from, to)| bytes.get(from as usize..to as usize));
        self.check_block(file, block, bytes.ok_or_else(beyond_the_end)?)
    }
}

impl<'f> Piece<'f, '_> {
    fn of(file: &'f CheckedFile, block: Block) -> Self {
        Self { file, start: block.start, end: block.end, parts: Vec::new(), wanted_bytes: 0 }
    }

    fn holds(&self, file: &CheckedFile, block: Block) -> bool {
        std::ptr::eq(self.file, file) && (self.start..self.end).contains(&block.start)
    }

    fn takes(&self, file: &CheckedFile, block: Block) -> bool {
        // The last block of a file counts as a whole one: a piece has room for so many blocks, as in `cut`.
        let end = block.start + file.record.block_len_bytes;
        std::ptr::eq(self.file, file) && self.end == block.start && end - self.start <= PIECE_LEN_BYTES
    }
}

/// Where in the file the first whole block of a part begins.
fn whole_from(file: &CheckedFile, part: &Part<'_>) -> u64 {
    let block = file.block_at(part.offset_bytes);
    if block.start == part.offset_bytes { block.start } else { block.end }
}

/// Where the last whole block of a part ends, at most at `limit`, where a block ends as well.
fn whole_to(file: &CheckedFile, part: &Part<'_>, limit: u64) -> Option<u64> {
    let end = part.end().min(limit);
    let block = file.block_at(end.checked_sub(1)?);
    Some(if block.end == end { end } else { block.start })
}

/// The memory of a part for whole blocks from `at` to no further than `limit`, and where they end, if they are many.
fn in_place<'p>(
    file: &CheckedFile,
    part: &'p mut Part<'_>,
    at: u64,
    limit: u64,
) -> Option<(&'p mut [u8], u64)> {
    let to = whole_to(file, part, limit)?;
    let from = at.checked_sub(part.offset_bytes)?;
    let is_worth_it = to >= at + IN_PLACE_LEN_MIN_BYTES || to == part.end() && to > at;
    let memory = part.out.get_mut(from as usize..(to - part.offset_bytes) as usize);
    memory.filter(|_| is_worth_it).zip(Some(to))
}

/// Cuts parts into pieces; what no part touches is in none of them.
fn cut<'f, 'a>(file: &'f CheckedFile, parts: Vec<Part<'a>>) -> Result<Vec<Piece<'f, 'a>>> {
    let mut pieces: Vec<Piece<'f, 'a>> = Vec::new();
    for Part { mut offset_bytes, mut out } in parts {
        let is_inside = offset_bytes >= file.record.data_offset
            && offset_bytes.checked_add(out.len() as u64).is_some_and(|end| end <= file.record.len_bytes);
        if !is_inside {
            return Err(beyond_the_end());
        }
        while !out.is_empty() {
            let block = file.block_at(offset_bytes);
            let is_known =
                pieces.last().is_some_and(|last| last.holds(file, block) || last.takes(file, block));
            if !is_known {
                pieces.push(Piece::of(file, block));
            }
            let Some(piece) = pieces.last_mut() else { break };
            // As far as this piece may reach: to the last block that is whole within its length.
            let step = file.record.block_len_bytes;
            let room_end = piece.start + (PIECE_LEN_BYTES / step).max(1) * step;
            let take = (room_end - offset_bytes).min(out.len() as u64) as usize;
            let (now, later) = out.split_at_mut(take);
            piece.end = piece.end.max(file.block_at(offset_bytes + take as u64 - 1).end);
            piece.wanted_bytes += now.len() as u64;
            piece.parts.push(Part { offset_bytes, out: now });
            (offset_bytes, out) = (offset_bytes + take as u64, later);
        }
    }
    Ok(pieces)
}

fn thread_count(suits: Suits) -> usize {
    pool::thread_count().clamp(suits.requests_min, suits.requests_max.max(suits.requests_min))
}

fn each<'f, 'a>(
    threads: usize,
    pieces: Vec<Piece<'f, 'a>>,
    work: impl Fn(Piece<'f, 'a>) -> Result<()> + Sync,
) -> Result<()> {
    let threads = if pieces.len() < PIECES_MIN { 1 } else { threads };
    pool::for_each_parallel(threads, pieces, u64::MAX, |_| 0, work)
}

/// Tells the monitor, if there is one, of bytes that were read.
fn told(monitor: Option<&Monitor>, bytes: u64) -> Result<()> {
    monitor.map_or(Ok(()), |monitor| monitor.done(Stage::Read, bytes))
}

fn beyond_the_end() -> Error {
    Error::corrupt("a leaf ends beyond its data file")
        .help("the data file was cut short, or is another one: copy the whole checkpoint again")
}
