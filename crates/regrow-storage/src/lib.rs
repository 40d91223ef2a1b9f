//! Internals of regrow, without promises: storages for checkpoints, which are the local disk,
//! memory, buckets, archives and web servers.
//!
//! A [`Storage`] looks at a path, lists a folder, and opens a folder as a [`Store`] of keys. In all
//! storages a path consists of names with slashes between them. The [`Capabilities`] of a storage
//! say what else the storage can do: [`Publish`] begins checkpoints, [`Upkeep`] finishes and
//! removes them. Other crates use a [`Location`]: a storage and a path in it.
//!
//! | module | holds |
//! |---|---|
//! | [`location`] | [`Location`]: paths and URLs |
//! | [`local`] | the local disk: a save under a temporary name, committed by renames |
//! | `object` | memory and buckets: a save committed by a marker |
//! | [`archive`] | checkpoints in a tar or zip, read in place |
//! | `http`, `cache` | web servers; a read-through cache (both only with the feature `cloud`) |
//! | `writes` | every change of a storage: the methods of a location that write |
//! | [`publication`] | a new checkpoint: begun, filled, committed or dropped |
//! | `lock` | the lock of a target: one process changes a checkpoint at a time |
//! | `in_memory` | new files whose bytes are also in memory |
//! | [`transfer`], [`removal`] | a copy that can be continued; the files of a removal |
//! | [`within`], [`lent`] | a part of a publication; a folder that other code fills |
//! | `traces` | locks and temporary files of other processes at a target |
//! | [`Retries`] | reads start again if a writer replaces the checkpoint |
//! | [`names`], [`side_files`] | the names that belong to a checkpoint, as the layouts define them; the names of side files |
//!
//! The storage knows no layout: the layouts tell it their names with [`names::tell_names`].

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use regrow_base::{bytes, error, monitor, system, threads};
use regrow_store as store;

use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::Store;

#[cfg_attr(not(feature = "archive"), path = "archive_absent.rs")]
pub mod archive;
#[cfg(feature = "cloud")]
pub mod cache;
mod desktop;
#[cfg(feature = "cloud")]
mod http;
mod in_memory;
pub mod lent;
pub mod local;
pub mod location;
mod lock;
pub mod names;
mod object;
mod options;
pub mod publication;
pub mod removal;
mod retry;
pub mod side_files;
mod traces;
pub mod transfer;
pub mod within;
mod writes;

pub use crate::store::{Document, Identity, ReadOnly};
pub use desktop::{is_desktop_entry, is_desktop_file};
pub use in_memory::{FileInMemory, FilesInMemory};
pub use lock::{Holder, TargetLock, WAIT_DEFAULT};
pub use names::{IsOwn, Name, Names, foreign_files_in, stem_of, tell_names};
pub use object::{COMMIT_MARKERS, is_bookkeeping, private_memory};
pub use options::StorageOptions;
pub(crate) use publication::no_such_file;
pub use publication::{BegunFile, BegunFolder, BegunSiblings, JoinedFolder, Publication, PublishOptions};
pub use publication::{COMMITTED_MARKER, Target, UNCOMMITTED_MARK};
pub use publication::{MergedFolder, NewFile, NewFolder, NewSiblings};
pub(crate) use removal::{RESPECTED_FOR, is_recent};
pub use removal::{Removal, Removed};
pub use retry::Retries;
pub use traces::{Life, Trace, TraceKind};
pub use transfer::{Left, Marker, Transfer, TransferFile, TransferOptions};

/// Every kind of storage that this build knows.
const KINDS: &[&StorageKind] = &[
    &local::disk::KIND,
    &object::MEMORY,
    #[cfg(feature = "cloud")]
    &object::cloud::KIND,
    #[cfg(feature = "cloud")]
    &http::KIND,
];

/// The schemes of the URLs that this build knows, the usual one of each kind of storage first.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.schemes).copied()
}

