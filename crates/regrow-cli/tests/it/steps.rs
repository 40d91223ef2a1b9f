//! `steps`: what is in a folder of steps, finished, damaged, or neither.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{orbax, regrow, saved, text};
use regrow::engine::LoadOptions;
use regrow::manager::{Manager, ManagerOptions, SaveStep, Steps};
use serde_json::json;

#[test]
fn steps_of_orbax_with_their_metrics() {
    let root = orbax("manager_composite");
    let run = regrow(["steps", text(&root)]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(
        lines[0].split_whitespace().eq(["STEP", "NAME", "STATE", "BYTES", "SAVED", "AGE", "METRICS"]),
        "{run:?}"
    );
    assert!(lines[2].contains("ckpt_000200  committed"), "{run:?}");
    assert!(
        lines[2].ends_with("loss=0.25 acc/top1=0.1") || lines[2].ends_with("acc/top1=0.1 loss=0.25"),
        "{run:?}"
    );
    assert!(lines[4].starts_with("3 steps, "), "{run:?}");
    let steps = regrow(["steps", text(&root), "--json"]).json();
    assert_eq!(steps["steps"][0]["step"], 100);
    assert_eq!(steps["steps"][0]["metrics"]["acc"], json!({"top1": 0.0}));
    assert_eq!(steps["steps"][2]["metadata"], json!({"i": 2}));
}

#[test]
fn damage_unfinished_saves_and_readers_are_seen() {
    let (folder, path) = saved();
    let root = folder.path();
    regrow(["cp", text(&path), text(&root.join("step_2"))]);
    regrow(["cp", text(&path), text(&root.join("step_3"))]);
    fs::create_dir(root.join("step_4.orbax-checkpoint-tmp-1")).unwrap();
    fs::create_dir(root.join("step_5")).unwrap();
    let mut data = fs::read_dir(root.join("step_3")).unwrap().map(|entry| entry.unwrap().path());
    let data = data.find(|path| path.extension().is_some_and(|end| end == "safetensors")).unwrap();
    let mut bytes = fs::read(&data).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&data, bytes).unwrap();
    let lease = Steps::new(root, None).unwrap().lease(2).unwrap();
    let run = regrow(["steps", text(root), "--verify"]);
    drop(lease);
    assert_eq!(run.code, 1, "{run:?}");
    let states: Vec<Vec<&str>> =
        run.stdout.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(states[0][..3], ["1", "step_1", "committed"]);
    assert_eq!(states[1][..4], ["2", "step_2", "in", "use"]);
    assert_eq!(states[2][..3], ["3", "step_3", "damaged"]);
    assert_eq!(states[3][..3], ["-", "step_4.orbax-checkpoint-tmp-1", "unfinished"]);
    assert!(run.stderr.contains("step_5") && run.stderr.contains("step_3: "), "{run:?}");
    assert_eq!(regrow(["steps", text(root)]).code, 0, "without --verify nothing is read");
    let found = regrow(["steps", text(root), "--verify", "--json"]).json();
    assert_eq!(found["steps"][2]["error"]["kind"], "corrupt");
}

#[test]
fn abandoned_steps_are_told_and_deleted_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::new(folder.path(), ManagerOptions::default()).unwrap();
    let save = |step: u64| manager.save(step, &vec![step as f32], &SaveStep::default()).unwrap();
    assert!(save(1) && save(2));
    manager.restore_step::<Vec<f32>>(1, &LoadOptions::default()).unwrap();
    assert!(save(3));
    manager.wait().unwrap();
    let states = |run: crate::common::Run| -> Vec<String> {
        let lines = run.stdout.lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap().to_owned());
        lines.take_while(|state| state != "bytes" && !state.ends_with(',')).collect()
    };
    let root = text(folder.path());
    let listed = states(regrow(["steps", root]));
    assert_eq!(listed[..3], ["committed", "abandoned", "committed"]);
    let busy = regrow(["steps", root, "--delete-abandoned"]);
    assert!(busy.code == 2 && busy.stderr.contains("another writer"), "{busy:?}");
    drop(manager);
    let run = regrow(["steps", root, "--delete-abandoned"]);
    assert!(run.code == 0 && run.stderr.contains("deleted 2: "), "{run:?}");
    assert_eq!(states(run)[..2], ["committed", "committed"]);
    assert_eq!(Steps::new(folder.path(), None).unwrap().numbers().unwrap(), [1, 3]);
}

#[test]
fn what_is_no_folder_of_steps_is_said_to_be_none() {
    let (folder, path) = saved();
    let none = folder.path().join("none");
    for (arguments, code) in [
        (vec!["steps", text(&none)], 3),
        (vec!["steps", text(&path)], 2),
        (vec!["steps", text(folder.path()), "--step", "1"], 2),
        (vec!["steps", text(folder.path()), "--watch", "0"], 2),
    ] {
        let run = regrow(&arguments);
        assert_eq!(run.code, code, "{arguments:?} {run:?}");
        assert!(run.stderr.contains("help: ") || run.stderr.contains("in "), "{run:?}");
    }
}

#[test]
fn watching_prints_each_step_once_when_it_comes() {
    let (folder, path) = saved();
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("regrow"))
        .args(["steps", text(folder.path()), "--watch", "0.01", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["step"], 1);
    regrow(["cp", text(&path), text(&folder.path().join("step_2"))]);
    assert_eq!(next()["step"], 2);
    child.kill().unwrap();
    child.wait().unwrap();
}
