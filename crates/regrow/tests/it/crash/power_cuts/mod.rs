//! Power cuts. The test records the system calls by which a child changes a folder. Then it builds
//! the states of the folder that a power cut can leave. In each state a reader finds the old or the
//! new checkpoint, complete. A checkpoint that the child has reported exists. The next save works,
//! and removes temporary files.
//!
//! The test starts itself as the child. `REGROW_LONG=1` checks up to 3000 states of each scene;
//! otherwise the test checks up to 60.

mod every_call;
mod trak;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use crate::common::child::child;
use crate::crash::scenes::saves::{self, Save};
use crate::crash::scenes::{Scene, told};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use regrow::location::Location;
use regrow_testkit::crash::{CrashState, Rules, States, record};
use regrow_testkit::trace::mark;

const ROOT: &str = "REGROW_TEST_POWER_ROOT";
const SCENE: &str = "REGROW_TEST_POWER_SCENE";

/// States that a short run checks of each scene and rule; of slow scenes; of scenes with many
/// variants.
const SHORT_STATES: usize = 60;
const SHORT_STATES_OF_ITEMS: usize = 16;
const SHORT_STATES_OF_MANY: usize = 12;

/// More states of one scene and rule are not looked at, one by one.
const LONG_STATES: usize = 3000;

/// What `ptrace` says where it is forbidden.
const EPERM: i32 = 1;

/// The child: does nothing unless it was started by one of the tests below.
#[test]
fn child_runs_one_scene() {
    let (Some(root), Ok(wanted)) = (env::var_os(ROOT), env::var(SCENE)) else { return };
    let scene = named(&wanted);
    let root = Location::local(Path::new(&root));
    mark();
    let done = scene.act(&root);
    mark();
    println!("\n{}", if done.is_ok() { "DONE" } else { "FAILED" });
}

fn named(wanted: &str) -> Box<dyn Scene> {
    let rows = Box::new(trak::Rows) as Box<dyn Scene>;
    if wanted == rows.name() { rows } else { crate::crash::scenes::named(wanted).unwrap() }
}

/// Plays a scene and looks at what power cuts leave of it.
fn check(scene: &dyn Scene, short_states: usize) {
    if let Err(wrong) = find_wrong(scene, short_states) {
        panic!("{wrong}");
    }
}

fn is_long() -> bool {
    env::var_os("REGROW_LONG").is_some()
}

/// A recording that is not what the disk holds is made again, so often.
const RECORDINGS_MAX: usize = 5;

/// Plays a scene, and says what is wrong in one of so many states that power cuts can leave of it.
fn find_wrong(scene: &dyn Scene, short_states: usize) -> Result<(), String> {
    for _ in 0..RECORDINGS_MAX {
        if let Some(result) = play(scene, short_states) {
            return result;
        }
        eprintln!("{}: recorded again", scene.name());
    }
    panic!("{}: no recording is what the disk holds", scene.name());
}

/// Where a scene is played.
struct Stage {
    folder: tempfile::TempDir,
    root: PathBuf,
    /// Does it.
    child: Command,
}

impl Stage {
    fn of(scene: &dyn Scene) -> Self {
        let folder = regrow_testkit::memory_folder().unwrap();
        let root = folder.path().join("disk");
        fs::create_dir(&root).unwrap();
        scene.prepare(&Location::local(&root));
        let mut child = child("crash::power_cuts::child_runs_one_scene");
        child.env(ROOT, &root).env(SCENE, scene.name());
        Self { folder, root, child }
    }
}

/// The calls of a traced child; `None` if tracing is not permitted.
fn traced<T>(ran: io::Result<T>) -> Option<T> {
    match ran {
        Err(error) if error.raw_os_error() == Some(EPERM) => {
            eprintln!("not tested: this system lets no process be traced ({error})");
            None
        }
        ran => Some(ran.unwrap()),
    }
}

