//! The work after each save, on its own thread: wait for the save, verify, write the pointer,
//! delete, record.
//!
//! If a save or the work after it fails, the next call of the manager returns the error. An error
//! that no call returned is written to standard error when the manager is dropped.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use serde_json::{Map, Value, json};

use super::delete::{Deleted, Deletion};
use super::event_log::EventLog;
use super::hooks::{Hooks, LOOK_EVERY};
use super::keep::Keep;
use super::lock::RunLock;
use super::steps::Steps;
use super::tidy::TidyOptions;
use crate::engine::SaveReport;
use crate::error::{Error, ErrorKind, Result};

/// A save that was started.
pub struct Begun {
    /// The path of the new step.
    pub path: PathBuf,
    /// The seconds for which the call blocked its caller.
    pub blocked_seconds: f64,
    /// Waits for the end of the save.
    pub end: Box<dyn FnOnce() -> Result<SaveReport> + Send>,
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Begun({})", self.path.display())
    }
}

/// The facts about a save that its records contain.
#[derive(Debug)]
pub(super) struct About {
    pub step: u64,
    pub metrics: Map<String, Value>,
    pub is_preempted: bool,
}

/// The save of a step with the work after it, including the deletion of older steps.
#[derive(Debug, Clone)]
pub struct Followed {
    saved: Arc<Saved>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Saved {
    step: u64,
    outcome: OnceLock<Result<SaveReport>>,
}

/// Does the work after saves, in the order of the saves, on a thread.
#[derive(Debug)]
pub(super) struct Follower {
    shared: Arc<Shared>,
    thread: Mutex<Option<(Sender<Task>, JoinHandle<()>)>>,
    /// The process that owns the thread: a forked child has no thread to wait for.
    pid: u32,
}

#[derive(Debug)]
struct Task {
    about: About,
    begun: Begun,
    saved: Arc<Saved>,
}

#[derive(Debug)]
struct Shared {
    steps: Steps,
    tidy: TidyOptions,
    hooks: Hooks,
    /// The lock of the writing process; `None` in a process that only saves its shards.
    lock: Option<Arc<RunLock>>,
    log: EventLog,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: Vec<Arc<Saved>>,
    /// Errors that no call has returned yet.
    failures: Vec<Arc<Saved>>,
    failed: Vec<u64>,
    damaged: BTreeSet<u64>,
}

impl Follower {
    /// A follower for saves to a folder. Without `lock` it only waits for the saves.
    pub(super) fn new(
        steps: Steps,
        tidy: TidyOptions,
        hooks: Hooks,
        lock: Option<Arc<RunLock>>,
        log: EventLog,
    ) -> Self {
        let shared =
            Shared { steps, tidy, hooks, lock, log, state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: Mutex::new(None), pid: std::process::id() }
    }

    pub(super) fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Adds a save. The thread runs until the follower is dropped.
    pub(super) fn add(&self, about: About, begun: Begun) -> Followed {
        let saved = Arc::new(Saved { step: about.step, outcome: OnceLock::new() });
        self.shared.state().pending.push(Arc::clone(&saved));
        let task = Task { about, begun, saved: Arc::clone(&saved) };
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (sender, receiver) = crossbeam_channel::unbounded::<Task>();
            let shared = Arc::clone(&self.shared);
            let run = move || receiver.iter().for_each(|task| shared.follow(task));
            let spawned = std::thread::Builder::new().name("regrow-manager".to_owned()).spawn(run);
            *thread = spawned.ok().map(|spawned| (sender, spawned));
        }
        let refused = match &*thread {
            Some((sender, _)) => sender.send(task).err().map(|refused| refused.into_inner()),
            None => Some(task),
        };
        drop(thread);
        // If the system cannot start a thread, the caller does the work.
        refused.into_iter().for_each(|task| self.shared.follow(task));
        Followed { saved, shared: Arc::clone(&self.shared) }
    }

    /// Waits for all saves and the work after them. Returns the error of [`Hooks::while_waiting`].
    pub(super) fn wait(&self) -> Result<()> {
        self.wait_for(Duration::MAX).map(drop)
    }

    /// Waits for at most `timeout`. Returns whether all saves and the work after them have ended.
    pub(super) fn wait_for(&self, timeout: Duration) -> Result<bool> {
        match self.is_forked() {
            true => Ok(true),
            false => self.shared.wait_while(timeout, |state| !state.pending.is_empty()),
        }
    }

    /// The steps whose saves have not ended, in the order of the saves.
    pub(super) fn pending(&self) -> Vec<u64> {
        self.shared.state().pending.iter().map(|saved| saved.step).collect()
    }

    pub(super) fn failure(&self) -> Result<()> {
        let mut state = self.shared.state();
        let saved = (!state.failures.is_empty()).then(|| state.failures.remove(0));
        drop(state);
        saved.map_or(Ok(()), |saved| saved.outcome().map(drop))
    }

    pub(super) fn failed(&self) -> Vec<u64> {
        std::mem::take(&mut self.shared.state().failed)
    }

    pub(super) fn is_damaged(&self, step: u64) {
        self.shared.state().damaged.insert(step);
    }

    /// The step was read, or is saved again.
    pub(super) fn is_good(&self, step: u64) {
        self.shared.state().damaged.remove(&step);
    }

    /// Waits for all saves, then ends the thread.
    pub(super) fn end(&self) {
        if self.is_forked() {
            return;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((sender, thread)) = thread {
            drop(sender);
            let _ = thread.join();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.end();
        while let Err(failure) = self.failure() {
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("regrow: {failure}\n"));
        }
    }
}

impl Followed {
    /// Whether the save and the work after it have ended.
    pub fn is_done(&self) -> bool {
        self.saved.outcome.get().is_some()
    }

