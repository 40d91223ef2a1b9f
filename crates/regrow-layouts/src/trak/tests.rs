//! Tests of the rules that prevent the weaknesses of TRAK's own saver.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::layout::{ExperimentName, Parameters, Precision, TrainArray};
use super::*;
use regrow_base::error::ErrorKind;
use regrow_layouts::ReaderExt;

const PARAMETERS: Parameters = Parameters { train_set_size: 6, proj_dim: 2, precision: Precision::Single };

pub(super) fn metadata() -> Map<String, Value> {
    json!({"JL dimension": 2, "JL matrix type": "normal", "train set size": 6}).as_object().unwrap().clone()
}

pub(super) fn open(root: &Path) -> TrakStore {
    TrakStore::open(root, PARAMETERS, &Mode::Create(metadata())).unwrap()
}

pub(super) fn name(text: &str) -> ExperimentName {
    ExperimentName::new(text).unwrap()
}

/// Writes rows of a model, and marks them. The values depend on the number of the row.
pub(super) fn fill(model: &ModelArrays, rows: &[u64]) {
    let grads: Vec<u8> =
        rows.iter().flat_map(|&row| [row as f32 + 1.0; 2]).flat_map(f32::to_le_bytes).collect();
    let weights: Vec<u8> = rows.iter().flat_map(|&row| (row as f32 + 1.0).to_le_bytes()).collect();
    model.rows.write_rows("grads", rows, &grads).unwrap();
    model.rows.write_rows("out_to_loss", rows, &weights).unwrap();
    model.rows.mark_done(rows).unwrap();
}

pub(super) fn records(root: &Path) -> Map<String, Value> {
    documents::read_object(&root.join("experiments.json")).unwrap().unwrap()
}

// Weakness 1: updates of experiments.json that are lost.

#[test]
fn experiments_of_many_threads_are_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    open(root).register(0, false).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let store = TrakStore::open(root, PARAMETERS, &Mode::Join(metadata())).unwrap();
                for i in 0..8 {
                    let name = name(&format!("{thread}-{i}"));
                    store.init_experiment(&name, 3, 0, false).unwrap();
                    store.finalize_scores(&name, true, false).unwrap();
                }
            });
        }
    });
    let records = records(root);
    assert_eq!(records.len(), 32);
    assert!(records.values().all(|record| record["scores_finalized"] == 1 && record["num_targets"] == 3));
}

#[test]
fn a_worker_may_start_before_the_owner() {
    let folder = tempfile::tempdir().unwrap();
    let worker = TrakStore::open(folder.path(), PARAMETERS, &Mode::Join(metadata())).unwrap();
    assert!(!folder.path().join("metadata.json").exists());
    worker.register(3, false).unwrap();
    worker.init_experiment(&name("val"), 3, 3, false).unwrap();
    let owner = open(folder.path());
    assert_eq!(records(folder.path()).len(), 1);
    assert_eq!(owner.catalog().unwrap().models.len(), 1);
    assert!(folder.path().join("metadata.json").exists());
}

#[test]
fn a_killed_start_of_an_experiment_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    store.init_experiment(&name("val"), 3, 0, false).unwrap();
    // The process was killed before it wrote the record, which comes last.
    fs::write(folder.path().join("experiments.json"), "{}").unwrap();
    assert!(regrow::verify(folder.path()).unwrap().is_ok());
    assert!(regrow::open(folder.path()).unwrap().find("models/0/targets/val/grads").is_err());
    store.init_experiment(&name("val"), 3, 0, false).unwrap();
    store.experiment(&name("val"), 3, 0).unwrap().targets.mark_done(&[1]).unwrap();
    fs::write(folder.path().join("experiments.json"), "{}").unwrap();
    let found = regrow::verify(folder.path()).unwrap().findings;
    assert!(found.iter().any(|finding| finding.error.to_string().contains("no record")), "{found:?}");
}

// Weakness 2: score files that are emptied while other processes use them.

