//! Writes reports: checkpoints as an HTML page.

use std::path::PathBuf;

use pyo3::prelude::*;
use regrow::location::ToLocation;
use regrow::tree::PathPattern;
use regrow::{OpenOptions, Result};
use regrow_report::model::Report;
use regrow_report::{ReportOptions, Subject, assemble, page, save_page};

use crate::checkpoint::Checkpoint;
use crate::error::{OrRaise, released};
use crate::gather::let_go;
use crate::location::LocationIn;
use crate::watch::{WatchIn, watched};

/// An opened checkpoint, or the location of one.
#[derive(FromPyObject)]
pub enum SubjectIn {
    /// An opened checkpoint, or a pytree in memory.
    #[pyo3(transparent)]
    Opened(Py<Checkpoint>),
    #[pyo3(transparent)]
    At(LocationIn),
}

/// The options of a report, with the fields of `ReportRequest` in `regrow/_core/_requests.py`.
#[derive(FromPyObject)]
pub struct PageIn {
    title: Option<String>,
    command: String,
    only: Vec<String>,
    sample_bytes: Option<u64>,
    statistics: bool,
    step: Option<u64>,
    item: Option<String>,
    budget_bytes: Option<u64>,
}

/// For each leaf: the numbers of read elements, of NaNs, of infinities and of zeros.
type CountsOut = (Vec<u64>, Vec<u64>, Vec<u64>, Vec<u64>);

/// For each leaf: the lowest and the highest element, mean, standard deviation and norm. A number
/// that a leaf does not have is NaN.
type NumbersOut = (Vec<f64>, Vec<f64>, Vec<f64>, Vec<f64>, Vec<f64>);

/// The data of a report, from which the page is made.
#[pyclass(frozen, module = "regrow._native")]
pub struct ReportPage(Report);

/// Reads the first of several checkpoints, compares it with the others, and returns the page.
#[pyfunction]
pub fn report(
    py: Python<'_>,
    subjects: Vec<SubjectIn>,
    request: PageIn,
    watch: WatchIn,
) -> PyResult<ReportPage> {
    let subjects = subjects.iter().map(subject).collect::<Result<Vec<_>>>().or_raise()?;
    let mut options = report_options(request).or_raise()?;
    let Some((first, others)) = subjects.split_first() else {
        return Err(regrow::Error::invalid("there is nothing to report on")).or_raise();
    };
    let report = watched(py, watch, u64::MAX, |monitor| {
        options.monitor = monitor;
        assemble(first, others, &options)
    });
    let_go(py);
    report.map(ReportPage)
}

fn subject(given: &SubjectIn) -> Result<Subject> {
    match given {
        SubjectIn::Opened(checkpoint) => Ok(Subject::Opened(checkpoint.get().opened().clone())),
        SubjectIn::At(place) => place.to_location().map(Subject::At),
    }
}

fn report_options(request: PageIn) -> Result<ReportOptions> {
    let PageIn { title, command, only, sample_bytes, statistics, step, item, budget_bytes } = request;
    Ok(ReportOptions {
        title,
        command,
        open: OpenOptions { step, item, ..OpenOptions::default() },
        only: only.iter().map(|glob| PathPattern::new(glob)).collect::<Result<_>>()?,
        sample_bytes,
        without_statistics: !statistics,
        budget_bytes,
        ..ReportOptions::default()
    })
}

#[pymethods]
impl ReportPage {
    /// The page as HTML.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        released(py, || {
            let mut html = Vec::new();
            page(&self.0, &mut html).map_err(|error| regrow::Error::io("cannot make the page", "", error))?;
            Ok(String::from_utf8_lossy(&html).into_owned())
        })
    }

    /// Writes the page to a file.
    fn save(&self, py: Python<'_>, path: PathBuf, overwrite: bool) -> PyResult<()> {
        released(py, || save_page(&self.0, &path, overwrite))
    }

    /// The data of the page, as JSON.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        released(py, || {
            let text = serde_json::to_string(&self.0);
            text.map_err(|error| regrow::Error::invalid(format!("the report is not JSON: {error}")))
        })
    }

    /// Whether no damage was found.
    #[getter]
    fn is_sound(&self) -> bool {
        self.0.is_sound()
    }

    /// The key paths and the numbers of all leaves; `None` without statistics.
    fn statistics(&self) -> Option<(Vec<String>, CountsOut, NumbersOut)> {
        let leaves = &self.0.leaves;
        let columns = leaves.statistics.as_ref()?;
        let paths = leaves.node.iter().map(|node| leaves.keys.path(*node).to_string()).collect();
        let counts = (
            columns.count.clone(),
            columns.nan_count.clone(),
            columns.infinity_count.clone(),
            columns.zero_count.clone(),
        );
        let numbers = |column: &[Option<f64>]| column.iter().map(|own| own.unwrap_or(f64::NAN)).collect();
        let numbers = (
            numbers(&columns.min),
            numbers(&columns.max),
            numbers(&columns.mean),
            numbers(&columns.standard_deviation),
            numbers(&columns.l2_norm),
        );
        Some((paths, counts, numbers))
    }

    /// The title.
    #[getter]
    fn title(&self) -> &str {
        &self.0.title
    }
}
