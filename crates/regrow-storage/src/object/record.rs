//! The content of a state object: which process changes a target, and how far the change is.
//!
//! ```text
//! {"regrow_state": 1, "target": "runs/x", "nonce": "0f3a...", "host": "node7 <boot>", "pid": 71, "operation": "save",
//!  "since": 1764409000, "renewals": 3, "phase": "moved", "folder": "runs/x.orbax-checkpoint-tmp-0f3a..."}
//! ```
//! `since` is for people only. A process that releases the object, but leaves files for the next
//! copy, sets `pid` to 0. `suffixes` names the files of one stem that the owner writes. `copied`
//! lists the complete objects of a copy.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::marker::staged_prefix;
use super::state::{Owner, Phase};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::lock::{Holder, busy};
use crate::system::{has_ended, host_name};

/// The version of the document that this build writes, and the newest that it reads.
const VERSION: u32 = 1;

/// Other processes take an owner for dead when its state object is this old, by the store's clock.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(180);

/// The content of a state object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The version of the document.
    pub regrow_state: u32,
    /// The key of the target.
    pub target: String,
    pub nonce: String,
    pub host: String,
    pub pid: u32,
    pub operation: String,
    /// The start of the operation in seconds since 1970, by the owner's clock.
    pub since: u64,
    /// Makes each version of the object different from all others.
    #[serde(default)]
    pub renewals: u64,
    #[serde(flatten)]
    pub phase: Phase,
    /// For several files of one stem: the suffixes of the files that the owner writes or removes,
    /// in order. The last file makes the checkpoint. Empty if the owner only has the lock.
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

impl Record {
    /// The record of an operation of this process that begins now.
    pub(super) fn new(target: &str, nonce: &str, operation: &str, phase: Phase) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            regrow_state: VERSION,
            target: target.to_owned(),
            nonce: nonce.to_owned(),
            host: host(),
            pid: std::process::id(),
            operation: operation.to_owned(),
            since,
            renewals: 0,
            phase,
            suffixes: Vec::new(),
            copied: BTreeMap::new(),
        }
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// The content of the state object at `url`, which belongs to `target`.
    ///
    /// # Errors
    /// `Corrupt` if it is not a state object of this target; `Unsupported` if it is newer.
    pub(super) fn parse(bytes: &[u8], url: &str, target: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            regrow_state: u32,
        }
        const HELP: &str = "if no process changes this checkpoint, delete the object";
        let unreadable = |error: &dyn std::fmt::Display| {
            Error::corrupt(format!("the state object cannot be read: {error}")).in_file(url).help(HELP)
        };
        let version: Version = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
        if version.regrow_state > VERSION {
            return Err(Error::unsupported("a newer version of regrow has written the state object")
                .in_file(url)
                .expected(format_args!("version {VERSION}"), version.regrow_state)
                .help("update regrow"));
        }
        let record: Self = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
        if record.target != target {
            return Err(Error::corrupt("the state object belongs to another checkpoint")
                .in_file(url)
                .expected(target, &record.target)
                .help("the folder was copied while a process changed it: delete the object, then verify"));
        }
        record.check_folder(url)?;
        Ok(record)
    }

    /// Accepts only a folder that an overwrite of this target makes.
    pub(super) fn check_folder(&self, url: &str) -> Result<()> {
        let Phase::Moved(folder) = &self.phase else { return Ok(()) };
        let prefix = staged_prefix(&self.target);
        match folder.strip_prefix(&prefix) {
            Some(name) if !name.is_empty() && !name.contains('/') => Ok(()),
            _ => Err(Error::corrupt("the state object names a foreign folder")
                .in_file(url)
                .expected(format_args!("{prefix}..."), folder)),
        }
    }

    /// Whether the owner lives. `modified` and `now` are times of the store; `is_ours` tells
    /// whether an operation of this process has this nonce.
    pub(super) fn owner(&self, modified: SystemTime, now: Option<SystemTime>, is_ours: bool) -> Owner {
        let is_late = now.is_some_and(|now| now.duration_since(modified).is_ok_and(|age| age > DEAD_AFTER));
        let has_ended = || match self.pid == std::process::id() {
            true => !is_ours,
            false => has_ended(self.pid),
        };
        match self.pid == 0 || is_late || is_here(&self.host) && has_ended() {
            true => Owner::Dead,
            false => Owner::Living,
        }
    }

    /// The owner, for people.
    pub(super) fn holder(&self) -> Holder {
        // The rest of the host is the identity of its boot.
        let host = self.host.split(' ').next().unwrap_or_default().to_owned();
        Holder { host, pid: self.pid, operation: self.operation.clone(), since: self.since }
    }

    /// The error of an operation that the owner of this record keeps out.
    pub(super) fn busy(&self, target: &Location) -> Error {
        busy(target, Some(&self.holder()))
    }
}

