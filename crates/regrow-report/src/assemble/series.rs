//! A folder of steps over time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use regrow::array::DtypeClass;
use regrow::engine::StatisticsReport;
use regrow::manager::{Step, Steps};
use regrow::tree::KeyPath;
use regrow::{Checkpoint, Error, ErrorKind, OpenOptions, Result};
use regrow_base::text::counted;
use serde_json::{Map, Value};

use super::ReportOptions;
use crate::model::steps::{NormSeries, StepPoint, StepSeries};

/// The most steps of a folder whose data is read: evenly spread, including the first and the last.
/// For other steps the report has only sizes, times and metrics.
pub const STEPS_READ_MAX: usize = 20;

/// The most parts of the pytree whose norms are shown: the first ones in flatten order.
const NORMS_MAX: usize = 20;

/// The sum of squared elements for each part of the pytree, by name.
type Squares = Vec<(String, f64)>;

/// The data of all steps of the folder from which a checkpoint was opened; `None` if the checkpoint
/// is not a step.
///
/// # Errors
/// `Cancelled`. A step that cannot be read counts as damaged, or has a note with the reason.
pub(super) fn series(
    checkpoint: &Checkpoint,
    read: Option<&StatisticsReport>,
    options: &ReportOptions,
) -> Result<Option<StepSeries>> {
    let about = checkpoint.description();
    let Some(opened) = about.step else { return Ok(None) };
    let folder = Steps::new(checkpoint.location(), None).ok();
    let list = folder.as_ref().and_then(|folder| folder.list().ok()).unwrap_or_default();
    let listed: HashMap<u64, &Step> = list.steps.iter().map(|step| (step.number, step)).collect();
    let mut found = StepSeries::default();
    let mut norms: Vec<Squares> = Vec::new();
    let chosen = chosen(about.steps.len());
    for (at, &number) in about.steps.iter().enumerate() {
        let mut point = StepPoint { step: number, ..StepPoint::default() };
        if let Some(step) = listed.get(&number) {
            point.written_seconds = step.seconds;
            point.save_seconds = step.save_seconds;
            let stock = folder.as_ref().and_then(|folder| folder.stock(step).ok().flatten());
            point.stored_bytes = stock.map(|stock| stock.bytes);
            add_metrics("", &step.metrics, &mut point.metrics);
        }
        let squares = match read {
            Some(read) if number == opened => {
                judge(&mut point, read);
                squares(checkpoint, read)
            }
            Some(_) if chosen.contains(&at) => read_step(checkpoint, &mut point, options)?,
            _ => Squares::new(),
        };
        found.steps.push(point);
        norms.push(squares);
    }
    found.norms = norm_series(&norms);
    Ok(Some(found))
}

/// The steps whose data is read, by their positions among `count` steps.
fn chosen(count: usize) -> BTreeSet<usize> {
    let last = count.saturating_sub(1);
    (0..STEPS_READ_MAX).map(|mark| mark * last / (STEPS_READ_MAX - 1)).collect()
}

fn read_step(checkpoint: &Checkpoint, point: &mut StepPoint, options: &ReportOptions) -> Result<Squares> {
    let open = OpenOptions { step: Some(point.step), ..options.open.clone() };
    let opened = regrow::open_with(checkpoint.location(), &open);
    let statistics = opened.and_then(|opened| {
        let read = opened.statistics(&options.statistics(0))?;
        Ok((opened, read))
    });
    match statistics {
        Ok((opened, read)) => {
            judge(point, &read);
            Ok(squares(&opened, &read))
        }
        Err(error) if error.kind() == ErrorKind::Cancelled => Err(error),
        Err(error) => {
            if error.kind() == ErrorKind::Corrupt {
                point.is_damaged = Some(true);
            }
            point.note = said(&error);
            Ok(Squares::new())
        }
    }
}

fn judge(point: &mut StepPoint, read: &StatisticsReport) {
    point.is_damaged = Some(!read.findings.is_empty());
    if let Some(first) = read.findings.first() {
        let more = read.findings.len() - 1;
        point.note = said(&first.error);
        if more > 0 {
            point.note += &format!("; and {}", counted(more, "other finding", "other findings"));
        }
    }
}

fn said(error: &Error) -> String {
    match &error.place().leaf {
        Some(leaf) => format!("{leaf}: {}", error.what()),
        None => error.what().to_owned(),
    }
}

/// Sums of squares by the first key of the path, or by the first two keys if all leaves share the
/// first. Only floats and complex numbers count, because only these are learnt.
fn squares(checkpoint: &Checkpoint, read: &StatisticsReport) -> Squares {
    let has_one_top = checkpoint.tree().nodes().first().is_some_and(|root| root.child_count == 1);
    let depth = if has_one_top { 2 } else { 1 };
    let mut squares = Squares::new();
    for ((path, info), leaf) in checkpoint.tree().iter().zip(&read.leaves) {
        let is_learnt = matches!(info.dtype.class(), DtypeClass::Float | DtypeClass::Complex);
        let Some(stats) = leaf.stats.as_ref().filter(|stats| is_learnt && stats.count() > 0) else {
            continue;
        };
        let Some(norm) = stats.l2_norm() else { continue };
        // If only a sample was read, estimate the sum for the whole array.
        let own = norm * norm * (info.shape.len_elements() as f64 / stats.count() as f64);
        let name = KeyPath::from_iter(path.keys().iter().take(depth).cloned()).to_string();
        match squares.last_mut() {
            // In flatten order, leaves below the same key are neighbours.
            Some((known, sum)) if *known == name => *sum += own,
            _ => squares.push((name, own)),
        }
    }
    squares
}

fn norm_series(steps: &[Squares]) -> Vec<NormSeries> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in steps.iter().flatten() {
        if names.len() < NORMS_MAX && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let of = |name: &str| {
        let norm = |squares: &Squares| {
            let own = squares.iter().find(|(known, _)| known == name);
            own.map(|(_, sum)| sum.sqrt()).filter(|norm| norm.is_finite())
        };
        NormSeries { name: name.to_owned(), l2_norm: steps.iter().map(norm).collect() }
    };
    names.into_iter().map(of).collect()
}

/// Adds the metrics that are numbers. Names of nested objects are joined by slashes.
fn add_metrics(before: &str, metrics: &Map<String, Value>, found: &mut BTreeMap<String, f64>) {
    for (name, value) in metrics {
        match value {
            Value::Object(inner) => add_metrics(&format!("{before}{name}/"), inner, found),
            value => {
                if let Some(number) = value.as_f64() {
                    found.insert(format!("{before}{name}"), number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_steps_some_are_read_evenly() {
        for count in [0, 1, 2, 6, 19, 20, 21, 26, 100, 1001, 12_346] {
            let chosen: Vec<usize> = chosen(count).into_iter().collect();
            assert_eq!(chosen.len(), count.clamp(1, STEPS_READ_MAX), "{count}: {chosen:?}");
            assert!(chosen.contains(&0) && chosen.contains(&count.saturating_sub(1)), "{count}: {chosen:?}");
            let gaps = || chosen.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps().max() <= gaps().min().map(|least| least + 1), "{count}: {chosen:?}");
        }
    }
}
