//! Checks whether all processes see the same folder: rank 0 writes a small file, the probe, and the
//! other processes look for it.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Session;
use super::ranks::ranks;
use regrow_base::error::{Error, Result};
use regrow_storage::UNCOMMITTED_MARK;
use regrow_storage::location::Location;
use regrow_store::local::folders::random_name;
use regrow_store::{ByteRange, StoreExt};

/// How long the probe may take to appear on another machine: at most half of the session's
/// time-out, so that rank 0 still waits for the answer.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Session {
    /// Checks that every process sees what rank 0 writes beside `target`. Rank 0 writes a small
    /// file below the nearest existing folder above the target, and later removes the file. Call it
    /// before a save, while nothing is written.
    ///
    /// # Errors
    /// `InvalidArgument` in every process, with the ranks that do not see it; errors of the
    /// storage; errors of [`gather`](Self::gather).
    pub fn shares_storage(&self, target: &Location) -> Result<()> {
        let Some(within) = self.timeout().map(|timeout| SEEN_WITHIN.min(timeout / 2)) else {
            return Ok(());
        };
        let mut probe = None;
        let name = self.broadcast("probe", || {
            let written = probe.insert(Probe::write(target)?);
            Ok(format!("{} {} {}", written.levels, written.nonce, written.key()).into())
        })?;
        let sees = self.rank() == 0 || is_seen(target, &name, within)?;
        let seen = self.gather("probe-seen", Bytes::copy_from_slice(&[u8::from(sees)]))?;
        drop(probe);
        let blind = self.broadcast("probe-result", || {
            let all = seen.iter().flatten().enumerate();
            let blind: Vec<String> =
                all.filter(|(_, seen)| seen[..] != [1]).map(|(rank, _)| rank.to_string()).collect();
            Ok(blind.join(" ").into())
        })?;
        let blind = String::from_utf8_lossy(&blind);
        let blind: Vec<usize> = blind.split_whitespace().filter_map(|rank| rank.parse().ok()).collect();
        if blind.is_empty() {
            return Ok(());
        }
        let verb = if blind.len() == 1 { "does" } else { "do" };
        let blind = ranks(&blind);
        Err(Error::invalid(format!("the folder is not shared: {blind} {verb} not see the files of rank 0"))
            .in_file(target)
            .expected(
                format_args!("one folder for all {} processes", self.size()),
                format_args!("another on {blind}"),
            )
            .help("save to a disk that every machine mounts at this path, or to a bucket"))
    }
}

/// A file of rank 0 in a folder of its own. Dropping the probe removes the file and the folder.
struct Probe {
    /// The folder above the probe.
    above: Location,
    folder: String,
    /// The name of the file, and its content.
    nonce: String,
    /// The number of folders up from the target.
    levels: usize,
}

impl Probe {
    fn write(target: &Location) -> Result<Self> {
        let mut above = target.folders_above().enumerate();
        // In a bucket every folder name is valid, so the first folder is taken.
        let there = above.find(|(_, folder)| target.commits_by_marker() || folder.is_folder());
        let (levels, above) =
            there.ok_or_else(|| Error::invalid("this folder has no parent").in_file(target))?;
        // No reader takes this name for a checkpoint. The name is the same for each save of a
        // target, so on a disk the next save removes the probe of a killed process.
        let folder = format!(".probe-{}{UNCOMMITTED_MARK}", target.name().to_string_lossy());
        // Create the guard before the write: it removes the file even if the write returns an
        // error.
        let probe = Self { above, folder, levels, nonce: random_name()? };
        probe.above.store().put(probe.key().as_bytes(), Bytes::from(probe.nonce.clone()))?;
        Ok(probe)
    }

    fn key(&self) -> String {
        format!("{}/{}", self.folder, self.nonce)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Ignore errors: a folder that stays is not a checkpoint, and no process waits for its
        // removal.
        let _ = self.above.store().delete(self.key().as_bytes());
        if !self.above.commits_by_marker() {
            let _ = self.above.join(&self.folder).remove_unfinished(true);
        }
    }
}

fn is_seen(target: &Location, probe: &[u8], within: Duration) -> Result<bool> {
    let probe = String::from_utf8_lossy(probe);
    let mut parts = probe.splitn(3, ' ');
    let (Some(levels), Some(nonce), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Ok(false);
    };
    let folder = target.folders_above().nth(levels.parse().unwrap_or(usize::MAX));
    let Some(folder) = folder else { return Ok(false) };
    let began = Instant::now();
    loop {
        // A folder that is missing or unreadable is not the folder of rank 0.
        let found = folder.store().get(key.as_bytes(), ByteRange::Full);
        if found.is_ok_and(|found| found.is_some_and(|found| found[..] == *nonce.as_bytes())) {
            return Ok(true);
        }
        if began.elapsed() >= within {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
