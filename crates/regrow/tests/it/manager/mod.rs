//! Folders of steps, on a disk and in a bucket: which steps are listed, kept, deleted and restored.

mod faults;
mod hooks;
mod looping;
mod model;
mod readers_and_writers;
mod records;
mod restored_items;
mod together;

use std::collections::BTreeSet;
use std::fs;

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::location::{Location, ToLocation};
use regrow::manager::{
    Best, BestMode, DeleteOptions, Deleted, Keep, SaveWhen, StepName, StepNames, Steps, TidyOptions,
};
use regrow::tree::{Leaf, Tree};
use regrow::{ErrorKind, SaveOptions, save_with, verify};
use regrow_store::StoreExt;
use regrow_testkit::fixtures;

/// A few small arrays: what is in a step is of no account here.
fn tree(fill: u8) -> Tree<Leaf> {
    let array = |len: u64| {
        Array::new(Dtype::UInt8, Shape::new([len]).unwrap(), vec![fill; len as usize].into()).unwrap()
    };
    crate::common::cuts::dict([("bias".to_owned(), array(5)), ("kernel".to_owned(), array(5000))])
}

fn options(layout: &str) -> SaveOptions {
    SaveOptions {
        layout: Layout::from_name(layout, serde_json::Value::Null).unwrap(),
        not_durable: true,
        ..Default::default()
    }
}

fn save(steps: &Steps, number: u64) {
    save_with(steps.place(number), &tree(number as u8), &options("regrow")).unwrap();
}

fn numbers(steps: &Steps) -> Vec<u64> {
    steps.numbers().unwrap()
}

fn places(test: &str) -> Vec<(Location, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let mut places = vec![
        (Location::local(folder.path().join("run")), Some(folder)),
        (format!("memory://manager-{test}/run").to_location().unwrap(), None),
    ];
    // One kind of bucket: what differs between them is tried of the lock, and of whole checkpoints
    // elsewhere.
    places.extend(
        crate::common::buckets::buckets(test).into_iter().take(1).map(|bucket| (bucket.join("run"), None)),
    );
    places
}

fn keep_latest(count: usize) -> TidyOptions {
    // Steps that `save` of these tests has saved have no record.
    TidyOptions { keep: Keep::Latest(count), adopt: true, verify: true, ..TidyOptions::default() }
}

#[test]
fn the_list_holds_the_committed_steps() {
    for (root, _folder) in places("list") {
        let steps = Steps::new(&root, None).unwrap();
        assert!(numbers(&steps).is_empty() && steps.latest().unwrap().is_none());
        assert_eq!(steps.step(1).unwrap_err().kind(), ErrorKind::NotFound);
        for number in [10, 9, 100] {
            save(&steps, number);
        }
        // What is begun and not committed, what is empty, what is none of ours.
        let store = root.store();
        store.put(b"200/regrow-writing.json", "{}".into()).unwrap();
        store.put(b"300.orbax-checkpoint-tmp-1/x", "x".into()).unwrap();
        store.put(b"notes/7.txt", "x".into()).unwrap();
        store.put(b"400", "a file".into()).unwrap();
        let list = steps.list().unwrap();
        assert_eq!(list.steps.iter().map(|step| step.number).collect::<Vec<_>>(), [9, 10, 100], "{root}");
        assert!(list.unfinished.iter().any(|name| name.starts_with("300")), "{list:?}");
        assert!(list.steps.iter().all(|step| step.seconds.is_some_and(|seconds| seconds > 1.6e9)));
        assert_eq!(steps.latest().unwrap().unwrap().number, 100);
        // In a bucket a process writes there; on a disk the folder is no checkpoint at all.
        let begun = if root.commits_by_marker() { ErrorKind::Uncommitted } else { ErrorKind::NotFound };
        assert_eq!(steps.step(200).unwrap_err().kind(), begun);
        let missing = steps.step(5).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
        assert!(missing.help_text().unwrap().contains("9, 10, 100"));
        assert_eq!(steps.step(300).unwrap_err().kind(), ErrorKind::Uncommitted);
    }
}

