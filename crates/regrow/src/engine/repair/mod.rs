//! Repairs a damaged checkpoint with its parity, with another checkpoint, or with its own other
//! files.
//! ```text
//! unfinished      if a killed save only lacks its last rename, that save is finished
//! proof           reads the seal and the signatures: a repair writes only bytes that match these
//! by_parity       with parity
//!     index       reads either copy of the parity's index
//!     scan        checks every block of the files and of the parity, and finds damaged blocks
//!     restored    takes damaged blocks from a replica, or computes them from their stripe; checks each block
//!     heal        rewrites each damaged file beside the old one, and renames it over the old one
//! by_checksums    without parity: takes damaged blocks from a replica or another step; checks each block
//! recovered       rebuilds lost files from other files, as the layout defines
//! lost_marker     in a bucket restores the marker last, if everything else is intact
//! side_files      restores a damaged seal or signature from a replica
//! findings        verifies the checkpoint
//! unfinished      if no damage is left: removes the files of other unfinished saves
//! verdict         whether the checkpoint is whole, and the proof
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use super::checks::change_at;
use super::open::identity;
use super::parity::{Run, is_damage};
use super::seal::part_of;
use super::standing::is_gone;
use super::{OpenOptions, VerifyOptions, open_with, verify_with};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::container::step_number;
use crate::formats::{container, siblings};
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::storage::Entry;
use crate::text::{counted, format_bytes, printable};
use regrow_ocdbt::DATA_FOLDER;

mod by_checksums;
mod by_parity;
mod guard;
mod heal;
mod index;
mod lost_marker;
mod proof;
mod recovered;
mod restored;
mod rewrite;
mod scan;
mod side_files;
mod unfinished;
mod verdict;

pub use heal::HealedFile;
pub use recovered::RecoveredFile;
pub use verdict::{ProofBy, Verdict};

use guard::{Guard, replaced};
use index::Parity;
use proof::Proof;
use scan::Damage;

/// The options of a repair.
#[derive(Debug, Clone, Default)]
pub struct RepairOptions {
    /// The step to repair in a folder of steps; the newest committed one if `None`.
    pub step: Option<u64>,
    /// Another checkpoint: a replica, or another step of the same run. Its intact blocks are used
    /// before any block is computed.
    pub from: Option<Location>,
    /// Report the repairs, but write nothing.
    pub check: bool,
    /// Watches the repair, and can cancel it.
    pub monitor: Monitor,
}

/// The result of a repair.
#[derive(Debug)]
#[non_exhaustive]
pub struct RepairReport {
    /// The path of the checkpoint.
    pub path: PathBuf,
    /// Bytes that were examined.
    pub bytes: u64,
    /// Repaired files; with [`RepairOptions::check`], files that a repair would rewrite.
    pub healed: Vec<HealedFile>,
    /// Lost or damaged files that were rebuilt from other files, without parity; with
    /// [`RepairOptions::check`], files that a repair would rebuild.
    pub recovered: Vec<RecoveredFile>,
    /// Bytes that could not be restored: file, offset, length.
    pub lost: Vec<Error>,
    /// Whether the parity was damaged too. It was then rewritten, unless bytes are lost.
    pub is_parity_damaged: bool,
    /// Findings of opening and verifying the checkpoint after the repair, leaf by leaf. With
    /// [`RepairOptions::check`]: before the repair, and only without parity.
    pub findings: Vec<Error>,
    /// Other actions: unfinished saves that were finished or removed.
    pub notes: Vec<String>,
    /// Whether the checkpoint is now whole, and the proof.
    pub verdict: Verdict,
    /// Whether this was only a check, which writes nothing.
    pub is_check: bool,
}

impl RepairReport {
    fn of(at: &Location, options: &RepairOptions) -> Self {
        Self {
            path: at.describe(),
            bytes: 0,
            healed: Vec::new(),
            recovered: Vec::new(),
            lost: Vec::new(),
            is_parity_damaged: false,
            findings: Vec::new(),
            notes: Vec::new(),
            verdict: Verdict::NotKnown,
            is_check: options.check,
        }
    }

