//! A folder of steps: what is there, what is kept, who reads and who writes.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use regrow::error::{Error, Result};
use regrow::location::ToLocation;
use regrow::manager::{self, BestMode, DeleteOptions, Deleted, Deletion, Keep, Moment, SaveWhen, StepFacts};
use regrow::manager::{StepName, StepNames, TidyOptions};
use serde_json::{Map, Value};

use crate::checkpoint::{FindingOut, finding_out};
use crate::error::{OrRaise, released};
use crate::location::{Location, LocationIn};

/// Number, name, place, seconds since 1970, metrics and metadata as JSON.
type StepOut = (u64, String, Location, Option<f64>, String, String);

/// Number, what became of it, bytes, where it is now, why it is there as before.
type DeletionOut = (u64, &'static str, u64, Option<OsString>, Option<FindingOut>);

/// Number, seconds since 1970, metrics as JSON, whether somebody reads it, whether it is known to be damaged.
type FactsIn = (u64, Option<f64>, String, bool, bool);

/// A folder of steps.
#[pyclass(frozen, module = "regrow._native")]
pub struct Steps(manager::Steps);

#[pymethods]
impl Steps {
    /// Of a folder; forms of names are prefix and width, the one that is written first. Instead, the names themselves.
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

    /// The newest step.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<StepOut>> {
        released(py, || self.0.latest())?.map(step_out).transpose()
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

    /// Steps that somebody reads.
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
    fn tidy(
        &self,
        py: Python<'_>,
        saved: u64,
        keep: &str,
        verify: bool,
        aside: Option<String>,
    ) -> PyResult<Vec<DeletionOut>> {
        let keep = Keep::from_json(keep).or_raise()?;
        let options = TidyOptions { keep, verify, delete: DeleteOptions { aside, also_leased: false } };
        Ok(deletions_out(released(py, || self.0.tidy(saved, &options))?.deletions))
    }

    /// Brings the pointer in line with the list.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || self.0.refresh())
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
        // The mutex is let go before Python's own lock is waited for: another thread may have that, and wait for the mutex.
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

/// The steps that may go by a policy, which is JSON.
#[pyfunction]
pub fn steps_to_delete(steps: Vec<FactsIn>, keep: &str) -> PyResult<Vec<u64>> {
    let keep = Keep::from_json(keep).or_raise()?;
    Ok(manager::to_delete(&facts(steps).or_raise()?, &keep))
}

/// The best step by a metric.
#[pyfunction]
pub fn best_step(steps: Vec<FactsIn>, metric: &str, is_max: bool) -> PyResult<Option<u64>> {
    let mode = if is_max { BestMode::Max } else { BestMode::Min };
    let facts = facts(steps).or_raise()?;
    Ok(manager::best(&facts, metric, mode).map(|step| step.number))
}

/// Prefix and width of each, the form that is written first.
fn names(forms: Vec<(Option<String>, Option<usize>)>) -> Result<StepNames> {
    let mut forms = forms.iter().map(|(prefix, width)| StepName::new(prefix.as_deref(), *width));
    let written = forms.next().unwrap_or_else(|| Ok(StepName::default()))?;
    Ok(StepNames::composite(written, forms.collect::<Result<Vec<_>>>()?))
}

fn facts(steps: Vec<FactsIn>) -> Result<Vec<StepFacts>> {
    let facts = |(number, seconds, metrics, is_leased, is_damaged): FactsIn| {
        let metrics: Map<String, Value> = serde_json::from_str(&metrics)
            .map_err(|error| Error::invalid(format!("metrics are a JSON object: {error}")))?;
        Ok(StepFacts { number, seconds, metrics, is_leased, is_damaged })
    };
    steps.into_iter().map(facts).collect()
}

fn step_out(step: manager::Step) -> PyResult<StepOut> {
    let text = |members: Map<String, Value>| Value::Object(members).to_string();
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
