//! A new checkpoint during its save: begun, filled with files, and committed or dropped.
//!
//! | | a disk | a bucket |
//! |---|---|---|
//! | begin | a locked folder beside the target, under a temporary name | a claim: one object, created if absent |
//! | add files | into that folder | under their final names |
//! | commit | sync, rename, sync the folder above | a marker: one object, created if absent |
//! | drop | the folder is removed | the objects are removed |
//!
//! Until the commit a reader sees the old checkpoint or none. After the commit it sees the complete
//! new checkpoint.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use super::Identity;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::{Blob, FileWriter};

/// What the names of unfinished checkpoints contain, by Orbax' rule; regrow's own follow it.
pub const UNCOMMITTED_MARK: &str = ".orbax-checkpoint-tmp";

/// In a bucket a checkpoint is complete when this object is in its folder. Orbax' own name and
/// meaning.
pub const COMMITTED_MARKER: &str = "commit_success.txt";

/// What a checkpoint is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A folder of files.
    Folder,
    /// One file: [`Publication::single_writer`] writes it.
    File,
    /// Several files beside each other, named after the target: [`Publication::sibling_writer`]
    /// writes them.
    Siblings {
        /// What is put behind the target, for each file. The last file is what makes the
        /// checkpoint.
        suffixes: Vec<String>,
    },
}

/// How a checkpoint is published.
#[derive(Debug, Clone, Copy)]
pub struct PublishOptions<'a> {
    /// What it is made of.
    pub kind: &'a Target,
    /// Whether what is at the target may be replaced.
    pub overwrite: bool,
    /// Whether what a user has put beside a checkpoint that is replaced is to stay there: on a
    /// disk. It is the caller's to bring it over.
    pub keeps_others: bool,
    /// What else is asked of a file before it is replaced; folders have checks of their own.
    pub may_replace: Option<fn(&Location) -> Result<()>>,
    /// What is done right before a single file has its name, where it has that as soon as it is
    /// whole.
    pub make_way: Option<fn(&Location) -> Result<()>>,
    /// Whether a link to a file is itself replaced, and not the file that it leads to.
    pub replaces_links: bool,
    /// Whether `commit` waits until the checkpoint would survive a power cut.
    pub durable: bool,
    /// Counts what is written, and stops when it says so.
    pub monitor: &'a Monitor,
}

impl<'a> PublishOptions<'a> {
    /// Those of one file that takes the place of another one, or none, and is durable.
    pub fn of_one_file(monitor: &'a Monitor) -> Self {
        Self {
            kind: &Target::File,
            overwrite: true,
            keeps_others: false,
            may_replace: None,
            make_way: None,
            replaces_links: false,
            durable: true,
            monitor,
        }
    }
}

/// A checkpoint that is being written. Dropped uncommitted, it leaves no trace.
pub trait Publication: Debug + Send + Sync {
    /// Where it will be.
    fn target(&self) -> &Location;

    /// The monitor that counts the bytes and may cancel.
    fn monitor(&self) -> &Monitor;

    /// Whether `commit` waits until the checkpoint would survive a power cut.
    fn is_durable(&self) -> bool;

    /// Writes one small file of a folder.
    ///
    /// # Errors
    /// `AlreadyExists` if it was written before; `InvalidArgument` if the name leads out of the
    /// folder, or the checkpoint is none; errors of the storage.
    fn write(&self, _name: &str, _bytes: &[u8]) -> Result<()> {
        Err(no_such_file("folder"))
    }

