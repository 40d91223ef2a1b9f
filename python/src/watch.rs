//! Long work under the eyes of Python: progress callbacks and Ctrl-C, both on the caller's own thread.
//!
//! ```text
//! caller's thread:  waits, the interpreter released; every 50 ms it looks for signals
//!                     ▲ progress        │ go on, or stop
//! engine's thread:  hook ──────────────▶ waits for the answer
//! ```
//! A callback is thus called where its caller is, as any other function, and the engine's threads never wait for
//! the interpreter. What a callback or a signal handler raises ends the work and is raised again when nothing of the
//! work is left. Without a callback, on a thread that gets no signals, and for work that is over in a moment
//! anyway, there is no second thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use regrow::monitor::Progress;
use regrow::{Error, ErrorKind, Monitor, Result};

use crate::error::OrRaise;

/// How soon a signal is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Below this many bytes a Ctrl-C can wait.
const LONG_FROM_BYTES: u64 = 1 << 20;

/// Whether the caller is on the thread that gets signals, and what it wants to be told.
pub type WatchIn = (bool, Option<Py<PyAny>>);

/// What the engine's thread says to the caller's.
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
        return py.detach(|| work(Monitor::new())).or_raise();
    }
    let (tell, told) = channel();
    let (answer, answers) = channel();
    let monitor = match &progress {
        Some(_) => Monitor::with_hook(ask(tell.clone(), answers)),
        None => Monitor::new(),
    };
    let callback = progress.as_ref();
    let (result, raised) = py.detach(move || {
        std::thread::scope(|scope| {
            let watched = monitor.clone();
            let thread =
                std::thread::Builder::new().name("regrow-work".to_owned()).spawn_scoped(scope, || {
                    let _done = Done(tell);
                    work(watched)
                });
            let raised = match &thread {
                Ok(_) => attend(&monitor, &told, &answer, callback),
                Err(_) => None,
            };
            let result = thread
                .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start a thread: {error}")))
                .and_then(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            (result, raised)
        })
    });
    match raised {
        // Raised only now: the work has stopped, and removed what it had begun.
        Some(raised) => Err(raised),
        None => result.or_raise(),
    }
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

/// Until the work is done: calls the callback when the hook asks, and looks for signals. What was raised.
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
            // Nobody waits for the answer only if the work is at its end.
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
