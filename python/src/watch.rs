//! Progress callbacks and Ctrl-C during long work. Both run on the caller's own thread.
//!
//! ```text
//! caller's thread:  waits without the interpreter; checks for signals every 50 ms
//!                     ▲ progress        │ continue, or stop
//! engine's thread:  hook ──────────────▶ waits for the answer
//! ```
//! A callback runs on the thread that called regrow, and the engine's threads never wait for the
//! interpreter. An exception in a callback or a signal handler stops the work, and is raised again
//! after the work has ended. Without a callback, there is no second thread if the caller's thread
//! receives no signals, or if the work is very short.
//!
//! If the system cannot start a second thread, the work runs on the caller's thread. Then the
//! engine's threads call the callback themselves.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use regrow::monitor::Progress;
use regrow::{Error, ErrorKind, Monitor, Result};

use crate::error::{OrRaise, caught, panicked, released};

/// The time between two checks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Work on fewer bytes is so short that Ctrl-C can wait until it ends.
const LONG_FROM_BYTES: u64 = 1 << 20;

/// Whether the caller's thread receives signals, and the progress callback.
pub type WatchIn = (bool, Option<Py<PyAny>>);

/// A time in seconds, which Python has checked.
pub fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

/// A message from the engine's thread to the caller's thread.
enum Event {
    Progress(Progress),
    Done,
}

/// Does `work` on about `len_bytes` bytes without the interpreter.
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

/// Does `work` on the calling thread, without a second thread. The callback is still called, and
/// Ctrl-C is noticed at each call.
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

/// Does `work` without the interpreter. A signal cancels `monitor`, which `work` checks while it
/// waits for other processes.
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
    // Without a callback, no hook waits for an answer.
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

/// Calls `work`. This function fixes the type that the channel carries.
fn run<T>(work: impl FnOnce(Monitor) -> Result<T>, monitor: Monitor) -> Result<T> {
    work(monitor)
}

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
            // The send fails only if the work has ended.
            let _ = answer.send(raised.is_none());
        }
    }
}

/// Sends the message that the work has ended, even after a panic.
struct Done(Sender<Event>);

impl Drop for Done {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Done);
    }
}
