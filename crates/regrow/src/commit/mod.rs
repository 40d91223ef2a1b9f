//! Staged to committed: a checkpoint is written under a temporary name, and gets its own when it is whole.
//!
//! ```text
//! create   parent/step_100.orbax-checkpoint-tmp-<pid>-<random>/     a locked folder beside the target
//! write    ...  files
//! commit   fsync files and folders  ->  rename to parent/step_100  ->  fsync parent
//!          with overwrite: exchange the two names  ->  fsync parent  ->  remove the old one
//! ```
//! Killed before the rename, a writer leaves a folder that nobody takes for a checkpoint; the lock on it dies
//! with the writer, and the next save to the same target removes it. Killed after, the new checkpoint is there.
//! Where the file system cannot exchange two names in one step, an overwrite takes two renames; between them the
//! target is missing, and the next save puts the old one back if the writer died there. A checkpoint of several
//! files beside each other has such a moment on every file system; there a reader finds them all the same: see
//! `siblings`.
//!
//! An error says which checkpoint the path holds: after `NotDurable`, which means that the folder above could not be
//! synced, the new one; after any other, what was there before.
//!
//! While it replaces something, the temporary folder can be looked into by its owner alone, and gets the mode of what it
//! replaces just before the rename.
//!
//! Locks are `flock`s. On a network file system that keeps them to one machine (`local_lock`, Lustre's
//! `localflock`), two machines must not save to the same target at once.
//!
//! Small files are synced together by `commit`: one by one if they are few, by one `syncfs` if they are many
//! (0.4 ms each against one flush).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::storage::{PublishOptions, no_such_file};
use crate::store::local::folders::{make_folders, relative_path};
use crate::store::{DirectWriter, FileWriter, WriteOptions};

mod belongs;
mod leftovers;
mod link;
mod naming;
mod new_file;
mod publication;
mod remove;
mod rename;
mod siblings;
mod target;
mod transfer;

pub(crate) use belongs::strangers_in;
pub(crate) use new_file::{NewFile, sweep_new_files};

pub(crate) use leftovers::{Begun, begun};
use leftovers::{OwnFolder, remove, sweep};
use publication::kind_of;
pub(crate) use remove::{remove_checkpoint, remove_files, remove_unfinished, stock};
pub(crate) use siblings::{is_under_way, where_is};
pub use target::CHECKPOINT_MARKERS;
pub(crate) use target::refuse_strangers;
use target::{check_name, check_target, no_name, resolve};
pub(crate) use transfer::LocalTransfer;

/// Files from this length on are synced by their writer; shorter ones by `commit`, together.
const SYNC_LATER_LEN_MAX_BYTES: u64 = 64 << 10;

/// A checkpoint under its temporary name. Dropped uncommitted, it leaves no trace.
#[derive(Debug)]
pub struct Staged {
    own: OwnFolder,
    /// Where the files are written: the temporary folder, or one in it.
    data: PathBuf,
    kind: Kind,
    /// As the caller gave it, and as an absolute path.
    target: Location,
    absolute: PathBuf,
    /// The files of a checkpoint of several beside each other; the last makes it one.
    siblings: Vec<PathBuf>,
    overwrite: bool,
    /// The mode of what was to be replaced when this began.
    found_mode: Option<u32>,
    /// What else is asked of a file before it is replaced.
    may_replace: Option<MayReplace>,
    durable: bool,
    made_parents: Vec<PathBuf>,
    /// Files that are not synced yet.
    unsynced: Mutex<Vec<PathBuf>>,
    linked_bytes: AtomicU64,
    /// Which process may remove the folder: not a fork's child.
    pid: u32,
    committed: bool,
    /// Whether what was written stays when this is dropped uncommitted.
    stays: AtomicBool,
    monitor: Monitor,
}

/// Errs unless the file at a path, which is there, may be replaced.
pub(crate) type MayReplace = fn(&Location) -> Result<()>;

/// What a checkpoint is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    File,
    Siblings,
}

