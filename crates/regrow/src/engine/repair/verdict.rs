//! The verdict of a repair. A checkpoint is whole only if each of its files is proved. It is not
//! enough that the repair found no damage.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::by_checksums::{fits, whole_ones};
use super::index::Parity;
use super::proof::Proof;
use super::recovered::parts_of;
use super::{RepairOptions, RepairReport};
use crate::bytes::limits::work_space;
use crate::engine::seal::files_of;
use crate::engine::{OpenOptions, open_with};
use crate::error::Result;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::seal::{Place, Seal};
use crate::store::{ReadPath, Store};

const PIECE_LEN_BYTES: u64 = 1 << 20;

/// Whether a checkpoint has the content that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Each file has the content that was written. This is the proof.
    Whole(ProofBy),
    /// No damage was found, but no checksum proves all files.
    NotKnown,
    /// Something is lost or damaged. In a check: or a repair would write something.
    Damaged,
}

/// The proof that files have the content that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofBy {
    /// A seal or a signature. The key of the signature is not checked.
    Seal,
    /// The checksums in the parity file of the checkpoint.
    Parity,
    /// The checksums of every file in the records of the layout.
    Checksums,
    /// The other checkpoint, which has the same bytes.
    Replica,
}

impl Verdict {
    /// The verdict as text: `whole`, `not known`, `damaged`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole(_) => "whole",
            Self::NotKnown => "not known",
            Self::Damaged => "damaged",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(by) => write!(f, "whole, by {}", by.name()),
            Self::NotKnown => f.write_str("no damage found, but nothing proves every file"),
            Self::Damaged => f.write_str("damaged"),
        }
    }
}

impl ProofBy {
    /// The proof as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seal => "its seal or signature",
            Self::Parity => "its parity",
            Self::Checksums => "its checksums",
            Self::Replica => "the identical other checkpoint",
        }
    }
}

pub(super) fn judge(
    at: &Location,
    parity: Option<&Parity>,
    options: &RepairOptions,
    report: &RepairReport,
) -> Result<Verdict> {
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
        && is_same(at, (&*store, &names), from)?
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
    let whole = whole_ones(&parts_of(at)?, &paths, &Monitor::new())?;
    Ok(!paths.is_empty() && whole.len() == paths.len())
}

fn is_same(at: &Location, (store, names): (&dyn Store, &[String]), from: &Location) -> Result<bool> {
    let Some((theirs, their_names)) = files(from)? else { return Ok(false) };
    let (own_stem, their_stem) = (Place::of(at).stem, Place::of(from).stem);
    let rest = |name: &String, stem: &str| name.strip_prefix(stem).unwrap_or(name).to_owned();
    let mut own: Vec<_> = names.iter().map(|name| (rest(name, &own_stem), name)).collect();
    let mut other: Vec<_> = their_names.iter().map(|name| (rest(name, &their_stem), name)).collect();
    own.sort_unstable();
    other.sort_unstable();
    if own.len() != other.len() || own.is_empty() {
        return Ok(false);
    }
    for ((one, name), (another, their_name)) in own.iter().zip(&other) {
        if one != another || !is_same_file((store, name), (&*theirs, their_name))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_same_file(one: (&dyn Store, &str), other: (&dyn Store, &str)) -> Result<bool> {
    let open = |(store, name): (&dyn Store, &str)| store.open(name.as_bytes());
    let (Some(one), Some(other)) = (open(one)?, open(other)?) else { return Ok(false) };
    let len_bytes = one.len_bytes();
    if len_bytes != other.len_bytes() {
        return Ok(false);
    }
    let (mut left, mut right) = (work_space(PIECE_LEN_BYTES)?, work_space(PIECE_LEN_BYTES)?);
    let mut at = 0;
    while at < len_bytes {
        let len = PIECE_LEN_BYTES.min(len_bytes - at) as usize;
        let (Some(left), Some(right)) = (left.get_mut(..len), right.get_mut(..len)) else { return Ok(false) };
        one.read(at, left, ReadPath::Cached)?;
        other.read(at, right, ReadPath::Cached)?;
        if left != right {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