    /// Whether nothing is lost, and the verification finds no damage. [`verdict`](Self::verdict)
    /// tells whether checksums prove the whole checkpoint.
    pub fn is_sound(&self) -> bool {
        self.lost.is_empty() && self.findings.is_empty()
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        let bytes = self.healed.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
        let (heal, recover) = match self.is_check {
            true => ("can be healed", "can be rebuilt"),
            false => ("healed", "rebuilt"),
        };
        let mut said = Vec::new();
        if !self.healed.is_empty() {
            let files = counted(self.healed.len(), "file", "files");
            said.push(format!("{files} {heal}, {} in them", format_bytes(bytes)));
        }
        if !self.recovered.is_empty() {
            said.push(format!("{} {recover}", counted(self.recovered.len(), "file", "files")));
        }
        if self.is_parity_damaged && self.healed.is_empty() {
            said.push("the parity alone was damaged".to_owned());
        }
        if !self.lost.is_empty() {
            said.push(format!("{} lost", counted(self.lost.len(), "part", "parts")));
        }
        if !self.findings.is_empty() {
            said.push(counted(self.findings.len(), "finding", "findings"));
        }
        if said.is_empty() {
            said.push("nothing to do".to_owned());
        }
        if self.verdict != Verdict::Damaged {
            said.push(self.verdict.to_string());
        }
        write!(f, "{}: {}", printable(&path), said.join("; "))?;
        self.notes.iter().try_for_each(|note| write!(f, "\n  {note}"))
    }
}

/// Repairs the checkpoint at a path or URL, with:
///
/// - [parity](super::add_parity) beside it: restores damaged blocks, truncated and missing files,
///   and the parity itself. The files get the content that they had when the parity was made, even
///   if a file was changed on purpose since: [`RepairOptions::check`] first reports what would be
///   written. Later seals and signatures stay, and the parity is computed again.
/// - [another checkpoint](RepairOptions::from), a replica or another step: restores damaged blocks
///   that parity, a seal or the checksums of the default layout prove. From another step, the
///   default layout takes equal leaves.
/// - its own other files: a file whose content other files repeat is rebuilt. Each layout knows
///   which files these are.
///
/// Temporary files of unfinished saves beside the checkpoint are finished or removed. Each damaged
/// file is rewritten beside the old one, and then renamed over it. A checksum proves each restored
/// block before it is used, and the whole checkpoint is verified at the end. If a repair is killed,
/// each file is either unchanged or complete, and the repair can be run again. Readers that have
/// the checkpoint open continue to read the old files.
///
/// Reads all files twice. With parity it uses at most 256 MiB of memory, and rebuilt documents also
/// take memory. Needs free disk space for the largest damaged file.
///
/// # Errors
/// `NotACheckpoint` and `NotFound` if there is no checkpoint at the path, not even a damaged one;
/// `InvalidArgument` if `from` is the checkpoint itself; `Uncommitted` in a bucket during a save,
/// copy or removal; `Unsupported` in an archive and on a web server; `Corrupt` if the parity's
/// index is lost, or the written bytes differ when read back; `PermissionDenied`, `StorageFull` and
/// other errors of the storage; `Cancelled`. Damage that cannot be repaired is not an error: the
/// report lists it.
pub fn repair(path: impl ToLocation, options: &RepairOptions) -> Result<RepairReport> {
    let help = "take the checkpoint out of the archive, and repair it there";
    change_at(path, help, &options.monitor, |at| repair_once(at, options))
}

/// Whether existing parity beside single files belongs to these files.
pub(super) fn parity_fits(at: &Location) -> Result<bool> {
    let parity = match Parity::find(at) {
        Ok(Some(parity)) => parity,
        Ok(None) => return Ok(true),
        Err(error) if error.kind().is_damage() => return Ok(false),
        Err(error) => return Err(error),
    };
    let folder = &parity.at.place.folder;
    let run = Run::new(folder, folder.store(), &parity.document);
    Ok(Damage::of_files(&parity, &run)?.is_none())
}

fn repair_once(at: &Location, options: &RepairOptions) -> Result<RepairReport> {
    if options.from.as_ref().is_some_and(|from| from.is_same(at)) {
        return Err(Error::invalid("the replica is the checkpoint itself").in_file(at));
    }
    if let Some(from) = options
        .from
        .as_ref()
        .filter(|from| !from.exists() && !siblings::main_files(from).any(|file| file.is_file()))
    {
        return Err(Error::new(ErrorKind::NotFound, "the other checkpoint does not exist").in_file(from));
    }
    let mut report = RepairReport::of(at, options);
    unfinished::finish(at, options, &mut report)?;
    let found = find(at, options)?;
    report.path = found.part.describe();
    let from = options.from.as_ref().map(|from| step_of(from, at, &found.part));
    let options = &RepairOptions { from, ..options.clone() };
    let part = found.part.clone();
    let guard = Guard::of(&part, !options.check)?;
    part.check_finished()?;
    let repaired = repair_found(at, found, options, &guard, report);
    // The findings may mix two checkpoints, so check that the folder was not replaced. A repaired
    // single file has a new identity, so a single file is not checked.
    if part.is_folder() {
        guard.check_folder()?;
    }
    match repaired {
        // Another process removed the files during the read.
        Err(error) if error.kind().is_of_content() && identity(&part).is_none() && is_gone(&part) => {
            Err(replaced(&part))
        }
        repaired => repaired,
    }
}

