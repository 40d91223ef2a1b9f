//! A checkpoint on a local disk as a [`Publication`].

use std::fs;
use std::path::Path;

use super::{Kind, Staged};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::storage::{Publication, Target};
use crate::store::{Blob, FileWriter};

impl Publication for Staged {
    fn target(&self) -> &Location {
        self.target()
    }

    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn is_durable(&self) -> bool {
        self.durable
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.write(name, bytes)
    }

    fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.writer(name, expected_len_bytes, checksums_from)
    }

    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.single_writer(expected_len_bytes, checksums_from)
    }

    fn sibling_writer(&self, at: usize, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.sibling_writer(at, expected_len_bytes, checksums_from)
    }

    fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        self.link(name, source, opened)
    }

    fn reused_bytes(&self) -> u64 {
        self.linked_bytes()
    }

    fn stored_bytes(&self) -> Result<u64> {
        folder_len_bytes(&self.own.path)
    }

    fn staged_file(&self) -> Option<Location> {
        (self.kind == Kind::File).then(|| Location::local(self.single_file()))
    }

    fn local_folder(&self) -> Option<&Path> {
        Some(self.folder())
    }

    fn commit(self: Box<Self>) -> Result<()> {
        Self::commit(*self)
    }
}

pub(super) fn kind_of(target: &Target) -> (Kind, &[String]) {
    match target {
        Target::Folder => (Kind::Folder, &[]),
        Target::File => (Kind::File, &[]),
        Target::Siblings { suffixes } => (Kind::Siblings, suffixes),
    }
}

fn folder_len_bytes(folder: &Path) -> Result<u64> {
    let mut total = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |source| Error::io("cannot list", &folder, source);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let metadata = entry.metadata().map_err(failed)?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                total += metadata.len();
            }
        }
    }
    Ok(total)
}
