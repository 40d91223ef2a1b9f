//! A new checkpoint during its save: begun, filled with files, and committed or dropped.
//!
//! | | a disk | a bucket |
//! |---|---|---|
//! | begin | a locked folder beside the target, under a temporary name | the state object of the target or of a folder beside it |
//! | add files | into that folder | under their final names |
//! | commit | sync, rename, sync the folder above | a marker: one object, created if absent |
//! | drop | the folder is removed | the objects are removed |
//!
//! Until the commit, a reader sees the old checkpoint or none. After the commit, the reader sees
//! the complete new checkpoint.

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::in_memory::FilesInMemory;
use crate::location::Location;
use crate::lock::TargetLock;
use crate::monitor::Monitor;
use crate::store::{Blob, FileWriter};

/// The names of unfinished checkpoints contain this text. Orbax made the rule, and regrow follows
/// it.
pub const UNCOMMITTED_MARK: &str = ".orbax-checkpoint-tmp";

/// A checkpoint in a bucket is complete if this object is in its folder. Orbax uses the same name
/// for the same purpose.
pub const COMMITTED_MARKER: &str = "commit_success.txt";

/// The kind of a checkpoint: a folder or files. Each kind is begun by a method of its own, and has
/// a type of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A folder of files.
    Folder,
    /// One file, which [`NewFile::single_writer`] writes.
    File,
    /// Several files of one stem, which [`NewSiblings::sibling_writer`] writes.
    Siblings {
        /// The suffix of each file, which is appended to the target. The last file makes the
        /// checkpoint.
        suffixes: Vec<String>,
    },
}

/// The options of a save.
#[derive(Debug, Clone, Copy)]
pub struct PublishOptions<'a> {
    /// Whether an existing checkpoint may be replaced.
    pub overwrite: bool,
    /// Whether an overwrite keeps a user's files that lie in the folder of the old checkpoint (on a
    /// disk). The caller must move them to the new checkpoint.
    pub keeps_others: bool,
    /// A further check of a file that is to be replaced. Folders have checks of their own.
    pub may_replace: Option<fn(&Location) -> Result<()>>,
    /// Whether a link to a file is replaced itself, instead of the file.
    pub replaces_links: bool,
    /// How long the commit waits for another process that changes the target; the default is
    /// [`WAIT_DEFAULT`](crate::WAIT_DEFAULT).
    pub wait: Option<Duration>,
    /// The mode of the new folder, for storages whose folders have modes; the default of the system
    /// or the mode of the old folder if `None`.
    pub mode: Option<u32>,
    /// Whether `commit` waits until the checkpoint would survive a power cut.
    pub durable: bool,
    /// Whether the new files stay in the page cache (on a disk).
    pub keep_cached: bool,
    /// Notes new files whose bytes are also in memory. Only a disk notes them.
    pub in_memory: Option<&'a FilesInMemory>,
    /// Counts the written bytes, and can cancel the save.
    pub monitor: &'a Monitor,
}

impl<'a> PublishOptions<'a> {
    /// The options of a new durable checkpoint that replaces nothing.
    pub fn of_new(monitor: &'a Monitor) -> Self {
        Self {
            overwrite: false,
            keeps_others: false,
            may_replace: None,
            replaces_links: false,
            wait: None,
            mode: None,
            durable: true,
            keep_cached: false,
            in_memory: None,
            monitor,
        }
    }

    /// The options of a durable checkpoint that replaces an existing one, if there is one.
    pub fn of_overwrite(monitor: &'a Monitor) -> Self {
        Self { overwrite: true, ..Self::of_new(monitor) }
    }
}

/// The end of a checkpoint that this process has begun. If it is dropped uncommitted, no file
/// stays.
pub trait Publication: Debug + Send + Sync {
    /// Total length of all files in bytes.
    ///
    /// # Errors
    /// Errors of the storage.
    fn stored_bytes(&self) -> Result<u64>;

    /// Commits, as [`commit_under`](Self::commit_under), and takes the lock of the target for it.
    ///
    /// # Errors
    /// The same as there; `Busy` if another process keeps the lock.
    fn commit(self: Box<Self>) -> Result<()> {
        self.commit_under(None)
    }

    /// Makes all files durable, and gives the checkpoint its name: a reader sees the complete
    /// checkpoint or none. The checkpoint that it replaces is removed; parts that cannot be removed
    /// keep a temporary name. If the caller has the lock of
    /// the target, it passes the lock.
    ///
    /// # Errors
    /// `AlreadyExists` if another writer was faster and `overwrite` is not set. `InvalidArgument`
    /// if the target has become something that may not be replaced. `Cancelled`. After these errors
    /// the target is unchanged and the written files are removed. Only after `NotDurable` is the
    /// new checkpoint at the target, but it may not survive a power cut.
    fn commit_under(self: Box<Self>, lock: Option<&TargetLock>) -> Result<()>;

    /// Whether this publication has the lock of its target from its begin to its commit, so that
    /// the caller cannot take it.
    fn has_lock(&self) -> bool;

