//! A folder of steps: what is there, what is kept, who reads and who writes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use regrow::ErrorKind;
use regrow::error::{Error, Result};
use regrow::formats::orbax::json_text;
use regrow::location::ToLocation;
use regrow::manager::{self, BestMode, DeleteOptions, Deleted, Deletion, Keep, Moment, SaveWhen, StepList};
use regrow::manager::{StepName, StepNames, TidyOptions};
use serde_json::{Map, Value};

use crate::checkpoint::{FindingOut, finding_out};
use crate::error::{OrRaise, released};
use crate::location::{Location, LocationIn};

/// Number, name, place, seconds since 1970, metrics and metadata as JSON.
type StepOut = (u64, String, Location, Option<f64>, String, String);

/// Number, what became of it, bytes, where it is now, why it is there as before.
type DeletionOut = (u64, &'static str, u64, Option<OsString>, Option<FindingOut>);

/// A folder of steps.
#[pyclass(frozen, module = "regrow._native")]
pub struct Steps(manager::Steps);

#[pymethods]
impl Steps {
    /// Of a folder; forms of names are prefix and width, the one that is written first. Instead,
    /// the names themselves.
    #[new]
    #[pyo3(signature = (root, forms, given=None))]
    fn new(
        py: Python<'_>,
        root: LocationIn,
        forms: Option<Vec<(Option<String>, Option<usize>)>>,
        given: Option<Vec<(u64, String)>>,
    ) -> PyResult<Self> {
        let names = || match given {
            Some(given) => Ok(Some(StepNames::given(given))),
            None => forms.map(names).transpose(),
        };
        released(py, || manager::Steps::new(root.to_location()?, names()?)).map(Self)
    }

    /// The folder.
    #[getter]
    fn root(&self) -> Location {
        Location::of(self.0.root().clone())
    }

    /// Prefix and width of the names, the form that is written first.
    #[getter]
    fn forms(&self) -> Vec<(Option<String>, Option<usize>)> {
        let forms = self.0.names().read().iter();
        forms.map(|form| (form.prefix().map(str::to_owned), form.width())).collect()
    }

    /// The name of a new step.
    fn name(&self, step: u64) -> String {
        self.0.names().format(step)
    }

    /// The step of a name; `None` for a name of another form.
    fn parse(&self, name: &str) -> Option<u64> {
        self.0.names().parse(name).map(|(step, _)| step)
    }

    /// Where a new step goes.
    fn place(&self, step: u64) -> Location {
        Location::of(self.0.place(step))
    }

    /// Committed steps, names of saves that never ended, and notes.
    fn list(&self, py: Python<'_>) -> PyResult<(Vec<StepOut>, Vec<String>, Vec<String>)> {
        let list = released(py, || self.0.list())?;
        let steps = list.steps.into_iter().map(step_out).collect::<PyResult<_>>()?;
        Ok((steps, list.unfinished, list.notes))
    }

    /// The newest step of the current history.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<StepOut>> {
        released(py, || self.0.latest())?.map(step_out).transpose()
    }

    /// The newest step, if it came after one that was seen.
    fn newer_than(&self, py: Python<'_>, seen: Option<u64>) -> PyResult<Option<u64>> {
        released(py, || self.0.newer_than(seen))
    }

    /// The steps of a history; of the one that the storage says, if `None`.
    fn current(&self, py: Python<'_>, history: Option<&History>) -> PyResult<Vec<u64>> {
        Ok(of_history(&released(py, || self.0.list())?, history))
    }

    /// Steps of other histories than the one that the storage says.
    fn abandoned(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(released(py, || self.0.list())?.abandoned().map(|step| step.number).collect())
    }

    /// The best step of a history by a metric.
    fn best(
        &self,
        py: Python<'_>,
        metric: &str,
        is_max: bool,
        history: Option<&History>,
    ) -> PyResult<Option<u64>> {
        let list = released(py, || self.0.list())?;
        let current = of_history(&list, history);
        let mode = if is_max { BestMode::Max } else { BestMode::Min };
        let mut facts = list.facts(&[], &BTreeSet::new(), true);
        facts.iter_mut().for_each(|step| step.is_other = !current.contains(&step.number));
        Ok(manager::best(&facts, metric, mode).map(|step| step.number))
    }

    /// What a manager knows of the steps, as JSON.
    fn history(&self, py: Python<'_>) -> PyResult<String> {
        let history = released(py, || manager::History::of(&self.0.list()?.steps))?;
        History(Mutex::new(history)).text()
    }

    /// Whether an empty folder has the name of a step.
    fn is_empty_folder(&self, py: Python<'_>, step: u64) -> bool {
        py.detach(|| self.0.is_empty_folder(step))
    }

    /// A step, if it is there.
    fn find(&self, py: Python<'_>, step: u64) -> PyResult<Option<StepOut>> {
        released(py, || self.0.find(step))?.map(step_out).transpose()
    }

    /// A step.
    fn step(&self, py: Python<'_>, step: u64) -> PyResult<StepOut> {
        step_out(released(py, || self.0.step(step))?)
    }

    /// Files and bytes of a step, where the storage knows.
    fn stock(&self, py: Python<'_>, step: u64) -> PyResult<Option<(usize, u64)>> {
        let stock = released(py, || self.0.step(step).and_then(|step| self.0.stock(&step)))?;
        Ok(stock.map(|stock| (stock.file_count, stock.bytes)))
    }

    /// Whether an error of restoring a step, of a kind, is that step's own fault.
    fn is_at_fault(&self, py: Python<'_>, step: u64, kind: &str) -> PyResult<bool> {
        let Some(kind) = regrow::ErrorKind::from_name(kind) else { return Ok(false) };
        released(py, || self.0.is_fault_of(step, &Error::new(kind, "")))
    }

    /// Steps that have readers.
    fn leased(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        released(py, || self.0.leased())
    }

    /// Keeps a step from being deleted.
    fn lease(&self, py: Python<'_>, step: u64) -> PyResult<StepLease> {
        released(py, || self.0.lease(step)).map(|lease| StepLease(Mutex::new(Some(lease))))
    }

    /// Takes the right to write.
    fn lock(&self, py: Python<'_>) -> PyResult<WriterLock> {
        released(py, || self.0.lock()).map(|lock| WriterLock(Mutex::new(Some(lock))))
    }

    /// Deletes steps, or moves them aside.
    fn delete(
        &self,
        py: Python<'_>,
        steps: Vec<u64>,
        aside: Option<String>,
        also_leased: bool,
    ) -> PyResult<Vec<DeletionOut>> {
        let options = DeleteOptions { aside, also_leased };
        Ok(deletions_out(released(py, || self.0.delete(&steps, &options))?))
    }

    /// What follows a save: verifies, points, deletes.
    #[expect(clippy::too_many_arguments, reason = "each is one of the options")]
    fn tidy(
        &self,
        py: Python<'_>,
        saved: u64,
        keep: &str,
        verify: bool,
        aside: Option<String>,
        adopt: bool,
        damaged: BTreeSet<u64>,
    ) -> PyResult<Vec<DeletionOut>> {
        let keep = Keep::from_json(keep).or_raise()?;
        let delete = DeleteOptions { aside, also_leased: false };
        let options = TidyOptions { keep, adopt, damaged, verify, delete };
        Ok(deletions_out(released(py, || self.0.tidy(saved, &options))?.deletions))
    }

    /// Brings the pointer in line with the list.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || self.0.refresh())
    }
}

