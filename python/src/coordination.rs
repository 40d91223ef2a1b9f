//! Makes the engine's coordinators and sessions available to Python, and Python's coordinators
//! available to the engine.
//!
//! For each message, the engine calls the Python object (protocol `regrow.Coordinator`) on the
//! current thread. The engine holds the interpreter only during the call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::{PyException, PyTimeoutError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use regrow::coordination::{self, Folder, OnWait, SessionOptions, Single, Waiting};
use regrow::location::ToLocation;
use regrow::{Error, ErrorKind, Result};

use crate::error::{OrRaise, called, from_py_err, released};
use crate::location::LocationIn;

/// A coordinator of the engine, which also has the methods of the protocol.
#[pyclass(frozen, module = "regrow._native")]
pub struct Coordinator(Arc<dyn coordination::Coordinator>);

#[pymethods]
impl Coordinator {
    /// The coordinator of a single process.
    #[staticmethod]
    fn single() -> Self {
        Self(Arc::new(Single::new()))
    }

    /// A coordinator that uses a folder which all processes see.
    #[staticmethod]
    fn folder(path: LocationIn, rank: usize, size: usize) -> PyResult<Self> {
        let folder = path.to_location().and_then(|at| Folder::new(at, rank, size));
        folder.map(|folder| Self(Arc::new(folder))).or_raise()
    }

    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    #[getter]
    fn value_len_max_bytes(&self) -> usize {
        self.0.value_len_max_bytes().min(isize::MAX.cast_unsigned())
    }

    fn put_if_absent(&self, py: Python<'_>, key: &str, value: Vec<u8>) -> PyResult<bool> {
        released(py, || self.0.put_if_absent(key, value.into()))
    }

    fn get<'py>(&self, py: Python<'py>, key: &str, wait: f64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = released(py, || self.0.get(key, seconds(wait)?))?;
        Ok(found.map(|value| PyBytes::new(py, &value)))
    }

    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<String>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(found) = released(py, || self.0.get_many(&keys))? else { return Ok(None) };
        let values = PyDict::new(py);
        for (key, value) in keys.iter().zip(found) {
            if let Some(value) = value {
                values.set_item(key, PyBytes::new(py, &value))?;
            }
        }
        Ok(Some(values))
    }

    fn remove(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        released(py, || self.0.remove(key))
    }

    fn live(&self, py: Python<'_>) -> PyResult<Option<Vec<usize>>> {
        released(py, || self.0.live())
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// A coordinator, either of the engine or of Python.
#[derive(FromPyObject)]
pub enum CoordinatorIn {
    #[pyo3(transparent)]
    Made(Py<Coordinator>),
    /// A Python object with the protocol.
    #[pyo3(transparent)]
    Foreign(Py<PyAny>),
}

impl CoordinatorIn {
    /// The coordinator. Ctrl-C ends its waits. Reads rank and size only once.
    pub fn into_coordinator(self, py: Python<'_>) -> PyResult<Arc<dyn coordination::Coordinator>> {
        Ok(Arc::new(Interruptible(self.into_found(py)?)))
    }

    fn into_found(self, py: Python<'_>) -> PyResult<Arc<dyn coordination::Coordinator>> {
        let object = match self {
            Self::Made(made) => return Ok(Arc::clone(&made.get().0)),
            Self::Foreign(object) => object,
        };
        let here = object.bind(py);
        // A `regrow.Folder` holds a Rust coordinator, so the engine need not call Python.
        let made = here.getattr(intern!(py, "_native")).and_then(|made| Ok(made.cast_into::<Coordinator>()?));
        if let Ok(made) = made {
            return Ok(Arc::clone(&made.get().0));
        }
        let foreign = Foreign {
            rank: here.getattr(intern!(py, "rank"))?.extract()?,
            size: here.getattr(intern!(py, "size"))?.extract()?,
            value_len_max_bytes: here.getattr(intern!(py, "value_len_max_bytes"))?.extract()?,
            gets_many: here.hasattr(intern!(py, "get_many"))?,
            object,
        };
        Ok(Arc::new(foreign))
    }
}

/// A Python object with the protocol `regrow.Coordinator`.
#[derive(Debug)]
struct Foreign {
    object: Py<PyAny>,
    rank: usize,
    size: usize,
    value_len_max_bytes: usize,
    /// Whether the object has the method `get_many`, which the protocol does not require.
    gets_many: bool,
}

impl Foreign {
    /// Calls a method. A session may be dropped after the interpreter has ended: then the object no
    /// longer exists.
    fn call<T>(
        &self,
        name: &str,
        call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T> {
        let answer = Python::try_attach(|py| {
            let object = self.object.bind(py);
            call(py, object).map_err(|raised| raised_by(object, name, raised))
        });
        answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Io, "Python has ended")))
    }
}

