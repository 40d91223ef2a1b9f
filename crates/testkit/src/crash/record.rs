//! Records the system calls of a child as changes of a disk.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{fs, io};

use libc::pid_t;

use super::disk::{Change, Disk, Inode, ROOT, name, unsupported};
use crate::trace::{Action, Call, Observer, observe, writes};

const PATH_LEN_MAX: usize = 4096;

/// A call as a change or a sync of the disk.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A change that a crash may lose.
    Change(Change),
    /// A sync. Changes before the event with number `before` are on the disk now.
    Sync { what: Synced, before: usize },
}

/// The part of the disk that a sync writes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Synced {
    /// A file, or the names in a folder.
    Inode(Inode),
    All,
}

/// The calls of a child that concern a folder, in order.
#[derive(Debug)]
pub struct Recording {
    pub(super) before: Disk,
    pub(super) events: Vec<Event>,
    /// Whether the recorded changes lead to the final content of the folder. Calls of several
    /// threads at once may be recorded in the wrong order; then the recording is useless.
    pub is_right: bool,
    /// The exit code of the child; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The child's output to stdout.
    pub stdout: String,
}

impl Recording {
    /// The number of calls that changed or synced something.
    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    /// The number of calls that synced something.
    pub fn sync_count(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Sync { .. })).count()
    }
}

/// Runs a child that calls [`crate::trace::mark`], and records its calls that concern a folder.
///
/// # Errors
/// Errors of the system; `EPERM` if tracing is not allowed; `Unsupported` for a call that the model
/// of a disk does not have.
pub fn record(command: &mut Command, root: &Path) -> io::Result<Recording> {
    let mut recorder = Recorder {
        root: root.to_owned(),
        device: fs::metadata(root)?.dev(),
        before: None,
        now: Disk::of_folder(root)?.0,
        known: BTreeMap::new(),
        events: Vec::new(),
        pending: HashMap::new(),
    };
    let (code, stdout) = observe(command, &mut recorder)?;
    let mut before = recorder.before.ok_or_else(|| io::Error::other("the child has reached no mark"))?;
    // Add the inodes that the child creates later. They have no name yet.
    while before.inode_count() < recorder.now.inode_count() {
        let inode = before.inode_count();
        before.create(recorder.now.is_folder(inode));
    }
    let is_right = recorder.now.listing() == Disk::of_folder(root)?.0.listing();
    Ok(Recording { before, events: recorder.events, is_right, code, stdout })
}

struct Recorder {
    root: PathBuf,
    device: u64,
    before: Option<Disk>,
    /// The disk as the running system shows it, with all changes.
    now: Disk,
    /// The inodes by the system's inode numbers.
    known: BTreeMap<u64, Inode>,
    events: Vec<Event>,
    /// The calls of threads that have begun. They are recorded when they end.
    pending: HashMap<pid_t, Pending>,
}

/// A call that has begun.
#[derive(Debug)]
enum Pending {
    /// An open that may create a file: the folder and name, or a file without a name.
    Open {
        at: Option<(Inode, String)>,
        truncates: bool,
    },
    Write {
        thread: pid_t,
        fd: u64,
        file: Inode,
        offset: u64,
    },
    Names(Vec<(Inode, String, Option<Inode>)>),
    NewFolder {
        path: PathBuf,
        at: (Inode, String),
    },
    Resize {
        file: Inode,
        len: usize,
    },
    Grow {
        file: Inode,
        len: usize,
    },
    Sync {
        what: Synced,
        before: usize,
    },
}

impl Observer for Recorder {
    fn at_mark(&mut self, is_first: bool) -> io::Result<()> {
        if is_first && self.before.is_none() {
            (self.now, self.known) = Disk::of_folder(&self.root)?;
            self.before = Some(self.now.clone());
        }
        Ok(())
    }

    fn begins(&mut self, thread: pid_t, call: &Call) -> io::Result<Action> {
        if (writes(call) || opens_to_write(call))
            && let Some(pending) = self.pending(&Caller { thread, call })?
        {
            self.pending.insert(thread, pending);
        }
        Ok(Action::Make)
    }

