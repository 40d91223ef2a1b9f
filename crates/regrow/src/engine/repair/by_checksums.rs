//! Repairs without parity: takes damaged blocks from a replica or another step. Checksums of the
//! checkpoint itself, from its seal or from `regrow.json`, prove each block.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::guard::Guard;
use super::lost_marker::{is_lost_marker, is_marker, not_put_back};
use super::recovered::{of_item, parts_of};
use super::rewrite::rewrite_file;
use super::{HealedFile, RepairOptions, RepairReport, is_damage};
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::formats::{Counterpart, SummedFile, formats};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::reads::{Block, BlockTable};
use crate::seal::{Place, Seal};
use crate::store::{Blob, ReadPath};

/// The note if no checksum shows which bytes are good.
pub(super) const NO_CHECKSUMS: &str = "the damaged checkpoint has no parity, seal or checksums to prove \
    bytes of the other one; if the other one is a copy, copy it again";

/// Repairs the files of the checkpoint at a location with blocks of another checkpoint.
/// After an error, files that were already written are complete, and all others are unchanged.
pub(super) fn heal(
    at: &Location,
    from: &Location,
    options: &RepairOptions,
    guard: &Guard<'_>,
    report: &mut RepairReport,
) -> Result<()> {
    let find = |parts: Vec<Location>| -> Result<Vec<Summed>> {
        let found = parts.iter().map(|part| Summed::find(part, &of_item(from, at, part)));
        found.filter_map(Result::transpose).collect()
    };
    let heal_all = |found: &[Summed], of_markers: bool, report: &mut RepairReport| -> Result<()> {
        // Record the state of all files first: reading all files of the checkpoint may take long.
        let guards = found.iter().map(|summed| guard.over(&summed.folder, summed.names()));
        let guards: Vec<Guard<'_>> = guards.collect::<Result<_>>()?;
        let mut all = found.iter().zip(&guards);
        all.try_for_each(|(summed, guard)| heal_files(summed, of_markers, options, guard, report))
    };
    let whole = find(vec![at.clone()])?;
    heal_all(&whole, false, report)?;
    // The repair of the checkpoint's own files may have restored the records of its items.
    let items = find(parts_of(at)?.into_iter().filter(|part| !part.is_same(at)).collect())?;
    heal_all(&items, false, report)?;
    // Repair the markers last: a marker shows that all other files and items are complete.
    heal_all(&items, true, report)?;
    heal_all(&whole, true, report)?;
    let found: Vec<Summed> = whole.into_iter().chain(items).collect();
    if found.is_empty() {
        report.notes.push(NO_CHECKSUMS.to_owned());
    }
    Ok(())
}