/// Which steps the next save goes on from, and which were abandoned.
#[pyclass(frozen, module = "regrow._native")]
pub struct History(Mutex<manager::History>);

#[pymethods]
impl History {
    /// Of what `Steps.history` has said.
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        let history = serde_json::from_str(text);
        let history = history
            .map_err(|error| Error::invalid(format!("this is no history of steps: {error}")))
            .or_raise()?;
        Ok(Self(Mutex::new(history)))
    }

    /// The same as JSON.
    fn text(&self) -> PyResult<String> {
        let text = serde_json::to_string(&*self.lock());
        text.map_err(|error| Error::new(ErrorKind::Internal, format!("no JSON: {error}"))).or_raise()
    }

    /// Whether the step is of the current history: there, or being saved.
    fn knows(&self, step: u64) -> bool {
        self.lock().knows(step)
    }

    /// Whether the step is there or being saved, in any history.
    fn is_taken(&self, step: u64) -> bool {
        self.lock().is_taken(step)
    }

    /// The newest step of the current history beside this one.
    #[pyo3(signature = (but=None))]
    fn latest(&self, but: Option<u64>) -> Option<u64> {
        let history = self.lock();
        but.map_or_else(|| history.latest(), |but| history.latest_but(but))
    }

    /// The next save goes on from this step.
    fn turn_to(&self, step: u64) {
        self.lock().turn_to(step);
    }

    /// Begins a save; the record of its step as JSON.
    fn begin(&self, step: u64) -> PyResult<String> {
        let text = serde_json::to_string(&self.lock().begin(step));
        text.map_err(|error| Error::new(ErrorKind::Internal, format!("no JSON: {error}"))).or_raise()
    }

    /// The step is not there.
    fn forget(&self, step: u64) {
        self.lock().forget(step);
    }

    /// All newer steps were deleted.
    fn roll_back(&self, step: u64) {
        self.lock().roll_back(step);
    }
}