    fn ended(&mut self, thread: pid_t, result: i64) -> io::Result<()> {
        match self.pending.remove(&thread) {
            Some(pending) if result >= 0 => self.done(thread, pending, result),
            _ => Ok(()),
        }
    }
}

/// Whether a call opens a file without a name, or truncates a file.
fn opens_to_write(call: &Call) -> bool {
    let [_, second, third, ..] = call.arguments;
    let flags = match call.number {
        libc::SYS_openat => third,
        libc::SYS_open => second,
        _ => return false,
    };
    flags & libc::O_TRUNC as u64 != 0 || flags & libc::O_TMPFILE as u64 == libc::O_TMPFILE as u64
}

impl Recorder {
    /// The effect that a call will have on the folder; `None` if it has none.
    fn pending(&self, caller: &Caller<'_>) -> io::Result<Option<Pending>> {
        let [first, second, third, fourth, fifth, _] = caller.call.arguments;
        let here = libc::AT_FDCWD as u64;
        Ok(match caller.call.number {
            libc::SYS_openat => self.open(caller, first, second, third)?,
            libc::SYS_open => self.open(caller, here, first, second)?,
            libc::SYS_creat => {
                self.open(caller, here, first, (libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY) as u64)?
            }
            libc::SYS_write | libc::SYS_writev => self.write(caller, first, caller.position(first)?)?,
            libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 => {
                self.write(caller, first, fourth)?
            }
            libc::SYS_copy_file_range => {
                let offset = match fourth {
                    0 => caller.position(third)?,
                    address => caller.number(address)?,
                };
                self.write(caller, third, offset)?
            }
            libc::SYS_sendfile => self.write(caller, first, caller.position(first)?)?,
            libc::SYS_fsync | libc::SYS_fdatasync => self
                .of_descriptor(caller, first)?
                .map(|inode| Pending::Sync { what: Synced::Inode(inode), before: self.events.len() }),
            libc::SYS_syncfs | libc::SYS_sync => {
                Some(Pending::Sync { what: Synced::All, before: self.events.len() })
            }
            libc::SYS_ftruncate => self
                .of_descriptor(caller, first)?
                .map(|file| Pending::Resize { file, len: usize::try_from(second).unwrap_or(usize::MAX) }),
            libc::SYS_fallocate => match self.of_descriptor(caller, first)? {
                None => None,
                Some(_) if second == libc::FALLOC_FL_KEEP_SIZE as u64 => None,
                Some(file) if second == 0 => {
                    Some(Pending::Grow { file, len: usize::try_from(third + fourth).unwrap_or(usize::MAX) })
                }
                Some(_) => return Err(unsupported(format!("fallocate with the mode {second}"))),
            },
            libc::SYS_mkdir => self.new_folder(caller, here, first)?,
            libc::SYS_mkdirat => self.new_folder(caller, first, second)?,
            libc::SYS_unlink | libc::SYS_rmdir => self.unlink(caller, here, first)?,
            libc::SYS_unlinkat => self.unlink(caller, first, second)?,
            libc::SYS_rename => self.rename(caller, (here, first), (here, second), 0)?,
            libc::SYS_renameat => self.rename(caller, (first, second), (third, fourth), 0)?,
            libc::SYS_renameat2 => self.rename(caller, (first, second), (third, fourth), fifth)?,
            libc::SYS_link => self.link(caller, (here, first), (here, second), 0)?,
            libc::SYS_linkat => self.link(caller, (first, second), (third, fourth), fifth)?,
            libc::SYS_truncate | libc::SYS_symlink | libc::SYS_symlinkat => {
                return Err(unsupported(caller.call.name().unwrap_or("a call").to_owned()));
            }
            // Readers do not depend on modes and owners.
            _ => None,
        })
    }

