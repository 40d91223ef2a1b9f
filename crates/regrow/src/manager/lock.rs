//! Allows one writer at a time. A second writer gets an error. The lock of a dead writer can be
//! taken over.
//!
//! | | a disk | a bucket, memory |
//! |---|---|---|
//! | the lock | a lock of the system on `.regrow/writer.lock` | a lease in `.regrow/writer.json` |
//! | of a dead writer | gone with the process | taken over after 2 minutes, on the same machine at once |
//!
//! Some network file systems have locks only within one machine. On them, writers on two machines
//! do not see each other.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::records::{self, Holder};
use super::steps::Steps;
use crate::commit::Hold;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::store::local::folders::random_name;

/// The file of the lock on a disk, and of the lease elsewhere.
const LOCK: &str = "writer.lock";
const LEASE: &str = "writer.json";

/// How long a lease is valid without a renewal.
const HOLDS: Duration = Duration::from_secs(2 * 60);

/// The right to write to a folder of steps. Dropping it releases the lock.
pub struct WriterLock {
    held: Held,
}

enum Held {
    /// A lock of the system, which lasts as long as this value.
    System {
        _lock: Hold,
    },
    Lease(WriterLease),
}

impl fmt::Debug for WriterLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.held {
            Held::System { .. } => "WriterLock(system)",
            Held::Lease(_) => "WriterLock(lease)",
        })
    }
}

impl WriterLock {
    /// Returns an error if another writer has taken over the folder. A writer loses its lease if it
    /// does not renew the lease in time, for example because it was stopped. In a bucket, this
    /// costs a read.
    ///
    /// # Errors
    /// `AlreadyExists`; errors of the storage.
    pub fn check(&self) -> Result<()> {
        match &self.held {
            Held::System { .. } => Ok(()),
            Held::Lease(lease) => lease.check(),
        }
    }
}

/// The lock of a run, until the run is closed.
#[derive(Debug)]
pub(super) struct RunLock(Mutex<Option<WriterLock>>);

impl RunLock {
    pub(super) fn new(lock: WriterLock) -> Self {
        Self(Mutex::new(Some(lock)))
    }

    /// Like [`WriterLock::check`]; no error after the lock was released.
    pub(super) fn check(&self) -> Result<()> {
        self.held().as_ref().map_or(Ok(()), WriterLock::check)
    }

    pub(super) fn release(&self) {
        *self.held() = None;
    }

    fn held(&self) -> MutexGuard<'_, Option<WriterLock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Steps {
    /// Takes the right to write to the folder. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// `AlreadyExists` if there is another writer, in this process or elsewhere; errors of the
    /// storage.
    pub fn lock(&self) -> Result<WriterLock> {
        let root = self.root();
        let file = root.join(records::FOLDER).join(LOCK);
        let taken = file.hold().map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => refused(root, None),
            _ => error,
        })?;
        let held = match taken {
            Some(lock) => Held::System { _lock: lock },
            None => Held::Lease(WriterLease::take(root)?),
        };
        Ok(WriterLock { held })
    }
}

fn refused(root: &Location, holder: Option<&str>) -> Error {
    let error =
        Error::new(ErrorKind::AlreadyExists, "another writer has locked this folder of steps").in_file(root);
    let help = "close it, in this program or another one, or open the folder read only (`read_only`)";
    let Some(holder) = holder else { return error.help(help) };
    let lease = root.join(records::FOLDER).join(LEASE);
    error
        .expected("no other writer", holder)
        .help(format!("{help}; if that process is surely dead, wait two minutes, or remove {lease}"))
}

/// The content of the lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    nonce: String,
    until: f64,
    #[serde(flatten)]
    holder: Holder,
}

impl Record {
    fn new(nonce: &str) -> Self {
        let until = records::now() + HOLDS.as_secs_f64();
        Self { nonce: nonce.to_owned(), until, holder: Holder::own() }
    }

    /// Whether the writer may still be alive. False if the lease has expired, or if the writer ran
    /// on this machine and has ended.
    fn may_live(&self) -> bool {
        self.until >= records::now() && !self.holder.is_dead()
    }
}

/// A lease of a writer. A thread renews the lease until the value is dropped.
struct WriterLease {
    root: Location,
    nonce: String,
    is_over: Arc<(Mutex<bool>, Condvar)>,
    pid: u32,
}

impl WriterLease {
    fn take(root: &Location) -> Result<Self> {
        let nonce = random_name()?;
        if !records::create(root, LEASE, &Record::new(&nonce))? {
            match records::read::<Record>(root, LEASE)? {
                Some(found) if found.may_live() => return Err(refused(root, Some(&found.holder.holder))),
                _ => {}
            }
            records::remove(root, LEASE)?;
            if !records::create(root, LEASE, &Record::new(&nonce))? {
                return Err(refused(root, None));
            }
            // Another process may have found the same expired lease, and replaced this new lease.
            let found = records::read::<Record>(root, LEASE)?;
            if found.as_ref().is_none_or(|found| found.nonce != nonce) {
                return Err(refused(root, found.as_ref().map(|found| found.holder.holder.as_str())));
            }
        }
        let lease = Self { root: root.clone(), nonce, is_over: Arc::default(), pid: std::process::id() };
        lease.renew_in_background();
        Ok(lease)
    }

    fn check(&self) -> Result<()> {
        match records::read::<Record>(&self.root, LEASE)? {
            Some(found) if found.nonce == self.nonce => Ok(()),
            Some(found) => Err(refused(&self.root, Some(&found.holder.holder))),
            // The lease was removed: take it again, unless another process has taken it.
            None => match records::create(&self.root, LEASE, &Record::new(&self.nonce))? {
                true => Ok(()),
                false => Err(refused(&self.root, None)),
            },
        }
    }

    fn renew_in_background(&self) {
        let (root, nonce, told) = (self.root.clone(), self.nonce.clone(), Arc::clone(&self.is_over));
        let keep = move || {
            let mut is_over = told.0.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let waited = told.1.wait_timeout_while(is_over, HOLDS / 5, |is_over| !*is_over);
                is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
                if *is_over {
                    return;
                }
                match records::read::<Record>(&root, LEASE) {
                    Ok(Some(found)) if found.nonce != nonce => return,
                    _ => drop(records::write(&root, LEASE, &Record::new(&nonce))),
                }
            }
        };
        let _ = std::thread::Builder::new().name("regrow-writer".to_owned()).spawn(keep);
    }
}

impl Drop for WriterLease {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        *self.is_over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.is_over.1.notify_all();
        // Ask twice: a lease that stays keeps other writers out for two minutes.
        let read = || records::read::<Record>(&self.root, LEASE);
        if let Ok(Some(found)) = read().or_else(|_| read())
            && found.nonce == self.nonce
        {
            let remove = || records::remove(&self.root, LEASE);
            let _ = remove().or_else(|_| remove());
        }
    }
}
