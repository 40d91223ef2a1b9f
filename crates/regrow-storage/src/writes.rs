//! The methods of a location that begin, finish and remove checkpoints: every change of a storage
//! begins here.

use std::time::Duration;

use crate::error::Result;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::{
    BegunFile, BegunFolder, BegunSiblings, JoinedFolder, PublishOptions, Removal, Removed, Stock, Target,
    TargetLock, Trace, Transfer, TransferOptions, Writes,
};

impl Location {
    fn writes(&self) -> Result<Writes<'_>> {
        self.capabilities().writes.map_err(|why| why.error(self))
    }

    /// The same as [`Publish::check_publish`](crate::Publish::check_publish).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn check_publish(&self, kind: &Target, options: PublishOptions<'_>) -> Result<()> {
        self.writes()?.publish.check_publish(self, kind, options)
    }

    /// Begins a folder here, as [`Publish::publish_folder`](crate::Publish::publish_folder).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn publish_folder(&self, options: PublishOptions<'_>) -> Result<Box<dyn BegunFolder>> {
        self.writes()?.publish.publish_folder(self, options)
    }

    /// Begins a single file here, as [`Publish::publish_file`](crate::Publish::publish_file).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn publish_file(&self, options: PublishOptions<'_>) -> Result<Box<dyn BegunFile>> {
        self.writes()?.publish.publish_file(self, options)
    }

    /// Begins files with these suffixes here, as
    /// [`Publish::publish_siblings`](crate::Publish::publish_siblings).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn publish_siblings(
        &self,
        suffixes: &[String],
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn BegunSiblings>> {
        self.writes()?.publish.publish_siblings(self, suffixes, options)
    }

    /// Joins the folder that another process has begun here, as
    /// [`Publish::join`](crate::Publish::join).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn join_publication(
        &self,
        ticket: &str,
        options: PublishOptions<'_>,
    ) -> Result<Box<dyn JoinedFolder>> {
        self.writes()?.publish.join(self, ticket, options)
    }

    /// Begins a copy to here, as [`Publish::transfer`](crate::Publish::transfer).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn transfer(&self, options: TransferOptions<'_>) -> Result<Box<dyn Transfer>> {
        self.writes()?.publish.transfer(self, options)
    }

    /// The locks and temporary files here, as [`Upkeep::traces`](crate::Upkeep::traces); none for a
    /// storage that is read only.
    ///
    /// # Errors
    /// The same as there.
    pub fn traces(&self) -> Result<Vec<Trace>> {
        self.capabilities().writes.map_or(Ok(Vec::new()), |writes| writes.upkeep.traces(self))
    }

    /// Takes the lock of the checkpoint here, as [`Upkeep::lock`](crate::Upkeep::lock).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn lock(
        &self,
        operation: &'static str,
        wait: Option<Duration>,
        monitor: &Monitor,
    ) -> Result<TargetLock> {
        self.writes()?.upkeep.lock(self, operation, wait, monitor)
    }

    /// Removes the checkpoint here, as [`Upkeep::remove`](crate::Upkeep::remove).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn remove(&self, what: &Removal, lock: &TargetLock) -> Result<Removed> {
        self.writes()?.upkeep.remove(self, what, lock)
    }

    /// Removes files of unfinished saves, as
    /// [`Upkeep::remove_unfinished`](crate::Upkeep::remove_unfinished).
    ///
    /// # Errors
    /// The same as there; `Unsupported` for a storage that is read only.
    pub fn remove_unfinished(&self, force: bool) -> Result<Removed> {
        self.writes()?.upkeep.remove_unfinished(self, force)
    }

    /// Finishes a killed save, as [`Upkeep::finish_unfinished`](crate::Upkeep::finish_unfinished);
    /// false for a storage that is read only.
    ///
    /// # Errors
    /// The same as there.
    pub fn finish_unfinished(&self) -> Result<bool> {
        self.capabilities().writes.map_or(Ok(false), |writes| writes.upkeep.finish_unfinished(self))
    }

    /// The same as [`Upkeep::check_finished`](crate::Upkeep::check_finished).
    ///
    /// # Errors
    /// The same as there.
    pub fn check_finished(&self) -> Result<()> {
        self.capabilities().writes.map_or(Ok(()), |writes| writes.upkeep.check_finished(self))
    }

    /// The number and length of the files here, and the time of the last change; `None` if unknown.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn stock(&self) -> Result<Option<Stock>> {
        self.capabilities().writes.map_or(Ok(None), |writes| writes.upkeep.stock(self.path()))
    }
}
