//! A killed TRAK writer leaves no row that is marked as done but has no data. Concurrent writers
//! lose no row and no experiment of another writer.
//!
//! The tests start themselves as children. Each child writes rows, marks the rows as done, and adds
//! experiments. The values of a row follow from its number. The test kills the child (`SIGKILL`) at
//! a random moment.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use crate::common::child::child;
use regrow_layouts::trak::{ExperimentName, Mode, Parameters, Precision, TrainArray, TrakStore};
use serde_json::{Map, Value, json};

const FOLDER: &str = "REGROW_TEST_TRAK_FOLDER";
const WORKER: &str = "REGROW_TEST_TRAK_WORKER";
const ROWS: u64 = 4000;
const COLUMNS: u64 = 16;
/// Kills at least, and at most: a busy machine may need more until work was seen in the middle and
/// at its end.
const KILLS: std::ops::RangeInclusive<u64> = 25..=1000;

fn metadata() -> Map<String, Value> {
    json!({"JL dimension": COLUMNS, "JL matrix type": "normal", "train set size": ROWS})
        .as_object()
        .unwrap()
        .clone()
}

fn open(root: &Path) -> TrakStore {
    let parameters = Parameters { train_set_size: ROWS, proj_dim: COLUMNS, precision: Precision::Single };
    let store = TrakStore::open(root, parameters, &Mode::Create(metadata())).unwrap();
    store.with_sync_interval(Duration::from_millis(5))
}

fn row(row: u64, columns: u64) -> Vec<u8> {
    (0..columns).flat_map(|column| (row as f32 + 1.0 + column as f32 / 32.0).to_le_bytes()).collect()
}

fn spawn(test: &str, root: &Path, worker: u64) -> Child {
    let mut child =
        child(test).env(FOLDER, root).env(WORKER, worker.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.by_ref().map(Result::unwrap).find(|line| line.contains("READY")).unwrap();
    // The output of the test's own frame at the end needs a reader.
    thread::spawn(move || lines.for_each(drop));
    child
}

/// Names in the store and its folders that no file has while no file is being made.
fn leftovers(root: &Path) -> Vec<String> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let folders = names(root).into_iter().map(|name| root.join(name)).filter(|path| path.is_dir());
    let all: Vec<String> = folders.flat_map(|folder| names(&folder)).chain(names(root)).collect();
    all.into_iter().filter(|name| name.starts_with('.') && name != ".regrow.lock").collect()
}

