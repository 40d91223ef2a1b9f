//! Converting: the options in, a plan or a report out.

use pyo3::prelude::*;
use regrow::engine::{ConvertOptions, PlannedLeaf, Rename};
use regrow::formats::Loss;
use regrow::location::ToLocation;
use regrow::tree::{LeafInfo, PathPattern};
use regrow::{OpenOptions, Result};

use crate::checkpoint::{SaveOut, save_report};
use crate::error::{OrRaise, released};
use crate::location::LocationIn;
use crate::options::{SaveIn, save_options};
use crate::watch::{WatchIn, watched};

/// Step, item, whether to open strictly, whether bare, selection, renames, transposes, reshapes, whether it may lose
/// something.
pub type ConvertIn = (
    Option<u64>,
    Option<String>,
    bool,
    bool,
    Vec<String>,
    Vec<(String, String)>,
    Vec<(String, Vec<usize>)>,
    Vec<(String, Vec<i64>)>,
    bool,
);

/// Kind, key path, what becomes of it.
type LossOut = (&'static str, String, String);

/// Kind, dtype, shape.
type InfoOut = (&'static str, &'static str, Vec<u64>);

/// Path in the source, path in the target, what it is, what it becomes.
type PlannedOut = (String, Option<String>, InfoOut, InfoOut);

/// Works out what a conversion would do, raises what it would raise, and writes nothing.
#[pyfunction]
pub fn plan_convert(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    save: SaveIn,
    convert: ConvertIn,
) -> PyResult<(Vec<PlannedOut>, Vec<LossOut>)> {
    let options = convert_options(save, convert).or_raise()?;
    let plan = released(py, || {
        let plan = regrow::open_with(source, &options.open)?.plan_convert(&options)?;
        plan.check(target, &options).map(|()| plan)
    })?;
    Ok((plan.leaves.iter().map(planned).collect(), plan.losses.iter().map(loss).collect()))
}

/// Converts; gives the report of the save, and losses.
#[pyfunction]
pub fn convert(
    py: Python<'_>,
    source: LocationIn,
    target: LocationIn,
    save: SaveIn,
    convert: ConvertIn,
    watch: WatchIn,
) -> PyResult<(SaveOut, Vec<LossOut>)> {
    let mut options = convert_options(save, convert).or_raise()?;
    // How much there is to convert shows only when it is open: it may be long.
    let report = watched(py, watch, u64::MAX, |monitor| {
        options.save.monitor = monitor;
        regrow::convert(source.to_location()?, target.to_location()?, &options)
    })?;
    let losses = report.losses.iter().map(loss).collect();
    Ok((save_report(report.save), losses))
}

fn convert_options(save: SaveIn, convert: ConvertIn) -> Result<ConvertOptions> {
    let (step, item, strict, bare, only, rename, transpose, reshape, lossy) = convert;
    fn rules<T>(rules: Vec<(String, T)>) -> Result<Vec<(PathPattern, T)>> {
        rules.into_iter().map(|(pattern, value)| Ok((PathPattern::new(&pattern)?, value))).collect()
    }
    Ok(ConvertOptions {
        open: OpenOptions { step, item, strict, bare, ..OpenOptions::default() },
        save: save_options(save)?,
        only: only.iter().map(|text| PathPattern::new(text)).collect::<Result<_>>()?,
        rename: rename.iter().map(|(from, to)| Rename::new(from, to)).collect::<Result<_>>()?,
        transpose: rules(transpose)?,
        reshape: rules(reshape)?,
        lossy,
    })
}

fn planned(leaf: &PlannedLeaf) -> PlannedOut {
    let to = leaf.to.as_ref().map(ToString::to_string);
    (leaf.from.to_string(), to, info(&leaf.source), info(&leaf.target))
}

fn info(info: &LeafInfo) -> InfoOut {
    (info.kind.name(), info.dtype.name(), info.shape.dims().to_vec())
}

fn loss(loss: &Loss) -> LossOut {
    (loss.kind.name(), loss.path.to_string(), loss.what.clone())
}