/// A kind of storage: the schemes of its URLs, and a function that makes a location of a URL.
#[derive(Debug)]
pub(crate) struct StorageKind {
    /// The schemes in lower case. The first is the usual one.
    pub schemes: &'static [&'static str],
    pub locate: fn(&Url<'_>, &StorageOptions) -> Result<Location>,
}

/// The parts of a URL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Url<'a> {
    /// The whole URL.
    pub text: &'a str,
    /// The scheme, in lower case.
    pub scheme: &'a str,
    /// The part after `://`.
    pub rest: &'a str,
}

impl Url<'_> {
    /// The location for this URL.
    pub(crate) fn locate(&self, options: &StorageOptions) -> Result<Location> {
        if let Some(kind) = KINDS.iter().find(|kind| kind.schemes.contains(&self.scheme)) {
            return (kind.locate)(self, options);
        }
        let known: Vec<String> =
            KINDS.iter().filter_map(|kind| Some(format!("{}://", kind.schemes.first()?))).collect();
        let scheme = self.scheme;
        let what = match CLOUD_SCHEMES.contains(&scheme) {
            true => format!("{scheme}:// needs the feature `cloud`, which this build lacks"),
            false => format!("the scheme {scheme}:// is not supported"),
        };
        Err(Error::unsupported(what)
            .in_file(self.text)
            .expected(format_args!("a path, or one of {}", known.join(", ")), format_args!("{scheme}://"))
            .help(format!(
                "copy the files to a local disk, or mount the store; a local folder of this name is ./{scheme}:/..."
            )))
    }
}

const CLOUD_SCHEMES: [&str; 12] =
    ["s3", "s3a", "s3n", "r2", "gs", "gcs", "az", "azure", "abfs", "abfss", "http", "https"];

/// The kind of the entry at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A file or object.
    File {
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// A folder, or keys below the path.
    Folder,
    /// Something else, such as a pipe. The text describes it: `a pipe`, `a device`.
    Other(&'static str),
}

impl Found {
    /// Whether a file or object is at the path.
    pub fn is_file(self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// Whether a folder is at the path.
    pub fn is_folder(self) -> bool {
        self == Self::Folder
    }
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// The kind of the entry. Links are followed; a link to a missing target is `Other`.
    pub found: EntryKind,
    /// Whether the entry is a link, also one to a missing target.
    pub is_link: bool,
}

/// The kind of an entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A file or object.
    File,
    /// A folder, or keys below the name.
    Folder,
    /// Something else: a pipe, a device, a link to nothing.
    Other,
}

impl Entry {
    /// Whether the entry is a file or object, or a link to one.
    pub fn is_file(&self) -> bool {
        self.found == EntryKind::File
    }

    /// Whether the entry is a folder, or a link to one.
    pub fn is_folder(&self) -> bool {
        self.found == EntryKind::Folder
    }

    /// Whether the entry is a folder, and not a link to one.
    pub fn is_real_folder(&self) -> bool {
        self.is_folder() && !self.is_link
    }
}

/// The location from which a checkpoint is read, and its identity.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The location of the files of the checkpoint.
    pub location: Location,
    /// The identity at the time when the files were found. A caller compares it with
    /// [`Storage::identity`] of the opened path.
    pub identity: Option<Identity>,
}

impl Reading {
    /// Whether all files are read in the version that was found first.
    pub fn is_pinned(&self) -> bool {
        self.identity.is_some()
    }
}

/// The files and bytes at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// The number of files.
    pub file_count: usize,
    /// The total length of the files in bytes.
    pub bytes: u64,
    /// The time of the last change, if known.
    pub modified: Option<SystemTime>,
}

/// A storage of checkpoints, as readers need it. [`Location`] has more methods for callers.
///
/// All methods are required: a storage that wraps another one and forgets to pass something on
/// does not compile.
pub trait Storage: Debug + Send + Sync {
    /// The path or URL as messages show it.
    fn describe(&self, path: &Path) -> PathBuf;

