//! The newest good step. Newer damaged steps are skipped and reported.

use super::steps::{Step, Steps, said};
use crate::engine::verify;
use crate::error::{Error, ErrorKind, Result};

/// The most times that a reader lists the steps again because a writer deleted all listed steps. A
/// count instead of a time, so that all processes of a job stop together.
const LISTS_MAX: usize = 20;

/// A newer step that could not be restored and was skipped.
#[derive(Debug)]
pub struct PassedOver {
    /// The number of the step.
    pub step: u64,
    /// The reason why it could not be restored.
    pub error: Error,
}

/// The result of restoring the newest good step.
#[derive(Debug)]
pub struct Restored<T> {
    /// The restored step.
    pub step: Step,
    /// The value of the step.
    pub value: T,
    /// Newer steps that could not be restored, the newest first.
    pub passed_over: Vec<PassedOver>,
}

impl Steps {
    /// Calls `restore` with the steps of the current history, the newest first, until it succeeds.
    ///
    /// # Errors
    /// `NotFound` if there are no steps; `Corrupt`, with all reasons, if no step is good; an error
    /// of `restore` that an older step would have too, such as a mismatch or a lack of memory.
    pub fn restore_newest<T>(&self, mut restore: impl FnMut(&Step) -> Result<T>) -> Result<Restored<T>> {
        self.newest_of(
            || self.current(),
            |number| {
                let restored = self.step(number).and_then(|step| Ok((restore(&step)?, step)));
                match restored {
                    Ok((value, step)) => Ok(Ok((step, value))),
                    Err(error) if self.is_fault_of(number, &error)? => Ok(Err(error)),
                    Err(error) => Err(error),
                }
            },
        )
    }

    /// Calls `attempt` with the newest of the sorted steps from `list`. After an inner error, calls
    /// `attempt` with the next older step. If all listed steps fail, calls `list` again, because a
    /// writer may have deleted these steps and saved newer ones.
    pub(super) fn newest_of<T>(
        &self,
        mut list: impl FnMut() -> Result<Vec<u64>>,
        mut attempt: impl FnMut(u64) -> Result<Result<(Step, T)>>,
    ) -> Result<Restored<T>> {
        let mut passed_over: Vec<PassedOver> = Vec::new();
        for _ in 0..LISTS_MAX {
            let mut numbers = list()?;
            numbers.retain(|number| !has_passed(&passed_over, *number));
            if numbers.is_empty() {
                break;
            }
            for &number in numbers.iter().rev() {
                match attempt(number)? {
                    Ok((step, value)) => {
                        passed_over.retain(|passed| passed.step > number);
                        return Ok(Restored { step, value, passed_over });
                    }
                    Err(error) => passed_over.push(PassedOver { step: number, error }),
                }
            }
        }
        if passed_over.is_empty() {
            let error = Error::new(ErrorKind::NotFound, "there is no step to restore").in_file(self.root());
            let unfinished = self.list()?.unfinished;
            return Err(match unfinished.is_empty() {
                true => error.help(said(&[])),
                false => error.help(format!("unfinished saves: {}", unfinished.join(", "))),
            });
        }
        let numbers: Vec<String> = passed_over.iter().map(|passed| passed.step.to_string()).collect();
        let mut reasons: Vec<String> = passed_over
            .iter()
            .map(|passed| format!("step {}: {}", passed.step, headline(&passed.error)))
            .collect();
        let list = self.list()?;
        let others = list.abandoned().map(|step| step.number).filter(|step| !has_passed(&passed_over, *step));
        let others: Vec<u64> = others.collect();
        if !others.is_empty() {
            reasons.push(format!("abandoned steps, which can be restored by number: {}", said(&others)));
        }
        let error = Error::corrupt(format!("every step is damaged: {}", numbers.join(", ")))
            .in_file(self.root())
            .help(reasons.join("; "));
        Err(passed_over.into_iter().take(1).fold(error, |error, passed| error.caused_by(passed.error)))
    }

    /// Like [`is_at_fault`](Self::is_at_fault) for a step number. A deleted step counts as the
    /// cause.
    ///
    /// # Errors
    /// Errors of the storage.
    #[doc(hidden)]
    pub fn is_fault_of(&self, number: u64, error: &Error) -> Result<bool> {
        match self.find(number)? {
            Some(step) => self.is_at_fault(&step, error),
            None => Ok(true),
        }
    }

    /// Whether the step itself causes the error, so that an older step may work. This is so if the
    /// step is damaged or was deleted. If a part is missing, the caller may have asked for a part
    /// that never existed, so the whole step is read again.
    ///
    /// # Errors
    /// Errors of the storage.
    #[doc(hidden)]
    pub fn is_at_fault(&self, step: &Step, error: &Error) -> Result<bool> {
        use ErrorKind::{Corrupt, NotACheckpoint, NotFound, Replaced, Uncommitted};
        match error.kind() {
            Corrupt | NotACheckpoint | Replaced | Uncommitted => Ok(true),
            NotFound if self.find(step.number)?.is_none() => Ok(true),
            NotFound => Ok(verify(&step.location).map_or(true, |report| !report.is_ok())),
            _ => Ok(false),
        }
    }
}

/// The first line of an error's text: the text of an exception may have several lines.
pub(super) fn headline(error: &Error) -> &str {
    error.what().lines().next().unwrap_or_default()
}

fn has_passed(passed_over: &[PassedOver], step: u64) -> bool {
    passed_over.iter().any(|passed| passed.step == step)
}