#[test]
fn a_second_model_leaves_finished_scores_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let val = name("val");
    for id in [0, 1] {
        store.register(id, false).unwrap();
    }
    store.init_experiment(&val, 1, 0, false).unwrap();
    let scores = store.scores(&val, 1).unwrap();
    scores.write_rows(&[5], &7_f32.to_le_bytes()).unwrap();
    store.finalize_scores(&val, true, false).unwrap();
    let before = fs::read(scores.path()).unwrap();
    let joined = store.init_experiment(&val, 1, 1, false).unwrap();
    assert!(joined.scores_finalized);
    assert_eq!(fs::read(scores.path()).unwrap(), before);
    // With `reset` the scores become zeros, in a new file: no map of the old file is truncated.
    store.init_experiment(&val, 1, 1, true).unwrap();
    let mut old = [0; 24];
    scores.read_rows(0, &mut old).unwrap();
    assert_eq!(old[20..], 7_f32.to_le_bytes());
    store.scores(&val, 1).unwrap().read_rows(0, &mut old).unwrap();
    assert_eq!(old, [0; 24]);
    assert_eq!(records(folder.path())["val"]["scores_finalized"], 0);
}

#[test]
fn scores_that_are_being_written_are_not_final() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    store.init_experiment(&name("val"), 1, 0, false).unwrap();
    store.finalize_scores(&name("val"), true, false).unwrap();
    store.finalize_scores(&name("val"), false, false).unwrap();
    assert_eq!(records(folder.path())["val"]["scores_finalized"], 0);
    let error = store.finalize_scores(&name("other"), true, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

// Weakness 3: a mask that runs ahead of the rows.

#[test]
fn marks_wait_for_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).with_sync_interval(Duration::from_secs(3600));
    store.register(0, false).unwrap();
    let model = store.model(0).unwrap();
    // There was no sync before the first mark, so this mark syncs at once.
    fill(&model, &[4]);
    assert_eq!(model.rows.count_done().unwrap(), 1);
    fill(&model, &[2, 0]);
    assert!(model.rows.has_pending());
    assert_eq!(model.rows.count_done().unwrap(), 1);
    assert_eq!(model.rows.missing().unwrap(), [1, 3, 5]);
    model.rows.flush().unwrap();
    assert_eq!(model.rows.count_done().unwrap(), 3);
    // A row that is written again is not done until it is on disk again.
    model.rows.write_rows("grads", &[0], &[1; 8]).unwrap();
    assert_eq!(model.rows.count_done().unwrap(), 2);
    drop(model);
    assert_eq!(store.model(0).unwrap().rows.count_done().unwrap(), 3);
    let model = store.model(0).unwrap();
    model.rows.mark_undone(&[2]).unwrap();
    assert_eq!(model.rows.missing().unwrap(), [1, 2, 3, 5]);
    assert_eq!(model.rows.mark_done(&[6]).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn rows_that_cannot_be_synced_are_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).with_sync_interval(Duration::from_secs(3600));
    store.register(0, false).unwrap();
    let model = store.model(0).unwrap();
    fill(&model, &[0]);
    fill(&model, &[1]);
    // Another process empties the gradients, as TRAK does.
    fs::File::options().write(true).open(folder.path().join("0/grads.mmap")).unwrap().set_len(128).unwrap();
    assert_eq!(model.rows.flush().unwrap_err().kind(), ErrorKind::Corrupt);
    drop(model);
    assert_eq!(
        array_file::ArrayFile::open(
            &folder.path().join("0/_is_featurized.mmap"),
            &PARAMETERS.train(0, TrainArray::Mask).spec,
            false
        )
        .unwrap()
        .count_marked()
        .unwrap(),
        1
    );
}

#[test]
fn a_store_takes_no_rows_marks_or_flags_after_a_failed_sync() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).with_sync_interval(Duration::from_secs(3600));
    store.register(0, false).unwrap();
    let model = store.model(0).unwrap();
    fill(&model, &[0]);
    fill(&model, &[1]);
    store.failed.set();
    let refused = |done: Result<()>| {
        let error = done.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.help_text().unwrap().contains("start the program again"), "{error}");
    };
    for _ in 0..2 {
        refused(model.rows.write_rows("grads", &[2], &[1; 8]));
        refused(model.rows.flush());
        refused(model.rows.mark_done(&[2]));
        refused(model.rows.mark_undone(&[0]));
        refused(model.features.write_rows(&[0], &[1; 8]));
        refused(store.write_flags(0, true).map(drop));
        refused(store.init_experiment(&name("val"), 3, 0, false).map(drop));
        // Arrays that are opened again share the state of the failed sync.
        refused(store.model(0).unwrap().rows.write_rows("grads", &[2], &[1; 8]));
    }
    drop(model);
    // Opened again, the store goes on from the rows that were synced.
    let model = open(folder.path()).model(0).unwrap();
    assert_eq!(model.rows.missing().unwrap(), [1, 2, 3, 4, 5]);
    fill(&model, &[1, 2, 3, 4, 5]);
}

