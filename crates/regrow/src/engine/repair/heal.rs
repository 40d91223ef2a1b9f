//! Heals one damaged file: writes its intact and its restored blocks to a new file, and renames the
//! new file over the old one.

use std::collections::BTreeMap;
use std::ops::Range;

use super::markers::{is_lost_marker, not_put_back};
use super::proof::refused;
use super::{HealedFile, Repair, RepairReport};
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::storage::PublishOptions;

/// The bytes from which a damaged file is healed.
pub(super) trait Source {
    /// Names the source of one intact block.
    type Origin: Copy;

    /// Fills `out` from the file as it is now. Returns false if the file lacks these bytes.
    fn present(&self, offset_bytes: u64, out: &mut [u8]) -> Result<bool>;

    /// Fills `out` with intact bytes of one damaged block. Returns false if the source is gone.
    fn restored(&mut self, from: Self::Origin, offset_bytes: u64, out: &mut [u8]) -> Result<bool>;

    /// The error for lost bytes of the file.
    fn lost(&self, range: Range<u64>) -> Error;
}

/// The damaged ranges of a file by their start: the end, and the source of intact bytes; `None` if
/// the bytes are lost.
pub(super) type Ranges<Origin> = BTreeMap<u64, (u64, Option<Origin>)>;

/// A file with its damage.
pub(super) struct Damaged<'d, S: Source> {
    pub folder: &'d Location,
    pub name: &'d str,
    pub len_bytes: u64,
    /// Whether the file is missing, or has another length.
    pub is_misfit: bool,
    pub ranges: Ranges<S::Origin>,
    pub source: S,
}

/// The end of one attempt to heal a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The file is rewritten; in a check, it would be.
    Healed,
    /// The file has all bytes that can be restored.
    Same,
    /// The damage stays.
    Left,
}

impl<S: Source> Damaged<'_, S> {
    pub fn is_whole(&self) -> bool {
        self.ranges.is_empty() && !self.is_misfit
    }

    pub fn lost_count(&self) -> usize {
        self.ranges.values().filter(|(_, from)| from.is_none()).count()
    }

    /// Heals the file. Blocks that cannot be restored keep their bytes. A missing or truncated file
    /// with a lost block stays unchanged. A lost marker is written only if nothing is lost.
    pub fn heal(&mut self, repair: &Repair<'_>, report: &mut RepairReport) -> Result<End> {
        let at = self.folder.join(self.name);
        if !report.lost.is_empty() && is_lost_marker(self.folder, self.name)? {
            report.lost.push(not_put_back(at, None));
            return Ok(End::Left);
        }
        report.lost.extend(
            self.lost_runs().map(|range| self.source.lost(range.clone()).in_file(&at).at_byte(range.start)),
        );
        if self.has_holes()? {
            return Ok(End::Left);
        }
        let bytes = self.changed_bytes()?;
        if !self.is_misfit && bytes == 0 {
            return Ok(End::Same);
        }
        if !self.would_fit(repair, &at)? {
            report.lost.push(refused(&at));
            return Ok(End::Left);
        }
        if !repair.options.check {
            self.write(repair, &at)?;
        }
        report.healed.push(HealedFile { path: at.describe(), bytes });
        Ok(End::Healed)
    }

    /// The lost bytes, as runs of neighbouring ranges.
    fn lost_runs(&self) -> impl Iterator<Item = Range<u64>> + use<S> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (&start, &(end, from)) in &self.ranges {
            match (from, runs.last_mut()) {
                (None, Some(last)) if last.end == start => last.end = end,
                (None, _) => runs.push(start..end),
                _ => {}
            }
        }
        runs.into_iter()
    }

    /// Whether some bytes have no source at all: even the damaged file does not have them.
    fn has_holes(&self) -> Result<bool> {
        for (&start, &(end, from)) in &self.ranges {
            if from.is_none()
                && (self.is_misfit || !self.source.present(start, &mut work_space(end - start)?)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The number of restored bytes that differ from the current file.
    fn changed_bytes(&mut self) -> Result<u64> {
        let mut changed = 0;
        for (&start, &(end, from)) in &self.ranges {
            let Some(from) = from else { continue };
            let (mut present, mut restored) = (work_space(end - start)?, work_space(end - start)?);
            let is_there = self.source.present(start, &mut present)?
                && self.source.restored(from, start, &mut restored)?;
            let differing = present.iter().zip(&restored).filter(|(from, to)| from != to).count();
            changed += if is_there { differing as u64 } else { end - start };
        }
        Ok(changed)
    }

    /// Whether the healed file would match its seal or signature; true if there is neither. Blocks
    /// with lost bytes do not count.
    fn would_fit(&mut self, repair: &Repair<'_>, at: &Location) -> Result<bool> {
        let Self { ranges, source, len_bytes, .. } = self;
        let wanted = |part: Range<u64>| {
            let before = ranges.range(..part.end).rev().take_while(|(_, (end, _))| *end > part.start);
            let (lost, restored): (Vec<_>, Vec<_>) = before.partition(|(_, (_, from))| from.is_none());
            lost.is_empty() && !restored.is_empty()
        };
        repair
            .proof
            .fits(at, *len_bytes, &wanted, &mut |offset_bytes, out| fill(ranges, source, offset_bytes, out))
    }

    /// Writes the new file. After an error the old file is unchanged.
    fn write(&mut self, repair: &Repair<'_>, at: &Location) -> Result<()> {
        let Self { ranges, source, len_bytes, .. } = self;
        let monitor = Monitor::new();
        let publication = at.publish_file(PublishOptions::of_overwrite(&monitor))?;
        let mut writer = publication.single_writer(*len_bytes, 0)?;
        writer.write_with(*len_bytes, &mut |offset_bytes, out: &mut [u8]| match fill(
            ranges,
            source,
            offset_bytes,
            out,
        )? {
            true => Ok(()),
            false => Err(Error::corrupt("a file was removed during the repair")
                .in_file(at)
                .at_byte(offset_bytes)
                .help("another program writes to the checkpoint: try again when it ends")),
        })?;
        writer.finish()?;
        publication.commit_under(repair.lock)
    }
}

/// Fills `out` with bytes of the healed file from `offset_bytes` on. Returns false if a source is
/// gone.
fn fill<S: Source>(
    ranges: &Ranges<S::Origin>,
    source: &mut S,
    offset_bytes: u64,
    out: &mut [u8],
) -> Result<bool> {
    let (mut at, mut left) = (offset_bytes, out);
    while !left.is_empty() {
        // The damaged range that contains this byte; otherwise all bytes up to the next one.
        let around = ranges.range(..=at).next_back().map(|(_, range)| *range).filter(|(end, _)| at < *end);
        let next = ranges.range(at..).next().map_or(u64::MAX, |(start, _)| *start);
        let (end, from) = around.unwrap_or((next, None));
        let (now, later) = left.split_at_mut((end - at).min(left.len() as u64) as usize);
        let is_read = match from {
            Some(from) => source.restored(from, at, now)?,
            None => source.present(at, now)?,
        };
        if !is_read {
            return Ok(false);
        }
        (at, left) = (at + now.len() as u64, later);
    }
    Ok(true)
}
