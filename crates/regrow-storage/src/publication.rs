//! A new checkpoint during its save: begun, filled with files, and committed or dropped.
//!
//! | | a disk | a bucket |
//! |---|---|---|
//! | begin | a locked folder beside the target, under a temporary name | a claim: one object, created if absent |
//! | add files | into that folder | under their final names |
//! | commit | sync, rename, sync the folder above | a marker: one object, created if absent |
//! | drop | the folder is removed | the objects are removed |
//!
//! Until the commit, a reader sees the old checkpoint or none. After the commit, the reader sees
//! the complete new checkpoint.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use super::Identity;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::{Blob, FileWriter};

/// The names of unfinished checkpoints contain this text. Orbax made the rule, and regrow follows
/// it.
pub const UNCOMMITTED_MARK: &str = ".orbax-checkpoint-tmp";

/// A checkpoint in a bucket is complete if this object is in its folder. Orbax uses the same name
/// for the same purpose.
pub const COMMITTED_MARKER: &str = "commit_success.txt";

/// The kind of a checkpoint: a folder or files.
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
    /// The kind of the checkpoint.
    pub kind: &'a Target,
    /// Whether an existing checkpoint may be replaced.
    pub overwrite: bool,
    /// Whether an overwrite keeps a user's files that lie in the folder of the old checkpoint (on a
    /// disk). The caller must move them to the new checkpoint.
    pub keeps_others: bool,
    /// A further check of a file that is to be replaced. Folders have checks of their own.
    pub may_replace: Option<fn(&Location) -> Result<()>>,
    /// A function that is called just before a single file gets its name, on storages in which the
    /// file has its name as soon as it is complete.
    pub make_way: Option<fn(&Location) -> Result<()>>,
    /// Whether a link to a file is replaced itself, instead of the file.
    pub replaces_links: bool,
    /// Whether `commit` waits until the checkpoint would survive a power cut.
    pub durable: bool,
    /// Counts the written bytes, and can cancel the save.
    pub monitor: &'a Monitor,
}

impl<'a> PublishOptions<'a> {
    /// The options of one durable file that replaces an existing file, if there is one.
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

/// A checkpoint that is being written. If it is dropped uncommitted, no file stays.
///
/// There are three kinds of [`files`](Self::files), each with its own type. Only a folder takes
/// files by name.
pub trait Publication: Debug + Send + Sync {
    /// The location that the checkpoint will have.
    fn target(&self) -> &Location;

    /// The monitor that counts the bytes and may cancel.
    fn monitor(&self) -> &Monitor;

    /// Whether `commit` waits until the checkpoint would survive a power cut.
    fn is_durable(&self) -> bool;

    /// The files, by the kind of the checkpoint.
    fn files(&self) -> NewFiles<'_>;

    /// Total length of all files in bytes.
    ///
    /// # Errors
    /// Errors of the storage.
    fn stored_bytes(&self) -> Result<u64>;

