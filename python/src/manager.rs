//! The manager of a training loop's steps: the engine's [`manager::TrainingRun`] with hooks that
//! are Python functions.
//!
//! Python functions are called on the caller's thread or on the manager's thread. Their exceptions
//! are raised again unchanged.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use regrow::error::{Error, Result};
use regrow::location::ToLocation;
use regrow::manager::{self, BestMode, DeleteOptions, Hooks, Keep, ManagerOptions, SaveStep, SaveWhen};
use regrow::manager::{Restored, TidyOptions};
use regrow::{SaveOptions, SaveReport};
use regrow_layouts::orbax::json_text;
use serde_json::{Map, Value};

use crate::background::{SaveHandle, wait};
use crate::checkpoint::{SaveOut, save_report};
use crate::coordination::check_signals;
use crate::error::{OrRaise, called, from_py_err, released, to_py_err};
use crate::location::LocationIn;
use crate::options::{JobIn, to_job};
use crate::steps::{Steps, names, step_out};

/// The fields of `regrow._manager._manager.RunOptions`.
#[derive(FromPyObject)]
struct OptionsIn {
    names: Option<Vec<(Option<String>, Option<usize>)>>,
    save_when: String,
    keep: String,
    metric: Option<String>,
    verify_first: bool,
    adopt: bool,
    trash: Option<String>,
    link_unchanged: bool,
    read_only: bool,
    log: Option<PathBuf>,
    preemption: Py<Preemption>,
    grace_seconds: f64,
    job: Option<JobIn>,
    also_saves: Option<Py<PyAny>>,
    also_keeps: Option<Py<PyAny>>,
    on_saved: Option<Py<PyAny>>,
    on_record: Py<PyAny>,
}

impl OptionsIn {
    fn into_options(self) -> Result<ManagerOptions> {
        let Self { also_saves, also_keeps, on_saved, on_record, .. } = self;
        let mut hooks = Hooks { while_waiting: Some(Arc::new(check_signals)), ..Hooks::default() };
        hooks.on_record = Some(Arc::new(move |record: &Map<String, Value>, is_bad: bool| {
            let text = json_text::to_text(&Value::Object(record.clone()));
            called(|py| on_record.call1(py, (text, is_bad)).map(drop))
        }));
        if let Some(call) = also_saves {
            hooks.also_saves =
                Some(Arc::new(move |step: u64| called(|py| call.bind(py).call1((step,))?.is_truthy())));
        }
        if let Some(call) = also_keeps {
            hooks.also_keeps = Some(Arc::new(move |steps: &manager::Steps| {
                let list = steps.list()?.steps;
                called(|py| {
                    let list = list.into_iter().map(step_out).collect::<PyResult<Vec<_>>>()?;
                    call.bind(py).call1((list,))?.extract()
                })
            }));
        }
        if let Some(call) = on_saved {
            hooks.on_saved = Some(Arc::new(move |step: u64, report: &SaveReport| {
                let report = save_report(report.clone());
                called(|py| call.call1(py, (step, report)).map(drop))
            }));
        }
        let tidy = TidyOptions {
            keep: Keep::from_json(&self.keep)?,
            adopt: self.adopt,
            verify: self.verify_first,
            delete: DeleteOptions { aside: self.trash, also_leased: false },
            ..TidyOptions::default()
        };
        Ok(ManagerOptions {
            names: self.names.map(names).transpose()?,
            save_when: SaveWhen::from_json(&self.save_when)?,
            tidy,
            save: SaveOptions { job: self.job.map(to_job).transpose()?, ..SaveOptions::default() },
            reuse: self.link_unchanged,
            read_only: self.read_only,
            preemption: Some(self.preemption.get().0.clone()),
            grace: time(Some(self.grace_seconds)),
            log: self.log,
            metric: self.metric,
            hooks,
        })
    }
}

/// A flag that means that the program must end.
#[pyclass(frozen, module = "regrow._native")]
pub struct Preemption(manager::Preemption);

#[pymethods]
impl Preemption {
    /// With `agreed`, either all processes of a job set the flag before the same step, or none.
    #[new]
    fn new(agreed: bool) -> Self {
        Self(if agreed { manager::Preemption::agreed() } else { manager::Preemption::new() })
    }

    fn set(&self) {
        self.0.set();
    }

    #[getter]
    fn is_set(&self) -> bool {
        self.0.is_set()
    }
}

/// Manages the steps of a folder. No other process may write to the folder.
#[pyclass(frozen, module = "regrow._native")]
pub struct Run(Arc<manager::TrainingRun>);

