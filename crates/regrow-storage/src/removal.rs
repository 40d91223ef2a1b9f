//! Removals: the allowed targets.

use std::time::{Duration, SystemTime};

use crate::location::Location;

/// What makes up a checkpoint that is to be removed.
#[derive(Debug, Clone)]
pub enum Removal {
    /// The folder, and all that is in it.
    Folder,
    /// Files, in the order in which they go: the one that makes the checkpoint first. What lies
    /// beside them goes before them, and may be gone by then.
    Files {
        /// Those that are the checkpoint.
        files: Vec<Location>,
        /// Its seal, its signature, its parity.
        beside: Vec<Location>,
    },
}

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files.
    pub file_count: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Whether the dead writer's files were a complete checkpoint, which has its name now.
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

/// How long a save is respected if its writer may live.
pub(crate) const RESPECTED_FOR: Duration = Duration::from_secs(60 * 60);

/// Whether a change is so recent that its writer may still be at work.
pub(crate) fn is_recent(modified: Option<SystemTime>) -> bool {
    // A time in the future, from another machine's clock, counts as recent.
    modified.is_none_or(|modified| modified.elapsed().map_or(true, |age| age < RESPECTED_FOR))
}
