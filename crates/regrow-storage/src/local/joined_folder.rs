//! Joins the temporary folder of another process, so that several processes write one checkpoint.
//!
//! ```text
//! rank 0   begin ── ticket ──▶ ... files ...  wait for all ── commit: the name is given
//! rank k            join   ──▶ ... files ...  its own files are durable
//! ```

use super::files::{Files, InFolder};
use super::target::resolve;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::monitor::Stage;
use crate::{Identity, JoinedFolder, PublishOptions, UNCOMMITTED_MARK};

/// A temporary folder that another process has made, and will commit or remove.
#[derive(Debug)]
pub(super) struct SharedFolder {
    files: Files,
    /// The identity of the folder. A rename does not change it.
    identity: Option<Identity>,
    absolute: Location,
}

impl SharedFolder {
    /// Joins the temporary folder with the name in `ticket`, beside the target.
    ///
    /// # Errors
    /// `NotFound` if this process does not see the folder: the processes share no file system, or
    /// the other process has given up. `InvalidArgument` if the ticket is not the name of a
    /// temporary folder of this target.
    pub(super) fn join(target: &Location, ticket: &str, options: PublishOptions<'_>) -> Result<Self> {
        let path = target.local_path()?;
        let absolute = resolve(path, options.overwrite)?;
        if ticket.contains('/') || !ticket.contains(UNCOMMITTED_MARK) {
            return Err(Error::invalid(format!("{ticket:?} is not the ticket of a save")).in_file(path));
        }
        let folder = absolute.with_file_name(ticket);
        if !folder.is_dir() {
            return Err(Error::new(
                ErrorKind::NotFound,
                "this process cannot see the folder that rank 0 writes into",
            )
            .in_file(folder)
            .help("all processes of a job save to one shared folder: check that it is mounted here"));
        }
        Ok(Self {
            identity: Location::local(&folder).identity(),
            files: Files::new(folder, target, &options),
            absolute: Location::local(absolute),
        })
    }
}

impl InFolder for SharedFolder {
    fn files(&self) -> &Files {
        &self.files
    }
}

impl JoinedFolder for SharedFolder {
    fn claim(&self, name: &str) -> Result<bool> {
        self.files.claim(name)
    }

    fn share_len_bytes(&self) -> u64 {
        0
    }

    fn finish_share(&self) -> Result<()> {
        let Files { monitor, durable, folder, .. } = &self.files;
        monitor.check()?;
        if !durable {
            return Ok(());
        }
        monitor.enter(Stage::Sync);
        monitor.timed(Stage::Sync, 0, || self.files.sync(folder))
    }

    fn is_published(&self) -> Result<bool> {
        Ok(self.identity.is_some() && self.absolute.identity() == self.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Staged;
    use super::*;
    use crate::monitor::Monitor;
    use crate::{BegunFolder, NewFolder};

    fn joined(target: &Location, ticket: &str, durable: bool, monitor: &Monitor) -> SharedFolder {
        let options = PublishOptions { durable, ..PublishOptions::of_new(monitor) };
        SharedFolder::join(target, ticket, options).unwrap()
    }

    #[test]
    fn a_share_is_as_durable_as_it_was_told() {
        let root = tempfile::tempdir().unwrap();
        let target = Location::local(root.path().join("x"));
        let begun = Staged::of_folder(&root.path().join("x"), false).unwrap();
        for durable in [false, true] {
            let monitor = Monitor::new();
            let one = joined(&target, &begun.ticket().unwrap(), durable, &monitor);
            assert_eq!((one.is_durable(), one.share_len_bytes()), (durable, 0));
            let name = format!("d/small {durable}");
            one.write(&name, b"abc").unwrap();
            assert_eq!(one.written(&name).unwrap(), b"abc");
            assert_eq!(one.files.unsynced.lock().unwrap().len(), usize::from(durable));
            one.finish_share().unwrap();
            assert!(one.files.unsynced.lock().unwrap().is_empty());
            // Each process has its own monitor, which cancels only its own share.
            monitor.cancel();
            assert!(one.monitor().is_cancelled());
            assert_eq!(one.finish_share().unwrap_err().kind(), ErrorKind::Cancelled);
        }
        assert!(begun.folder().join("d/small true").is_file());
    }

    #[test]
    fn it_is_published_when_its_own_folder_has_the_name() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        let begun = Staged::of_folder(&path, false).unwrap();
        let monitor = Monitor::new();
        let one = joined(&Location::local(&path), &begun.ticket().unwrap(), true, &monitor);
        assert!(!one.is_published().unwrap());
        begun.write("_METADATA", b"{}").unwrap();
        begun.commit().unwrap();
        assert!(one.is_published().unwrap());
        // Another checkpoint that takes the name does not count as this one.
        let other = Staged::of_folder(&path, true).unwrap();
        other.write("_METADATA", b"{}").unwrap();
        other.commit().unwrap();
        assert!(!one.is_published().unwrap());
    }
}
