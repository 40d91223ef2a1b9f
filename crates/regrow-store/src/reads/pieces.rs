//! Extents and destinations, divided into pieces of whole blocks. A thread reads one piece at a
//! time.
//!
//! ```text
//! blob    | block | block | block | block | block | ...      a piece: at most 4 MiB of short blocks that are touched,
//! parts     ##1##  ###2####  3 4      #5#                    or one long block
//! ```

use std::ops::Range;

use super::table::{Block, Checked};
use crate::Blob;
use crate::FETCH_LEN_MAX_BYTES;
use crate::error::{Error, Result};

/// Longest piece of short blocks, which one thread reads at a time.
pub(super) const PIECE_LEN_BYTES: u64 = FETCH_LEN_MAX_BYTES;

/// Fewer bytes of whole blocks than this are copied to their destination, because a separate read
/// of them would cost more.
const IN_PLACE_LEN_MIN_BYTES: u64 = 64 << 10;

/// The destination of some bytes of a blob.
#[derive(Debug)]
pub struct Part<'a> {
    /// The offset of the first byte in the blob.
    pub offset_bytes: u64,
    /// The destination of the bytes.
    pub out: &'a mut [u8],
    /// The index of the leaf that the bytes belong to, for errors.
    pub leaf: usize,
}

impl Part<'_> {
    pub(super) fn end(&self) -> u64 {
        self.offset_bytes + self.out.len() as u64
    }
}

/// Adjacent whole blocks, and the parts that receive their bytes.
#[derive(Debug)]
pub(super) struct Piece<'f, 'a> {
    pub checked: Checked<'f>,
    pub start: u64,
    pub end: u64,
    pub parts: Vec<Part<'a>>,
    pub wanted_bytes: u64,
    /// The first leaf with bytes in this piece.
    pub leaf: usize,
}

impl<'f, 'a> Piece<'f, 'a> {
    pub fn of(checked: Checked<'f>, block: Block, leaf: usize) -> Self {
        Self { checked, start: block.start, end: block.end, parts: Vec::new(), wanted_bytes: 0, leaf }
    }

    pub fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    pub fn holds(&self, checked: Checked<'f>, block: Block) -> bool {
        self.checked.is_same(checked) && (self.start..self.end).contains(&block.start)
    }

    pub fn takes(&self, checked: Checked<'f>, block: Block) -> bool {
        // The last block counts with the full block length, because `cut` counts it in this way,
        // too.
        let end = block.start.saturating_add(checked.table.block_len_bytes());
        let is_next = self.checked.is_same(checked) && self.end == block.start;
        is_next && end - self.start <= piece_len_bytes(checked)
    }

    /// The leaf with the bytes at an offset.
    pub fn leaf_at(&self, offset_bytes: Option<u64>) -> usize {
        let at = offset_bytes.unwrap_or(self.start);
        self.parts.iter().find(|part| part.end() > at).map_or(self.leaf, |part| part.leaf)
    }
}

/// A requested read: a blob, the range whose checksums cover the bytes, and the bytes with their
/// destination.
pub(super) type Wanted<'f, 'a> = (Checked<'f>, Range<u64>, Part<'a>);

/// Divides requested reads into pieces. Bytes that neither a part nor a checksum needs are in no
/// piece.
pub(super) fn cut<'f, 'a>(wanted: impl IntoIterator<Item = Wanted<'f, 'a>>) -> Result<Vec<Piece<'f, 'a>>> {
    let mut pieces: Vec<Piece<'f, 'a>> = Vec::new();
    for (checked, vouching, part) in wanted {
        let Part { mut offset_bytes, mut out, leaf } = part;
        let (table, blocks) = (checked.table, checked.table.range());
        let end = offset_bytes.checked_add(out.len() as u64).filter(|end| *end <= blocks.end);
        let Some(end) = end.filter(|_| offset_bytes >= blocks.start) else {
            return Err(beyond_the_end(checked.blob));
        };
        touch(&mut pieces, checked, vouching.start..offset_bytes.min(vouching.end), leaf);
        while !out.is_empty() {
            let block = table.block_at(offset_bytes);
            let Some(piece) = piece_for(&mut pieces, checked, block, leaf) else { break };
            // The end of the last whole block that fits into this piece.
            let step = table.block_len_bytes();
            let room_end = piece.start.saturating_add((piece_len_bytes(checked) / step).saturating_mul(step));
            let take = (room_end - offset_bytes).min(out.len() as u64) as usize;
            let (now, later) = out.split_at_mut(take);
            piece.end = piece.end.max(table.block_at(offset_bytes + take as u64 - 1).end);
            piece.wanted_bytes += now.len() as u64;
            piece.parts.push(Part { offset_bytes, out: now, leaf });
            (offset_bytes, out) = (offset_bytes + take as u64, later);
        }
        touch(&mut pieces, checked, end.max(vouching.start)..vouching.end, leaf);
    }
    Ok(pieces)
}

