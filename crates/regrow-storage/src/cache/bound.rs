//! The size of a cache. If it is too large, the least recently used blocks are removed.
//!
//! The size is measured on the disk, because other processes also write. It is measured before the
//! first block is stored, and again each time this process has stored a thirty-second of the bound.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// A removal leaves a tenth of the bound free, so that the next blocks need no removal.
const FREE_PARTS: u64 = 10;

/// The folder is measured again after this process has stored a thirty-second of the bound.
const COUNT_PARTS: u64 = 32;

/// A temporary file older than this belongs to a killed process.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct Bound {
    folder: PathBuf,
    len_max_bytes: u64,
    state: Mutex<State>,
}

/// What this process knows about the folder.
#[derive(Debug, Default)]
struct State {
    /// The measured size; `None` before the first measurement.
    len_bytes: Option<u64>,
    kept_since_bytes: u64,
    /// Bytes that threads are allowed to write and are writing now.
    in_flight_bytes: u64,
}

impl Bound {
    pub(super) fn new(folder: &Path, len_max_bytes: u64) -> Self {
        Self { folder: folder.to_owned(), len_max_bytes, state: Mutex::default() }
    }

    /// Whether this many bytes may be stored. Removes old blocks if necessary. After `true` the
    /// caller must call [`ended`](Self::ended).
    pub(super) fn has_room_for(&self, len_bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = state.kept_since_bytes >= self.len_max_bytes / COUNT_PARTS;
        let held = match state.len_bytes.filter(|_| !is_due) {
            Some(held) => held,
            None => {
                state.kept_since_bytes = 0;
                blocks(&self.folder).iter().map(|block| block.len_bytes).sum()
            }
        };
        let in_flight = state.in_flight_bytes;
        let wanted = len_bytes.saturating_add(in_flight);
        let fits = |held: u64| held.saturating_add(wanted) <= self.len_max_bytes;
        let held = if fits(held) || len_bytes > self.len_max_bytes {
            held
        } else {
            self.remove_oldest(held, wanted)
        };
        state.len_bytes = Some(held);
        if fits(held) {
            state.in_flight_bytes = wanted;
        }
        fits(held)
    }

    /// Ends a write that `has_room_for` allowed. Counts its bytes if they were stored.
    pub(super) fn ended(&self, len_bytes: u64, is_kept: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.in_flight_bytes = state.in_flight_bytes.saturating_sub(len_bytes);
        if is_kept {
            state.len_bytes = state.len_bytes.map(|held| held.saturating_add(len_bytes));
            state.kept_since_bytes = state.kept_since_bytes.saturating_add(len_bytes);
        }
    }

    /// Removes the least recently used blocks, and returns the bytes that stay. If another process
    /// is removing blocks, removes nothing and returns `held`.
    fn remove_oldest(&self, held: u64, len_bytes: u64) -> u64 {
        let Ok(lock) = self.lock() else { return held };
        let mut blocks = blocks(&self.folder);
        blocks.sort_by_key(|block| block.used);
        let mut left: u64 = blocks.iter().map(|block| block.len_bytes).sum();
        let wanted = self.len_max_bytes.saturating_sub(len_bytes.max(self.len_max_bytes / FREE_PARTS));
        for block in blocks {
            if left <= wanted {
                break;
            }
            // A reader that has the file open can still read it to its end.
            if fs::remove_file(&block.path).is_ok() {
                left = left.saturating_sub(block.len_bytes);
            }
        }
        drop(lock);
        left
    }

    fn lock(&self) -> io::Result<File> {
        let file = File::options().write(true).create(true).truncate(false).open(self.folder.join("lock"))?;
        file.try_lock()?;
        Ok(file)
    }
}

struct Block {
    path: PathBuf,
    len_bytes: u64,
    used: SystemTime,
}

/// The blocks of a cache. Removes temporary files of killed processes.
fn blocks(folder: &Path) -> Vec<Block> {
    let mut found = Vec::new();
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for file in entries(&folder.join("blocks")).flat_map(|folder| entries(&folder.path())) {
        let Ok(metadata) = file.metadata() else { continue };
        let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let is_block = file.file_name().to_str().is_some_and(is_block_name);
        let is_left = used.elapsed().is_ok_and(|age| age > TEMPORARY_AGE_MAX);
        if is_block {
            found.push(Block { path: file.path(), len_bytes: metadata.len(), used });
        } else if is_left && file.path().extension().is_some_and(|suffix| suffix == "tmp") {
            let _ = fs::remove_file(file.path());
        }
    }
    found
}

/// Whether a file name is that of a block. Of the other files, only old temporary files are
/// removed.
fn is_block_name(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
