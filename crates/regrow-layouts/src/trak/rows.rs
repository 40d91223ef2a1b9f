//! The open arrays of a model or of its targets: writes rows, and marks them only after they are on
//! disk.
//!
//! ```text
//! write_rows  pwrite into the data, at once
//! mark_done   remembered; when the interval is over, or on flush:
//!                 fdatasync data  ->  pwrite the mask  ->  fdatasync mask
//! ```
//!
//! A row whose mark is on disk has its data on disk, after a kill and after a power cut. A kill or
//! a power cut loses the work of one interval at most, and the next run does that work again. Many
//! batches share one sync, which keeps it cheap.
//!
//! Without an interval nothing is synced: marks follow their rows at once, as with TRAK's own
//! saver. A kill then loses no rows, but a power cut may leave marks for rows of zeros.
//!
//! After a failed sync the rows that waited for it are not done, and the store takes no more rows
//! until it is opened again.
//!
//! Any number of processes can write any rows: each process writes only its own rows of data and
//! mask.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::array_file::ArrayFile;
use regrow_base::error::{Error, ErrorKind, Result};

/// How long a mark may wait for its sync by default.
pub(super) const SYNC_INTERVAL_DEFAULT: Duration = Duration::from_millis(500);

/// Arrays that are written by rows, with the mask of the rows that are done.
#[derive(Debug)]
pub struct Rows {
    /// Arrays that the mask covers, by their keys.
    masked: Vec<(&'static str, ArrayFile)>,
    mask: ArrayFile,
    /// `None`: nothing is synced.
    interval: Option<Duration>,
    pending: Mutex<Pending>,
    /// The process that may write the pending marks. A forked child must not write them.
    pid: u32,
}

#[derive(Debug, Default)]
struct Pending {
    /// Rows that are done and not marked on disk yet.
    rows: HashSet<u64>,
    last_sync: Option<Instant>,
}

impl Rows {
    pub(super) fn new(
        masked: Vec<(&'static str, ArrayFile)>,
        mask: ArrayFile,
        interval: Option<Duration>,
    ) -> Self {
        Self { masked, mask, interval, pending: Mutex::default(), pid: std::process::id() }
    }

    /// The mask, as it is on disk.
    pub fn mask(&self) -> &ArrayFile {
        &self.mask
    }

    /// One of the arrays that the mask covers.
    ///
    /// # Errors
    /// `NotFound` for an array that was deleted, and for an unknown key.
    pub fn array(&self, key: &str) -> Result<&ArrayFile> {
        let found = self.masked.iter().find(|(name, _)| *name == key);
        found.map(|(_, array)| array).ok_or_else(|| {
            let folder = self.mask.path().parent().unwrap_or(self.mask.path());
            Error::new(ErrorKind::NotFound, format!("array {key:?} does not exist, or was deleted"))
                .in_file(folder)
        })
    }

    /// The keys and arrays that the mask covers.
    pub fn arrays(&self) -> impl Iterator<Item = (&'static str, &ArrayFile)> {
        self.masked.iter().map(|(key, array)| (*key, array))
    }

    /// Writes one row after another of `data` to `rows`. A row that was done is not done while it
    /// is being written, and is done again afterwards.
    pub fn write_rows(&self, key: &str, rows: &[u64], data: &[u8]) -> Result<()> {
        let array = self.array(key)?;
        let mut pending = self.lock();
        let mut done = self.mask.marked(rows)?;
        self.unmark(&done)?;
        if !pending.rows.is_empty() {
            done.extend(rows.iter().filter(|row| pending.rows.remove(row)));
        }
        array.write_rows(rows, data)?;
        if self.interval.is_none() {
            return self.mask.set_marks(&done, 1);
        }
        pending.rows.extend(done);
        Ok(())
    }

    /// Marks rows as done: on disk at the latest when the next call finds that the interval is
    /// over, or with [`flush`](Self::flush).
    pub fn mark_done(&self, rows: &[u64]) -> Result<()> {
        self.mask.check_rows(rows)?;
        let mut pending = self.lock();
        let Some(interval) = self.interval else { return self.mask.set_marks(rows, 1) };
        self.mask.check_synced()?;
        pending.rows.extend(rows);
        if pending.last_sync.is_none_or(|last| last.elapsed() >= interval) {
            return self.sync(&mut pending);
        }
        Ok(())
    }

    /// Marks rows as not done, at once.
    pub fn mark_undone(&self, rows: &[u64]) -> Result<()> {
        self.mask.check_rows(rows)?;
        let mut pending = self.lock();
        for row in rows {
            pending.rows.remove(row);
        }
        self.unmark(rows)
    }

    /// Whether rows are synced before they are marked.
    pub fn is_synced(&self) -> bool {
        self.interval.is_some()
    }

    /// Whether marks are waiting.
    pub(super) fn has_pending(&self) -> bool {
        !self.lock().rows.is_empty()
    }

    /// Puts data on disk, then the marks that are waiting.
    ///
    /// # Errors
    /// Errors of the disk: the rows that were waiting are then not done.
    pub fn flush(&self) -> Result<()> {
        self.sync(&mut self.lock())
    }

    /// The number of rows of all processes that are marked as done on disk.
    pub fn count_done(&self) -> Result<u64> {
        self.mask.count_marked()
    }

    /// The rows that are neither marked on disk nor waiting for their mark.
    pub fn missing(&self) -> Result<Vec<u64>> {
        let pending = self.lock().rows.clone();
        let mut missing = Vec::new();
        self.mask.for_each_number(|row, number| {
            if number != 1 && !pending.contains(&row) {
                missing.push(row);
            }
        })?;
        Ok(missing)
    }

    fn sync(&self, pending: &mut Pending) -> Result<()> {
        if self.interval.is_none() && pending.rows.is_empty() {
            return Ok(());
        }
        // Rows may also have been written through a map of the file, without `write_rows`.
        let mut data = self.masked.iter().map(|(_, array)| array);
        if let Err(error) = data.try_for_each(|array| array.check_len().and_then(|()| array.sync())) {
            pending.rows.clear();
            return Err(error);
        }
        if !pending.rows.is_empty() {
            let rows = sorted(&std::mem::take(&mut pending.rows));
            self.mask.set_marks_on_disk(&rows, 1)?;
        }
        pending.last_sync = Some(Instant::now());
        Ok(())
    }

    /// Removes the marks of rows on disk.
    fn unmark(&self, rows: &[u64]) -> Result<()> {
        match self.interval.is_some() && !rows.is_empty() {
            true => self.mask.set_marks_on_disk(rows, 0),
            false => self.mask.set_marks(rows, 0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sorted(rows: &HashSet<u64>) -> Vec<u64> {
    let mut rows: Vec<u64> = rows.iter().copied().collect();
    rows.sort_unstable();
    rows
}

impl Drop for Rows {
    /// Writes pending marks if it can; [`flush`](Rows::flush) reports errors.
    fn drop(&mut self) {
        if self.pid == std::process::id() && self.has_pending() {
            let _ = self.flush();
        }
    }
}
