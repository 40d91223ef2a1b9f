//! Repair: a damaged checkpoint made whole, by the parity beside it and by replicas.
//!
//! ```text
//! index     the parity's index, of either copy
//! scan      every block of the files and of the parity, by its checksum: what is damaged
//! restored  damaged blocks, made of a replica or of the rest of their stripe, each proved by its checksum
//! heal      each damaged file written anew beside the old one, and put in its place in one step
//! prove     what was written is read again, and the checkpoint is verified
//! ```

use std::fmt;
use std::path::PathBuf;

use super::parity::{self, Run, is_damage};
use super::seal::part_of;
use super::{OpenOptions, VerifyOptions, open_with, verify_with};
use crate::error::{Error, ErrorKind, Result};
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::parity::{ParityPlace, ParityRatio};
use crate::storage::archive;
use crate::text::{counted, format_bytes, printable};

mod heal;
mod index;
mod restored;
mod scan;

pub use heal::HealedFile;

use heal::Heal;
use index::Parity;
use restored::Restored;
use scan::Damage;

/// How to repair.
#[derive(Debug, Clone, Default)]
pub struct RepairOptions {
    /// The step to repair in a folder of steps; the newest committed one if `None`.
    pub step: Option<u64>,
    /// A replica: a copy of the checkpoint, whose good blocks are taken before any is computed.
    pub from: Option<Location>,
    /// Say what would be done, and write nothing.
    pub check: bool,
    /// Watches the work, and stops it.
    pub monitor: Monitor,
}

/// What a repair did.
#[derive(Debug)]
#[non_exhaustive]
pub struct RepairReport {
    /// The checkpoint.
    pub path: PathBuf,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// Files that are whole again; with [`RepairOptions::check`] those that would be.
    pub healed: Vec<HealedFile>,
    /// What could not be healed: file, offset, length.
    pub lost: Vec<Error>,
    /// Whether the parity was damaged, too; it was made anew unless something is lost.
    pub is_parity_damaged: bool,
    /// What opening and verifying the checkpoint find afterwards; with [`RepairOptions::check`] nothing is verified.
    pub findings: Vec<Error>,
    /// Whether this was a check, and nothing was written.
    pub is_check: bool,
}

impl RepairReport {
    /// Whether the checkpoint is whole: nothing is lost, and verification finds nothing.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.findings.is_empty()
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        let healed = self.healed.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
        let files = counted(self.healed.len(), "file", "files");
        let verb = if self.is_check { "can be healed" } else { "healed" };
        write!(f, "{}: ", printable(&path))?;
        match (self.healed.is_empty(), self.is_parity_damaged) {
            (true, false) if self.lost.is_empty() => write!(f, "nothing to do")?,
            (true, false) => write!(f, "nothing {verb}")?,
            (true, true) => write!(f, "the parity alone was damaged")?,
            (false, _) => write!(f, "{files} {verb}, {} in them", format_bytes(healed))?,
        }
        match self.lost.len() {
            0 => Ok(()),
            count => write!(f, "; {} lost", counted(count, "part", "parts")),
        }
    }
}

/// Makes the checkpoint at a path or URL whole again, by the [parity](super::add_parity) beside it: damaged blocks, files that
/// are cut or gone, and the parity itself. Each file is written anew beside the damaged one and takes its place in one step;
/// each restored block is proved by its checksum first, and the whole is verified at the end. Killed at any moment it leaves
/// each file as it was or whole, and can be run again. What holds the checkpoint open goes on reading the old files.
///
/// The files become what they were when the parity was made. If one was changed on purpose since, this changes it back:
/// [`RepairOptions::check`] says beforehand what would be written.
///
/// Reads all files twice. Takes 256 MiB of memory at most, and room on the disk for the largest damaged file.
///
/// # Errors
/// `Unsupported` if there is no parity, in an archive and on a web server; `Corrupt` if the parity's index is lost;
/// `PermissionDenied`, `StorageFull` and what else the storage says; `Cancelled`. That something cannot be healed is no
/// error: the report says it.
pub fn repair(path: impl ToLocation, options: &RepairOptions) -> Result<RepairReport> {
    let at = path.to_location()?;
    if archive::find(&at)?.is_some() {
        return Err(Error::unsupported("nothing can be written into an archive")
            .in_file(&at)
            .help("take the checkpoint out of the archive, and repair it there"));
    }
    let monitor = &options.monitor;
    let report = monitor.begin().and_then(|_running| {
        let report = repair_once(&at, options);
        monitor.finish().and(report)
    });
    monitor.conclude(report)
}