    /// The report of the save, after the save and the work after it have ended; `None` if they have
    /// not ended within `timeout`.
    ///
    /// # Errors
    /// The error of the save, or of the work after it. No later call of the manager returns this
    /// error.
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<SaveReport>> {
        if !self.shared.wait_while(timeout, |_| !self.is_done())? {
            return Ok(None);
        }
        self.shared.state().failures.retain(|failed| !Arc::ptr_eq(failed, &self.saved));
        self.saved.outcome().map(Some)
    }
}

impl Saved {
    /// The outcome of a save that has ended.
    fn outcome(&self) -> Result<SaveReport> {
        match self.outcome.get() {
            Some(Ok(report)) => Ok(report.clone()),
            Some(Err(error)) => Err(error.duplicate()),
            None => Err(Error::new(ErrorKind::Internal, "a save was taken for one that has ended")),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `is_so` is true of the state. Returns false if this takes longer than `timeout`.
    fn wait_while(&self, timeout: Duration, is_so: impl Fn(&State) -> bool) -> Result<bool> {
        let began = Instant::now();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let slice =
                if self.hooks.while_waiting.is_some() { LOOK_EVERY } else { Duration::from_secs(3600) };
            let waited = self.changed.wait_timeout_while(self.state(), left.min(slice), |state| is_so(state));
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if !is_so(&state) {
                return Ok(true);
            }
            drop(state);
            if left.is_zero() {
                return Ok(false);
            }
            if let Some(look) = &self.hooks.while_waiting {
                look()?;
            }
        }
    }

    fn follow(&self, Task { about, begun, saved }: Task) {
        let outcome = self.outcome(&about, begun);
        let mut state = self.state();
        state.pending.retain(|pending| !Arc::ptr_eq(pending, &saved));
        if outcome.is_err() {
            state.failures.push(Arc::clone(&saved));
        }
        let _ = saved.outcome.set(outcome);
        drop(state);
        self.changed.notify_all();
    }

    fn outcome(&self, about: &About, begun: Begun) -> Result<SaveReport> {
        let Begun { path, blocked_seconds, end } = begun;
        let step = about.step;
        let preempted = about.is_preempted.then_some(true);
        let report = match end() {
            Ok(report) => report,
            Err(error) => {
                self.state().failed.push(step);
                let told = json!({ "error": error.to_string(), "preempted": preempted });
                // The error of the save matters more than an error of the log.
                let _ = self.log.add("save", step, &path, true, told);
                return Err(error);
            }
        };
        let since = Instant::now();
        let tidied = self.lock.as_ref().map_or(Ok(Vec::new()), |lock| self.tidy(step, lock));
        let deletions = tidied.as_deref().unwrap_or_default();
        let left = left(deletions);
        let deleted: Vec<u64> =
            deletions.iter().filter(|deletion| is_gone(deletion)).map(|deletion| deletion.step).collect();
        let error = tidied.as_ref().err().map(Error::to_string);
        let told = json!({
            "seconds": report.seconds,
            "blocked_seconds": blocked_seconds,
            "stored_bytes": report.stored_bytes,
            "data_bytes": report.data_bytes,
            "reused_bytes": (report.reused_bytes > 0).then_some(report.reused_bytes),
            "metrics": (!about.metrics.is_empty()).then_some(&about.metrics),
            "tidy_seconds": since.elapsed().as_secs_f64(),
            "checked": self.tidy.verify.then_some(true),
            "deleted": (!deleted.is_empty()).then_some(deleted),
            "left": (!left.is_empty()).then_some(&left),
            "preempted": preempted,
            "error": error,
        });
        let is_bad = error.is_some() || !left.is_empty();
        let logged = self.log.add("save", step, &path, is_bad, told);
        let logged = logged.and_then(|()| log_deletions(&self.log, &self.steps, deletions));
        tidied?;
        logged?;
        self.hooks.on_saved.as_ref().map_or(Ok(()), |on_saved| on_saved(step, &report))?;
        Ok(report)
    }

    /// After the commit of a step: verifies it, writes the pointer and deletes older steps.
    fn tidy(&self, step: u64, lock: &RunLock) -> Result<Vec<Deletion>> {
        lock.check()?;
        let mut options = self.tidy.clone();
        if let Some(also_keeps) = &self.hooks.also_keeps {
            let also = Keep::Steps(also_keeps(&self.steps)?);
            options.keep = match options.keep {
                Keep::Any(any) => Keep::Any(any.into_iter().chain([also]).collect()),
                keep => Keep::Any(vec![keep, also]),
            };
        }
        options.damaged = self.state().damaged.clone();
        let tidied = self.steps.tidy(step, &options);
        if tidied.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt) {
            self.state().damaged.insert(step);
        }
        Ok(tidied?.deletions)
    }
}

fn is_gone(deletion: &Deletion) -> bool {
    matches!(deletion.outcome, Ok(Deleted::Removed { .. } | Deleted::Moved { .. } | Deleted::Gone))
}

fn left(deletions: &[Deletion]) -> Vec<String> {
    let said = |deletion: &Deletion| {
        let error = deletion.outcome.as_ref().err()?;
        Some(format!("step {}: {}", deletion.step, error.what()))
    };
    deletions.iter().filter_map(said).collect()
}

/// Adds a record of each deletion, but not for a step that no longer existed or has a reader.
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
