//! The current history of a run, in memory: which steps belong to it, and the record of the next save.
//!
//! ```text
//! 100 200 300 400 500                 restore(200), save(250): 300 to 500 are of a history that was abandoned
//!       └ 250 260 270                 the current one: 100, 200, 250, 260, 270
//! ```
//! A save goes on from the step that was restored last, else from the newest step of the current history. Where the history
//! has newer steps than that one, a new history begins. A save of an older number goes on from the newest step before it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::steps::Step;
use crate::error::Result;
use crate::formats::orbax::history::StepRecord;
use crate::store::local::folders::random_name;

/// What a manager knows of its steps without a look at the storage. A job shares it as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct History {
    /// The record of the current history.
    record: StepRecord,
    /// Steps that are there or are being saved, of any history.
    steps: BTreeMap<u64, Option<StepRecord>>,
}

impl History {
    /// Of the steps in a folder; a new run where no step has a record.
    ///
    /// # Errors
    /// What the system says of its random numbers.
    pub fn of(list: &[Step]) -> Result<Self> {
        let steps: BTreeMap<u64, Option<StepRecord>> =
            list.iter().map(|step| (step.number, step.record.clone())).collect();
        let current = StepRecord::current(steps.iter().map(|(number, record)| (*number, record.as_ref())));
        let record = match current {
            Some(record) => record.clone(),
            None => StepRecord { run: random_name()?, ..StepRecord::default() },
        };
        Ok(Self { record, steps })
    }

    /// Whether the step is part of the current history: there, or being saved.
    pub fn knows(&self, step: u64) -> bool {
        self.steps.get(&step).is_some_and(|record| self.has(step, record.as_ref()))
    }

    /// Whether the step is there or being saved, in any history.
    pub fn is_taken(&self, step: u64) -> bool {
        self.steps.contains_key(&step)
    }

    /// The record of the current history.
    pub fn record(&self) -> &StepRecord {
        &self.record
    }

    /// The newest step of the current history beside this one.
    pub fn latest_but(&self, step: u64) -> Option<u64> {
        self.current().rev().find(|number| *number != step)
    }

    /// The newest step of the current history.
    pub fn latest(&self) -> Option<u64> {
        self.current().next_back()
    }

    /// The next save goes on from this step: newer ones are abandoned from now on.
    pub fn turn_to(&mut self, step: u64) {
        let record = self.steps.entry(step).or_insert(None).clone();
        if self.has(step, record.as_ref()) {
            if self.latest() != Some(step) {
                self.go_back(turns_of(&self.record), self.record.left.clone(), Some(step));
            }
            return;
        }
        // It was abandoned before: what it came from is the current history again.
        let left = self.record.left.clone();
        match record.filter(|record| self.record.is_own(record)) {
            Some(record) => self.go_back(turns_of(&record), record.left, Some(step)),
            None => {
                let range = left.range(..=step).next_back().map(|(first, _)| *first);
                let first = range.unwrap_or(step);
                let turns = until(turns_of(&self.record), first.checked_sub(1));
                self.go_back(
                    turns,
                    left.into_iter().filter(|(each, _)| *each != first).collect(),
                    Some(step),
                );
            }
        }
    }

    /// Begins a save; the record of its step.
    pub fn begin(&mut self, step: u64) -> StepRecord {
        if !self.knows(step) && self.latest().is_some_and(|latest| latest > step) {
            let before = self.current().rev().find(|number| *number < step);
            self.go_back(turns_of(&self.record), self.record.left.clone(), before);
        }
        self.steps.insert(step, Some(self.record.clone()));
        self.record.clone()
    }

    /// The step is not there: it was deleted, or its save has failed.
    pub fn forget(&mut self, step: u64) {
        self.steps.remove(&step);
    }

    /// All steps that are newer than this one were deleted.
    pub fn roll_back(&mut self, step: u64) {
        self.turn_to(step);
        self.steps.retain(|number, _| *number <= step);
    }

    /// A new history begins after a step of an earlier one, or from nothing. `turns` and `left` are those of the earlier one.
    fn go_back(&mut self, turns: BTreeMap<u64, u64>, mut left: BTreeMap<u64, u64>, to: Option<u64>) {
        let run = self.record.run.clone();
        let own = |record: &Option<StepRecord>| {
            record.as_ref().filter(|record| record.run == run).map(|it| it.turn)
        };
        let last_turn = self.steps.values().filter_map(own).fold(self.record.turn, u64::max);
        let newest_other = self.steps.iter().rev().find(|(_, record)| own(record).is_none());
        let first = to.map_or(0, |to| to.saturating_add(1));
        if let Some((newest, _)) = newest_other.filter(|(newest, _)| **newest >= first) {
            let last = left.split_off(&first).into_values().fold(*newest, u64::max);
            left.insert(first, last);
        }
        // What is not there any more needs no word.
        let mut from = until(turns, to);
        from.retain(|turn, last| self.steps.range(..=*last).any(|(_, record)| own(record) == Some(*turn)));
        left.retain(|first, last| {
            first <= last && self.steps.range(*first..=*last).any(|(_, record)| own(record).is_none())
        });
        self.record = StepRecord { run, turn: last_turn.saturating_add(1), from, left };
    }

    /// Whether a step with this record is part of the current history.
    pub fn has(&self, step: u64, record: Option<&StepRecord>) -> bool {
        self.record.has(step, record)
    }

    fn current(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        let current = self.steps.iter().filter(|(number, record)| self.has(**number, record.as_ref()));
        current.map(|(number, _)| *number)
    }
}

/// The last step of each turn that is part of the history of a record, its own too.
fn turns_of(record: &StepRecord) -> BTreeMap<u64, u64> {
    record.from.iter().map(|(turn, last)| (*turn, *last)).chain([(record.turn, u64::MAX)]).collect()
}

/// The same up to a step.
fn until(turns: BTreeMap<u64, u64>, to: Option<u64>) -> BTreeMap<u64, u64> {
    let until = |to| turns.into_iter().map(|(turn, last)| (turn, u64::min(last, to))).collect();
    to.map(until).unwrap_or_default()
}