    /// Makes all files durable, and gives the checkpoint its name: a reader sees the complete
    /// checkpoint or none. The checkpoint that it replaces is removed; parts that cannot be removed
    /// keep a temporary name.
    ///
    /// # Errors
    /// `AlreadyExists` if another writer was faster and `overwrite` is not set. `InvalidArgument`
    /// if the target has become something that may not be replaced, or if another process commits
    /// the checkpoint. `Replaced` if another file is at the target than the one [to be
    /// replaced](NewFile::only_in_place_of). `Cancelled`. After these errors the target is
    /// unchanged and the written files are removed. Only after `NotDurable` is the new checkpoint
    /// at the target, but it may not survive a power cut.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// The files of a new checkpoint.
#[derive(Debug, Clone, Copy)]
pub enum NewFiles<'p> {
    /// The files of a [`Target::Folder`].
    Folder(&'p dyn NewFolder),
    /// The file of a [`Target::File`].
    File(&'p dyn NewFile),
    /// The files of a [`Target::Siblings`].
    Siblings(&'p dyn NewSiblings),
}

/// A new checkpoint that is a folder.
pub trait NewFolder: Debug {
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

    /// Makes a small file of this name, with which a process reserves a task; `false` if another
    /// process was faster. [`sweep`](BegunFolder::sweep) removes the file before the commit.
    ///
    /// # Errors
    /// Errors of the storage.
    fn claim(&self, name: &str) -> Result<bool>;

    /// The last line of the marker, by which a writer recognizes its own marker; `None` if the
    /// storage commits without a marker.
    fn marker_line(&self) -> Option<String>;

    /// The folder that is being written, for functions that work only on the local disk; `None` for
    /// other storages.
    fn local_folder(&self) -> Option<&Path>;

    /// Whether this process began the checkpoint, or joined it.
    fn role(&self) -> Role<'_>;
}

/// Whether this process began a checkpoint of several processes, or joined it.
#[derive(Debug, Clone, Copy)]
pub enum Role<'p> {
    /// It began the checkpoint, and commits it.
    Begun(&'p dyn BegunFolder),
    /// It joined, and adds files.
    Joined(&'p dyn JoinedShare),
}

/// The methods for the process that began a folder.
pub trait BegunFolder: Debug {
    /// The text with which other processes [join](crate::Publish::join) this checkpoint, to add
    /// their own files.
    ///
    /// # Errors
    /// `InvalidArgument` if the name of the folder is not UTF-8, or the folder is a part of a
    /// checkpoint.
    fn ticket(&self) -> Result<String>;

    /// Removes files of dead processes: the files directly in the folder `below` (empty: the
    /// checkpoint's own) for whose names `is_left` returns true.
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

    /// Sets the mode of the folder `below` (empty: the checkpoint's own), at the latest in the
    /// commit. Does nothing if folders of the storage have no mode.
    ///
    /// # Errors
    /// Errors of the storage.
    fn set_mode(&self, below: &str, mode: u32) -> Result<()>;
}

/// The methods for a process that joined a folder.
pub trait JoinedShare: Debug {
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

/// A new checkpoint that is a single file.
pub trait NewFile: Debug {
    /// A writer of the file. The arguments are those of [`NewFolder::writer`].
    ///
    /// # Errors
    /// The same as there.
    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter>;

    /// As `single_writer`, but the file replaces only the file that exists now, or no file. A
    /// bucket checks this at the end of the writer, other storages in the
    /// [commit](Self::only_in_place_of).
    ///
    /// # Errors
    /// The same as there. The end of the writer fails with `Replaced` if another file exists by
    /// then.
    fn single_writer_in_place(&self, expected_len_bytes: u64) -> Result<FileWriter>;

    /// Lets the commit replace only the file with this identity, or no file if it is `None`. The
    /// check and the replacement are one step if the storage can do this.
    fn only_in_place_of(&self, before: Option<Identity>);

    /// Whether the file has its name as soon as it is written, before the commit.
    fn is_named_by_write(&self) -> bool;
}

/// A new checkpoint of several files of one stem.
pub trait NewSiblings: Debug {
    /// A writer of file number `at`. The other arguments are those of [`NewFolder::writer`].
    ///
    /// # Errors
    /// The same as there; `InvalidArgument` if there are fewer files.
    fn sibling_writer(&self, at: usize, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter>;
}

/// The files by kind. The methods return `InvalidArgument` for a checkpoint of another kind.
impl<'p> NewFiles<'p> {
    /// The folder.
    ///
    /// # Errors
    /// `InvalidArgument` if the checkpoint is not a folder.
    pub fn folder(self) -> Result<&'p dyn NewFolder> {
        if let Self::Folder(folder) = self { Ok(folder) } else { Err(no_such_file("folder")) }
    }

    /// The single file.
    ///
    /// # Errors
    /// `InvalidArgument` if the checkpoint is not a single file.
    pub fn file(self) -> Result<&'p dyn NewFile> {
        if let Self::File(file) = self { Ok(file) } else { Err(no_such_file("single file")) }
    }

    /// The files of one stem.
    ///
    /// # Errors
    /// `InvalidArgument` if the checkpoint is of another kind.
    pub fn siblings(self) -> Result<&'p dyn NewSiblings> {
        if let Self::Siblings(files) = self { Ok(files) } else { Err(no_such_file("file of this number")) }
    }

    fn begun(self) -> Result<&'p dyn BegunFolder> {
        match self.folder()?.role() {
            Role::Begun(begun) => Ok(begun),
            Role::Joined(_) => {
                Err(Error::invalid("only the process that started the checkpoint can do this"))
            }
        }
    }
}

/// Methods for callers that know the kind of the checkpoint.
#[expect(clippy::missing_errors_doc, reason = "those of the method, and `InvalidArgument` for another kind")]
impl dyn Publication + '_ {
    /// The same as [`NewFolder::write`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.files().folder()?.write(name, bytes)
    }

