//! The handle that the caller of a background save gets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::job::Job;
use super::options::Blocked;
use super::{AsyncSaver, Shared, check_process};
use crate::engine::SaveReport;
use crate::error::Result;
use crate::monitor::Progress;

/// A save in the background. Dropping the handle of an `AsyncSaver` neither ends the save nor waits
/// for it. Dropping the handle of `save_async` waits for the save.
#[derive(Debug)]
#[must_use = "call wait() to learn whether the save succeeded"]
pub struct SaveHandle {
    pub(super) job: Arc<Job>,
    pub(super) shared: Arc<Shared>,
    pub(super) pid: u32,
    /// The saver of [`save_async`], which only this handle owns. Dropping the handle drops the
    /// saver, and therefore waits for the save.
    pub(super) own_saver: Option<Arc<AsyncSaver>>,
}

impl SaveHandle {
    /// The path of the new checkpoint.
    pub fn path(&self) -> &Path {
        &self.job.path
    }

    /// The time for which the call blocked its caller.
    pub fn blocked(&self) -> Blocked {
        self.job.blocked
    }

    /// The progress of the save.
    pub fn progress(&self) -> Progress {
        self.job.monitor.progress()
    }

    /// Whether the save has ended, with or without an error.
    pub fn is_done(&self) -> bool {
        check_process(self.pid, self.path()).is_ok() && self.job.is_done()
    }

    /// Asks the save to stop at its next buffer. The save then removes its temporary files, and
    /// `wait` returns `Cancelled`. No other call returns this error.
    pub fn cancel(&self) {
        self.job.cancel();
    }

    /// Waits until the save has ended.
    ///
    /// # Errors
    /// The errors of [`save_with`](crate::save_with); `Cancelled`; `SourceChanged` if an array was
    /// changed during the save. In the last case an overwritten single file in a bucket already has
    /// the new content, with the array as it was before or after the change.
    pub fn wait(&self) -> Result<SaveReport> {
        loop {
            if let Some(outcome) = self.wait_for(Duration::from_secs(3600)) {
                return outcome;
            }
        }
    }

    /// Waits for at most `timeout`; `None` if the save has not ended by then.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<SaveReport>> {
        if let Err(error) = check_process(self.pid, self.path()) {
            return Some(Err(error));
        }
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, timeout, |_| !self.job.is_done());
        drop(waited);
        self.job.outcome()
    }
}
