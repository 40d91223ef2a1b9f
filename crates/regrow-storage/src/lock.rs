//! The lock of a target: at most one process changes a checkpoint at a time.
//!
//! A second process waits, and then gets an error (`Busy`) that names the first one. Readers take
//! no lock. On a disk the lock is a locked file beside the target, in a bucket the state object of
//! the target. If the owner dies, the lock of a disk ends with it. In a bucket other processes take
//! it over: on the same machine at once, elsewhere after three minutes.
//!
//! Other tools take no lock.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::location::Location;
use crate::system::host_name;

/// How long an operation waits by default for another process that has the lock of its target.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(60);

/// The right to change the checkpoint at a target. Dropping it releases the lock.
///
/// The default is no lock: the storage has none.
#[derive(Debug, Default)]
pub struct TargetLock {
    /// The nonce of the owner's state object, in a bucket.
    pub(crate) nonce: String,
    /// Whether no other process can have the lock.
    pub(crate) is_sure: bool,
    /// Whether it is the lock of files, and not of the objects of a folder in a bucket.
    pub(crate) is_beside: bool,
    _held: Option<Box<dyn fmt::Debug + Send + Sync>>,
}

impl TargetLock {
    pub(crate) fn new(nonce: String, is_sure: bool, held: impl fmt::Debug + Send + Sync + 'static) -> Self {
        Self { nonce, is_sure, is_beside: false, _held: Some(Box::new(held)) }
    }

    /// Whether the lock covers the checkpoint that is at its target now. In a bucket, the lock of a
    /// target that was empty does not cover a folder that another process has made since.
    pub fn covers(&self, at: &Location) -> bool {
        !self.is_beside || !at.is_folder()
    }
}

/// The process that has a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The name of its machine.
    pub host: String,
    /// The number of the process on that machine.
    pub pid: u32,
    /// Its operation: `save`, `repair`, `remove` ...
    pub operation: String,
    /// The start of the operation in seconds since 1970, by the clock of that machine.
    pub since: u64,
}

impl Holder {
    /// This process, at the start of an operation.
    pub(crate) fn new(operation: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { host: host_name(), pid: std::process::id(), operation: operation.to_owned(), since }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, operation, since } = self;
        let since = UNIX_EPOCH + Duration::from_secs(*since);
        let age = SystemTime::now().duration_since(since).unwrap_or_default().as_secs();
        write!(f, "process {pid} on {host}: {operation}, since {age} s")
    }
}

/// The error of an operation if another process has the lock of its target.
pub(crate) fn busy(at: &Location, holder: Option<&Holder>) -> Error {
    let found = holder.map_or_else(|| "an unknown process".to_owned(), Holder::to_string);
    Error::new(ErrorKind::Busy, "another process is changing this checkpoint")
        .in_file(at)
        .expected("no other process", found)
        .help("wait until it ends, or pass a longer `wait`; `regrow doctor PATH` says how to end it")
}
