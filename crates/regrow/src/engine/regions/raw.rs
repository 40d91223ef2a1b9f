//! Regions of raw leaves: reads the runs of all regions in the order of the blob, each byte once.
//!
//! ```text
//! blob      | block | block | block | block | ...
//! region 0    ##      ##      ##                      runs of both regions, merged in the order of the blob
//! region 1      ###     ###     ###                   ~: region 0 has read these bytes; they are copied
//!               ~       ~       ~
//! ```
//!
//! The runs that fit into a window are read together. A window ends at the end of a block. Runs in
//! the last block wait for the next window, so that no block is read twice, even if one leaf ends
//! and the next begins in that block.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::array::{Dtype, Region, Runs, Shape};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::reads::{Checked, Part, ReadOptions, fill};

const WINDOW_LEN: usize = 64 << 10;

/// A raw leaf and its requested regions.
#[derive(Clone)]
pub(super) struct RawLeaf<'e> {
    pub leaf: usize,
    pub checked: Checked<'e>,
    pub offset_bytes: u64,
    pub shape: &'e Shape,
    pub dtype: Dtype,
    /// Each region has the number of its destination.
    pub regions: Vec<(Region, usize)>,
}

/// Reads regions of raw leaves, each into its own destination. The leaves are in the order of their
/// blobs.
pub(super) fn read_raw<'e>(
    leaves: impl IntoIterator<Item = RawLeaf<'e>>,
    outs: &mut [&mut [u8]],
    how: ReadOptions,
    monitor: Option<&Monitor>,
    named: &(impl Fn(usize, Error) -> Error + Sync),
) -> Result<()> {
    let mut window = Window { outs, spans: Vec::new(), copies: Vec::new(), how, monitor, named };
    for leaf in leaves {
        // If a record places two leaves at the same bytes, read each leaf on its own.
        let is_behind = |last: &Span<'_>| {
            !std::ptr::eq(last.checked.table, leaf.checked.table) || last.end() <= leaf.offset_bytes
        };
        if !window.spans.last().is_none_or(is_behind) {
            window.read_all()?;
        }
        window.add(&leaf)?;
    }
    window.read_all()
}

/// A range of bytes of a blob, and its destination.
#[derive(Clone, Copy)]
struct Span<'e> {
    checked: Checked<'e>,
    leaf: usize,
    offset_bytes: u64,
    len_bytes: usize,
    place: Place,
}

/// An offset in one of the destinations.
#[derive(Clone, Copy)]
struct Place {
    out: usize,
    at: usize,
}

impl<'e> Span<'e> {
    fn end(&self) -> u64 {
        self.offset_bytes + self.len_bytes as u64
    }

    /// The part of the span from `offset_bytes` on, which lies inside the span.
    fn from(self, offset_bytes: u64) -> Self {
        let skipped = (offset_bytes - self.offset_bytes) as usize;
        let place = Place { at: self.place.at + skipped, ..self.place };
        Self { offset_bytes, len_bytes: self.len_bytes - skipped, place, ..self }
    }

    /// The part of the span before `offset_bytes`, which lies inside the span.
    fn before(self, offset_bytes: u64) -> Self {
        Self { len_bytes: (offset_bytes - self.offset_bytes) as usize, ..self }
    }
}

/// The spans that are read next.
struct Window<'w, 'o, 'e, N> {
    outs: &'w mut [&'o mut [u8]],
    /// Spans in the order of the blob; spans of one blob do not overlap.
    spans: Vec<Span<'e>>,
    /// Copies to other destinations: a span that will have been read, and the target.
    copies: Vec<(Span<'e>, Place)>,
    how: ReadOptions,
    monitor: Option<&'w Monitor>,
    named: &'w N,
}

