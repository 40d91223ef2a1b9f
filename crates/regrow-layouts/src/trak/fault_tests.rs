//! The advice of `verify` has to work. These tests damage every file of a store in every way, and
//! check that `repair` does what `verify` promised.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use super::layout::LOCK_FILE;
use super::lost_tests::finished;
use super::tests::{metadata, name, records};
use super::*;
use crate::trak::catalog::names_in;

/// A name, and a function that damages a file.
type Damage = (&'static str, fn(&Path));

const DAMAGES: [Damage; 12] = [
    ("gone", |path| fs::remove_file(path).unwrap()),
    ("empty", |path| fs::write(path, b"").unwrap()),
    ("no header", |path| fs::write(path, b"something else").unwrap()),
    ("cut", |path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len().saturating_sub(3)]).unwrap();
    }),
    ("cut in its header", |path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len().min(40) / 2]).unwrap();
    }),
    ("longer", |path| fs::write(path, [fs::read(path).unwrap(), b"more".to_vec()].concat()).unwrap()),
    ("of another order", |path| header(path, "'fortran_order': False", "'fortran_order': True ")),
    ("big endian", |path| header(path, "'descr': '<", "'descr': '>")),
    ("of another type", |path| header(path, "4'", "8'")),
    ("a list", |path| fs::write(path, b"[1, 2]").unwrap()),
    ("a folder", |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    }),
    ("a link to nothing", |path| {
        fs::remove_file(path).unwrap();
        symlink("nowhere", path).unwrap();
    }),
];