impl Staged {
    /// Makes the temporary folder beside `target`, and the folders above it that are missing; removes what killed
    /// writers of the same target have left.
    ///
    /// # Errors
    /// `AlreadyExists` if the target exists and `overwrite` is not set; `InvalidArgument` if it is set and the
    /// target is a file, or a folder that holds something but no checkpoint, or something beside one, or if the
    /// target's name is that of an unfinished save; `PermissionDenied` if the folder above cannot be written to;
    /// `Unsupported` for an [address](crate::location) instead of a path. Nothing that was there has changed.
    pub fn create(target: &Path, overwrite: bool) -> Result<Self> {
        Self::of_kind(Kind::Folder, Location::parse(target)?.local_path()?, &[], overwrite)
    }

    /// The same for a checkpoint that is a single file: [`single_file`](Self::single_file) is to be written,
    /// and becomes the target.
    ///
    /// # Errors
    /// As [`create`](Self::create); `InvalidArgument` if the target is a folder and `overwrite` is set.
    pub fn for_file(target: &Path, overwrite: bool) -> Result<Self> {
        Self::of_kind(Kind::File, Location::parse(target)?.local_path()?, &[], overwrite)
    }

    /// The same for a checkpoint that is several files beside each other, named `target` with each of `suffixes`
    /// behind it: [`sibling_writer`](Self::sibling_writer) writes them. The last is what makes the checkpoint: it
    /// gets its name last, and goes first when it is replaced.
    ///
    /// # Errors
    /// As [`create`](Self::create), of each of the files; `InvalidArgument` also for a suffix with a `/` in it.
    pub fn for_siblings(target: &Path, suffixes: &[String], overwrite: bool) -> Result<Self> {
        Self::of_kind(Kind::Siblings, Location::parse(target)?.local_path()?, suffixes, overwrite)
    }

    /// Begins a checkpoint at a path of the local file system.
    ///
    /// # Errors
    /// As [`create`](Self::create), [`for_file`](Self::for_file), [`for_siblings`](Self::for_siblings).
    pub(crate) fn begin(target: &Location, options: PublishOptions<'_>) -> Result<Self> {
        let (kind, suffixes) = kind_of(options.kind);
        let staged = Self::of_kind(kind, target.local_path()?, suffixes, options.overwrite)?;
        let staged = match options.may_replace.filter(|_| kind == Kind::File) {
            Some(may_replace) => staged.replacing_only(may_replace)?,
            None => staged,
        };
        Ok(staged.durable(options.durable).watched(options.monitor))
    }

