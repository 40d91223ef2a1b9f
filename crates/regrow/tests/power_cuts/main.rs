//! Power cuts: what a child does to a folder is recorded, and every state that a power cut could leave of it is looked at. A
//! reader finds the old checkpoint or the new one, whole and verified; what had returned is there; the next save works, and
//! cleans up.
//!
//! The test starts itself as the child. `REGROW_LONG=1` looks at all states, and otherwise at every which one.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
mod saves;
mod steps;
mod trak;

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use regrow_testkit::crash::{CrashState, Rules, States, record};
use regrow_testkit::trace::mark;

const ROOT: &str = "REGROW_TEST_POWER_ROOT";
const SCENE: &str = "REGROW_TEST_POWER_SCENE";

/// States that a short run looks at of each scene and rule.
const SHORT_STATES: usize = 60;

/// What `ptrace` says where it is forbidden.
const EPERM: i32 = 1;

/// Something that is done to a folder.
trait Scene {
    /// By this the child knows it.
    fn name(&self) -> String;

    /// What is there before, and is on the disk.
    fn prepare(&self, root: &Path);

    /// What the child does.
    fn act(&self, root: &Path) -> regrow::Result<()>;

    /// What holds of the folder after a power cut; it may be changed. `is_done`: the child had been told that all is well.
    fn check(&self, root: &Path, is_done: bool) -> Result<(), String>;
}

fn scenes() -> Vec<Box<dyn Scene>> {
    let mut scenes = saves::scenes();
    scenes.extend(steps::scenes());
    scenes.extend(trak::scenes());
    scenes
}

/// The child: does nothing unless it was started by one of the tests below.
#[test]
fn does_what_it_is_told_to() {
    let (Some(root), Ok(wanted)) = (env::var_os(ROOT), env::var(SCENE)) else { return };
    let scene = scenes().into_iter().find(|scene| scene.name() == wanted).unwrap();
    mark();
    let done = scene.act(Path::new(&root));
    mark();
    println!("\n{}", if done.is_ok() { "DONE" } else { "FAILED" });
}

/// Plays a scene and looks at what power cuts leave of it; how many states there were and were looked at.
fn check(scene: &dyn Scene) {
    let folder = regrow_testkit::memory_folder().unwrap();
    let root = folder.path().join("disk");
    fs::create_dir(&root).unwrap();
    scene.prepare(&root);
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "does_what_it_is_told_to", "--nocapture", "--test-threads=1"]);
    child.env(ROOT, &root).env(SCENE, scene.name());
    let recording = match record(&mut child, &root) {
        Err(error) if error.raw_os_error() == Some(EPERM) => {
            eprintln!("not tested: this system lets no process be traced ({error})");
            return;
        }
        recorded => recorded.unwrap(),
    };
    assert!(recording.stdout.contains("DONE"), "{}: {}", scene.name(), recording.stdout);
    assert!(recording.event_count() > 5 && recording.sync_count() > 1, "{}: {recording:?}", scene.name());
    let is_long = env::var_os("REGROW_LONG").is_some();
    for rules in [Rules::Posix, Rules::Journal] {
        let all: Vec<CrashState> = States::new(&recording, rules, 1).collect();
        let step = if is_long { 1 } else { all.len().div_ceil(SHORT_STATES) };
        // The states at the end are where a promise has been made: half of a short run is of them.
        let (ends, others): (Vec<_>, Vec<_>) = all.iter().partition(|state| state.is_at_end);
        let end_step = if is_long { 1 } else { ends.len().div_ceil(SHORT_STATES / 2) };
        let chosen = others.into_iter().step_by(step.max(1)).chain(ends.into_iter().step_by(end_step.max(1)));
        let mut count = 0;
        for state in chosen {
            count += 1;
            let cut = folder.path().join("cut");
            fs::create_dir(&cut).unwrap();
            state.disk.write_to(&cut).unwrap();
            if let Err(wrong) = scene.check(&cut, state.is_at_end) {
                panic!(
                    "{}, {rules:?}, after {} of {} calls: {wrong}\nlost: {}\nleft:\n{}",
                    scene.name(),
                    state.after,
                    recording.event_count(),
                    state.lost,
                    listing(&cut)
                );
            }
            fs::remove_dir_all(&cut).unwrap();
        }
        println!(
            "{}, {rules:?}: {} calls, {} states, {count} looked at",
            scene.name(),
            recording.event_count(),
            all.len()
        );
    }
}

/// What is in a folder, for people.
fn listing(folder: &Path) -> String {
    let mut lines = String::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let len = entry.metadata().unwrap().len();
            lines += &format!("  {} {len}\n", entry.path().display());
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    lines
}

/// An error as the checks tell it.
fn told<T>(what: &str, result: regrow::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}
