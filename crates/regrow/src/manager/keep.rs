//! Retention: a pure function from the existing steps and a policy to the steps to delete.
//!
//! The policy ranks the undamaged steps of the current history, if this run saved them; with
//! `adopt`, also those of other programs. All other steps do not count, and are not deleted. The
//! policy also never deletes:
//! - the newest ranked step;
//! - steps with a lease, which have a reader;
//! - steps without the metric, if the policy uses a metric.
//!
//! A second call with the same policy deletes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::formats::container::json_text;

/// A policy that decides which steps to keep.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// All steps.
    #[default]
    All,
    /// This many of the newest steps.
    Latest(usize),
    /// The best steps by a metric.
    Best(Best),
    /// Steps whose number is a multiple of this.
    EverySteps(u64),
    /// For each multiple of this number, the nearest step. If two are equally near, the newer one.
    ClosestSteps(u64),
    /// The first step, and then each step that was saved at least this many seconds after the last
    /// kept step.
    EverySeconds(f64),
    /// Steps that were saved in this many seconds before the newest step.
    LatestSeconds(f64),
    /// Exactly these steps.
    Steps(BTreeSet<u64>),
    /// The choice of the caller's function.
    #[serde(skip)]
    If(KeepIf),
    /// Every step that one of these policies keeps; no step if the list is empty.
    Any(Vec<Keep>),
}

/// A policy that keeps the best steps by a metric.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The name of the metric. For metrics in nested objects: their names, with slashes in between.
    pub metric: String,
    /// Whether the lowest or the highest value is best.
    pub mode: BestMode,
    /// The number of steps to keep. Steps without the metric are kept too.
    #[serde(default = "one")]
    pub count: usize,
}

fn one() -> usize {
    1
}

/// Whether the lowest or the highest value of a metric is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BestMode {
    /// The lowest value is best.
    Min,
    /// The highest value is best.
    Max,
}

/// A function of the caller that decides whether a step is kept.
#[derive(Clone)]
pub struct KeepIf(Arc<dyn Fn(&StepFacts) -> bool + Send + Sync>);

impl KeepIf {
    /// Wraps `keeps`, which returns true for a step to keep.
    pub fn new(keeps: impl Fn(&StepFacts) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(keeps))
    }
}

impl fmt::Debug for KeepIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepIf")
    }
}

/// The facts about a step from which a policy decides.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepFacts {
    /// The number of the step.
    pub number: u64,
    /// The time of the save, in seconds since 1970; `None` if unknown.
    pub seconds: Option<f64>,
    /// The metrics of the step.
    pub metrics: Map<String, Value>,
    /// Whether the step has a reader.
    pub is_leased: bool,
    /// Whether the step is known to be damaged.
    pub is_damaged: bool,
    /// Whether the step does not count: it belongs to an abandoned history, or another program
    /// saved the step and the run does not adopt such steps.
    pub is_other: bool,
}

impl StepFacts {
    /// A metric by its name, or by the names of nested objects with slashes in between. `None` if
    /// the metric is missing, is not a number, or is NaN.
    pub fn metric(&self, name: &str) -> Option<f64> {
        find(&self.metrics, name).and_then(number).filter(|value| !value.is_nan())
    }

    fn is_ranked(&self) -> bool {
        !self.is_damaged && !self.is_other
    }
}

fn find<'a>(metrics: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    metrics.get(name).or_else(|| {
        let mut names = name.split('/');
        let first = metrics.get(names.next()?)?;
        names.try_fold(first, |value, name| value.get(name))
    })
}

/// A JSON value as a number. JSON has no NaN, so Rust programs may write `NaN` and infinities as
/// text.
fn number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        _ => json_text::number(value),
    }
}

/// The names of all metrics that are numbers. Names in nested objects are joined by slashes.
fn names_of(metrics: &Map<String, Value>) -> Vec<String> {
    let below = |(name, value): (&String, &Value)| match value {
        Value::Object(inner) => names_of(inner).into_iter().map(|below| format!("{name}/{below}")).collect(),
        value => number(value).map(|_| name.clone()).into_iter().collect::<Vec<_>>(),
    };
    metrics.iter().flat_map(below).collect()
}

/// The numbers of the steps to delete, in order. `steps` need not be sorted.
pub fn to_delete(steps: &[StepFacts], keep: &Keep) -> Vec<u64> {
    let mut ranked: Vec<&StepFacts> = steps.iter().filter(|step| step.is_ranked()).collect();
    ranked.sort_by_key(|step| step.number);
    let Some(newest) = ranked.last().map(|step| step.number) else { return Vec::new() };
    let kept = keep.kept(&ranked);
    let goes = |step: &&&StepFacts| !kept.contains(&step.number) && !step.is_leased && step.number != newest;
    ranked.iter().filter(goes).map(|step| step.number).collect()
}

/// The best of the ranked steps by a metric; the newest if several are equal. `None` if no step has
/// the metric.
pub fn best<'a>(
    steps: impl IntoIterator<Item = &'a StepFacts>,
    metric: &str,
    mode: BestMode,
) -> Option<&'a StepFacts> {
    let mut ranked: Vec<&StepFacts> = steps.into_iter().filter(|step| step.is_ranked()).collect();
    rank(&mut ranked, metric, mode);
    ranked.first().copied()
}