    /// Errs where [`begin`](Self::begin) would not take the target. Makes nothing.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn may_begin(target: &Location, options: PublishOptions<'_>) -> Result<()> {
        let (kind, suffixes) = kind_of(options.kind);
        Self::may_create(kind, target.local_path()?, suffixes, options.overwrite)?;
        match options.may_replace {
            Some(may_replace) if kind == Kind::File && options.overwrite && target.exists() => {
                may_replace(target)
            }
            _ => Ok(()),
        }
    }

    /// Errs where [`create`](Self::create), [`for_file`](Self::for_file) or [`for_siblings`](Self::for_siblings)
    /// would not take the target. Makes nothing.
    pub(crate) fn may_create(kind: Kind, target: &Path, suffixes: &[String], overwrite: bool) -> Result<()> {
        let absolute = resolve(target, overwrite && kind != Kind::Siblings)?;
        let targets = match kind {
            Kind::Siblings => siblings::targets(&absolute, suffixes)?,
            _ => vec![absolute],
        };
        check_name(kind, target)?;
        targets.iter().try_for_each(|target| check_target(kind, target, overwrite))
    }

    fn of_kind(kind: Kind, target: &Path, suffixes: &[String], overwrite: bool) -> Result<Self> {
        Self::begin_in(OwnFolder::make, kind, target, suffixes, overwrite)
    }

    /// Begins in a temporary folder that `own_folder` gives for a folder, a name in it, and whether it is to be private.
    fn begin_in(
        own_folder: fn(&Path, &OsStr, bool) -> Result<OwnFolder>,
        kind: Kind,
        target: &Path,
        suffixes: &[String],
        overwrite: bool,
    ) -> Result<Self> {
        // Of files beside each other the stem itself may be anything: it is not touched.
        let absolute = resolve(target, overwrite && kind != Kind::Siblings)?;
        let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(no_name(target));
        };
        let siblings = match kind {
            Kind::Siblings => siblings::targets(&absolute, suffixes)?,
            _ => Vec::new(),
        };
        check_name(kind, target)?;
        let made_parents =
            make_folders(parent).map_err(|error| Error::io("cannot make the folder", parent, error))?;
        let undo = |error| {
            remove_made(&made_parents);
            error
        };
        sweep(parent, name);
        let targets =
            if kind == Kind::Siblings { siblings.as_slice() } else { std::slice::from_ref(&absolute) };
        targets.iter().try_for_each(|target| check_target(kind, target, overwrite)).map_err(undo)?;
        let found_mode =
            targets.iter().find_map(|target| Some(fs::symlink_metadata(target).ok()?.permissions().mode()));
        let own = own_folder(parent, name, found_mode.is_some()).map_err(undo)?;
        Ok(Self {
            data: own.path.clone(),
            own,
            kind,
            target: Location::local(target),
            absolute,
            siblings,
            overwrite,
            found_mode,
            may_replace: None,
            durable: true,
            made_parents,
            unsynced: Mutex::default(),
            linked_bytes: AtomicU64::new(0),
            pid: std::process::id(),
            committed: false,
            stays: AtomicBool::new(false),
            monitor: Monitor::new(),
        })
    }

    /// Has each file that is to be replaced checked, now and again by [`commit`](Self::commit). Without, any regular
    /// file is replaced, as functions do that stand in for others. Folders have checks of their own.
    ///
    /// # Errors
    /// What `may_replace` says of a file that is there now; nothing has changed then.
    pub(crate) fn replacing_only(mut self, may_replace: MayReplace) -> Result<Self> {
        self.may_replace = Some(may_replace);
        self.targets().iter().try_for_each(|target| self.check_file(target))?;
        Ok(self)
    }

    /// The names that the checkpoint will have.
    fn targets(&self) -> &[PathBuf] {
        match self.kind {
            Kind::Siblings => &self.siblings,
            Kind::Folder | Kind::File => std::slice::from_ref(&self.absolute),
        }
    }

    fn check_file(&self, target: &Path) -> Result<()> {
        match self.may_replace {
            Some(may_replace) if self.kind != Kind::Folder && fs::symlink_metadata(target).is_ok() => {
                may_replace(&Location::local(target))
            }
            _ => Ok(()),
        }
    }

    fn check(&self, target: &Path) -> Result<()> {
        check_target(self.kind, target, self.overwrite)?;
        self.check_file(target)
    }

    /// Whether `commit` waits until the checkpoint would survive a power cut; it does unless told otherwise.
    /// Without, a killed process still costs nothing.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Counts what is written for `monitor`, and stops when that says so.
    #[must_use]
    pub fn watched(mut self, monitor: &Monitor) -> Self {
        self.monitor = monitor.clone();
        self
    }

    /// Whether `commit` syncs.
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// The target, as it was given.
    pub fn target(&self) -> &Location {
        &self.target
    }

    /// The folders above the target that had to be made, outermost first.
    pub fn made_parents(&self) -> &[PathBuf] {
        &self.made_parents
    }

    /// The temporary folder.
    pub fn folder(&self) -> &Path {
        &self.own.path
    }

    /// Where to write the one file of a checkpoint that is a single file.
    pub fn single_file(&self) -> PathBuf {
        self.data.join(self.absolute.file_name().unwrap_or_default())
    }

    /// A [`DirectWriter`] of the file number `at` of a checkpoint of several beside each other, as durable as the
    /// whole; the other arguments are those of [`DirectWriter::create`].
    ///
    /// # Errors
    /// As there; `InvalidArgument` if there are not that many.
    pub fn sibling_writer(
        &self,
        at: usize,
        expected_len_bytes: u64,
        checksums_from: u64,
    ) -> Result<FileWriter> {
        let target = self.siblings.get(at).ok_or_else(|| no_such_file("file of this number"))?;
        let path = siblings::staged_path(&self.own.path, at, target);
        let folder = path.parent().unwrap_or(&path);
        make_folders(folder).map_err(|error| Error::io("cannot make the folder", folder, error))?;
        let options = WriteOptions { expected_len_bytes, checksums_from, durable: self.durable };
        Ok(FileWriter::new(DirectWriter::create_with(&path, &options)?.watched(&self.monitor)))
    }

    /// A [`DirectWriter`] of the one file of a checkpoint that is a single file, as durable as the whole; the
    /// arguments are those of [`DirectWriter::create`].
    ///
    /// # Errors
    /// As there.
    pub fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        let options = WriteOptions { expected_len_bytes, checksums_from, durable: self.durable };
        Ok(FileWriter::new(DirectWriter::create_with(&self.single_file(), &options)?.watched(&self.monitor)))
    }

    /// The path of `name` below the temporary folder, its folders made. Whoever writes it there syncs it.
    ///
    /// # Errors
    /// `InvalidArgument` if the name leads out of the folder.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        let path = self.own.path.join(relative_path(name.as_bytes())?);
        if let Some(folder) = path.parent().filter(|folder| *folder != self.own.path) {
            make_folders(folder).map_err(|error| Error::io("cannot make the folder", folder, error))?;
        }
        Ok(path)
    }

    /// Writes one small file below the temporary folder; makes its folders. `commit` syncs it.
    ///
    /// # Errors
    /// `AlreadyExists` if it was written before; what the file system says.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file(name)?;
        let written = File::create_new(&path).and_then(|mut file| file.write_all(bytes));
        written.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => written_twice(&path),
            _ => Error::io("cannot write", &path, error),
        })?;
        self.sync_later(path);
        self.monitor.advance(bytes.len() as u64)
    }

    /// A [`DirectWriter`] of a file below the temporary folder, as durable as the whole. The arguments are those
    /// of [`DirectWriter::create`].
    ///
    /// # Errors
    /// As there, and as [`file`](Self::file).
    pub fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        let path = self.file(name)?;
        let small = (1..SYNC_LATER_LEN_MAX_BYTES).contains(&expected_len_bytes);
        let durable = self.durable && !small;
        let writer =
            DirectWriter::create_with(&path, &WriteOptions { expected_len_bytes, checksums_from, durable })?;
        if small {
            self.sync_later(path);
        }
        Ok(FileWriter::new(writer.watched(&self.monitor)))
    }

    fn sync_later(&self, path: PathBuf) {
        if self.durable {
            self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).push(path);
        }
    }

    /// Syncs, gives the final name, syncs the folder above: a reader sees all of the checkpoint or none of it.
    /// An old checkpoint that it replaces is removed; whatever of that cannot
    /// be removed stays under a temporary name.
    ///
    /// # Errors
    /// `AlreadyExists` if another writer was faster and `overwrite` is not set; `InvalidArgument` if the target
    /// has become something that may not be replaced. The target is then as it was, and the staged checkpoint is
    /// removed; so it is if its monitor was cancelled before the name was given (`Cancelled`). Only after `NotDurable`
    /// the target is the new checkpoint: the folder above could not be synced when it had the name.
    pub fn commit(self) -> Result<()> {
        let monitor = self.monitor.clone();
        if self.durable {
            monitor.enter(Stage::Sync);
            monitor.timed(Stage::Sync, 0, || self.sync_tree())?;
        }
        monitor.check()?;
        monitor.enter(Stage::Commit);
        monitor.timed(Stage::Commit, 0, || self.name_it())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.committed && !self.stays.load(Ordering::Relaxed) && self.pid == std::process::id() {
            remove(&self.own.path);
            remove_made(&self.made_parents);
        }
    }
}

fn written_twice(path: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, "the same file is written twice").in_file(path)
}

/// Removes folders that were made for nothing, unless somebody uses them.
fn remove_made(made: &[PathBuf]) {
    for folder in made.iter().rev() {
        let _ = fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests;
