//! When to save: conditions on the step, the time and the signals, and combinations of conditions.
//! This module does not read a clock.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use crate::error::{Error, Result};

/// A condition under which a step is saved.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveWhen {
    /// Every step.
    Always,
    /// Steps whose number is a multiple of this.
    Every(u64),
    /// Exactly these steps.
    Steps(BTreeSet<u64>),
    /// If this many seconds have passed since the last save, and no save is running. The first step
    /// is saved at once.
    AfterSeconds(f64),
    /// If no step exists yet.
    First,
    /// If the program was asked to end.
    Preempted,
    /// The decision of the caller's function.
    #[serde(skip)]
    If(SaveIf),
    /// If at least one of these conditions applies; never if the list is empty.
    Any(Vec<SaveWhen>),
    /// If all of these conditions apply; always if the list is empty.
    All(Vec<SaveWhen>),
}

/// A function of the caller that decides whether to save.
#[derive(Clone)]
pub struct SaveIf(Arc<dyn Fn(&Moment) -> bool + Send + Sync>);

impl SaveIf {
    /// Wraps `wants`, which returns true for a step to save.
    pub fn new(wants: impl Fn(&Moment) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(wants))
    }
}

impl fmt::Debug for SaveIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SaveIf")
    }
}

/// The facts from which a condition decides.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Moment {
    /// The step that would be saved.
    pub step: u64,
    /// The newest existing step.
    pub latest: Option<u64>,
    /// Seconds since the last save began.
    pub seconds_since_save: Option<f64>,
    /// Whether the program was asked to end.
    pub is_preempted: bool,
    /// Whether a save is running.
    pub is_saving: bool,
}

impl SaveWhen {
    /// Whether to save the step.
    pub fn wants(&self, moment: &Moment) -> bool {
        match self {
            Self::Always => true,
            Self::Every(interval) => moment.step.is_multiple_of(*interval),
            Self::Steps(steps) => steps.contains(&moment.step),
            Self::AfterSeconds(seconds) => {
                !moment.is_saving && moment.seconds_since_save.is_none_or(|since| since >= *seconds)
            }
            Self::First => moment.latest.is_none(),
            Self::Preempted => moment.is_preempted,
            Self::If(wanted) => (wanted.0)(moment),
            Self::Any(any) => any.iter().any(|when| when.wants(moment)),
            Self::All(all) => all.iter().all(|when| when.wants(moment)),
        }
    }

    /// Whether all processes of a job make the same decision without messages: the condition uses
    /// no clock, signal or function.
    #[doc(hidden)]
    pub fn is_regular(&self) -> bool {
        match self {
            Self::Always | Self::Every(_) | Self::Steps(_) | Self::First => true,
            Self::AfterSeconds(_) | Self::Preempted | Self::If(_) => false,
            Self::Any(inner) | Self::All(inner) => inner.iter().all(Self::is_regular),
        }
    }

    /// Returns an error if the condition is not valid.
    ///
    /// # Errors
    /// `InvalidArgument` for an interval of 0, or a time that is not valid.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Every(0) => Err(Error::invalid("steps cannot be saved every 0 steps")
                .expected("an interval of at least 1", 0)
                .help("to save each step, give 1")),
            Self::AfterSeconds(seconds) if !(seconds.is_finite() && *seconds >= 0.0) => {
                Err(Error::invalid("the time between two saves is not valid")
                    .expected("seconds, 0 or more", seconds))
            }
            Self::Any(inner) | Self::All(inner) => inner.iter().try_for_each(Self::check),
            _ => Ok(()),
        }
    }

    /// Reads a condition from a JSON document.
    ///
    /// # Errors
    /// `InvalidArgument` if the document is not a condition, or the condition is not valid.
    pub fn from_json(text: &str) -> Result<Self> {
        let when: Self = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("the rule of when to save is not valid: {error}")))?;
        when.check()?;
        Ok(when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(when: &SaveWhen, moment: Moment) -> bool {
        when.wants(&moment)
    }

    #[test]
    fn each_condition_by_itself() {
        let at = |step| Moment { step, latest: Some(1), ..Moment::default() };
        assert!(wants(&SaveWhen::Every(10), at(0)) && wants(&SaveWhen::Every(10), at(20)));
        assert!(!wants(&SaveWhen::Every(10), at(21)));
        assert!(
            wants(&SaveWhen::Steps([3, 5].into()), at(5)) && !wants(&SaveWhen::Steps([3, 5].into()), at(4))
        );
        assert!(!wants(&SaveWhen::First, at(1)));
        assert!(wants(&SaveWhen::First, Moment { step: 7, ..Moment::default() }));
        assert!(!wants(&SaveWhen::Preempted, at(1)));
        assert!(wants(&SaveWhen::Preempted, Moment { is_preempted: true, ..at(1) }));
        assert!(wants(&SaveWhen::If(SaveIf::new(|moment| moment.step == 9)), at(9)));
        let after = SaveWhen::AfterSeconds(60.0);
        assert!(wants(&after, at(1)), "nothing was saved before");
        assert!(!wants(&after, Moment { seconds_since_save: Some(59.0), ..at(1) }));
        assert!(wants(&after, Moment { seconds_since_save: Some(60.0), ..at(1) }));
        assert!(!wants(&after, Moment { seconds_since_save: Some(60.0), is_saving: true, ..at(1) }));
    }

    #[test]
    fn any_and_all_of_several() {
        let text =
            r#"{"any": [{"all": [{"every": 10}, {"after_seconds": 60}]}, {"steps": [7]}, "preempted"]}"#;
        let when = SaveWhen::from_json(text).unwrap();
        let moment = Moment { step: 10, latest: Some(1), seconds_since_save: Some(5.0), ..Moment::default() };
        assert!(!when.wants(&moment));
        assert!(when.wants(&Moment { seconds_since_save: Some(61.0), ..moment }));
        assert!(when.wants(&Moment { step: 7, ..moment }));
        assert!(when.wants(&Moment { is_preempted: true, ..moment }));
        assert!(!SaveWhen::Any(Vec::new()).wants(&moment) && SaveWhen::All(Vec::new()).wants(&moment));
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        for text in [r#"{"every": 0}"#, r#"{"any": [{"after_seconds": -1}]}"#, r#"{"often": 3}"#, "3", "{"] {
            assert!(SaveWhen::from_json(text).is_err(), "{text}");
        }
    }
}
