//! Side files that a save writes: the seal and parity.

use std::time::Duration;

use super::locked::{Change, take_away};
use super::open::identity;
use super::parity::ParityOfSave;
use super::seal::SealOfSave;
use super::{SaveOptions, repair, seal, sign};
use crate::error::{ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::parity::ParityPlace;
use crate::seal::{Place, side_files_of};
use crate::signature;
use crate::storage::NewFolder;

/// The side files of a save. The side files of a folder on a disk are written before the commit,
/// all other side files directly after the commit.
#[derive(Debug)]
pub(super) struct SideFiles {
    seal: SealOfSave,
    parity: ParityOfSave,
    is_overwrite: bool,
    wait: Option<Duration>,
}

impl SideFiles {
    pub fn of(options: &SaveOptions) -> Self {
        let (seal, parity) = (SealOfSave::of(options), ParityOfSave::of(options));
        Self { seal, parity, is_overwrite: options.overwrite, wait: options.wait }
    }

    pub fn wanted(options: &SaveOptions) -> Option<Self> {
        Some(Self::of(options)).filter(|files| files.seal.is_wanted() || files.parity.is_wanted())
    }

    /// The side files of a checkpoint of items, from the options of one item; `None` if the options
    /// request no side file.
    pub fn of_items(options: &SaveOptions) -> Option<Self> {
        let files = Self { seal: SealOfSave::of_items(options), ..Self::of(options) };
        Some(files).filter(|files| files.seal.is_wanted() || files.parity.is_wanted())
    }

    /// Before the commit: writes the side files of a folder on a disk. On an overwrite of single
    /// files, removes the side files of the old files: no side files are better than wrong ones.
    /// Without overwrite, existing side files stay, because they may belong to a faster save.
    /// After the commit, side files that do not fit are removed.
    pub fn before(&mut self, folder: &dyn NewFolder) -> Result<()> {
        self.seal.before(folder)?;
        self.parity.before(folder)?;
        self.before_files(folder.target())
    }

    /// As [`before`](Self::before), for files that are not a folder.
    pub fn before_files(&self, target: &Location) -> Result<()> {
        if self.is_overwrite { take_from_files(target) } else { Ok(()) }
    }

    /// After the commit: removes side files that another process wrote for the replaced files, and
    /// writes the side files that `before` could not write.
    pub fn after(self, at: &Location) -> Result<()> {
        let may_have_others = !at.is_folder();
        let is_needed = self.seal.is_wanted() || self.parity.is_wanted() || may_have_others && has_any(at);
        if !is_needed {
            return Ok(());
        }
        let monitor = Monitor::new();
        let lock = Change { name: "save", wait: self.wait, monitor: &monitor }.lock(at)?;
        if may_have_others {
            take_from_replaced(at)?;
        }
        if identity(at).is_none() {
            // Another process has removed the checkpoint.
            return Ok(());
        }
        self.seal.after(at)?;
        self.parity.after(at, &lock)
    }
}

/// Removes side files of single files before the files are replaced. Side files in a folder are
/// replaced with the folder.
pub(super) fn take_from_files(at: &Location) -> Result<()> {
    if at.is_folder() {
        return Ok(());
    }
    let files: Vec<Location> = side_files_of(at).filter(Location::is_file).collect();
    take_away(&files)
}

/// Removes side files that another process wrote for the old files before the new files existed.
/// Side files of the new files stay: a later save or another process wrote them.
pub(super) fn take_from_replaced(at: &Location) -> Result<()> {
    take_misfits(at).map_err(|error| {
        error.help(
            "the checkpoint was saved, but side files may belong to the old one (`regrow seal --remove`)",
        )
    })
}

fn has_any(at: &Location) -> bool {
    side_files_of(at).any(|file| file.is_file())
}

/// Removes side files that do not belong to the current single files. Reads the files only if side
/// files exist.
pub(super) fn take_misfits(at: &Location) -> Result<()> {
    if !has_any(at) {
        return Ok(());
    }
    if identity(at).is_none() {
        // Another process removed the files before these side files existed.
        return take_from_files(at);
    }
    let parity = ParityPlace::of(at);
    let kinds: [(Fits, Vec<Location>); 3] = [
        (seal::fits, vec![Place::of(at).file]),
        (sign::fits, vec![signature::place_of(at).file]),
        (repair::parity_fits, vec![parity.place.file, parity.blocks]),
    ];
    for (fits, files) in kinds {
        let is_fit = match fits(at) {
            // The side file belongs to files of another kind.
            Err(error) if error.kind().is_damage() || NO_FIT.contains(&error.kind()) => false,
            is_fit => is_fit?,
        };
        if !is_fit {
            take_away(files.iter().filter(|file| file.is_file()))?;
        }
    }
    Ok(())
}

/// The error kinds that show that a side file belongs to other files.
const NO_FIT: [ErrorKind; 4] =
    [ErrorKind::NotFound, ErrorKind::InvalidArgument, ErrorKind::Replaced, ErrorKind::Limit];

type Fits = fn(&Location) -> Result<bool>;
