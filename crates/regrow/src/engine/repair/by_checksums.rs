//! Repairs without parity: takes damaged blocks from a replica or another step. Checksums of the
//! checkpoint itself, from its seal or from its layout, prove each block.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::heal::{Damaged, End, Ranges, Source};
use super::markers::is_marker;
use super::recovered::{of_item, parts_of};
use super::{Repair, RepairReport, is_damage, reads_back_otherwise};
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

/// Heals the files of a checkpoint and of its items with blocks of another checkpoint, except for
/// markers in buckets. Returns the files with their checksums.
/// After an error, files that were already written are complete, and all others are unchanged.
pub(super) fn heal(repair: &Repair<'_>, copy: &Location, report: &mut RepairReport) -> Result<Vec<Summed>> {
    report.bytes = 0;
    let mut all = Vec::new();
    let heal_part = |part: &Location, all: &mut Vec<Summed>, report: &mut RepairReport| {
        if let Some(summed) = Summed::find(part, &of_item(copy, repair.at, part))? {
            heal_files(&summed, false, repair, report)?;
            all.push(summed);
        }
        Ok::<(), Error>(())
    };
    heal_part(repair.at, &mut all, report)?;
    // The files of the checkpoint itself may be the records of its items.
    for item in parts_of(repair.at)?.into_iter().skip(1) {
        heal_part(&item, &mut all, report)?;
    }
    Ok(all)
}

/// Heals the markers in buckets, those of the items first.
pub(super) fn heal_markers(all: &[Summed], repair: &Repair<'_>, report: &mut RepairReport) -> Result<()> {
    all.iter().rev().try_for_each(|summed| heal_files(summed, true, repair, report))
}

/// Heals either the markers among the files, or all files that are not markers.
fn heal_files(
    summed: &Summed,
    of_markers: bool,
    repair: &Repair<'_>,
    report: &mut RepairReport,
) -> Result<()> {
    let is_wanted = |file: &&SummedFile| is_marker(&summed.folder, &file.name) == of_markers;
    let files: Vec<&SummedFile> = summed.files.iter().filter(is_wanted).collect();
    if files.is_empty() {
        return Ok(());
    }
    let len_bytes = files.iter().map(|file| file.len_bytes).fold(0, u64::saturating_add);
    let monitor = &repair.options.monitor;
    monitor.expect(len_bytes);
    monitor.enter(Stage::Read);
    report.bytes += len_bytes;
    for file in files {
        let mut damaged = summed.look(file, monitor)?;
        if !damaged.is_whole()
            && damaged.heal(repair, report)? == End::Healed
            && !repair.options.check
            && summed.look(file, &Monitor::new())?.ranges.len() > damaged.lost_count()
        {
            return Err(reads_back_otherwise(&summed.folder.join(&file.name)));
        }
    }
    Ok(())
}

/// Whether all files match a seal or signature. Reads all of them.
pub(super) fn fits(seal: Seal, at: &Location, monitor: &Monitor) -> Result<bool> {
    let summed = Summed::of_seal(seal, at);
    for file in &summed.files {
        if !summed.is_whole(file)? {
            return Ok(false);
        }
        monitor.done(Stage::Read, file.len_bytes)?;
    }
    Ok(true)
}

/// The `files` that are intact. Only files with their own checksums, from a seal or from the
/// layout, can be recognised as intact.
pub(super) fn whole_ones(parts: &[Location], files: &BTreeSet<PathBuf>) -> Result<BTreeSet<PathBuf>> {
    let mut whole = BTreeSet::new();
    for part in parts.iter().filter(|_| !files.is_empty()) {
        let Some(summed) = Summed::find(part, part)? else { continue };
        for file in &summed.files {
            let path = summed.folder.join(&file.name).describe();
            if files.contains(&path) && summed.is_whole(file)? {
                whole.insert(path);
            }
        }
    }
    Ok(whole)
}

/// The files of a checkpoint with their checksums, and the place of the same files in the other
/// checkpoint.
pub(super) struct Summed {
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

