//! The tests: finds the changes that each test reaches, and its time. Runs a test with one change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::Failure;

/// Limits of memory and of file length, above the needs of every test.
const LIMITS: [&str; 2] = ["--as=17179869184", "--fsize=17179869184"];

/// The result of `trace` for some programs.
#[derive(Serialize, Deserialize)]
struct Traced {
    binaries: Vec<PathBuf>,
    /// The beginnings of the names of the tests that were left out.
    without: Vec<String>,
    tests: Vec<Test>,
}

/// A test that passes without a change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Test {
    pub binary: PathBuf,
    pub name: String,
    pub takes: Duration,
    /// The changes that the test reaches.
    pub reaches: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    TookTooLong,
}

/// The folders for a run of a test.
pub struct Room<'a> {
    /// The folder of the crate: tests find their fixtures from there.
    pub folder: &'a Path,
    /// The folder for the files of tests. The caller empties it.
    pub temporary: &'a Path,
}

impl Test {
    /// Runs the test with one environment variable.
    pub fn run(&self, room: &Room<'_>, variable: (&str, &str), limit: Duration) -> Result<Outcome, Failure> {
        let mut command = Command::new("prlimit");
        command.args(LIMITS).arg("--").arg(&self.binary).args(["--exact", &self.name, "--test-threads", "1"]);
        command.current_dir(room.folder).env("CARGO_MANIFEST_DIR", room.folder).env("TMPDIR", room.temporary);
        command.env(variable.0, variable.1).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let outcome = wait(&mut child, limit);
        // End the children of the test, too.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        child.wait()?;
        outcome
    }

    /// The longest time of the test under a change, which may make the test slower.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(3) + (self.takes * 5).min(self.takes + Duration::from_secs(25))
    }
}

fn wait(child: &mut Child, limit: Duration) -> Result<Outcome, Failure> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Outcome::Passed } else { Outcome::Failed });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(Outcome::TookTooLong)
}

/// Runs the tests of these programs once without a change, except the tests of the modules in
/// `without`. A test that fails is printed and left out. If the programs have not changed since an
/// earlier run, the result of that run is used.
pub fn trace(
    binaries: &[PathBuf],
    without: &[String],
    folder: &Path,
    out: &Path,
    count: usize,
) -> Result<Vec<Test>, Failure> {
    let known = out.join("tests.json");
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if binaries.iter().all(|binary| modified(binary) < modified(&known)) {
        let earlier = serde_json::from_slice::<Traced>(&fs::read(&known)?).ok();
        let of_the_same = |earlier: &Traced| earlier.binaries == binaries && earlier.without == without;
        if let Some(earlier) = earlier.filter(of_the_same) {
            return Ok(earlier.tests);
        }
    }
    let tests = trace_again(binaries, without, folder, out, count)?;
    let traced = Traced { binaries: binaries.to_vec(), without: without.to_vec(), tests };
    fs::write(&known, serde_json::to_vec(&traced)?)?;
    Ok(traced.tests)
}

fn trace_again(
    binaries: &[PathBuf],
    without: &[String],
    folder: &Path,
    out: &Path,
    count: usize,
) -> Result<Vec<Test>, Failure> {
    let mut found = Vec::new();
    for binary in binaries {
        let listed =
            Command::new(binary).args(["--list", "--format", "terse"]).current_dir(folder).output()?;
        let ignored = Command::new(binary)
            .args(["--list", "--format", "terse", "--ignored"])
            .current_dir(folder)
            .output()?;
        let ignored = String::from_utf8(ignored.stdout)?;
        let names = String::from_utf8(listed.stdout)?;
        let names = names.lines().filter(|line| !ignored.lines().any(|other| other == *line));
        let names = names.filter_map(|line| line.strip_suffix(": test"));
        for name in names.filter(|name| !without.iter().any(|module| name.starts_with(module))) {
            let (binary, name) = (binary.clone(), name.to_owned());
            found.push(Test { binary, name, takes: Duration::ZERO, reaches: Vec::new() });
        }
    }
    println!("{} tests are run once each", found.len());
    let next = AtomicUsize::new(0);
    let passed = Mutex::new(Vec::new());
    workers(out, folder, |room| {
        let seen = room.temporary.with_extension("trace");
        while let Some(test) = found.get(next.fetch_add(1, Ordering::Relaxed)) {
            fs::write(&seen, vec![0; count])?;
            let began = Instant::now();
            let variable = ("REGROW_MUTANTS_TRACE", &*seen.to_string_lossy());
            let outcome = test.run(room, variable, Duration::from_secs(120))?;
            empty(room.temporary)?;
            if outcome != Outcome::Passed {
                println!("left out, it fails without a change: {}", test.name);
                continue;
            }
            let reached = fs::read(&seen)?.into_iter().enumerate().filter(|(_, byte)| *byte != 0);
            let reaches: Vec<usize> = reached.map(|(id, _)| id).collect();
            let mut passed = passed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            passed.push(Test { takes: began.elapsed(), reaches, ..test.clone() });
        }
        Ok(())
    })?;
    Ok(passed.into_inner().unwrap_or_default())
}

/// Runs `work` on one thread for each core. Each thread has its own folder.
pub fn workers(
    out: &Path,
    folder: &Path,
    work: impl Fn(&Room<'_>) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let count = thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<Result<(), Failure>> = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count)
            .map(|number| {
                scope.spawn(move || {
                    let temporary = out.join(format!("tmp-{number}"));
                    fs::create_dir_all(&temporary)?;
                    work(&Room { folder, temporary: &temporary })
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a worker panicked".into())))
            .collect()
    });
    results.into_iter().collect()
}

/// Removes the files that tests have left in a folder. If a test has removed the folder, makes it.
pub fn empty(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // Folders that a test has made read-only stay.
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
    Ok(())
}