// Weakness 4: one damaged JSON file makes the whole store unusable.

#[test]
fn damage_to_one_model_concerns_that_model() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for id in [0, 1] {
        store.register(id, false).unwrap();
    }
    fs::write(folder.path().join("id_0.json"), "").unwrap();
    fs::write(folder.path().join("experiments.json"), "{\"val\"").unwrap();
    let store = open(folder.path());
    let catalog = store.catalog().unwrap();
    assert_eq!(catalog.models.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(catalog.faults.len(), 2);
    fill(&store.model(1).unwrap(), &[0, 1, 2, 3, 4, 5]);
    assert!(store.write_flags(1, false).unwrap().is_featurized);
    assert_eq!(store.register(0, false).unwrap_err().kind(), ErrorKind::Corrupt);
    let error = store.init_experiment(&name("new"), 3, 1, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(fs::read(folder.path().join("experiments.json")).unwrap(), b"{\"val\"");
    repair(folder.path(), &Repair::default()).unwrap();
    assert_eq!(fs::read(folder.path().join("experiments.json.damaged")).unwrap(), b"{\"val\"");
    assert_eq!(open(folder.path()).catalog().unwrap().models.len(), 2);
}

// Weakness 5: short files are padded, and missing files are ignored.

#[test]
fn missing_arrays_are_errors_but_for_deleted_gradients() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    fill(&store.model(0).unwrap(), &[0, 1, 2, 3, 4, 5]);
    for array in TrainArray::ALL {
        let path = folder.path().join("0").join(array.file_name());
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = store.model(0).unwrap_err();
        assert_eq!((error.kind(), error.place().file.as_ref()), (ErrorKind::NotFound, Some(&path)));
        fs::write(&path, bytes).unwrap();
    }
    store.write_flags(0, true).unwrap();
    store.delete_grads(0).unwrap();
    let model = store.model(0).unwrap();
    assert_eq!(model.rows.array("grads").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.delete_grads(0).unwrap_err().kind(), ErrorKind::NotFound);
    // Registering a finalized model again does not make new gradients.
    store.register(0, false).unwrap();
    assert!(!folder.path().join("0/grads.mmap").exists());
}

// Weakness 6: parameters and checkpoints that are never compared.

#[test]
fn a_model_belongs_to_one_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert_eq!(store.bind_checkpoint(0, "a").unwrap_err().kind(), ErrorKind::NotFound);
    store.register(0, false).unwrap();
    store.bind_checkpoint(0, "a").unwrap();
    store.bind_checkpoint(0, "a").unwrap();
    assert_eq!(store.bind_checkpoint(0, "b").unwrap_err().kind(), ErrorKind::Mismatch);
    let tree = regrow::open(folder.path()).unwrap();
    assert_eq!(tree.reader().read_text(tree.find("models/0/checkpoint").unwrap()).unwrap().as_ref(), "a");
}

#[test]
fn an_experiment_keeps_its_number_of_targets() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    store.init_experiment(&name("val"), 3, 0, false).unwrap();
    let error = store.init_experiment(&name("val"), 8, 0, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert_eq!(error.expected_found(), Some(("3", "8")));
    assert_eq!(records(folder.path())["val"]["num_targets"], 3);
    assert_eq!(store.experiment(&name("val"), 8, 0).unwrap_err().kind(), ErrorKind::Mismatch);
    store.init_experiment(&name("val"), 8, 0, true).unwrap();
    assert_eq!(records(folder.path())["val"]["num_targets"], 8);
    assert!(regrow::verify(folder.path()).unwrap().is_ok());
}

// Weakness 7: resuming.

