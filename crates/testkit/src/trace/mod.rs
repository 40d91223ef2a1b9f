//! A child process under `ptrace`: an [`Observer`] sees its system calls, and may kill it or let a
//! call fail.
//!
//! The child calls [`mark`] before and after the tested code. The observer sees only calls between
//! the two marks, in every thread that starts there. The engine makes system calls without libc, so
//! a preloaded library would not see them.
//!
//! ```text
//! parent: run(child, writes, 7, Fault::Kill)      before the eighth call that writes: SIGKILL
//! parent: run(child, touches, 7, Fault::Fail(5))  the eighth call is not made, and returns EIO
//! ```
//! It works only on Linux on x86-64, because other processors have other registers.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use libc::{c_int, c_long, c_void, pid_t};

/// Set for the child, so that marks do nothing in an untraced process.
const IS_TRACED: &str = "REGROW_TEST_IS_TRACED";

/// A system call that will be made.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The number of the call.
    pub number: c_long,
    /// The arguments of the call.
    pub arguments: [u64; 6],
}

impl Call {
    /// The name of the call; `None` for calls that no test uses.
    pub fn name(&self) -> Option<&'static str> {
        CALLS.iter().find(|(number, ..)| *number == self.number).map(|(_, name, _)| *name)
    }
}

/// The calls that make, change or look at files, and whether each changes something.
const CALLS: [(c_long, &str, bool); 45] = [
    (libc::SYS_write, "write", true),
    (libc::SYS_writev, "writev", true),
    (libc::SYS_pwrite64, "pwrite64", true),
    (libc::SYS_pwritev, "pwritev", true),
    (libc::SYS_pwritev2, "pwritev2", true),
    (libc::SYS_copy_file_range, "copy_file_range", true),
    (libc::SYS_sendfile, "sendfile", true),
    (libc::SYS_fsync, "fsync", true),
    (libc::SYS_fdatasync, "fdatasync", true),
    (libc::SYS_syncfs, "syncfs", true),
    (libc::SYS_sync, "sync", true),
    (libc::SYS_rename, "rename", true),
    (libc::SYS_renameat, "renameat", true),
    (libc::SYS_renameat2, "renameat2", true),
    (libc::SYS_mkdir, "mkdir", true),
    (libc::SYS_mkdirat, "mkdirat", true),
    (libc::SYS_link, "link", true),
    (libc::SYS_linkat, "linkat", true),
    (libc::SYS_symlink, "symlink", true),
    (libc::SYS_symlinkat, "symlinkat", true),
    (libc::SYS_unlink, "unlink", true),
    (libc::SYS_unlinkat, "unlinkat", true),
    (libc::SYS_rmdir, "rmdir", true),
    (libc::SYS_truncate, "truncate", true),
    (libc::SYS_ftruncate, "ftruncate", true),
    (libc::SYS_fallocate, "fallocate", true),
    (libc::SYS_chmod, "chmod", true),
    (libc::SYS_fchmod, "fchmod", true),
    (libc::SYS_fchmodat, "fchmodat", true),
    (libc::SYS_chown, "chown", true),
    (libc::SYS_fchown, "fchown", true),
    (libc::SYS_fchownat, "fchownat", true),
    (libc::SYS_lchown, "lchown", true),
    (libc::SYS_open, "open", false),
    (libc::SYS_openat, "openat", false),
    (libc::SYS_creat, "creat", true),
    (libc::SYS_flock, "flock", false),
    (libc::SYS_getdents64, "getdents64", false),
    (libc::SYS_stat, "stat", false),
    (libc::SYS_lstat, "lstat", false),
    (libc::SYS_fstat, "fstat", false),
    (libc::SYS_newfstatat, "newfstatat", false),
    (libc::SYS_statx, "statx", false),
    (libc::SYS_fcntl, "fcntl", false),
    (libc::SYS_readlink, "readlink", false),
];

/// Whether a call changes something on disk, or syncs it.
pub fn writes(call: &Call) -> bool {
    let creates = match call.number {
        libc::SYS_openat => call.arguments[2] & libc::O_CREAT as u64 != 0,
        libc::SYS_open => call.arguments[1] & libc::O_CREAT as u64 != 0,
        _ => false,
    };
    creates || CALLS.iter().any(|&(number, _, changes)| changes && number == call.number)
}

/// Whether a call concerns files.
pub fn touches(call: &Call) -> bool {
    call.name().is_some()
}

/// The fault at the chosen call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Kills the process before the call is made.
    Kill,
    /// Skips the call, which returns this error number.
    Fail(c_int),
}

