//! What regrow puts beside a checkpoint when it is saved: its seal, its parity.

use super::SaveOptions;
use super::parity::ParityOfSave;
use super::seal::SealOfSave;
use super::standing::take_away;
use crate::error::Result;
use crate::location::Location;
use crate::seal::side_files_of;
use crate::storage::{Publication, Target};

/// What a save puts beside its checkpoint: with it where that can be read before it is committed, else right behind it.
#[derive(Debug)]
pub(super) struct SideFiles {
    seal: SealOfSave,
    parity: ParityOfSave,
}

impl SideFiles {
    /// Those which the options ask for.
    pub fn of(options: &SaveOptions) -> Self {
        Self { seal: SealOfSave::of(options), parity: ParityOfSave::of(options) }
    }

    /// The same; `None` where nothing is asked for.
    pub fn wanted(options: &SaveOptions) -> Option<Self> {
        Some(Self::of(options)).filter(|files| files.seal.is_wanted() || files.parity.is_wanted())
    }

    /// Before the commit. What lies beside files that are about to be replaced goes: better nothing than what does not fit.
    ///
    /// # Errors
    /// What the storage says.
    pub fn before(&mut self, publication: &dyn Publication) -> Result<()> {
        self.seal.before(publication)?;
        self.parity.before(publication)?;
        take_from_files(publication.target())
    }

    /// After the commit.
    ///
    /// # Errors
    /// What the storage says, and that the checkpoint is there without the side file.
    pub fn after(self, at: &Location) -> Result<()> {
        self.seal.after(at)?;
        self.parity.after(at)
    }
}

/// Takes away what lies beside files that are about to be replaced; what lies in a folder goes with the folder.
///
/// # Errors
/// What the storage says.
pub(super) fn take_from_files(at: &Location) -> Result<()> {
    if at.is_folder() {
        return Ok(());
    }
    side_files_of(at).filter(Location::is_file).try_for_each(|file| take_away(&file))
}

/// The same when the files have been replaced: somebody may have put something there meanwhile, which was made of the old ones.
///
/// # Errors
/// What the storage says; the checkpoint is there.
pub(super) fn take_from_replaced(at: &Location, kind: &Target, is_overwrite: bool) -> Result<()> {
    if !is_overwrite || *kind == Target::Folder {
        return Ok(());
    }
    take_from_files(at).map_err(|error| {
        error.help(
            "the checkpoint was saved; what lies beside it may be of the one before (`regrow seal --remove`)",
        )
    })
}
