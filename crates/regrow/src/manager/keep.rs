//! What to keep: a pure function of the steps that are there and a policy, to the steps that may go.
//!
//! Whatever the policy says, these stay:
//!  - the newest step that is not known to be damaged: the last good one;
//!  - all steps, where every one of them is known to be damaged;
//!  - steps with a lease: somebody reads them.
//!
//! What is left is left again: a second look at it removes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Which steps are kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// All.
    #[default]
    All,
    /// So many, the newest.
    Latest(usize),
    /// The best by a metric.
    Best(Best),
    /// Steps that this divides.
    EverySteps(u64),
    /// Of the steps around each multiple of this, the one that is nearest; the newest of equals.
    ClosestSteps(u64),
    /// The first step, and each that was saved at least so many seconds after the last one that is kept.
    EverySeconds(f64),
    /// Steps that were saved in so many seconds before the newest.
    LatestSeconds(f64),
    /// These.
    Steps(BTreeSet<u64>),
    /// What the caller's function says.
    #[serde(skip)]
    If(KeepIf),
    /// What one of these keeps; nothing if there are none.
    Any(Vec<Keep>),
}

/// The best steps by a metric.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Its name; of metrics in objects, the names down to it with slashes between them.
    pub metric: String,
    /// Which value is best.
    pub mode: BestMode,
    /// How many are kept.
    #[serde(default = "one")]
    pub count: usize,
    /// Whether steps are kept that do not have it.
    #[serde(default = "yes")]
    pub without_metric: bool,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

/// Which value of a metric is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BestMode {
    /// The least.
    Min,
    /// The greatest.
    Max,
}

/// A function of the caller.
#[derive(Clone)]
pub struct KeepIf(Arc<dyn Fn(&StepFacts) -> bool + Send + Sync>);

impl KeepIf {
    /// This one.
    pub fn new(keeps: impl Fn(&StepFacts) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(keeps))
    }
}

impl fmt::Debug for KeepIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepIf")
    }
}

/// What a policy looks at.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepFacts {
    /// Its number.
    pub number: u64,
    /// When it was saved, in seconds since 1970.
    pub seconds: Option<f64>,
    /// Its metrics.
    pub metrics: Map<String, Value>,
    /// Whether somebody reads it.
    pub is_leased: bool,
    /// Whether it is known to be damaged.
    pub is_damaged: bool,
}

impl StepFacts {
    /// A metric, by its name, or by the names down to it with slashes between them. What is no number, or not a number, is
    /// none.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let found = self.metrics.get(name).or_else(|| {
            let mut names = name.split('/');
            let first = self.metrics.get(names.next()?)?;
            names.try_fold(first, |value, name| value.get(name))
        });
        found.and_then(Value::as_f64).filter(|value| !value.is_nan())
    }
}

/// The steps that may go, in their order. `steps` need not be sorted.
pub fn to_delete(steps: &[StepFacts], keep: &Keep) -> Vec<u64> {
    let mut steps: Vec<&StepFacts> = steps.iter().collect();
    steps.sort_by_key(|step| step.number);
    let Some(last_good) = steps.iter().rev().find(|step| !step.is_damaged) else { return Vec::new() };
    let kept = keep.kept(&steps);
    steps
        .iter()
        .filter(|step| !kept.contains(&step.number) && !step.is_leased && step.number != last_good.number)
        .map(|step| step.number)
        .collect()
}

/// The best of the steps by a metric; the newest of equals. `None` if none has it.
pub fn best<'a>(
    steps: impl IntoIterator<Item = &'a StepFacts>,
    metric: &str,
    mode: BestMode,
) -> Option<&'a StepFacts> {
    let mut ranked: Vec<&StepFacts> = steps.into_iter().collect();
    rank(&mut ranked, metric, mode);
    ranked.first().copied()
}

/// Leaves those that have the metric, the best first, the newest of equals.
fn rank(steps: &mut Vec<&StepFacts>, metric: &str, mode: BestMode) {
    steps.retain(|step| step.metric(metric).is_some());
    steps.sort_by(|a, b| {
        let value = |step: &StepFacts| step.metric(metric).unwrap_or_default();
        let by_value = match mode {
            BestMode::Min => value(a).total_cmp(&value(b)),
            BestMode::Max => value(b).total_cmp(&value(a)),
        };
        by_value.then(b.number.cmp(&a.number))
    });
}