/// The result of a child.
#[derive(Debug)]
pub struct Run {
    /// The name of the call with the fault; `None` if there were fewer calls.
    pub hit: Option<&'static str>,
    /// The exit code; `None` if a signal ended the child.
    pub code: Option<i32>,
    /// The output to stdout.
    pub stdout: String,
}

/// Marks the beginning or the end of the tested code. Does nothing in a process that is not traced.
pub fn mark() {
    if std::env::var_os(IS_TRACED).is_some() {
        // SAFETY: the signal stops the process until the tracer continues it; no handler runs.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

/// The decision about a call that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Makes the call.
    Make,
    /// Skips the call: kills the process, or returns an error.
    Fault(Fault),
}

/// Observes the calls between the marks.
pub trait Observer {
    /// Called at a mark. `is_first` is true for the mark before the tested code.
    fn at_mark(&mut self, is_first: bool) -> io::Result<()>;

    /// Called before a thread makes a call.
    fn begins(&mut self, thread: pid_t, call: &Call) -> io::Result<Action>;

    /// Called after a call of a thread. A negative result is an error number.
    fn ended(&mut self, thread: pid_t, result: i64) -> io::Result<()>;
}

/// A fault at one chosen call.
struct Injection {
    chosen: fn(&Call) -> bool,
    at: usize,
    fault: Fault,
    count: usize,
    hit: Option<&'static str>,
}

impl Observer for Injection {
    fn at_mark(&mut self, _is_first: bool) -> io::Result<()> {
        Ok(())
    }

    fn begins(&mut self, _thread: pid_t, call: &Call) -> io::Result<Action> {
        if !(self.chosen)(call) {
            return Ok(Action::Make);
        }
        self.count += 1;
        if self.count != self.at + 1 {
            return Ok(Action::Make);
        }
        self.hit = Some(call.name().unwrap_or("another"));
        Ok(Action::Fault(self.fault))
    }

    fn ended(&mut self, _thread: pid_t, _result: i64) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a child to its end. The fault is at call number `at`, counted from 0, among the calls for
/// which `chosen` returns true.
///
/// # Errors
/// Errors of the system; `EPERM` if tracing is not allowed.
pub fn run(command: &mut Command, chosen: fn(&Call) -> bool, at: usize, fault: Fault) -> io::Result<Run> {
    let mut injection = Injection { chosen, at, fault, count: 0, hit: None };
    let (code, stdout) = observe(command, &mut injection)?;
    Ok(Run { hit: injection.hit, code, stdout })
}

/// Runs a child to its end. Returns its exit code (`None` if a signal ended it) and its output to
/// stdout.
///
/// # Errors
/// Errors of the system or the observer; `EPERM` if tracing is not allowed.
pub fn observe(command: &mut Command, observer: &mut impl Observer) -> io::Result<(Option<i32>, String)> {
    command.env(IS_TRACED, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: between fork and exec the child makes this one system call and nothing else.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn()?;
    let main = pid_t::try_from(child.id()).map_err(io::Error::other)?;
    let code = Tracer { main, observer, marks: 0, seen: HashMap::new() }.trace();
    if code.is_err() {
        let _ = child.kill();
    }
    let mut stdout = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        io::Read::read_to_string(&mut pipe, &mut stdout)?;
    }
    Ok((code?, stdout))
}

/// The position of a thread: in a system call or outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Outside,
    /// The thread is in a call, which will return this error number, if any.
    Inside(Option<c_int>),
}

struct Tracer<'o, O> {
    main: pid_t,
    observer: &'o mut O,
    marks: usize,
    /// The threads whose first stop has been seen.
    seen: HashMap<pid_t, At>,
}