    fn is_whole(&self, file: &SummedFile) -> Result<bool> {
        let Some(blob) = opened(&self.folder, &file.name)? else { return Ok(false) };
        match file.is_whole(&*blob) {
            Err(error) if is_damage(&error, &self.folder) => Ok(false),
            is_whole => is_whole,
        }
    }

    fn open_theirs(&self, name: &str) -> Result<Option<Arc<dyn Blob>>> {
        let rest = self.stems.as_ref().and_then(|(own, theirs)| Some((theirs, name.strip_prefix(own)?)));
        match rest {
            Some((theirs, rest)) => opened(&self.theirs, &format!("{theirs}{rest}")),
            None => opened(&self.theirs, name),
        }
    }

    /// Reads a whole file, and finds its damaged blocks.
    fn look<'s>(&'s self, file: &'s SummedFile, monitor: &Monitor) -> Result<Damaged<'s, FromCopy<'s>>> {
        let own = opened(&self.folder, &file.name)?;
        let is_misfit = own.as_ref().is_none_or(|own| own.len_bytes() != file.len_bytes);
        let mut source = FromCopy { summed: self, file, own, theirs: self.open_theirs(&file.name)? };
        let mut ranges = Ranges::new();
        for table in &file.tables {
            let range = table.range();
            for block in table.blocks(range.start, range.end) {
                if let Some(origin) = source.damage(table, block)? {
                    ranges.insert(block.start, (block.end, origin));
                }
                monitor.done(Stage::Read, block.end - block.start)?;
            }
        }
        let (folder, name, len_bytes) = (&self.folder, &*file.name, file.len_bytes);
        Ok(Damaged { folder, name, len_bytes, is_misfit, ranges, source })
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
}

/// The bytes of a damaged file, and of its copy.
struct FromCopy<'s> {
    summed: &'s Summed,
    file: &'s SummedFile,
    own: Option<Arc<dyn Blob>>,
    theirs: Option<Arc<dyn Blob>>,
}

impl FromCopy<'_> {
    /// `None` if a block is intact; otherwise the source of intact bytes, if there is one.
    fn damage(&mut self, table: &BlockTable, block: Block) -> Result<Option<Option<Origin>>> {
        let mut bytes = work_space(block.end - block.start)?;
        if self.present(block.start, &mut bytes)? && table.is_good(block, &bytes) {
            return Ok(None);
        }
        for origin in [Origin::SameFile, Origin::Counterpart] {
            if self.restored(origin, block.start, &mut bytes)? && table.is_good(block, &bytes) {
                return Ok(Some(Some(origin)));
            }
        }
        Ok(Some(None))
    }
}

impl Source for FromCopy<'_> {
    type Origin = Origin;

    fn present(&self, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
        read(self.own.as_deref(), &self.summed.folder, offset_bytes, out)
    }

    fn restored(&mut self, from: Origin, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
        match (from, &self.summed.counterpart) {
            (Origin::SameFile, _) => read(self.theirs.as_deref(), &self.summed.theirs, offset_bytes, out),
            (Origin::Counterpart, Some(counterpart)) => counterpart.read(&self.file.name, offset_bytes, out),
            (Origin::Counterpart, None) => Ok(false),
        }
    }

    fn lost(&self, range: Range<u64>) -> Error {
        let len_bytes = range.end - range.start;
        Error::corrupt(format!("{len_bytes} bytes are lost: the other checkpoint differs there"))
            .help("try another copy (`--from`)")
    }
}

/// Reads bytes of a file. Returns false if there is no file, or if the bytes cannot be read.
pub(super) fn read(
    blob: Option<&dyn Blob>,
    folder: &Location,
    offset_bytes: u64,
    out: &mut [u8],
) -> Result<bool> {
    let Some(blob) = blob else { return Ok(false) };
    match blob.read(offset_bytes, out, ReadPath::Cached) {
        Ok(()) => Ok(true),
        Err(error) if is_damage(&error, folder) => Ok(false),
        Err(error) => Err(error),
    }
}