/// The number of the step, the result of `load`, and skipped newer steps with their exceptions.
type RestoredOut = (u64, Py<PyAny>, Vec<(u64, PyErr)>);

#[pymethods]
impl Run {
    #[new]
    fn new(py: Python<'_>, root: LocationIn, options: OptionsIn) -> PyResult<Self> {
        let options = options.into_options().or_raise()?;
        released(py, || manager::TrainingRun::new(root.to_location()?, options))
            .map(|run| Self(Arc::new(run)))
    }

    /// The folder and its steps, without messages to other processes of a job.
    #[getter]
    fn steps(&self) -> Steps {
        Steps::of(self.0.steps().clone())
    }

    /// The committed steps of any history.
    fn numbers(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        released(py, || self.0.numbers())
    }

    /// The newest step of the current history.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        released(py, || self.0.latest())
    }

    /// The steps of abandoned histories.
    fn abandoned(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        released(py, || self.0.abandoned())
    }

    /// The best step of the current history by a metric.
    fn best(&self, py: Python<'_>, metric: &str, is_max: bool) -> PyResult<Option<u64>> {
        let mode = if is_max { BestMode::Max } else { BestMode::Min };
        released(py, || self.0.best(metric, mode))
    }

    /// Whether `begin` would begin a step.
    fn should_save(&self, py: Python<'_>, step: u64) -> PyResult<bool> {
        released(py, || self.0.should_save(step, false))
    }

    /// Begins a step if it is due. `metrics` is a JSON object. If `raised` is an exception, all
    /// processes raise it instead.
    #[pyo3(signature = (step, force, overwrite, metrics, raised))]
    fn begin(
        &self,
        py: Python<'_>,
        step: u64,
        force: bool,
        overwrite: bool,
        metrics: &str,
        raised: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Option<DueStep>> {
        let metrics = metrics_of(metrics).or_raise()?;
        let about = SaveStep { metrics, force, overwrite, ..SaveStep::default() };
        let own = raised.map_or(Ok(()), |raised| Err(from_py_err(py, PyErr::from_value(raised))));
        let due = released(py, || self.0.begin(step, &about, own))?;
        Ok(due.map(|due| DueStep { run: self.0.clone(), due: Mutex::new(Some(due)) }))
    }

    /// Waits for the save of a step for the rest of the grace period. Call it after the program was
    /// asked to end.
    fn wait_for_grace(&self, py: Python<'_>, step: u64) -> PyResult<()> {
        released(py, || self.0.wait_for_grace(step))
    }

    /// Waits for all saves. Returns `False` if this takes longer than `timeout` seconds.
    #[pyo3(signature = (timeout))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        released(py, || self.0.wait_for(time(timeout)))
    }

    /// The first exception of a save that no call has raised yet; `None` if there is none.
    fn failure(&self, py: Python<'_>) -> Option<PyErr> {
        py.detach(|| self.0.failure()).err().map(to_py_err)
    }

    /// Steps whose saves have not ended.
    fn pending(&self, py: Python<'_>) -> Vec<u64> {
        py.detach(|| self.0.pending())
    }

    fn delete(&self, py: Python<'_>, step: u64, force: bool) -> PyResult<()> {
        released(py, || self.0.delete(step, force))
    }

    fn delete_abandoned(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        released(py, || self.0.delete_abandoned())
    }

    fn roll_back(&self, py: Python<'_>, step: u64) -> PyResult<()> {
        released(py, || self.0.roll_back(step))
    }

    /// Calls `load` with the number and the name of `step`. If `step` is `None`, starts with the
    /// newest step, and passes over damaged steps.
    fn restore(&self, py: Python<'_>, step: Option<u64>, load: Py<PyAny>) -> PyResult<RestoredOut> {
        let attempt = |step: &manager::Step| called(|py| load.call1(py, (step.number, &step.name)));
        let Restored { step, value, passed_over } = released(py, || match step {
            Some(step) => self.0.restore_one(step, attempt),
            None => self.0.restore_newest(|step| {
                manager::refuse_lost_items(&regrow::open(&step.location)?)?;
                attempt(step)
            }),
        })?;
        let passed_over = passed_over.into_iter().map(|passed| (passed.step, to_py_err(passed.error)));
        Ok((step.number, value, passed_over.collect()))
    }

    /// Waits for a step newer than `after`, and protects it from deletion; `None` after the time.
    fn wait_for_new(
        &self,
        py: Python<'_>,
        after: Option<u64>,
        timeout: Option<f64>,
        every: f64,
    ) -> PyResult<Option<u64>> {
        let (timeout, every) = (time(timeout), time(Some(every)));
        released(py, || self.0.wait_for_new(after, timeout, every))
    }

    /// Waits for all saves, and releases the folder.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // Wait here, where Ctrl-C can end the wait.
        self.wait(py, None)?;
        py.detach(|| self.0.close());
        Ok(())
    }
}

