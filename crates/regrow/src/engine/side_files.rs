//! What regrow puts beside a checkpoint when it is saved: its seal, its parity.

use super::parity::ParityOfSave;
use super::seal::SealOfSave;
use super::{Checkpoint, SaveOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::seal::side_files_of;
use crate::storage::{Identity, Publication, Target};

/// Whether the checkpoint that something is put beside is still the one that it was made of.
#[derive(Debug)]
pub(super) enum Standing<'c> {
    /// One that was opened, and where it is: of a folder of steps, the step.
    Opened(&'c Checkpoint, &'c Location),
    /// One at a location, as it was there at a moment.
    At(&'c Location, Option<Identity>),
}

impl<'c> Standing<'c> {
    /// The checkpoint that is at a location now.
    pub fn now(at: &'c Location) -> Self {
        Self::At(at, super::open::identity(at))
    }

    /// One that was opened. A save that was killed while it brought it to its place is finished first.
    ///
    /// # Errors
    /// `Replaced` if there was one: what is open are not the files that are at the place now. `AlreadyExists` while another process
    /// is at that; what the storage says.
    pub fn of(checkpoint: &'c Checkpoint, at: &'c Location) -> Result<Self> {
        match at.storage().finish_unfinished(at)? {
            true => Err(checkpoint.was_replaced()),
            false => Ok(Self::Opened(checkpoint, at)),
        }
    }

    fn is_replaced(&self) -> bool {
        match self {
            Self::Opened(checkpoint, _) => checkpoint.is_replaced(),
            Self::At(at, identity) => super::open::identity(at) != *identity,
        }
    }

    /// Errs if another checkpoint has taken the place, or is about to.
    fn check(&self) -> Result<()> {
        match self {
            Self::Opened(_, at) | Self::At(at, _) if !self.is_replaced() => at.storage().check_unwritten(at),
            Self::Opened(checkpoint, _) => Err(checkpoint.was_replaced()),
            Self::At(at, _) => {
                Err(Error::new(ErrorKind::Replaced, "the checkpoint was replaced").in_file(*at))
            }
        }
    }

    /// Puts files beside the checkpoint, and takes them away again if another one has taken its place by then: what was made
    /// of the one says of the other that it is damaged. A save that replaces single files looks for such files when it has
    /// committed, and this looks for such a save when it has put them there: whoever is later finds what is to go.
    ///
    /// # Errors
    /// `Replaced`, `AlreadyExists`; what `put` and the storage say.
    pub fn put<T>(&self, files: &[&Location], put: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        let done = put()?;
        let checked = self.check();
        if checked.is_err() {
            files.iter().try_for_each(|file| take_away(file))?;
            // Where the checkpoint was removed, its folder was made anew for them.
            let (Self::Opened(_, at) | Self::At(at, _)) = self;
            if files.iter().any(|file| file.parent().is_same(at)) {
                at.storage().remove_if_empty(at.path());
            }
        }
        checked.map(|()| done)
    }
}

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

fn take_away(file: &Location) -> Result<()> {
    file.parent().store().delete(file.name().as_encoded_bytes())
}