fn raised_by(object: &Bound<'_, PyAny>, name: &str, raised: PyErr) -> Error {
    if !raised.is_instance_of::<PyException>(object.py()) {
        // The exception comes from Ctrl-C, on the thread that receives signals.
        return from_py_err(object.py(), raised);
    }
    let is_late = raised.is_instance_of::<PyTimeoutError>(object.py());
    let kind = if is_late { ErrorKind::TimedOut } else { ErrorKind::Io };
    let class = object.get_type().name().map_or_else(|_| String::new(), |class| class.to_string());
    Error::new(kind, format!("`{name}` of the coordinator {class} raised {raised}"))
        .help("the job's coordination service does not answer: check that rank 0 still runs")
}

impl coordination::Coordinator for Foreign {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool> {
        self.call("put_if_absent", |py, object| {
            object.call_method1(intern!(py, "put_if_absent"), (key, PyBytes::new(py, &value)))?.extract()
        })
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Option<Bytes>> {
        self.call("get", |py, object| {
            let found = object.call_method1(intern!(py, "get"), (key, wait.as_secs_f64()))?;
            Ok(found.extract::<Option<Vec<u8>>>()?.map(Bytes::from))
        })
    }

    fn get_many(&self, keys: &[String]) -> Result<Option<Vec<Option<Bytes>>>> {
        if !self.gets_many {
            return Ok(None);
        }
        self.call("get_many", |py, object| {
            let found = object.call_method1(intern!(py, "get_many"), (PyList::new(py, keys)?,))?;
            let Some(found) = found.extract::<Option<Bound<'_, PyDict>>>()? else { return Ok(None) };
            let value = |key: &String| {
                let value = found.get_item(key)?.map(|value| value.extract::<Vec<u8>>()).transpose()?;
                Ok(value.map(Bytes::from))
            };
            keys.iter().map(value).collect::<PyResult<Vec<_>>>().map(Some)
        })
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.call("remove", |py, object| object.call_method1(intern!(py, "remove"), (key,)).map(drop))
    }

    fn live(&self) -> Result<Option<Vec<usize>>> {
        self.call("live", |py, object| object.call_method0(intern!(py, "live"))?.extract())
    }

    fn value_len_max_bytes(&self) -> usize {
        self.value_len_max_bytes
    }
}

/// A coordinator whose waits end if a signal handler raises, for example for Ctrl-C.
#[derive(Debug)]
struct Interruptible(Arc<dyn coordination::Coordinator>);

impl coordination::Coordinator for Interruptible {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool> {
        self.0.put_if_absent(key, value)
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Option<Bytes>> {
        // A session waits at most one second in each call, so signals are checked often enough.
        check_signals()?;
        self.0.get(key, wait)
    }

    fn get_many(&self, keys: &[String]) -> Result<Option<Vec<Option<Bytes>>>> {
        self.0.get_many(keys)
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.0.remove(key)
    }

    fn live(&self) -> Result<Option<Vec<usize>>> {
        self.0.live()
    }

