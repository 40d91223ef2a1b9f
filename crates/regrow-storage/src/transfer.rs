//! A copy of the files of a checkpoint, byte for byte: a publication that can be interrupted and
//! continued.
//!
//! | | a disk | a bucket |
//! |---|---|---|
//! | begin | the folder `T.orbax-checkpoint-tmp-copy`, locked; usable files of an earlier copy stay | the state object; usable objects of an earlier copy stay |
//! | a file is complete | a line in the journal in that folder | an entry in the state object, with the object's tag |
//! | commit | sync, rename, sync the folder above | a marker: one object, created if absent |
//! | drop | the files stay for the next copy | complete objects stay; the state object says that no process works on the copy |
//!
//! Each line of a journal names a file, the version of it in the source, its length and its BLAKE3.
//! A later transfer of the same version reuses the file if it still has this digest.

use std::sync::Arc;
use std::time::Duration;

use blake3::Hash;

use super::{Publication, PublishOptions, Target};
use crate::error::Result;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::{Blob, FileWriter};

/// The files of a copy, and its options.
#[derive(Debug, Clone, Copy)]
pub struct TransferOptions<'a> {
    /// The kind of the checkpoint.
    pub kind: &'a Target,
    /// The files to copy: all files of a folder, the single file, or the files of one stem in their
    /// order.
    pub files: &'a [TransferFile],
    /// The marker to write, on storages that use markers.
    pub marker: &'a Marker,
    /// Whether an existing checkpoint may be replaced.
    pub overwrite: bool,
    /// A further check of a file that is to be replaced.
    pub may_replace: Option<fn(&Location) -> Result<()>>,
    /// Whether `commit` waits until the checkpoint would survive a power cut.
    pub durable: bool,
    /// How long the copy waits for another process that changes the target.
    pub wait: Option<Duration>,
    /// Counts the written bytes, and can cancel the copy.
    pub monitor: &'a Monitor,
}

impl<'a> TransferOptions<'a> {
    /// The options of tests: these files, a target that does not exist.
    #[cfg(test)]
    pub(crate) fn of_files(kind: &'a Target, files: &'a [TransferFile], monitor: &'a Monitor) -> Self {
        static MARKER: Marker = Marker::Other;
        Self {
            kind,
            files,
            marker: &MARKER,
            overwrite: false,
            may_replace: None,
            durable: true,
            wait: None,
            monitor,
        }
    }

    /// The same options for a new checkpoint.
    pub(crate) fn as_publish(self) -> PublishOptions<'a> {
        PublishOptions {
            overwrite: self.overwrite,
            may_replace: self.may_replace,
            durable: self.durable,
            wait: self.wait,
            ..PublishOptions::of_new(self.monitor)
        }
    }
}

/// The marker that makes a folder a checkpoint, on storages that use markers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// The marker of the layout, with this text; empty for the default text.
    Own(Vec<u8>),
    /// A marker that only regrow knows, for layouts without one.
    Other,
    /// No marker that stays: the folder contains steps, and is not one checkpoint that an overwrite
    /// could replace as a whole.
    OfSteps,
}

/// One file of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferFile {
    /// The path below the folder. For other kinds, a name that no other file of the copy has.
    pub name: String,
    /// The length in bytes.
    pub len_bytes: u64,
    /// Distinguishes this version of the file from all other files and versions.
    pub version: String,
}

/// The usable bytes of a file from an earlier transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// No usable bytes.
    Nothing,
    /// The beginning of the file, up to one of these lengths. Each has the digest of all bytes
    /// before it.
    Beginning(Vec<(u64, Hash)>),
    /// The whole file.
    Whole {
        /// The digest when the file was written.
        digest: Hash,
        /// Whether the file was read back after the write, and cannot have changed since.
        is_proven: bool,
    },
}

/// A transfer that has begun: a publication with a journal. If it is dropped uncommitted, or if the
/// commit fails before the checkpoint gets its name, its files stay for a later transfer, which
/// continues it.
pub trait Transfer: Publication {
    /// The usable bytes of file number `at` from an earlier transfer.
    fn left(&self, at: usize) -> Left;

    /// A writer of a file from `offset_bytes` on. Bytes after this offset are removed.
    ///
    /// # Errors
    /// Errors of the storage; `InvalidArgument` if the offset is not 0 and the storage can only
    /// write whole files.
    fn writer(&self, at: usize, offset_bytes: u64) -> Result<FileWriter>;

    /// Records that a file is written up to an offset, with the digest of this part.
    ///
    /// # Errors
    /// Errors of the storage.
    fn reached(&self, _at: usize, _offset_bytes: u64, _digest: Hash) -> Result<()> {
        Ok(())
    }

    /// The written file, for reading it back.
    ///
    /// # Errors
    /// `Corrupt` if the file does not exist.
    fn written(&self, at: usize) -> Result<Arc<dyn Blob>>;

    /// Records that a file is complete, and whether it was read back.
    ///
    /// # Errors
    /// Errors of the storage; `Replaced` if another process has taken over this transfer.
    fn finished(&self, at: usize, digest: Hash, is_verified: bool) -> Result<()>;

    /// Removes a file whose bytes turned out to be wrong.
    ///
    /// # Errors
    /// Errors of the storage.
    fn discard(&self, at: usize) -> Result<()>;
}
