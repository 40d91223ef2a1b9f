//! A copy to a local disk that another process has begun, joined: this one brings some of its
//! files.
//!
//! ```text
//! step_100.orbax-checkpoint-tmp-copy/
//!   .orbax-checkpoint-tmp-share-7/                     the files of one that joined; each is moved to the others when the
//!   .orbax-checkpoint-tmp-files/                       one who began takes it over
//! ```
//! Every process that joins has a folder of its own, so one that is thought dead and goes on writes
//! nothing that anybody else has written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::Hash;

use super::SYNC_LATER_LEN_MAX_BYTES;
use super::naming::sync_written;
use super::target::resolve;
use super::transfer::{FILES, SHARE_PREFIX, left_of, read_journal};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::storage::{Brought, Identity, Left, Transfer, TransferFile, TransferOptions, UNCOMMITTED_MARK};
use crate::store::local::folders::{make_folders, relative_path};
use crate::store::{Blob, DirectWriter, FileWriter, LocalStore, Store, WriteOptions, missing};

/// So many processes may join one copy.
const SHARES_MAX: u32 = 1 << 20;

/// What this process brings to a copy of another one.
#[derive(Debug)]
pub(crate) struct JoinedTransfer {
    /// Its own folder, and the name of that.
    folder: PathBuf,
    name: String,
    files: Vec<TransferFile>,
    /// Where an earlier copy has left each, and what is known of that.
    earlier: Vec<PathBuf>,
    left: Vec<Left>,
    durable: bool,
    monitor: Monitor,
    /// The files that were written here, and those that are whole.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    written: Vec<usize>,
    unsynced: Vec<PathBuf>,
    brought: Vec<Brought>,
}

impl JoinedTransfer {
    /// Joins the copy to `target` in the temporary folder of that name; the options' files are
    /// those to be brought.
    ///
    /// # Errors
    /// `NotFound` if there is no such folder here; `InvalidArgument` for a ticket that names
    /// something else.
    pub(crate) fn join(target: &Location, ticket: &str, options: TransferOptions<'_>) -> Result<Self> {
        let path = target.local_path()?;
        let absolute = resolve(path, options.overwrite)?;
        let is_name = !ticket.contains('/') && ticket.contains(UNCOMMITTED_MARK);
        let Some(parent) = absolute.parent().filter(|_| is_name) else {
            return Err(Error::invalid(format!("{ticket:?} is no ticket of a copy")).in_file(path));
        };
        let top = parent.join(ticket);
        if !top.join(FILES).is_dir() {
            return Err(Error::new(
                ErrorKind::NotFound,
                "the folder that the copy is written into is not seen by this process",
            )
            .in_file(top)
            .help("it has ended, or this machine does not share the folder: check that it is mounted here"));
        }
        let lines = read_journal(&top);
        let mut earlier = Vec::with_capacity(options.files.len());
        for file in options.files {
            earlier.push(top.join(FILES).join(relative_path(file.name.as_bytes())?));
        }
        let left = options.files.iter().zip(&earlier).map(|(file, path)| match left_of(file, path, &lines) {
            // What is there of it is not for this process to write to.
            Left::Beginning(_) => Left::Nothing,
            left => left,
        });
        let left = left.collect();
        let (folder, name) = own_folder(&top)?;
        Ok(Self {
            folder,
            name,
            files: options.files.to_vec(),
            earlier,
            left,
            durable: options.durable,
            monitor: options.monitor.clone(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, at: usize) -> Result<(&TransferFile, PathBuf)> {
        let file = self.files.get(at).ok_or_else(|| Error::invalid("the copy has no file of this number"))?;
        Ok((file, self.folder.join(relative_path(file.name.as_bytes())?)))
    }
}

/// A new folder in the temporary one, for this process alone.
fn own_folder(top: &Path) -> Result<(PathBuf, String)> {
    for number in 0..SHARES_MAX {
        let name = format!("{SHARE_PREFIX}{number}");
        let folder = top.join(&name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok((folder, name)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("cannot make the folder", folder, error)),
        }
    }
    Err(Error::new(ErrorKind::Limit, "too many processes have joined this copy").in_file(top))
}

impl Transfer for JoinedTransfer {
    fn left(&self, at: usize) -> Left {
        self.left.get(at).cloned().unwrap_or(Left::Nothing)
    }

    fn writer(&self, at: usize, offset_bytes: u64) -> Result<FileWriter> {
        let (file, path) = self.file(at)?;
        if offset_bytes > 0 {
            return Err(Error::invalid("a process that joins a copy writes whole files").in_file(path));
        }
        if !self.folder.is_dir() {
            return Err(Error::new(ErrorKind::NotFound, "the copy has ended").in_file(&self.folder));
        }
        let folder = path.parent().unwrap_or(&path);
        make_folders(folder).map_err(|error| Error::io("cannot make the folder", folder, error))?;
        self.state().written.push(at);
        let is_small = file.len_bytes < SYNC_LATER_LEN_MAX_BYTES;
        let durable = self.durable && !is_small;
        let options = WriteOptions { expected_len_bytes: file.len_bytes, checksums_from: 0, durable };
        if is_small {
            self.state().unsynced.push(path.clone());
        }
        Ok(FileWriter::new(DirectWriter::create_with(&path, &options)?.watched(&self.monitor)))
    }

    fn written(&self, at: usize) -> Result<Arc<dyn Blob>> {
        let is_own = self.state().written.contains(&at);
        let path = match self.earlier.get(at).filter(|_| !is_own) {
            Some(earlier) => earlier.clone(),
            None => self.file(at)?.1,
        };
        let (folder, name) = (path.parent().unwrap_or(&path), path.file_name().unwrap_or_default());
        let opened = LocalStore::new(folder).open(name.as_encoded_bytes())?;
        opened.ok_or_else(|| missing(path.clone()))
    }

    fn finished(&self, at: usize, digest: Hash, is_verified: bool) -> Result<()> {
        let mut state = self.state();
        let is_own = state.written.contains(&at);
        let by = if is_own { self.name.clone() } else { String::new() };
        state.brought.push(Brought { at, by, digest, is_verified });
        Ok(())
    }

    fn discard(&self, at: usize) -> Result<()> {
        let (_, path) = self.file(at)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("cannot remove", path, error))
            }
            _ => Ok(()),
        }
    }