    fn open(&self, caller: &Caller<'_>, folder: u64, path: u64, flags: u64) -> io::Result<Option<Pending>> {
        let has = |flag: libc::c_int| flags & flag as u64 == flag as u64;
        let path = caller.path(folder, path)?;
        if has(libc::O_TMPFILE) {
            return Ok(self.known(&path).map(|_| Pending::Open { at: None, truncates: false }));
        }
        let truncates = has(libc::O_TRUNC);
        Ok(self.place(&path)?.map(|at| Pending::Open { at: Some(at), truncates }))
    }

    fn write(&self, caller: &Caller<'_>, fd: u64, offset: u64) -> io::Result<Option<Pending>> {
        let thread = caller.thread;
        Ok(self.of_descriptor(caller, fd)?.map(|file| Pending::Write { thread, fd, file, offset }))
    }

    fn new_folder(&self, caller: &Caller<'_>, folder: u64, path: u64) -> io::Result<Option<Pending>> {
        let path = caller.path(folder, path)?;
        Ok(self.place(&path)?.map(|at| Pending::NewFolder { path, at }))
    }

    fn unlink(&self, caller: &Caller<'_>, folder: u64, path: u64) -> io::Result<Option<Pending>> {
        let place = self.place(&caller.path(folder, path)?)?;
        Ok(place.map(|(folder, name)| Pending::Names(vec![(folder, name, None)])))
    }

    fn rename(
        &self,
        caller: &Caller<'_>,
        from: (u64, u64),
        to: (u64, u64),
        flags: u64,
    ) -> io::Result<Option<Pending>> {
        let from = self.place(&caller.path(from.0, from.1)?)?;
        let to = self.place(&caller.path(to.0, to.1)?)?;
        let (from, to) = match (from, to) {
            (None, None) => return Ok(None),
            (Some(from), Some(to)) => (from, to),
            _ => return Err(unsupported("a rename into or out of the folder".to_owned())),
        };
        let moved = self.now.find(from.0, &from.1);
        let replaced = self.now.find(to.0, &to.1);
        let exchanged = if flags & u64::from(libc::RENAME_EXCHANGE) != 0 { replaced } else { None };
        Ok(Some(Pending::Names(vec![(from.0, from.1, exchanged), (to.0, to.1, moved)])))
    }

    fn link(
        &self,
        caller: &Caller<'_>,
        from: (u64, u64),
        to: (u64, u64),
        flags: u64,
    ) -> io::Result<Option<Pending>> {
        let Some((folder, name)) = self.place(&caller.path(to.0, to.1)?)? else { return Ok(None) };
        let is_descriptor = flags & libc::AT_EMPTY_PATH as u64 != 0 && caller.text(from.1)?.is_empty();
        let file = match is_descriptor {
            true => self.of_descriptor(caller, from.0)?,
            false => self.known(&caller.path(from.0, from.1)?),
        };
        match file {
            Some(file) => Ok(Some(Pending::Names(vec![(folder, name, Some(file))]))),
            None => Err(unsupported("a link to a file of another folder".to_owned())),
        }
    }

