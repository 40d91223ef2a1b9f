//! The scenes of `power_cuts` with other faults: the child is killed before a call that writes, or
//! one of its calls fails. The scenes cover all layouts and all operations on a checkpoint.
//! `faults` checks the errors in more detail, for each kind of target.
//!
//! With `REGROW_LONG=1` the tests use each of the first 300 calls of a scene, and then every 41st
//! call. Otherwise they use every 23rd call, and fewer after the first 300.

use super::{Stage, is_long, listing, named, traced, trak};
use crate::crash::scenes::Scene;
use crate::crash::scenes::saves::Save;
use regrow::location::Location;
use regrow_testkit::trace::{Call, Fault, run, touches, writes};

/// EIO, ENOSPC, EACCES, EDQUOT, EINTR.
const ERRORS: [i32; 5] = [5, 28, 13, 122, 4];

/// Calls between two that a short run takes.
const SHORT_STEP: usize = 23;

/// After this many calls a long run takes only every n-th one: a reader that looks for good blocks
/// in a damaged file reads each by itself.
const LONG_CALLS: usize = 300;
const LONG_STEP: usize = 41;

/// So many calls at least write, or have to do with files, in any scene.
const CALLS_MIN: usize = 4;

/// A scene by its name.
struct Played {
    name: String,
    /// Whether all has been done where it says so although a call has failed.
    is_believed: bool,
}

/// Plays a scene with a fault at the call of that number; whether there was such a call, `None` if
/// tracing is not permitted.
fn play(scene: &Played, chosen: fn(&Call) -> bool, at: usize, fault: Fault) -> Option<bool> {
    let believed = scene.is_believed || fault == Fault::Kill;
    // What it remembers is of one place.
    let scene = named(&scene.name);
    let Stage { folder: _folder, root, mut child } = Stage::of(&*scene);
    let ended = traced(run(&mut child, chosen, at, fault))?;
    let is_done = ended.stdout.contains("\nDONE");
    let say = || format!("{}, {fault:?} at call {at}, {ended:?}", scene.name());
    assert!(is_done || ended.hit.is_some(), "{}", say());
    if fault != Fault::Kill {
        assert!(is_done || ended.stdout.contains("\nFAILED"), "it says nothing: {}", say());
    }
    if let Err(wrong) = scene.check(&Location::local(&root), is_done && believed) {
        panic!("{}: {wrong}\nleft:\n{}", say(), listing(&root));
    }
    Some(ended.hit.is_some())
}

/// All calls of a scene, or some: how many met the fault.
fn play_all(scene: &Played, chosen: fn(&Call) -> bool, fault: impl Fn(usize) -> Fault) -> Option<usize> {
    let mut at = if is_long() { 0 } else { scene.name.len() % SHORT_STEP };
    let mut hit = 0;
    while play(scene, chosen, at, fault(at))? {
        hit += 1;
        at += match is_long() {
            true if at < LONG_CALLS => 1,
            true => LONG_STEP,
            false if at < LONG_CALLS => SHORT_STEP,
            false => SHORT_STEP * LONG_STEP,
        };
    }
    assert!(!is_long() || at >= CALLS_MIN, "{}: {at} calls", scene.name);
    Some(hit)
}

fn check(scenes: Vec<Box<dyn Scene>>, is_believed: bool) {
    for scene in scenes {
        let scene = Played { name: scene.name(), is_believed };
        let Some(killed) = play_all(&scene, writes, |_| Fault::Kill) else { return };
        let failed = play_all(&scene, touches, |at| Fault::Fail(ERRORS[at % ERRORS.len()]));
        println!("{}: killed {killed} times, failed {} times", scene.name, failed.unwrap_or_default());
    }
}

fn saves(wanted: impl Fn(&Save) -> bool) -> Vec<Box<dyn Scene>> {
    let saves = crate::crash::scenes::saves::saves().into_iter().filter(wanted);
    saves.map(|save| Box::new(save) as Box<dyn Scene>).collect()
}

#[test]
fn a_folder_is_old_or_new() {
    check(saves(|save| save.processes == 1 && save.file == "ckpt" && !save.is_sealed), true);
}

#[test]
fn files_and_sealed_folders_are_old_or_new() {
    check(saves(|save| save.processes == 1 && (save.file != "ckpt" || save.is_sealed)), true);
}

#[test]
fn a_save_of_several_processes_is_old_or_new() {
    check(saves(|save| save.processes > 1), true);
}

#[test]
fn several_items_are_old_or_new_together() {
    check(crate::crash::scenes::items::scenes(), true);
}

#[test]
fn a_rotation_keeps_the_steps_of_its_policy() {
    // What cannot be deleted waits for the next save.
    check(crate::crash::scenes::steps::scenes(), false);
}

#[test]
fn side_files_are_old_or_new() {
    check(crate::crash::scenes::beside::scenes(), true);
}

#[test]
fn marked_rows_of_trak_are_on_disk() {
    check(vec![Box::new(trak::Rows)], true);
}