/// Whether all files match a seal or signature. Reads all of them.
pub(super) fn fits(seal: Seal, at: &Location, monitor: &Monitor) -> Result<bool> {
    let summed = Summed::of_seal(seal, at);
    for file in &summed.files {
        if !Healing::look(&summed, file, monitor)?.is_whole() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The `files` that are intact. Only files with their own checksums, from a seal or from the
/// layout, can be recognised as intact.
pub(super) fn whole_ones(
    parts: &[Location],
    files: &BTreeSet<PathBuf>,
    monitor: &Monitor,
) -> Result<BTreeSet<PathBuf>> {
    let mut whole = BTreeSet::new();
    if files.is_empty() {
        return Ok(whole);
    }
    for part in parts {
        let Some(summed) = Summed::find(part, part)? else { continue };
        for file in &summed.files {
            let path = summed.folder.join(&file.name).describe();
            if files.contains(&path) && Healing::look(&summed, file, monitor)?.is_whole() {
                whole.insert(path);
            }
        }
    }
    Ok(whole)
}

/// Repairs either the markers among the files, or all files that are not markers.
fn heal_files(
    summed: &Summed,
    of_markers: bool,
    options: &RepairOptions,
    guard: &Guard<'_>,
    report: &mut RepairReport,
) -> Result<()> {
    let is_wanted = |file: &&SummedFile| is_marker(&summed.folder, &file.name) == of_markers;
    let files: Vec<&SummedFile> = summed.files.iter().filter(is_wanted).collect();
    if files.is_empty() {
        return Ok(());
    }
    let len_bytes = files.iter().map(|file| file.len_bytes).fold(0, u64::saturating_add);
    let monitor = &options.monitor;
    monitor.expect(len_bytes);
    monitor.enter(Stage::Read);
    report.bytes += len_bytes;
    for file in files {
        let healing = Healing::look(summed, file, monitor)?;
        if healing.is_whole() {
            continue;
        }
        if !report.lost.is_empty() && is_lost_marker(&summed.folder, &file.name)? {
            report.lost.push(not_put_back(summed.folder.join(&file.name), None));
            continue;
        }
        report.lost.extend(healing.lost());
        let bytes = healing.restored_bytes();
        if healing.has_holes() || bytes == 0 && !healing.is_misfit {
            continue;
        }
        let target = summed.folder.join(&file.name);
        if !options.check {
            healing.write(guard)?;
            let after = Healing::look(summed, file, &Monitor::new())?;
            if after.damage.len() > healing.lost_count() {
                return Err(Error::corrupt("the repaired bytes read back with other values")
                    .in_file(&target)
                    .help(
                        "the disk fails, or another program writes to the checkpoint: copy the checkpoint \
                     elsewhere and repair the copy",
                    ));
            }
        }
        report.healed.push(HealedFile { path: target.describe(), bytes });
    }
    Ok(())
}

/// The files of a checkpoint with their checksums, and the place of the same files in the other
/// checkpoint.
struct Summed {
    folder: Location,
    files: Vec<SummedFile>,
    theirs: Location,
    /// The beginnings of file names in this checkpoint and in the other checkpoint; `None` for
    /// folders.
    stems: Option<(String, String)>,
    counterpart: Option<Box<dyn Counterpart>>,
}

impl Summed {
    /// Reads the checksums of a seal, or else of the layout; `None` if neither has any.
    fn find(at: &Location, from: &Location) -> Result<Option<Self>> {
        let seal = match Seal::found(at) {
            // A seal that covers a folder around the checkpoint is the seal of that folder.
            Ok(seal) => seal.filter(|seal| seal.place.file.is_same(&Place::of(at).file)),
            Err(error) if is_damage(&error, at) => None,
            Err(error) => return Err(error),
        };
        if let Some(seal) = seal {
            return Ok(Some(Self::of_seal(seal, from)));
        }
        if !at.is_folder() {
            return Ok(None);
        }
        for recovery in formats().filter_map(|format| format.roles().recovery) {
            if let Some(files) = recovery.summed_files(at)? {
                let counterpart = recovery.counterpart(at, from)?;
                let (folder, theirs) = (at.clone(), from.clone());
                return Ok(Some(Self { folder, files, theirs, stems: None, counterpart }));
            }
        }
        Ok(None)
    }

    fn of_seal(seal: Seal, from: &Location) -> Self {
        let Seal { place, files, .. } = seal;
        let theirs = Place::of(from);
        let files = files.into_iter().filter_map(Arc::into_inner);
        let files = files.map(|file| SummedFile {
            name: file.name,
            len_bytes: file.len_bytes,
            tables: vec![file.table],
        });
        let stems = (!place.covers_folder && !theirs.covers_folder).then_some((place.stem, theirs.stem));
        let files = files.collect();
        Self { folder: place.folder, files, theirs: theirs.folder, stems, counterpart: None }
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.files.iter().map(|file| file.name.clone())
    }

    fn open_theirs(&self, name: &str) -> Result<Option<Arc<dyn Blob>>> {
        let name = match &self.stems {
            Some((own, theirs)) => {
                name.strip_prefix(own).map_or_else(|| name.to_owned(), |rest| format!("{theirs}{rest}"))
            }
            None => name.to_owned(),
        };
        opened(&self.theirs, &name)
    }
}

/// Opens a file; `None` unless it exists and is a regular file.
fn opened(folder: &Location, name: &str) -> Result<Option<Arc<dyn Blob>>> {
    match folder.store().open(name.as_bytes()) {
        Err(error) if is_damage(&error, folder) => Ok(None),
        other => other,
    }
}

/// The source of intact bytes for a damaged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The file of this name in the other checkpoint.
    SameFile,
    /// Another file of the other checkpoint.
    Counterpart,
    /// There are no intact bytes. `is_there`: the damaged file has bytes at the offset of the
    /// block.
    Lost { is_there: bool },
}

/// A file that is being repaired.
struct Healing<'s> {
    summed: &'s Summed,
    file: &'s SummedFile,
    own: Option<Arc<dyn Blob>>,
    theirs: Option<Arc<dyn Blob>>,
    /// Whether the file is missing, or has another length.
    is_misfit: bool,
    /// The damaged blocks by their start, each with its end and the source of intact bytes.
    damage: BTreeMap<u64, (u64, Origin)>,
}

impl<'s> Healing<'s> {
    /// Reads the whole file, and finds its damaged blocks.
    fn look(summed: &'s Summed, file: &'s SummedFile, monitor: &Monitor) -> Result<Self> {
        let own = opened(&summed.folder, &file.name)?;
        let theirs = summed.open_theirs(&file.name)?;
        let is_misfit = own.as_ref().is_none_or(|own| own.len_bytes() != file.len_bytes);
        let mut healing = Self { summed, file, own, theirs, is_misfit, damage: BTreeMap::new() };
        for table in &file.tables {
            let range = table.range();
            for block in table.blocks(range.start, range.end) {
                if let Some(origin) = healing.origin(table, block)? {
                    healing.damage.insert(block.start, (block.end, origin));
                }
                monitor.done(Stage::Read, block.end - block.start)?;
            }
        }
        Ok(healing)
    }

