//! The small objects that show the state of a folder of objects: whether its checkpoint is being
//! written, is committed, or lies in another folder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::{Conditional, Object, Objects};
use crate::error::{Error, Result};
use crate::publication::COMMITTED_MARKER;
use crate::system::{has_ended, host_name};

/// The claim of the process that writes the checkpoint; it exists during the save.
pub(super) const CLAIM: &str = "regrow-writing.json";

/// The marker of a complete checkpoint.
pub(super) const MARKER: &str = COMMITTED_MARKER;

/// The marker of a layout that has no marker of its own. With the usual marker, Orbax would treat
/// the folder as one of its checkpoints.
pub(super) const OTHER_MARKER: &str = "regrow-committed.txt";

/// The pointer to a checkpoint in another folder.
pub(super) const MOVED: &str = "regrow-moved.json";

/// A checkpoint of Orbax or regrow in a bucket is committed when one of these is in its folder.
pub const COMMIT_MARKERS: [&str; 2] = [MARKER, MOVED];

/// A lock in the folder of an overwrite: a process copies the checkpoint from there to the target.
/// In the folder of a target: a process replaces or removes the checkpoint there.
pub(super) const SETTLING: &str = "regrow-settling.json";

/// Every save writes at least one of these objects. If regrow wrote the object, it has the nonce of
/// the save.
pub(super) const OF_EVERY_SAVE: [&str; 4] = [CLAIM, MARKER, OTHER_MARKER, MOVED];

/// Whether an object of this name shows that a complete checkpoint is here or in another folder.
pub(super) fn is_commit(name: &str) -> bool {
    matches!(name, MARKER | OTHER_MARKER | MOVED)
}

/// Whether an object of this name is not part of the checkpoint itself.
pub fn is_bookkeeping(name: &str) -> bool {
    matches!(name, CLAIM | MOVED | OTHER_MARKER | SETTLING)
}

/// A random name for one save. The save recognizes its own objects by it.
pub(super) fn nonce() -> Result<String> {
    let mut random = [0_u8; 8];
    getrandom::fill(&mut random).map_err(|error| {
        Error::new(crate::error::ErrorKind::Io, format!("the system gives no random bytes: {error}"))
    })?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// How long a claim is respected after its last renewal, if it is unknown whether the writer lives.
pub(super) const CLAIM_TIME_MAX: Duration = Duration::from_secs(60 * 60);

/// As `CLAIM_TIME_MAX`, for a process that removes files of a dead writer, which is fast.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// The claim of a process that writes a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub nonce: String,
    pub host: String,
    pub pid: u32,
    /// The start of the save in seconds since 1970, by the writer's clock.
    pub since: u64,
    /// The time of the last renewal, by the writer's clock; 0 if the claim was never renewed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub renewed: u64,
    /// Whether the writer has given up the claim, so that no process writes here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_released: bool,
    /// Whether the owner of this claim only removes files of a dead writer. This is fast, so other
    /// processes wait for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_sweeping: bool,
    /// For several files of one stem: the suffixes of the names that the writer makes or replaces,
    /// in order. The last file makes the checkpoint: without it the others are temporary. Empty if
    /// the files may belong to other programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suffixes: Vec<String>,
    /// The objects that a copy has finished, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub copied: BTreeMap<String, Copied>,
}

/// One object that a copy has finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copied {
    /// The version of the file in the source.
    pub version: String,
    pub len_bytes: u64,
    /// BLAKE3, in hex digits.
    pub digest: String,
    /// Whether the object was read back after it was written.
    pub is_verified: bool,
    /// The tag of the object at the target.
    pub tag: String,
}

impl Claim {
    pub(super) fn new(nonce: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            nonce: nonce.to_owned(),
            host: host(),
            pid: std::process::id(),
            since,
            renewed: 0,
            is_released: false,
            is_sweeping: false,
            suffixes: Vec::new(),
            copied: BTreeMap::new(),
        }
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Whether the writer is known to be dead: it gave up the claim, or it was a process of this
    /// machine that has ended, or a save of this process that has ended.
    fn is_of_the_dead(&self) -> bool {
        let is_alive = || {
            if self.pid == std::process::id() {
                return Running::all().contains(&self.nonce);
            }
            !has_ended(self.pid)
        };
        self.is_released || is_here(&self.host) && !is_alive()
    }

