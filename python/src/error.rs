//! Turns errors into exceptions. `regrow._errors.from_native` chooses the class by the kind of
//! error.
//!
//! The engine is called through [`released`]. So a panic, which is a bug of regrow, becomes an
//! ordinary exception. PyO3's own `PanicException` would not be caught by `except Exception`.

use std::any::Any;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use regrow::{Error, ErrorKind, Result};
use regrow_base::wording::Caller;

pub fn released<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(|| caught(work)).or_raise()
}

pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

pub fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::new(ErrorKind::Internal, format!("regrow panicked: {}", text.unwrap_or("it does not say why")))
        .help("this is a bug in regrow: please report it with the text on standard error")
}

/// The exception for an error of the engine. If a Python exception caused the error, returns the
/// Python exception.
pub fn to_py_err(error: Error) -> PyErr {
    Python::attach(|py| {
        let source = error.source();
        if let Some(raised) = source.and_then(|source| source.downcast_ref::<PyErr>()) {
            return raised.clone_ref(py);
        }
        let raised = exception(py, &error).map_or_else(|failed| failed, PyErr::from_value);
        if let Some(cause) = source.and_then(|source| source.downcast_ref::<Error>()) {
            raised.set_cause(py, Some(to_py_err(cause.duplicate())));
        }
        raised
    })
}

/// An exception as an error of the engine. `to_py_err` returns the same exception again.
pub fn from_py_err(py: Python<'_>, raised: PyErr) -> Error {
    let value = raised.value(py);
    let kind = value.getattr(intern!(py, "kind")).and_then(|kind| kind.extract::<String>());
    let kind = kind.ok().and_then(|kind| ErrorKind::from_name(&kind));
    let (kind, what) = match kind {
        Some(kind) => (kind, value.to_string()),
        None if raised.is_instance_of::<PyException>(py) => (ErrorKind::Io, raised.to_string()),
        None => (ErrorKind::Cancelled, raised.to_string()),
    };
    Error::new(kind, what).caused_by(raised)
}

pub fn called<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
    let called = Python::try_attach(|py| call(py).map_err(|raised| from_py_err(py, raised)));
    called.unwrap_or_else(|| Err(Error::new(ErrorKind::Io, "Python has ended")))
}

fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    static FROM_NATIVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let from_native = FROM_NATIVE.import(py, "regrow._errors", "from_native")?;
    let error = error.in_words_of(Caller::Python);
    let (file, leaf, offset_bytes) = place(&error);
    from_native.call1((error.kind().name(), error.to_string(), file, leaf, offset_bytes, error.help_text()))
}

pub fn place(error: &Error) -> (Option<String>, Option<String>, Option<u64>) {
    let place = error.place();
    (
        place.file.as_ref().map(|file| file.display().to_string()),
        place.leaf.as_ref().map(ToString::to_string),
        place.offset_bytes,
    )
}

/// Turns results of the engine into Python results, so that `?` can raise them.
pub trait OrRaise<T> {
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for regrow::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(to_py_err)
    }
}