fn piece_len_bytes(checked: Checked<'_>) -> u64 {
    if checked.table.is_short() { PIECE_LEN_BYTES } else { checked.table.block_len_bytes() }
}

/// Adds the blocks of a range to the pieces, for their checksums only.
fn touch<'f>(pieces: &mut Vec<Piece<'f, '_>>, checked: Checked<'f>, range: Range<u64>, leaf: usize) {
    for block in checked.table.blocks(range.start, range.end) {
        if let Some(piece) = piece_for(pieces, checked, block, leaf) {
            piece.end = piece.end.max(block.end);
        }
    }
}

/// The last piece, if it has the block or can be extended by it; otherwise a new piece.
fn piece_for<'p, 'f, 'a>(
    pieces: &'p mut Vec<Piece<'f, 'a>>,
    checked: Checked<'f>,
    block: Block,
    leaf: usize,
) -> Option<&'p mut Piece<'f, 'a>> {
    let is_known = pieces.last().is_some_and(|last| last.holds(checked, block) || last.takes(checked, block));
    if !is_known {
        pieces.push(Piece::of(checked, block, leaf));
    }
    pieces.last_mut()
}

/// The offset in the blob of the first whole block of a part.
pub(super) fn whole_from(checked: Checked<'_>, part: &Part<'_>) -> u64 {
    let block = checked.table.block_at(part.offset_bytes);
    if block.start == part.offset_bytes { block.start } else { block.end }
}

/// The end of the last whole block of a part. `limit` is the largest result, and is also the end of
/// a block.
fn whole_to(checked: Checked<'_>, part: &Part<'_>, limit: u64) -> Option<u64> {
    let end = part.end().min(limit);
    let block = checked.table.block_at(end.checked_sub(1)?);
    Some(if block.end == end { end } else { block.start })
}

/// The memory of a part for whole blocks from `at` to at most `limit`, and the end of these blocks.
/// `None` if a separate read of these blocks would not be worth its cost.
pub(super) fn in_place<'p>(
    checked: Checked<'_>,
    part: &'p mut Part<'_>,
    at: u64,
    limit: u64,
) -> Option<(&'p mut [u8], u64)> {
    let to = whole_to(checked, part, limit)?;
    let from = at.checked_sub(part.offset_bytes)?;
    let is_worth_it = to >= at + IN_PLACE_LEN_MIN_BYTES || to == part.end() && to > at;
    let memory = part.out.get_mut(from as usize..(to - part.offset_bytes) as usize);
    memory.filter(|_| is_worth_it).zip(Some(to))
}

/// Whether the part has enough whole blocks after `at` for a separate read into its memory.
pub(super) fn is_in_place_later(checked: Checked<'_>, part: &Part<'_>, at: u64, limit: u64) -> bool {
    let (from, to) = (whole_from(checked, part), whole_to(checked, part, limit).unwrap_or(0));
    from > at && to >= from + IN_PLACE_LEN_MIN_BYTES
}

pub(super) fn beyond_the_end(blob: &dyn Blob) -> Error {
    Error::corrupt("a leaf ends after the end of its data file")
        .in_file(blob.describe())
        .help("the data file was cut short or replaced: copy the whole checkpoint again")
}