fn repair_once(at: &Location, options: &RepairOptions) -> Result<RepairReport> {
    let (at, parity) = find(at, options)?;
    let (place, document) = (&parity.at.place, &parity.document);
    let run = Run::new(place.folder.store(), document);
    let damage = Damage::find(&parity, &run, &options.monitor)?;
    let bytes = document.geometry().len_bytes;
    let other = options.from.as_ref().map(|from| replica(from, &at, &parity)).transpose()?;
    let is_parity_damaged = !damage.parity.is_empty() || !parity.is_index_whole;
    let restored = Restored::of(&parity, &run, other.as_ref(), &damage)?;
    let geometry = document.geometry();
    let mut heal = Heal {
        folder: &place.folder,
        run: &run,
        geometry,
        damage: &damage,
        restored,
        is_check: options.check,
        monitor: &options.monitor,
    };
    let (healed, lost) = if damage.is_none() { Default::default() } else { heal.all()? };
    let (path, is_check) = (at.describe(), options.check);
    let mut report =
        RepairReport { path, bytes, healed, lost, is_parity_damaged, findings: Vec::new(), is_check };
    if options.check {
        return Ok(report);
    }
    if !report.healed.is_empty() {
        prove(&parity, &damage, heal.restored.lost.len())?;
    }
    if is_parity_damaged && report.lost.is_empty() {
        let ratio: ParityRatio = document.ratio.parse().unwrap_or_default();
        parity::put(&at, &document.layout, ratio, &Monitor::new(), &|| Ok(()))?;
    }
    report.findings = findings(&at, options)?;
    Ok(report)
}

/// The checkpoint and its parity: at the location, else that of the step which is opened there.
fn find(at: &Location, options: &RepairOptions) -> Result<(Location, Parity)> {
    let none = || {
        let [file, _] = ParityPlace::of(at).described();
        Error::unsupported("the checkpoint has no parity to be healed by")
            .in_file(file)
            .help("copy the checkpoint again; `regrow parity` makes parity while a checkpoint is whole")
    };
    if options.step.is_none()
        && let Some(parity) = Parity::find(at)?
    {
        return Ok((at.clone(), parity));
    }
    let open = OpenOptions { step: options.step, ignore_seal: true, ..OpenOptions::default() };
    let opened = open_with(at, &open).map_err(|error| match error.kind() {
        ErrorKind::Corrupt => {
            error.help("name the folder of the step itself: it cannot be opened, and may be repaired")
        }
        _ => error,
    })?;
    let part = part_of(at, &opened);
    let parity = Parity::find(&part)?.ok_or_else(none)?;
    Ok((part, parity))
}

/// The files of a replica, by the names that they have there.
fn replica(from: &Location, at: &Location, parity: &Parity) -> Result<Run> {
    if from.is_same(at) {
        return Err(Error::invalid("the replica is the checkpoint itself").in_file(from));
    }
    let theirs = ParityPlace::of(from).place;
    if theirs.covers_folder != parity.at.place.covers_folder {
        return Err(Error::invalid(
            "the replica is another kind of checkpoint: one is a folder, the other is files",
        )
        .in_file(from));
    }
    let renamed = |name: &String| match name.strip_prefix(&parity.at.place.stem) {
        Some(rest) if !theirs.covers_folder => format!("{}{rest}", theirs.stem),
        _ => name.clone(),
    };
    Ok(Run::of(theirs.folder.store(), parity.document.names.iter().map(renamed), &parity.document.len_bytes))
}

/// Reads what was written, and errs unless it is what it should be: nothing but what is lost may be damaged.
fn prove(parity: &Parity, before: &Damage, lost: usize) -> Result<()> {
    let run = Run::new(parity.at.place.folder.store(), &parity.document);
    let after = Damage::of_data(parity, &run, &Monitor::new())?;
    if after.len() <= lost && after.is_subset(&before.data) {
        return Ok(());
    }
    Err(Error::corrupt("what was written is not what is read back")
        .in_file(&parity.at.place.folder)
        .expected(format_args!("{lost} damaged blocks"), after.len())
        .help("the disk fails, or something else writes to the checkpoint: copy it elsewhere and repair the copy"))
}

/// What is wrong with the checkpoint as a whole: what keeps it from being opened, or what its layout's own checks find.
fn findings(at: &Location, options: &RepairOptions) -> Result<Vec<Error>> {
    options.monitor.check()?;
    match verify_with(at, &VerifyOptions::default()) {
        Ok(report) => Ok(report.findings.into_iter().map(|finding| finding.error).collect()),
        Err(error) => Ok(vec![error]),
    }
}