    fn done(&mut self, thread: pid_t, pending: Pending, result: i64) -> io::Result<()> {
        match pending {
            Pending::Open { at, truncates } => {
                let opened = fs::metadata(format!("/proc/{thread}/fd/{result}"))?;
                let existing = at.as_ref().and_then(|(folder, name)| self.now.find(*folder, name));
                match (existing, at) {
                    (Some(file), _) if truncates => self.change(Change::Resize { file, len: 0 }),
                    (Some(_), _) => {}
                    (None, at) => {
                        let file = self.now.create(false);
                        self.known.insert(opened.ino(), file);
                        if let Some((folder, name)) = at {
                            self.change(Change::Names(vec![(folder, name, Some(file))]));
                        }
                    }
                }
            }
            Pending::Write { thread, fd, file, offset } => {
                let mut bytes = vec![0; usize::try_from(result).unwrap_or_default()];
                let source = fs::File::open(format!("/proc/{thread}/fd/{fd}"))?;
                source.read_exact_at(&mut bytes, offset)?;
                let offset = usize::try_from(offset).map_err(io::Error::other)?;
                self.change(Change::Bytes { file, offset, bytes: Arc::new(bytes) });
            }
            Pending::Names(names) => self.change(Change::Names(names)),
            Pending::NewFolder { path, at: (parent, name) } => {
                let folder = self.now.create(true);
                self.known.insert(fs::symlink_metadata(path)?.ino(), folder);
                self.change(Change::Names(vec![(parent, name, Some(folder))]));
            }
            Pending::Resize { file, len } => self.change(Change::Resize { file, len }),
            Pending::Grow { file, len } => {
                if len > self.now.len_bytes(file) {
                    self.change(Change::Grow { file, len });
                }
            }
            Pending::Sync { what, before } => self.events.push(Event::Sync { what, before }),
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        self.now.apply(&change);
        self.events.push(Event::Change(change));
    }

    fn known(&self, path: &Path) -> Option<Inode> {
        let found = fs::metadata(path).ok()?;
        (found.dev() == self.device).then(|| self.known.get(&found.ino()).copied()).flatten()
    }

    /// The folder and name for a path, if the path is in the recorded folder.
    fn place(&self, path: &Path) -> io::Result<Option<(Inode, String)>> {
        let (Some(parent), Some(last)) = (path.parent(), path.file_name()) else { return Ok(None) };
        match self.known(parent) {
            Some(folder) => Ok(Some((folder, name(last)?))),
            None => Ok(None),
        }
    }

    fn of_descriptor(&self, caller: &Caller<'_>, fd: u64) -> io::Result<Option<Inode>> {
        let path = caller.descriptor(fd);
        match fs::metadata(&path) {
            Ok(found) if found.is_file() || found.is_dir() => Ok(self.known(&path)),
            // The descriptor is a pipe or not valid. The call itself reports this.
            _ => Ok(None),
        }
    }
}

/// A thread that makes a call, and access to its memory.
struct Caller<'c> {
    thread: pid_t,
    call: &'c Call,
}

impl Caller<'_> {
    fn descriptor(&self, fd: u64) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.thread, fd as u32))
    }

    /// A path in the child's memory, as this process can use it.
    fn path(&self, folder: u64, address: u64) -> io::Result<PathBuf> {
        let text = self.text(address)?;
        let path = Path::new(OsStr::from_bytes(&text));
        if let Ok(own) = path.strip_prefix("/proc/self") {
            return Ok(Path::new("/proc").join(self.thread.to_string()).join(own));
        }
        let base = match folder as u32 as i32 {
            libc::AT_FDCWD => PathBuf::from(format!("/proc/{}/cwd", self.thread)),
            _ => self.descriptor(folder),
        };
        Ok(base.join(path))
    }

    fn text(&self, address: u64) -> io::Result<Vec<u8>> {
        let memory = fs::File::open(format!("/proc/{}/mem", self.thread))?;
        let mut text = Vec::new();
        while text.len() < PATH_LEN_MAX {
            // Do not read beyond the page, because the next page may not exist.
            let at = address + text.len() as u64;
            let mut piece = [0; 256];
            let in_page = usize::try_from(4096 - at % 4096).unwrap_or(1).min(piece.len());
            let read = memory.read_at(piece.get_mut(..in_page).unwrap_or_default(), at)?;
            let piece = piece.get(..read).unwrap_or_default();
            match piece.iter().position(|&byte| byte == 0) {
                Some(end) => {
                    text.extend_from_slice(piece.get(..end).unwrap_or_default());
                    return Ok(text);
                }
                None if read == 0 => break,
                None => text.extend_from_slice(piece),
            }
        }
        Err(io::Error::other("a path without an end"))
    }

    fn number(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        fs::File::open(format!("/proc/{}/mem", self.thread))?.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn position(&self, fd: u64) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{}", self.thread, fd as u32))?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let flags = field("flags:").and_then(|text| u64::from_str_radix(text, 8).ok()).unwrap_or_default();
        if flags & libc::O_APPEND as u64 != 0 {
            return Ok(fs::metadata(self.descriptor(fd))?.len());
        }
        field("pos:")
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| io::Error::other("a descriptor without a position"))
    }
}

const _: () = assert!(ROOT == 0, "the folder itself is the first inode of a disk");