    /// Whether the writer no longer writes: it is known to be dead, or its time is over.
    pub(super) fn is_gone(&self) -> bool {
        let time_max = if self.is_sweeping { SWEEP_TIME_MAX } else { CLAIM_TIME_MAX };
        self.is_of_the_dead() || ago(self.since.max(self.renewed)) > time_max
    }

    /// How long ago the save began, by this machine's clock.
    pub(super) fn age(&self) -> Duration {
        ago(self.since)
    }
}

fn ago(seconds: u64) -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap_or_default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A save of this process that is running. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Running(String);

impl Running {
    pub(super) fn begin(nonce: &str) -> Self {
        Self::all().insert(nonce.to_owned());
        Self(nonce.to_owned())
    }

    fn all() -> MutexGuard<'static, BTreeSet<String>> {
        static ALL: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        ALL.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        Self::all().remove(&self.0);
    }
}

/// The machine's name and the identity of its boot, because process numbers start again with each
/// boot. Only Linux has the identity.
fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {}", host_name(), boot.trim())
}

/// Whether a writer with this host was a process of the current boot of this machine. Other
/// machines may have its name, so without the identity of a boot the answer is no.
fn is_here(host_of_writer: &str) -> bool {
    host_of_writer == host() && !host_of_writer.ends_with(' ')
}

/// The content of a marker: the text of the layout, and the line with the nonce.
pub(super) fn marker_bytes(text: &[u8], url: &str, nonce: &str) -> Bytes {
    let mut marker = text.to_vec();
    if marker.is_empty() {
        marker.extend(format!("Checkpoint commit was successful to {url}").bytes());
    }
    let line = marker_line(nonce);
    // A layout that has a checksum of the marker has already added the line.
    if !marker.ends_with(line.as_bytes()) {
        marker.extend(line.bytes());
    }
    marker.into()
}

/// The last line of the marker of a save. A writer recognizes its own marker by the nonce in the
/// line.
pub(super) fn marker_line(nonce: &str) -> String {
    format!("\nregrow {nonce}\n")
}

/// The pointer to the folder in which a checkpoint is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moved {
    pub nonce: String,
    /// The key of the folder, without a slash at its end.
    pub folder: String,
}

impl Moved {
    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// The folder in a pointer.
///
/// # Errors
/// `Corrupt` if the object is not a valid pointer; `Replaced` if it no longer exists.
pub(super) fn moved_to(objects: &Arc<dyn Objects>, pointer: &Object) -> Result<String> {
    let url = objects.url(&pointer.key);
    let Some((bytes, _)) = objects.get(&pointer.key)? else {
        return Err(Error::new(
            crate::error::ErrorKind::Replaced,
            "the checkpoint was replaced while it was opened",
        )
        .in_file(url)
        .help("open it again"));
    };
    let moved: Moved = serde_json::from_slice(&bytes).map_err(|error| {
        Error::corrupt(format!("the pointer to the checkpoint cannot be read: {error}")).in_file(&url)
    })?;
    // Accept only a folder that a save of this target makes: a pointer must not lead to other
    // folders.
    let target = pointer.key.strip_suffix(MOVED).unwrap_or_default().trim_end_matches('/');
    if moved.folder == staged_folder(target, &moved.nonce) {
        return Ok(moved.folder);
    }
    Err(Error::corrupt("the pointer of the checkpoint names a foreign folder")
        .in_file(url)
        .expected(staged_folder(target, &moved.nonce), moved.folder))
}

/// Replaces the claim of a dead writer. If several processes try, one succeeds. Returns `false` if
/// another process has the claim.
pub(super) fn take_over(objects: &Arc<dyn Objects>, dead: &Object, claim: &Claim) -> Result<bool> {
    let done = match objects.replace(dead, claim.to_bytes()) {
        Ok(done) => done,
        // Some servers do not know this condition.
        Err(_) => {
            if objects.head(&dead.key)?.is_none_or(|now| !now.tag.is_same(&dead.tag)) {
                return Ok(false);
            }
            objects.delete(std::slice::from_ref(&dead.key))?;
            objects.create(&dead.key, claim.to_bytes())?
        }
    };
    Ok(matches!(done, Conditional::Done(_)))
}

/// The right to remove the files of a dead writer, until this value is dropped.
#[derive(Debug)]
pub(super) struct Sweeping {
    objects: Arc<dyn Objects>,
    key: String,
    claim: Claim,
    _running: Running,
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        // If the claim still exists, files remain. They count as files of a dead writer again.
        let found = self.objects.get(&self.key).ok().flatten();
        let found = found.and_then(|(bytes, object)| Some((Claim::parse(&bytes)?, object)));
        if let Some((_, object)) = found.filter(|(found, _)| found.nonce == self.claim.nonce) {
            let released = Claim { is_sweeping: false, is_released: true, ..self.claim.clone() };
            let _ = self.objects.replace(&object, released.to_bytes());
        }
    }
}

