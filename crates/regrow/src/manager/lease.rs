//! A lease protects a step from deletion while a process reads the step. The lease is a small file
//! in the folder of steps. The file contains the end time of the lease.
//!
//! A thread renews the file until the lease is dropped. The lease of a killed reader ends at the
//! time in the file. Processes on the reader's machine ignore the lease at once.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::records::{self, Holder};
use super::steps::{Step, Steps};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::store::local::folders::random_name;

/// The folder of leases and of announced deletions.
const LEASES: &str = "leases/";
const DELETIONS: &str = "deleting/";

/// How long a lease is valid without a renewal.
const HOLDS: Duration = Duration::from_secs(5 * 60);

/// How long an announcement is valid. A deletion takes less time. The announcement of a killed
/// deletion ends with this time.
const ANNOUNCED_FOR_SECONDS: f64 = 10.0 * 60.0;

/// The content of a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    step: u64,
    until: f64,
    #[serde(flatten)]
    holder: Holder,
}

/// The content of an announced deletion.
#[derive(Debug, Serialize, Deserialize)]
struct Announcement {
    since: f64,
    #[serde(flatten)]
    holder: Holder,
}

impl Announcement {
    /// Whether the deletion may still be running.
    fn counts(&self) -> bool {
        self.since + ANNOUNCED_FOR_SECONDS > records::now() && !self.holder.is_dead()
    }
}

/// Protects a step from deletion until it is dropped.
#[derive(Debug)]
pub struct Lease {
    root: Location,
    name: String,
    step: Step,
    is_over: Arc<(Mutex<bool>, Condvar)>,
    /// The process that owns the lease: a forked child has neither the thread nor the lease.
    pid: u32,
}

impl Steps {
    /// Protects a committed step from deletion until the lease is dropped.
    ///
    /// # Errors
    /// `NotFound` if the step does not exist or is about to be deleted; `PermissionDenied` if the
    /// folder is read-only; errors of the storage.
    pub fn lease(&self, number: u64) -> Result<Lease> {
        let nonce = random_name()?;
        let step = self.step(number)?;
        let name = format!("{LEASES}{}~{nonce}", step.name);
        let root = self.root().clone();
        // The name is unique, and a lease need not survive a power cut: no sync.
        records::create(&root, &name, &held(number))?;
        let lease = Lease { root, name, step, is_over: Arc::default(), pid: std::process::id() };
        // From now on a deletion sees the lease. Look for a deletion that was announced before.
        if is_announced(&lease.root, &lease.step.name)? || self.find(number)?.is_none() {
            return Err(Error::new(ErrorKind::NotFound, format!("step {number} is being deleted"))
                .in_file(&lease.step.location)
                .help("open a newer step"));
        }
        lease.renew_in_background();
        Ok(lease)
    }

    /// The numbers of the steps that have readers.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn leased(&self) -> Result<Vec<u64>> {
        leased(self.root(), records::now())
    }
}

impl Lease {
    /// The step that the lease protects.
    pub fn step(&self) -> &Step {
        &self.step
    }

    fn renew_in_background(&self) {
        let (root, name, step) = (self.root.clone(), self.name.clone(), self.step.number);
        let told = Arc::clone(&self.is_over);
        let keep = move || {
            let mut is_over = told.0.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let waited = told.1.wait_timeout_while(is_over, HOLDS / 5, |is_over| !*is_over);
                is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
                if *is_over {
                    return;
                }
                // Ignore a failure: several more renewals come before the lease ends.
                let _ = renew(&root, &name, step);
            }
        };
        // If the system cannot start a thread, the lease ends at the end time in its file.
        let _ = std::thread::Builder::new().name("regrow-lease".to_owned()).spawn(keep);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // Wait for a running renewal, which must not write the file after its removal.
            *self.is_over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.is_over.1.notify_all();
            let _ = records::remove(&self.root, &self.name);
        }
    }
}

fn renew(root: &Location, name: &str, step: u64) -> Result<()> {
    records::write(root, name, &held(step))
}

fn held(step: u64) -> Record {
    Record { step, until: records::now() + HOLDS.as_secs_f64(), holder: Holder::own() }
}

/// The numbers of the steps that have a lease at the time `now`. Leases of readers that have ended
/// are removed.
fn leased(root: &Location, now: f64) -> Result<Vec<u64>> {
    let mut leased = Vec::new();
    for name in records::names(root, LEASES)? {
        match records::read::<Record>(root, &name)? {
            Some(record) if record.until >= now && !record.holder.is_dead() => leased.push(record.step),
            // Keep an expired lease for a while, because clocks may differ.
            Some(record) if record.until + HOLDS.as_secs_f64() < now || record.holder.is_dead() => {
                let _ = records::remove(root, &name);
            }
            _ => {}
        }
    }
    leased.sort_unstable();
    leased.dedup();
    Ok(leased)
}

/// The announcement that a step is about to be deleted, which is removed when this value is
/// dropped.
#[derive(Debug)]
pub(super) struct Announced<'a> {
    root: &'a Location,
    name: String,
}

impl<'a> Announced<'a> {
    /// Announces the deletion of the step with this name.
    pub(super) fn new(root: &'a Location, step: &str) -> Result<Self> {
        let name = format!("{DELETIONS}{step}");
        let announcement = Announcement { since: records::now(), holder: Holder::own() };
        records::write(root, &name, &announcement)?;
        Ok(Self { root, name })
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let _ = records::remove(self.root, &self.name);
    }
}

/// Removes the announcements of deletions that no longer run.
pub(super) fn sweep_announcements(root: &Location) -> Result<()> {
    for name in records::names(root, DELETIONS)? {
        if !records::read::<Announcement>(root, &name)?.is_some_and(|found| found.counts()) {
            records::remove(root, &name)?;
        }
    }
    Ok(())
}

fn is_announced(root: &Location, step: &str) -> Result<bool> {
    let found = records::read::<Announcement>(root, &format!("{DELETIONS}{step}"))?;
    Ok(found.is_some_and(|found| found.counts()))
}