/// Which multiple of an interval a step is nearest to, and how far it is from that. In the middle the even one counts, as
/// for Orbax' `EveryNStepsClosest`.
fn nearest_multiple(step: u64, interval: u64) -> (u64, u64) {
    let (below, rest) = (step / interval, step % interval);
    let to_next = interval - rest;
    let is_below = rest < to_next || rest == to_next && below.is_multiple_of(2);
    if is_below { (below, rest) } else { (below + 1, to_next) }
}

impl Keep {
    /// The numbers of the steps, sorted by number, that the policy itself keeps.
    fn kept(&self, steps: &[&StepFacts]) -> BTreeSet<u64> {
        let those = |keeps: &dyn Fn(&StepFacts) -> bool| {
            steps.iter().filter(|step| keeps(step)).map(|step| step.number).collect()
        };
        match self {
            Self::All => those(&|_| true),
            Self::Latest(count) => steps.iter().rev().take(*count).map(|step| step.number).collect(),
            Self::Best(best) => {
                let mut ranked = steps.to_vec();
                rank(&mut ranked, &best.metric, best.mode);
                let mut kept: BTreeSet<u64> =
                    ranked.iter().take(best.count).map(|step| step.number).collect();
                if best.without_metric {
                    kept.extend(those(&|step| step.metric(&best.metric).is_none()));
                }
                kept
            }
            Self::EverySteps(interval) => those(&|step| step.number.is_multiple_of(*interval)),
            Self::ClosestSteps(interval) => {
                // The steps are sorted: of equals the last one stays in the map.
                let mut nearest: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
                for step in steps {
                    let (multiple, distance) = nearest_multiple(step.number, *interval);
                    let found = nearest.entry(multiple).or_insert((distance, step.number));
                    if distance <= found.0 {
                        *found = (distance, step.number);
                    }
                }
                nearest.into_values().map(|(_, number)| number).collect()
            }
            Self::EverySeconds(interval) => {
                let mut last: Option<f64> = None;
                let mut keeps = |step: &StepFacts| {
                    // When it was saved nobody knows: it stays.
                    let Some(seconds) = step.seconds else { return true };
                    let is_due = last.is_none_or(|last| seconds - last >= *interval);
                    if is_due {
                        last = Some(seconds);
                    }
                    is_due
                };
                steps.iter().filter(|step| keeps(step)).map(|step| step.number).collect()
            }
            Self::LatestSeconds(duration) => {
                let newest = steps.iter().filter_map(|step| step.seconds).fold(f64::NEG_INFINITY, f64::max);
                those(&|step| step.seconds.is_none_or(|seconds| newest - seconds <= *duration))
            }
            Self::Steps(set) => those(&|step| set.contains(&step.number)),
            Self::If(keeps) => those(&|step| (keeps.0)(step)),
            Self::Any(any) => any.iter().flat_map(|keep| keep.kept(steps)).collect(),
        }
    }

    /// Errs for a policy that makes no sense.
    ///
    /// # Errors
    /// `InvalidArgument` for a count or an interval of 0, a time that is none, a metric without a name.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Latest(0) => Err(Error::invalid("none of the latest steps would be kept")
                .expected("a number of at least 1", 0)
                .help("to keep all, set no number")),
            Self::Best(best) if best.metric.is_empty() => {
                Err(Error::invalid("the best step is chosen by a metric, and none is named")
                    .help("name it with the mode: \"eval/loss:min\""))
            }
            Self::Best(best) if best.count == 0 => {
                Err(Error::invalid("none of the best steps would be kept")
                    .expected("a number of at least 1", 0))
            }
            Self::EverySteps(0) | Self::ClosestSteps(0) => {
                Err(Error::invalid("steps cannot be kept every 0 steps")
                    .expected("an interval of at least 1", 0))
            }
            Self::EverySeconds(seconds) | Self::LatestSeconds(seconds)
                if !(seconds.is_finite() && *seconds >= 0.0) =>
            {
                Err(Error::invalid("this is no time").expected("seconds, 0 or more", seconds))
            }
            Self::Any(any) => any.iter().try_for_each(Self::check),
            _ => Ok(()),
        }
    }

    /// The policy that a JSON document says.
    ///
    /// # Errors
    /// `InvalidArgument` if it says none, or one that makes no sense.
    pub fn from_json(text: &str) -> Result<Self> {
        let keep: Self = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("this does not say what to keep: {error}")))?;
        keep.check()?;
        Ok(keep)
    }
}

#[cfg(test)]
mod tests;