    /// The kind of the entry at the path, with links followed; `None` if nothing is there.
    ///
    /// # Errors
    /// Errors of the storage.
    fn look(&self, path: &Path) -> Result<Option<Found>>;

    /// The names in a folder, in no order.
    ///
    /// # Errors
    /// Errors of the storage; an error if the folder does not exist, or if the storage [has no
    /// listings](Capabilities::has_listings).
    fn entries(&self, folder: &Path) -> Result<Vec<Entry>>;

    /// The keys below a folder. The folder need not exist: its path is looked up at each access.
    fn store(&self, folder: &Path) -> Arc<dyn Store>;

    /// The keys below the folder that is at the path now. They stay the keys of this folder if
    /// another folder takes the path.
    ///
    /// # Errors
    /// Errors of the storage; an error if there is no folder.
    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>>;

    /// A document; `None` if no value is at the path.
    ///
    /// # Errors
    /// `Limit` if the document is too long; `Corrupt` if a long file cannot be such a document, as
    /// soon as a piece shows this; errors of the storage. Each error has the name of the file.
    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>>;

    /// The first bytes of the value at the path, at most `len_max_bytes`; `None` if no value is
    /// there.
    ///
    /// # Errors
    /// Errors of the storage.
    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>>;

    /// Identifies the content at the path now; `None` if nothing is there.
    fn identity(&self, path: &Path) -> Option<Identity>;

    /// The location from which to read the checkpoint at the path, with the files of one moment;
    /// `None` to read the path itself.
    ///
    /// # Errors
    /// `Uncommitted` if a save is writing the checkpoint; errors of the storage.
    fn for_reading(&self, path: &Path) -> Result<Option<Reading>>;

    /// The other abilities of the storage.
    fn capabilities(&self) -> Capabilities<'_>;
}

/// The abilities of a storage beside reading, and facts about all its paths.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities<'s> {
    /// Whether the paths of the storage are those of the local file system.
    pub is_local: bool,
    /// Whether [`Storage::entries`] works. If not, only files with known names can be found.
    pub has_listings: bool,
    /// Whether a marker makes a checkpoint complete. Storages without rename work this way.
    pub commits_by_marker: bool,
    /// The archive, if the storage is one.
    pub archive: Option<&'s archive::ArchiveStorage>,
    /// The methods of the storage for writers, or the reason why it is read only.
    pub writes: std::result::Result<Writes<'s>, ReadOnly>,
    /// The storage as a cache on a local disk needs it; `None` if a cache would not help.
    #[cfg(feature = "cloud")]
    pub cacheable: Option<&'s dyn Cacheable>,
}

/// The methods of a storage that can be written to.
#[derive(Debug, Clone, Copy)]
pub struct Writes<'s> {
    /// Begins new checkpoints.
    pub publish: &'s dyn Publish,
    /// Manages existing checkpoints.
    pub upkeep: &'s dyn Upkeep,
}

impl<'s> Writes<'s> {
    fn of<S: Publish + Upkeep>(storage: &'s S) -> Self {
        Self { publish: storage, upkeep: storage }
    }
}