#[test]
fn any_subset_of_rows_and_targets_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    fill(&store.model(0).unwrap(), &[5, 1]);
    let worker = TrakStore::open(folder.path(), PARAMETERS, &Mode::Join(metadata())).unwrap();
    assert!(!worker.register(0, false).unwrap().is_featurized);
    let model = worker.model(0).unwrap();
    let missing = model.rows.missing().unwrap();
    assert_eq!(missing, [0, 2, 3, 4]);
    fill(&model, &missing);
    model.rows.flush().unwrap();
    // The process was killed before it set the flag. `refresh_flags` sets the flag.
    assert!(!store.flags(0).unwrap().is_featurized);
    store.refresh_flags().unwrap();
    assert!(store.flags(0).unwrap().is_featurized);
    let val = name("val");
    store.init_experiment(&val, 4, 0, false).unwrap();
    let arrays = store.experiment(&val, 4, 0).unwrap();
    arrays.targets.write_rows("grads", &[3, 1], &[1; 16]).unwrap();
    arrays.targets.mark_done(&[3, 1]).unwrap();
    drop(arrays);
    store.init_experiment(&val, 4, 0, false).unwrap();
    assert_eq!(store.experiment(&val, 4, 0).unwrap().targets.missing().unwrap(), [0, 2]);
}

#[test]
fn refreshed_flags_keep_newer_flags() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    let model = store.model(0).unwrap();
    fill(&model, &[0, 1, 2, 3, 4, 5]);
    model.rows.flush().unwrap();
    std::thread::scope(|scope| {
        let lock = store::lock(folder.path()).unwrap();
        let refreshed = scope.spawn(|| store.refresh_flags());
        // The thread reads the flags, and then waits for the lock. The flags change before it gets
        // the lock.
        std::thread::sleep(Duration::from_millis(200));
        let flags = documents::ModelFlags { is_featurized: true, is_finalized: true };
        documents::write_flags(folder.path(), 0, flags).unwrap();
        drop(lock);
        refreshed.join().unwrap().unwrap();
    });
    assert!(store.flags(0).unwrap().is_finalized);
}

#[test]
fn starting_again_needs_an_option() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    let model = store.model(0).unwrap();
    fill(&model, &[0, 1, 2, 3, 4, 5]);
    drop(model);
    store.write_flags(0, false).unwrap();
    assert!(store.register(0, false).unwrap().is_featurized);
    assert!(!store.register(0, true).unwrap().is_featurized);
    assert_eq!(store.model(0).unwrap().rows.count_done().unwrap(), 0);
    assert!(!store.flags(0).unwrap().is_featurized);
    // `register` removes temporary files of a killed process.
    fs::write(folder.path().join("0/.regrow-tmp-0123"), "x").unwrap();
    store.register(0, false).unwrap();
    assert!(!folder.path().join("0/.regrow-tmp-0123").exists());
}

// Weakness 8: NaN as final scores.

#[test]
fn scores_with_nan_or_infinity_are_not_final() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    let val = name("val");
    store.init_experiment(&val, 1, 0, false).unwrap();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        store.scores(&val, 1).unwrap().write_rows(&[4], &bad.to_le_bytes()).unwrap();
        let error = store.finalize_scores(&val, true, false).unwrap_err();
        assert!(error.to_string().contains("row 4"), "{error}");
        assert_eq!(records(folder.path())["val"]["scores_finalized"], 0);
    }
    store.finalize_scores(&val, true, true).unwrap();
    assert_eq!(regrow::verify(folder.path()).unwrap().findings.len(), 1);
}

// Weakness 9: absolute paths, and IDs from anywhere below.

#[test]
fn a_folder_can_be_moved_and_hold_a_backup_of_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    let store = open(&here);
    store.register(0, false).unwrap();
    store.init_experiment(&name("val"), 3, 0, false).unwrap();
    fs::rename(&here, &there).unwrap();
    let store = open(&there);
    store.register(-7, false).unwrap();
    regrow_testkit::copy_folder(&there, &folder.path().join("backup")).unwrap();
    fs::rename(folder.path().join("backup"), there.join("backup")).unwrap();
    fs::write(there.join("backup/id_99.json"), "{\"99\": {\"is_featurized\": 1, \"is_finalized\": 1}}")
        .unwrap();
    fs::write(there.join("backup/id_0.json"), "").unwrap();
    let catalog = open(&there).catalog().unwrap();
    assert_eq!(catalog.models.keys().collect::<Vec<_>>(), [&-7, &0]);
    assert!(catalog.faults.is_empty());
    store.experiment(&name("val"), 3, 0).unwrap();
    assert!(regrow::verify(&there).unwrap().is_ok());
}

