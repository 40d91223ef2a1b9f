//! Ensures that a side file (a seal, a signature, parity) is written only for the checkpoint that
//! it was made from.

use super::Checkpoint;
use super::open::identity;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::storage::side_files::is_name_of_side_file;
use crate::storage::{Entry, Found, Identity};
use crate::store::{ByteRange, StoreExt};

/// A side file to write for a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct SideFile<'f> {
    pub file: &'f Location,
    pub bytes: &'f [u8],
    /// Another file that is useless without this one, and is removed with it.
    pub with: Option<&'f Location>,
}

impl SideFile<'_> {
    fn take_back(self) -> Result<()> {
        let Some(Found::File { len_bytes }) = self.file.look()? else { return Ok(()) };
        if len_bytes != self.bytes.len() as u64 {
            return Ok(());
        }
        let found = self.file.parent().store().get(self.file.name().as_encoded_bytes(), ByteRange::Full)?;
        if found.is_none_or(|found| *found != *self.bytes) {
            return Ok(());
        }
        take_away([self.file].into_iter().chain(self.with))
    }
}

/// Whether the checkpoint of a side file is still the one that the side file was made from.
#[derive(Debug)]
pub(crate) enum Standing<'c> {
    /// An opened checkpoint and its location. For a folder of steps, the location is the step.
    Opened(&'c Checkpoint, &'c Location),
    /// The location of a checkpoint, and the identity that it had at an earlier time.
    At(&'c Location, Option<Identity>),
}

impl<'c> Standing<'c> {
    pub(crate) fn now(at: &'c Location) -> Self {
        Self::At(at, identity(at))
    }

    /// An opened checkpoint. If a killed save of it lacks only its last rename, finishes that save
    /// first.
    /// `Replaced` if a save was finished, because the opened files are then no longer the
    /// checkpoint at the path. `AlreadyExists` if another process is finishing the save; errors of
    /// the storage.
    pub(crate) fn of(checkpoint: &'c Checkpoint, at: &'c Location) -> Result<Self> {
        match at.finish_unfinished()? {
            true => Err(checkpoint.was_replaced()),
            false => Ok(Self::Opened(checkpoint, at)),
        }
    }

    fn is_replaced(&self) -> bool {
        match self {
            Self::Opened(checkpoint, _) => checkpoint.is_replaced(),
            Self::At(at, before) => identity(at) != *before,
        }
    }

    fn check(&self) -> Result<()> {
        if self.is_replaced() {
            return Err(self.was_replaced());
        }
        let (Self::Opened(_, at) | Self::At(at, _)) = self;
        at.check_unwritten()
    }

    /// Writes a side file. Removes it again if another checkpoint has taken the path by then,
    /// because the side file would report the other checkpoint as damaged. A save that replaces
    /// single files looks for side files after its commit, and this function looks for such a save
    /// after its write. So the later of the two finds the wrong side file.
    pub(crate) fn put<T>(&self, side_file: SideFile<'_>, put: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        let done = put()?;
        if !self.is_replaced() {
            return Ok(done);
        }
        let (Self::Opened(_, at) | Self::At(at, _)) = self;
        // If the storage cannot be read, keep the side file: its checkpoint may still exist.
        if identity(at).is_some() || is_gone(at) {
            // Finish an unfinished save first, so that its side file is not mistaken for this one.
            let _ = at.finish_unfinished();
            side_file.take_back()?;
            // If the checkpoint was removed, writing the side file has made the folder again.
            if side_file.file.parent().is_same(at) {
                at.remove_if_empty();
            }
        }
        Err(self.was_replaced())
    }

    fn was_replaced(&self) -> Error {
        match self {
            Self::Opened(checkpoint, _) => checkpoint.was_replaced(),
            Self::At(at, _) => Error::new(ErrorKind::Replaced, "the checkpoint was replaced").in_file(*at),
        }
    }
}

/// Whether the path is known to hold only side files, or nothing.
pub(super) fn is_gone(at: &Location) -> bool {
    let is_beside = |entry: &Entry| entry.name.to_str().is_some_and(is_name_of_side_file);
    match at.look() {
        Ok(None) => true,
        Ok(Some(Found::Folder)) => at.entries().is_ok_and(|entries| entries.iter().all(is_beside)),
        Ok(Some(_)) | Err(_) => false,
    }
}

/// Removes side files of a checkpoint, in one folder, and syncs the folder: after a power cut, old
/// side files must not reappear beside the next checkpoint.
pub(super) fn take_away<'f>(files: impl IntoIterator<Item = &'f Location>) -> Result<()> {
    let files: Vec<&Location> = files.into_iter().collect();
    let Some(first) = files.first() else { return Ok(()) };
    let names: Vec<&[u8]> = files.iter().map(|file| file.name().as_encoded_bytes()).collect();
    first.parent().store().delete_durably(&names)
}
