//! A folder inside an unfinished checkpoint, which a layout writes as a new folder of its own.
//!
//! ```text
//! step_100/                      the publication: started, committed or dropped by its owner
//!   state/                       Within { below: "state" }
//!   weights/model.safetensors    FileWithin { name: "weights/model.safetensors" }
//! ```
//!
//! An empty name means the checkpoint's own folder: the layout then writes the whole checkpoint.
//! `Within` puts the folder's name before each file name and passes the file to the publication.
//! The marker of the folder is an ordinary file. It takes effect when the whole checkpoint is
//! committed.

use std::path::{Path, PathBuf};

use super::{MergedFolder, NewFile, NewFolder};
use crate::error::Result;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::store::{Blob, FileWriter};

/// A folder in a new folder.
#[derive(Debug)]
pub struct Within<'p, F: ?Sized> {
    whole: &'p F,
    /// The path of the folder in the checkpoint; empty for the checkpoint's own folder.
    below: String,
    /// Files of the layout that the folder must not get.
    left_out: &'static [&'static str],
    target: Location,
    local_folder: Option<PathBuf>,
}

impl<'p, F: NewFolder + ?Sized> Within<'p, F> {
    /// The folder `below`.
    pub fn new(whole: &'p F, below: &str, left_out: &'static [&'static str]) -> Self {
        Self {
            whole,
            below: below.to_owned(),
            left_out,
            target: if below.is_empty() { whole.target().clone() } else { whole.target().join(below) },
            local_folder: whole.local_folder().map(|folder| match below {
                "" => folder.to_owned(),
                below => folder.join(below),
            }),
        }
    }

    fn name(&self, name: &str) -> String {
        if self.below.is_empty() { name.to_owned() } else { format!("{}/{name}", self.below) }
    }
}

impl<F: NewFolder + ?Sized> NewFolder for Within<'_, F> {
    fn target(&self) -> &Location {
        &self.target
    }

    fn monitor(&self) -> &Monitor {
        self.whole.monitor()
    }

    fn is_durable(&self) -> bool {
        self.whole.is_durable()
    }

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

    fn marker_line(&self) -> Option<String> {
        // Inside a checkpoint, the marker of a part is an ordinary file.
        self.whole.marker_line().filter(|_| self.below.is_empty())
    }

    fn local_folder(&self) -> Option<&Path> {
        self.local_folder.as_deref()
    }
}

impl<F: MergedFolder + ?Sized> MergedFolder for Within<'_, F> {
    fn sweep(&self, below: &str, is_left: &dyn Fn(&str) -> bool) -> Result<()> {
        match below.is_empty() {
            true => self.whole.sweep(&self.below, is_left),
            false => self.whole.sweep(&self.name(below), is_left),
        }
    }

    fn withdraw(&self, name: &str) -> Result<()> {
        self.whole.withdraw(&self.name(name))
    }
}

/// A file in a new folder, for a layout that is a single file.
#[derive(Debug)]
pub struct FileWithin<'p> {
    whole: &'p dyn NewFolder,
    /// The path of the file in the checkpoint.
    name: String,
    target: Location,
}

impl<'p> FileWithin<'p> {
    /// The file `name`, which may be a path.
    pub fn new(whole: &'p dyn NewFolder, name: String) -> Self {
        Self { target: whole.target().join(&name), whole, name }
    }
}

impl NewFile for FileWithin<'_> {
    fn target(&self) -> &Location {
        &self.target
    }

    fn single_writer(&self, expected_len_bytes: u64, checksums_from: u64) -> Result<FileWriter> {
        self.whole.writer(&self.name, expected_len_bytes, checksums_from)
    }
}
