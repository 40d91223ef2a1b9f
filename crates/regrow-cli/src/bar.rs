//! A progress bar on stderr. It is shown only on a terminal, and only if the work takes more than a
//! second.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use regrow::Monitor;

/// If the work takes less time than this, no bar is shown.
const SHOW_AFTER: Duration = Duration::from_secs(1);

const TICK_EVERY: Duration = Duration::from_millis(500);

const TEMPLATE: &str = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";

/// A bar that appears after a second of work. Dropping it removes it from the terminal.
#[derive(Debug)]
pub struct Bar(Arc<OnceLock<Ticking>>);

/// A bar, and a channel. The end of the channel stops the thread that moves the bar.
#[derive(Debug)]
struct Ticking(ProgressBar, #[expect(dead_code, reason = "its end is what is told")] Sender<()>);

impl Bar {
    /// Makes a bar for one task, and the monitor that moves the bar. `is_wanted` is false if the
    /// user wants no bar.
    pub fn new(message: &'static str, is_wanted: bool) -> (Self, Monitor) {
        let shown = Arc::new(OnceLock::new());
        let bar = Self(shown.clone());
        if !is_wanted || !std::io::stderr().is_terminal() {
            return (bar, Monitor::new());
        }
        let began = Instant::now();
        let monitor = Monitor::with_hook(move |progress| {
            if began.elapsed() >= SHOW_AFTER {
                let Ticking(bar, _) = shown.get_or_init(|| visible(message));
                bar.set_length(progress.total_bytes);
                bar.set_position(progress.done_bytes);
            }
            Ok(())
        });
        (bar, monitor)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(Ticking(bar, _)) = self.0.get() {
            bar.finish_and_clear();
        }
    }
}

fn visible(message: &'static str) -> Ticking {
    let bar =
        ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)).with_message(message);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style);
    }
    let (ticks, ended) = channel();
    let ticking = bar.clone();
    // A thread moves the bar while the disk syncs. indicatif's own thread panics if it cannot
    // start.
    let _ = std::thread::Builder::new().name("regrow-bar".to_owned()).spawn(move || {
        while ended.recv_timeout(TICK_EVERY) == Err(RecvTimeoutError::Timeout) && !ticking.is_finished() {
            ticking.tick();
        }
    });
    Ticking(bar, ticks)
}