impl<O: Observer> Tracer<'_, O> {
    fn is_between_marks(&self) -> bool {
        self.marks % 2 == 1
    }

    fn trace(&mut self) -> io::Result<Option<i32>> {
        loop {
            let mut status = 0;
            // SAFETY: `status` is written, nothing else. Only tracees of this thread are waited
            // for: other tests of this process have children of their own.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
            if pid < 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                if pid == self.main {
                    return Ok(libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)));
                }
                continue;
            }
            let signal = self.stopped(pid, status)?;
            let request = if self.is_between_marks() { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
            // If the thread was killed in between, the next wait reports it.
            let _ = trace(request, pid, std::ptr::null_mut(), signal as usize as *mut c_void);
        }
    }

    /// Handles a stopped thread. Returns the signal with which it continues.
    fn stopped(&mut self, pid: pid_t, status: c_int) -> io::Result<c_int> {
        let signal = libc::WSTOPSIG(status);
        let is_new = !self.seen.contains_key(&pid);
        if signal == libc::SIGTRAP | 0x80 {
            self.at_call(pid)?;
            return Ok(0);
        }
        if is_new {
            self.seen.insert(pid, At::Outside);
            if pid == self.main {
                let options =
                    libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
                trace(libc::PTRACE_SETOPTIONS, pid, std::ptr::null_mut(), options as usize as *mut c_void)?;
            }
            return Ok(0);
        }
        match signal {
            libc::SIGTRAP => Ok(0),
            libc::SIGSTOP => {
                self.marks += 1;
                self.observer.at_mark(self.is_between_marks())?;
                Ok(0)
            }
            other => Ok(other),
        }
    }

    /// Handles the beginning or the end of a call.
    fn at_call(&mut self, pid: pid_t) -> io::Result<()> {
        let at = self.seen.get(&pid).copied().unwrap_or(At::Outside);
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::uninit();
        let is_read =
            trace(libc::PTRACE_GETREGS, pid, std::ptr::null_mut(), registers.as_mut_ptr().cast()).is_ok();
        let next = if at == At::Outside { At::Inside(None) } else { At::Outside };
        self.seen.insert(pid, next);
        if !is_read {
            return Ok(());
        }
        // SAFETY: the call above has filled all of it.
        let mut registers = unsafe { registers.assume_init() };
        match at {
            At::Outside => {
                let arguments =
                    [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
                let call = Call { number: registers.orig_rax.cast_signed(), arguments };
                match self.observer.begins(pid, &call)? {
                    Action::Make => return Ok(()),
                    Action::Fault(Fault::Kill) => {
                        // SAFETY: the process is a child of ours that has not been waited for.
                        unsafe { libc::kill(self.main, libc::SIGKILL) };
                        return Ok(());
                    }
                    Action::Fault(Fault::Fail(number)) => {
                        // No call has this number, so the kernel does nothing.
                        registers.orig_rax = u64::MAX;
                        self.seen.insert(pid, At::Inside(Some(number)));
                    }
                }
            }
            At::Inside(None) => return self.observer.ended(pid, registers.rax.cast_signed()),
            At::Inside(Some(number)) => registers.rax = i64::from(-number).cast_unsigned(),
        }
        trace(libc::PTRACE_SETREGS, pid, std::ptr::null_mut(), (&raw mut registers).cast())
    }
}

fn trace(request: libc::c_uint, pid: pid_t, address: *mut c_void, data: *mut c_void) -> io::Result<()> {
    // SAFETY: `pid` is a tracee of this thread that has stopped; `data` is a number, or points to
    // registers that live until the call returns.
    match unsafe { libc::ptrace(request, pid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The child of other tests: does nothing unless it is traced.
    #[test]
    fn makes_a_file_and_a_folder() {
        if let Some(folder) = std::env::var_os("REGROW_TEST_TRACED_FOLDER") {
            let folder = std::path::Path::new(&folder);
            mark();
            let made = std::fs::write(folder.join("file"), b"x")
                .and_then(|()| std::fs::create_dir(folder.join("sub")));
            mark();
            println!("RESULT {:?}", made.map_err(|error| error.raw_os_error()));
        }
    }

    #[test]
    fn the_chosen_call_is_not_made() {
        let expected = [("openat", 0), ("write", 1), ("mkdir", 1)];
        for fault in [Fault::Kill, Fault::Fail(libc::ENOSPC)] {
            for at in 0..=3 {
                let folder = tempfile::tempdir().unwrap();
                let mut child = Command::new(std::env::current_exe().unwrap());
                child.args(["--exact", "trace::tests::makes_a_file_and_a_folder", "--nocapture"]);
                child.env("REGROW_TEST_TRACED_FOLDER", folder.path());
                let run = match run(&mut child, writes, at, fault) {
                    Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                        eprintln!("not tested: this system lets no process be traced ({error})");
                        return;
                    }
                    ended => ended.unwrap(),
                };
                let left = std::fs::read_dir(folder.path()).unwrap().count();
                match expected.get(at) {
                    Some((name, entries)) => {
                        assert_eq!((run.hit, left), (Some(*name), *entries), "{run:?}");
                        match fault {
                            Fault::Kill => assert_eq!(run.code, None),
                            Fault::Fail(_) => assert!(run.stdout.contains("RESULT Err(Some(28))"), "{run:?}"),
                        }
                    }
                    None => assert!(run.stdout.contains("RESULT Ok(())") && left == 2, "{run:?}"),
                }
            }
        }
    }
}
