//! Repairs a checkpoint with its parity. If a copy of the checkpoint has an intact block, the
//! repair takes the block from the copy.

use std::collections::BTreeSet;

use super::guard::{Guard, replaced};
use super::heal::{Heal, Healed};
use super::index::Parity;
use super::proof::Proof;
use super::restored::RestoredBlocks;
use super::scan::Damage;
use super::{RepairOptions, RepairReport};
use crate::engine::parity::{self, Run};
use crate::engine::standing::Standing;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::parity::{ParityPlace, ParityRatio};

/// The note if files were sealed or signed after the parity was made.
pub(super) const CHANGED_SINCE: &str = "files were changed and sealed or signed after the parity was made: \
    they stay, and the new parity covers them";

pub(super) fn heal(
    at: &Location,
    parity: &Parity,
    options: &RepairOptions,
    guard: &Guard<'_>,
    proof: &Proof,
    report: &mut RepairReport,
) -> Result<()> {
    let (place, document) = (&parity.at.place, &parity.document);
    let run = Run::new(&place.folder, place.folder.store(), document);
    let guard = guard.over(&place.folder, document.names.iter().cloned())?;
    let damage = Damage::find(parity, &run, &options.monitor)?;
    report.bytes = document.geometry().len_bytes;
    let other = options.from.as_ref().map(|from| replica(from, at, parity)).transpose()?;
    report.is_parity_damaged = !damage.parity.is_empty() || !parity.is_index_whole;
    let restored = RestoredBlocks::of(parity, &run, other.as_ref(), &damage)?;
    let geometry = document.geometry();
    let mut heal = Heal {
        folder: &place.folder,
        run: &run,
        geometry,
        damage: &damage,
        restored,
        guard: &guard,
        proof,
        is_check: options.check,
        monitor: &options.monitor,
    };
    let mut left_blocks = BTreeSet::new();
    if !damage.is_none() {
        Healed { healed: report.healed, lost: report.lost, left_blocks } = heal.all()?;
        if !left_blocks.is_empty() && report.lost.is_empty() {
            report.is_parity_damaged = true;
            report.notes.push(CHANGED_SINCE.to_owned());
        }
    }
    if options.check {
        return Ok(());
    }
    if !report.healed.is_empty() {
        guard.check_folder()?;
        let is_left = heal.restored.lost.union(&left_blocks).count();
        prove(at, parity, &damage, is_left)?;
    }
    if report.is_parity_damaged && report.lost.is_empty() {
        remake(at, parity, &guard)?;
    }
    Ok(())
}

pub(super) fn remake(at: &Location, parity: &Parity, guard: &Guard<'_>) -> Result<()> {
    let document = &parity.document;
    let ratio: ParityRatio = document.ratio.parse().unwrap_or_default();
    guard.check_folder()?;
    parity::put(at, &document.layout, ratio, &Monitor::new(), &Standing::now(at)).map(drop)
}

fn replica(from: &Location, at: &Location, parity: &Parity) -> Result<Run> {
    if from.is_same(at) {
        return Err(Error::invalid("the replica is the checkpoint itself").in_file(from));
    }
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
fn prove(at: &Location, parity: &Parity, before: &Damage, lost: usize) -> Result<()> {
    let folder = &parity.at.place.folder;
    let run = Run::new(folder, folder.store(), &parity.document);
    let after = Damage::of_data(parity, &run, &Monitor::new())?;
    if after.len() <= lost && after.is_subset(&before.data) {
        return Ok(());
    }
    // A save that replaces files removes their parity first, so other parity shows such a save.
    if let Ok(now) = Parity::find(at)
        && now.is_none_or(|now| now.document.block_crc32 != parity.document.block_crc32)
    {
        return Err(replaced(at));
    }
    Err(Error::corrupt("the repaired bytes read back with other values")
        .in_file(&parity.at.place.folder)
        .expected(format_args!("{lost} damaged blocks"), after.len())
        .help(
            "the disk fails, or another program writes to the checkpoint: copy the checkpoint elsewhere \
            and repair the copy",
        ))
}