/// New checkpoints in a storage. Each target is a location in this storage.
pub trait Publish: Debug + Send + Sync {
    /// Returns an error if a checkpoint of this kind could not be begun. Changes nothing.
    ///
    /// # Errors
    /// The same as for [`publish_folder`](Self::publish_folder).
    fn check_publish(&self, target: &Location, kind: &Target, options: PublishOptions<'_>) -> Result<()>;

    /// Begins a checkpoint that is a folder.
    ///
    /// # Errors
    /// `AlreadyExists` if something is at the target and `overwrite` is not set; `InvalidArgument`
    /// if it may not be replaced, or if a checkpoint cannot have this name; `PermissionDenied`;
    /// errors of the storage. After an error, the target is unchanged.
    fn publish_folder(&self, target: &Location, options: PublishOptions<'_>) -> Result<Box<dyn BegunFolder>>;

    /// Begins a checkpoint that is a single file.
    ///
    /// # Errors
    /// The same as for [`publish_folder`](Self::publish_folder).
    fn publish_file(&self, target: &Location, options: PublishOptions<'_>) -> Result<Box<dyn BegunFile>>;

    /// Begins a checkpoint of several files: the target with each of the suffixes appended. The
    /// last file makes the checkpoint.
    ///
    /// # Errors
    /// The same as for [`publish_folder`](Self::publish_folder).
    fn publish_siblings(
        &self,
        target: &Location,
        suffixes: &[String],
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn BegunSiblings>>;

    /// Joins the folder that another process has begun, by its [ticket](BegunFolder::ticket). Added
    /// files belong to that checkpoint; [`finish_share`](JoinedFolder::finish_share) makes them
    /// durable. Only the process that began the checkpoint commits or removes it.
    ///
    /// # Errors
    /// `NotFound` if this process does not see the files of the other process.
    fn join(
        &self,
        target: &Location,
        ticket: &str,
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn JoinedFolder>>;

    /// Begins to copy the files of a checkpoint to the target, or continues an interrupted copy.
    ///
    /// # Errors
    /// The same as for [`publish_folder`](Self::publish_folder); `Busy` or `AlreadyExists` also if
    /// another transfer to the target is running.
    fn transfer(&self, target: &Location, options: TransferOptions<'_>) -> Result<Box<dyn Transfer>>;
}

/// Manages the checkpoints that a storage has: finds their writers, finishes them, removes them.
pub trait Upkeep: Debug + Send + Sync {
    /// Files and bytes at the path, and the time of the last change; `None` if unknown.
    ///
    /// # Errors
    /// Errors of the storage.
    fn stock(&self, path: &Path) -> Result<Option<Stock>>;

    /// Returns an error if a save, copy or removal at this location, or of a checkpoint around it,
    /// has not ended: the files are a part of a checkpoint, not a damaged checkpoint.
    ///
    /// # Errors
    /// `Uncommitted`; errors of the storage.
    fn check_finished(&self, at: &Location) -> Result<()>;

    /// Finishes a commit whose writer died just before it gave the checkpoint its name. Returns
    /// whether there was such a checkpoint. Other unfinished saves stay.
    ///
    /// # Errors
    /// Errors of the storage.
    fn finish_unfinished(&self, at: &Location) -> Result<bool>;

    /// Removes the files of saves and copies to `at` that did not finish.
    ///
    /// # Errors
    /// `NotFound` if there are no such files; `Busy` or `AlreadyExists` if their writer may still
    /// live and `force` is not set; errors of the storage.
    fn remove_unfinished(&self, at: &Location, force: bool) -> Result<Removed>;

    /// The locks and temporary files of all processes at the target.
    ///
    /// # Errors
    /// Errors of the storage.
    fn traces(&self, at: &Location) -> Result<Vec<Trace>>;

    /// Takes the lock of the target, and finishes the commit of a dead process. Waits at most
    /// `wait` for another process that has the lock; the default is [`WAIT_DEFAULT`].
    ///
    /// # Errors
    /// `Busy` names the other process; `Cancelled`; errors of the storage.
    fn lock(
        &self,
        at: &Location,
        operation: &'static str,
        wait: Option<Duration>,
        monitor: &Monitor,
    ) -> Result<TargetLock>;

    /// Removes a checkpoint, whose lock the caller has. After an error, the checkpoint is either
    /// complete or no longer a checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` if foreign files are in the checkpoint; errors of the storage.
    fn remove(&self, at: &Location, what: &Removal, lock: &TargetLock) -> Result<Removed>;
}

/// A storage that can be read through a cache on a local disk.
#[cfg(feature = "cloud")]
pub trait Cacheable: Debug {
    /// The same storage, read through the cache; `None` if a cache would not help.
    fn cached(&self, cache: &cache::Cache) -> Option<Arc<dyn Storage>>;
}
