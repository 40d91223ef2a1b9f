//! Ignores the signal that would end a command before it has cleaned up.

/// Makes a write beyond the process's file size limit (`ulimit -f`) return an error, like a full
/// disk. Otherwise the kernel kills the process, and its temporary files stay. Python does the
/// same.
#[cfg(unix)]
pub fn ignore_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler, so no code runs when the signal comes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Does nothing: Windows has neither this limit nor this signal.
#[cfg(not(unix))]
pub fn ignore_file_size_limit() {}
