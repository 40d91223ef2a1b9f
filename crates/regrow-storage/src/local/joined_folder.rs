//! Joins the temporary folder of another process, so that several processes write one checkpoint.
//!
//! ```text
//! rank 0   begin ── ticket ──▶ ... files ...  wait for all ── commit: the name is given
//! rank k            join   ──▶ ... files ...  its own files are durable
//! ```

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::folder_files::FolderFiles;
use super::naming::sync_written;
use super::target::resolve;
use crate::error::{Error, ErrorKind, Result};
use crate::local::LocalDisk;
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::store::{Blob, FileWriter};
use crate::{
    Identity, JoinedShare, NewFiles, NewFolder, Publication, PublishOptions, Role, Storage, UNCOMMITTED_MARK,
};

/// A temporary folder that another process has made, and will commit or remove.
#[derive(Debug)]
pub(super) struct JoinedFolder {
    folder: PathBuf,
    /// The identity of the folder. A rename does not change it.
    identity: Option<Identity>,
    absolute: PathBuf,
    target: Location,
    durable: bool,
    monitor: Monitor,
    unsynced: Mutex<Vec<PathBuf>>,
    linked_bytes: AtomicU64,
}

impl JoinedFolder {
    /// Joins the temporary folder with the name in `ticket`, beside the target.
    ///
    /// # Errors
    /// `NotFound` if this process does not see the folder: the processes share no file system, or
    /// the other process has given up. `InvalidArgument` if the ticket is not the name of a
    /// temporary folder of this target.
    pub(super) fn join(target: &Location, ticket: &str, options: PublishOptions<'_>) -> Result<Self> {
        let path = target.local_path()?;
        let absolute = resolve(path, options.overwrite)?;
        let is_name = !ticket.contains('/') && ticket.contains(UNCOMMITTED_MARK);
        let Some(parent) = absolute.parent().filter(|_| is_name) else {
            return Err(Error::invalid(format!("{ticket:?} is not the ticket of a save")).in_file(path));
        };
        let folder = parent.join(ticket);
        if !folder.is_dir() {
            return Err(Error::new(
                ErrorKind::NotFound,
                "this process cannot see the folder that rank 0 writes into",
            )
            .in_file(folder)
            .help("all processes of a job save to one shared folder: check that it is mounted here"));
        }
        Ok(Self {
            identity: LocalDisk.identity(&folder),
            folder,
            absolute,
            target: target.clone(),
            durable: options.durable,
            monitor: options.monitor.clone(),
            unsynced: Mutex::default(),
            linked_bytes: AtomicU64::new(0),
        })
    }

    fn files(&self) -> FolderFiles<'_> {
        let (folder, durable) = (self.folder.as_path(), self.durable);
        FolderFiles { folder, durable, monitor: &self.monitor, unsynced: &self.unsynced }
    }
}

impl Publication for JoinedFolder {
    fn target(&self) -> &Location {
        &self.target
    }

    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn is_durable(&self) -> bool {
        self.durable
    }

    fn files(&self) -> NewFiles<'_> {
        NewFiles::Folder(self)
    }

    fn stored_bytes(&self) -> Result<u64> {
        Ok(0)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        Err(Error::invalid("only the process that started the checkpoint can commit it")
            .in_file(&self.target))
    }
}

impl NewFolder for JoinedFolder {
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.files().write(name, bytes)
    }

    fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.files().writer(name, expected_len_bytes, checksums_from)
    }

    fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        let linked = self.files().link(name, source, opened)?;
        self.linked_bytes.fetch_add(linked.unwrap_or(0), Ordering::Relaxed);
        Ok(linked.is_some())
    }

    fn reused_bytes(&self) -> u64 {
        self.linked_bytes.load(Ordering::Relaxed)
    }

    fn written(&self, name: &str) -> Result<Vec<u8>> {
        self.files().read(name)
    }

    fn claim(&self, name: &str) -> Result<bool> {
        self.files().claim(name)
    }

    fn local_folder(&self) -> Option<&Path> {
        Some(&self.folder)
    }

    fn marker_line(&self) -> Option<String> {
        None
    }

    fn role(&self) -> Role<'_> {
        Role::Joined(self)
    }
}

impl JoinedShare for JoinedFolder {
    fn finish_share(&self) -> Result<()> {
        self.monitor.check()?;
        if !self.durable {
            return Ok(());
        }
        self.monitor.enter(Stage::Sync);
        self.monitor.timed(Stage::Sync, 0, || sync_written(&self.folder, &self.unsynced))
    }

    fn is_published(&self) -> Result<bool> {
        Ok(self.identity.is_some() && LocalDisk.identity(&self.absolute) == self.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::super::StagedFolder;
    use super::*;
    use crate::BegunFolder;
    use crate::Target;

    fn joined(target: &Location, ticket: &str, durable: bool, monitor: &Monitor) -> JoinedFolder {
        let kind = Target::Folder;
        let options = PublishOptions {
            kind: &kind,
            overwrite: false,
            may_replace: None,
            make_way: None,
            replaces_links: false,
            durable,
            keeps_others: false,
            monitor,
        };
        JoinedFolder::join(target, ticket, options).unwrap()
    }

    #[test]
    fn who_joins_says_what_it_was_told_and_commits_nothing() {
        let root = tempfile::tempdir().unwrap();
        let target = Location::local(root.path().join("x"));
        let begun = StagedFolder::create(&root.path().join("x"), false).unwrap();
        for durable in [false, true] {
            let monitor = Monitor::new();
            let one = joined(&target, &begun.ticket().unwrap(), durable, &monitor);
            assert_eq!((one.is_durable(), one.stored_bytes().unwrap()), (durable, 0));
            let name = format!("d/small {durable}");
            one.write(&name, b"abc").unwrap();
            assert_eq!(one.written(&name).unwrap(), b"abc");
            assert_eq!(one.unsynced.lock().unwrap().len(), usize::from(durable));
            one.finish_share().unwrap();
            assert!(one.unsynced.lock().unwrap().is_empty());
            // Each process has its own monitor, which cancels only its own share.
            monitor.cancel();
            assert!(one.monitor().is_cancelled());
            assert_eq!(one.finish_share().unwrap_err().kind(), ErrorKind::Cancelled);
            let refused: Box<dyn Publication> = Box::new(one);
            assert_eq!(refused.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        assert!(begun.folder().join("d/small true").is_file());
    }

    #[test]
    fn it_is_published_when_its_own_folder_has_the_name() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        let begun = StagedFolder::create(&path, false).unwrap();
        let monitor = Monitor::new();
        let one = joined(&Location::local(&path), &begun.ticket().unwrap(), true, &monitor);
        assert!(!one.is_published().unwrap());
        begun.write("_METADATA", b"{}").unwrap();
        begun.commit().unwrap();
        assert!(one.is_published().unwrap());
        // Another checkpoint that takes the name does not count as this one.
        let other = StagedFolder::create(&path, true).unwrap();
        other.write("_METADATA", b"{}").unwrap();
        other.commit().unwrap();
        assert!(!one.is_published().unwrap());
    }
}
