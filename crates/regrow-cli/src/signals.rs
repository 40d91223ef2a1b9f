//! The one signal that would end a command before it has cleaned up.

/// Makes a write beyond the process's file size limit (`ulimit -f`) return an error, like a full
/// disk. Otherwise the kernel kills the process, and its temporary files stay. Python does the
/// same.
#[cfg(unix)]
pub fn ignore_file_size_limit() {
    // SAFETY: no handler is set, so nothing runs when the signal comes, on no thread.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Windows has neither such a limit nor the signal.
#[cfg(not(unix))]
pub fn ignore_file_size_limit() {}
