//! Finds the steps of a folder that belong together. If a run goes back to an older step, the steps
//! after that step belong to another history.
//!
//! A manager writes a record into each step that it saves, in `_CHECKPOINT_METADATA`, among the
//! user's own members:
//!
//! ```text
//! "regrow_step": {"run": "9f3c…",          the run that saved the step
//!                 "turn": 2,               how often that run had gone back before
//!                 "from": {"0": 200},      for each earlier turn: its last step in this history
//!                 "left": {"201": 500}}    abandoned steps without a record: first, last
//! ```
//!
//! The newest step with a record shows the current run. The current history is that of the highest
//! turn in this run. A step of another program has no record. It is part of the current history,
//! except if it was abandoned. Only steps with a record of the run are the manager's own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The member of the metadata of a step.
pub const STEP_RECORD: &str = "regrow_step";

/// A step's record of its run and its history.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepRecord {
    /// The random name of the run.
    pub run: String,
    /// How often the run had gone back to an older step.
    pub turn: u64,
    /// The last step of each earlier turn that is part of this history.
    #[serde(default)]
    pub from: BTreeMap<u64, u64>,
    /// First and last number of abandoned steps without a record.
    #[serde(default)]
    pub left: BTreeMap<u64, u64>,
}

impl StepRecord {
    /// Takes the record out of the metadata of a step; `None` if it is missing or unreadable.
    pub fn take(metadata: &mut Map<String, Value>) -> Option<Self> {
        serde_json::from_value(metadata.remove(STEP_RECORD)?).ok()
    }

    /// Whether a step is part of the history whose newest step has this record.
    pub fn has(&self, number: u64, record: Option<&Self>) -> bool {
        match record.filter(|record| self.is_own(record)) {
            Some(record) if record.turn == self.turn => true,
            Some(record) => self.from.get(&record.turn).is_some_and(|last| number <= *last),
            None => self.left.range(..=number).next_back().is_none_or(|(_, last)| number > *last),
        }
    }

    /// Whether a step is of the same run.
    pub fn is_own(&self, record: &Self) -> bool {
        self.run == record.run
    }

    /// The record of the current history: the record with the highest turn in the run of the newest
    /// recorded step. `None` if no step has a record.
    pub fn current<'a>(steps: impl IntoIterator<Item = (u64, Option<&'a Self>)> + Clone) -> Option<&'a Self> {
        let recorded = || steps.clone().into_iter().filter_map(|(number, record)| Some((number, record?)));
        let (_, newest) = recorded().max_by_key(|(number, _)| *number)?;
        let own = recorded().filter(|(_, record)| newest.is_own(record));
        own.max_by_key(|(number, record)| (record.turn, *number)).map(|(_, record)| record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(run: &str, turn: u64, from: &[(u64, u64)], left: &[(u64, u64)]) -> StepRecord {
        let (from, left) = (from.iter().copied().collect(), left.iter().copied().collect());
        StepRecord { run: run.to_owned(), turn, from, left }
    }

    #[test]
    fn a_history_is_what_its_newest_record_says() {
        let first = record("a", 0, &[], &[]);
        let second = record("a", 1, &[(0, 200)], &[(201, 500)]);
        let other = record("b", 7, &[], &[]);
        let steps = [(100, Some(&first)), (500, Some(&first)), (250, Some(&second)), (50, Some(&other))];
        let current = StepRecord::current(steps).unwrap();
        assert_eq!(current, &second);
        let has = |number, record| current.has(number, record);
        assert!(has(100, Some(&first)) && has(200, Some(&first)) && !has(201, Some(&first)));
        assert!(has(900, Some(&second)));
        // A step without a record of this run belongs to the history, unless the step was
        // abandoned.
        for record in [None, Some(&other)] {
            assert!(has(200, record) && !has(201, record) && !has(500, record) && has(501, record));
        }
        assert_eq!(StepRecord::current([(1, None)]), None);
    }

    #[test]
    fn a_record_survives_its_document_and_nonsense_is_none() {
        let written = record("a", 3, &[(0, 200), (1, 7)], &[(1, 9)]);
        let mut metadata = Map::from_iter([("mine".to_owned(), 1.into())]);
        metadata.insert(STEP_RECORD.to_owned(), serde_json::to_value(&written).unwrap());
        assert_eq!(StepRecord::take(&mut metadata), Some(written));
        assert_eq!(metadata.len(), 1);
        for nonsense in [Value::Null, 3.into(), serde_json::json!({"run": 1}), serde_json::json!({"run": ""})]
        {
            let mut metadata = Map::from_iter([(STEP_RECORD.to_owned(), nonsense)]);
            assert_eq!(StepRecord::take(&mut metadata), None);
            assert!(metadata.is_empty());
        }
    }
}