#[test]
fn steps_of_orbax_are_listed_with_their_metrics_and_names() {
    let orbax = fixtures().join("orbax");
    let steps = Steps::new(orbax.join("manager_composite/ckpt"), None).unwrap();
    let list = steps.list().unwrap();
    let loss: Vec<f64> =
        list.facts(&[], &BTreeSet::new(), true).iter().filter_map(|facts| facts.metric("loss")).collect();
    assert_eq!(loss, [0.5, 0.25, 0.75]);
    assert_eq!(list.facts(&[], &BTreeSet::new(), true)[2].metric("acc/top1"), Some(0.2));
    assert_eq!(list.steps[1].custom_metadata["i"], 1);
    assert_eq!(steps.names().format(5), "ckpt_000005");
    assert_eq!(steps.names().format(400), "ckpt_000400");
    let plain = Steps::new(orbax.join("manager_default/ckpt"), None).unwrap();
    assert_eq!(numbers(&plain), [0, 10, 20]);
    assert_eq!(plain.names().format(30), "30");
    let other = StepNames::one(StepName::new(Some("step"), None).unwrap());
    assert!(numbers(&Steps::new(orbax.join("manager_default/ckpt"), Some(other)).unwrap()).is_empty());
}

#[test]
fn older_forms_of_step_names_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let forms = [StepName::default(), StepName::new(None, Some(6)).unwrap()];
    let plain = Steps::new(folder.path(), Some(StepNames::one(forms[0].clone()))).unwrap();
    save(&plain, 5);
    save(&plain, 7);
    let names = StepNames::composite(StepName::new(Some("step"), Some(3)).unwrap(), forms);
    let steps = Steps::new(folder.path(), Some(names)).unwrap();
    save(&steps, 7);
    save(&steps, 8);
    let list = steps.list().unwrap();
    let names: Vec<&str> = list.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["5", "step_007", "step_008"]);
    assert!(list.notes[0].contains("folder 7 "), "{:?}", list.notes);
    assert_eq!(steps.step(7).unwrap().name, "step_007");
}

#[test]
fn a_folder_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    assert_eq!(Steps::new(&file, None).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let steps = Steps::new(folder.path(), None).unwrap();
    save(&steps, 5);
    let error = Steps::new(folder.path().join("5"), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.help_text().unwrap().contains("folder that has the steps"));
}

#[test]
fn a_save_deletes_steps_outside_the_policy() {
    for (root, _folder) in places("tidy") {
        let steps = Steps::new(&root, None).unwrap();
        for number in [1, 2, 3, 4] {
            save(&steps, number);
            let tidied = steps.tidy(number, &keep_latest(2)).unwrap();
            assert!(tidied.is_verified && tidied.deletions.iter().all(|deletion| deletion.outcome.is_ok()));
        }
        assert_eq!(numbers(&steps), [3, 4], "{root}");
        // An older number after a roll-back: it is the newest that is known to be good, and stays.
        save(&steps, 2);
        steps.tidy(2, &keep_latest(1)).unwrap();
        assert_eq!(numbers(&steps), [2, 4], "{root}");
        // A step that lost its place to newer ones in between.
        let tidied = steps.tidy(3, &keep_latest(1)).unwrap();
        assert!(tidied.deletions.is_empty() && !tidied.is_verified);
    }
}

#[test]
fn a_damaged_new_step_deletes_no_old_step() {
    let folder = tempfile::tempdir().unwrap();
    let steps = Steps::new(folder.path(), None).unwrap();
    save(&steps, 1);
    save(&steps, 2);
    damage(&folder.path().join("2"));
    let error = steps.tidy(2, &keep_latest(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(numbers(&steps), [1, 2]);
}

/// Changes a byte of the data.
fn damage(step: &std::path::Path) {
    let data = step.join("model.safetensors");
    let data = if data.exists() { data } else { largest_file(step) };
    let mut bytes = fs::read(&data).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&data, bytes).unwrap();
}

fn largest_file(folder: &std::path::Path) -> std::path::PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

#[test]
fn the_newest_good_step_is_restored_and_the_others_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let steps = Steps::new(folder.path(), None).unwrap();
    let load = |step: &regrow::manager::Step| regrow::load::<Tree<Leaf>>(&step.location).map(drop);
    assert_eq!(steps.restore_newest(load).unwrap_err().kind(), ErrorKind::NotFound);
    for number in [1, 2, 3] {
        save(&steps, number);
    }
    damage(&folder.path().join("3"));
    fs::remove_file(largest_file(&folder.path().join("2"))).unwrap();
    let restored = steps.restore_newest(load).unwrap();
    assert_eq!(restored.step.number, 1);
    let passed: Vec<u64> = restored.passed_over.iter().map(|passed| passed.step).collect();
    assert_eq!(passed, [3, 2]);
    assert!(restored.passed_over.iter().all(|passed| passed.error.place().file.is_some()));
    // What another step would not be spared is no reason to take it.
    let refused =
        steps.restore_newest(|_| Err::<(), _>(regrow::Error::new(ErrorKind::Mismatch, "another shape")));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Mismatch);
    damage(&folder.path().join("1"));
    let error = steps.restore_newest(load).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.help_text().unwrap().contains("step 1: "), "{error}");
}

