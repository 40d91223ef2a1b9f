//! Repairs a checkpoint with its parity. If a copy of the checkpoint has an intact block, the
//! repair takes the block from the copy.

use std::collections::BTreeSet;
use std::ops::Range;

use super::damage::{Damage, Parity};
use super::heal::{Damaged, End, Source};
use super::markers::is_marker;
use super::restored::RestoredBlocks;
use super::{Repair, RepairReport, reads_back_otherwise};
use crate::engine::parity::{self, Run, RunFile};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::parity::{Geometry, ParityPlace, ParityRatio};

/// The note if files were sealed or signed after the parity was made.
pub(super) const CHANGED_SINCE: &str = "files were changed and sealed or signed after the parity was made: \
    they stay, and the new parity covers them";

/// Heals the files of the checkpoint, the markers in buckets last. A file that matches its seal or
/// signature stays: it was changed on purpose after the parity was made.
/// After an error, files that were already written are complete, and all others are unchanged.
pub(super) fn heal(repair: &Repair<'_>, parity: &Parity, report: &mut RepairReport) -> Result<()> {
    let (folder, document) = (&parity.at.place.folder, &parity.document);
    let (options, geometry) = (repair.options, document.geometry());
    let run = Run::new(folder, folder.store(), document);
    let damage = Damage::find(parity, &run, &options.monitor)?;
    report.bytes = geometry.len_bytes;
    let other = options.from.as_ref().map(|from| replica(from, parity)).transpose()?;
    report.is_parity_damaged = !damage.parity.is_empty() || !parity.is_index_whole;
    let mut blocks = RestoredBlocks::of(parity, &run, other.as_ref(), &damage)?;
    let mut left: BTreeSet<u64> = blocks.lost.clone();
    let mut are_changed_since = false;
    let (markers, others): (Vec<_>, Vec<_>) =
        run.files().iter().enumerate().partition(|(_, file)| is_marker(folder, &file.name));
    for (number, file) in others.into_iter().chain(markers) {
        options.monitor.check()?;
        let bad: Vec<u64> = damage.data.range(geometry.blocks_of(file.range.clone())).copied().collect();
        let is_misfit = damage.misfits.contains(&number);
        if bad.is_empty() && !is_misfit {
            continue;
        }
        if repair.proof.holds(&folder.join(&file.name), &**run.store(), &file.name)? {
            are_changed_since |= !bad.is_empty();
            left.extend(bad);
            continue;
        }
        let part = |block: &u64| {
            let range = geometry.range(*block);
            let within = range.start.max(file.range.start)..range.end.min(file.range.end);
            let from = (!blocks.lost.contains(block)).then_some(*block);
            (within.start - file.range.start, (within.end - file.range.start, from))
        };
        let ranges = bad.iter().map(part).collect();
        let (name, len_bytes) = (&*file.name, file.range.end - file.range.start);
        let source = FromParity { run: &run, file, geometry, blocks: &mut blocks };
        if (Damaged { folder, name, len_bytes, is_misfit, ranges, source }).heal(repair, report)? == End::Left
        {
            left.extend(bad);
        }
    }
    if are_changed_since && report.lost.is_empty() {
        report.is_parity_damaged = true;
        report.notes.push(CHANGED_SINCE.to_owned());
    }
    if options.check {
        return Ok(());
    }
    if !report.healed.is_empty() {
        prove(parity, &damage, left.len())?;
    }
    if report.is_parity_damaged && report.lost.is_empty() {
        remake(repair, parity)?;
    }
    Ok(())
}

/// Makes the parity again, from the files as they are now.
pub(super) fn remake(repair: &Repair<'_>, parity: &Parity) -> Result<()> {
    let Some(lock) = repair.lock else { return Ok(()) };
    let document = &parity.document;
    let ratio: ParityRatio = document.ratio.parse().unwrap_or_default();
    parity::put(repair.at, &document.layout, ratio, &Monitor::new(), lock).map(drop)
}

fn replica(from: &Location, parity: &Parity) -> Result<Run> {
    let theirs = ParityPlace::of(from).place;
    if theirs.covers_folder != parity.at.place.covers_folder {
        return Err(Error::invalid("one checkpoint is a folder, the replica is single files").in_file(from));
    }
    let renamed = |name: &String| match name.strip_prefix(&parity.at.place.stem) {
        Some(rest) if !theirs.covers_folder => format!("{}{rest}", theirs.stem),
        _ => name.clone(),
    };
    let folder = &theirs.folder;
    Ok(Run::of(folder, folder.store(), parity.document.names.iter().map(renamed), &parity.document.len_bytes))
}

/// Reads the written files again. Returns an error if a block is damaged that was not already lost.
fn prove(parity: &Parity, before: &Damage, left: usize) -> Result<()> {
    let folder = &parity.at.place.folder;
    let run = Run::new(folder, folder.store(), &parity.document);
    let after = Damage::of_data(parity, &run, &Monitor::new())?;
    if after.len() <= left && after.is_subset(&before.data) {
        return Ok(());
    }
    Err(reads_back_otherwise(folder).expected(format_args!("{left} damaged blocks"), after.len()))
}

/// The bytes of a damaged file of a run, and its restored blocks.
struct FromParity<'p, 'r> {
    run: &'r Run,
    file: &'r RunFile,
    geometry: Geometry,
    blocks: &'p mut RestoredBlocks<'r>,
}

impl Source for FromParity<'_, '_> {
    /// The number of the block in the run.
    type Origin = u64;

    fn present(&self, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
        self.run.read_if_there(self.file.range.start + offset_bytes, out)
    }

    fn restored(&mut self, block: u64, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
        let start = (self.file.range.start + offset_bytes - self.geometry.range(block).start) as usize;
        let bytes = self.blocks.get(block)?.and_then(|bytes| bytes.get(start..start + out.len()));
        bytes.map_or(Ok(false), |bytes| {
            out.copy_from_slice(bytes);
            Ok(true)
        })
    }

    fn lost(&self, range: Range<u64>) -> Error {
        // If files share a block, its checksum does not say which of the files is damaged.
        let is_within_block = |at: u64| {
            let at = self.file.range.start + at;
            !at.is_multiple_of(self.geometry.block_len_bytes) && at != self.geometry.len_bytes
        };
        let are = if is_within_block(range.start) || is_within_block(range.end) { "may be" } else { "are" };
        let len_bytes = range.end - range.start;
        Error::corrupt(format!("{len_bytes} bytes {are} lost: more is damaged than the parity can heal"))
            .help("pass `--from` to take data from a copy")
    }
}