    fn finish_share(&self) -> Result<Vec<Brought>> {
        self.monitor.check()?;
        if self.durable {
            self.monitor.enter(Stage::Sync);
            let unsynced = Mutex::new(std::mem::take(&mut self.state().unsynced));
            self.monitor.timed(Stage::Sync, 0, || sync_written(&self.folder, &unsynced))?;
        }
        Ok(self.state().brought.clone())
    }

    fn commit(self: Box<Self>) -> Result<Option<Identity>> {
        Err(Error::invalid("the process that began the copy commits it").in_file(&self.folder))
    }
}

#[cfg(test)]
mod tests {
    use super::super::transfer::LocalTransfer;
    use super::*;
    use crate::storage::Target;

    fn file(name: &str, len_bytes: u64) -> TransferFile {
        TransferFile { name: name.to_owned(), len_bytes, version: "1".to_owned() }
    }

    #[test]
    fn who_joins_writes_whole_files_into_a_folder_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let target = Location::local(root.path().join("x"));
        let files = [
            file("small", 3),
            file("just short", SYNC_LATER_LEN_MAX_BYTES - 1),
            file("long", SYNC_LATER_LEN_MAX_BYTES),
        ];
        let (kind, monitor) = (Target::Folder, Monitor::new());
        let options = TransferOptions::of_files(&kind, &files, &monitor);
        let begun = LocalTransfer::begin(&target, options).unwrap();
        let one = JoinedTransfer::join(&target, &begun.ticket().unwrap(), options).unwrap();
        let other = JoinedTransfer::join(&target, &begun.ticket().unwrap(), options).unwrap();
        assert_ne!(one.folder, other.folder);
        assert_eq!(one.writer(0, 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
        for at in 0..files.len() {
            let mut writer = one.writer(at, 0).unwrap();
            writer.write(b"abc").unwrap();
            writer.finish().unwrap();
            let is_synced = monitor.stages().iter().any(|report| report.stage == Stage::Sync);
            assert_eq!(is_synced, at == 2, "what is long its own writer syncs");
        }
        let unsynced: Vec<_> =
            one.state().unsynced.iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(unsynced, ["small", "just short"]);
        assert_eq!(one.written(0).unwrap().len_bytes(), 3);
        // Gone, and gone once more.
        one.discard(0).unwrap();
        assert!(!one.folder.join("small").exists());
        one.discard(0).unwrap();
        fs::create_dir(one.folder.join("small")).unwrap();
        assert_eq!(one.discard(0).unwrap_err().kind(), ErrorKind::Io);
        let refused: Box<dyn Transfer> = Box::new(one);
        assert_eq!(refused.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_at_once() {
        let root = tempfile::tempdir().unwrap();
        let error = own_folder(&root.path().join("nowhere")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        fs::create_dir(root.path().join(format!("{SHARE_PREFIX}0"))).unwrap();
        let (folder, name) = own_folder(root.path()).unwrap();
        assert_eq!((name, folder.is_dir()), (format!("{SHARE_PREFIX}1"), true));
    }
}