/// Takes over the claim of a dead writer in order to remove its files. No other process takes over
/// the claim until the removal ends. `None` if another process has the claim.
pub(super) fn take_left(objects: &Arc<dyn Objects>, dead: &Object) -> Result<Option<Sweeping>> {
    let nonce = nonce()?;
    let running = Running::begin(&nonce);
    let found = objects.get(&dead.key)?.and_then(|(bytes, _)| Claim::parse(&bytes));
    let (suffixes, copied) = found.map(|found| (found.suffixes, found.copied)).unwrap_or_default();
    let claim = Claim { is_sweeping: true, suffixes, copied, ..Claim::new(&nonce) };
    if !take_over(objects, dead, &claim)? {
        return Ok(None);
    }
    Ok(Some(Sweeping { objects: Arc::clone(objects), key: dead.key.clone(), claim, _running: running }))
}

/// Reads a claim. If its owner performs a short operation (moves a checkpoint to its target, or
/// removes files of a dead writer), waits until the operation ends, but only for a limited time.
pub(super) fn claim_at(objects: &Arc<dyn Objects>, key: &str) -> Result<Option<(Option<Claim>, Object)>> {
    let mut wait = Wait::begin(super::HOLD_WAITED_FOR);
    loop {
        let Some((bytes, object)) = objects.get(key)? else { return Ok(None) };
        let claim = Claim::parse(&bytes);
        let is_short = |claim: &Claim| claim.is_sweeping || key.ends_with(SETTLING);
        let is_awaited = claim.as_ref().is_some_and(|claim| is_short(claim) && !claim.is_gone());
        if !is_awaited || !wait.again() {
            return Ok(Some((claim, object)));
        }
    }
}

/// Pauses between repeated looks. Each pause is twice as long as the last, up to 1 s.
#[derive(Debug)]
pub(super) struct Wait {
    until: Instant,
    next: Duration,
}

impl Wait {
    pub(super) fn begin(time_max: Duration) -> Self {
        Self { until: Instant::now() + time_max, next: Duration::from_millis(20) }
    }

    /// Waits for one pause; `false` if the time limit is over.
    pub(super) fn again(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        std::thread::sleep(self.next);
        self.next = (self.next * 2).min(Duration::from_secs(1));
        true
    }
}

/// The end of the temporary names of a copy. It is fixed, so that the next copy finds the files.
pub(super) const COPY: &str = "copy";

/// The key of the claim of several files of one stem. It lies beside the files.
pub(super) fn claim_of_siblings(target: &str) -> String {
    staged_folder(target, COPY)
}

/// The folder in which an overwrite writes the new checkpoint.
pub(super) fn staged_folder(target: &str, nonce: &str) -> String {
    format!("{target}{}-{nonce}", crate::UNCOMMITTED_MARK)
}