/// The repair of one checkpoint, after it was found.
struct Repair<'r> {
    part: &'r Location,
    options: &'r RepairOptions,
    guard: &'r Guard<'r>,
    proof: Proof,
}

fn repair_found(
    at: &Location,
    found: Found,
    options: &RepairOptions,
    guard: &Guard<'_>,
    mut report: RepairReport,
) -> Result<RepairReport> {
    let Found { part, parity, unopened } = found;
    let repair = Repair { part: &part, options, guard, proof: Proof::of(&part)? };
    match (&parity, &options.from) {
        (Some(parity), _) => repair.with_parity(parity, &mut report)?,
        (None, Some(copy)) => repair.with_copy(copy, &mut report)?,
        (None, None) => repair.rebuild(recovered::ROUNDS_MAX, &mut report)?,
    }
    if let Some(from) = &options.from {
        side_files::restore(&part, from, options, guard, &mut report)?;
    }
    let is_one = !report.healed.is_empty() || !report.recovered.is_empty() || !report.lost.is_empty();
    if let Some(error) = unopened.filter(|error| !is_one && error.kind() != ErrorKind::Corrupt) {
        return Err(error);
    }
    let mut is_proved = false;
    if !options.check || parity.is_none() {
        (report.findings, is_proved) = findings(&part, options)?;
    }
    match &parity {
        Some(parity) if !report.recovered.is_empty() => {
            repair.renew_parity(parity, is_proved, &mut report)?;
        }
        None if !report.findings.is_empty() => report.notes.push(NO_PARITY.to_owned()),
        _ => {}
    }
    if report.is_sound() && !options.check {
        unfinished::remove(at, &mut report)?;
        unfinished::remove_of_files(&part, &mut report)?;
    }
    report.verdict = verdict::judge(&part, parity.as_ref(), options, &report)?;
    Ok(report)
}

impl Repair<'_> {
    fn with_parity(&self, parity: &Parity, report: &mut RepairReport) -> Result<()> {
        by_parity::heal(self.part, parity, self.options, self.guard, &self.proof, report)?;
        // In a check, if the parity would restore all files, a repair would rebuild no file.
        if self.options.check && report.lost.is_empty() {
            return Ok(());
        }
        self.rebuild(recovered::ROUNDS_MAX, report)
    }

    fn with_copy(&self, copy: &Location, report: &mut RepairReport) -> Result<()> {
        by_checksums::heal(self.part, copy, self.options, self.guard, report)?;
        // Rebuild only one round: the copy can then restore the files that a rebuilt record lists.
        self.rebuild(1, report)?;
        if report.recovered.is_empty() || self.options.check {
            return Ok(());
        }
        // The rebuilt files may contain checksums of other files, so search for damage again.
        report.lost.clear();
        report.notes.retain(|note| note != by_checksums::NO_CHECKSUMS);
        report.bytes = 0;
        by_checksums::heal(self.part, copy, self.options, self.guard, report)?;
        self.rebuild(recovered::ROUNDS_MAX, report)
    }

    /// Rebuilds lost files from other files of the checkpoint.
    fn rebuild(&self, rounds: usize, report: &mut RepairReport) -> Result<()> {
        recovered::recover(self.part, rounds, self.options, self.guard, &self.proof, report)
    }

    /// Computes the parity again: rebuilt files may differ from the files that the parity was made
    /// of.
    fn renew_parity(&self, parity: &Parity, is_proved: bool, report: &mut RepairReport) -> Result<()> {
        let whole = match is_proved {
            true => whole_all_the_same(self.part, report, self.options)?,
            false => BTreeSet::new(),
        };
        let RepairReport { recovered, lost, .. } = report;
        let is_there = |file: &Path| whole.contains(file) || recovered.iter().any(|made| made.path == file);
        lost.retain(|error| !error.place().file.as_deref().is_some_and(is_there));
        if report.is_sound() && !self.options.check {
            by_parity::remake(self.part, parity, self.guard)?;
        }
        Ok(())
    }
}

