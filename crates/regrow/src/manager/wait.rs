//! Waiting for a new step, as evaluation jobs do.

use std::time::{Duration, Instant};

use super::lease::Lease;
use super::steps::Steps;
use crate::error::{ErrorKind, Result};

impl Steps {
    /// The newest step of the current history, if it came after a step that was seen: its number is
    /// higher, or the run has gone back to an older step since.
    ///
    /// # Errors
    /// What the storage says.
    pub fn newer_than(&self, seen: Option<u64>) -> Result<Option<u64>> {
        let Some(latest) = self.latest()?.map(|step| step.number) else { return Ok(None) };
        let is_newer = match seen {
            Some(seen) if latest <= seen => latest != seen && self.list()?.has_left(seen),
            _ => true,
        };
        Ok(is_newer.then_some(latest))
    }

    /// Waits until there is a step newer than `after`, and takes a lease of the newest; `None` if
    /// none has come in time.
    ///
    /// `looks` is called before each look: an error of it ends the wait.
    ///
    /// # Errors
    /// What the storage says; what `looks` says.
    pub fn wait_for_new(
        &self,
        after: Option<u64>,
        timeout: Duration,
        look_every: Duration,
        looks: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Lease>> {
        let began = Instant::now();
        loop {
            looks()?;
            if let Some(step) = self.newer_than(after)? {
                match self.lease(step) {
                    // Deleted between two looks.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    lease => return lease.map(Some),
                }
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(look_every.min(left));
        }
    }
}