impl Drop for Run {
    /// The manager's thread needs the interpreter at the end of each save, so release it during the
    /// wait.
    fn drop(&mut self) {
        Python::attach(|py| py.detach(|| self.0.close()));
    }
}

/// A step that must be saved now.
#[pyclass(frozen, module = "regrow._native")]
pub struct DueStep {
    run: Arc<manager::TrainingRun>,
    due: Mutex<Option<manager::DueStep>>,
}

#[pymethods]
impl DueStep {
    /// The name of the step in the folder.
    #[getter]
    fn name(&self) -> PyResult<String> {
        self.with(|due| Ok(self.run.steps().names().format(due.number)))
    }

    /// The record for the step's metadata, as JSON.
    #[getter]
    fn record(&self) -> PyResult<String> {
        self.with(|due| {
            let record = serde_json::to_value(&due.record);
            record.map(|record| record.to_string()).map_err(|error| Error::invalid(error.to_string()))
        })
    }

    /// Whether the program has been asked to end.
    #[getter]
    fn is_preempted(&self) -> PyResult<bool> {
        self.with(|due| Ok(due.is_preempted))
    }

    /// Whether the save replaces the files at its path.
    fn may_replace(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.with(|due| Ok(self.run.may_replace(due))))
    }

    /// The name of the step whose unchanged files the save links; `None` if there is none.
    fn base(&self, py: Python<'_>) -> PyResult<Option<String>> {
        py.detach(|| self.with(|due| Ok(self.run.base(due)?.map(|step| step.name))))
    }

    /// Hands a started save to the manager's thread, which does the work after the save. `handle`
    /// is the `regrow.SaveHandle`, which has the exceptions of the progress function.
    fn follow(&self, py: Python<'_>, handle: Py<PyAny>, blocked_seconds: f64) -> PyResult<Followed> {
        let saving: Py<SaveHandle> = handle.getattr(py, intern!(py, "_handle"))?.extract(py)?;
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner).take();
        let due = due.ok_or_else(|| PyTypeError::new_err("the step was followed before"))?;
        let path = saving.get().path_buf();
        let end = move || {
            let outcome = saving.get().wait_for_end();
            called(|py| {
                let ended = handle.call_method0(py, "result").map(drop);
                // Drop both while this thread holds the interpreter: they own Python objects.
                drop((handle, saving));
                ended
            })?;
            outcome
        };
        let begun = manager::Begun { path, blocked_seconds, end: Box::new(end) };
        Ok(Followed(py.detach(|| self.run.follow(due, begun))))
    }
}

impl DueStep {
    fn with<T>(&self, ask: impl FnOnce(&manager::DueStep) -> Result<T>) -> PyResult<T> {
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let due = due.as_ref().ok_or_else(|| Error::invalid("the step was followed before"));
        due.and_then(ask).or_raise()
    }
}

/// The save of a step with the work after it.
#[pyclass(frozen, module = "regrow._native")]
pub struct Followed(manager::Followed);

#[pymethods]
impl Followed {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Waits for the report; returns `None` if this takes longer than `timeout` seconds.
    #[pyo3(signature = (timeout))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<SaveOut>> {
        Ok(wait(py, timeout, |step| self.0.wait_for(step))?.map(save_report))
    }
}

/// The processes that share a folder of steps.
#[pyclass(frozen, module = "regrow._native")]
pub struct Together(manager::Together);

#[pymethods]
impl Together {
    #[new]
    fn new(root: LocationIn, job: Option<JobIn>) -> PyResult<Self> {
        let job = job.map(to_job).transpose().or_raise()?;
        Ok(Self(manager::Together::new(job.as_ref(), &root.to_location().or_raise()?)))
    }

    /// Calls `look` on rank 0, and returns its text in every process.
    fn of_rank_0(&self, py: Python<'_>, purpose: &str, look: Py<PyAny>) -> PyResult<String> {
        let look = || called(|py| look.call0(py)?.extract::<String>(py));
        released(py, || self.0.of_rank_0(purpose, look))
    }
}

/// A time-out from seconds. `None`, or a number that is too large, means no time-out.
fn time(seconds: Option<f64>) -> Duration {
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    time.unwrap_or(Duration::MAX)
}

fn metrics_of(text: &str) -> Result<Map<String, Value>> {
    json_text::parse(text.as_bytes())
        .map_err(|error| Error::invalid(format!("metrics must be a JSON object: {error}")))
}
