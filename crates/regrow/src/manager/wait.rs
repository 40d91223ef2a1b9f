//! Waiting for a new step, as evaluation jobs do.

use std::time::{Duration, Instant};

use super::lease::Lease;
use super::steps::Steps;
use crate::error::{ErrorKind, Result};

impl Steps {
    /// Waits until there is a step newer than `after`, and takes a lease of the newest; `None` if none has come in time.
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
            if let Some(step) = self.latest()?.filter(|step| after.is_none_or(|after| step.number > after)) {
                match self.lease(step.number) {
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
