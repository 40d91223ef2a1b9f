//! A copy of the files of a checkpoint, byte for byte: a publication that can be interrupted and
//! continued.
//!
//! | | a disk | a bucket |
//! |---|---|---|
//! | begin | `T.orbax-checkpoint-tmp-copy`, locked; what is in it already is looked at | the claim; so are the objects |
//! | a file is whole | a line in the journal in that folder | a line in the claim, with the object's tag |
//! | commit | sync, rename, sync the folder above | a marker: one object, created if absent |
//! | drop | all stays | all stays, and the claim says that no process works on it |
//!
//! Each line of a journal names a file, the version of it in the source, its length and its BLAKE3.
//! A later transfer of the same version reuses the file if it still has this digest.

use std::fmt::Debug;
use std::sync::Arc;

use blake3::Hash;

use super::{Identity, PublishOptions, Target};
use crate::error::Result;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::{Blob, FileWriter};

/// What is transferred, and how.
#[derive(Debug, Clone, Copy)]
pub struct TransferOptions<'a> {
    /// What the checkpoint is made of.
    pub kind: &'a Target,
    /// Its files: all of a folder, the one, or those beside each other in their order.
    pub files: &'a [TransferFile],
    /// What makes a folder a checkpoint, where markers do.
    pub marker: &'a Marker,
    /// Whether what is at the target may be replaced.
    pub overwrite: bool,
    /// What else is asked of a file before it is replaced.
    pub may_replace: Option<fn(&Location) -> Result<()>>,
    /// Whether `commit` waits until the checkpoint would survive a power cut.
    pub durable: bool,
    /// Counts what is written, and stops when it says so.
    pub monitor: &'a Monitor,
}

impl<'a> TransferOptions<'a> {
    /// Those of the tests: of these files, to where nothing is.
    #[cfg(test)]
    pub(crate) fn of_files(kind: &'a Target, files: &'a [TransferFile], monitor: &'a Monitor) -> Self {
        static MARKER: Marker = Marker::Other;
        Self { kind, files, marker: &MARKER, overwrite: false, may_replace: None, durable: true, monitor }
    }

    /// The same options for a new checkpoint.
    pub(crate) fn as_publish(self) -> PublishOptions<'a> {
        PublishOptions {
            kind: self.kind,
            overwrite: self.overwrite,
            may_replace: self.may_replace,
            make_way: None,
            replaces_links: false,
            durable: self.durable,
            keeps_others: false,
            monitor: self.monitor,
        }
    }
}

/// What says that a folder is a checkpoint, where markers do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// The layout's own, with this text; empty for the usual one.
    Own(Vec<u8>),
    /// A marker that only regrow knows, for layouts without one.
    Other,
    /// None that stays: the folder holds steps, and is no checkpoint that could be replaced as a
    /// whole.
    OfSteps,
}

/// One file of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferFile {
    /// Its path below the folder; of other kinds, any name that no other file has.
    pub name: String,
    /// Its length.
    pub len_bytes: u64,
    /// What tells this version of it from every other file and version.
    pub version: String,
}

/// What an earlier transfer has left of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// Nothing that could be used.
    Nothing,
    /// Its beginning, up to some of these lengths: each with the digest of all bytes before it.
    Beginning(Vec<(u64, Hash)>),
    /// All of it.
    Whole {
        /// What it had when it was written.
        digest: Hash,
        /// Whether it was read back then, and cannot have changed since.
        is_proven: bool,
    },
}

/// A transfer that has begun. Dropped uncommitted, it leaves what it has for another one to go on
/// with.
pub trait Transfer: Debug + Send + Sync {
    /// What is there of file number `at` already.
    fn left(&self, at: usize) -> Left;

    /// A writer of a file from `offset_bytes` on; what is there beyond goes.
    ///
    /// # Errors
    /// Errors of the storage; `InvalidArgument` if only whole files can be written, and the offset
    /// is not 0.
    fn writer(&self, at: usize, offset_bytes: u64) -> Result<FileWriter>;

    /// Notes that a file is written up to an offset, and the digest of that part.
    ///
    /// # Errors
    /// Errors of the storage.
    fn reached(&self, _at: usize, _offset_bytes: u64, _digest: Hash) -> Result<()> {
        Ok(())
    }

    /// The file as it is at its new place, to be read back.
    ///
    /// # Errors
    /// `Corrupt` if it is not there.
    fn written(&self, at: usize) -> Result<Arc<dyn Blob>>;

    /// Notes that a file is whole, and whether it was read back.
    ///
    /// # Errors
    /// Errors of the storage; `AlreadyExists` if another writer has taken the place of this one.
    fn finished(&self, at: usize, digest: Hash, is_verified: bool) -> Result<()>;

    /// Takes away a file that turned out to be another than was written.
    ///
    /// # Errors
    /// Errors of the storage.
    fn discard(&self, at: usize) -> Result<()>;

    /// Makes it a checkpoint, like [`Publication::commit`](super::Publication::commit), but written
    /// files stay if this fails before the name is given. Returns the identity of the files if it
    /// is known and they are not a folder.
    ///
    /// # Errors
    /// As there.
    fn commit(self: Box<Self>) -> Result<Option<Identity>>;
}
