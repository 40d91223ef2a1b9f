//! What follows each save, on a thread of its own: wait for it, verify, point, delete, record.
//!
//! The next call of the manager returns an error. An error that no call returned is written to
//! standard error when the manager is dropped.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use serde_json::{Map, Value, json};

use super::delete::{Deleted, Deletion};
use super::event_log::EventLog;
use super::lock::WriterLock;
use super::steps::Steps;
use super::tidy::{Tidied, TidyOptions};
use crate::engine::SaveHandle;
use crate::error::{Error, ErrorKind, Result};

/// A save that has begun.
#[derive(Debug)]
pub(super) struct Begun {
    pub step: u64,
    pub handle: SaveHandle,
    pub metrics: Map<String, Value>,
    pub is_preempted: bool,
}

/// Follows saves, in their order.
#[derive(Debug)]
pub(super) struct Follower {
    shared: Arc<Shared>,
    thread: Mutex<Option<(Sender<Begun>, JoinHandle<()>)>>,
    /// A fork's child has no thread to wait for.
    pid: u32,
}

#[derive(Debug)]
struct Shared {
    steps: Steps,
    tidy: TidyOptions,
    /// Of who writes; not the process that only saves its shards.
    lock: Option<Arc<WriterLock>>,
    log: EventLog,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: usize,
    failures: Vec<Error>,
    failed: Vec<u64>,
    tidied: Vec<(u64, Tidied)>,
    /// Steps that are known to be damaged.
    damaged: BTreeSet<u64>,
}

impl Follower {
    /// Of saves to a folder; without the lock nothing but the save itself is waited for.
    pub(super) fn new(steps: Steps, tidy: TidyOptions, lock: Option<Arc<WriterLock>>, log: EventLog) -> Self {
        let shared = Shared { steps, tidy, lock, log, state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: Mutex::new(None), pid: std::process::id() }
    }

    /// Follows a save. The thread lives as long as this.
    pub(super) fn add(&self, begun: Begun) {
        self.shared.state().pending += 1;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (sender, receiver) = crossbeam_channel::unbounded::<Begun>();
            let shared = Arc::clone(&self.shared);
            let run = move || receiver.iter().for_each(|begun| shared.follow(&begun));
            let spawned = std::thread::Builder::new().name("regrow-manager".to_owned()).spawn(run);
            *thread = spawned.ok().map(|spawned| (sender, spawned));
        }
        match &*thread {
            Some((sender, _)) => {
                if let Err(refused) = sender.send(begun) {
                    self.shared.follow(&refused.into_inner());
                }
            }
            // The system has no thread to give: the caller does it.
            None => self.shared.follow(&begun),
        }
    }

    /// Waits until all is done.
    pub(super) fn wait(&self) {
        while !self.wait_for(Duration::from_secs(3600)) {}
    }

    /// Waits, but not longer than that; whether all is done.
    pub(super) fn wait_for(&self, timeout: Duration) -> bool {
        if self.pid != std::process::id() {
            return true;
        }
        let state = self.shared.state();
        let waited = self.shared.changed.wait_timeout_while(state, timeout, |state| state.pending > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.pending == 0
    }

    /// The first error that no call has returned yet.
    pub(super) fn failure(&self) -> Result<()> {
        let mut state = self.shared.state();
        match state.failures.is_empty() {
            true => Ok(()),
            false => Err(state.failures.remove(0)),
        }
    }

    /// Steps that were begun and could not be saved, since the last call.
    pub(super) fn failed(&self) -> Vec<u64> {
        std::mem::take(&mut self.shared.state().failed)
    }

    /// A step has turned out to be damaged.
    pub(super) fn is_damaged(&self, step: u64) {
        self.shared.state().damaged.insert(step);
    }

    /// A step was read, or is saved again.
    pub(super) fn is_good(&self, step: u64) {
        self.shared.state().damaged.remove(&step);
    }

    /// What was done after saves, since the last call.
    pub(super) fn tidied(&self) -> Vec<(u64, Tidied)> {
        std::mem::take(&mut self.shared.state().tidied)
    }
}