/// `None` if the recording is not what the disk holds.
fn play(scene: &dyn Scene, short_states: usize) -> Option<Result<(), String>> {
    let Stage { folder, root, mut child } = Stage::of(scene);
    let Some(recording) = traced(record(&mut child, &root)) else { return Some(Ok(())) };
    if !recording.is_right {
        return None;
    }
    assert!(recording.stdout.contains("DONE"), "{}: {}", scene.name(), recording.stdout);
    let (calls, syncs) = (recording.event_count(), recording.sync_count());
    assert!(calls > 4 && syncs > 1, "{}: {calls} calls, {syncs} syncs", scene.name());
    for rules in [Rules::Posix, Rules::Journal] {
        let (calls_max, states_max) = if is_long() { (100, LONG_STATES) } else { (24, short_states) };
        let states = States::new(&recording, rules, 1).paced(calls.div_ceil(calls_max));
        let all: Vec<CrashState> = states.collect();
        // The states at the end are where a promise has been made: half of a short run is of them.
        let (ends, others): (Vec<_>, Vec<_>) = all.iter().partition(|state| state.is_at_end);
        let (step, end_step) = (all.len().div_ceil(states_max), ends.len().div_ceil(states_max / 2));
        let chosen = others.into_iter().step_by(step.max(1)).chain(ends.into_iter().step_by(end_step.max(1)));
        let mut count = 0;
        for state in chosen {
            count += 1;
            let cut = folder.path().join("cut");
            fs::create_dir(&cut).unwrap();
            state.disk.write_to(&cut).unwrap();
            if let Err(wrong) = scene.check(&Location::local(&cut), state.is_at_end) {
                return Some(Err(format!(
                    "{}, {rules:?}, after {} of {} calls: {wrong}\nlost: {}\nleft:\n{}",
                    scene.name(),
                    state.after,
                    recording.event_count(),
                    state.lost,
                    listing(&cut)
                )));
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
    Some(Ok(()))
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

fn check_all(wanted: impl Fn(&Save) -> bool) {
    saves::saves().iter().filter(|save| wanted(save)).for_each(|save| check(save, SHORT_STATES));
}

#[test]
fn a_folder_is_old_or_new() {
    check_all(|save| save.processes == 1 && save.file == "ckpt" && save.layout != "pytree_data");
}

#[test]
fn a_file_is_old_or_new() {
    check_all(|save| save.file.contains('.'));
}

#[test]
fn files_beside_each_other_are_old_or_new() {
    check_all(|save| save.layout == "pytree_data");
}

#[test]
fn a_save_of_several_processes_is_old_or_new() {
    check_all(|save| save.processes > 1);
}

#[test]
fn several_items_are_old_or_new_together() {
    crate::crash::scenes::items::scenes().iter().for_each(|scene| check(&**scene, SHORT_STATES_OF_ITEMS));
}

#[test]
fn a_rotation_keeps_the_steps_of_its_policy() {
    crate::crash::scenes::steps::scenes().iter().for_each(|scene| check(&**scene, SHORT_STATES_OF_ITEMS));
}

fn check_beside(wanted: fn(&str) -> bool) {
    for scene in crate::crash::scenes::beside::scenes().iter().filter(|scene| wanted(&scene.name())) {
        check(&**scene, SHORT_STATES_OF_MANY);
    }
}

#[test]
fn a_seal_a_signature_and_parity_are_there_or_not() {
    check_beside(|name| !name.starts_with("Repair"));
}

#[test]
fn a_cut_repair_leaves_the_old_damage_or_a_whole_checkpoint() {
    check_beside(|name| name.starts_with("Repair"));
}

/// `PROPTEST_RNG_SEED` repeats a run; a failure is shrunk, and told with its tree.
#[test]
fn any_tree_in_any_layout_is_old_or_new() {
    let config = Config {
        cases: if is_long() { 40 } else { 8 },
        max_shrink_iters: 60,
        failure_persistence: None,
        ..Config::default()
    };
    let ran = TestRunner::new(config).run(&crate::crash::scenes::random::any_scene(), |scene| {
        prop_assume!(scene.can_be_saved());
        find_wrong(&scene, SHORT_STATES_OF_MANY).map_err(TestCaseError::fail)
    });
    if let Err(wrong) = ran {
        panic!("{wrong}");
    }
}

#[test]
fn marked_rows_of_trak_are_on_disk() {
    check(&trak::Rows, SHORT_STATES);
}
