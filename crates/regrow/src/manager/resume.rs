//! A [`TrainingRun`] restores the newest good step, in one process or in all processes of a job.
//!
//! In a job all processes restore the same step. If one process finds a step damaged or deleted,
//! all processes try an older step. Any other error ends the restore in all processes.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::lease::Lease;
use super::newest::{PassedOver, Restored, headline};
use super::run::TrainingRun;
use super::steps::Step;
use crate::error::{Error, ErrorKind, Result};

/// The reason why a process could not restore a step, in the form that other processes receive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Refusal {
    /// Whether the step itself causes the error. Other errors sort first, because no older step
    /// would avoid them.
    is_fault: bool,
    kind: String,
    what: String,
}

impl TrainingRun {
    /// Calls `restore` with the newest step of the current history, and then with older steps,
    /// until a step is good in all processes of a job.
    ///
    /// # Errors
    /// The errors of [`Steps::restore_newest`](super::Steps::restore_newest), of any process of a
    /// job.
    #[doc(hidden)]
    pub fn restore_newest<T>(&self, mut restore: impl FnMut(&Step) -> Result<T>) -> Result<Restored<T>> {
        self.follower.wait()?;
        let began = Instant::now();
        let restored = self.steps.newest_of(
            || self.together.of_rank_0("manager-steps", || Ok(self.current_of(&self.steps.list()?))),
            |number| self.attempt(number, true, &mut restore),
        )?;
        self.restored(&restored, began)?;
        Ok(restored)
    }

    /// Calls `restore` with a step.
    ///
    /// # Errors
    /// The errors of [`Steps::step`](super::Steps::step) and `restore`, of any process of a job.
    #[doc(hidden)]
    pub fn restore_one<T>(&self, step: u64, restore: impl FnMut(&Step) -> Result<T>) -> Result<Restored<T>> {
        self.follower.wait()?;
        let began = Instant::now();
        let (step, value) = self.attempt(step, false, restore)??;
        let restored = Restored { step, value, passed_over: Vec::new() };
        self.restored(&restored, began)?;
        Ok(restored)
    }

    /// Restores a step. After an inner error, an older step may be tried.
    fn attempt<T>(
        &self,
        number: u64,
        may_pass_over: bool,
        mut restore: impl FnMut(&Step) -> Result<T>,
    ) -> Result<Result<(Step, T)>> {
        let own = self.steps.step(number).and_then(|step| Ok((restore(&step)?, step)));
        let is_fault = match &own {
            // If the check itself fails, all processes end with the error.
            Err(error) if may_pass_over => self.steps.is_fault_of(number, error).unwrap_or(false),
            _ => false,
        };
        let refusal = own.as_ref().err().map(|error| Refusal {
            is_fault,
            kind: error.kind().name().to_owned(),
            what: error.what().to_owned(),
        });
        if own.as_ref().is_err_and(|error| is_damage(error, is_fault)) {
            self.follower.is_damaged(number);
        }
        // The processes exchange their refusals, and all take the first one.
        let verdict = self.together.decide(&format!("manager-restore-{number}"), refusal, |all| {
            Ok(all.into_iter().flatten().min())
        })?;
        match (own, verdict) {
            (Ok((value, step)), None) => Ok(Ok((step, value))),
            (Err(error), _) if is_fault => Ok(Err(error)),
            (Err(error), _) => Err(error),
            (Ok(_), Some(Refusal { is_fault, kind, what })) => {
                let kind = ErrorKind::from_name(&kind).unwrap_or(ErrorKind::Io);
                let error = Error::new(kind, format!("another process cannot restore step {number}: {what}"))
                    .in_file(self.steps.place(number));
                if is_fault { Ok(Err(error)) } else { Err(error) }
            }
        }
    }

    /// Protects a step from deletion; `None` if a lease cannot be written to the folder.
    pub(super) fn lease(&self, step: &Step) -> Result<Option<Lease>> {
        match self.steps.lease(step.number) {
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
                let told = json!({ "error": headline(&error) });
                self.log.add("unleased", step.number, &step.location.describe(), true, told)?;
                Ok(None)
            }
            leased => leased.map(Some),
        }
    }

    fn restored<P>(&self, restored: &Restored<P>, began: Instant) -> Result<()> {
        let Restored { step, passed_over, .. } = restored;
        self.turn_to(step.number);
        let passed: Map<String, Value> = passed_over
            .iter()
            .map(|PassedOver { step, error }| (step.to_string(), json!(headline(error))))
            .collect();
        let is_bad = !passed.is_empty();
        let told = json!({
            "seconds": began.elapsed().as_secs_f64(),
            "passed_over": is_bad.then_some(passed),
        });
        self.log.add("restore", step.number, &step.location.describe(), is_bad, told)
    }
}

/// Whether an error means that the step is damaged, incomplete or deleted. A step that was only
/// replaced does not count.
fn is_damage(error: &Error, is_fault: bool) -> bool {
    use ErrorKind::{Corrupt, NotACheckpoint, NotFound};
    matches!(error.kind(), Corrupt | NotACheckpoint) || is_fault && error.kind() == NotFound
}
