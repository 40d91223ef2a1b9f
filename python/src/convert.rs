//! Plans and runs conversions. Several processes can each convert a share of the leaves.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use regrow::engine::{self, ConvertOptions, ConvertRules, ConvertShare, ConvertedShare, PlannedLeaf, Rename};
use regrow::location::ToLocation;
use regrow::tree::{LeafInfo, PathPattern};
use regrow::{Error, Monitor, OpenOptions, Result};

use crate::checkpoint::{FindingOut, LossOut, SaveOut, finding_out, loss_out, lost_files, save_report};
use crate::error::{OrRaise, released};
use crate::location::LocationIn;
use crate::options::{SaveIn, save_options};
use crate::watch::{WatchIn, cancellable, watched};

/// What a conversion opens, and its rules: `ConvertRequest` of `regrow/_core/_requests.py`.
#[derive(FromPyObject)]
pub struct ConvertIn {
    step: Option<u64>,
    item: Option<String>,
    lost_is_error: bool,
    arrays_only: bool,
    only: Vec<String>,
    rename: Vec<(String, String)>,
    transpose: Vec<(String, Vec<usize>)>,
    reshape: Vec<(String, Vec<i64>)>,
    nest: Option<String>,
    lossy: bool,
    salvage: bool,
}

/// Metadata of a leaf: its kind, dtype and shape.
type InfoOut = (&'static str, &'static str, Vec<u64>);

/// A planned leaf: path in the source, path in the target, the stored leaf, the converted leaf.
type PlannedOut = (String, Option<String>, InfoOut, InfoOut);

/// A file of rules: the layout, its options as JSON, the selection, renames, casts, transposes,
/// reshapes, and whether losses are allowed.
type RulesOut = (
    Option<String>,
    String,
    Vec<String>,
    Vec<(String, String)>,
    Vec<(String, String)>,
    Vec<(String, Vec<usize>)>,
    Vec<(String, Vec<i64>)>,
    bool,
);

/// Reads a file of rules.
#[pyfunction]
pub fn convert_rules(py: Python<'_>, file: LocationIn) -> PyResult<RulesOut> {
    let rules = released(py, || ConvertRules::read(file))?;
    Ok((
        rules.layout,
        serde_json::Value::Object(rules.options).to_string(),
        rules.only,
        rules.rename.into_iter().map(|rule| (rule.from, rule.to)).collect(),
        rules.cast.into_iter().map(|rule| (rule.leaves, rule.dtype)).collect(),
        rules.transpose.into_iter().map(|rule| (rule.leaves, rule.axes)).collect(),
        rules.reshape.into_iter().map(|rule| (rule.leaves, rule.shape)).collect(),
        rules.lossy,
    ))
}

/// A plan: its leaves, losses and damage.
type PlanOut = (Vec<PlannedOut>, Vec<LossOut>, Vec<FindingOut>);

/// A conversion report: the report of the save, losses and damage.
type ReportOut = (SaveOut, Vec<LossOut>, Vec<FindingOut>);

/// One value for each step if all steps are converted; otherwise a single value.
type OfSteps<T> = Vec<(Option<u64>, T)>;

fn of_steps<T>(each: Vec<(u64, T)>) -> OfSteps<T> {
    each.into_iter().map(|(step, each)| (Some(step), each)).collect()
}

/// Plans a conversion: raises its errors, and writes nothing. Returns leaves, losses and damage.
#[pyfunction]
pub fn plan_convert(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    save: SaveIn,
    convert: ConvertIn,
    all_steps: bool,
) -> PyResult<OfSteps<PlanOut>> {
    let options = convert_options(save, convert).or_raise()?;
    let plans = released(py, || {
        if all_steps {
            return engine::plan_convert_steps(source, target, &options).map(of_steps);
        }
        let plan = engine::plan_convert(source, &options)?;
        plan.check(target, &options).map(|()| vec![(None, plan)])
    })?;
    let plan_out = |(step, plan): (Option<u64>, engine::ConvertPlan)| {
        let damage = plan.damage.iter().map(finding_out).collect();
        (
            step,
            (plan.leaves.iter().map(planned).collect(), plan.losses.iter().map(loss_out).collect(), damage),
        )
    };
    Ok(plans.into_iter().map(plan_out).collect())
}

/// Converts. Returns the report of the save, losses and damage.
#[pyfunction]
pub fn convert(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    save: SaveIn,
    convert: ConvertIn,
    all_steps: bool,
    watch: WatchIn,
) -> PyResult<OfSteps<ReportOut>> {
    let mut options = convert_options(save, convert).or_raise()?;
    // The size is unknown until the source is open, so watch as if the work were long.
    let reports = watched(py, watch, u64::MAX, |monitor| {
        options.save.monitor = monitor;
        let (source, target) = (source.to_location()?, target.to_location()?);
        match all_steps {
            true => engine::convert_steps(source, target, &options).map(of_steps),
            false => regrow::convert(source, target, &options).map(|report| vec![(None, report)]),
        }
    })?;
    let report_out = |(step, report): (Option<u64>, engine::ConvertReport)| {
        let losses = report.losses.iter().map(loss_out).collect();
        let damage = report.damage.iter().map(finding_out).collect();
        (step, (save_report(report.save), losses, damage))
    };
    Ok(reports.into_iter().map(report_out).collect())
}

