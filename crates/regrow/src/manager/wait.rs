//! Waits for a new step, for example in an evaluation job.

use std::sync::PoisonError;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::hooks::LOOK_EVERY;
use super::run::TrainingRun;
use super::steps::Steps;
use crate::error::{ErrorKind, Result};

impl Steps {
    /// The newest step of the current history, if it is newer than the step `seen`: it has a higher
    /// number, or the run has gone back to an older step since.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn newer_than(&self, seen: Option<u64>) -> Result<Option<u64>> {
        let Some(latest) = self.latest()?.map(|step| step.number) else { return Ok(None) };
        let is_newer = match seen {
            Some(seen) if latest <= seen => latest != seen && self.list()?.has_left(seen),
            _ => true,
        };
        Ok(is_newer.then_some(latest))
    }
}

impl TrainingRun {
    /// Waits for a step that is newer than `after`, and returns the newest step; `None` after
    /// `timeout`. The step has a lease until the next call, or until [`close`](Self::close).
    ///
    /// # Errors
    /// Errors of the storage; the error of [`Hooks::while_waiting`](super::Hooks::while_waiting).
    pub fn wait_for_new(
        &self,
        after: Option<u64>,
        timeout: Duration,
        look_every: Duration,
    ) -> Result<Option<u64>> {
        let began = Instant::now();
        loop {
            let found = self.take_newer(after)?;
            let left = timeout.saturating_sub(began.elapsed());
            if found.is_some() || left.is_zero() {
                return Ok(found);
            }
            self.pause(look_every.min(left))?;
        }
    }

    fn take_newer(&self, seen: Option<u64>) -> Result<Option<u64>> {
        let mut lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        *lease = None;
        let Some(step) = self.steps.newer_than(seen)? else { return Ok(None) };
        match self.steps.step(step).and_then(|step| self.lease(&step)) {
            // A writer deleted the step between two requests. The next look finds another step.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            leased => *lease = leased?,
        }
        Ok(Some(step))
    }

    fn pause(&self, time: Duration) -> Result<()> {
        let Some(look) = &self.options.hooks.while_waiting else {
            sleep(time);
            return Ok(());
        };
        let began = Instant::now();
        loop {
            let left = time.saturating_sub(began.elapsed());
            sleep(left.min(LOOK_EVERY));
            look()?;
            if left <= LOOK_EVERY {
                return Ok(());
            }
        }
    }
}