/// A writer that saves and rotates faster than a reader comes to the steps that it has seen.
#[test]
fn a_reader_takes_a_newer_step_after_a_rotation() {
    for (root, _folder) in places("rotated") {
        let steps = Steps::new(&root, None).unwrap();
        for number in [1, 2, 3] {
            save(&steps, number);
        }
        let mut tried = Vec::new();
        let restored = steps.restore_newest(|step| {
            tried.push(step.number);
            if step.number == 3 {
                for number in [4, 5, 6] {
                    save(&steps, number);
                }
                steps.tidy(6, &keep_latest(3)).unwrap();
                assert_eq!(numbers(&steps), [4, 5, 6]);
            }
            regrow::load::<Tree<Leaf>>(&step.location).map(drop)
        });
        let restored = restored.unwrap();
        assert_eq!((restored.step.number, tried), (6, vec![3, 6]), "{root}");
        assert!(restored.passed_over.is_empty(), "those that went away are older");
        // One that never ends: it is given up.
        let mut next = 7;
        let error = steps.restore_newest(|step| {
            save(&steps, next);
            next += 1;
            steps.delete(&[step.number], &DeleteOptions::default()).unwrap();
            regrow::load::<Tree<Leaf>>(&step.location).map(drop)
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt, "{root}");
    }
}

#[test]
fn a_step_that_shares_bytes_with_a_deleted_one_is_whole() {
    // Links on a disk; copies in memory as in every bucket.
    for (root, _folder) in places("base").into_iter().take(2) {
        let steps = Steps::new(&root, None).unwrap();
        save_with(steps.place(1), &crate::common::tree(1), &options("regrow")).unwrap();
        let again = SaveOptions { base: Some(steps.place(1)), ..options("regrow") };
        // The same bytes: all of its data is linked, or copied within the bucket.
        let report = save_with(steps.place(2), &crate::common::tree(1), &again).unwrap();
        assert!(report.reused_bytes > 0);
        let tidied = steps.tidy(2, &keep_latest(1)).unwrap();
        assert!(matches!(tidied.deletions[0].outcome, Ok(Deleted::Removed { bytes }) if bytes > 0));
        assert_eq!(numbers(&steps), [2]);
        assert!(verify(steps.place(2)).unwrap().is_ok(), "{root}");
        assert_eq!(
            crate::common::bytes_of(&regrow::load(steps.place(2)).unwrap()),
            crate::common::bytes_of(&crate::common::tree(1))
        );
    }
}

#[test]
fn deleted_steps_are_moved_aside_when_asked() {
    for (root, _folder) in places("aside") {
        let steps = Steps::new(&root, None).unwrap();
        let aside = DeleteOptions { aside: Some("trash".to_owned()), ..DeleteOptions::default() };
        for _ in 0..2 {
            save(&steps, 1);
            let done = steps.delete(&[1, 9], &aside).unwrap();
            assert!(matches!(&done[0].outcome, Ok(Deleted::Moved { .. })), "{done:?}");
            assert_eq!(*done[1].outcome.as_ref().unwrap(), Deleted::Gone);
            assert!(numbers(&steps).is_empty());
        }
        for name in ["1", "1.2"] {
            assert!(verify(root.join("trash").join(name)).unwrap().is_ok(), "{root} {name}");
        }
        for name in ["", "..", "a/../b", "5", ".regrow"] {
            let options = DeleteOptions { aside: Some(name.to_owned()), ..DeleteOptions::default() };
            assert_eq!(steps.delete(&[], &options).unwrap_err().kind(), ErrorKind::InvalidArgument, "{name}");
        }
    }
}

#[test]
fn files_of_others_in_a_step_are_left_alone() {
    for (root, _folder) in places("foreign") {
        let steps = Steps::new(&root, None).unwrap();
        save(&steps, 1);
        save(&steps, 2);
        root.join("1").store().put(b"config.yaml", "mine".into()).unwrap();
        let tidied = steps.tidy(2, &keep_latest(1)).unwrap();
        let error = tidied.deletions[0].outcome.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("config.yaml"), "{error}");
        assert_eq!(numbers(&steps), [1, 2], "{root}");
        assert!(verify(steps.place(1)).unwrap().is_ok());
    }
}