    /// The same as [`NewFolder::writer`].
    pub fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.files().folder()?.writer(name, expected_len_bytes, checksums_from)
    }

    /// The same as [`NewFolder::reuse`].
    pub fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        self.files().folder()?.reuse(name, source, opened)
    }

    /// The same as [`NewFolder::reused_bytes`]; 0 for other kinds.
    pub fn reused_bytes(&self) -> u64 {
        self.files().folder().map_or(0, |folder| folder.reused_bytes())
    }

    /// The same as [`NewFolder::written`].
    pub fn written(&self, name: &str) -> Result<Vec<u8>> {
        self.files().folder()?.written(name)
    }

    /// The same as [`NewFolder::claim`].
    pub fn claim(&self, name: &str) -> Result<bool> {
        self.files().folder()?.claim(name)
    }

    /// The same as [`NewFolder::marker_line`]; `None` for other kinds.
    pub fn marker_line(&self) -> Option<String> {
        self.files().folder().ok()?.marker_line()
    }

    /// The same as [`NewFolder::local_folder`]; `None` for other kinds.
    pub fn local_folder(&self) -> Option<&Path> {
        self.files().folder().ok()?.local_folder()
    }

    /// The same as [`BegunFolder::ticket`].
    pub fn ticket(&self) -> Result<String> {
        self.files().begun().map_err(|error| error.in_file(self.target()))?.ticket()
    }

    /// The same as [`BegunFolder::sweep`].
    pub fn sweep(&self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        self.files().begun().map_err(|error| error.in_file(self.target()))?.sweep(below, is_left)
    }

    /// The same as [`BegunFolder::withdraw`].
    pub fn withdraw(&self, name: &str) -> Result<()> {
        self.files().begun().map_err(|error| error.in_file(self.target()))?.withdraw(name)
    }

    /// The same as [`BegunFolder::set_mode`]. Does nothing for other kinds, and for a process that
    /// joined.
    pub fn set_mode(&self, below: &str, mode: u32) -> Result<()> {
        self.files().begun().map_or(Ok(()), |begun| begun.set_mode(below, mode))
    }

    /// The same as [`JoinedShare::finish_share`].
    pub fn finish_share(&self) -> Result<()> {
        match self.files().folder()?.role() {
            Role::Joined(share) => share.finish_share(),
            Role::Begun(_) => {
                Err(Error::invalid("only a process that joined the checkpoint has a share of it")
                    .in_file(self.target()))
            }
        }
    }

    /// The same as [`JoinedShare::is_published`]; `false` for a process that did not join.
    pub fn is_published(&self) -> Result<bool> {
        match self.files().folder()?.role() {
            Role::Joined(share) => share.is_published(),
            Role::Begun(_) => Ok(false),
        }
    }

    /// The same as [`NewFile::single_writer`].
    pub fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.files().file()?.single_writer(expected_len_bytes, checksums_from)
    }

    /// The same as [`NewFile::is_named_by_write`]; `false` for other kinds.
    pub fn is_named_by_write(&self) -> bool {
        self.files().file().is_ok_and(|file| file.is_named_by_write())
    }

    /// The same as [`NewSiblings::sibling_writer`].
    pub fn sibling_writer(
        &self,
        at: usize,
        expected_len_bytes: u64,
        checksums_from: u64,
    ) -> Result<FileWriter> {
        self.files().siblings()?.sibling_writer(at, expected_len_bytes, checksums_from)
    }
}

/// The error of a rewrite if another process replaced the file during the rewrite.
pub fn replaced_in_between(file: impl Into<PathBuf>) -> Error {
    Error::new(ErrorKind::Replaced, "the file was replaced or removed while regrow rewrote it").in_file(file)
}

/// The error for a method that does not apply to this kind of checkpoint.
pub fn no_such_file(what: &str) -> Error {
    Error::invalid(format!("this checkpoint has no {what}"))
}