/// A share: the ticket, the number of the share, and the number of shares.
type ShareIn = (String, u32, u32);

/// A written share: the writer's number, stored bytes, reused bytes, changed leaves.
type ShareOut = (u32, u64, u64, Vec<u32>);

/// A conversion by several processes that this process has begun.
#[pyclass(frozen, module = "regrow._native")]
pub struct SharedConvert {
    begun: Mutex<Option<engine::SharedConvert>>,
    monitor: Monitor,
}

#[pymethods]
impl SharedConvert {
    #[new]
    fn new(
        py: Python<'_>,
        source: LocationIn,
        target: LocationIn,
        save: SaveIn,
        convert: ConvertIn,
        gets_signals: bool,
    ) -> PyResult<Self> {
        let options = convert_options(save, convert).or_raise()?;
        let monitor = options.save.monitor.clone();
        let begin = || engine::SharedConvert::begin(source.to_location()?, target.to_location()?, &options);
        let begun = cancellable(py, gets_signals, &monitor, begin)?;
        Ok(Self { begun: Mutex::new(Some(begun)), monitor })
    }

    /// The ticket for workers, the opened step, and the bytes of each of `count` shares.
    fn about(&self, count: u32) -> PyResult<(String, Option<u64>, Vec<u64>)> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = begun.as_ref().ok_or_else(ended).or_raise()?;
        Ok((begun.ticket().to_owned(), begun.step(), begun.share_len_bytes(count)))
    }

    /// Merges the shares, and commits the checkpoint.
    fn finish(
        &self,
        py: Python<'_>,
        shares: Vec<ShareOut>,
        gets_signals: bool,
    ) -> PyResult<(SaveOut, Vec<LossOut>)> {
        let begun = self.taken().ok_or_else(ended).or_raise()?;
        let share = |(writer, stored_bytes, reused_bytes, changed_leaves)| ConvertedShare {
            writer,
            stored_bytes,
            reused_bytes,
            changed_leaves,
        };
        let shares: Vec<ConvertedShare> = shares.into_iter().map(share).collect();
        let report = cancellable(py, gets_signals, &self.monitor, || begun.finish(&shares))?;
        let losses = report.losses.iter().map(loss_out).collect();
        Ok((save_report(report.save), losses))
    }

    /// Removes the written files, unless the conversion is finished.
    fn give_up(&self, py: Python<'_>) {
        let begun = self.taken();
        py.detach(|| drop(begun));
    }
}

impl SharedConvert {
    fn taken(&self) -> Option<engine::SharedConvert> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn ended() -> Error {
    Error::invalid("this conversion has ended")
}

/// Writes one share of a conversion that another process has begun.
#[pyfunction]
pub fn convert_share(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    save: SaveIn,
    convert: ConvertIn,
    share: ShareIn,
    watch: WatchIn,
) -> PyResult<ShareOut> {
    let mut options = convert_options(save, convert).or_raise()?;
    let (ticket, share, count) = share;
    let written = watched(py, watch, u64::MAX, |monitor| {
        options.save.monitor = monitor;
        let share = ConvertShare { ticket: &ticket, share, count };
        engine::convert_share(source.to_location()?, target.to_location()?, &options, &share)
    })?;
    Ok((written.writer, written.stored_bytes, written.reused_bytes, written.changed_leaves))
}

fn convert_options(save: SaveIn, convert: ConvertIn) -> Result<ConvertOptions> {
    let ConvertIn { step, item, lost_is_error, arrays_only, .. } = convert;
    Ok(ConvertOptions {
        open: OpenOptions {
            step,
            item,
            lost_files: lost_files(lost_is_error),
            arrays_only,
            ..OpenOptions::default()
        },
        save: save_options(save)?,
        only: convert.only.iter().map(|text| PathPattern::new(text)).collect::<Result<_>>()?,
        nest: convert.nest,
        lossy: convert.lossy,
        salvage: convert.salvage,
        ..transform_rules(convert.rename, convert.transpose, convert.reshape)?
    })
}

pub fn transform_rules(
    rename: Vec<(String, String)>,
    transpose: Vec<(String, Vec<usize>)>,
    reshape: Vec<(String, Vec<i64>)>,
) -> Result<ConvertOptions> {
    fn rules<T>(rules: Vec<(String, T)>) -> Result<Vec<(PathPattern, T)>> {
        rules.into_iter().map(|(pattern, value)| Ok((PathPattern::new(&pattern)?, value))).collect()
    }
    Ok(ConvertOptions {
        rename: rename.iter().map(|(from, to)| Rename::new(from, to)).collect::<Result<_>>()?,
        transpose: rules(transpose)?,
        reshape: rules(reshape)?,
        ..ConvertOptions::default()
    })
}

fn planned(leaf: &PlannedLeaf) -> PlannedOut {
    let to = leaf.to.as_ref().map(ToString::to_string);
    (leaf.from.to_string(), to, info(&leaf.source), info(&leaf.target))
}

fn info(info: &LeafInfo) -> InfoOut {
    (info.kind.name(), info.dtype.name(), info.shape.dims().to_vec())
}
