//! Internals of regrow, without promises: places for checkpoints. A local disk, memory, a bucket,
//! an archive, a web server.
//!
//! A [`Storage`] looks at a path, lists a folder, and opens a folder as a [`Store`] of keys. In all
//! storages a path consists of names with slashes between them. Its [`Capabilities`] say what else
//! it can do: [`Publish`] begins checkpoints, [`Upkeep`] finishes and removes them. Other crates use
//! a [`Location`]: a storage and a path in it.
//!
//! | module | holds |
//! |---|---|
//! | [`location`] | [`Location`]: paths and URLs |
//! | [`local`] | the local disk: a save under a temporary name, committed by renames |
//! | `object` | memory and buckets: a save committed by a marker |
//! | [`archive`] | checkpoints in a tar or zip, read in place |
//! | `http`, `cache` | web servers; a read-through cache: the feature `cloud` |
//! | `writes` | every change of a storage: the methods of a location that write |
//! | [`publication`] | a new checkpoint: begun, filled, committed or dropped |
//! | [`transfer`], [`removal`] | a copy that can go on; what is removed |
//! | [`within`], [`lent`] | a part of a publication; a folder that other code fills |
//! | [`Retries`] | reads start again if a writer replaces the checkpoint |
//! | [`names`], [`side_files`] | which names are a checkpoint's own, by what the layouts say |
//!
//! The storage knows no layout: the layouts tell it their names with [`names::tell_names`].

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use regrow_base::{bytes, error, monitor, system, threads};
use regrow_store as store;

use crate::error::{Error, Result};
use crate::location::Location;
use crate::store::Store;

#[cfg_attr(not(feature = "archive"), path = "archive_absent.rs")]
pub mod archive;
#[cfg(feature = "cloud")]
pub mod cache;
mod desktop;
#[cfg(feature = "cloud")]
mod http;
pub mod lent;
pub mod local;
pub mod location;
pub mod names;
mod object;
mod options;
pub mod publication;
pub mod removal;
mod retry;
pub mod side_files;
pub mod transfer;
pub mod within;
mod writes;

pub use crate::store::{Document, Identity, ReadOnly};
pub use desktop::{is_desktop_entry, is_desktop_file};
pub use names::{IsOwn, Name, Names, foreign_files_in, stem_of, tell_names};
pub use object::{COMMIT_MARKERS, is_bookkeeping, private_memory};
pub use options::StorageOptions;
pub use publication::{BegunFolder, JoinedShare, NewFile, NewFiles, NewFolder, NewSiblings, Role};
pub use publication::{COMMITTED_MARKER, Publication, PublishOptions, Target, UNCOMMITTED_MARK};
pub use publication::{no_such_file, replaced_in_between};
pub(crate) use removal::{RESPECTED_FOR, is_recent};
pub use removal::{Removal, Removed};
pub use retry::Retries;
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

/// A kind of storage: the schemes of its URLs, and how a location in it is made.
#[derive(Debug)]
pub(crate) struct StorageKind {
    /// In lower case; the first is the usual one.
    pub schemes: &'static [&'static str],
    /// Makes a location of a URL: the scheme, what follows its `://`, and options.
    pub locate: fn(&Url<'_>, &StorageOptions) -> Result<Location>,
}

/// A URL, taken apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Url<'a> {
    /// All of it.
    pub text: &'a str,
    /// In lower case.
    pub scheme: &'a str,
    /// What follows the `://`.
    pub rest: &'a str,
}

impl Url<'_> {
    /// The location that it names.
    ///
    /// # Errors
    /// `Unsupported` if this build knows no storage for the scheme; errors of the storage.
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

/// Schemes of the feature `cloud`.
const CLOUD_SCHEMES: [&str; 12] =
    ["s3", "s3a", "s3n", "r2", "gs", "gcs", "az", "azure", "abfs", "abfss", "http", "https"];

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A value: a regular file, an object.
    File {
        /// Its length.
        len_bytes: u64,
    },
    /// A folder, or keys below the path.
    Folder,
    /// Something else, in words: `a pipe`, `a device`.
    Other(&'static str),
}