    /// A writer of one large file of a folder. About `expected_len_bytes` will be written, 0 if
    /// unknown; blocks of checksums start at byte `checksums_from`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn writer(&self, _name: &str, _expected_len_bytes: u64, _checksums_from: u64) -> Result<FileWriter> {
        Err(no_such_file("folder"))
    }

    /// A writer of the one file of a checkpoint that is a single file; the arguments are those of
    /// [`writer`](Self::writer).
    ///
    /// # Errors
    /// As there; `InvalidArgument` if the checkpoint is no single file.
    fn single_writer(&self, _expected_len_bytes: u64, _checksums_from: u64) -> Result<FileWriter> {
        Err(no_such_file("single file"))
    }

    /// The same, and what it writes takes the place of what is there now, and of nothing else: a
    /// bucket has that condition for the end of the writer, other storages for the
    /// [commit](Self::commit_in_place_of).
    ///
    /// # Errors
    /// As there. Its end fails with `Replaced` if something else is there by then.
    fn single_writer_in_place(&self, expected_len_bytes: u64) -> Result<FileWriter> {
        self.single_writer(expected_len_bytes, 0)
    }

    /// A writer of file number `at` of a checkpoint of several beside each other.
    ///
    /// # Errors
    /// As [`writer`](Self::writer); `InvalidArgument` if there are not that many.
    fn sibling_writer(
        &self,
        _at: usize,
        _expected_len_bytes: u64,
        _checksums_from: u64,
    ) -> Result<FileWriter> {
        Err(no_such_file("file of this number"))
    }

    /// Makes `name` a file with the bytes of the value at `source`, which is `opened`, without
    /// moving them through this process: a hard link, a copy within the bucket. Both stay whole
    /// when the other one is deleted.
    ///
    /// False, with nothing left, where the storage cannot do it, or `source` leads to something
    /// else by now.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder, or the checkpoint is none;
    /// `Cancelled`.
    fn reuse(&self, _name: &str, _source: &Location, _opened: &dyn Blob) -> Result<bool> {
        Err(no_such_file("folder"))
    }

    /// Bytes of the files that were [reused](Self::reuse).
    fn reused_bytes(&self) -> u64 {
        0
    }

    /// Bytes of all files.
    ///
    /// # Errors
    /// Errors of the storage.
    fn stored_bytes(&self) -> Result<u64>;

    /// Where the one file of a checkpoint that is a single file can be looked at before the commit;
    /// `None` where it cannot.
    fn staged_file(&self) -> Option<Location> {
        None
    }

    /// What the marker of the checkpoint ends in, where one object makes it complete: by this its
    /// writer knows it again.
    fn marker_line(&self) -> Option<String> {
        None
    }

    /// The folder that is being written, of a disk: for what only a local file system can do.
    fn local_folder(&self) -> Option<&Path> {
        None
    }

    /// By what other processes [join](super::Storage::join) this checkpoint, to add files of their
    /// own.
    ///
    /// # Errors
    /// `Unsupported` if it has one writer.
    fn ticket(&self) -> Result<String> {
        Err(Error::unsupported("only one process can write this checkpoint").in_file(self.target()))
    }

    /// For a process that joined: makes its files durable. The process that began the checkpoint
    /// then commits it.
    ///
    /// # Errors
    /// Errors of the storage; `InvalidArgument` if this process has begun the checkpoint itself.
    fn finish_share(&self) -> Result<()> {
        Err(Error::invalid("only the process that started the checkpoint can commit it")
            .in_file(self.target()))
    }

    /// For a process that joined: whether the process that began the checkpoint has committed it.
    ///
    /// # Errors
    /// Errors of the storage.
    fn is_published(&self) -> Result<bool> {
        Ok(false)
    }

    /// Makes a small file of this name, as the sign that a process has taken over something; false
    /// if another one was faster. [`sweep`](Self::sweep) removes it before the commit.
    ///
    /// # Errors
    /// Errors of the storage; `InvalidArgument` if the checkpoint is no folder.
    fn claim(&self, _name: &str) -> Result<bool> {
        Err(no_such_file("folder"))
    }

    /// Removes the files directly in the folder `below` (empty: the checkpoint's own) whose names
    /// `is_left` picks, of any writer: files of a dead process.
    ///
    /// # Errors
    /// Errors of the storage; `InvalidArgument` if the checkpoint is no folder, or another process
    /// commits it.
    fn sweep(&self, _below: &str, _is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        Err(no_such_file("folder"))
    }

    /// The bytes of a small file that this process or one that joined has written and made durable.
    ///
    /// # Errors
    /// Errors of the storage; `InvalidArgument` if the checkpoint is no folder.
    fn written(&self, _name: &str) -> Result<Vec<u8>> {
        Err(no_such_file("folder"))
    }

    /// Removes a small file that this process or a joined one wrote as a message, and that is not
    /// part of the checkpoint.
    ///
    /// # Errors
    /// Errors of the storage; `InvalidArgument` if the checkpoint is no folder.
    fn withdraw(&self, _name: &str) -> Result<()> {
        Err(no_such_file("folder"))
    }

    /// Gives the folder `below` (empty: the checkpoint's own) this mode, at the latest with the
    /// commit; nothing where folders have none.
    ///
    /// # Errors
    /// Errors of the storage.
    fn set_mode(&self, _below: &str, _mode: u32) -> Result<()> {
        Ok(())
    }

    /// Makes all files durable, and gives the checkpoint its name: a reader sees the complete
    /// checkpoint or none. The checkpoint that it replaces is removed; parts that cannot be removed
    /// keep a temporary name.
    ///
    /// # Errors
    /// `AlreadyExists` if another writer was faster and nothing is to be replaced;
    /// `InvalidArgument` if the target has become something that may not be replaced; `Cancelled`.
    /// The target is then as it was, and what was written is removed. Only after `NotDurable` the
    /// target is the new checkpoint, and may not survive a power cut.
    fn commit(self: Box<Self>) -> Result<()>;

    /// The same of a single file, only in the place of this one, or of none: in one step, where the
    /// storage has such a step.
    ///
    /// # Errors
    /// As there; `Replaced` if something else is there.
    fn commit_in_place_of(self: Box<Self>, _before: Option<Identity>) -> Result<()> {
        self.commit()
    }
}

/// The error of a rewrite whose file was replaced in between.
pub fn replaced_in_between(file: impl Into<PathBuf>) -> Error {
    Error::new(ErrorKind::Replaced, "the file was replaced or removed while regrow rewrote it").in_file(file)
}

/// The error of a writer that is not for checkpoints of this kind.
pub fn no_such_file(what: &str) -> Error {
    Error::invalid(format!("this checkpoint has no {what}"))
}
