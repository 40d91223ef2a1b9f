//! What a removal of a checkpoint removes, and how long it respects a running save.

use std::time::{Duration, SystemTime};

use crate::location::Location;

/// The parts of a checkpoint that is to be removed.
#[derive(Debug, Clone)]
pub enum Removal {
    /// The folder, with all its content.
    Folder,
    /// Files, in the order of their removal. The file that makes the checkpoint is first. The side
    /// files are removed before these files; missing side files are not an error.
    Files {
        /// The files of the checkpoint.
        files: Vec<Location>,
        /// The side files of the checkpoint: seal, signature and parity.
        beside: Vec<Location>,
    },
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of removed files.
    pub file_count: usize,
    /// Total length of the removed files in bytes.
    pub bytes: u64,
    /// Whether the files of a dead writer were a complete checkpoint, which now has its final name.
    pub is_finished: bool,
}

impl Removed {
    pub(crate) fn add(&mut self, len_bytes: u64) {
        self.file_count += 1;
        self.bytes = self.bytes.saturating_add(len_bytes);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.file_count += other.file_count;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.is_finished |= other.is_finished;
    }
}

/// How long regrow respects a save whose writer may live.
pub(crate) const RESPECTED_FOR: Duration = Duration::from_secs(60 * 60);

/// Whether the last change is so recent that the writer may still live.
pub(crate) fn is_recent(modified: Option<SystemTime>) -> bool {
    // A time in the future, from another machine's clock, counts as recent.
    modified.is_none_or(|modified| modified.elapsed().map_or(true, |age| age < RESPECTED_FOR))
}