    fn value_len_max_bytes(&self) -> usize {
        self.0.value_len_max_bytes()
    }
}

/// Calls the handlers of signals that have come, if this thread receives signals. The error is the
/// exception of a handler.
pub fn check_signals() -> Result<()> {
    called(|py| py.check_signals())
}

/// The options of waits between processes: a timeout in seconds, and the prefix of keys.
pub type WaitIn = (f64, Option<String>);

/// The options of a session. Long waits are logged with Python's `logging`.
pub fn session_options((timeout, prefix): WaitIn) -> Result<SessionOptions> {
    let options = SessionOptions::default();
    Ok(SessionOptions {
        timeout: seconds(timeout)?,
        prefix: prefix.unwrap_or(options.prefix),
        on_wait: Some(OnWait::new(log)),
        ..options
    })
}

fn log(waiting: &Waiting) {
    // Ignore an error of the log.
    let _ = Python::try_attach(|py| {
        let logger = py.import("logging")?.call_method1("getLogger", ("regrow",))?;
        logger.call_method1("warning", ("%s", waiting.to_string())).map(drop)
    });
}

fn seconds(seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        Error::invalid(format!("a time-out is a number of seconds: {error}")).expected("0 or more", seconds)
    })
}

/// One save or restore of all processes.
#[pyclass(frozen, module = "regrow._native")]
pub struct Session(Mutex<Option<Arc<coordination::Session>>>);

#[pymethods]
impl Session {
    #[new]
    fn new(
        py: Python<'_>,
        coordinator: CoordinatorIn,
        target: LocationIn,
        purpose: &str,
        wait: WaitIn,
    ) -> PyResult<Self> {
        let coordinator = coordinator.into_coordinator(py)?;
        let target = target.to_location().or_raise()?;
        let options = session_options(wait).or_raise()?;
        let session = released(py, || coordination::Session::begin(coordinator, &target, purpose, options))?;
        Ok(Self(Mutex::new(Some(Arc::new(session)))))
    }

    /// The values of all processes, on rank 0.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        phase: &str,
        value: Vec<u8>,
    ) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        let session = self.session()?;
        let all = released(py, || session.gather(phase, value.into()))?;
        Ok(all.map(|all| all.iter().map(|value| PyBytes::new(py, value)).collect()))
    }

    /// Sends the value of rank 0 to every process.
    fn broadcast<'py>(&self, py: Python<'py>, phase: &str, value: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let session = self.session()?;
        let work = || session.broadcast(phase, || Ok(value.into()));
        Ok(PyBytes::new(py, &released(py, work)?))
    }

    /// Makes a value available to the process that asks for it.
    fn post(&self, py: Python<'_>, phase: &str, value: Vec<u8>) -> PyResult<()> {
        let (session, value) = (self.session()?, value.into());
        released(py, || session.post(phase, &value))
    }

    /// Receives the value of another process.
    fn receive<'py>(&self, py: Python<'py>, phase: &str, rank: usize) -> PyResult<Bound<'py, PyBytes>> {
        let session = self.session()?;
        let work = || session.receive(phase, rank);
        Ok(PyBytes::new(py, &released(py, work)?))
    }

    /// Raises in every process if one of them passes an error: its kind and its text.
    fn agree(&self, py: Python<'_>, phase: &str, error: Option<(String, String)>) -> PyResult<()> {
        let session = self.session()?;
        let result = error.map_or(Ok(()), |(kind, what)| {
            Err(Error::new(ErrorKind::from_name(&kind).unwrap_or(ErrorKind::Io), what))
        });
        released(py, || session.agree(phase, result))
    }

    /// Raises in every process unless all processes see the files that rank 0 writes to the target.
    fn shares_storage(&self, py: Python<'_>, target: LocationIn) -> PyResult<()> {
        let session = self.session()?;
        let target = target.to_location().or_raise()?;
        released(py, || session.shares_storage(&target))
    }

    /// Ends the session successfully.
    fn finish(&self, py: Python<'_>) {
        let session = self.taken();
        py.detach(|| session.and_then(Arc::into_inner).into_iter().for_each(coordination::Session::finish));
    }

    /// Ends the session. If it was not finished, it counts as failed, and the other processes learn
    /// of the failure.
    fn leave(&self, py: Python<'_>) {
        let session = self.taken();
        py.detach(|| drop(session));
    }
}

impl Session {
    fn taken(&self) -> Option<Arc<coordination::Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn session(&self) -> PyResult<Arc<coordination::Session>> {
        let session = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        session.clone().ok_or_else(|| Error::invalid("the session has ended")).or_raise()
    }
}