impl<'e, N: Fn(usize, Error) -> Error + Sync> Window<'_, '_, 'e, N> {
    fn add(&mut self, leaf: &RawLeaf<'e>) -> Result<()> {
        let mut streams: Vec<(Runs, usize)> = Vec::with_capacity(leaf.regions.len());
        for (region, out) in &leaf.regions {
            streams.push((region.runs(leaf.shape, leaf.dtype)?, *out));
        }
        // A heap with the next run of each region. The lowest offset comes first.
        let mut heads = BinaryHeap::with_capacity(streams.len());
        let next = |streams: &mut [(Runs, usize)], stream: usize| {
            let (runs, _) = streams.get_mut(stream)?;
            runs.next().map(|run| Reverse((run.offset_bytes, stream, run.at, run.len_bytes)))
        };
        for stream in 0..streams.len() {
            heads.extend(next(&mut streams, stream));
        }
        // Spans that were already added, as long as later runs may overlap them.
        let mut known: VecDeque<Span<'e>> = VecDeque::new();
        while let Some(Reverse((offset_bytes, stream, at, len_bytes))) = heads.pop() {
            heads.extend(next(&mut streams, stream));
            let Some(&(_, out)) = streams.get(stream) else { continue };
            let mut span = Span {
                checked: leaf.checked,
                leaf: leaf.leaf,
                offset_bytes: leaf.offset_bytes + offset_bytes,
                len_bytes,
                place: Place { out, at },
            };
            while known.front().is_some_and(|known| known.end() <= span.offset_bytes) {
                known.pop_front();
            }
            // Known spans follow each other without a gap, because runs come in the order of their
            // offsets.
            for source in &known {
                if span.len_bytes == 0 {
                    break;
                }
                let end = source.end().min(span.end());
                self.copies.push((source.from(span.offset_bytes).before(end), span.place));
                span = span.from(end);
            }
            if span.len_bytes == 0 {
                continue;
            }
            self.spans.push(span);
            if streams.len() > 1 {
                known.push_back(span);
            }
            if self.spans.len() >= WINDOW_LEN {
                self.read_whole_blocks()?;
            }
        }
        Ok(())
    }

    /// Reads up to the last block. Later runs may need that block, so it waits.
    fn read_whole_blocks(&mut self) -> Result<()> {
        let (Some(first), Some(last)) = (self.spans.first(), self.spans.last()) else { return Ok(()) };
        let table = last.checked.table;
        let limit =
            if last.end() >= table.range().end { last.end() } else { table.block_at(last.end()).start };
        if std::ptr::eq(first.checked.table, table) && first.offset_bytes >= limit {
            return Ok(());
        }
        let is_in_last = |span: &Span<'e>| std::ptr::eq(span.checked.table, table) && span.end() > limit;
        let mut later = Vec::new();
        while let Some(span) = self.spans.pop_if(|span| is_in_last(span)) {
            if span.offset_bytes < limit {
                self.spans.push(span.before(limit));
            }
            later.push(span.from(span.offset_bytes.max(limit)));
            if span.offset_bytes < limit {
                break;
            }
        }
        later.reverse();
        let (mut now, mut copies_later) = (Vec::new(), Vec::new());
        for (span, to) in std::mem::take(&mut self.copies) {
            if !is_in_last(&span) {
                now.push((span, to));
            } else if span.offset_bytes >= limit {
                copies_later.push((span, to));
            } else {
                now.push((span.before(limit), to));
                let at = to.at + (limit - span.offset_bytes) as usize;
                copies_later.push((span.from(limit), Place { at, ..to }));
            }
        }
        self.copies = now;
        self.read_all()?;
        (self.spans, self.copies) = (later, copies_later);
        Ok(())
    }

    fn read_all(&mut self) -> Result<()> {
        // For each destination: the part that is not yet assigned to a read, and its offset.
        let mut rests: Vec<(usize, &mut [u8])> = self.outs.iter_mut().map(|out| (0, &mut **out)).collect();
        let mut wanted = Vec::with_capacity(self.spans.len());
        for span in self.spans.drain(..) {
            let out = rests.get_mut(span.place.out).and_then(|(start, rest)| {
                let (_, from) =
                    std::mem::take(rest).split_at_mut_checked(span.place.at.checked_sub(*start)?)?;
                let (out, after) = from.split_at_mut_checked(span.len_bytes)?;
                (*start, *rest) = (span.place.at + span.len_bytes, after);
                Some(out)
            });
            let out = out.ok_or_else(|| Error::invalid("a destination is shorter than its region"))?;
            wanted.push((span.checked, 0..0, Part { offset_bytes: span.offset_bytes, out, leaf: span.leaf }));
        }
        fill(wanted, self.how, self.monitor, self.named)?;
        for (span, to) in std::mem::take(&mut self.copies) {
            self.copy(span.place, to, span.len_bytes)?;
        }
        Ok(())
    }

    fn copy(&mut self, from: Place, to: Place, len_bytes: usize) -> Result<()> {
        let outs = self.outs.get_disjoint_mut([from.out, to.out]).ok();
        let copied = outs.and_then(|[source, target]| {
            let source = source.get(from.at..from.at.checked_add(len_bytes)?)?;
            target.get_mut(to.at..to.at.checked_add(len_bytes)?)?.copy_from_slice(source);
            Some(())
        });
        copied.ok_or_else(|| Error::invalid("a destination is shorter than its region"))?;
        self.monitor.map_or(Ok(()), |monitor| monitor.done(crate::monitor::Stage::Read, len_bytes as u64))
    }
}