    /// The source of intact bytes for a block; `None` if the block is intact.
    fn origin(&self, table: &BlockTable, block: Block) -> Result<Option<Origin>> {
        let mut bytes = work_space(block.end - block.start)?;
        let is_there = self.read_own(block.start, &mut bytes)?;
        if is_there && table.is_good(block, &bytes) {
            return Ok(None);
        }
        for origin in [Origin::SameFile, Origin::Counterpart] {
            if self.read_from(origin, block.start, &mut bytes)? && table.is_good(block, &bytes) {
                return Ok(Some(origin));
            }
        }
        Ok(Some(Origin::Lost { is_there }))
    }

    fn read_own(&self, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
        read(self.own.as_deref(), &self.summed.folder, offset_bytes, out)
    }

    fn read_from(&self, origin: Origin, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
        match origin {
            Origin::SameFile => read(self.theirs.as_deref(), &self.summed.theirs, offset_bytes, out),
            Origin::Counterpart => match &self.summed.counterpart {
                Some(counterpart) => counterpart.read(&self.file.name, offset_bytes, out),
                None => Ok(false),
            },
            Origin::Lost { .. } => self.read_own(offset_bytes, out),
        }
    }

    fn is_whole(&self) -> bool {
        self.damage.is_empty() && !self.is_misfit
    }

    /// Whether some bytes have no source at all: even the damaged file does not have them.
    fn has_holes(&self) -> bool {
        let is_hole = |origin: Origin| match origin {
            Origin::Lost { is_there } => self.is_misfit || !is_there,
            _ => false,
        };
        self.damage.values().any(|(_, origin)| is_hole(*origin))
    }

    fn lost_count(&self) -> usize {
        self.damage.values().filter(|(_, origin)| matches!(origin, Origin::Lost { .. })).count()
    }

    fn restored_bytes(&self) -> u64 {
        let restored = self.damage.iter().filter(|(_, (_, origin))| !matches!(origin, Origin::Lost { .. }));
        restored.map(|(start, (end, _))| end - start).sum()
    }

    /// The lost bytes as errors, one error for each run of blocks.
    fn lost(&self) -> Vec<Error> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (&start, &(end, origin)) in &self.damage {
            match (origin, runs.last_mut()) {
                (Origin::Lost { .. }, Some(last)) if last.1 == start => last.1 = end,
                (Origin::Lost { .. }, _) => runs.push((start, end)),
                _ => {}
            }
        }
        let error = |(start, end): (u64, u64)| {
            Error::corrupt(format!("{} bytes are lost: the other checkpoint differs there", end - start))
                .in_file(self.summed.folder.join(&self.file.name))
                .at_byte(start)
                .help("try another copy (`--from`)")
        };
        runs.into_iter().map(error).collect()
    }

    fn write(&self, guard: &Guard<'_>) -> Result<()> {
        let (folder, file) = (&self.summed.folder, self.file);
        rewrite_file(folder, &file.name, file.len_bytes, guard, &mut |offset_bytes, out| {
            self.fill(offset_bytes, out)
        })
    }

    fn fill(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let (mut at, mut left) = (offset_bytes, out);
        while !left.is_empty() {
            // The damaged block that contains this byte; otherwise all bytes up to the next damaged
            // block.
            let holding = self.damage.range(..=at).next_back().filter(|(_, (end, _))| at < *end);
            let next = self.damage.range(at..).next().map(|(start, _)| *start);
            let (origin, end) = match holding {
                Some((_, (end, origin))) => (*origin, *end),
                None => (Origin::Lost { is_there: true }, next.unwrap_or(u64::MAX)),
            };
            let len = (end - at).min(left.len() as u64);
            let (now, later) = std::mem::take(&mut left).split_at_mut(len as usize);
            if !self.read_from(origin, at, now)? {
                return Err(Error::corrupt("a file was removed during the repair")
                    .in_file(self.summed.folder.join(&self.file.name))
                    .at_byte(at)
                    .help("another program writes to one of the two checkpoints: try again when it ends"));
            }
            (at, left) = (at + len, later);
        }
        Ok(())
    }
}

fn read(blob: Option<&dyn Blob>, folder: &Location, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
    let Some(blob) = blob else { return Ok(false) };
    match blob.read(offset_bytes, out, ReadPath::Cached) {
        Ok(()) => Ok(true),
        Err(error) if is_damage(&error, folder) => Ok(false),
        Err(error) => Err(error),
    }
}