impl Found {
    /// Whether it is a value.
    pub fn is_file(self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// Whether it is a folder.
    pub fn is_folder(self) -> bool {
        self == Self::Folder
    }
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// What the name leads to, through links; `Other` for a link that leads nowhere.
    pub found: EntryKind,
    /// Whether it is a link, to any target.
    pub is_link: bool,
}

/// What a name in a folder leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A value: a regular file, an object.
    File,
    /// A folder, or keys below the name.
    Folder,
    /// Something else: a pipe, a device, a link to nothing.
    Other,
}

impl Entry {
    /// Whether the name leads to a value.
    pub fn is_file(&self) -> bool {
        self.found == EntryKind::File
    }

    /// Whether the name leads to a folder.
    pub fn is_folder(&self) -> bool {
        self.found == EntryKind::Folder
    }

    /// Whether the name is a folder itself, and no link to one.
    pub fn is_real_folder(&self) -> bool {
        self.is_folder() && !self.is_link
    }
}

/// From where a checkpoint is read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Where its files are.
    pub location: Location,
    /// The identity when the files were found, to be compared with [`Storage::identity`] of the
    /// path that was opened.
    pub identity: Option<Identity>,
}

impl Reading {
    /// Whether every file is read in the version that the first look found.
    pub fn is_pinned(&self) -> bool {
        self.identity.is_some()
    }
}

/// How much is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// Files.
    pub file_count: usize,
    /// Their bytes.
    pub bytes: u64,
    /// When any of it was changed last.
    pub modified: Option<SystemTime>,
}

/// A place for checkpoints, as readers need it. [`Location`] has the comfort.
///
/// All methods are required: a storage that wraps another one and forgets to pass something on
/// does not compile.
pub trait Storage: Debug + Send + Sync {
    /// What a person would call the path: a path, a URL.
    fn describe(&self, path: &Path) -> PathBuf;

    /// What is at the path, through links; `None` if nothing is.
    ///
    /// # Errors
    /// Errors of the storage.
    fn look(&self, path: &Path) -> Result<Option<Found>>;

    /// The names in a folder, in no order.
    ///
    /// # Errors
    /// Errors of the storage; an error if there is no folder, or the storage
    /// [has no listings](Capabilities::has_listings).
    fn entries(&self, folder: &Path) -> Result<Vec<Entry>>;

    /// The keys below a folder, found by its path whenever one is opened; the folder need not
    /// exist.
    fn store(&self, folder: &Path) -> Arc<dyn Store>;

    /// The keys below the folder that the path leads to now: they stay those of that folder when
    /// another one takes the path.
    ///
    /// # Errors
    /// Errors of the storage; an error if there is no folder.
    fn opened(&self, folder: &Path) -> Result<Arc<dyn Store>>;

    /// A document; `None` if no value is at the path.
    ///
    /// # Errors
    /// `Limit` if it is too long; `Corrupt`, as soon as that is seen, if a long one can be no such
    /// document; errors of the storage. Each names the file.
    fn read_document(&self, path: &Path, document: Document<'_>) -> Result<Option<Vec<u8>>>;

    /// The first bytes of the value at the path, at most so many; `None` if there is no value.
    ///
    /// # Errors
    /// Errors of the storage.
    fn read_beginning(&self, path: &Path, len_max_bytes: u64) -> Result<Option<Vec<u8>>>;

    /// What the path leads to now; `None` if that is nothing.
    fn identity(&self, path: &Path) -> Option<Identity>;

    /// How to read the checkpoint at the path: from another location, as one look found it; `None`
    /// to read it in place.
    ///
    /// # Errors
    /// `Uncommitted` if it is being written; errors of the storage.
    fn for_reading(&self, path: &Path) -> Result<Option<Reading>>;

    /// What the storage can do beside this.
    fn capabilities(&self) -> Capabilities<'_>;
}

/// What a storage can do beside reading, and what holds of all its paths.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities<'s> {
    /// Whether its paths are those of the local file system.
    pub is_local: bool,
    /// Whether [`Storage::entries`] works. Otherwise only known names are found.
    pub has_listings: bool,
    /// Whether a checkpoint is complete when its marker is there, as on a storage that cannot
    /// rename.
    pub commits_by_marker: bool,
    /// The archive that the storage is.
    pub archive: Option<&'s archive::ArchiveStorage>,
    /// The storage as a writer needs it, or why nothing is written to it.
    pub writes: std::result::Result<Writes<'s>, ReadOnly>,
    /// The storage as a cache on a local disk needs it; `None` where a cache would be of no use.
    #[cfg(feature = "cloud")]
    pub cacheable: Option<&'s dyn Cacheable>,
}