/// Removes steps without the metric, and sorts the others by it, the best first. Of equal steps the
/// newest comes first.
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

/// Returns an error if the metric is missing or not a number.
///
/// # Errors
/// `InvalidArgument`, with the names of the existing metrics.
pub fn check_metric(metric: &str, metrics: &Map<String, Value>) -> Result<()> {
    if find(metrics, metric).and_then(number).is_some() {
        return Ok(());
    }
    let given = names_of(metrics);
    let found = match given.is_empty() {
        true => "no metrics".to_owned(),
        false => given.join(", "),
    };
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let away = |name: &String| distance(name, metric).min(distance(&last(name), &last(metric)));
    let near = given.iter().map(|name| (away(name), name)).min();
    let near = near.filter(|(away, _)| *away <= metric.chars().count() / 4);
    let meant = near.map(|(_, name)| format!("did you mean {name:?}? ")).unwrap_or_default();
    Err(Error::invalid(format!("the step has no metric {metric:?}, which chooses the best steps"))
        .expected(format_args!("a number named {metric:?}"), found)
        .help(format!(
            "{meant}give the metric; for a step without a measurement give NaN, then the step is always \
             kept"
        )))
}

/// The number of letters to insert, delete or replace to turn one name into the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
}

/// The multiple of an interval that is nearest to a step, and the distance. If two are equally
/// near, the even multiple counts, as in Orbax' `EveryNStepsClosest`.
fn nearest_multiple(step: u64, interval: u64) -> (u64, u64) {
    let (below, rest) = (step / interval, step % interval);
    let to_next = interval - rest;
    let is_below = rest < to_next || rest == to_next && below.is_multiple_of(2);
    if is_below { (below, rest) } else { (below + 1, to_next) }
}

impl Keep {
    /// The numbers of the steps that the policy itself keeps. `steps` must be sorted by number.
    fn kept(&self, steps: &[&StepFacts]) -> BTreeSet<u64> {
        let those = |keeps: &dyn Fn(&StepFacts) -> bool| -> BTreeSet<u64> {
            steps.iter().filter(|step| keeps(step)).map(|step| step.number).collect()
        };
        match self {
            Self::All => those(&|_| true),
            Self::Latest(count) => steps.iter().rev().take(*count).map(|step| step.number).collect(),
            Self::Best(best) => {
                let mut ranked = steps.to_vec();
                rank(&mut ranked, &best.metric, best.mode);
                let best_ones = ranked.iter().take(best.count).map(|step| step.number);
                best_ones.chain(those(&|step| step.metric(&best.metric).is_none())).collect()
            }
            Self::EverySteps(interval) => those(&|step| step.number.is_multiple_of(*interval)),
            Self::ClosestSteps(interval) => {
                // The steps are sorted, so the last of equal steps stays in the map.
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
                    // Keep a step if the time of its save is unknown.
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

    /// Returns an error if the policy could not rank a step with these metrics. NaN is allowed: it
    /// means that the step was not measured.
    ///
    /// # Errors
    /// `InvalidArgument`, with the names of the existing metrics.
    #[doc(hidden)]
    pub fn check_metrics(&self, metrics: &Map<String, Value>) -> Result<()> {
        match self {
            Self::Best(best) => check_metric(&best.metric, metrics),
            Self::Any(any) => any.iter().try_for_each(|keep| keep.check_metrics(metrics)),
            _ => Ok(()),
        }
    }

    /// Returns an error if the policy is not valid.
    ///
    /// # Errors
    /// `InvalidArgument` for a count or an interval of 0, a time that is not valid, a metric
    /// without a name.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Latest(0) => Err(Error::invalid("0 latest steps cannot be kept")
                .expected("a number of at least 1", 0)
                .help("leave the number out to keep all steps")),
            Self::Best(best) if best.metric.is_empty() => Err(Error::invalid("the best steps need a metric")
                .help("give it with its mode: \"eval/loss:min\"")),
            Self::Best(best) if best.count == 0 => {
                Err(Error::invalid("0 best steps cannot be kept").expected("a number of at least 1", 0))
            }
            Self::EverySteps(0) | Self::ClosestSteps(0) => {
                Err(Error::invalid("steps cannot be kept every 0 steps")
                    .expected("an interval of at least 1", 0))
            }
            Self::EverySeconds(seconds) | Self::LatestSeconds(seconds)
                if !(seconds.is_finite() && *seconds >= 0.0) =>
            {
                Err(Error::invalid("this is not a time").expected("seconds, 0 or more", seconds))
            }
            Self::Any(any) => any.iter().try_for_each(Self::check),
            _ => Ok(()),
        }
    }

    /// Reads a policy from a JSON document.
    ///
    /// # Errors
    /// `InvalidArgument` if the document is not a policy, or the policy is not valid.
    pub fn from_json(text: &str) -> Result<Self> {
        let keep: Self = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("the rule of what to keep is not valid: {error}")))?;
        keep.check()?;
        Ok(keep)
    }
}

#[cfg(test)]
mod tests;