fn header(path: &Path, from: &str, to: &str) {
    let mut bytes = fs::read(path).unwrap();
    assert_eq!(from.len(), to.len());
    if let Some(at) = bytes.windows(from.len()).position(|part| part == from.as_bytes()) {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    fs::write(path, bytes).unwrap();
}

/// All files of a store, below it.
fn files(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for folder in ["", "0", "scores"] {
        for file in names_in(&root.join(folder)).unwrap() {
            let path = Path::new(folder).join(file);
            if root.join(&path).is_file() {
                files.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    files
}

fn copy(from: &Path, to: &Path) {
    for folder in ["0", "scores"] {
        fs::create_dir(to.join(folder)).unwrap();
    }
    for file in files(from) {
        fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}

/// The errors of opening and the findings of verifying.
fn complaints(root: &Path) -> Vec<String> {
    match regrow::verify(root) {
        Ok(report) => report.findings.iter().map(|finding| finding.error.to_string()).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// Repairs the store as advised; then it must have no finding, and a second repair must do nothing.
fn follow(root: &Path, complaints_before: &[String]) -> Result<(), String> {
    let wants_metadata = complaints_before.iter().any(|text| text.contains("metadata"));
    let with = Repair { metadata: wants_metadata.then(metadata), ..Repair::default() };
    let done = repair(root, &with).map_err(|error| format!("repair refuses: {error}"))?;
    let left = complaints(root);
    if done.is_empty() || !left.is_empty() {
        return Err(format!("repair did {done:?}, left is {left:?}"));
    }
    match repair(root, &Repair::default()) {
        Ok(again) if again.is_empty() => Ok(()),
        again => Err(format!("a second repair: {again:?}")),
    }
}

#[test]
fn repair_mends_every_damage_that_verify_sends_to_it() {
    let sound = tempfile::tempdir().unwrap();
    finished(sound.path()).bind_checkpoint(0, "sha256:0").unwrap();
    let (mut advised, mut not_advised, mut broken) = (0, 0, Vec::new());
    // The lock is an empty file, and verify does not read it.
    for file in files(sound.path()).into_iter().filter(|file| file != LOCK_FILE) {
        for has_record in [true, false] {
            for (what, damage) in DAMAGES {
                let folder = tempfile::tempdir().unwrap();
                copy(sound.path(), folder.path());
                if !has_record {
                    fs::write(folder.path().join("experiments.json"), "{}").unwrap();
                }
                damage(&folder.path().join(&file));
                let before = complaints(folder.path());
                // A finding that `repair` cannot mend must not advise `repair`. Skip a store with
                // such a finding.
                if before.is_empty() || !before.iter().all(|text| text.contains("`repair`")) {
                    not_advised += 1;
                    continue;
                }
                advised += 1;
                if let Err(error) = follow(folder.path(), &before) {
                    broken.push(format!("{file}, {what}, record {has_record}: {before:?}\n  {error}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{} of {advised}\n{}", broken.len(), broken.join("\n"));
    assert!(advised > 100 && not_advised > 10, "{advised}, {not_advised}");
}

#[test]
fn scores_without_a_record_are_a_leaf_a_note_and_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let store = finished(folder.path());
    store.scores(&name("val"), 3).unwrap().write_rows(&[0], &2_f32.to_le_bytes().repeat(3)).unwrap();
    // The record is lost, as when two processes of TRAK write the file at once. The targets are
    // lost, too.
    fs::write(folder.path().join("experiments.json"), "{}").unwrap();
    for file in ["0/val_grads.mmap", "0/_targets_val.mmap"] {
        fs::remove_file(folder.path().join(file)).unwrap();
    }
    let checkpoint = regrow::open(folder.path()).unwrap();
    let leaf = checkpoint.find("scores/val").unwrap();
    let row = checkpoint.read(leaf).unwrap();
    assert_eq!(row.as_array().unwrap().shape().dims(), [6, 3]);
    let notes = &checkpoint.description().notes;
    assert!(notes.iter().any(|note| note.contains("\"val\" has scores and no record")), "{notes:?}");
    let found = complaints(folder.path());
    assert!(found.len() == 1 && found[0].contains("has scores and no record"), "{found:?}");
    repair(folder.path(), &Repair::default()).unwrap();
    assert_eq!(records(folder.path())["val"]["num_targets"], 3);
    assert_eq!(records(folder.path())["val"]["scores_finalized"], 0);
    assert_eq!(complaints(folder.path()), Vec::<String>::new());
}

#[test]
fn repair_keeps_a_damaged_record_whose_arrays_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    drop(finished(folder.path()));
    let record = json!({"val": {"num_targets": 3}});
    fs::write(folder.path().join("experiments.json"), record.to_string()).unwrap();
    for file in ["0/val_grads.mmap", "0/_targets_val.mmap", "scores/val.mmap"] {
        fs::write(folder.path().join(file), b"something else").unwrap();
    }
    repair(folder.path(), &Repair::default()).unwrap();
    assert_eq!(records(folder.path())["val"]["num_targets"], 3);
}

#[test]
fn a_file_of_flags_of_another_name_is_refused_and_put_aside() {
    let flags = |id: &str, done: u8| json!({id: {"is_featurized": done, "is_finalized": done}}).to_string();
    for (file, text) in [
        ("id_00.json", flags("0", 1)),
        ("id_a.json", flags("0", 0)),
        ("id_0_backup.json", flags("0", 0)),
        ("id_1.json", flags("0", 0)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let store = finished(folder.path());
        let counted = store.flags(0).unwrap();
        fs::write(folder.path().join(file), text).unwrap();
        // A process that works on the store goes on: it reads the file of the model's own name.
        assert_eq!(store.flags(0).unwrap(), counted, "{file}");
        let found = complaints(folder.path());
        assert!(found.len() == 1 && found[0].contains(file) && found[0].contains("`repair`"), "{found:?}");
        repair(folder.path(), &Repair::default()).unwrap();
        assert!(!folder.path().join(file).exists() && folder.path().join(format!("{file}.damaged")).exists());
        assert_eq!(store.flags(0).unwrap(), counted, "{file}");
        assert_eq!(complaints(folder.path()), Vec::<String>::new());
        assert!(repair(folder.path(), &Repair::default()).unwrap().is_empty());
    }
    // A file with the flags of its own model and of another model is written again from the arrays.
    let folder = tempfile::tempdir().unwrap();
    let store = finished(folder.path());
    store.register(1, false).unwrap();
    let both =
        json!({"1": {"is_featurized": 0, "is_finalized": 0}, "0": {"is_featurized": 0, "is_finalized": 0}});
    fs::write(folder.path().join("id_1.json"), both.to_string()).unwrap();
    assert_eq!(complaints(folder.path()).len(), 1);
    repair(folder.path(), &Repair::default()).unwrap();
    let left: Value = serde_json::from_slice(&fs::read(folder.path().join("id_1.json")).unwrap()).unwrap();
    assert_eq!(left, json!({"1": {"is_featurized": 0, "is_finalized": 0}}));
    assert_eq!(complaints(folder.path()), Vec::<String>::new());
}

#[test]
fn opening_removes_temporary_files_of_killed_writers_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = finished(folder.path());
    let left = [
        ".0123456789abcdef.__lock",
        ".regrow-tmp-0123456789abcdef",
        "0/.0123456789abcdef.__lock",
        "0/.regrow-tmp-0123456789abcdef",
        "scores/.regrow-tmp-0123456789abcdef",
    ];
    let mine = ["notes.lock", ".vim.__lock", "0/.lock"];
    let write_all =
        || left.iter().chain(&mine).for_each(|file| fs::write(folder.path().join(file), b"{").unwrap());
    let there = |file: &&str| folder.path().join(file).exists();
    write_all();
    {
        // The writer of a file holds the lock. So no file is removed before the lock is released.
        let lock = store.lock().unwrap();
        write_all();
        let root = folder.path().to_owned();
        let opener = std::thread::spawn(move || drop(super::tests::open(&root)));
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(left.iter().all(there));
        drop(lock);
        opener.join().unwrap();
    }
    assert_eq!(left.iter().filter(|file| there(file)).count(), 0);
    assert!(mine.iter().all(there));
    // An open store removes temporary files whenever it changes JSON.
    write_all();
    store.write_flags(0, true).unwrap();
    assert!(!there(&left[0]) && !there(&left[1]));
}
