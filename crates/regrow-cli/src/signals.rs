//! The one signal that would end a command before it has cleaned up.

/// Has a write beyond the process's limit on file sizes (`ulimit -f`) fail, as one to a full disk
/// does. Otherwise the kernel kills the process, and what it was writing stays under its temporary
/// name. Python does the same.
#[cfg(unix)]
pub fn ignore_file_size_limit() {
    // SAFETY: no handler is set, so nothing runs when the signal comes, on no thread.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Windows has neither such a limit nor the signal.
#[cfg(not(unix))]
pub fn ignore_file_size_limit() {}
