//! Restoring by a [`Manager`]: the newest step that is good, in one process or in all of a job.
//!
//! In a job all take the same way: what one of them cannot restore, none does.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::newest::{PassedOver, Restored};
use super::saving::{DEFAULT_ITEM, Manager};
use super::steps::Step;
use crate::engine::{LoadOptions, open_with, value};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::Pytree;

/// Why a process could not restore a step, on its way to the others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Refusal {
    /// Whether it is the step's own fault. What no other step would spare goes first.
    is_fault: bool,
    kind: String,
    what: String,
}

impl Manager {
    /// Loads the newest step that is good. Newer ones are of another history from now on, and may be saved again.
    ///
    /// # Errors
    /// As [`Steps::restore_newest`](super::Steps::restore_newest), of any process of a job.
    pub fn restore<P: Pytree>(&self, options: &LoadOptions) -> Result<Restored<P>> {
        self.follower.wait();
        let began = Instant::now();
        let there = self.together.of_rank_0("manager-steps", || self.steps.numbers())?;
        let restored = self.steps.newest_of(&there, |number| self.attempt(number, true, options))?;
        self.restored(&restored, began)?;
        Ok(restored)
    }

    /// Loads a step. Newer ones are of another history from now on, and may be saved again.
    ///
    /// # Errors
    /// As [`Steps::step`](super::Steps::step) and [`load`](crate::load()), of any process of a job.
    pub fn restore_step<P: Pytree>(&self, step: u64, options: &LoadOptions) -> Result<P> {
        self.follower.wait();
        let began = Instant::now();
        let (step, value) = self.attempt(step, false, options)??;
        let restored = Restored { step, value, passed_over: Vec::new() };
        self.restored(&restored, began)?;
        Ok(restored.value)
    }

    /// Restores a step; the inner error is one for which an older step may be taken.
    fn attempt<P: Pytree>(
        &self,
        number: u64,
        may_pass_over: bool,
        options: &LoadOptions,
    ) -> Result<Result<(Step, P)>> {
        let own = self.steps.step(number).and_then(|step| Ok((load(&step, options)?, step)));
        let is_fault = match &own {
            // Where not even that can be found out, all end with the error.
            Err(error) if may_pass_over => self.steps.is_fault_of(number, error).unwrap_or(false),
            _ => false,
        };
        let refusal = own.as_ref().err().map(|error| Refusal {
            is_fault,
            kind: error.kind().name().to_owned(),
            what: error.what().to_owned(),
        });
        // Other processes hear of it, and this one of theirs.
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

    /// What follows a restore.
    fn restored<P>(&self, restored: &Restored<P>, began: Instant) -> Result<()> {
        let Restored { step, passed_over, .. } = restored;
        self.turn_to(step.number);
        let passed: Map<String, Value> = passed_over
            .iter()
            .map(|PassedOver { step, error }| (step.to_string(), json!(error.what())))
            .collect();
        let is_bad = !passed.is_empty();
        let told = json!({
            "seconds": began.elapsed().as_secs_f64(),
            "passed_over": is_bad.then_some(passed),
        });
        self.log.add("restore", step.number, &step.location.describe(), is_bad, told)
    }
}

/// Loads the state of a step, whether it is an item of several or all there is.
fn load<P: Pytree>(step: &Step, options: &LoadOptions) -> Result<P> {
    let checkpoint = open_with(&step.location, &options.open)?;
    let has_default = checkpoint.description().items.iter().any(|(name, _)| name == DEFAULT_ITEM);
    if options.open.item.is_none() && has_default {
        let mut own = options.clone();
        own.open.item = Some(DEFAULT_ITEM.to_owned());
        return value::load_with(&step.location, &own);
    }
    checkpoint.load_value(options)
}
