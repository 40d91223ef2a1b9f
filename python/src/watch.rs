//! Progress callbacks and Ctrl-C during long work, both on the caller's own thread.
//!
//! ```text
//! caller's thread:  waits, the interpreter released; every 50 ms it looks for signals
//!                     ▲ progress        │ go on, or stop
//! engine's thread:  hook ──────────────▶ waits for the answer
//! ```
//! A callback runs on the thread of its caller, like any other function, and the engine's threads
//! never wait for the interpreter. An exception in a callback or a signal handler stops the work,
//! and is raised again after all of the work has ended. There is no second thread without a
//! callback, on a thread that gets no signals, for very short work, or if the system gives no
//! thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use regrow::monitor::Progress;
use regrow::{Error, ErrorKind, Monitor, Result};

use crate::error::{OrRaise, caught, panicked, released};

/// How often the thread looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Below this many bytes a Ctrl-C can wait.
const LONG_FROM_BYTES: u64 = 1 << 20;

/// Whether the caller is on the thread that gets signals, and its progress callback.
pub type WatchIn = (bool, Option<Py<PyAny>>);

/// A message of the engine's thread to the caller's thread.
enum Event {
    Progress(Progress),
    Done,
}

/// Does `work` of about `len_bytes` with the interpreter released.
pub fn watched<T: Send>(
    py: Python<'_>,
    (gets_signals, progress): WatchIn,
    len_bytes: u64,
    work: impl FnOnce(Monitor) -> Result<T> + Send,
) -> PyResult<T> {
    if progress.is_none() && (!gets_signals || len_bytes < LONG_FROM_BYTES) {
        return released(py, || work(Monitor::new()));
    }
    let (tell, told) = channel();
    let (answer, answers) = channel();
    let monitor = match &progress {
        Some(_) => Monitor::with_hook(ask(tell.clone(), answers)),
        None => Monitor::new(),
    };
    let callback = progress.as_ref();
    // A thread that fails to start drops its closure, so send the work only to a started thread.
    let (hand_over, taken) = channel();
    let started = py.detach(move || {
        std::thread::scope(|scope| {
            let watched = monitor.clone();
            let thread = std::thread::Builder::new().name("regrow-work".to_owned());
            let thread = thread.spawn_scoped(scope, move || {
                let _done = Done(tell);
                match taken.recv() {
                    Ok(work) => caught(|| run(work, watched)),
                    Err(_) => Err(Error::new(ErrorKind::Io, "a thread was started and given no work")),
                }
            });
            let Ok(thread) = thread else { return Err(work) };
            // The send cannot fail, because the thread waits for the work.
            let _ = hand_over.send(work);
            let raised = attend(&monitor, &told, &answer, callback);
            Ok((thread.join().unwrap_or_else(|panic| Err(panicked(&*panic))), raised))
        })
    });
    let (result, raised) = match started {
        Ok(ended) => ended,
        Err(work) => return unwatched(py, progress, work),
    };
    match raised {
        // Raise only now: the work has stopped and removed its temporary files.
        Some(raised) => Err(raised),
        None => result.or_raise(),
    }
}

/// Does `work` on the calling thread, which is the only one there is: the callback is called as
/// well, and Ctrl-C is noticed where the callback would be.
fn unwatched<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(Monitor) -> Result<T> + Send,
) -> PyResult<T> {
    let raised = Arc::new(Mutex::new(None));
    let first = raised.clone();
    let monitor = Monitor::with_hook(move |state| {
        let called = Python::attach(|py| {
            py.check_signals()?;
            let call =
                |progress: &Py<PyAny>| progress.call1(py, (state.done_bytes, state.total_bytes)).map(drop);
            progress.as_ref().map_or(Ok(()), call)
        });
        called.map_err(|error| {
            first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            Error::new(ErrorKind::Cancelled, "the progress callback raised")
        })
    });
    let result = released(py, || work(monitor));
    match raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(raised) => Err(raised),
        None => result,
    }
}

/// Does `work`, which looks at `monitor` while it waits for others, with the interpreter released:
/// a signal cancels it.
pub fn cancellable<T: Send>(
    py: Python<'_>,
    gets_signals: bool,
    monitor: &Monitor,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    if !gets_signals {
        return released(py, work);
    }
    let (tell, told) = channel();
    // Without a callback no receiver is needed.
    let (answer, _answers) = channel();
    let (result, raised) = py.detach(move || {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let _done = Done(tell);
                caught(work)
            });
            let raised = attend(monitor, &told, &answer, None);
            (thread.join().unwrap_or_else(|panic| Err(panicked(&*panic))), raised)
        })
    });
    raised.map_or_else(|| result.or_raise(), Err)
}

/// Fixes the type that the channel carries.
fn run<T>(work: impl FnOnce(Monitor) -> Result<T>, monitor: Monitor) -> Result<T> {
    work(monitor)
}

/// The hook: asks the caller's thread.
fn ask(
    tell: Sender<Event>,
    answers: Receiver<bool>,
) -> impl Fn(Progress) -> Result<()> + Send + Sync + 'static {
    let answers = Mutex::new(answers);
    move |progress| {
        let answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = tell.send(Event::Progress(progress)).is_ok() && answers.recv().unwrap_or(false);
        if goes_on { Ok(()) } else { Err(Error::new(ErrorKind::Cancelled, "the progress callback raised")) }
    }
}

/// Waits until the work is done: calls the callback when the hook asks, and looks for signals.
/// Returns a raised exception.
fn attend(
    monitor: &Monitor,
    told: &Receiver<Event>,
    answer: &Sender<bool>,
    progress: Option<&Py<PyAny>>,
) -> Option<PyErr> {
    let mut raised = None;
    loop {
        let event = told.recv_timeout(LOOK_EVERY);
        if matches!(event, Ok(Event::Done) | Err(RecvTimeoutError::Disconnected)) {
            return raised;
        }
        if raised.is_none() {
            let called = Python::attach(|py| {
                py.check_signals()?;
                match (&event, progress) {
                    (Ok(Event::Progress(state)), Some(progress)) => {
                        progress.call1(py, (state.done_bytes, state.total_bytes)).map(drop)
                    }
                    _ => Ok(()),
                }
            });
            if let Err(error) = called {
                monitor.cancel();
                raised = Some(error);
            }
        }
        if event.is_ok() {
            // The receiver is gone only if the work has ended.
            let _ = answer.send(raised.is_none());
        }
    }
}

/// Says that the work is done, also if it panics.
struct Done(Sender<Event>);

impl Drop for Done {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Done);
    }
}