/// A storage that is written to.
#[derive(Debug, Clone, Copy)]
pub struct Writes<'s> {
    /// Its new checkpoints.
    pub publish: &'s dyn Publish,
    /// The checkpoints that it has.
    pub upkeep: &'s dyn Upkeep,
}

impl<'s> Writes<'s> {
    fn of<S: Publish + Upkeep>(storage: &'s S) -> Self {
        Self { publish: storage, upkeep: storage }
    }
}

/// New checkpoints in a storage. Each target is a location in this storage.
pub trait Publish: Debug + Send + Sync {
    /// Errs where [`publish`](Self::publish) would not take the target. Makes nothing.
    ///
    /// # Errors
    /// As there.
    fn check_publish(&self, target: &Location, options: PublishOptions<'_>) -> Result<()>;

    /// Begins a checkpoint.
    ///
    /// # Errors
    /// `AlreadyExists` if something is there and is not to be replaced; `InvalidArgument` if it may
    /// not be replaced, or the name is none for a checkpoint; `PermissionDenied`, and what else the
    /// storage says. Nothing that was there has changed.
    fn publish(&self, target: &Location, options: PublishOptions<'_>) -> Result<Box<dyn Publication>>;

    /// Joins the checkpoint that another process has begun, by its [ticket](BegunFolder::ticket).
    /// Added files belong to that checkpoint; [`finish_share`](JoinedShare::finish_share) makes
    /// them durable. Only the process that began it commits or removes it.
    ///
    /// # Errors
    /// `NotFound` if this process does not see what the other one has begun; `InvalidArgument` for
    /// a checkpoint that is no folder.
    fn join(
        &self,
        target: &Location,
        ticket: &str,
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn Publication>>;

    /// Begins to bring the files of a checkpoint to the target, or goes on with what an earlier
    /// transfer has left there.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); `AlreadyExists` also if another transfer to the target is
    /// under way.
    fn transfer(&self, target: &Location, options: TransferOptions<'_>) -> Result<Box<dyn Transfer>>;
}

/// The checkpoints that a storage has: who writes them, their end and their removal.
pub trait Upkeep: Debug + Send + Sync {
    /// The save that wrote the folder at the path. It changes when something else takes the path,
    /// and stays when a file in the folder is repaired. `None` if there is no folder.
    ///
    /// # Errors
    /// Errors of the storage.
    fn holder(&self, path: &Path) -> Result<Option<Identity>>;

    /// Files and bytes at the path, and the time of the last change; `None` if unknown.
    ///
    /// # Errors
    /// Errors of the storage.
    fn stock(&self, path: &Path) -> Result<Option<Stock>>;

    /// Returns an error if a process is writing the checkpoint at this location, or moving it
    /// there, where others could see a part of it.
    ///
    /// # Errors
    /// `AlreadyExists`; errors of the storage.
    fn check_unwritten(&self, at: &Location) -> Result<()>;

    /// Returns an error if a save, copy or removal at this location, or of a checkpoint around it,
    /// has not ended: the files are a part of a checkpoint, not a damaged one.
    ///
    /// # Errors
    /// `Uncommitted`; errors of the storage.
    fn check_finished(&self, at: &Location) -> Result<()>;

    /// Names a checkpoint whose writer died just before it did so; true if there was one. Removes
    /// nothing.
    ///
    /// # Errors
    /// Errors of the storage.
    fn finish_unfinished(&self, at: &Location) -> Result<bool>;

    /// Removes the files of saves and copies to `at` that did not finish.
    ///
    /// # Errors
    /// `NotFound` if there is none; `AlreadyExists` if a writer may still be at it, unless `force`;
    /// errors of the storage.
    fn remove_unfinished(&self, at: &Location, force: bool) -> Result<Removed>;

    /// Removes a checkpoint. After an error the rest is no checkpoint, or the complete one.
    ///
    /// # Errors
    /// `InvalidArgument` if there is something else with it; errors of the storage.
    fn remove(&self, at: &Location, what: &Removal) -> Result<Removed>;
}

/// A storage that can be read through a cache on a local disk.
#[cfg(feature = "cloud")]
pub trait Cacheable: Debug {
    /// The same storage, read through the cache; `None` where that would be of no use.
    fn cached(&self, cache: &cache::Cache) -> Option<Arc<dyn Storage>>;
}
