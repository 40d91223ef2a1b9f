//! Converting: the options in, a plan or a report out.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use regrow::engine::{ConvertOptions, PlannedLeaf, Progress, ProgressHook, Rename};
use regrow::formats::Loss;
use regrow::tree::{LeafInfo, PathPattern};
use regrow::{Error, ErrorKind, OpenOptions, Result};

use crate::error::OrRaise;
use crate::options::{SaveIn, save_options};

/// The callback is told at most this often, and at the end.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Step, item, selection, renames, transposes, reshapes, whether it may lose something.
pub type ConvertIn = (
    Option<u64>,
    Option<String>,
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
    source: PathBuf,
    target: PathBuf,
    save: SaveIn,
    convert: ConvertIn,
) -> PyResult<(Vec<PlannedOut>, Vec<LossOut>)> {
    let options = convert_options(save, convert, None).or_raise()?;
    let plan = py.detach(|| {
        let plan = regrow::open_with(&source, &options.open)?.plan_convert(&options)?;
        plan.check(&target, &options).map(|()| plan)
    });
    let plan = plan.or_raise()?;
    Ok((plan.leaves.iter().map(planned).collect(), plan.losses.iter().map(loss).collect()))
}

/// Converts; gives path, stored bytes, number of leaves and losses.
#[pyfunction]
pub fn convert(
    py: Python<'_>,
    source: PathBuf,
    target: PathBuf,
    save: SaveIn,
    convert: ConvertIn,
    progress: Option<Py<PyAny>>,
) -> PyResult<(OsString, u64, usize, Vec<LossOut>)> {
    let raised = Arc::new(Mutex::new(None));
    let hook = hook(progress, raised.clone());
    let options = convert_options(save, convert, Some(hook)).or_raise()?;
    let report = py.detach(|| regrow::convert(&source, &target, &options));
    if let Some(error) = raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    let report = report.or_raise()?;
    let losses = report.losses.iter().map(loss).collect();
    Ok((report.save.path.into_os_string(), report.save.stored_bytes, report.save.leaf_count, losses))
}

fn convert_options(
    save: SaveIn,
    convert: ConvertIn,
    progress: Option<ProgressHook>,
) -> Result<ConvertOptions> {
    let (step, item, only, rename, transpose, reshape, lossy) = convert;
    fn rules<T>(rules: Vec<(String, T)>) -> Result<Vec<(PathPattern, T)>> {
        rules.into_iter().map(|(pattern, value)| Ok((PathPattern::new(&pattern)?, value))).collect()
    }
    Ok(ConvertOptions {
        open: OpenOptions { step, item },
        save: save_options(save)?,
        only: only.iter().map(|text| PathPattern::new(text)).collect::<Result<_>>()?,
        rename: rename.iter().map(|(from, to)| Rename::new(from, to)).collect::<Result<_>>()?,
        transpose: rules(transpose)?,
        reshape: rules(reshape)?,
        lossy,
        progress,
    })
}

/// Tells the callback how far it is, and lets Ctrl-C through; what either raises ends the work.
fn hook(progress: Option<Py<PyAny>>, raised: Arc<Mutex<Option<PyErr>>>) -> ProgressHook {
    let told = Mutex::new(None::<Instant>);
    ProgressHook::new(move |state: Progress| {
        {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            let is_last = state.done_bytes >= state.total_bytes;
            if !is_last && told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
                return Ok(());
            }
            *told = Some(Instant::now());
        }
        let called = Python::attach(|py| {
            py.check_signals()?;
            let Some(progress) = &progress else { return Ok(()) };
            progress.call1(py, (state.done_bytes.min(state.total_bytes), state.total_bytes)).map(drop)
        });
        called.map_err(|error| {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            Error::new(ErrorKind::Cancelled, "the progress callback raised an exception")
        })
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
