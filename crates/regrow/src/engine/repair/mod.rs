//! Repairs a damaged checkpoint with its parity, with another checkpoint, or with its own other
//! files.
//! ```text
//! unfinished      if a killed save only lacks its last rename, that save is finished
//! proof           reads the seal and the signatures: a repair writes only bytes that match these
//! by_parity       with parity
//!     damage      reads either copy of the parity's index, and finds damaged blocks of all files
//!     restored    takes damaged blocks from a replica, or computes them from their stripe; checks each block
//!     heal        rewrites each damaged file beside the old one, and renames it over the old one
//! until nothing changes:
//!     by_checksums    without parity: takes damaged blocks from a replica or another step; checks each block
//!     recovered       rebuilds lost files from other files, as the layout defines
//! markers         in a bucket restores the marker last, if everything else is intact
//! side_files      restores a damaged seal or signature from a replica
//! findings        verifies the checkpoint
//! unfinished      if no damage is left: removes the files of other unfinished saves
//! verdict         whether the checkpoint is whole, and the proof
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checks::change_at;
use super::locked::{Change, part_of};
use super::open::identity;
use super::parity::is_damage;
use super::{OpenOptions, VerifyOptions, open_with, verify_with};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::container::step_number;
use crate::formats::{container, siblings};
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::seal::side_files_of;
use crate::storage::{Entry, TargetLock};
use regrow_ocdbt::DATA_FOLDER;

mod by_checksums;
mod by_parity;
mod damage;
mod heal;
mod markers;
mod proof;
mod recovered;
mod report;
mod restored;
mod side_files;
mod unfinished;
mod verdict;

pub use report::{HealedFile, ProofBy, RecoveredFile, RepairReport, Verdict};

use damage::Parity;
use proof::Proof;

/// The most rounds of rebuilding. A file that one round rebuilds may be needed to rebuild another
/// file in the next round.
const ROUNDS_MAX: usize = 4;

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
    /// How long to wait for another process that changes the checkpoint, before the error `Busy`; a
    /// minute if `None`.
    pub wait: Option<Duration>,
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

fn repair_once(at: &Location, options: &RepairOptions) -> Result<RepairReport> {
    if options.from.as_ref().is_some_and(|from| from.is_same(at)) {
        return Err(Error::invalid("the replica is the checkpoint itself").in_file(at));
    }
    if let Some(from) = options.from.as_ref().filter(|from| !is_there(from)) {
        return Err(Error::new(ErrorKind::NotFound, "the other checkpoint does not exist").in_file(from));
    }
    let mut report = RepairReport::of(at, options);
    unfinished::finish(at, options, &mut report)?;
    let mut found = find(at, options.step)?;
    found.part.check_finished()?;
    let from = options.from.as_ref().map(|from| step_of(from, at, &found.part));
    let options = &RepairOptions { from, ..options.clone() };
    if options.check {
        let (part, before) = (found.part.clone(), identity(&found.part));
        let checked = repair_found(at, found, None, options, report);
        // The findings may mix two checkpoints.
        return if identity(&part) == before { checked } else { Err(replaced(&part)) };
    }
    found.check_there()?;
    let change = Change { name: "repair", wait: options.wait, monitor: &options.monitor };
    let lock = change.lock(&found.part)?;
    // The checkpoint may have changed before it was locked.
    let part = found.part;
    found = find(&part, None)?;
    found.check_there()?;
    match found.part.is_same(&part) && lock.covers(&part) {
        true => repair_found(at, found, Some(&lock), options, report),
        false => Err(replaced(&part)),
    }
}

fn replaced(at: &Location) -> Error {
    Error::replaced("the checkpoint was replaced while it was being repaired")
        .in_file(at)
        .help("another process saves to this path: repair it again if the new checkpoint is damaged")
}

/// The repair of one checkpoint, after it was found.
struct Repair<'r> {
    at: &'r Location,
    options: &'r RepairOptions,
    /// The lock of the checkpoint; `None` for a check, which writes nothing.
    lock: Option<&'r TargetLock>,
    /// The sealed or signed state of the files.
    proof: Proof,
}

fn repair_found(
    at: &Location,
    found: Found,
    lock: Option<&TargetLock>,
    options: &RepairOptions,
    mut report: RepairReport,
) -> Result<RepairReport> {
    let Found { part, parity, unopened } = found;
    let repair = Repair { at: &part, options, lock, proof: Proof::of(&part)? };
    if let Some(parity) = &parity {
        by_parity::heal(&repair, parity, &mut report)?;
    }
    // In a check, if the parity would restore all files, a repair would rebuild no file.
    if parity.is_none() || !options.check || !report.lost.is_empty() {
        let copy = options.from.as_ref().filter(|_| parity.is_none());
        repair.until_nothing_changes(copy, &mut report)?;
    }
    if let Some(from) = &options.from {
        side_files::restore(&repair, from, &mut report)?;
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
            repair.renew_parity(parity, is_proved && report.findings.is_empty(), &mut report)?;
        }
        None if !report.findings.is_empty() => report.notes.push(NO_PARITY.to_owned()),
        _ => {}
    }
    if report.is_sound() && !options.check {
        unfinished::remove(at, &mut report)?;
        unfinished::remove_of_files(&part, &mut report)?;
    }
    report.verdict = verdict::judge(&repair, parity.as_ref(), &report)?;
    Ok(report)
}