#[test]
fn a_file_of_flags_holds_the_model_of_its_name_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(5, false).unwrap();
    let other =
        json!({"5": {"is_featurized": 1, "is_finalized": 1}, "8": {"is_featurized": 1, "is_finalized": 0}});
    for file in ["id_1.json", "id_8.json", "id_05.json"] {
        fs::write(folder.path().join(file), other.to_string()).unwrap();
    }
    let catalog = store.catalog().unwrap();
    assert_eq!(catalog.models.into_iter().collect::<Vec<_>>(), [(5, ModelFlags::default())]);
    assert_eq!(catalog.faults.len(), 3);
    assert_eq!(store.flags(8).unwrap_err().kind(), ErrorKind::Corrupt);
}

// Recognition of a store.

#[test]
fn other_folders_are_not_taken_for_stores() {
    let folder = tempfile::tempdir().unwrap();
    let is_store = || Trak.recognise(&Location::local(folder.path())).unwrap();
    assert!(!is_store());
    fs::write(folder.path().join("metadata.json"), "{\"model\": \"gpt\"}").unwrap();
    fs::write(folder.path().join("id_0.json"), "{}").unwrap();
    fs::write(folder.path().join("experiments.json"), "{}").unwrap();
    assert!(!is_store());
    fs::write(folder.path().join("metadata.json"), "{\"JL dimension\": 4, \"train set size\": 6}").unwrap();
    assert!(is_store());
    assert!(!Trak.recognise(&Location::local(folder.path().join("metadata.json"))).unwrap());
    // A huge `metadata.json` is not parsed. Then the names of the other files must show the store.
    let long = format!("{{\"JL dimension\": 4, \"train set size\": 6, \"x\": \"{}\"}}", "x".repeat(1 << 20));
    fs::write(folder.path().join("metadata.json"), long).unwrap();
    assert!(!is_store());
    fs::create_dir(folder.path().join("0")).unwrap();
    fs::write(folder.path().join("0/_is_featurized.mmap"), "").unwrap();
    assert!(is_store());
}

#[test]
fn no_array_is_shown_as_a_map() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    fill(&store.model(0).unwrap(), &[0, 1, 2, 3, 4, 5]);
    store.write_flags(0, true).unwrap();
    let opened = regrow::open(folder.path()).unwrap();
    for leaf in 0..opened.tree().len() {
        assert!(opened.reader().view(leaf).unwrap().is_none());
    }
}

#[test]
fn impossible_parameters_are_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    let huge = Parameters { train_set_size: 1 << 40, proj_dim: 1 << 40, ..PARAMETERS };
    let error = TrakStore::open(&root, huge, &Mode::Create(metadata())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    let store = open(&root);
    store.register(0, false).unwrap();
    assert_eq!(store.init_experiment(&name("val"), u64::MAX, 0, false).unwrap_err().kind(), ErrorKind::Limit);
    assert!(records(&root).is_empty());
}

#[test]
fn random_damage_gives_errors_and_nothing_else() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("store");
    let store = open(&root);
    store.register(0, false).unwrap();
    fill(&store.model(0).unwrap(), &[0, 1, 2, 3, 4, 5]);
    store.init_experiment(&name("val"), 3, 0, false).unwrap();
    let files = [
        "metadata.json",
        "experiments.json",
        "id_0.json",
        "0/grads.mmap",
        "0/_is_featurized.mmap",
        "scores/val.mmap",
    ];
    let mut state = 88172645463325252_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for round in 0..600 {
        let path = root.join(files[round % files.len()]);
        let whole = fs::read(&path)?;
        let mut bytes = whole.clone();
        match round % 3 {
            0 => bytes.truncate(random(bytes.len())),
            1 => {
                let at = random(bytes.len());
                bytes[at] ^= 1 << random(8);
            }
            _ => {
                let at = random(bytes.len().min(140));
                bytes[at] = b"0123456789()[]{},'\"\0\xff"[random(21)];
            }
        }
        fs::write(&path, &bytes)?;
        if let Ok(report) = regrow::verify(&root) {
            assert!(report.checked_bytes < 1 << 20);
        }
        if let Ok(store) = TrakStore::open(&root, PARAMETERS, &Mode::Join(metadata())) {
            let _ = store.model(0);
            let _ = store.experiment(&name("val"), 3, 0);
        }
        fs::write(&path, whole)?;
    }
    assert!(regrow::verify(&root).unwrap().is_ok());
    Ok(())
}
