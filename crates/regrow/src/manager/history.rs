//! The current history of a run, in memory: the steps that belong to it, and the record for the
//! next save.
//!
//! ```text
//! 100 200 300 400 500                 after restore(200) and save(250): 300 to 500 belong to an abandoned history
//!       └ 250 260 270                 the current history: 100, 200, 250, 260, 270
//! ```
//! The save of a new step continues from the newest step of the current history. A new history
//! begins in two cases:
//! - After the restore of an older step, the newer steps belong to an abandoned history.
//! - If the new step has a lower number than the newest step, the save continues from the newest
//!   step below the new number.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::steps::{Step, StepList};
use crate::error::Result;
use crate::formats::container::StepRecord;
use crate::store::local::folders::random_name;

/// The steps that the manager knows, without access to the storage. A job shares them as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct History {
    record: StepRecord,
    /// Steps that are saved or being saved, in any history.
    steps: BTreeMap<u64, Option<StepRecord>>,
}

impl History {
    /// The history of the steps in a folder; a new run if no step has a record.
    ///
    /// # Errors
    /// Errors of the system's random number generator.
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

    /// Whether the step is saved or being saved in the current history.
    pub fn knows(&self, step: u64) -> bool {
        self.steps.get(&step).is_some_and(|record| self.has(step, record.as_ref()))
    }

    /// Whether the step is saved or being saved in any history.
    pub fn is_taken(&self, step: u64) -> bool {
        self.steps.contains_key(&step)
    }

    /// The newest step of the current history, not counting `step`.
    pub fn latest_but(&self, step: u64) -> Option<u64> {
        self.current().rev().find(|number| *number != step)
    }

    /// The newest step of the current history.
    pub fn latest(&self) -> Option<u64> {
        self.current().next_back()
    }

    /// The next save continues from this step. Newer steps belong to an abandoned history from now
    /// on.
    pub fn turn_to(&mut self, step: u64) {
        let record = self.steps.entry(step).or_insert(None).clone();
        if self.has(step, record.as_ref()) {
            if self.latest() != Some(step) {
                self.go_back(turns_of(&self.record), self.record.left.clone(), Some(step));
            }
            return;
        }
        // The step belongs to an abandoned history: the new history continues that history.
        let left = self.record.left.clone();
        match record.filter(|record| self.record.is_own(record)) {
            Some(record) => self.go_back(turns_of(&record), record.left, Some(step)),
            None => {
                let (around, left): (BTreeMap<_, _>, BTreeMap<_, _>) =
                    left.into_iter().partition(|(first, last)| (first..=last).contains(&&step));
                let first = around.keys().next().copied().unwrap_or(step);
                self.go_back(until(turns_of(&self.record), first.checked_sub(1)), left, Some(step));
            }
        }
    }

    /// Begins a save, and returns the record for its step.
    pub fn begin(&mut self, step: u64) -> StepRecord {
        if !self.knows(step) && self.latest().is_some_and(|latest| latest > step) {
            let before = self.current().rev().find(|number| *number < step);
            self.go_back(turns_of(&self.record), self.record.left.clone(), before);
        }
        self.steps.insert(step, Some(self.record.clone()));
        self.record.clone()
    }

    /// Forgets a step that was deleted or whose save has failed.
    pub fn forget(&mut self, step: u64) {
        self.steps.remove(&step);
    }

    /// Forgets all steps that are newer than this one, because they were deleted.
    pub fn roll_back(&mut self, step: u64) {
        self.turn_to(step);
        self.steps.retain(|number, _| *number <= step);
    }

    /// Begins a new history after the step `to` of an earlier history, or from nothing. `turns` and
    /// `left` belong to the earlier history.
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
        // Turns that have no remaining steps need no record.
        let mut from = until(turns, to);
        from.retain(|turn, last| self.steps.range(..=*last).any(|(_, record)| own(record) == Some(*turn)));
        left.retain(|first, last| {
            first <= last && self.steps.range(*first..=*last).any(|(_, record)| own(record).is_none())
        });
        self.record = StepRecord { run, turn: last_turn.saturating_add(1), from, left };
    }

    /// The listed steps of the current history, by number.
    pub fn of_list(&self, list: &StepList) -> Vec<u64> {
        let is_current = |step: &&Step| self.has(step.number, step.record.as_ref());
        list.steps.iter().filter(is_current).map(|step| step.number).collect()
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

/// The last step of each turn that belongs to the history of a record, including its own turn.
fn turns_of(record: &StepRecord) -> BTreeMap<u64, u64> {
    record.from.iter().map(|(turn, last)| (*turn, *last)).chain([(record.turn, u64::MAX)]).collect()
}

/// The turns, cut off after the step `to`; empty if `to` is `None`.
fn until(turns: BTreeMap<u64, u64>, to: Option<u64>) -> BTreeMap<u64, u64> {
    let until = |to| turns.into_iter().map(|(turn, last)| (turn, u64::min(last, to))).collect();
    to.map(until).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(others: &[u64]) -> History {
        let record = StepRecord { run: "a".to_owned(), ..StepRecord::default() };
        History { record, steps: others.iter().map(|step| (*step, None)).collect() }
    }

    fn current(history: &History) -> Vec<u64> {
        history.current().collect()
    }

    #[test]
    fn a_save_goes_on_from_the_step_that_was_restored() {
        let mut history = history(&[]);
        for step in [100, 200, 300, 400, 500] {
            assert_eq!(history.begin(step).turn, 0);
        }
        history.turn_to(500);
        assert_eq!(history.begin(600).turn, 0, "the newest is no older one");
        history.turn_to(200);
        assert_eq!((history.latest(), history.knows(300), history.is_taken(300)), (Some(200), false, true));
        for step in [250, 260, 300] {
            assert_eq!(history.begin(step).from, [(0, 200)].into());
        }
        assert_eq!(current(&history), [100, 200, 250, 260, 300]);
        // Return to the abandoned history, and continue there.
        history.turn_to(500);
        history.begin(510);
        assert_eq!(
            current(&history),
            [100, 200, 400, 500, 510],
            "300 was saved again, and is of the other one"
        );
    }

    #[test]
    fn a_save_of_an_older_number_goes_on_from_the_step_before_it() {
        let mut history = history(&[]);
        for step in [10, 20, 30] {
            history.begin(step);
        }
        history.begin(20);
        assert_eq!(current(&history), [10, 20, 30], "one that is known is only saved again");
        history.begin(25);
        assert_eq!(current(&history), [10, 20, 25]);
        history.begin(5);
        assert_eq!(current(&history), [5]);
        assert!(history.record.from.is_empty());
    }

    #[test]
    fn steps_without_a_record_are_left_behind_and_taken_up_again() {
        let mut history = history(&[1, 2, 3, 4]);
        history.turn_to(3);
        history.begin(5);
        history.turn_to(2);
        history.begin(6);
        assert_eq!(current(&history), [1, 2, 6]);
        history.turn_to(4);
        assert_eq!(history.latest(), Some(4));
        assert!(!history.knows(6) && !history.knows(5) && history.knows(2));
    }
}