impl Drop for Follower {
    /// Waits for all saves.
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        if let Some((sender, thread)) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(sender);
            let _ = thread.join();
        }
        for failure in std::mem::take(&mut self.shared.state().failures) {
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("regrow: {failure}\n"));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self, begun: &Begun) {
        let outcome = self.outcome(begun);
        let mut state = self.state();
        match outcome {
            Ok(Some(tidied)) => state.tidied.push((begun.step, tidied)),
            Ok(None) => {}
            Err(error) => state.failures.push(error),
        }
        state.pending -= 1;
        self.changed.notify_all();
    }

    /// What was done when the save had ended; nothing on ranks that do not write.
    fn outcome(&self, begun: &Begun) -> Result<Option<Tidied>> {
        let (step, path) = (begun.step, begun.handle.path());
        let preempted = begun.is_preempted.then_some(true);
        let report = match begun.handle.wait() {
            Ok(report) => report,
            Err(error) => {
                self.state().failed.push(step);
                let told = json!({ "error": error.to_string(), "preempted": preempted });
                // Why the save has failed counts for more than why the log has.
                let _ = self.log.add("save", step, path, true, told);
                return Err(error);
            }
        };
        let since = Instant::now();
        let damaged = self.state().damaged.clone();
        let options = TidyOptions { damaged, ..self.tidy.clone() };
        let tidy = |lock: &Arc<WriterLock>| lock.check().and_then(|()| self.steps.tidy(step, &options));
        let tidied = self.lock.as_ref().map(tidy);
        if let Some(Err(error)) = &tidied
            && error.kind() == ErrorKind::Corrupt
        {
            self.state().damaged.insert(step);
        }
        let deletions = match &tidied {
            Some(Ok(tidied)) => tidied.deletions.as_slice(),
            _ => &[],
        };
        let left = left(deletions);
        let deleted: Vec<u64> =
            deletions.iter().filter(|deletion| is_gone(deletion)).map(|deletion| deletion.step).collect();
        let error = tidied.as_ref().and_then(|tidied| tidied.as_ref().err()).map(Error::to_string);
        let told = json!({
            "seconds": report.seconds,
            "blocked_seconds": begun.handle.blocked().seconds,
            "stored_bytes": report.stored_bytes,
            "data_bytes": report.data_bytes,
            "reused_bytes": (report.reused_bytes > 0).then_some(report.reused_bytes),
            "metrics": (!begun.metrics.is_empty()).then_some(&begun.metrics),
            "tidy_seconds": since.elapsed().as_secs_f64(),
            "checked": self.tidy.verify.then_some(true),
            "deleted": (!deleted.is_empty()).then_some(deleted),
            "left": (!left.is_empty()).then_some(&left),
            "preempted": preempted,
            "error": error,
        });
        let is_bad = error.is_some() || !left.is_empty();
        let logged = self.log.add("save", step, path, is_bad, told);
        let logged = logged.and_then(|()| log_deletions(&self.log, &self.steps, deletions));
        let tidied = tidied.transpose()?;
        logged?;
        Ok(tidied)
    }
}

fn is_gone(deletion: &Deletion) -> bool {
    matches!(deletion.outcome, Ok(Deleted::Removed { .. } | Deleted::Moved { .. } | Deleted::Gone))
}

/// Why steps were left that were to go.
fn left(deletions: &[Deletion]) -> Vec<String> {
    let said = |deletion: &Deletion| {
        let error = deletion.outcome.as_ref().err()?;
        Some(format!("step {}: {}", deletion.step, error.what()))
    };
    deletions.iter().filter_map(said).collect()
}

/// A record of each deletion; none of what was not there, or stays for its reader.
///
/// # Errors
/// What the system says of the log.
pub(super) fn log_deletions(log: &EventLog, steps: &Steps, deletions: &[Deletion]) -> Result<()> {
    for Deletion { step, name, outcome } in deletions {
        let told = match outcome {
            Ok(Deleted::Removed { bytes }) => json!({ "bytes": bytes }),
            Ok(Deleted::Moved { to }) => json!({ "moved_to": to.to_string_lossy() }),
            Ok(Deleted::Leased | Deleted::Gone) => continue,
            Err(error) => json!({ "error": error.to_string() }),
        };
        log.add("delete", *step, &steps.root().join(name).describe(), outcome.is_err(), told)?;
    }
    Ok(())
}