/// The child: does nothing unless it was started by a test below.
#[test]
fn child_works_until_killed() {
    let Some(root) = env::var_os(FOLDER) else { return };
    println!("READY");
    let store = open(Path::new(&root));
    for model in 0.. {
        store.register(model, false).unwrap();
        let arrays = store.model(model).unwrap();
        // Any subset, in any order: here from both ends.
        let mut missing = arrays.rows.missing().unwrap();
        while !missing.is_empty() {
            let front: Vec<u64> = missing.drain(..missing.len().min(7)).collect();
            let back: Vec<u64> = missing.drain(missing.len().saturating_sub(5)..).rev().collect();
            let batch = [front, back].concat();
            let bytes = |columns: u64| batch.iter().flat_map(|&at| row(at, columns)).collect::<Vec<u8>>();
            arrays.rows.write_rows("grads", &batch, &bytes(COLUMNS)).unwrap();
            arrays.rows.write_rows("out_to_loss", &batch, &bytes(1)).unwrap();
            arrays.rows.mark_done(&batch).unwrap();
        }
        drop(arrays);
        assert!(store.write_flags(model, false).unwrap().is_featurized);
        let name = ExperimentName::new(&format!("e{model}")).unwrap();
        store.init_experiment(&name, 3, model, false).unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_no_row_that_is_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    let (mut done_before, mut partial) = (0, 0);
    for kill in 0..*KILLS.end() {
        if kill >= *KILLS.start() && done_before > ROWS && partial > 0 {
            break;
        }
        let mut child = spawn("crash::killed_trak::child_works_until_killed", &root, 0);
        // A step that has no pattern, over anything from opening to the end of a model.
        thread::sleep(Duration::from_micros(kill * 7919 % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();
        if !root.exists() {
            continue;
        }
        let store = open(&root);
        assert_eq!(leftovers(&root), Vec::<String>::new());
        let catalog = store.catalog().unwrap();
        assert!(catalog.faults.is_empty(), "{:?}", catalog.faults);
        let mut done = 0;
        for (&id, flags) in &catalog.models {
            let arrays = store.model(id).unwrap();
            let missing: BTreeSet<u64> = arrays.rows.missing().unwrap().into_iter().collect();
            let mut all = vec![0; (ROWS * COLUMNS * 4) as usize];
            arrays.rows.array("grads").unwrap().read_rows(0, &mut all).unwrap();
            let mut weights = vec![0; (ROWS * 4) as usize];
            arrays.rows.array("out_to_loss").unwrap().read_rows(0, &mut weights).unwrap();
            for (at, (grads, weight)) in
                all.chunks_exact(COLUMNS as usize * 4).zip(weights.chunks_exact(4)).enumerate()
            {
                if !missing.contains(&(at as u64)) {
                    assert_eq!(grads, row(at as u64, COLUMNS), "row {at} of model {id}");
                    assert_eq!(weight, row(at as u64, 1), "row {at} of model {id}");
                }
            }
            done += ROWS - missing.len() as u64;
            partial += u64::from(!missing.is_empty());
            assert!(!flags.is_featurized || missing.is_empty());
        }
        assert!(done >= done_before, "rows that were done are gone");
        done_before = done;
        // Files that were killed while they were made are harmless.
        let report = regrow::verify(&root);
        assert!(
            report.as_ref().is_ok_and(regrow::VerifyReport::is_ok) || catalog.models.is_empty(),
            "{report:?}"
        );
    }
    assert!(done_before > ROWS && partial > 0, "{done_before} rows, {partial} models in the middle");
}

/// The child: one worker of four on one model and one `experiments.json`.
#[test]
fn child_works_beside_others() {
    let Some(root) = env::var_os(FOLDER) else { return };
    let worker: u64 = env::var(WORKER).unwrap().parse().unwrap();
    println!("READY");
    let store = open(Path::new(&root));
    store.register(0, false).unwrap();
    let arrays = store.model(0).unwrap();
    for batch in 0..ROWS / 40 {
        // Rows of all workers lie side by side, in data and mask.
        let rows: Vec<u64> = (0..10).map(|at| (batch * 10 + at) * 4 + worker).collect();
        let bytes = |columns: u64| rows.iter().flat_map(|&at| row(at, columns)).collect::<Vec<u8>>();
        arrays.rows.write_rows("grads", &rows, &bytes(COLUMNS)).unwrap();
        arrays.rows.write_rows("out_to_loss", &rows, &bytes(1)).unwrap();
        arrays.rows.mark_done(&rows).unwrap();
        if batch % 4 == 0 {
            let name = ExperimentName::new(&format!("w{worker}-{batch}")).unwrap();
            store.init_experiment(&name, 2, 0, false).unwrap();
            store.finalize_scores(&name, true, false).unwrap();
        }
    }
    arrays.rows.flush().unwrap();
    store.refresh_flags().unwrap();
}

#[test]
fn four_processes_on_one_model_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut children: Vec<Child> = (0..4)
        .map(|worker| spawn("crash::killed_trak::child_works_beside_others", folder.path(), worker))
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let store = open(folder.path());
    let flags = store.flags(0).unwrap();
    assert!(flags.is_featurized);
    assert_eq!(store.model(0).unwrap().rows.count_done().unwrap(), ROWS);
    let mut all = vec![0; (ROWS * COLUMNS * 4) as usize];
    let path = folder.path().join("0").join(TrainArray::Grads.file_name());
    all.copy_from_slice(fs::read(path).unwrap().split_at(128).1);
    for (at, grads) in all.chunks_exact(COLUMNS as usize * 4).enumerate() {
        assert_eq!(grads, row(at as u64, COLUMNS));
    }
    let records = store.catalog().unwrap().experiments.unwrap();
    assert_eq!(records.len(), 100);
    assert!(records.values().all(|record| record["scores_finalized"] == 1));
}
