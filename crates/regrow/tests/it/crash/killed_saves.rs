//! A writer that is killed at any moment leaves the old checkpoint, the new checkpoint, or none:
//! never a part of one.
//!
//! The test starts itself as a child that saves without end, and kills the child (`SIGKILL`) at
//! random moments.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs, thread};

use crate::common::child::child;
use regrow_storage::NewFolder;
use regrow_storage::local::Staged;

const FOLDER: &str = "REGROW_TEST_SAVES_INTO";
const DATA_LEN_BYTES: usize = 3 << 20;
const KILLS: u64 = 20;

fn save(target: &Path, overwrite: bool, generation: u8) {
    regrow_layouts::tell_storage();
    let staged = Staged::of_folder(target, overwrite).unwrap();
    staged.write("_METADATA", &[generation; 100]).unwrap();
    let mut writer = staged.writer("d/array", DATA_LEN_BYTES as u64, 0).unwrap();
    writer.write(&vec![generation; DATA_LEN_BYTES]).unwrap();
    writer.finish().unwrap();
    staged.write("d/last", &[generation; 10]).unwrap();
    staged.commit().unwrap();
}

/// The generation of a checkpoint; all of its bytes must be of one generation.
fn generation(target: &Path) -> Option<u8> {
    if !target.exists() {
        return None;
    }
    let first = fs::read(target.join("_METADATA")).unwrap()[0];
    for (name, len) in [("_METADATA", 100), ("d/array", DATA_LEN_BYTES), ("d/last", 10)] {
        let bytes = fs::read(target.join(name)).unwrap();
        assert_eq!(bytes.len(), len, "{name}");
        assert!(bytes.iter().all(|&byte| byte == first), "{name} is of several generations");
    }
    Some(first)
}

fn unfinished(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains(".orbax-checkpoint-tmp")).count()
}

/// The child: does nothing unless it was started by the test below.
#[test]
fn child_saves_until_killed() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    println!("READY");
    for generation in (1..=250_u8).cycle() {
        save(&folder.join("latest"), true, generation);
        let step = folder.join("step");
        save(&step, false, generation);
        fs::remove_dir_all(step).unwrap();
    }
}

#[test]
fn a_killed_save_is_all_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let latest = folder.path().join("latest");
    let mut seen = None;
    let mut left = 0;
    for kill in 0..KILLS {
        let mut child = child("crash::killed_saves::child_saves_until_killed")
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map(Result::unwrap).find(|line| line.contains("READY")).expect("the child saves");
        // Anywhere in a save, the more so as the disk's pace varies; a step that has no pattern.
        thread::sleep(Duration::from_micros(kill * 7919 % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();

        regrow_layouts::tell_storage();
        let mut now = generation(&latest);
        if cfg!(feature = "portable") && now.is_none() {
            // Killed between the two renames of an overwrite: the next save puts the old one back.
            left += unfinished(folder.path());
            drop(Staged::of_folder(&latest, true).unwrap());
            now = generation(&latest);
        }
        assert!(seen.is_none() || now.is_some(), "an overwrite lost the old checkpoint");
        seen = now.or(seen);
        left += unfinished(folder.path());
        for name in ["latest", "step"] {
            // The child removes its steps itself, which is not what is tested: what is left of one
            // goes.
            if name == "step" {
                let _ = fs::remove_dir_all(folder.path().join(name));
            }
            drop(Staged::of_folder(&folder.path().join(name), true).unwrap());
        }
        assert_eq!(unfinished(folder.path()), 0, "the next save removes what is left");
        assert_eq!(generation(&latest), now, "removing it changes nothing else");
    }
    assert!(seen.is_some(), "no save ever ended");
    assert!(left > 0, "no save was ever interrupted");
}

#[test]
fn the_folder_of_a_living_writer_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("step");
    let first = Staged::of_folder(&target, false).unwrap();
    first.write("_METADATA", b"first").unwrap();
    let second = Staged::of_folder(&target, false).unwrap();
    assert_eq!(unfinished(folder.path()), 2);
    drop(second);
    first.commit().unwrap();
    assert_eq!(fs::read(target.join("_METADATA")).unwrap(), b"first");
}
