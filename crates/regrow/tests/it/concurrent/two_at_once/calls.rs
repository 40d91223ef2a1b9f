//! Operations on one folder at the same time, each in a process that pauses at one of its system
//! calls.
//!
//! The test starts itself as these processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use regrow::ErrorKind;
use regrow::location::Location;
use regrow_testkit::copy_folder;
use regrow_testkit::trace::{Action, Call, Fault, Observer, mark, observe, writes};

use super::worlds::worlds;
use super::{Actor, End, Ends, Stage, Work, World, check, kills, play};
use crate::common::child::child;

const ROOT: &str = "REGROW_TEST_TWO_ROOT";
const WORLD: &str = "REGROW_TEST_TWO_WORLD";
const WORK: &str = "REGROW_TEST_TWO_WORK";

/// What `ptrace` says where it is forbidden.
const EPERM: i32 = 1;

/// The child: does nothing unless it was started by one of the tests below. It says how it ended,
/// in a line.
#[test]
fn child_plays_one_work() {
    let (Some(root), Ok(world), Ok(work)) = (env::var_os(ROOT), env::var(WORLD), env::var(WORK)) else {
        return;
    };
    let world = worlds().into_iter().find(|known| known.name == world).unwrap();
    let mut works = world.works.into_iter().chain(world.killed);
    let work = works.find(|known| known.name == work).unwrap();
    let root = Location::local(Path::new(&root));
    mark();
    let ended = (work.act)(&root);
    mark();
    println!();
    match ended {
        Ok(()) => println!("DONE"),
        Err(error) => println!("FAILED {:?} {}", error.kind(), error.to_string().replace('\n', " ")),
    }
}

/// What a child was told to stop at, and how it is told to go on.
struct Gate {
    stops_at: u64,
    count: Arc<AtomicU64>,
    has_stopped: bool,
    reached: Sender<()>,
    goes_on: Receiver<()>,
}

impl Observer for Gate {
    fn at_mark(&mut self, _is_first: bool) -> io::Result<()> {
        Ok(())
    }

    fn begins(&mut self, _thread: libc::pid_t, call: &Call) -> io::Result<Action> {
        if writes(call) && self.count.fetch_add(1, Ordering::Relaxed) >= self.stops_at && !self.has_stopped {
            self.has_stopped = true;
            // Both ends are gone with a test that has failed.
            let _ = self.reached.send(());
            let _ = self.goes_on.recv();
        }
        Ok(Action::Make)
    }

    fn ended(&mut self, _thread: libc::pid_t, _result: i64) -> io::Result<()> {
        Ok(())
    }
}

/// A child, and the thread that traces it.
struct Traced {
    reached: Receiver<()>,
    go: Sender<()>,
    is_done: Receiver<()>,
    thread: JoinHandle<io::Result<(Option<i32>, String)>>,
}

impl Actor for Traced {
    fn wait(&mut self, timeout: Duration) -> Option<bool> {
        let began = Instant::now();
        while began.elapsed() < timeout {
            if self.reached.try_recv().is_ok() {
                return Some(false);
            }
            match self.is_done.recv_timeout(Duration::from_micros(500)) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Some(true),
            }
        }
        None
    }

    fn go_on(&mut self) {
        // It may have ended.
        let _ = self.go.send(());
    }

    fn end(self: Box<Self>) -> End {
        let (_, stdout) = self.thread.join().unwrap().unwrap();
        let line = stdout.lines().find(|line| line.starts_with("DONE") || line.starts_with("FAILED "));
        let Some(failed) = line.unwrap_or_else(|| panic!("a child says {stdout}")).strip_prefix("FAILED ")
        else {
            return Ok(());
        };
        let (kind, message) = failed.split_once(' ').unwrap();
        let kind = super::OVERTAKEN
            .into_iter()
            .chain([ErrorKind::Corrupt, ErrorKind::InvalidArgument])
            .find(|known| format!("{known:?}") == kind);
        Err((kind.unwrap_or(ErrorKind::Internal), message.to_owned()))
    }
}

/// A child that is told what to do.
fn told(root: &Path, world: &World, work: &str) -> Command {
    let mut child = child("concurrent::two_at_once::calls::child_plays_one_work");
    child.env(ROOT, root).env(WORLD, &world.name).env(WORK, work);
    child
}

fn begin(root: &Path, world: &World, work: &str, stops_at: u64, count: &Arc<AtomicU64>) -> Box<dyn Actor> {
    let count = Arc::clone(count);
    let mut child = told(root, world, work);
    let (reach, reached) = channel();
    let (go, goes_on) = channel();
    let (done, is_done) = channel();
    let thread = spawn(move || {
        let mut gate = Gate { stops_at, count, has_stopped: false, reached: reach, goes_on };
        let ended = observe(&mut child, &mut gate);
        let _ = done.send(());
        ended
    });
    Box::new(Traced { reached, go, is_done, thread })
}

