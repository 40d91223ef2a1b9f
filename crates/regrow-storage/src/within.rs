//! A folder inside an unfinished checkpoint, which a layout can use as its own publication.
//!
//! ```text
//! step_100/                      the publication: started, committed or dropped by its owner
//!   state/                       Within { below: "state" }
//!   weights/model.safetensors    Within { below: "weights", file: "model.safetensors" }: one file
//! ```
//!
//! An empty name means the checkpoint's own folder: the layout then writes the whole checkpoint.
//! `Within` puts the folder's name before each file name and passes the file to the publication.
//! The marker of the folder is an ordinary file. It takes effect when the whole checkpoint is
//! committed.

use std::path::{Path, PathBuf};

use super::{BegunFolder, Identity, NewFile, NewFiles, NewFolder, Publication, Role, no_such_file};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::{Blob, FileWriter};

/// A folder of a publication.
#[derive(Debug)]
pub struct Within<'p> {
    whole: &'p dyn Publication,
    /// The path of the folder in the checkpoint; empty for the checkpoint's own folder.
    below: String,
    /// The file name, for a layout that is a single file.
    file: Option<&'static str>,
    /// Files of the layout that the folder must not get.
    left_out: &'static [&'static str],
    target: Location,
    local_folder: Option<PathBuf>,
}

impl<'p> Within<'p> {
    /// The folder `below`, for a layout that is a folder.
    pub fn folder(whole: &'p dyn Publication, below: &str, left_out: &'static [&'static str]) -> Self {
        Self {
            whole,
            below: below.to_owned(),
            file: None,
            left_out,
            target: if below.is_empty() { whole.target().clone() } else { whole.target().join(below) },
            local_folder: whole.local_folder().map(|folder| match below {
                "" => folder.to_owned(),
                below => folder.join(below),
            }),
        }
    }

    /// A file in the folder `below`, for a layout that is a single file.
    pub fn single_file(whole: &'p dyn Publication, below: &str, file: &'static str) -> Self {
        let folder = Self::folder(whole, below, &[]);
        Self { file: Some(file), target: folder.target.join(file), ..folder }
    }

    fn name(&self, name: &str) -> String {
        if self.below.is_empty() { name.to_owned() } else { format!("{}/{name}", self.below) }
    }
}

impl Publication for Within<'_> {
    fn target(&self) -> &Location {
        &self.target
    }

    fn monitor(&self) -> &Monitor {
        self.whole.monitor()
    }

    fn is_durable(&self) -> bool {
        self.whole.is_durable()
    }

    fn files(&self) -> NewFiles<'_> {
        match self.file {
            Some(_) => NewFiles::File(self),
            None => NewFiles::Folder(self),
        }
    }

    fn stored_bytes(&self) -> Result<u64> {
        self.whole.stored_bytes()
    }

    fn commit(self: Box<Self>) -> Result<()> {
        Err(Error::invalid("a part of a checkpoint cannot be committed by itself").in_file(&self.target))
    }
}

impl NewFolder for Within<'_> {
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if self.left_out.contains(&name) {
            return Ok(());
        }
        self.whole.write(&self.name(name), bytes)
    }

    fn writer(&self, name: &str, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.whole.writer(&self.name(name), expected_len_bytes, checksums_from)
    }

    fn reuse(&self, name: &str, source: &Location, opened: &dyn Blob) -> Result<bool> {
        self.whole.reuse(&self.name(name), source, opened)
    }

    fn reused_bytes(&self) -> u64 {
        self.whole.reused_bytes()
    }

    fn written(&self, name: &str) -> Result<Vec<u8>> {
        self.whole.written(&self.name(name))
    }

    fn claim(&self, name: &str) -> Result<bool> {
        self.whole.claim(&self.name(name))
    }

    fn marker_line(&self) -> Option<String> {
        // Inside a checkpoint, the marker of a part is an ordinary file.
        self.whole.marker_line().filter(|_| self.below.is_empty())
    }

    fn local_folder(&self) -> Option<&Path> {
        self.local_folder.as_deref()
    }

    fn role(&self) -> Role<'_> {
        Role::Begun(self)
    }
}

impl BegunFolder for Within<'_> {
    fn sweep(&self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        match below.is_empty() {
            true => self.whole.sweep(&self.below, is_left),
            false => self.whole.sweep(&self.name(below), is_left),
        }
    }

    fn withdraw(&self, name: &str) -> Result<()> {
        self.whole.withdraw(&self.name(name))
    }

    fn ticket(&self) -> Result<String> {
        Err(Error::invalid("processes join a whole checkpoint, not a part").in_file(&self.target))
    }

    /// Does nothing: the owner of the whole checkpoint sets the modes.
    fn set_mode(&self, _below: &str, _mode: u32) -> Result<()> {
        Ok(())
    }
}

impl NewFile for Within<'_> {
    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        let file = self.file.ok_or_else(|| no_such_file("single file"))?;
        self.whole.writer(&format!("{}/{file}", self.below), expected_len_bytes, checksums_from)
    }

    fn single_writer_in_place(&self, expected_len_bytes: u64) -> Result<FileWriter> {
        self.single_writer(expected_len_bytes, 0)
    }

    /// Does nothing: the file is new, in a new checkpoint.
    fn only_in_place_of(&self, _before: Option<Identity>) {}

    fn is_named_by_write(&self) -> bool {
        false
    }
}
