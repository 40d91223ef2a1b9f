//! A folder of steps: its list, its deletions, its leases and its lock.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use regrow::error::Result;
use regrow::location::ToLocation;
use regrow::manager::{self, DeleteOptions, Deleted, Deletion, StepName, StepNames};
use regrow_layouts::orbax::json_text;
use serde_json::{Map, Value};

use crate::checkpoint::{FindingOut, finding_out};
use crate::error::released;
use crate::location::{Location, LocationIn};

/// A step: its number, name, location, seconds since 1970, metrics and metadata as JSON.
pub type StepOut = (u64, String, Location, Option<f64>, String, String);

/// A deletion: the step's number, the result, bytes, the new path, and the error if it failed.
type DeletionOut = (u64, &'static str, u64, Option<OsString>, Option<FindingOut>);

/// A folder of steps.
#[pyclass(frozen, module = "regrow._native")]
pub struct Steps(manager::Steps);

#[pymethods]
impl Steps {
    /// The steps of a folder. Each of `forms` is a prefix and a width; new steps get the first
    /// form. If `given` has the numbers and names of steps, `forms` are not used.
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

    /// The location of the folder.
    #[getter]
    fn root(&self) -> Location {
        Location::of(self.0.root().clone())
    }

    /// The name of a new step.
    fn name(&self, step: u64) -> String {
        self.0.names().format(step)
    }

    /// The committed steps, the names of unfinished saves, and notes.
    fn list(&self, py: Python<'_>) -> PyResult<(Vec<StepOut>, Vec<String>, Vec<String>)> {
        let list = released(py, || self.0.list())?;
        let steps = list.steps.into_iter().map(step_out).collect::<PyResult<_>>()?;
        Ok((steps, list.unfinished, list.notes))
    }

    /// The step with this number; `None` if it does not exist.
    fn find(&self, py: Python<'_>, step: u64) -> PyResult<Option<StepOut>> {
        released(py, || self.0.find(step))?.map(step_out).transpose()
    }

    /// The step with this number. Raises if it does not exist.
    fn step(&self, py: Python<'_>, step: u64) -> PyResult<StepOut> {
        step_out(released(py, || self.0.step(step))?)
    }

    /// The numbers of the steps that have readers.
    fn leased(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        released(py, || self.0.leased())
    }

    /// Protects a step from deletion.
    fn lease(&self, py: Python<'_>, step: u64) -> PyResult<StepLease> {
        released(py, || self.0.lease(step)).map(|lease| StepLease(Mutex::new(Some(lease))))
    }

    /// Takes the right to write to the folder.
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

    /// Updates the pointer from the list of steps, and removes files of killed writers.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || self.0.refresh())
    }
}

impl Steps {
    pub fn of(steps: manager::Steps) -> Self {
        Self(steps)
    }
}

/// A lease: protects a step from deletion until it is released.
#[pyclass(frozen, module = "regrow._native")]
pub struct StepLease(Mutex<Option<manager::Lease>>);

#[pymethods]
impl StepLease {
    /// Releases the lease.
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
    /// Releases the lock.
    fn release(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

/// The forms of names, each as a prefix and a width. The first form is written.
pub fn names(forms: Vec<(Option<String>, Option<usize>)>) -> Result<StepNames> {
    let mut forms = forms.iter().map(|(prefix, width)| StepName::new(prefix.as_deref(), *width));
    let written = forms.next().unwrap_or_else(|| Ok(StepName::default()))?;
    Ok(StepNames::composite(written, forms.collect::<Result<Vec<_>>>()?))
}

pub fn step_out(step: manager::Step) -> PyResult<StepOut> {
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