#[test]
fn the_pointer_saves_a_long_list_and_is_only_a_hint() {
    for (root, _folder) in places("pointer") {
        let steps = Steps::new(&root, None).unwrap();
        save(&steps, 1);
        save(&steps, 2);
        let point = |text: &str| root.store().put(b".regrow/latest.json", text.to_owned().into()).unwrap();
        let latest = || steps.latest().unwrap().unwrap().number;
        let is_bucket = root.commits_by_marker();
        // Of a long list of a bucket; of a short one; at a step that is not there; nonsense.
        point(r#"{"step": 1, "name": "1", "step_count": 1000}"#);
        assert_eq!(latest(), if is_bucket { 1 } else { 2 });
        point(r#"{"step": 1, "name": "1", "step_count": 999}"#);
        assert_eq!(latest(), 2);
        point(r#"{"step": 7, "name": "7", "step_count": 1000}"#);
        assert_eq!(latest(), 2);
        point("{");
        assert_eq!(latest(), 2);
        // A writer that begins puts it right.
        steps.refresh().unwrap();
        let written =
            root.store().get(b".regrow/latest.json", regrow_store::ByteRange::Full).unwrap().unwrap();
        assert_eq!(&written[..], br#"{"step":2,"name":"2","step_count":2}"#);
        steps.delete(&[1, 2], &DeleteOptions::default()).unwrap();
        steps.refresh().unwrap();
        assert!(root.store().get(b".regrow/latest.json", regrow_store::ByteRange::Full).unwrap().is_none());
    }
}

#[test]
fn a_new_writer_removes_files_of_dead_writers() {
    for (root, _folder) in places("begin") {
        let steps = Steps::new(&root, None).unwrap();
        save(&steps, 1);
        let store = root.store();
        let left = |name: &str| store.len_bytes(name.as_bytes()).unwrap().is_some();
        // Files of a process that may live; files that a copy can continue with; deletions.
        store.put(b"2.orbax-checkpoint-tmp-1/x", "x".into()).unwrap();
        store.put(b"3.orbax-checkpoint-tmp-copy/journal", "x".into()).unwrap();
        store.put(b".regrow/deleting/1", r#"{"since": 4e9, "holder": "x:1"}"#.into()).unwrap();
        store.put(b".regrow/deleting/2", r#"{"since": 1, "holder": "x:1"}"#.into()).unwrap();
        if !root.commits_by_marker() {
            store.put(b"4.orbax-checkpoint-tmp-1-0123456789abcdef/x", "x".into()).unwrap();
        }
        steps.refresh().unwrap();
        assert!(left("2.orbax-checkpoint-tmp-1/x") && left("3.orbax-checkpoint-tmp-copy/journal"), "{root}");
        assert!(left(".regrow/deleting/1") && !left(".regrow/deleting/2"), "{root}");
        assert!(!left("4.orbax-checkpoint-tmp-1-0123456789abcdef/x"), "{root}");
        assert_eq!(numbers(&steps), [1]);
    }
}

#[test]
fn policies_use_the_list_of_steps() {
    let steps = Steps::new(fixtures().join("orbax/manager_composite/ckpt"), None).unwrap();
    let facts = steps.list().unwrap().facts(&[], &BTreeSet::new(), true);
    let best = Keep::Best(Best { metric: "loss".to_owned(), mode: BestMode::Min, count: 1 });
    assert_eq!(regrow::manager::to_delete(&facts, &best), [100]);
    assert!(SaveWhen::Every(100).wants(&regrow::manager::Moment { step: 300, ..Default::default() }));
}
