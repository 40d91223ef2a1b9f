//! The verdict of a repair. A checkpoint is whole only if each of its files is proved. It is not
//! enough that the repair found no damage.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::by_checksums::{fits, whole_ones};
use super::damage::Parity;
use super::proof::Proof;
use super::recovered::parts_of;
use super::{ProofBy, Repair, RepairReport, Verdict};
use crate::engine::digests::Digest;
use crate::engine::seal::files_of;
use crate::engine::{OpenOptions, open_with};
use crate::error::Result;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::seal::{Place, Seal};
use crate::signature::BLOCK_LEN_BYTES;
use crate::store::Store;

pub(super) fn judge(repair: &Repair<'_>, parity: Option<&Parity>, report: &RepairReport) -> Result<Verdict> {
    let Repair { at, options, .. } = *repair;
    let would_write = !report.healed.is_empty() || !report.recovered.is_empty() || report.is_parity_damaged;
    if !report.is_sound() || options.check && would_write {
        return Ok(Verdict::Damaged);
    }
    let Some((store, names)) = files(at)? else { return Ok(Verdict::NotKnown) };
    let proofs = [
        (ProofBy::Seal, is_sealed(at, &names)?),
        (ProofBy::Parity, parity.is_some_and(|parity| is_under_parity(parity, &names, report))),
    ];
    if let Some((by, _)) = proofs.into_iter().find(|(_, is_proved)| *is_proved) {
        return Ok(Verdict::Whole(by));
    }
    let is_guess = report.recovered.iter().any(|file| file.is_guess);
    if !is_guess && has_checksums(at, &*store, &names)? {
        return Ok(Verdict::Whole(ProofBy::Checksums));
    }
    if let Some(from) = &options.from
        && is_same(at, (&*store, names), from)?
    {
        return Ok(Verdict::Whole(ProofBy::Replica));
    }
    Ok(Verdict::NotKnown)
}

type Files = (Arc<dyn Store>, Vec<String>);

/// The files of a checkpoint; `None` if it is part of another checkpoint, or cannot be opened.
fn files(at: &Location) -> Result<Option<Files>> {
    let Ok(opened) = open_with(at, &OpenOptions { ignore_seal: true, ..OpenOptions::default() }) else {
        return Ok(None);
    };
    match files_of(at, &Place::of(at), &opened.description().layout) {
        Ok(found) => Ok(Some(found)),
        Err(error) if super::is_out_of_reach(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether a seal or a signature covers all these files, and each file matches it.
fn is_sealed(at: &Location, names: &[String]) -> Result<bool> {
    for seal in Proof::of(at)?.into_seals() {
        let covers = |seal: &Seal| names.iter().all(|name| seal.files.iter().any(|file| file.name == *name));
        if covers(&seal) && fits(seal, at, &Monitor::new())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the parity proves every file. Parity that this repair has written proves nothing.
fn is_under_parity(parity: &Parity, names: &[String], report: &RepairReport) -> bool {
    let was_remade = !report.recovered.is_empty()
        || report.notes.iter().any(|note| note == super::by_parity::CHANGED_SINCE);
    !was_remade && names.iter().all(|name| parity.document.names.contains(name))
}

/// Whether the layout has a checksum of each file, and each file matches.
fn has_checksums(at: &Location, store: &dyn Store, names: &[String]) -> Result<bool> {
    let paths: BTreeSet<_> = names.iter().map(|name| store.describe(name.as_bytes())).collect();
    let whole = whole_ones(&parts_of(at)?, &paths)?;
    Ok(!paths.is_empty() && whole.len() == paths.len())
}

/// Whether the files of another checkpoint have the same names and bytes.
fn is_same(at: &Location, (store, names): (&dyn Store, Vec<String>), from: &Location) -> Result<bool> {
    let Some((theirs, their_names)) = files(from)? else { return Ok(false) };
    if names.is_empty() || names.len() != their_names.len() {
        return Ok(false);
    }
    let digest = Digest { block_len_bytes: BLOCK_LEN_BYTES, of_block: blake3::hash, doing: "compared" };
    let digests = |at: &Location, store: &dyn Store, names: Vec<String>| -> Result<Vec<_>> {
        let stem = Place::of(at).stem;
        let files = digest.files(store, names, &Monitor::new())?.into_iter().map(|file| {
            let name = file.name.strip_prefix(&stem).unwrap_or(&file.name).to_owned();
            (name, file.len_bytes, file.blocks)
        });
        let mut files: Vec<_> = files.collect();
        files.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        Ok(files)
    };
    Ok(digests(at, store, names)? == digests(from, &*theirs, their_names)?)
}