impl History {
    fn lock(&self) -> MutexGuard<'_, manager::History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of_history(list: &StepList, history: Option<&History>) -> Vec<u64> {
    match history {
        Some(history) => history.lock().of_list(list),
        None => list.current().map(|step| step.number).collect(),
    }
}

/// Keeps a step from being deleted, until it is released.
#[pyclass(frozen, module = "regrow._native")]
pub struct StepLease(Mutex<Option<manager::Lease>>);

#[pymethods]
impl StepLease {
    /// Lets the step go.
    fn release(&self, py: Python<'_>) {
        let lease = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(lease));
    }
}

/// The right to write to a folder of steps, until it is released.
#[pyclass(frozen, module = "regrow._native")]
pub struct WriterLock(Mutex<Option<manager::WriterLock>>);

#[pymethods]
impl WriterLock {
    /// Raises if another writer has taken the folder over.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        // The mutex is let go before Python's own lock is waited for: another thread may have that,
        // and wait for the mutex.
        released(py, || {
            let lock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lock.as_ref().map_or(Ok(()), manager::WriterLock::check)
        })
    }

    /// Gives it up.
    fn release(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

/// Whether a step is to be saved; the condition is JSON.
#[pyfunction]
pub fn wants_step(
    when: &str,
    step: u64,
    latest: Option<u64>,
    seconds_since_save: Option<f64>,
    is_preempted: bool,
    is_saving: bool,
) -> PyResult<bool> {
    let moment = Moment { step, latest, seconds_since_save, is_preempted, is_saving };
    Ok(SaveWhen::from_json(when).or_raise()?.wants(&moment))
}

/// Raises for metrics, a JSON object, without the one by which the best step is chosen.
#[pyfunction]
pub fn check_metric(metric: &str, metrics: &str) -> PyResult<()> {
    let metrics: Map<String, Value> = json_text::parse(metrics.as_bytes())
        .map_err(|error| Error::invalid(format!("metrics are a JSON object: {error}")))
        .or_raise()?;
    manager::check_metric(metric, &metrics).or_raise()
}

/// Prefix and width of each, the form that is written first.
fn names(forms: Vec<(Option<String>, Option<usize>)>) -> Result<StepNames> {
    let mut forms = forms.iter().map(|(prefix, width)| StepName::new(prefix.as_deref(), *width));
    let written = forms.next().unwrap_or_else(|| Ok(StepName::default()))?;
    Ok(StepNames::composite(written, forms.collect::<Result<Vec<_>>>()?))
}

fn step_out(step: manager::Step) -> PyResult<StepOut> {
    let text = |members: Map<String, Value>| json_text::to_text(&Value::Object(members));
    let place = Location::of(step.location);
    Ok((step.number, step.name, place, step.seconds, text(step.metrics), text(step.custom_metadata)))
}

fn deletions_out(deletions: Vec<Deletion>) -> Vec<DeletionOut> {
    let out = |Deletion { step, outcome, .. }: Deletion| match outcome {
        Ok(Deleted::Removed { bytes }) => (step, "removed", bytes, None, None),
        Ok(Deleted::Moved { to }) => (step, "moved", 0, Some(to.into_os_string()), None),
        Ok(Deleted::Leased) => (step, "leased", 0, None, None),
        Ok(Deleted::Gone) => (step, "gone", 0, None, None),
        Err(error) => (step, "failed", 0, None, Some(finding_out(&error))),
    };
    deletions.into_iter().map(out).collect()
}
