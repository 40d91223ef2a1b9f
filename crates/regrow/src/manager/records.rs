//! The small files of the manager: JSON in `.regrow`. The manager works without them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::store::{StoreExt, get_if_there};
use crate::system::{has_ended, host_name};

/// The folder of records, below the folder of steps.
pub(super) const FOLDER: &str = ".regrow";

const LEN_MAX_BYTES: u64 = 64 << 10;

/// The content of a record; `None` if the file is missing, or has other content.
pub(super) fn read<T: DeserializeOwned>(root: &Location, name: &str) -> Result<Option<T>> {
    let store = root.join(FOLDER).store();
    let found = store.len_bytes(name.as_bytes()).and_then(|len_bytes| match len_bytes {
        Some(len_bytes) if len_bytes <= LEN_MAX_BYTES => get_if_there(&*store, name.as_bytes()),
        _ => Ok(None),
    });
    match found {
        Ok(bytes) => Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn write(root: &Location, name: &str, value: &impl Serialize) -> Result<()> {
    root.join(FOLDER).store().put(name.as_bytes(), text_of(value)?.into())
}

/// Writes a file unless it exists. Returns false if the file exists.
pub(super) fn create(root: &Location, name: &str, value: &impl Serialize) -> Result<bool> {
    root.join(FOLDER).store().put_if_absent(name.as_bytes(), text_of(value)?.into())
}

pub(super) fn remove(root: &Location, name: &str) -> Result<()> {
    root.join(FOLDER).store().delete(name.as_bytes())
}

/// The names of the files that begin with `begins`.
pub(super) fn names(root: &Location, begins: &str) -> Result<Vec<String>> {
    let keys = match root.join(FOLDER).store().list(begins.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        keys => keys?,
    };
    Ok(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()).collect())
}

/// The current time in seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The process that wrote a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    /// The host and the process number, for people.
    pub holder: String,
    /// The boot of the kernel and the process namespace; empty if unknown.
    #[serde(default)]
    machine: String,
}

impl Holder {
    pub(super) fn own() -> Self {
        let host = host_name();
        Self { holder: format!("{host}:{}", std::process::id()), machine: own_machine() }
    }

    /// Whether the writer was a process of this machine and has ended. Hosts may share a name, and
    /// containers may share process numbers, so the writer counts as alive if this is unclear.
    pub(super) fn is_dead(&self) -> bool {
        if self.machine.is_empty() || self.machine != own_machine() {
            return false;
        }
        let pid = self.holder.rsplit_once(':').and_then(|(_, pid)| pid.parse().ok());
        pid.is_some_and(has_ended)
    }
}

/// The current boot of the kernel, and the process namespace of this process.
#[expect(clippy::disallowed_methods, reason = "files of the kernel are not part of a checkpoint")]
fn own_machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let processes = std::fs::read_link("/proc/self/ns/pid");
    match (boot, processes) {
        (Ok(boot), Ok(processes)) => format!("{} {}", boot.trim(), processes.display()),
        _ => String::new(),
    }
}

fn text_of(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::new(ErrorKind::Internal, format!("not JSON: {error}")))
}