    /// The folders above the target that this publication has made. If the commit fails under a
    /// lock of the caller, the caller removes them after the lock, whose file is in one of them.
    fn made_folders(&self) -> Vec<Location>;
}

/// A new folder, to which files are added by name.
pub trait NewFolder: Debug + Send + Sync {
    /// The location that the folder will have.
    fn target(&self) -> &Location;

    /// The monitor that counts the bytes and may cancel.
    fn monitor(&self) -> &Monitor;

    /// Whether the commit waits until the checkpoint would survive a power cut.
    fn is_durable(&self) -> bool;

    /// Writes one small file.
    ///
    /// # Errors
    /// `AlreadyExists` if it was written before; `InvalidArgument` if the name leads out of the
    /// folder; errors of the storage.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// A writer of one large file. The length is about `expected_len_bytes`, 0 if unknown. Blocks
    /// with checksums start at byte `checksums_from`.
    ///
    /// # Errors
    /// The same as for [`write`](Self::write).
    fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter>;

    /// Makes `name` a file with the bytes of the value at `source`, opened as `opened`. The storage
    /// makes a hard link or a copy within the bucket, so the bytes do not pass through this
    /// process. Deleting one of the two does not damage the other.
    ///
    /// Returns `false`, and leaves nothing, if the storage cannot do this, or if `source` leads to
    /// another file by now.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder; `Cancelled`.
    fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool>;

    /// Total length of the [reused](Self::reuse) files in bytes.
    fn reused_bytes(&self) -> u64;

    /// The bytes of a small file that this process or a joined process has written and made
    /// durable.
    ///
    /// # Errors
    /// Errors of the storage.
    fn written(&self, name: &str) -> Result<Vec<u8>>;

    /// The last line of the marker, by which a writer recognizes its own marker; `None` if the
    /// storage commits without a marker.
    fn marker_line(&self) -> Option<String>;

    /// The folder that is being written, for functions that work only on the local disk; `None` for
    /// other storages.
    fn local_folder(&self) -> Option<&Path>;
}

/// A new folder in which this process merges the files of all processes.
pub trait MergedFolder: NewFolder {
    /// Removes files of dead processes: the files directly in the folder `below` (empty: this
    /// folder) for whose names `is_left` returns true.
    ///
    /// # Errors
    /// Errors of the storage.
    fn sweep(&self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()>;

    /// Removes a small file that this process or a joined one wrote as a message, and that is not
    /// part of the checkpoint.
    ///
    /// # Errors
    /// Errors of the storage.
    fn withdraw(&self, name: &str) -> Result<()>;
}

/// A folder that this process has begun, and will commit.
pub trait BegunFolder: MergedFolder + Publication {
    /// The text with which other processes [join](crate::Publish::join) this checkpoint, to add
    /// their own files.
    ///
    /// # Errors
    /// `InvalidArgument` if the name of the folder is not UTF-8.
    fn ticket(&self) -> Result<String>;
}

/// A folder that another process has begun, and will commit.
pub trait JoinedFolder: NewFolder {
    /// Makes a small file of this name, with which a process reserves a task; `false` if another
    /// process was faster. [`sweep`](MergedFolder::sweep) removes the file before the commit.
    ///
    /// # Errors
    /// Errors of the storage.
    fn claim(&self, name: &str) -> Result<bool>;

    /// Total length in bytes of the files of this process, on storages where only their writer can
    /// count them; otherwise 0.
    fn share_len_bytes(&self) -> u64;

    /// Makes the files of this process durable. The process that began the checkpoint then commits
    /// it.
    ///
    /// # Errors
    /// Errors of the storage.
    fn finish_share(&self) -> Result<()>;

    /// Whether the process that began the checkpoint has committed it.
    ///
    /// # Errors
    /// Errors of the storage.
    fn is_published(&self) -> Result<bool>;
}

/// A new single file.
pub trait NewFile: Debug + Send + Sync {
    /// The location that the file will have.
    fn target(&self) -> &Location;

    /// A writer of the file. The arguments are those of [`NewFolder::writer`].
    ///
    /// # Errors
    /// The same as there.
    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter>;
}

/// New files of one stem.
pub trait NewSiblings: Debug + Send + Sync {
    /// The stem of the files.
    fn target(&self) -> &Location;

    /// A writer of file number `at`. The other arguments are those of [`NewFolder::writer`].
    ///
    /// # Errors
    /// The same as there; `InvalidArgument` if there are fewer files.
    fn sibling_writer(&self, at: usize, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter>;
}

/// A single file that this process has begun, and will commit.
pub trait BegunFile: NewFile + Publication {}
impl<T: NewFile + Publication> BegunFile for T {}

/// Files of one stem that this process has begun, and will commit.
pub trait BegunSiblings: NewSiblings + Publication {}
impl<T: NewSiblings + Publication> BegunSiblings for T {}

/// The error for a number beyond the files of a checkpoint.
pub(crate) fn no_such_file() -> Error {
    Error::invalid("this checkpoint has no file of this number")
}
