//! The job of a process, as callers pass it to a save or a restore.

use std::sync::Arc;
use std::time::Duration;

use super::{Coordinator, OnWait, Session, SessionOptions};
use regrow_base::error::{Error, Result};
use regrow_base::monitor::Monitor;
use regrow_storage::location::Location;

/// The processes that save or restore one checkpoint together.
#[derive(Debug, Clone)]
pub struct Job {
    /// The service through which the processes exchange values.
    pub coordinator: Arc<dyn Coordinator>,
    /// How long a process waits for the others in each phase; see [`SessionOptions::timeout`].
    pub timeout: Duration,
    /// Put in front of all keys; see [`SessionOptions::prefix`].
    pub prefix: String,
    /// Receives reports of long waits.
    pub on_wait: Option<OnWait>,
}

impl Job {
    /// Makes a job with the default time-out and prefix.
    pub fn new(coordinator: Arc<dyn Coordinator>) -> Self {
        let SessionOptions { timeout, prefix, on_wait, .. } = SessionOptions::default();
        Self { coordinator, timeout, prefix, on_wait }
    }

    /// Whether the job has other processes.
    pub fn has_others(&self) -> bool {
        self.coordinator.size() > 1
    }

    /// Begins a [`Session`].
    ///
    /// # Errors
    /// The errors of [`Session::begin`].
    pub fn begin(&self, target: &Location, purpose: &str, monitor: &Monitor) -> Result<Session> {
        let options = SessionOptions {
            timeout: self.timeout,
            prefix: self.prefix.clone(),
            monitor: monitor.clone(),
            on_wait: self.on_wait.clone(),
            ..SessionOptions::default()
        };
        Session::begin(Arc::clone(&self.coordinator), target, purpose, options)
    }

    /// Tells the other processes, which are about to begin the same session, that this process
    /// cannot take part. They end with its error, and this function returns the error.
    pub fn refuse(&self, target: &Location, purpose: &str, error: Error) -> Error {
        if !self.has_others() {
            return error;
        }
        // If the session cannot begin, the other processes learn of the refusal by their time-out.
        let Ok(session) = self.begin(target, purpose, &Monitor::new()) else { return error };
        let Err(error) = session.agree("check", Err::<std::convert::Infallible, _>(error));
        error
    }
}