/// The machine's name and the identity of its boot, because process numbers start again with each
/// boot. Only Linux has the identity.
pub(super) fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let host = format!("{} {}", host_name(), boot.trim());
    // Two containers of one machine have different process numbers.
    match std::fs::read_link("/proc/self/ns/pid") {
        Ok(space) if !boot.is_empty() => format!("{host} {}", space.display()),
        _ => host,
    }
}

/// Whether a process with this host was a process of the current boot of this machine. Other
/// machines may have its name, so without the identity of a boot the answer is no.
pub(super) fn is_here(host_of_owner: &str) -> bool {
    host_of_owner == host() && !host_of_owner.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn records_are_read_back_and_others_are_refused() {
        for phase in
            [Phase::Writing, Phase::Changing, Phase::Removing, Phase::Moved(staged_prefix("a/x") + "1")]
        {
            let record = Record::new("a/x", "n", "save", phase);
            assert_eq!(Record::parse(&record.to_bytes(), "url", "a/x").unwrap(), record);
        }
        let moved = Record::new("a/x", "n", "save", Phase::Moved("a/x.orbax-checkpoint-tmp-1".to_owned()));
        let text = String::from_utf8(moved.to_bytes().to_vec()).unwrap();
        assert!(text.contains(r#""phase":"moved","folder":"a/x.orbax-checkpoint-tmp-1""#), "{text}");
        let cases = [
            ("", ErrorKind::Corrupt),
            ("[]", ErrorKind::Corrupt),
            ("{}", ErrorKind::Corrupt),
            (r#"{"regrow_state": 1}"#, ErrorKind::Corrupt),
            (r#"{"regrow_state": 2, "phase": "thinking"}"#, ErrorKind::Unsupported),
            (&text.replace("moved", "thinking"), ErrorKind::Corrupt),
            (&text.replace(r#""target":"a/x""#, r#""target":"b/x""#), ErrorKind::Corrupt),
            (&text.replace("tmp-1", "tmp-1/../y"), ErrorKind::Corrupt),
            (&text.replace("a/x.orbax", "b/x.orbax"), ErrorKind::Corrupt),
        ];
        for (bytes, kind) in cases {
            let error = Record::parse(bytes.as_bytes(), "url", "a/x").unwrap_err();
            assert_eq!(error.kind(), kind, "{bytes}: {error}");
        }
    }

    #[test]
    fn an_owner_is_dead_by_the_times_of_the_store_alone() {
        let elsewhere =
            Record { host: "elsewhere 1".to_owned(), ..Record::new("x", "n", "save", Phase::Writing) };
        let (then, soon) = (UNIX_EPOCH, UNIX_EPOCH + DEAD_AFTER);
        let late = soon + Duration::from_secs(1);
        // The owner's own clock says nothing.
        for since in [0, u64::MAX / 2] {
            let record = Record { since, ..elsewhere.clone() };
            assert_eq!(record.owner(then, Some(soon), false), Owner::Living);
            assert_eq!(record.owner(then, Some(late), false), Owner::Dead);
            assert_eq!(record.owner(late, Some(then), false), Owner::Living);
            assert_eq!(record.owner(then, None, false), Owner::Living);
        }
        assert_eq!(Record { pid: 0, ..elsewhere.clone() }.owner(then, Some(then), false), Owner::Dead);
        let here = Record::new("x", "n", "save", Phase::Writing);
        if is_here(&here.host) {
            assert_eq!(here.owner(then, Some(then), false), Owner::Dead);
            assert_eq!(here.owner(then, Some(then), true), Owner::Living);
            assert_eq!(Record { pid: u32::MAX >> 1, ..here }.owner(then, Some(then), false), Owner::Dead);
        }
    }
}