/// Files in `report.lost` that are intact after all: they share a block with a lost file, and their
/// own checksums match. Files of a database that was rebuilt count too. Empty if a file was
/// guessed.
fn whole_all_the_same(
    at: &Location,
    report: &RepairReport,
    options: &RepairOptions,
) -> Result<BTreeSet<PathBuf>> {
    if report.recovered.iter().any(|file| file.is_guess) {
        return Ok(BTreeSet::new());
    }
    options.monitor.check()?;
    let files = report.lost.iter().filter_map(|error| error.place().file.clone()).collect();
    let parts = recovered::parts_of(at)?;
    let mut whole = by_checksums::whole_ones(&parts, &files, &Monitor::new())?;
    for database in parts.iter().map(|part| part.join(DATA_FOLDER).describe()) {
        let is_in = |file: &Path| file.starts_with(&database);
        if report.recovered.iter().any(|made| is_in(&made.path)) {
            whole.extend(files.iter().filter(|file| is_in(file)).cloned());
        }
    }
    Ok(whole)
}

fn is_about(error: &Error, file: &Path) -> bool {
    error.place().file.as_deref() == Some(file)
}

/// The step in the folder `from` with the name of this step, if both are folders of steps;
/// otherwise `from`.
fn step_of(from: &Location, at: &Location, part: &Location) -> Location {
    let step = from.join(part.name());
    if part.is_same(at) || !step.is_folder() { from.clone() } else { step }
}

/// The note if the checkpoint has no parity, and parity would have helped.
const NO_PARITY: &str = "there is no parity beside the checkpoint: lost data comes only from a copy (`--from`); `salvage` reads the intact leaves";

/// The checkpoint to repair.
struct Found {
    /// The checkpoint at the location, or the step that is opened there.
    part: Location,
    parity: Option<Parity>,
    /// The error of opening the checkpoint; `None` if it can be opened.
    unopened: Option<Error>,
}

fn find(at: &Location, options: &RepairOptions) -> Result<Found> {
    if options.step.is_none()
        && let Some(parity) = Parity::find(at)?
    {
        return Ok(Found { part: at.clone(), parity: Some(parity), unopened: None });
    }
    let open = OpenOptions { step: options.step, ignore_seal: true, ..OpenOptions::default() };
    match open_with(at, &open) {
        Ok(opened) => {
            let part = part_of(at, &opened);
            let parity = Parity::find(&part)?;
            Ok(Found { part, parity, unopened: None })
        }
        Err(error) if is_out_of_reach(&error) => Err(error),
        // A folder of steps may be unreadable only because one step is damaged.
        Err(error) => match damaged_step(at, &error) {
            Some(step) => find(&step, &RepairOptions { step: None, ..options.clone() }),
            None if options.step.is_some() => Err(error),
            // The files show later whether a repair is possible.
            None => Ok(Found { part: at.clone(), parity: None, unopened: Some(error) }),
        },
    }
}

/// The step that an error of opening a folder of steps names.
fn damaged_step(at: &Location, error: &Error) -> Option<Location> {
    // A folder with metadata of items is one checkpoint; its items may have any names.
    if container::has_items(at) {
        return None;
    }
    let file = error.place().file.as_deref().filter(|_| at.is_folder() && at.has_listings())?;
    let folders = at.entries().ok()?.into_iter().filter(Entry::is_folder);
    let mut steps = folders
        .filter_map(|folder| folder.name.into_string().ok())
        .filter(|name| step_number(name).is_some());
    steps.find_map(|name| Some(at.join(name)).filter(|step| file.starts_with(step.describe())))
}

/// Whether the error does not show what the storage contains.
fn is_out_of_reach(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Io | ErrorKind::Cancelled)
}

/// The first damage of a checkpoint, apart from the missing files `but`; and whether all array
/// bytes were proved.
fn what_is_wrong(at: &Location, but: &[PathBuf]) -> Result<(Option<Error>, bool)> {
    match verify_with(at, &VerifyOptions::default()) {
        Ok(report) => {
            let mut errors = report.findings.into_iter().map(|finding| finding.error);
            let wrong = errors.find(|error| !but.iter().any(|file| is_about(error, file)));
            let is_proved = wrong.is_none() && report.unprotected_bytes == 0;
            Ok((wrong, is_proved))
        }
        Err(error) if is_out_of_reach(&error) => Err(error),
        Err(error) => Ok((Some(error), false)),
    }
}

/// The damage of the whole checkpoint, from opening and verifying it; and whether all array bytes
/// were proved.
fn findings(at: &Location, options: &RepairOptions) -> Result<(Vec<Error>, bool)> {
    options.monitor.check()?;
    match verify_with(at, &VerifyOptions::default()) {
        Ok(report) => {
            let is_proved = report.is_ok() && report.unprotected_bytes == 0;
            Ok((report.findings.into_iter().map(|finding| finding.error).collect(), is_proved))
        }
        Err(error) => Ok((vec![error], false)),
    }
}