fn may_trace() -> bool {
    struct Nothing;
    impl Observer for Nothing {
        fn at_mark(&mut self, _is_first: bool) -> io::Result<()> {
            Ok(())
        }
        fn begins(&mut self, _thread: libc::pid_t, _call: &Call) -> io::Result<Action> {
            Ok(Action::Make)
        }
        fn ended(&mut self, _thread: libc::pid_t, _result: i64) -> io::Result<()> {
            Ok(())
        }
    }
    match observe(&mut child("concurrent::two_at_once::calls::child_plays_one_work"), &mut Nothing) {
        Err(error) if error.raw_os_error() == Some(EPERM) => {
            eprintln!("not tested: this system lets no process be traced ({error})");
            false
        }
        ended => ended.map(|_| true).unwrap(),
    }
}

/// Kills at a call.
struct Killer {
    at: u64,
    count: u64,
}

impl Observer for Killer {
    fn at_mark(&mut self, _is_first: bool) -> io::Result<()> {
        Ok(())
    }

    fn begins(&mut self, _thread: libc::pid_t, call: &Call) -> io::Result<Action> {
        let is_it = writes(call) && self.count == self.at;
        self.count += u64::from(writes(call));
        Ok(if is_it { Action::Fault(Fault::Kill) } else { Action::Make })
    }

    fn ended(&mut self, _thread: libc::pid_t, _result: i64) -> io::Result<()> {
        Ok(())
    }
}

struct Disk<'w> {
    world: &'w World,
    folder: tempfile::TempDir,
    pasts: usize,
}

impl<'w> Disk<'w> {
    /// A folder in which a world has begun, in each of its pasts.
    fn of(world: &'w World) -> Self {
        // In memory if the system has some.
        let folder = regrow_testkit::memory_folder().unwrap();
        let mut disk = Self { world, folder, pasts: 0 };
        (world.prepare)(&Location::local(disk.path()));
        disk.keep();
        for work in &world.killed {
            disk.put_back(0);
            for at in kills(disk.steps_alone(work).0) {
                disk.put_back(0);
                observe(&mut told(&disk.path(), world, &work.name), &mut Killer { at, count: 0 }).unwrap();
                disk.keep();
            }
        }
        if !world.killed.is_empty() {
            fs::remove_dir_all(disk.past(0)).unwrap();
            for past in 1..disk.pasts {
                fs::rename(disk.past(past), disk.past(past - 1)).unwrap();
            }
            disk.pasts -= 1;
        }
        disk
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn past(&self, nth: usize) -> PathBuf {
        self.folder.path().join(format!("past-{nth}"))
    }

    /// Keeps what is there as one more past.
    fn keep(&mut self) {
        fs::create_dir_all(self.path().join("run")).unwrap();
        copy_folder(&self.path(), &self.past(self.pasts)).unwrap();
        self.pasts += 1;
    }
}

impl Stage for Disk<'_> {
    fn past_count(&self) -> usize {
        self.pasts
    }

    fn put_back(&mut self, past: usize) {
        let _ = fs::remove_dir_all(self.path());
        copy_folder(&self.past(past), &self.path()).unwrap();
    }

    fn steps_alone(&mut self, work: &Work) -> (u64, End) {
        let count = Arc::new(AtomicU64::new(0));
        let actor = begin(&self.path(), self.world, &work.name, u64::MAX, &count);
        let end = actor.end();
        (count.load(Ordering::Relaxed), end)
    }

    fn play(&mut self, works: &[&Work], stops_at: &[u64]) -> Ends {
        let start =
            |nth: usize| begin(&self.path(), self.world, &works[nth].name, stops_at[nth], &Arc::default());
        play(works.len(), &start)
    }

    fn root(&self) -> Location {
        Location::local(self.path())
    }

    fn left(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.path().join("run")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                found.push(path.display().to_string());
                folders.extend(path.is_dir().then_some(path));
            }
        }
        found
    }
}

fn check_all(name: &str) {
    check_groups(name, 2);
}

fn check_groups(name: &str, len: usize) {
    if may_trace() {
        super::check_all(name, |world| check(world, len, &mut Disk::of(world)));
    }
}

#[test]
fn three_at_once() {
    for name in ["regrow", "flax", "pytree_data"] {
        check_groups(name, 3);
    }
}

#[test]
fn a_folder_of_regrow() {
    check_all("regrow");
}

#[test]
fn a_folder_of_orbax() {
    check_all("orbax");
}

#[test]
fn a_folder_of_safetensors() {
    check_all("safetensors");
}

#[test]
fn a_file() {
    check_all("flax");
}

#[test]
fn two_files_beside_each_other() {
    check_all("pytree_data");
}

#[test]
fn a_run_of_steps() {
    check_all("steps");
}
