//! Calls a Python function that reads checkpoints, and calls it again if it raises an error because
//! a checkpoint was replaced.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use regrow::{Error, ErrorKind, engine};

use crate::checkpoint::Checkpoint;
use crate::error::{caught, to_py_err};

/// One attempt of a read, which records the checkpoints that it opened.
#[pyclass(frozen, module = "regrow._native")]
pub struct Attempt(engine::Attempt);

#[pymethods]
impl Attempt {
    #[new]
    fn new() -> Self {
        Self(engine::Attempt::default())
    }

    /// Records a checkpoint that the attempt reads.
    fn watch<'py>(&self, checkpoint: Bound<'py, Checkpoint>) -> Bound<'py, Checkpoint> {
        self.0.watch(checkpoint.get().opened().clone());
        checkpoint
    }
}

/// Returns the result of `read`. `read` gets an [`Attempt`], and is called again if it raises
/// because a checkpoint was replaced.
#[pyfunction]
pub fn read_unreplaced(py: Python<'_>, read: Py<PyAny>) -> PyResult<Py<PyAny>> {
    let mut raised = None;
    let attempt = |attempt: &engine::Attempt| {
        Python::attach(|py| {
            let attempt = Attempt(attempt.clone());
            read.call1(py, (attempt,)).map_err(|error| {
                let kind = kind_of(py, &error);
                raised = Some(error);
                Error::new(kind, "the reader raised")
            })
        })
    };
    let error = match py.detach(|| caught(|| engine::read_unreplaced(attempt))) {
        Ok(read) => return Ok(read),
        Err(error) => error,
    };
    match raised {
        Some(raised) if error.kind() == kind_of(py, &raised) => Err(raised),
        raised => {
            let error = to_py_err(error);
            error.set_cause(py, raised);
            Err(error)
        }
    }
}

/// The kind of one of regrow's exceptions. Any other exception has the kind `Cancelled`, which ends
/// the read.
fn kind_of(py: Python<'_>, error: &PyErr) -> ErrorKind {
    static REGROW_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let kind = || -> PyResult<Option<ErrorKind>> {
        let class = REGROW_ERROR.import(py, "regrow._errors", "RegrowError")?;
        let value = error.value(py);
        match value.is_instance(class)? {
            true => Ok(ErrorKind::from_name(value.getattr("kind")?.extract()?)),
            false => Ok(None),
        }
    };
    kind().ok().flatten().unwrap_or(ErrorKind::Cancelled)
}