impl Repair<'_> {
    /// Takes blocks from the copy, and rebuilds lost files, until nothing changes. A rebuilt file
    /// may have checksums of other files, and a healed file may have the contents of others. The
    /// markers in buckets come last.
    fn until_nothing_changes(&self, copy: Option<&Location>, report: &mut RepairReport) -> Result<()> {
        let (mut summed, mut markers) = (Vec::new(), Vec::new());
        let known = report.lost.len();
        for _ in 0..ROUNDS_MAX {
            // Each round finds again what is still lost.
            report.lost.truncate(known);
            if let Some(copy) = copy {
                summed = by_checksums::heal(self, copy, report)?;
            }
            let has_written;
            (has_written, markers) = recovered::recover(self, report)?;
            if !has_written {
                break;
            }
        }
        if copy.is_some() && summed.is_empty() {
            report.notes.push(by_checksums::NO_CHECKSUMS.to_owned());
        }
        by_checksums::heal_markers(&summed, self, report)?;
        let is_healed = |path: PathBuf| report.healed.iter().any(|file| file.path == path);
        markers.retain(|(folder, marker)| !is_healed(folder.join(&marker.name).describe()));
        markers::put_back(self, markers, report)
    }

    /// Computes the parity again: rebuilt files may differ from the files that the parity was made
    /// of.
    fn renew_parity(&self, parity: &Parity, is_proved: bool, report: &mut RepairReport) -> Result<()> {
        let whole = match is_proved {
            true => whole_all_the_same(self.at, report)?,
            false => BTreeSet::new(),
        };
        let RepairReport { recovered, lost, .. } = report;
        let is_there = |file: &Path| whole.contains(file) || recovered.iter().any(|made| made.path == file);
        lost.retain(|error| !error.place().file.as_deref().is_some_and(is_there));
        if report.is_sound() && !self.options.check {
            by_parity::remake(self, parity)?;
        }
        Ok(())
    }
}

/// Files in `report.lost` that are intact after all: they share a block with a lost file, and their
/// own checksums match. Files of a database that was rebuilt count too. Empty if a file was
/// guessed.
fn whole_all_the_same(at: &Location, report: &RepairReport) -> Result<BTreeSet<PathBuf>> {
    if report.recovered.iter().any(|file| file.is_guess) {
        return Ok(BTreeSet::new());
    }
    let files = report.lost.iter().filter_map(|error| error.place().file.clone()).collect();
    let parts = recovered::parts_of(at)?;
    let mut whole = by_checksums::whole_ones(&parts, &files)?;
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

impl Found {
    /// Returns the error of opening if neither the checkpoint nor its side files are there. In a
    /// bucket, the lock of a location without files does not exclude the save of a folder.
    fn check_there(&mut self) -> Result<()> {
        let has_side_files = || side_files_of(&self.part).any(|file| file.is_file());
        let is_there = self.unopened.is_none() || is_there(&self.part) || has_side_files();
        self.unopened.take_if(|_| !is_there).map_or(Ok(()), Err)
    }
}

/// Whether there is a folder or file of a checkpoint.
fn is_there(at: &Location) -> bool {
    at.exists() || siblings::main_files(at).any(|file| file.is_file())
}

fn find(at: &Location, step: Option<u64>) -> Result<Found> {
    if step.is_none()
        && let Some(parity) = Parity::find(at)?
    {
        return Ok(Found { part: at.clone(), parity: Some(parity), unopened: None });
    }
    let open = OpenOptions { step, ignore_seal: true, ..OpenOptions::default() };
    match open_with(at, &open) {
        Ok(opened) => {
            let part = part_of(at, &opened);
            let parity = Parity::find(&part)?;
            Ok(Found { part, parity, unopened: None })
        }
        Err(error) if is_out_of_reach(&error) => Err(error),
        // A folder of steps may be unreadable only because one step is damaged.
        Err(error) => match damaged_step(at, &error) {
            Some(step) => find(&step, None),
            None if step.is_some() => Err(error),
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

/// The damage of the whole checkpoint, from opening and verifying it; and whether checksums prove
/// all array bytes that are not damaged.
fn findings(at: &Location, options: &RepairOptions) -> Result<(Vec<Error>, bool)> {
    options.monitor.check()?;
    match verify_with(at, &VerifyOptions::default()) {
        Ok(report) => {
            let is_proved = report.unprotected_bytes == 0;
            Ok((report.findings.into_iter().map(|finding| finding.error).collect(), is_proved))
        }
        Err(error) => Ok((vec![error], false)),
    }
}

/// The error for a repaired file whose bytes are damaged again when they are read back.
fn reads_back_otherwise(at: &Location) -> Error {
    Error::corrupt("the repaired bytes read back with other values").in_file(at).help(
        "the disk fails, or another program writes to the checkpoint: copy the checkpoint elsewhere and \
         repair the copy",
    )
}
